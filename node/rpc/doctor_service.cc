#include "node/rpc/doctor_service.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "coordinator/membership/membership_wire.h"
#include "grpcpp/channel.h"
#include "node/doctor/doctor_machine.h"
#include "node/doctor/doctor_reach.h"
#include "node/rpc/cluster_service.h"
#include "transport/base/descriptor.h"
#include "transport/base/peer_addresses.h"
#include "transport/base/run_on_loop.h"
#include "transport/base/steady_time.h"
#include "transport/base/wall_clock.h"
#include "transport/rpc/forwarding.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

constexpr int kSliceMs = 50;

// Strips the prefix of an IPv4 address that a dual-stack socket reports.
std::string PlainHost(std::string host) {
  constexpr absl::string_view kMapped = "::ffff:";
  if (host.starts_with(kMapped) && host.find('.') != std::string::npos) {
    host.erase(0, kMapped.size());
  }
  return host;
}

std::string HostOf(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  return parsed.ok() ? PlainHost(parsed->host) : "";
}

// A listening socket on a port that the system chooses; invalid with errno set.
Descriptor OpenSocket(const std::string& host, uint16_t* port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* info = nullptr;
  errno = EADDRNOTAVAIL;
  if (getaddrinfo(host.c_str(), "0", &hints, &info) != 0) return Descriptor();
  const absl::Cleanup free_info = [info] { freeaddrinfo(info); };
  Descriptor door(socket(info->ai_family, SOCK_STREAM, 0));
  const int fd = door.fd();
  if (!door.valid()) return door;
  const int off = 0;
  if (info->ai_family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  sockaddr_storage own = {};
  socklen_t size = sizeof own;
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0 ||
      bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return Descriptor();
  }
  *port = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  return door;
}

}  // namespace

class DoctorService::CallSlot {
 public:
  CallSlot(std::atomic<int>* calls, int calls_max) : calls_(calls), has_(++*calls <= calls_max) {}
  ~CallSlot() { --*calls_; }
  CallSlot(const CallSlot&) = delete;
  CallSlot& operator=(const CallSlot&) = delete;

  // OK when the call may run.
  grpc::Status status() const {
    if (has_) return grpc::Status::OK;
    return ToGrpc(absl::ResourceExhaustedError("too many doctor calls to this node at a time"));
  }

 private:
  std::atomic<int>* const calls_;
  const bool has_;
};

absl::StatusOr<DoctorService::Stub> DoctorService::FindNode(const grpc::ServerContext& context,
                                                            const std::string& node) {
  const NodeId id = IdOf(node);
  if (node.empty() || id == cluster_->id()) return nullptr;
  bool known = false;
  std::string address;
  RunOnLoop(loop_, [&] {
    known = cluster_->view().Find(id) != nullptr;
    address = cluster_->AddressOf(id);
  });
  if (!known || WasForwarded(context)) return absl::NotFoundError("no such node is known");
  if (address.empty()) return absl::UnavailableError("the node cannot be reached at any address");
  return wire::Doctor::NewStub(MakeChannel(address));
}

template <typename Request, typename Response>
bool DoctorService::Forward(grpc::ServerContext* context, const Request& request,
                            Response* response,
                            grpc::Status (wire::Doctor::Stub::*method)(grpc::ClientContext*,
                                                                       const Request&, Response*),
                            grpc::Status* status) {
  if (request.node().empty()) return false;
  const CallSlot slot(&forwarded_, kDoctorPassedMax);
  *status = slot.status();
  if (!status->ok()) return true;
  const auto stub = FindNode(*context, request.node());
  *status = ToGrpc(stub.status());
  if (stub.ok() && *stub == nullptr) return false;
  if (stub.ok()) {
    *status = ((*stub).get()->*method)(Onward(*context).get(), request, response);
  }
  return true;
}

grpc::Status DoctorService::Examine(grpc::ServerContext* context,
                                    const wire::ExamineRequest* request,
                                    wire::MachineFacts* response) {
  grpc::Status forwarded;
  if (Forward(context, *request, response, &wire::Doctor::Stub::Examine, &forwarded))
    return forwarded;
  const CallSlot slot(&calls_, kDoctorCallsMax);
  if (!slot.status().ok()) return slot.status();
  *response = ExamineMachine({.data_dir = options_.data_dir,
                              .program = options_.program,
                              .cancelled = [context] { return context->IsCancelled(); }});
  MakePrintable(response);
  return grpc::Status::OK;
}

