#include "shard/model/gguf.h"

#include <cstdio>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ggml.h"
#include "gguf.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::GgufBuilder;
using ::strata::testing::GgufBytes;
using ::strata::testing::TinyLlama;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view file) {
  absl::StatusOr<GgufHeader> header = ParseGgufHeader(file);
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument) << header.status();
  return std::string(header.status().message());
}

template <typename T>
GgufValue Value(GgufType type, T value) {
  GgufValue result;
  result.type = result.element_type = type;
  result.bytes.assign(reinterpret_cast<const char*>(&value), sizeof(value));
  return result;
}

GgufValue Array(GgufType type, uint64_t count, std::string bytes) {
  GgufValue result;
  result.type = GgufType::kArray;
  result.element_type = type;
  result.count = count;
  result.bytes = std::move(bytes);
  return result;
}

GgufBuilder OneTensor() {
  GgufBuilder builder;
  builder.Tensor("a", {32, 4});
  return builder;
}

TEST(Gguf, ReadsValuesOfEveryType) {
  GgufBuilder builder;
  builder.Set("u8", Value<uint8_t>(GgufType::kU8, 200))
      .Set("i8", Value<int8_t>(GgufType::kI8, -3))
      .Set("u16", Value<uint16_t>(GgufType::kU16, 60000))
      .Set("i16", Value<int16_t>(GgufType::kI16, 7))
      .Set("u32", GgufValue::U32(4000000000))
      .Set("i32", Value<int32_t>(GgufType::kI32, -1))
      .Set("u64", Value<uint64_t>(GgufType::kU64, uint64_t{1} << 63))
      .Set("i64", Value<int64_t>(GgufType::kI64, 5))
      .Set("f32", GgufValue::F32(0.5f))
      .Set("f64", Value<double>(GgufType::kF64, 0.25))
      .Set("bool", GgufValue::Bool(true))
      .Set("string", GgufValue::String("text"))
      .Set("empty", GgufValue::String(""))
      .Set("heads", Array(GgufType::kU16, 2, std::string("\x04\x00\x08\x00", 4)))
      .Set("strings", GgufValue::StringArray({"a", "", "ccc"}));
  const absl::StatusOr<GgufHeader> header = ParseGgufHeader(builder.Build());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->GetInteger("u8"), 200);
  EXPECT_EQ(header->GetInteger("i8"), std::nullopt);
  EXPECT_EQ(header->GetNumber("i8"), -3);
  EXPECT_EQ(header->GetInteger("u16"), 60000);
  EXPECT_EQ(header->GetInteger("i16"), 7);
  EXPECT_EQ(header->GetInteger("u32"), 4000000000);
  EXPECT_EQ(header->GetNumber("u32"), 4e9);
  EXPECT_EQ(header->GetInteger("i32"), std::nullopt);
  EXPECT_EQ(header->GetInteger("u64"), uint64_t{1} << 63);
  EXPECT_EQ(header->GetInteger("i64"), 5);
  EXPECT_EQ(header->GetInteger("f32"), std::nullopt);
  EXPECT_EQ(header->GetNumber("f32"), 0.5);
  EXPECT_EQ(header->GetNumber("f64"), 0.25);
  EXPECT_EQ(header->GetBool("bool"), true);
  EXPECT_EQ(header->GetBool("u8"), std::nullopt);
  EXPECT_EQ(header->GetInteger("bool"), std::nullopt);
  EXPECT_EQ(header->GetString("string"), "text");
  EXPECT_EQ(header->GetString("empty"), "");
  EXPECT_EQ(header->GetString("strings"), std::nullopt);
  EXPECT_EQ(header->GetStringAt("strings", 0), "a");
  EXPECT_EQ(header->GetStringAt("strings", 1), "");
  EXPECT_EQ(header->GetStringAt("strings", 2), "ccc");
  EXPECT_EQ(header->GetStringAt("strings", 3), std::nullopt);
  EXPECT_EQ(header->GetStringAt("string", 0), std::nullopt);
  EXPECT_EQ(header->GetInteger("missing"), std::nullopt);
  EXPECT_EQ(header->GetInteger("heads"), std::nullopt);
  EXPECT_EQ(header->GetIntegerOfLayer("heads", 1), 8);
  EXPECT_EQ(header->GetIntegerOfLayer("heads", 2), std::nullopt);
  EXPECT_EQ(header->GetIntegerOfLayer("u8", 2), 200);
  EXPECT_EQ(header->Find("strings")->count, 3);
}

