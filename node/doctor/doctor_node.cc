#include "node/doctor/doctor_node.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "node/doctor/doctor_advice.h"
#include "node/doctor/doctor_reach.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/doctor.grpc.pb.h"
#include "proto/node.grpc.pb.h"
#include "transport/base/peer_addresses.h"
#include "transport/base/wall_clock.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

constexpr int64_t kAnswerMs = 3'000;
constexpr int64_t kReportMs = 10'000;
constexpr int64_t kExamineMs = 8'000;
constexpr int64_t kLinksMs = 20'000;
constexpr int64_t kDoorMs = 30'000;
constexpr int kClockReadings = 6;

void SetDeadline(int64_t timeout_ms, grpc::ClientContext* context) {
  context->set_deadline(DeadlineIn(absl::Milliseconds(timeout_ms)));
}

// RFC 5905, section 8: offset and delay of four readings of two clocks; of several exchanges the
// one with the smallest delay is the most exact (section 10).
std::optional<ClockOffset> CompareClocks(wire::Doctor::Stub* stub, const std::string& node) {
  wire::ReadClockRequest request;
  request.set_node(node);
  std::optional<ClockOffset> best;
  for (int i = 0; i < kClockReadings; ++i) {
    grpc::ClientContext context;
    SetDeadline(kAnswerMs, &context);
    wire::ReadClockResponse theirs;
    const int64_t t1 = absl::ToUnixMicros(WallNow());
    const grpc::Status status = stub->ReadClock(&context, request, &theirs);
    const int64_t t4 = absl::ToUnixMicros(WallNow());
    if (!status.ok()) return best;
    const int64_t delay_us = (t4 - t1) - (theirs.sent_us() - theirs.received_us());
    if (best.has_value() && best->delay_us <= delay_us) continue;
    best = {.offset_us = (theirs.received_us() - t1) / 2 + (theirs.sent_us() - t4) / 2,
            .delay_us = delay_us};
  }
  return best;
}

class Door final : public DoorHandle {
 public:
  Door(std::unique_ptr<wire::Doctor::Stub> stub, const std::string& node) : stub_(std::move(stub)) {
    SetDeadline(kDoorMs, &context_);
    wire::OpenDoorRequest request;
    request.set_node(node);
    reader_ = stub_->OpenDoor(&context_, request);
  }
  ~Door() override {
    context_.TryCancel();
    wire::Door more;
    while (reader_->Read(&more)) {
    }
    static_cast<void>(reader_->Finish());
  }

  uint32_t port() {
    wire::Door door;
    return reader_->Read(&door) ? door.port() : 0;
  }

 private:
  const std::unique_ptr<wire::Doctor::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<wire::Door>> reader_;
};

template <typename Stub, typename Request, typename Response>
absl::Status Call(Stub* stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, int64_t timeout_ms, Response* response) {
  grpc::ClientContext context;
  SetDeadline(timeout_ms, &context);
  const grpc::Status status = (stub->*method)(&context, request, response);
  MakePrintable(response);
  return FromGrpc(status);
}

// The `node` field of a request: empty if the node is called directly.
std::string ForwardTo(const NodeFacts& node) { return node.through.empty() ? "" : node.id(); }

// The addresses at which `from` might reach `to`.
std::vector<std::string> AddressesOf(const NodeFacts& to, const NodeFacts& from) {
  std::vector<std::string> addresses;
  const auto add = [&addresses](const std::string& address) {
    if (!address.empty() && addresses.size() < kNodeAddressesMax &&
        std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(address);
    }
  };
  for (const wire::ClusterNode& seen : from.sees.nodes()) {
    if (seen.record().node_id() == to.id()) add(seen.address());
  }
  for (const std::string& address : to.seen.record().addresses()) add(address);
  return addresses;
}

}  // namespace

