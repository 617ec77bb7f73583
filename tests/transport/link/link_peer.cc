// The other end of a link in a process of its own, to be killed by a test.
//
//   link_peer accept          writes its port, then accepts every link and every frame
//   link_peer dial ADDRESS    dials, writes "open", then sends for as long as it lives
//   link_peer send ADDRESS BYTES    sends such payloads until four were accepted; or its error
//   link_peer ucx-accept TRANSPORTS                       like accept, over UCX: writes a ticket
//   link_peer ucx-dial TRANSPORTS ADDRESS TOKEN KEY       (token and key as hexadecimal digits)
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "tests/support/recorder.h"
#include "tests/transport/rpc/grpc_server.h"
#include "tests/transport/ucx/ucx_test_transports.h"
#include "transport/ucx/ucx_link.h"

namespace strata {
namespace {

constexpr uint32_t kCredits = 4;

class Taker : public Link::Receiver {
 public:
  void OnFrame(Frame) override { link->Release(1); }
  void OnClosed(absl::Status) override {}
  std::unique_ptr<Link> link;
};

AcceptedLink Take(Taker* taker) {
  AcceptedLink accepted;
  accepted.hello.set_credits(kCredits);
  accepted.receiver = taker;
  accepted.on_open = [taker](std::unique_ptr<Link> link) { taker->link = std::move(link); };
  return accepted;
}

int Accept() {
  std::vector<std::unique_ptr<Taker>> takers;
  GrpcServer server({}, [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
    return Take(takers.emplace_back(std::make_unique<Taker>()).get());
  });
  std::printf("%d\n", server.port());
  std::fflush(stdout);
  while (true) pause();
}

int SendForEver(Link* link, Recorder* heard) {
  std::printf("open\n");
  std::fflush(stdout);
  size_t writable = 0;
  while (true) {
    absl::Status sent = link->Send(MakeFrame(FrameType::kStep, wire::Step()));
    if (absl::IsResourceExhausted(sent)) heard->WaitForWritable(++writable);
  }
}

std::unique_ptr<Link> DialGrpc(const std::string& address, Recorder* heard) {
  DialOptions options;
  options.address = address;
  auto link = DialGrpcLink(options, heard);
  CHECK_OK(link);
  return *std::move(link);
}

int Dial(const std::string& address) {
  Recorder heard;
  return SendForEver(DialGrpc(address, &heard).get(), &heard);
}

int Send(const std::string& address, size_t bytes) {
  Recorder heard;
  const std::unique_ptr<Link> link = DialGrpc(address, &heard);
  const Payload payload = Payload::Own(std::string(bytes, 'x'));
  size_t writable = 0;
  for (uint32_t sent = 0; sent < 4 + kCredits; ++sent) {
    const auto send = [&] {
      return link->Send(MakeFrame(FrameType::kStep, wire::Step(), payload));
    };
    absl::Status status = send();
    if (absl::IsResourceExhausted(status)) {
      heard.WaitForWritable(++writable);
      status = send();
    }
    if (status.ok()) continue;
    std::printf("%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}

std::unique_ptr<UcxLinks> StartUcx(const std::string& transports) {
  UcxLinks::Options options = UcxTestOptions();
  options.transports = transports;
  auto links = UcxLinks::Start(options);
  CHECK_OK(links);
  return *std::move(links);
}

int AcceptUcx(const std::string& transports) {
  Taker taker;
  const std::unique_ptr<UcxLinks> links = StartUcx(transports);
  auto ticket = links->Offer(
      {}, [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> { return Take(&taker); });
  CHECK_OK(ticket);
  std::printf("%s %s %s\n", ticket->address.c_str(), absl::BytesToHexString(ticket->token).c_str(),
              absl::BytesToHexString(ticket->key).c_str());
  std::fflush(stdout);
  while (true) pause();
}

int DialUcx(const std::string& transports, UcxTicket ticket) {
  Recorder heard;
  const std::unique_ptr<UcxLinks> links = StartUcx(transports);
  UcxDialOptions options;
  CHECK(absl::HexStringToBytes(ticket.token, &options.ticket.token));
  CHECK(absl::HexStringToBytes(ticket.key, &options.ticket.key));
  options.ticket.address = std::move(ticket.address);
  auto link = links->Dial(std::move(options), &heard);
  CHECK_OK(link);
  return SendForEver(link->get(), &heard);
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "accept") return strata::Accept();
  if (argc == 3 && std::string(argv[1]) == "dial") return strata::Dial(argv[2]);
  if (argc == 4 && std::string(argv[1]) == "send")
    return strata::Send(argv[2], std::stoul(argv[3]));
  if (argc == 3 && std::string(argv[1]) == "ucx-accept") return strata::AcceptUcx(argv[2]);
  if (argc == 6 && std::string(argv[1]) == "ucx-dial") {
    return strata::DialUcx(argv[2], {argv[3], argv[4], argv[5]});
  }
  return 2;
}
