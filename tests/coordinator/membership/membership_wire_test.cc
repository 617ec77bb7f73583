#include "coordinator/membership/membership_wire.h"

#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/base/version.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

Heartbeat Full() {
  NodeRecord record;
  record.id = {0x0102030405060708, 9};
  record.boot = 77;
  record.nonce = 79;
  record.revision = 3;
  record.name = "kitchen-mac";
  record.cluster = "home";
  record.protocol = kProtocolVersion;
  record.strata = "0.1";
  record.llama = "0.7";
  record.ggml = "0.27";
  record.addresses = {"10.0.0.1:7000", "[::1]:7000"};
  auto details = std::make_shared<HeartbeatDetails>();
  details->record = std::make_shared<const NodeRecord>(record);
  details->reaches = {{1, 1}, {2, 2}};
  details->members = {{1, 1}};
  details->desired = std::make_shared<const DesiredState>(DesiredState{
      .version = {.epoch = {7, {1, 1}}, .change = 8}, .models = {std::string("\0\xff", 2), ""}});
  HeartbeatBody body;
  body.protocol = kProtocolVersion;
  body.cluster = std::make_shared<const std::string>("home");
  body.from = record.id;
  Heartbeat heartbeat;
  heartbeat.to = {5, 6};
  body.boot = 77;
  heartbeat.your_boot = 78;
  body.nonce = 79;
  body.started_us = 80;
  body.placed = body.contested = body.calm = true;
  heartbeat.your_nonce = 81;
  heartbeat.your_newest_us = 82;
  heartbeat.refused = true;
  heartbeat.other = std::make_shared<const OtherProcess>(
      OtherProcess{.nonce = 83, .running_us = 84, .placed = true, .address = "10.0.0.2:7000"});
  heartbeat.sent_us = 1234;
  heartbeat.answers_us = 1233;
  body.leaving = true;
  body.epoch = {4, {1, 1}};
  body.obeys = {1, 1};
  body.wants = {2, 2};
  body.floor = {3, {2, 2}};
  body.live_requests = 1;
  body.group_requests = 2;
  body.group_size = 3;
  body.seniority = 4;
  heartbeat.offer = heartbeat.release = heartbeat.welcome = true;
  heartbeat.next = {2, 2};
  heartbeat.granted_us = 99;
  body.details_version = 5;
  heartbeat.your_details_version = 6;
  heartbeat.details = std::move(details);
  heartbeat.known.push_back(std::make_shared<const NodeRecord>(record));
  heartbeat.body = std::make_shared<const HeartbeatBody>(body);
  return heartbeat;
}

TEST(MembershipWire, NoFieldIsLost) {
  const wire::Heartbeat wire = ToWire(Full());
  // No field is left at its default, so none can be forgotten.
  const google::protobuf::Descriptor* descriptor = wire.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor->field(i);
    if (field->name() == "credential") continue;
    EXPECT_TRUE(field->is_repeated() ? wire.GetReflection()->FieldSize(wire, field) > 0
                                     : wire.GetReflection()->HasField(wire, field))
        << field->name();
  }
  const absl::StatusOr<Heartbeat> back = FromWire(wire);
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(ToWire(*back).SerializeAsString(), wire.SerializeAsString());
}

TEST(MembershipWire, RefusesFieldsThatAreTooLongOrNotIds) {
  const auto refused = [](auto change) {
    wire::Heartbeat wire = ToWire(Full());
    change(&wire);
    EXPECT_THAT(FromWire(wire), StatusIs(absl::StatusCode::kInvalidArgument));
  };
  refused([](wire::Heartbeat* w) { w->set_from("short"); });
  refused([](wire::Heartbeat* w) { w->set_next(std::string(17, 'x')); });
  refused([](wire::Heartbeat* w) { w->set_cluster(std::string(kWireStringMax + 1, 'x')); });
  refused([](wire::Heartbeat* w) { w->mutable_epoch()->set_coordinator_id("xyz"); });
  refused([](wire::Heartbeat* w) { w->mutable_floor()->set_coordinator_id(std::string(32, '0')); });
  refused([](wire::Heartbeat* w) { w->mutable_details()->add_members(""); });
  refused([](wire::Heartbeat* w) { w->mutable_details()->add_reaches("1"); });
  refused([](wire::Heartbeat* w) { w->mutable_details()->clear_record(); });
  refused([](wire::Heartbeat* w) {
    for (int i = 0; i <= kWireNodesMax; ++i)
      w->mutable_details()->add_reaches(std::string(16, 'x'));
  });
  refused([](wire::Heartbeat* w) {
    w->mutable_known(0)->set_name(std::string(kWireStringMax + 1, 'x'));
  });
  refused([](wire::Heartbeat* w) {
    for (int i = 0; i <= kWireAddressesMax; ++i) w->mutable_known(0)->add_addresses("a:1");
  });
}

TEST(MembershipWire, NamesOfOthersSteerNoTerminal) {
  wire::Heartbeat wire = ToWire(Full());
  wire::NodeRecord* const record = wire.mutable_known(0);
  record->set_name("kit\x1b[2Jchen\n\u202e");
  record->mutable_versions()->set_strata("0.1\r");
  record->clear_addresses();
  record->add_addresses("10.0.0.1:7\x1b");
  record->add_addresses("10.0.0.1:7");
  const absl::StatusOr<Heartbeat> heartbeat = FromWire(wire);
  ASSERT_THAT(heartbeat, IsOk());
  EXPECT_EQ(heartbeat->known[0]->name, "kit\\u001b[2Jchen\\n\\u202e");
  EXPECT_EQ(heartbeat->known[0]->strata, "0.1\\r");
  EXPECT_THAT(heartbeat->known[0]->addresses, ::testing::ElementsAre("10.0.0.1:7"));
}

TEST(MembershipWire, OfAnotherVersionOnlyTheSenderIsRead) {
  wire::Heartbeat wire = ToWire(Full());
  wire.set_protocol(kProtocolVersion + 1);
  wire.set_next("means something else by now");
  const absl::StatusOr<Heartbeat> heartbeat = FromWire(wire);
  ASSERT_THAT(heartbeat, IsOk());
  EXPECT_EQ(heartbeat->body->protocol, kProtocolVersion + 1);
  EXPECT_EQ(*heartbeat->body->cluster, "home");
  EXPECT_EQ(heartbeat->body->from, Full().body->from);
  EXPECT_EQ(heartbeat->details, nullptr);
}

}  // namespace
}  // namespace strata
