#include "transport/base/version.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(Version, ThisProcessKnowsItsVersions) {
  EXPECT_EQ(LocalVersions().protocol(), kProtocolVersion);
  EXPECT_FALSE(LocalVersions().strata().empty());
  EXPECT_FALSE(LocalVersions().llama().empty());
  EXPECT_FALSE(LocalVersions().ggml().empty());
}

TEST(Version, EqualVersionsFit) {
  EXPECT_TRUE(CheckVersions(LocalVersions(), LocalVersions(), {}).ok());
}

TEST(Version, AnotherStrataWithTheSameProtocolFits) {
  wire::Versions other = LocalVersions();
  other.set_strata("9.9.9");
  EXPECT_TRUE(CheckVersions(LocalVersions(), other, {}).ok());
}

TEST(Version, AnotherLlamaOrGgmlIsRefusedUnlessAllowed) {
  for (bool llama : {true, false}) {
    wire::Versions other = LocalVersions();
    llama ? other.set_llama("0.0.1") : other.set_ggml("0.0.1");
    const absl::Status status = CheckVersions(LocalVersions(), other, {});
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_TRUE(CheckVersions(LocalVersions(), other, {.allow_mixed = true}).ok());
  }
}

TEST(Version, AnotherProtocolIsAlwaysRefused) {
  wire::Versions other = LocalVersions();
  other.set_protocol(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckVersions(LocalVersions(), other, {})));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(CheckVersions(LocalVersions(), other, {.allow_mixed = true})));
}

TEST(Version, TheErrorNamesBothSides) {
  wire::Versions other = LocalVersions();
  other.set_llama("0.0.1");
  const absl::Status status = CheckVersions(LocalVersions(), other, {});
  EXPECT_NE(status.message().find("llama 0.0.1"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("llama " + LocalVersions().llama()), absl::string_view::npos)
      << status;
}

}  // namespace
}  // namespace strata