TEST(Gguf, ReadsTheTensorDirectory) {
  GgufBuilder builder = OneTensor();
  builder.TensorOfType("b", {64, 3, 2}, GGML_TYPE_Q8_0);
  builder.Tensor("c", {});
  const std::string file = builder.Build();
  const absl::StatusOr<GgufHeader> header = ParseGgufHeader(file);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 3);
  EXPECT_EQ(header->data_offset % 32, 0);
  const GgufTensor* b = header->FindTensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->n_dims, 3);
  EXPECT_THAT(b->dims, ::testing::ElementsAre(64, 3, 2, 1));
  EXPECT_EQ(b->type, GGML_TYPE_Q8_0);
  EXPECT_EQ(b->offset, 32 * 4 * 4);
  EXPECT_EQ(b->bytes, 2 * 34 * 6);
  EXPECT_EQ(header->FindTensor("c")->bytes, 4);
  EXPECT_EQ(header->FindTensor("d"), nullptr);
}

TEST(Gguf, WritesTheBytesItRead) {
  for (const uint32_t version : {2, 3}) {
    for (const uint32_t alignment : {8, 32, 4096}) {
      GgufBuilder builder = TinyLlama({.n_layer = 2});
      builder.version = version;
      builder.alignment = alignment;
      const std::string file = builder.Build();
      absl::StatusOr<GgufHeader> header = ParseGgufHeader(file);
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->alignment, alignment);
      const uint64_t data_offset = header->data_offset;
      const std::string bytes = SerializeGgufHeader(*header);
      EXPECT_EQ(bytes.size(), data_offset);
      EXPECT_EQ(header->data_offset, data_offset);
      EXPECT_TRUE(bytes == file.substr(0, data_offset)) << version << " " << alignment;
    }
  }
}

TEST(Gguf, LibggmlReadsItsOutput) {
  absl::StatusOr<GgufHeader> header = ParseGgufHeader(TinyLlama({.n_layer = 2}).Build());
  ASSERT_TRUE(header.ok()) << header.status();
  header->alignment = 64;
  header->Set("general.name", GgufValue::String("other"));
  header->Erase("tokenizer.ggml.scores");
  header->tensors.erase(header->tensors.begin() + 3);
  const std::string bytes = SerializeGgufHeader(*header);
  gguf_context* read =
      gguf_init_from_buffer(bytes.data(), bytes.size(), {.no_alloc = true, .ctx = nullptr});
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(gguf_get_alignment(read), 64);
  EXPECT_EQ(gguf_get_data_offset(read), header->data_offset);
  ASSERT_EQ(gguf_get_n_kv(read), static_cast<int64_t>(header->metadata.size()));
  EXPECT_STREQ(gguf_get_val_str(read, gguf_find_key(read, "general.name")), "other");
  const int64_t tokens = gguf_find_key(read, "tokenizer.ggml.tokens");
  ASSERT_EQ(gguf_get_arr_n(read, tokens), 272);
  EXPECT_STREQ(gguf_get_arr_str(read, tokens, 271), "word271");
  ASSERT_EQ(gguf_get_n_tensors(read), static_cast<int64_t>(header->tensors.size()));
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    EXPECT_EQ(gguf_get_tensor_name(read, i), header->tensors[i].name);
    EXPECT_EQ(gguf_get_tensor_offset(read, i), header->tensors[i].offset);
    EXPECT_EQ(gguf_get_tensor_size(read, i), header->tensors[i].bytes);
  }
  gguf_free(read);
}

