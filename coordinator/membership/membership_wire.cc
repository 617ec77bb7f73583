#include "coordinator/membership/membership_wire.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "transport/base/utf8.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

constexpr size_t kIdBytes = 16;

bool IsId(const std::string& bytes) { return bytes.empty() || bytes.size() == kIdBytes; }

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("heartbeat: ", what));
}

absl::StatusOr<std::shared_ptr<const NodeRecord>> RecordFromWire(const wire::NodeRecord& wire) {
  if (wire.node_id().size() != kIdBytes) return Bad("a record's node id is not 16 bytes long");
  if (wire.addresses_size() > kWireAddressesMax) return Bad("a node has too many addresses");
  auto record = std::make_shared<NodeRecord>();
  record->id = IdOf(wire.node_id());
  record->boot = wire.boot();
  record->nonce = wire.nonce();
  record->revision = wire.revision();
  for (const std::string* text : {&wire.name(), &wire.cluster(), &wire.versions().strata(),
                                  &wire.versions().llama(), &wire.versions().ggml()}) {
    if (text->size() > kWireStringMax) return Bad("a name or version is too long");
  }
  record->name = PrintableText::From(wire.name());
  record->cluster = PrintableText::From(wire.cluster());
  record->protocol = wire.versions().protocol();
  record->strata = PrintableText::From(wire.versions().strata());
  record->llama = PrintableText::From(wire.versions().llama());
  record->ggml = PrintableText::From(wire.versions().ggml());
  for (const std::string& address : wire.addresses()) {
    if (address.size() > kWireStringMax) return Bad("an address is too long");
    if (IsPrintable(address)) record->addresses.push_back(address);  // else it is no address
  }
  return record;
}

template <typename List>
absl::StatusOr<std::vector<NodeId>> IdsFromWire(const List& list) {
  if (list.size() > kWireNodesMax) return Bad("a list of nodes is too long");
  std::vector<NodeId> ids;
  ids.reserve(static_cast<size_t>(list.size()));
  for (const std::string& bytes : list) {
    if (bytes.size() != kIdBytes) return Bad("a node id in a list is not 16 bytes long");
    ids.push_back(IdOf(bytes));
  }
  return ids;
}

}  // namespace

wire::Epoch ToWire(const ClusterEpoch& epoch) {
  wire::Epoch wire;
  wire.set_counter(epoch.counter);
  if (!epoch.coordinator.is_nobody()) wire.set_coordinator_id(epoch.coordinator.ToHex());
  return wire;
}

absl::StatusOr<ClusterEpoch> FromWire(const wire::Epoch& wire) {
  ClusterEpoch epoch;
  epoch.counter = wire.counter();
  if (!wire.coordinator_id().empty()) {
    const absl::StatusOr<NodeId> id = NodeId::FromHex(wire.coordinator_id());
    if (!id.ok()) return id.status();
    epoch.coordinator = *id;
  }
  return epoch;
}

wire::OtherProcess ToWire(const OtherProcess& other) {
  wire::OtherProcess wire;
  wire.set_nonce(other.nonce);
  wire.set_running_us(other.running_us);
  wire.set_placed(other.placed);
  wire.set_address(ValidUtf8(other.address));
  return wire;
}

OtherProcess FromWire(const wire::OtherProcess& wire) {
  return {.nonce = wire.nonce(),
          .running_us = std::clamp<int64_t>(wire.running_us(), 0, kRunningUsMax),
          .placed = wire.placed(),
          .address = wire.address().size() > kWireStringMax ? "" : wire.address()};
}

std::string IdBytes(const NodeId& id) {
  if (id.is_nobody()) return "";
  std::string bytes(kIdBytes, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(id.high >> (56 - 8 * i) & 0xff);
    bytes[8 + i] = static_cast<char>(id.low >> (56 - 8 * i) & 0xff);
  }
  return bytes;
}

NodeId IdOf(absl::string_view bytes) {
  NodeId id;
  if (bytes.size() != kIdBytes) return id;
  for (size_t i = 0; i < 8; ++i) {
    id.high = id.high << 8 | static_cast<unsigned char>(bytes[i]);
    id.low = id.low << 8 | static_cast<unsigned char>(bytes[8 + i]);
  }
  return id;
}

