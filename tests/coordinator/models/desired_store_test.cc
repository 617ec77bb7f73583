#include "coordinator/models/desired_store.h"

#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsNull;

DesiredStatePtr List(uint64_t change, std::vector<std::string> models = {}) {
  return std::make_shared<const DesiredState>(DesiredState{
      .version = {.epoch = {3, {1, 2}}, .change = change}, .models = std::move(models)});
}

constexpr char kOwner[] = "node key cluster";

TEST(DesiredStore, AFileHasAllOfTheList) {
  const DesiredStatePtr list = List(4, {std::string("\0\xff", 2), "two"});
  EXPECT_THAT(ParseDesiredState(FormatDesiredState(*list, kOwner), kOwner), IsOkAndHolds(*list));
  EXPECT_THAT(ParseDesiredState(FormatDesiredState(*List(5), kOwner), kOwner),
              IsOkAndHolds(*List(5)));
}

TEST(DesiredStore, EveryDamageIsNoticed) {
  const std::string whole = FormatDesiredState(*List(4, {"one"}), kOwner);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] ^= 1;
    EXPECT_THAT(ParseDesiredState(bytes, kOwner), StatusIs(absl::StatusCode::kDataLoss)) << i;
    EXPECT_THAT(ParseDesiredState(whole.substr(0, i), kOwner),
                StatusIs(absl::StatusCode::kDataLoss))
        << i;
  }
  EXPECT_THAT(ParseDesiredState(whole + "x", kOwner), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(DesiredStore, AnotherNodesOrClustersFileDoesNotCount) {
  const std::string bytes = FormatDesiredState(*List(4, {"one"}), "other key cluster");
  EXPECT_THAT(ParseDesiredState(bytes, kOwner),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another")));
}

TEST(DesiredStore, ANewerFormatIsSaid) {
  EXPECT_THAT(ParseDesiredState("strata desired state 2\nxyz", kOwner),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("newer")));
}

TEST(DesiredStore, BeginsWithWhatTheDiskHas) {
  DesiredStore none;
  EXPECT_THAT(none.Open(absl::NotFoundError("no file"), kOwner), IsOkAndHolds(IsNull()));
  EXPECT_THAT(none.Open(absl::PermissionDeniedError("open to others"), kOwner),
              StatusIs(absl::StatusCode::kPermissionDenied));
  DesiredStore store;
  const auto opened = store.Open(FormatDesiredState(*List(4), kOwner), kOwner);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(**opened, *List(4));
  EXPECT_EQ(store.settled(), List(4)->version);
  store.Keep(*opened, kOwner);
  EXPECT_FALSE(store.is_due());
}

TEST(DesiredStore, WritesTheNewestOneAtATime) {
  DesiredStore store;
  store.Keep(NoDesiredState(), kOwner);
  EXPECT_FALSE(store.is_due());  // nobody ever decided anything
  store.Keep(List(1), kOwner);
  ASSERT_TRUE(store.is_due());
  EXPECT_EQ(store.BeginWrite(), FormatDesiredState(*List(1), kOwner));
  store.Keep(List(2), kOwner);
  store.Keep(List(3), kOwner);
  EXPECT_FALSE(store.is_due());
  store.EndWrite(absl::OkStatus());
  EXPECT_EQ(store.settled(), List(1)->version);
  ASSERT_TRUE(store.is_due());
  EXPECT_EQ(store.BeginWrite(), FormatDesiredState(*List(3), kOwner));
  store.EndWrite(absl::OkStatus());
  EXPECT_FALSE(store.is_due());
  EXPECT_THAT(store.write_problem(), IsEmpty());
}

TEST(DesiredStore, AnotherKeyOfTheClusterIsWritten) {
  DesiredStore store;
  const DesiredStatePtr list = List(1);
  store.Keep(list, kOwner);
  store.BeginWrite();
  store.EndWrite(absl::OkStatus());
  store.Keep(list, "node new cluster");
  ASSERT_TRUE(store.is_due());
  EXPECT_EQ(store.BeginWrite(), FormatDesiredState(*list, "node new cluster"));
}

TEST(DesiredStore, ADiskThatTakesNothingIsSaidAndTriedAgain) {
  DesiredStore store;
  store.Keep(List(1), kOwner);
  store.BeginWrite();
  store.EndWrite(absl::ResourceExhaustedError("no space left"));
  EXPECT_EQ(store.settled(), List(1)->version);  // nobody waits for this disk
  EXPECT_THAT(store.write_problem(), HasSubstr("no space left"));
  EXPECT_FALSE(store.is_due());
  store.TryAgain();
  ASSERT_TRUE(store.is_due());
  store.BeginWrite();
  store.EndWrite(absl::OkStatus());
  EXPECT_THAT(store.write_problem(), IsEmpty());
  EXPECT_FALSE(store.is_due());
}

}  // namespace
}  // namespace strata