// Output of a shell command; `status` is its exit status.
std::string OutputOf(const std::string& command, int* status) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  *status = pclose(pipe);
  return output;
}

TEST(Gguf, GgufPyReadsItsOutput) {
  int status = -1;
  OutputOf("python3 -c 'import gguf'", &status);
  if (status != 0) GTEST_SKIP() << "python3 has no module gguf";
  const std::string file = TinyLlama({.n_layer = 2}).Build();
  absl::StatusOr<GgufHeader> header = ParseGgufHeader(file);
  ASSERT_TRUE(header.ok()) << header.status();
  const uint64_t data_offset = header->data_offset;
  const std::string path = testing::MakeTestFolder() + "/written.gguf";
  testing::WriteFile(path, SerializeGgufHeader(*header) + file.substr(data_offset));
  const std::string output =
      OutputOf(absl::StrCat("python3 -c 'import gguf\n"
                            "for t in gguf.GGUFReader(\"",
                            path, "\").tensors: print(t.name, t.data_offset, t.n_bytes)'"),
               &status);
  EXPECT_EQ(status, 0) << output;
  std::string expected;
  for (const GgufTensor& tensor : header->tensors) {
    absl::StrAppend(&expected, tensor.name, " ", data_offset + tensor.offset, " ", tensor.bytes,
                    "\n");
  }
  EXPECT_EQ(output, expected);
}

TEST(Gguf, NamesAWrongMagic) {
  EXPECT_THAT(ErrorOf("PK\x03\x04 and more that is no model"),
              HasSubstr("not a GGUF file (starts with \"PK\\003\\004\")"));
  EXPECT_THAT(ErrorOf("GG"), HasSubstr("starts with \"GG\""));
  EXPECT_THAT(ErrorOf(""), HasSubstr("it is empty"));
}

TEST(Gguf, RefusesOtherVersions) {
  GgufBuilder builder = OneTensor();
  for (const uint32_t version : {0u, 1u, 4u, 77u}) {
    builder.version = version;
    EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr(absl::StrCat("GGUF version ", version)));
  }
  builder.version = 0x03000000;
  EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("big-endian"));
}

TEST(Gguf, RefusesImpossibleCounts) {
  for (const uint64_t count : {uint64_t{3}, uint64_t{1} << 21, uint64_t{1} << 40, ~uint64_t{0}}) {
    EXPECT_THAT(ErrorOf(GgufBytes().Start(count, 0).U64(0).bytes()),
                AllOf(HasSubstr("byte 8"), HasSubstr(absl::StrCat(count, " tensors"))));
    EXPECT_THAT(ErrorOf(GgufBytes().Start(0, count).U64(0).bytes()),
                AllOf(HasSubstr("byte 16"), HasSubstr(absl::StrCat(count, " metadata keys"))));
  }
}

TEST(Gguf, RefusesLengthsPastTheEnd) {
  const auto file = [](GgufBytes bytes) { return bytes.Raw(std::string(64, 'x')).bytes(); };
  EXPECT_THAT(ErrorOf(file(GgufBytes().Start(0, 1).U64(60000))), HasSubstr("cut off at byte"));
  EXPECT_THAT(ErrorOf(file(GgufBytes().Start(0, 1).U64(~uint64_t{0}))), HasSubstr("bytes long"));
  EXPECT_THAT(ErrorOf(file(GgufBytes().Start(0, 1).String("k").U32(8).U64(1000))),
              HasSubstr("the value of \"k\""));
  EXPECT_THAT(ErrorOf(file(GgufBytes().Start(0, 1).String("k").U32(8).U64(~uint64_t{0}))),
              HasSubstr("holds a string of"));
  // Arrays: of numbers, of strings, and of as many as would overflow.
  for (const uint32_t type : {5u, 8u, 10u}) {
    for (const uint64_t count : {uint64_t{1000}, uint64_t{1} << 61, ~uint64_t{0}}) {
      EXPECT_THAT(ErrorOf(file(GgufBytes().Start(0, 1).String("k").U32(9).U32(type).U64(count))),
                  HasSubstr(absl::StrCat("has ", count, " elements")));
    }
  }
}

