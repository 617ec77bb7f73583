#include "coordinator/models/fill_in_middle.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

GgufHeader HeaderWith(const std::vector<std::string>& tokens) {
  GgufHeader header;
  header.Set("tokenizer.ggml.tokens", GgufValue::StringArray(tokens));
  return header;
}

TEST(FillInMiddle, TokensAreKnownByTheirNames) {
  const auto fill = FillInMiddleOf(
      HeaderWith({"a", "<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|file_sep|>"}));
  ASSERT_TRUE(fill);
  EXPECT_EQ(fill->prefix(), "<|fim_prefix|>");
  EXPECT_EQ(fill->suffix(), "<|fim_suffix|>");
  EXPECT_EQ(fill->middle(), "<|fim_middle|>");
  EXPECT_EQ(fill->file_separator(), "<|file_sep|>");
}

TEST(FillInMiddle, TokensThatTheFileNamesCountFirst) {
  GgufHeader header = HeaderWith({"<P>", "<S>", "<M>", "<|fim_prefix|>"});
  header.Set("tokenizer.ggml.fim_pre_token_id", GgufValue::U32(0));
  header.Set("tokenizer.ggml.suffix_token_id", GgufValue::U32(1));
  header.Set("tokenizer.ggml.fim_mid_token_id", GgufValue::U32(2));
  const auto fill = FillInMiddleOf(header);
  ASSERT_TRUE(fill);
  EXPECT_EQ(fill->prefix(), "<P>");
  EXPECT_EQ(fill->suffix(), "<S>");
  EXPECT_EQ(fill->middle(), "<M>");
  EXPECT_EQ(fill->file_separator(), "");
}

TEST(FillInMiddle, IsNotThereWithoutAllThree) {
  EXPECT_FALSE(FillInMiddleOf(HeaderWith({"<|fim_prefix|>", "<|fim_suffix|>"})));
  EXPECT_FALSE(FillInMiddleOf(GgufHeader()));
  GgufHeader header = HeaderWith({"<|fim_suffix|>", "<|fim_middle|>"});
  header.Set("tokenizer.ggml.fim_pre_token_id", GgufValue::U32(7));  // beyond the vocabulary
  EXPECT_FALSE(FillInMiddleOf(header));
}

}  // namespace
}  // namespace strata