std::set<std::string> DoctorService::KnownHosts() {
  std::set<std::string> hosts;
  RunOnLoop(loop_, [&] {
    const wire::GetClusterResponse cluster = cluster_->Describe();
    for (const wire::ClusterNode& node : cluster.nodes()) {
      hosts.insert(HostOf(node.address()));
      for (const std::string& address : node.record().addresses()) hosts.insert(HostOf(address));
    }
  });
  hosts.erase("");
  return hosts;
}

grpc::Status DoctorService::CheckReach(grpc::ServerContext* context,
                                       const wire::CheckReachRequest* request,
                                       wire::CheckReachResponse* response) {
  grpc::Status forwarded;
  if (Forward(context, *request, response, &wire::Doctor::Stub::CheckReach, &forwarded))
    return forwarded;
  const CallSlot slot(&calls_, kDoctorCallsMax);
  if (!slot.status().ok()) return slot.status();
  if (request->targets_size() > kReachTargetsMax) {
    return ToGrpc(absl::InvalidArgumentError("too many addresses"));
  }
  const std::string caller = PlainHost(HostOfGrpcPeer(context->peer()));
  response->set_caller_host(caller);
  std::set<std::string> hosts = KnownHosts();
  if (!caller.empty()) hosts.insert(caller);

  std::vector<wire::ReachTarget> allowed;
  for (const wire::ReachTarget& target : request->targets()) {
    if (hosts.contains(HostOf(target.address()))) allowed.push_back(target);
  }
  std::vector<wire::ReachResult> results =
      strata::CheckReach(allowed, {.cancelled = [context] { return context->IsCancelled(); }});
  size_t next = 0;
  for (const wire::ReachTarget& target : request->targets()) {
    wire::ReachResult* result = response->add_results();
    if (hosts.contains(HostOf(target.address()))) {
      *result = std::move(results[next++]);
    } else {
      result->set_address(target.address());
      result->set_outcome(wire::ReachResult::NOT_ALLOWED);
    }
  }
  MakePrintable(response);
  return grpc::Status::OK;
}

grpc::Status DoctorService::ReadClock(grpc::ServerContext* context,
                                      const wire::ReadClockRequest* request,
                                      wire::ReadClockResponse* response) {
  grpc::Status forwarded;
  if (Forward(context, *request, response, &wire::Doctor::Stub::ReadClock, &forwarded))
    return forwarded;
  response->set_received_us(absl::ToUnixMicros(WallNow()));
  response->set_sent_us(absl::ToUnixMicros(WallNow()));
  return grpc::Status::OK;
}

grpc::Status DoctorService::PassDoor(grpc::ServerContext* context,
                                     const wire::OpenDoorRequest& request, wire::Doctor::Stub* stub,
                                     grpc::ServerWriter<wire::Door>* writer) {
  const auto onward = Onward(*context);
  const auto reader = stub->OpenDoor(onward.get(), request);
  wire::Door door;
  while (reader->Read(&door)) {
    if (!writer->Write(door)) onward->TryCancel();
  }
  return reader->Finish();
}

grpc::Status DoctorService::OpenDoor(grpc::ServerContext* context,
                                     const wire::OpenDoorRequest* request,
                                     grpc::ServerWriter<wire::Door>* writer) {
  if (!request->node().empty()) {
    const CallSlot slot(&forwarded_, kDoctorPassedMax);
    if (!slot.status().ok()) return slot.status();
    const auto stub = FindNode(*context, request->node());
    if (!stub.ok()) return ToGrpc(stub.status());
    if (*stub != nullptr) return PassDoor(context, *request, stub->get(), writer);
  }
  const CallSlot slot(&calls_, kDoctorCallsMax);
  if (!slot.status().ok()) return slot.status();
  uint16_t port = 0;
  const Descriptor listening = OpenSocket(options_.listen_host, &port);
  if (!listening.valid()) return ToGrpc(absl::ErrnoToStatus(errno, "cannot listen"));
  wire::Door door;
  door.set_port(port);
  if (!writer->Write(door)) return grpc::Status::OK;
  const SteadyTime until = SteadyTime::Now() + absl::Milliseconds(kDoorOpenMs);
  while (!context->IsCancelled() && SteadyTime::Now() < until) {
    pollfd ready = {.fd = listening.fd(), .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kSliceMs) <= 0) continue;
    const Descriptor client(accept(listening.fd(), nullptr, nullptr));
  }
  return grpc::Status::OK;
}

}  // namespace strata
