#include "transport/security/secret.h"

#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/has_absl_stringify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/security/cluster_key.h"
#include "transport/security/secret_text.h"

namespace strata {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename T>
concept Streams = requires(std::ostream& out, const T& value) { out << value; };

static_assert(!std::is_copy_constructible_v<Secret> && !std::is_copy_assignable_v<Secret>);
static_assert(!Streams<Secret> && !absl::HasAbslStringify<Secret>::value);
static_assert(!std::is_convertible_v<Secret, std::string>);
static_assert(!std::is_copy_constructible_v<ClusterKey> && !std::is_copy_assignable_v<ClusterKey>);
static_assert(!Streams<ClusterKey> && !absl::HasAbslStringify<ClusterKey>::value);
static_assert(!std::is_copy_constructible_v<SecretBytes>);

TEST(Secret, IsReturnedByReveal) {
  Secret secret(std::string("hush"));
  EXPECT_EQ(secret.Reveal(), "hush");
  const Secret moved = std::move(secret);
  EXPECT_EQ(moved.Reveal(), "hush");
  EXPECT_FALSE(moved.empty());
  EXPECT_TRUE(Secret().empty());
}

TEST(Secret, IsNotInWhatATestPrints) {
  const Secret secret(std::string("hush"));
  EXPECT_THAT(::testing::PrintToString(secret), Not(HasSubstr("hush")));
}

TEST(Wipe, LeavesNothingInTheBuffer) {
  std::string text(100, 'x');
  text.resize(10);  // the rest stays in the buffer
  Wipe(&text);
  EXPECT_TRUE(text.empty());
  text.resize(text.capacity());
  EXPECT_THAT(text, Each('\0'));
}

}  // namespace
}  // namespace strata
