#include "node/http/content_coding.h"

#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kMax = 1 << 20;

// `window_bits`: zlib's, which choose the format.
std::string Deflated(const std::string& text, int window_bits) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

struct Coded {
  const char* coding;
  std::string body;
};
std::vector<Coded> AllOf(const std::string& text) {
  return {{"gzip", Deflated(text, MAX_WBITS + 16)},
          {"X-GZip", Deflated(text, MAX_WBITS + 16)},
          {"deflate", Deflated(text, MAX_WBITS)},
          {"deflate", Deflated(text, -MAX_WBITS)},
          {"zstd", Zstd(text)}};
}

TEST(ContentCoding, BodiesAreDecoded) {
  std::string text;
  for (uint32_t i = 0; i < 50'000; ++i) text += static_cast<char>('a' + (i * i) % 26);
  for (const Coded& each : AllOf(text)) {
    EXPECT_THAT(DecodeContent(each.coding, each.body, kMax), IsOkAndHolds(text)) << each.coding;
    EXPECT_THAT(DecodeContent(each.coding, each.body, text.size()), IsOkAndHolds(text));
  }
  for (const char* none : {"", "identity"}) {
    EXPECT_THAT(DecodeContent(none, "as it is", 1), IsOkAndHolds("as it is"));
  }
}

TEST(ContentCoding, ABombIsRefused) {
  for (const Coded& each : AllOf(std::string(8 << 20, ' '))) {
    ASSERT_LT(each.body.size(), 16'000u);
    EXPECT_THAT(DecodeContent(each.coding, each.body, kMax),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1048576")));
  }
}

TEST(ContentCoding, WhatIsCutOrNotInTheCodingIsRefused) {
  for (const Coded& each : AllOf("a text of some length")) {
    for (size_t n = 1; n < each.body.size(); ++n) {
      EXPECT_THAT(DecodeContent(each.coding, each.body.substr(0, n), kMax),
                  StatusIs(absl::StatusCode::kInvalidArgument))
          << each.coding << " " << n;
    }
    for (const std::string& other : {std::string("{\"model\":1}"), each.body + "more"}) {
      EXPECT_THAT(DecodeContent(each.coding, other, kMax),
                  StatusIs(absl::StatusCode::kInvalidArgument))
          << each.coding;
    }
  }
}

TEST(ContentCoding, OtherCodingsAreNamed) {
  for (const char* other : {"br", "gzip, gzip", "compress"}) {
    EXPECT_THAT(DecodeContent(other, "x", kMax),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(other)));
  }
}

}  // namespace
}  // namespace strata