TEST(Gguf, RefusesUnknownValueTypes) {
  const std::string rest(64, '\0');
  EXPECT_THAT(ErrorOf(GgufBytes().Start(0, 1).String("k").U32(13).Raw(rest).bytes()),
              HasSubstr("has type 13"));
  EXPECT_THAT(ErrorOf(GgufBytes().Start(0, 1).String("k").U32(9).U32(9).U64(1).Raw(rest).bytes()),
              HasSubstr("of elements of type 9"));
}

TEST(Gguf, RefusesDuplicateNames) {
  const GgufValue value = GgufValue::U32(1);
  EXPECT_THAT(
      ErrorOf(
          GgufBytes().Start(0, 3).Entry("k", value).Entry("l", value).Entry("k", value).bytes()),
      HasSubstr("metadata key \"k\" is there twice"));
  GgufBuilder builder = OneTensor();
  builder.Tensor("b", {1}).Tensor("a", {8});
  EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("tensor \"a\" is there twice"));
}

TEST(Gguf, RefusesInvalidNames) {
  EXPECT_THAT(ErrorOf(GgufBytes().Start(0, 1).Entry("", GgufValue::U32(1)).bytes()),
              HasSubstr("metadata key 0 is empty"));
  EXPECT_THAT(
      ErrorOf(
          GgufBytes().Start(0, 1).Entry(absl::string_view("a\0b", 3), GgufValue::U32(1)).bytes()),
      HasSubstr("zero byte"));
  for (const std::string& name : {std::string(), std::string("a\0b", 3)}) {
    GgufBuilder builder;
    builder.Tensor(name, {4});
    EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("the name of tensor 0"));
  }
  GgufBuilder builder;
  EXPECT_TRUE(ParseGgufHeader(builder.Tensor(std::string(63, 'n'), {4}).Build()).ok());
  EXPECT_THAT(ErrorOf(builder.Tensor(std::string(64, 'n'), {4}).Build()),
              HasSubstr("64 bytes long"));
}

TEST(Gguf, RefusesInvalidAlignments) {
  for (const uint32_t alignment : {0u, 3u, 33u, 1u << 21, ~0u}) {
    GgufBuilder builder;
    builder.Set("general.alignment", GgufValue::U32(alignment));
    EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("general.alignment")) << alignment;
  }
  GgufBuilder builder;
  builder.Set("general.alignment", Value<uint64_t>(GgufType::kU64, 32));
  EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("general.alignment must be a u32"));
}