void QueryNode(const std::vector<std::string>& candidates, const std::string& through,
               NodeFacts* node, std::unique_ptr<DoorHandle>* opened) {
  std::vector<wire::ReachTarget> targets;
  for (const std::string& address : candidates) targets.push_back(ReachTargetOf(address, true));
  node->tries = CheckReach(targets, {});
  for (const wire::ReachResult& tried : node->tries) {
    if (!tried.has_who() || !node->address.empty()) continue;
    if (node->id().empty()) node->seen.mutable_record()->set_node_id(tried.who().node_id());
    if (tried.who().node_id() == node->id()) node->address = tried.address();
  }
  if (node->address.empty()) {
    node->status =
        absl::UnavailableError(node->tries.empty() ? "no address of it is known"
                                                   : ReachText(MostInformative(node->tries)));
    if (through.empty()) return;
    auto report = FetchNode(through, kReportMs, node->id());
    if (!report.ok()) return;  // the error from here says more
    node->through = through;
    node->status = absl::OkStatus();
    node->info = std::move(report->info);
    node->sees = std::move(report->sees);
  }
  const auto channel = MakeChannel(node->through.empty() ? node->address : node->through);
  if (node->through.empty()) {
    node->status = Call(wire::Node::NewStub(channel).get(), &wire::Node::Stub::GetInfo,
                        wire::GetInfoRequest(), kAnswerMs, &node->info);
    if (node->status.ok()) {
      node->status = Call(wire::Cluster::NewStub(channel).get(), &wire::Cluster::Stub::GetCluster,
                          wire::GetClusterRequest(), kAnswerMs, &node->sees);
    }
    if (!node->status.ok()) return;
  }
  auto doctor_stub = wire::Doctor::NewStub(channel);
  const std::string forward_to = ForwardTo(*node);
  node->clock = CompareClocks(doctor_stub.get(), forward_to);
  if (!node->here) {
    wire::ExamineRequest request;
    request.set_node(forward_to);
    wire::MachineFacts machine;
    if (Call(doctor_stub.get(), &wire::Doctor::Stub::Examine, request, kExamineMs, &machine).ok()) {
      node->machine = std::move(machine);
    }
  }
  auto door = std::make_unique<Door>(std::move(doctor_stub), forward_to);
  node->door_port = door->port();
  if (node->door_port != 0) *opened = std::move(door);
}

void CheckLinksOf(size_t place, std::vector<NodeFacts>* nodes) {
  NodeFacts& from = (*nodes)[place];
  wire::CheckReachRequest request;
  const size_t each_max =
      std::max<size_t>(1, kReachTargetsMax / 2 / std::max<size_t>(1, nodes->size()));
  for (size_t to = 0; to < nodes->size(); ++to) {
    const NodeFacts& other = (*nodes)[to];
    if (to == place || (!other.status.ok() && place != 0)) continue;
    std::vector<std::string> addresses = AddressesOf(other, from);
    addresses.resize(std::min(addresses.size(), each_max));
    std::set<std::string> hosts;
    for (const std::string& address : addresses) {
      *request.add_targets() = ReachTargetOf(address, true);
      from.links.push_back({.to = to, .door = false, .result = {}});
      const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
      if (parsed.ok()) hosts.insert(parsed->host);
    }
    if (other.door_port == 0) continue;
    for (const std::string& host : hosts) {
      *request.add_targets() =
          ReachTargetOf(JoinHostPort(host, static_cast<uint16_t>(other.door_port)), false);
      from.links.push_back({.to = to, .door = true, .result = {}});
    }
  }
  wire::CheckReachResponse response;
  request.set_node(ForwardTo(from));
  const auto stub =
      wire::Doctor::NewStub(MakeChannel(from.through.empty() ? from.address : from.through));
  // The node has just answered: a connection that fails is tried once more.
  for (int tries = 0; tries < 2; ++tries) {
    from.links_status =
        Call(stub.get(), &wire::Doctor::Stub::CheckReach, request, kLinksMs, &response);
    if (!absl::IsUnavailable(from.links_status)) break;
  }
  if (from.links_status.ok() && static_cast<size_t>(response.results_size()) != from.links.size()) {
    from.links_status = absl::DataLossError("its answer does not match the request");
  }
  if (!from.links_status.ok()) {
    from.links.clear();
    return;
  }
  for (size_t i = 0; i < from.links.size(); ++i) {
    from.links[i].result = response.results(static_cast<int>(i));
  }
  if (from.through.empty()) from.sees_us_as = response.caller_host();
}

}  // namespace strata
