// The other end of a link in a process of its own, to be killed by a test.
//
//   link_peer accept          writes its port, then takes every link and every frame
//   link_peer dial ADDRESS    dials, writes "open", then sends for as long as it lives
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "tests/support/recorder.h"
#include "tests/transport/grpc_server.h"

namespace strata {
namespace {

class Taker : public Link::Receiver {
 public:
  void OnFrame(Frame) override { link->Release(1); }
  void OnClosed(absl::Status) override {}
  std::unique_ptr<Link> link;
};

int Accept() {
  std::vector<std::unique_ptr<Taker>> takers;
  GrpcServer server({}, [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
    Taker* taker = takers.emplace_back(std::make_unique<Taker>()).get();
    AcceptedLink accepted;
    accepted.hello.set_credits(4);
    accepted.receiver = taker;
    accepted.on_open = [taker](std::unique_ptr<Link> link) { taker->link = std::move(link); };
    return accepted;
  });
  std::printf("%d\n", server.port());
  std::fflush(stdout);
  while (true) pause();
}

int Dial(const std::string& address) {
  Recorder heard;
  DialOptions options;
  options.address = address;
  auto link = DialGrpcLink(options, &heard);
  CHECK_OK(link);
  std::printf("open\n");
  std::fflush(stdout);
  size_t writable = 0;
  while (true) {
    absl::Status sent = (*link)->Send(MakeFrame(FrameType::kStep, wire::Step()));
    if (absl::IsResourceExhausted(sent)) heard.WaitForWritable(++writable);
  }
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "accept") return strata::Accept();
  if (argc == 3 && std::string(argv[1]) == "dial") return strata::Dial(argv[2]);
  return 2;
}
