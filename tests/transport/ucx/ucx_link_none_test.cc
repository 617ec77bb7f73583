#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/ucx/ucx_link.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

TEST(UcxLinkNone, SaysThatLinksGoOverGrpc) {
  DisableUcxMemoryHooks();
  EXPECT_THAT(UcxLinks::Start({}).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("over gRPC")));
}

}  // namespace
}  // namespace strata