wire::NodeRecord ToWire(const NodeRecord& record) {
  wire::NodeRecord wire;
  wire.set_node_id(IdBytes(record.id));
  wire.set_boot(record.boot);
  wire.set_nonce(record.nonce);
  wire.set_revision(record.revision);
  wire.set_name(record.name.str());
  wire.set_cluster(record.cluster.str());
  wire.mutable_versions()->set_protocol(record.protocol);
  wire.mutable_versions()->set_strata(record.strata.str());
  wire.mutable_versions()->set_llama(record.llama.str());
  wire.mutable_versions()->set_ggml(record.ggml.str());
  for (const std::string& address : record.addresses) wire.add_addresses(ValidUtf8(address));
  return wire;
}

void SetDesired(const DesiredState& desired, wire::HeartbeatDetails* wire) {
  for (const std::string& one : desired.models) wire->add_desired_state(one);
  *wire->mutable_desired_epoch() = ToWire(desired.version.epoch);
  wire->set_desired_change(desired.version.change);
}

absl::StatusOr<DesiredState> DesiredFromWire(const wire::HeartbeatDetails& wire) {
  if (static_cast<size_t>(wire.desired_state_size()) > kDesiredStatesMax) {
    return Bad("too much desired state");
  }
  const absl::StatusOr<ClusterEpoch> epoch = FromWire(wire.desired_epoch());
  if (!epoch.ok()) return Bad("the desired state's epoch has no node id");
  DesiredState desired = {.version = {.epoch = *epoch, .change = wire.desired_change()},
                          .models = {}};
  for (const std::string& one : wire.desired_state()) {
    if (one.size() > kDesiredStateBytesMax) return Bad("a desired state is too long");
    desired.models.push_back(one);
  }
  return desired;
}

wire::Heartbeat ToWire(const Heartbeat& heartbeat) {
  const HeartbeatBody& body = *heartbeat.body;
  wire::Heartbeat wire;
  wire.set_protocol(body.protocol);
  if (body.cluster != nullptr) wire.set_cluster(*body.cluster);
  wire.set_from(IdBytes(body.from));
  wire.set_to(IdBytes(heartbeat.to));
  wire.set_boot(body.boot);
  wire.set_your_boot(heartbeat.your_boot);
  wire.set_nonce(body.nonce);
  wire.set_your_nonce(heartbeat.your_nonce);
  wire.set_started_us(body.started_us);
  wire.set_your_newest_us(heartbeat.your_newest_us);
  wire.set_placed(body.placed);
  wire.set_contested(body.contested);
  wire.set_calm(body.calm);
  wire.set_refused(heartbeat.refused);
  if (heartbeat.other != nullptr) *wire.mutable_other() = ToWire(*heartbeat.other);
  wire.set_sent_us(heartbeat.sent_us);
  wire.set_answers_us(heartbeat.answers_us);
  wire.set_leaving(body.leaving);
  *wire.mutable_epoch() = ToWire(body.epoch);
  wire.set_obeys(IdBytes(body.obeys));
  wire.set_wants(IdBytes(body.wants));
  *wire.mutable_floor() = ToWire(body.floor);
  wire.set_live_requests(body.live_requests);
  wire.set_group_requests(body.group_requests);
  wire.set_group_size(body.group_size);
  wire.set_seniority(body.seniority);
  wire.set_offer(heartbeat.offer);
  wire.set_release(heartbeat.release);
  wire.set_next(IdBytes(heartbeat.next));
  wire.set_welcome(heartbeat.welcome);
  wire.set_granted_us(heartbeat.granted_us);
  wire.set_details_version(body.details_version);
  wire.set_your_details_version(heartbeat.your_details_version);
  if (heartbeat.details != nullptr) {
    wire::HeartbeatDetails* details = wire.mutable_details();
    *details->mutable_record() = ToWire(*heartbeat.details->record);
    for (const NodeId& id : heartbeat.details->reaches) details->add_reaches(IdBytes(id));
    for (const NodeId& id : heartbeat.details->members) details->add_members(IdBytes(id));
    SetDesired(*heartbeat.details->desired, details);
  }
  for (const auto& record : heartbeat.known) *wire.add_known() = ToWire(*record);
  return wire;
}

