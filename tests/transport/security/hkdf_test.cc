#include "transport/security/hkdf.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;

std::string FromHex(absl::string_view hex) {
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(hex, &bytes));
  return bytes;
}

std::string Hkdf(const std::string& secret, const std::string& salt, const std::string& info,
                 size_t size) {
  std::string out(size, '\0');
  EXPECT_THAT(HkdfSha256({.secret = absl::MakeSpan(reinterpret_cast<const uint8_t*>(secret.data()),
                                                   secret.size()),
                          .salt = salt,
                          .info = info},
                         absl::MakeSpan(reinterpret_cast<uint8_t*>(out.data()), out.size())),
              IsOk());
  return absl::BytesToHexString(out);
}

// RFC 5869, appendix A.1 and A.3.
TEST(Hkdf, MatchesTheRfc) {
  EXPECT_EQ(Hkdf(std::string(22, '\x0b'), FromHex("000102030405060708090a0b0c"),
                 FromHex("f0f1f2f3f4f5f6f7f8f9"), 42),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  EXPECT_EQ(Hkdf(std::string(22, '\x0b'), "", "", 42),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

TEST(Hkdf, TooManyBytesAreAnErrorOfOpenssl) {
  const std::vector<uint8_t> secret(32);
  std::vector<uint8_t> out(256 * 32);
  EXPECT_THAT(HkdfSha256({.secret = secret, .salt = "salt", .info = "info"}, absl::MakeSpan(out)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("HKDF")));
}

}  // namespace
}  // namespace strata