TEST(Gguf, RefusesInvalidShapes) {
  const auto error = [](std::vector<uint64_t> dims, uint32_t type) {
    return ErrorOf(GgufBytes().Start(1, 0).Tensor("t", dims, type, 0).PadTo(4096).bytes());
  };
  const uint64_t huge = uint64_t{1} << 62;
  EXPECT_THAT(error({1, 1, 1, 1, 1}, 0), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(error({4, 0}, 0), HasSubstr("length 0"));
  EXPECT_THAT(error({huge, 2}, 0), HasSubstr("too large"));
  EXPECT_THAT(error({huge}, 0), HasSubstr("too large"));
  EXPECT_THAT(error({~uint64_t{0}}, GGML_TYPE_Q8_0), HasSubstr("type 8 and shape"));
  EXPECT_THAT(error({1u << 31, 1u << 31, 1u << 31, 1u << 31}, 0), HasSubstr("too large"));
  EXPECT_THAT(error({33}, GGML_TYPE_Q8_0), HasSubstr("not a multiple of its block"));
  EXPECT_THAT(error({32}, GGML_TYPE_COUNT), HasSubstr("unknown type"));
  EXPECT_THAT(error({32}, ~0u), HasSubstr("unknown type"));
  EXPECT_THAT(error({32}, 4), HasSubstr("unknown type"));  // Q4_2, which ggml has removed
}

TEST(Gguf, RefusesTensorsPastTheEnd) {
  const std::string file = OneTensor().Build();
  const uint64_t data_offset = file.size() - 512;
  EXPECT_THAT(ErrorOf(file.substr(0, file.size() - 100)),
              HasSubstr(absl::StrCat("cut off at byte ", file.size() - 100,
                                     ": the header promises 512 bytes of tensor data from byte ",
                                     data_offset, ", 412 are there")));
  // Two tensors whose sizes are fine alone.
  const uint64_t half = uint64_t{1} << 60;
  EXPECT_THAT(ErrorOf(GgufBytes()
                          .Start(4, 0)
                          .Tensor("a", {half}, 0, 0)
                          .Tensor("b", {half}, 0, half * 4)
                          .Tensor("c", {half}, 0, half * 8)
                          .Tensor("d", {half}, 0, half * 12)
                          .PadTo(4096)
                          .bytes()),
              HasSubstr("2^63"));
}

TEST(Gguf, RefusesTensorsOutOfPlace) {
  const auto error = [](uint64_t second) {
    return ErrorOf(GgufBytes()
                       .Start(2, 0)
                       .Tensor("a", {8}, 0, 0)
                       .Tensor("b", {8}, 0, second)
                       .PadTo(4096)
                       .bytes());
  };
  EXPECT_THAT(error(0),
              HasSubstr("tensor \"b\" has its data at 0 of the data section, expected at 32"));
  EXPECT_THAT(error(31), HasSubstr("at 31"));
  EXPECT_THAT(error(64), HasSubstr("at 64"));
  EXPECT_THAT(error(~uint64_t{0}), HasSubstr("expected at 32"));
}

TEST(Gguf, EveryTruncationIsAnError) {
  GgufBuilder builder = OneTensor();
  builder.Set("general.name", GgufValue::String("name"))
      .Set("s", GgufValue::StringArray({"a", "b"}));
  builder.Tensor("b", {32});
  const std::string file = builder.Build();
  ASSERT_TRUE(ParseGgufHeader(file).ok());
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_FALSE(ParseGgufHeader(absl::string_view(file).substr(0, bytes)).ok()) << bytes;
  }
}

// Whatever the header says, a tensor that is accepted lies inside the file.
TEST(Gguf, BitFlipsGiveAnErrorOrASoundHeader) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  GgufBuilder builder = OneTensor();
  builder.alignment = 64;
  builder.Set("general.architecture", GgufValue::String("llama"))
      .Set("llama.block_count", GgufValue::U32(2))
      .Set("f", GgufValue::F32(1))
      .Set("heads", Array(GgufType::kU16, 2, std::string("\x04\x00\x08\x00", 4)))
      .Set("tokens", GgufValue::StringArray({"a", "bb", "ccc"}));
  builder.Tensor("blk.0.w", {32, 2}).TensorOfType("blk.1.w", {64, 2}, GGML_TYPE_Q8_0);
  const std::string good = builder.Build();
  const size_t header_bytes = builder.BuildHeader().size();
  size_t errors = 0;
  for (size_t at = 0; at < header_bytes; ++at) {
    for (int round = 0; round < 3; ++round) {
      std::string file = good;
      // One bit; then the whole byte.
      file[at] = round < 2 ? static_cast<char>(file[at] ^ (1 << random() % 8))
                           : static_cast<char>(random());
      absl::StatusOr<GgufHeader> header = ParseGgufHeader(file);
      if (!header.ok()) {
        ++errors;
        EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument) << header.status();
        EXPECT_FALSE(header.status().message().empty());
        continue;
      }
      for (const GgufTensor& tensor : header->tensors) {
        EXPECT_LE(header->data_offset + tensor.offset + tensor.bytes, file.size())
            << "byte " << at << ", tensor " << tensor.name;
      }
    }
  }
  EXPECT_GT(errors, header_bytes / 2);
}

