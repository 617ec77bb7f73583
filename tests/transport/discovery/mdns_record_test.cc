#include "transport/discovery/mdns_record.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using testing::Contains;
using testing::EndsWith;

constexpr char kId[] = "00112233445566778899aabbccddeeff";

DiscoveryRecord Self() {
  return {.node_id = kId, .name = "kitchen", .cluster = "home", .protocol = 7};
}

std::vector<absl::string_view> Views(const std::vector<std::string>& strings) {
  return {strings.begin(), strings.end()};
}

TEST(MdnsRecord, IsReadAsItWasWritten) {
  const std::vector<std::string> text = MdnsText(Self(), 7400);
  EXPECT_THAT(text, Contains("port=7400"));
  const auto record = ParseMdnsText(Views(text));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->node_id, kId);
  EXPECT_EQ(record->name, "kitchen");
  EXPECT_EQ(record->cluster, "home");
  EXPECT_EQ(record->protocol, 7u);
}

TEST(MdnsRecord, AnnouncesItsKeyOrThatItWaitsForOne) {
  DiscoveryRecord self = Self();
  const std::vector<std::string> open = MdnsText(self, 1);
  EXPECT_EQ(ParseMdnsText(Views(open))->key_id, "");
  self.key_id = "3m08dfmbw4p56kmn";
  const std::vector<std::string> locked = MdnsText(self, 1);
  EXPECT_EQ(ParseMdnsText(Views(locked))->key_id, self.key_id);
  EXPECT_FALSE(ParseMdnsText(Views(locked))->waits);
  self.key_id = "";
  self.waits = true;
  const std::vector<std::string> waiting = MdnsText(self, 1);
  EXPECT_TRUE(ParseMdnsText(Views(waiting))->waits);
}

TEST(MdnsRecord, AnInstanceIsNamedAfterTheNodeAndItsId) {
  EXPECT_EQ(MdnsInstanceName(Self()), "kitchen 00112233");
}

TEST(MdnsRecord, LongNamesAreCutBetweenCharacters) {
  DiscoveryRecord self = Self();
  std::string long_name = "kitchen";
  for (int i = 0; i < 64; ++i) long_name += "ü";
  self.name = PrintableText::From(long_name);
  const std::string name = MdnsInstanceName(self);
  EXPECT_LE(name.size(), 63u);
  EXPECT_THAT(name, EndsWith("ü 00112233"));
  self.cluster = PrintableText::From(std::string(300, 'c'), 300);
  for (const std::string& text : MdnsText(self, 1)) EXPECT_LE(text.size(), 255u);
}

TEST(MdnsRecord, WithoutAnIdOrAVersionIsNoNode) {
  EXPECT_THAT(ParseMdnsText({}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseMdnsText({"id=0011", "version=1"}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const std::string id = std::string("id=") + kId;
  EXPECT_THAT(ParseMdnsText({id}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseMdnsText({id, "version=one"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseMdnsText({id, "version=99999999999999"}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MdnsRecord, UnknownKeysAreSkippedAndTheFirstOfTwoCounts) {
  const std::string id = std::string("id=") + kId;
  const auto record = ParseMdnsText(
      {"org.freedesktop.Avahi.cookie=1", "nonsense", "=", id, "version=3", "version=4"});
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->protocol, 3u);
}

TEST(MdnsRecord, BytesThatAreNoTextBecomeText) {
  const std::string id = std::string("id=") + kId;
  const auto record = ParseMdnsText({id, "version=3", "cluster=\xff\xfe", "name=\xc3"});
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->cluster, "\ufffd\ufffd");
  EXPECT_EQ(record->name, "\ufffd");
}

TEST(MdnsRecord, NamesDoNotSteerTerminals) {
  const std::string id = std::string("id=") + kId;
  const auto record =
      ParseMdnsText({id, "version=3", "cluster=a\nb", "name=\x1b[2Jx\xc2\x9by\x7f\xc3\xbc"});
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->cluster, "a\\nb");
  EXPECT_EQ(record->name, "\\u001b[2Jx\\u009by\\u007fü");
}

}  // namespace
}  // namespace strata
