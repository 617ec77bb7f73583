#include "transport/rpc/status_details.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

TEST(StatusDetails, FiguresOfAShortageSurviveACallAndAPrefix) {
  const absl::Status short_of = WithShortage(absl::ResourceExhaustedError("not enough memory"),
                                             {.needed_bytes = 5ull << 40, .free_bytes = 7});
  const absl::Status prefixed = Prefixed("stage 1 on attic", FromGrpc(ToGrpc(short_of)));
  EXPECT_EQ(prefixed.message(), "stage 1 on attic: not enough memory");
  const auto figures = ShortageOf(prefixed);
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->needed_bytes, 5ull << 40);
  EXPECT_EQ(figures->free_bytes, 7u);
  EXPECT_FALSE(figures->on_host);
}

TEST(StatusDetails, HostMemoryIsDistinguishedFromTheDevices) {
  const absl::Status short_of = WithShortage(absl::ResourceExhaustedError("x"),
                                             {.needed_bytes = 9, .free_bytes = 7, .on_host = true});
  const auto figures = ShortageOf(FromGrpc(ToGrpc(short_of)));
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->needed_bytes, 9u);
  EXPECT_EQ(figures->free_bytes, 7u);
  EXPECT_TRUE(figures->on_host);
}

TEST(StatusDetails, DiskShortagesAreDistinguishedFromMemoryShortages) {
  const absl::Status short_of = WithDiskShortage(absl::ResourceExhaustedError("the disk is full"),
                                                 {.needed_bytes = 6ull << 40, .free_bytes = 3});
  const absl::Status prefixed = Prefixed("stage 1 on attic", FromGrpc(ToGrpc(short_of)));
  EXPECT_EQ(prefixed.message(), "stage 1 on attic: the disk is full");
  EXPECT_FALSE(ShortageOf(prefixed).has_value());
  const auto figures = DiskShortageOf(prefixed);
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->needed_bytes, 6ull << 40);
  EXPECT_EQ(figures->free_bytes, 3u);
}

TEST(StatusDetails, AStatusWithoutFiguresHasNone) {
  EXPECT_FALSE(ShortageOf(absl::ResourceExhaustedError("x")).has_value());
  EXPECT_FALSE(ShortageOf(FromGrpc(ToGrpc(absl::ResourceExhaustedError("x")))).has_value());
  EXPECT_FALSE(DiskShortageOf(FromGrpc(ToGrpc(absl::ResourceExhaustedError("x")))).has_value());
  EXPECT_TRUE(Prefixed("where", absl::OkStatus()).ok());
}

TEST(StatusDetails, DetailsFromAPeerAreNotTrusted) {
  for (const char* details :
       {"strata\nmemory=", "strata\nmemory=1", "strata\nmemory=-1/2", "strata\nmemory=1/2/3",
        "strata\nmemory=1/2/host/host", "strata\nmemory=1/host", "\nmemory=1/2",
        "strata\nother=1/2", "strata\nmemory=99999999999999999999/1", "strata\ndisk=1/2/host",
        "strata\ndisk=1/-2"}) {
    const absl::Status status =
        FromGrpc(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "x", std::string(details)));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(ShortageOf(status).has_value()) << details;
    EXPECT_FALSE(DiskShortageOf(status).has_value()) << details;
  }
}

}  // namespace
}  // namespace strata