TEST(Gguf, ReadsTheHeaderOfAHugeFileOnly) {
  constexpr uint64_t kRows = 1u << 20, kTensors = 100;  // 100 × 3 GiB
  GgufBytes bytes;
  bytes.Start(kTensors, 0);
  for (uint64_t i = 0; i < kTensors; ++i) {
    bytes.Tensor(absl::StrCat("t", i), {768, kRows}, 0, i * 768 * kRows * 4);
  }
  bytes.PadTo(32);
  const std::string start = bytes.bytes();
  uint64_t bytes_read = 0;
  const absl::StatusOr<GgufHeader> header = ReadGgufHeader(
      start.size() + kTensors * 768 * kRows * 4, [&](uint64_t offset, absl::Span<char> out) {
        bytes_read += out.size();
        std::fill(out.begin(), out.end(), '\0');
        if (offset < start.size()) start.copy(out.data(), out.size(), offset);
        return absl::StatusOr<size_t>(out.size());
      });
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.size(), kTensors);
  EXPECT_LE(bytes_read, 2u << 20);
}

TEST(Gguf, MetadataIsBoundedInAHugeFile) {
  // The file is large enough for what the array claims; the memory of the node is not.
  const std::string start =
      GgufBytes().Start(0, 1).String("k").U32(9).U32(0).U64(uint64_t{1} << 37).bytes();
  uint64_t bytes_read = 0;
  const absl::StatusOr<GgufHeader> header =
      ReadGgufHeader(uint64_t{1} << 40, [&](uint64_t offset, absl::Span<char> out) {
        bytes_read += out.size();
        std::fill(out.begin(), out.end(), '\0');
        if (offset < start.size()) start.copy(out.data(), out.size(), offset);
        return absl::StatusOr<size_t>(out.size());
      });
  EXPECT_THAT(std::string(header.status().message()), HasSubstr("metadata of more than"));
  EXPECT_LE(bytes_read, 2u << 20);
}

TEST(Gguf, PassesOnReadErrors) {
  const absl::StatusOr<GgufHeader> header =
      ReadGgufHeader(1000, [](uint64_t, absl::Span<char>) -> absl::StatusOr<size_t> {
        return absl::UnavailableError("disk gone");
      });
  EXPECT_EQ(header.status(), absl::UnavailableError("disk gone"));
}

TEST(Gguf, AFileThatEndsEarlyIsAnError) {
  const std::string file = TinyLlama({.n_layer = 1}).Build().substr(0, 400);
  const absl::StatusOr<GgufHeader> header =
      ReadGgufHeader(100000, [&](uint64_t offset, absl::Span<char> out) -> absl::StatusOr<size_t> {
        return offset < file.size() ? file.copy(out.data(), out.size(), offset) : 0;
      });
  EXPECT_THAT(std::string(header.status().message()), HasSubstr("cut off at byte 400"));
}

TEST(Gguf, SizesOfTensors) {
  EXPECT_EQ(GgufTensorBytes(GGML_TYPE_F32, {3, 5, 7, 2}), 840);
  EXPECT_EQ(GgufTensorBytes(GGML_TYPE_Q4_0, {64, 3, 1, 1}), 108);
  EXPECT_EQ(GgufTensorBytes(GGML_TYPE_Q4_0, {63, 3, 1, 1}), std::nullopt);
  EXPECT_EQ(GgufTensorBytes(GGML_TYPE_COUNT, {32, 1, 1, 1}), std::nullopt);
  EXPECT_EQ(GgufTensorBytes(GGML_TYPE_F32, {~uint64_t{0}, 2, 1, 1}), std::nullopt);
}

}  // namespace
}  // namespace strata
