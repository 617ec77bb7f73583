#include "node/doctor/doctor_reach.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/cluster.grpc.pb.h"
#include "transport/base/peer_addresses.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using Outcome = wire::ReachResult;

// How soon a cancellation is noticed.
constexpr int kReachSliceMs = 50;

struct AddrInfoFree {
  void operator()(addrinfo* info) const { freeaddrinfo(info); }
};
using AddrInfo = std::unique_ptr<addrinfo, AddrInfoFree>;

AddrInfo Resolve(const std::string& host, std::string* error) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &first);
  if (code != 0) {
    *error = code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code);
    return nullptr;
  }
  return AddrInfo(first);
}

std::string Numeric(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  const int code = getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? host : "";
}

wire::ReachResult::Outcome OutcomeOf(int error) {
  switch (error) {
    case 0:
      return Outcome::CONNECTED;
    case ECONNREFUSED:
      return Outcome::REFUSED;
    case ETIMEDOUT:
      return Outcome::TIMED_OUT;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case EADDRNOTAVAIL:
      return Outcome::UNREACHABLE;
    case ECONNRESET:
    case EPIPE:
      return Outcome::RESET;
    default:
      return Outcome::FAILED;
  }
}

class PendingConnect {
 public:
  PendingConnect(const wire::ReachTarget& target, wire::ReachResult* result)
      : result_(result), started_(SteadyTime::Now()) {
    result_->set_address(target.address());
    Start(target.address());
  }
  ~PendingConnect() {
    if (fd_ >= 0) close(fd_);
  }
  PendingConnect(const PendingConnect&) = delete;
  PendingConnect& operator=(const PendingConnect&) = delete;

  int fd() const { return fd_; }  // -1: it has ended

  void OnWritable() {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    Decide(error);
  }
  void Decide(int error) {
    sockaddr_storage from;
    socklen_t size = sizeof from;
    if (fd_ >= 0 && getsockname(fd_, reinterpret_cast<sockaddr*>(&from), &size) == 0) {
      const std::string host = Numeric(reinterpret_cast<sockaddr*>(&from), size);
      if (!IsAnyHost(host)) result_->set_from_host(host);
    }
    result_->set_outcome(OutcomeOf(error));
    if (error != 0) result_->set_error(strerror(error));
    result_->set_took_ms(
        static_cast<uint32_t>(absl::ToInt64Milliseconds(SteadyTime::Now() - started_)));
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  void Start(const std::string& address) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
    std::string error = "not host:port";
    const AddrInfo info = parsed.ok() ? Resolve(parsed->host, &error) : nullptr;
    if (info == nullptr) {
      result_->set_outcome(Outcome::NO_NAME);
      result_->set_error(error);
      return;
    }
    if (info->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(info->ai_addr)->sin6_port = htons(parsed->port);
    } else {
      reinterpret_cast<sockaddr_in*>(info->ai_addr)->sin_port = htons(parsed->port);
    }
    started_ = SteadyTime::Now();
    fd_ = socket(info->ai_family, SOCK_STREAM, 0);
    if (fd_ < 0 || fcntl(fd_, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd_, F_SETFL, O_NONBLOCK) != 0) {
      return Decide(errno);
    }
    if (connect(fd_, info->ai_addr, info->ai_addrlen) == 0) return Decide(0);
    if (errno != EINPROGRESS) Decide(errno);
  }

  wire::ReachResult* const result_;
  SteadyTime started_;
  int fd_ = -1;
};

void ConnectAll(const std::vector<wire::ReachTarget>& targets, const ReachOptions& options,
                std::vector<wire::ReachResult>* results) {
  std::vector<std::unique_ptr<PendingConnect>> all;
  for (size_t i = 0; i < targets.size(); ++i) {
    all.push_back(std::make_unique<PendingConnect>(targets[i], &(*results)[i]));
  }
  const SteadyTime until = SteadyTime::Now() + absl::Milliseconds(options.connect_ms);
  while (true) {
    std::vector<pollfd> fds;
    std::vector<PendingConnect*> waiting;
    for (const auto& each : all) {
      if (each->fd() < 0) continue;
      fds.push_back({.fd = each->fd(), .events = POLLOUT, .revents = 0});
      waiting.push_back(each.get());
    }
    const bool over =
        SteadyTime::Now() >= until || (options.cancelled != nullptr && options.cancelled());
    if (waiting.empty() || over) {
      for (PendingConnect* each : waiting) each->Decide(ETIMEDOUT);
      return;
    }
    poll(fds.data(), static_cast<nfds_t>(fds.size()), kReachSliceMs);
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents != 0) waiting[i]->OnWritable();
    }
  }
}

void IdentifyAll(const std::vector<wire::ReachTarget>& targets, const ReachOptions& options,
                 std::vector<wire::ReachResult>* results) {
  struct Call {
    wire::ReachResult* result;
    std::unique_ptr<wire::Cluster::Stub> stub;
    grpc::ClientContext context;
    wire::IdentifyRequest request;
    wire::IdentifyResponse response;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i].identify() || (*results)[i].outcome() != Outcome::CONNECTED) continue;
    auto call = std::make_unique<Call>();
    call->result = &(*results)[i];
    call->stub = wire::Cluster::NewStub(MakeChannel(targets[i].address()));
    call->context.set_deadline(DeadlineIn(absl::Milliseconds(options.identify_ms)));
    calls.push_back(std::move(call));
  }
  absl::BlockingCounter left(static_cast<int>(calls.size()));
  for (const auto& call : calls) {
    call->stub->async()->Identify(
        &call->context, &call->request, &call->response,
        [each = call.get(), &left](const grpc::Status& status) {
          if (status.ok()) {
            *each->result->mutable_who() = std::move(each->response);
          } else {
            each->result->set_error(IsUnknownCall(status)
                                        ? "it is not a node of Strata"
                                        : std::string(FromGrpc(status).message()));
          }
          left.DecrementCount();
        });
  }
  left.Wait();
}

}  // namespace

std::vector<wire::ReachResult> CheckReach(const std::vector<wire::ReachTarget>& targets,
                                          const ReachOptions& options) {
  std::vector<wire::ReachTarget> limited = targets;
  limited.resize(std::min<size_t>(limited.size(), kReachTargetsMax));
  std::vector<wire::ReachResult> results(limited.size());
  ConnectAll(limited, options, &results);
  IdentifyAll(limited, options, &results);
  return results;
}

wire::ReachTarget ReachTargetOf(const std::string& address, bool identify) {
  wire::ReachTarget target;
  target.set_address(address);
  target.set_identify(identify);
  return target;
}

absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host) {
  std::string error;
  const AddrInfo info = Resolve(host, &error);
  if (info == nullptr) return absl::NotFoundError(error);
  std::vector<std::string> ips;
  for (const addrinfo* each = info.get(); each != nullptr; each = each->ai_next) {
    std::string ip = Numeric(each->ai_addr, each->ai_addrlen);
    if (!ip.empty() && std::find(ips.begin(), ips.end(), ip) == ips.end()) {
      ips.push_back(std::move(ip));
    }
  }
  if (ips.empty()) return absl::NotFoundError("it has no address");
  return ips;
}

}  // namespace strata