absl::StatusOr<Heartbeat> FromWire(const wire::Heartbeat& wire) {
  if (wire.cluster().size() > kWireStringMax) return Bad("the cluster's name is too long");
  auto body = std::make_shared<HeartbeatBody>();
  body->protocol = wire.protocol();
  body->cluster = std::make_shared<const std::string>(wire.cluster());
  body->from = IdOf(wire.from());
  Heartbeat heartbeat;
  // In another version only these fields have the same meaning.
  if (wire.protocol() != kProtocolVersion) {
    heartbeat.body = std::move(body);
    return heartbeat;
  }
  for (const std::string* id :
       {&wire.from(), &wire.to(), &wire.obeys(), &wire.wants(), &wire.next()}) {
    if (!IsId(*id)) return Bad("a node id is not 16 bytes long");
  }
  heartbeat.to = IdOf(wire.to());
  body->boot = wire.boot();
  heartbeat.your_boot = wire.your_boot();
  body->nonce = wire.nonce();
  heartbeat.your_nonce = wire.your_nonce();
  body->started_us = wire.started_us();
  heartbeat.your_newest_us = wire.your_newest_us();
  body->placed = wire.placed();
  body->contested = wire.contested();
  body->calm = wire.calm();
  heartbeat.refused = wire.refused();
  if (wire.has_other()) {
    heartbeat.other = std::make_shared<const OtherProcess>(FromWire(wire.other()));
  }
  heartbeat.sent_us = wire.sent_us();
  heartbeat.answers_us = wire.answers_us();
  body->leaving = wire.leaving();
  const absl::StatusOr<ClusterEpoch> epoch = FromWire(wire.epoch());
  const absl::StatusOr<ClusterEpoch> floor = FromWire(wire.floor());
  if (!epoch.ok() || !floor.ok()) return Bad("an epoch's coordinator is no node id");
  body->epoch = *epoch;
  body->floor = *floor;
  body->obeys = IdOf(wire.obeys());
  body->wants = IdOf(wire.wants());
  body->live_requests = wire.live_requests();
  body->group_requests = wire.group_requests();
  body->group_size = wire.group_size();
  body->seniority = wire.seniority();
  heartbeat.offer = wire.offer();
  heartbeat.release = wire.release();
  heartbeat.next = IdOf(wire.next());
  heartbeat.welcome = wire.welcome();
  heartbeat.granted_us = wire.granted_us();
  body->details_version = wire.details_version();
  heartbeat.body = std::move(body);
  heartbeat.your_details_version = wire.your_details_version();
  if (wire.has_details()) {
    auto details = std::make_shared<HeartbeatDetails>();
    absl::StatusOr<std::shared_ptr<const NodeRecord>> record =
        RecordFromWire(wire.details().record());
    if (!record.ok()) return record.status();
    absl::StatusOr<std::vector<NodeId>> reaches = IdsFromWire(wire.details().reaches());
    if (!reaches.ok()) return reaches.status();
    absl::StatusOr<std::vector<NodeId>> members = IdsFromWire(wire.details().members());
    if (!members.ok()) return members.status();
    absl::StatusOr<DesiredState> desired = DesiredFromWire(wire.details());
    if (!desired.ok()) return desired.status();
    details->desired = std::make_shared<const DesiredState>(*std::move(desired));
    details->record = *std::move(record);
    details->reaches = *std::move(reaches);
    details->members = *std::move(members);
    heartbeat.details = std::move(details);
  }
  if (wire.known_size() > kWireNodesMax) return Bad("a list of records is too long");
  for (const wire::NodeRecord& known : wire.known()) {
    absl::StatusOr<std::shared_ptr<const NodeRecord>> record = RecordFromWire(known);
    if (!record.ok()) return record.status();
    heartbeat.known.push_back(*std::move(record));
  }
  return heartbeat;
}

}  // namespace strata
