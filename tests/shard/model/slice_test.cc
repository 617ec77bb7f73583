#include "shard/model/slice.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ggml.h"
#include "gguf.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llama.h"
#include "shard/model/weight_blocks.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::GgufBuilder;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::PartPath;
using ::strata::testing::TinyLlama;
using ::strata::testing::WriteFile;
using ::testing::HasSubstr;

constexpr uint64_t kEmbd = 32, kVocab = 272;  // of TinyLlama

std::shared_ptr<const ModelFile> Opened(const GgufBuilder& builder) {
  const std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, builder.Build());
  auto model = ModelFile::Open(path);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

std::shared_ptr<const ModelFile> OpenedInParts(const GgufBuilder& builder, uint16_t n_parts) {
  const std::string prefix = MakeTestFolder() + "/model";
  const std::vector<std::string> parts = builder.BuildParts(n_parts);
  for (int i = 0; i < n_parts; ++i) WriteFile(PartPath(prefix, i + 1, n_parts), parts[i]);
  auto model = ModelFile::Open(PartPath(prefix, 1, n_parts));
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

Slice Made(const std::shared_ptr<const ModelFile>& model, uint32_t begin, uint32_t end,
           bool unverified = false) {
  absl::StatusOr<Slice> slice = Slice::Make(model, {begin, end}, {.unverified = unverified});
  EXPECT_TRUE(slice.ok()) << slice.status();
  return *std::move(slice);
}

std::string BytesOf(const Slice& slice) {
  std::string bytes(slice.file_bytes(), '\0');
  const absl::StatusOr<size_t> n = slice.ReadAt(0, bytes.data(), bytes.size());
  EXPECT_TRUE(n.ok()) << n.status();
  EXPECT_EQ(*n, bytes.size());
  return bytes;
}

// The slice as parsed from its bytes, with the data of its tensors.
class ParsedSlice {
 public:
  explicit ParsedSlice(const Slice& slice) : bytes_(BytesOf(slice)) {
    absl::StatusOr<GgufHeader> header = ParseGgufHeader(bytes_);
    EXPECT_TRUE(header.ok()) << header.status();
    header_ = *std::move(header);
  }
  const GgufHeader& header() const { return header_; }
  absl::string_view DataOf(absl::string_view name) const {
    const GgufTensor* tensor = header_.FindTensor(name);
    if (tensor == nullptr) return "no such tensor";
    return absl::string_view(bytes_).substr(header_.data_offset + tensor->offset, tensor->bytes);
  }
  // Whether tensor `name` has the bytes of `original` in the model.
  bool Holds(absl::string_view name, absl::string_view original) const {
    const absl::string_view data = DataOf(name);
    return data == GgufBuilder::DataOf(original, data.size());
  }
  bool IsZero(absl::string_view name) const {
    const absl::string_view data = DataOf(name);
    return data == std::string(data.size(), '\0');
  }

 private:
  std::string bytes_;
  GgufHeader header_;
};

// With tensors of several blocks, neither of which fills its last one.
GgufBuilder WithLargeTensors() {
  GgufBuilder builder = TinyLlama({});
  for (const char* name : {"blk.2.extra.weight", "blk.4.extra.weight"}) {
    builder.Tensor(name, {1000, 5000});
  }
  return builder;
}

TEST(Slice, RenamesItsLayers) {
  const Slice slice = Made(Opened(TinyLlama({.n_layer = 6})), 2, 5);
  const ParsedSlice parsed(slice);
  EXPECT_EQ(parsed.header().GetInteger("llama.block_count"), 3);
  size_t layer_tensors = 0;
  for (const GgufTensor& tensor : parsed.header().tensors) {
    layer_tensors += absl::StartsWith(tensor.name, "blk.");
  }
  EXPECT_EQ(layer_tensors, 3 * 9);
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* name : {"attn_norm", "attn_q", "ffn_down"}) {
      EXPECT_TRUE(parsed.Holds(absl::StrCat("blk.", layer, ".", name, ".weight"),
                               absl::StrCat("blk.", layer + 2, ".", name, ".weight")));
    }
  }
  EXPECT_EQ(parsed.header().FindTensor("blk.3.attn_q.weight"), nullptr);
}

TEST(Slice, LeavesTheRestOfTheMetadataAsItWas) {
  const std::shared_ptr<const ModelFile> model = Opened(TinyLlama({.n_layer = 6}));
  const ParsedSlice parsed(Made(model, 0, 2));
  for (const auto& [key, value] : model->header().metadata) {
    const GgufValue* here = parsed.header().Find(key);
    ASSERT_NE(here, nullptr) << key;
    EXPECT_TRUE(key == "llama.block_count" || here->bytes == value.bytes) << key;
  }
}

TEST(Slice, DropsTheVocabularyInTheMiddle) {
  const Slice slice = Made(Opened(TinyLlama({})), 2, 5);
  EXPECT_FALSE(slice.has_vocabulary());
  const ParsedSlice parsed(slice);
  EXPECT_EQ(parsed.header().GetString("tokenizer.ggml.model"), "none");
  EXPECT_EQ(parsed.header().GetInteger("llama.vocab_size"), 1);
  EXPECT_EQ(parsed.header().Find("tokenizer.ggml.tokens"), nullptr);
  for (const char* name : {"token_embd.weight", "output.weight"}) {
    ASSERT_NE(parsed.header().FindTensor(name), nullptr) << name;
    EXPECT_THAT(parsed.header().FindTensor(name)->dims, ::testing::ElementsAre(kEmbd, 1, 1, 1));
    EXPECT_TRUE(parsed.IsZero(name));
  }
  EXPECT_TRUE(parsed.Holds("output_norm.weight", "output_norm.weight"));
}

TEST(Slice, KeepsRealEmbeddingOnFirstStage) {
  const Slice slice = Made(Opened(TinyLlama({})), 0, 2);
  EXPECT_TRUE(slice.is_first());
  EXPECT_FALSE(slice.is_last());
  const ParsedSlice parsed(slice);
  EXPECT_TRUE(parsed.Holds("token_embd.weight", "token_embd.weight"));
  EXPECT_NE(parsed.header().Find("tokenizer.ggml.tokens"), nullptr);
  // The head is never computed: a placeholder of the right shape, in a type that takes less room.
  const GgufTensor* output = parsed.header().FindTensor("output.weight");
  ASSERT_NE(output, nullptr);
  EXPECT_THAT(output->dims, ::testing::ElementsAre(kEmbd, kVocab, 1, 1));
  EXPECT_LT(output->bytes, kEmbd * kVocab);
  EXPECT_TRUE(parsed.IsZero("output.weight"));
}

TEST(Slice, KeepsRealOutputOnLastStage) {
  const Slice slice = Made(Opened(TinyLlama({})), 5, 6);
  EXPECT_TRUE(slice.is_last());
  const ParsedSlice parsed(slice);
  EXPECT_TRUE(parsed.Holds("output.weight", "output.weight"));
  EXPECT_TRUE(parsed.Holds("output_norm.weight", "output_norm.weight"));
  const GgufTensor* embedding = parsed.header().FindTensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_THAT(embedding->dims, ::testing::ElementsAre(kEmbd, kVocab, 1, 1));
  EXPECT_LT(embedding->bytes, kEmbd * kVocab);
  EXPECT_TRUE(parsed.IsZero("token_embd.weight"));
}

TEST(Slice, PlaceholdersTakeTheSmallestTypeThatFits) {
  const auto type_of_output = [](uint64_t n_embd, uint32_t original) {
    GgufBuilder builder = TinyLlama({.n_layer = 2});
    builder.EraseTensor("output.weight").TensorOfType("output.weight", {n_embd, 16}, original);
    return Made(Opened(builder), 0, 1).header().FindTensor("output.weight")->type;
  };
  EXPECT_EQ(type_of_output(512, GGML_TYPE_F32), GGML_TYPE_IQ1_S);
  EXPECT_EQ(type_of_output(512, GGML_TYPE_Q4_0), GGML_TYPE_IQ1_S);
  EXPECT_EQ(type_of_output(96, GGML_TYPE_Q8_0), GGML_TYPE_Q4_0);
  EXPECT_EQ(type_of_output(96, GGML_TYPE_Q4_0), GGML_TYPE_Q4_0);
  EXPECT_EQ(type_of_output(33, GGML_TYPE_F32), GGML_TYPE_F16);
}

TEST(Slice, TiedModelsKeepTheirEmbeddingAtBothEnds) {
  const std::shared_ptr<const ModelFile> model = Opened(TinyLlama({.tied = true}));
  for (const auto& [begin, end] : {std::pair(0u, 2u), std::pair(5u, 6u)}) {
    const ParsedSlice parsed(Made(model, begin, end));
    EXPECT_TRUE(parsed.Holds("token_embd.weight", "token_embd.weight"));
    EXPECT_EQ(parsed.header().FindTensor("output.weight"), nullptr);
  }
  EXPECT_EQ(Made(model, 2, 5).header().FindTensor("output.weight"), nullptr);
}

TEST(Slice, AddsPositionsOnce) {
  GgufBuilder builder = TinyLlama({});
  builder.Tensor("position_embd.weight", {kEmbd, 128}).Tensor("output.bias", {kVocab});
  const std::shared_ptr<const ModelFile> model = Opened(builder);
  EXPECT_TRUE(ParsedSlice(Made(model, 0, 2)).Holds("position_embd.weight", "position_embd.weight"));
  for (const auto& [begin, end] : {std::pair(2u, 5u), std::pair(5u, 6u)}) {
    const ParsedSlice parsed(Made(model, begin, end));
    EXPECT_EQ(parsed.DataOf("position_embd.weight").size(), kEmbd * 128 * 4);
    EXPECT_TRUE(parsed.IsZero("position_embd.weight"));
  }
  EXPECT_EQ(ParsedSlice(Made(model, 2, 5)).header().FindTensor("output.bias")->dims[0], 1);
  EXPECT_EQ(ParsedSlice(Made(model, 0, 2)).header().FindTensor("output.bias")->dims[0], kVocab);
  EXPECT_TRUE(ParsedSlice(Made(model, 5, 6)).Holds("output.bias", "output.bias"));
}

TEST(Slice, OfTheWholeModelIsItsFile) {
  const std::shared_ptr<const ModelFile> model = Opened(TinyLlama({}));
  const Slice slice = Made(model, 0, 6);
  EXPECT_TRUE(slice.is_whole());
  std::string file(slice.file_bytes(), '\0');
  ASSERT_TRUE(model->Read(0, 0, absl::MakeSpan(file)).ok());
  EXPECT_TRUE(BytesOf(slice) == file);
  EXPECT_EQ(slice.tensor_bytes(), model->tensor_bytes());
}

TEST(Slice, OfTheWholeModelNeedsNoRule) {
  GgufBuilder builder = TinyLlama({});
  builder.Set("general.architecture", GgufValue::String("novel"))
      .Set("novel.block_count", GgufValue::U32(6));
  const std::shared_ptr<const ModelFile> model = Opened(builder);
  EXPECT_TRUE(Slice::Make(model, {0, 6}, {}).ok());
  EXPECT_EQ(Slice::Make(model, {0, 3}, {}).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(Slice::Make(model, {0, 3}, {.unverified = true}).ok());
}

TEST(Slice, ReadsFromTheParts) {
  const GgufBuilder builder = TinyLlama({});
  const std::shared_ptr<const ModelFile> one = Opened(builder);
  for (const uint16_t n_parts : {2, 5, 20}) {
    const std::shared_ptr<const ModelFile> parts = OpenedInParts(builder, n_parts);
    for (const auto& [begin, end] : {std::pair(0u, 2u), std::pair(2u, 5u), std::pair(5u, 6u)}) {
      EXPECT_TRUE(BytesOf(Made(parts, begin, end)) == BytesOf(Made(one, begin, end)))
          << n_parts << " parts, layers " << begin << " to " << end;
    }
    // All of it, without the metadata that says that it is in parts.
    const ParsedSlice whole(Made(parts, 0, 6));
    EXPECT_EQ(whole.header().Find("split.count"), nullptr);
    EXPECT_EQ(whole.header().tensors.size(), one->header().tensors.size());
    for (const GgufTensor& tensor : whole.header().tensors) {
      EXPECT_TRUE(whole.Holds(tensor.name, tensor.name)) << tensor.name;
    }
  }
}

TEST(Slice, KeepsTheAlignment) {
  GgufBuilder builder = TinyLlama({});
  builder.alignment = 256;
  const ParsedSlice parsed(Made(Opened(builder), 2, 5));
  EXPECT_EQ(parsed.header().alignment, 256);
  EXPECT_EQ(parsed.header().data_offset % 256, 0);
  EXPECT_TRUE(parsed.Holds("blk.0.attn_q.weight", "blk.2.attn_q.weight"));
}

TEST(Slice, ReadsAnywhere) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const Slice slice = Made(OpenedInParts(TinyLlama({}), 3), 1, 5);
  const std::string all = BytesOf(slice);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t offset = random() % (all.size() + 10);
    std::string read(i % 2 == 0 ? random() % 100 : random() % all.size(), 'x');
    const absl::StatusOr<size_t> n = slice.ReadAt(offset, read.data(), read.size());
    ASSERT_TRUE(n.ok()) << n.status();
    const std::string expected = offset < all.size() ? all.substr(offset, read.size()) : "";
    ASSERT_EQ(*n, expected.size());
    ASSERT_TRUE(read.substr(0, *n) == expected) << "at " << offset;
  }
  EXPECT_EQ(*slice.ReadAt(~uint64_t{0}, nullptr, 10), 0);
}

TEST(Slice, StreamSeeksAsAFile) {
  const Slice slice = Made(Opened(TinyLlama({})), 2, 5);
  const std::string all = BytesOf(slice);
  FILE* stream = *slice.Open();
  ASSERT_EQ(fseeko(stream, 0, SEEK_END), 0);
  EXPECT_EQ(ftello(stream), static_cast<off_t>(slice.file_bytes()));
  EXPECT_EQ(fgetc(stream), EOF);
  ASSERT_EQ(fseeko(stream, 0, SEEK_SET), 0);
  std::string read(all.size() + 1, '\0');
  EXPECT_EQ(fread(read.data(), 1, read.size(), stream), all.size());
  EXPECT_TRUE(feof(stream));
  EXPECT_TRUE(read.substr(0, all.size()) == all);
  ASSERT_EQ(fseeko(stream, 100, SEEK_SET), 0);
  ASSERT_EQ(fseeko(stream, 20, SEEK_CUR), 0);
  EXPECT_EQ(ftello(stream), 120);
  EXPECT_EQ(fgetc(stream), static_cast<unsigned char>(all[120]));
  EXPECT_NE(fseeko(stream, -1, SEEK_SET), 0);
  EXPECT_EQ(fclose(stream), 0);
}

TEST(Slice, StreamOutlivesSliceAndModel) {
  FILE* stream = nullptr;
  std::string all;
  {
    const Slice slice = Made(Opened(TinyLlama({})), 2, 5);
    all = BytesOf(slice);
    stream = *slice.Open();
  }
  std::string read(all.size(), '\0');
  EXPECT_EQ(fread(read.data(), 1, read.size(), stream), all.size());
  EXPECT_TRUE(read == all);
  EXPECT_EQ(fclose(stream), 0);
}

TEST(Slice, StreamsOfOneSliceAreApart) {
  const Slice slice = Made(Opened(TinyLlama({})), 2, 5);
  FILE* a = *slice.Open();
  FILE* b = *slice.Open();
  ASSERT_EQ(fseeko(a, 3, SEEK_SET), 0);
  EXPECT_EQ(fgetc(a), 'F');
  EXPECT_EQ(fgetc(b), 'G');
  fclose(a);
  EXPECT_EQ(fgetc(b), 'G');
  fclose(b);
}

TEST(Slice, AStreamSaysWhenTheFileIsGone) {
  const std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, TinyLlama({}).Build());
  const Slice slice = Made(*ModelFile::Open(path), 2, 5);
  WriteFile(path, "");  // cut off under the open file
  FILE* stream = *slice.Open();
  std::string read(slice.file_bytes(), '\0');
  EXPECT_LT(fread(read.data(), 1, read.size(), stream), read.size());
  EXPECT_TRUE(ferror(stream));
  fclose(stream);
}

TEST(Slice, RefusesRangesOutsideTheModel) {
  const std::shared_ptr<const ModelFile> model = Opened(TinyLlama({.n_layer = 6}));
  for (const auto& [begin, end] : {std::pair(0u, 0u), std::pair(3u, 3u), std::pair(4u, 3u),
                                   std::pair(0u, 7u), std::pair(6u, 7u), std::pair(0u, ~0u)}) {
    const absl::Status status = Slice::Make(model, {begin, end}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("which has 6"));
  }
}

// Loads the stream as a stage does, without a mapping; nullptr when libllama refuses it.
std::unique_ptr<llama_model, decltype(&llama_model_free)> Loaded(const Slice& slice) {
  static const bool once = [] {
    ggml_backend_load_all();
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    return true;
  }();
  (void)once;
  llama_model_params params = llama_model_default_params();
  params.load_mode = LLAMA_LOAD_MODE_NONE;
  params.n_gpu_layers = 0;
  FILE* stream = *slice.Open();
  llama_model* model = llama_model_load_from_file_ptr(stream, params);
  fclose(stream);
  return {model, &llama_model_free};
}

TEST(Slice, LibllamaLoadsIt) {
  for (const bool tied : {false, true}) {
    const GgufBuilder builder = TinyLlama({.n_layer = 6, .tied = tied});
    for (const auto& model : {Opened(builder), OpenedInParts(builder, 3)}) {
      for (const auto& [begin, end] :
           {std::pair(0u, 2u), std::pair(2u, 5u), std::pair(5u, 6u), std::pair(0u, 6u)}) {
        SCOPED_TRACE(absl::StrCat(tied ? "tied, " : "", model->paths().size(), " parts, layers ",
                                  begin, " to ", end));
        const Slice slice = Made(model, begin, end);
        const auto loaded = Loaded(slice);
        ASSERT_NE(loaded, nullptr);
        EXPECT_EQ(llama_model_n_layer(loaded.get()), static_cast<int32_t>(end - begin));
        EXPECT_EQ(llama_vocab_n_tokens(llama_model_get_vocab(loaded.get())),
                  slice.has_vocabulary() ? static_cast<int32_t>(kVocab) : 1);
        EXPECT_EQ(llama_model_size(loaded.get()), slice.tensor_bytes());
      }
    }
  }
}

// libggml checks more than libllama reports.
TEST(Slice, LibggmlReadsItsHeader) {
  const Slice slice = Made(OpenedInParts(TinyLlama({}), 2), 2, 5);
  const std::string bytes = BytesOf(slice);
  gguf_context* read =
      gguf_init_from_buffer(bytes.data(), bytes.size(), {.no_alloc = true, .ctx = nullptr});
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(gguf_get_data_offset(read), slice.header().data_offset);
  EXPECT_EQ(gguf_get_n_tensors(read), static_cast<int64_t>(slice.header().tensors.size()));
  gguf_free(read);
}

// Hashes of the slice's blocks, as in its node's cache.
std::string HashesOf(const Slice& slice) {
  std::string hashes;
  const WeightBlocks all(slice.model());
  for (const uint32_t block : all.OfTensors(slice.source_tensors())) {
    std::string bytes(all[block].bytes, '\0');
    EXPECT_TRUE(slice.model().Read(all[block].part, all[block].offset, absl::MakeSpan(bytes)).ok());
    hashes += HashOfBytes(bytes);
  }
  return hashes;
}

// Reads the tensors' bytes from the stream, tensor by tensor, from the last to the first; or its
// error.
absl::StatusOr<std::vector<std::string>> Streamed(const Slice& slice) {
  absl::Status error;
  FILE* stream = *slice.Open(&error);
  std::vector<std::string> tensors(slice.header().tensors.size());
  for (size_t i = tensors.size(); i-- > 0 && error.ok();) {
    const GgufTensor& tensor = slice.header().tensors[i];
    tensors[i].resize(tensor.bytes);
    const auto offset = static_cast<off_t>(slice.header().data_offset + tensor.offset);
    EXPECT_EQ(fseeko(stream, offset, SEEK_SET), 0);
    const size_t n = fread(tensors[i].data(), 1, tensor.bytes, stream);
    EXPECT_EQ(n == tensor.bytes, error.ok()) << tensor.name;
  }
  fclose(stream);
  if (!error.ok()) return error;
  return tensors;
}

TEST(Slice, ThatIsCheckedIsTheSame) {
  const GgufBuilder builder = WithLargeTensors();
  for (const auto& model : {Opened(builder), OpenedInParts(builder, 3)}) {
    for (const auto& [begin, end] : {std::pair(0u, 2u), std::pair(2u, 5u), std::pair(0u, 6u)}) {
      const Slice plain = Made(model, begin, end);
      const auto checked = Slice::Make(model, {begin, end}, {.block_hashes = HashesOf(plain)});
      ASSERT_TRUE(checked.ok()) << checked.status();
      EXPECT_EQ(checked->source_tensors(), plain.source_tensors());
      const ParsedSlice parsed(*checked);
      const auto streamed = Streamed(*checked);
      ASSERT_TRUE(streamed.ok()) << streamed.status();
      const ParsedSlice expected(plain);
      ASSERT_EQ(parsed.header().tensors.size(), expected.header().tensors.size());
      for (size_t i = 0; i < streamed->size(); ++i) {
        const std::string& name = expected.header().tensors[i].name;
        EXPECT_EQ(parsed.header().tensors[i].name, name);
        EXPECT_TRUE(parsed.DataOf(name) == expected.DataOf(name)) << name;
        EXPECT_TRUE((*streamed)[i] == expected.DataOf(name)) << name;
      }
    }
  }
}

TEST(Slice, ThatIsCheckedReturnsNothingOfADamagedBlock) {
  const std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, WithLargeTensors().Build());
  const std::shared_ptr<const ModelFile> model = *ModelFile::Open(path);
  for (const auto& [begin, end] : {std::pair(2u, 5u), std::pair(0u, 6u)}) {
    const Slice plain = Made(model, begin, end);
    const auto checked = Slice::Make(model, {begin, end}, {.block_hashes = HashesOf(plain)});
    ASSERT_TRUE(checked.ok()) << checked.status();
    const WeightBlocks blocks(*model);
    const std::vector<uint32_t> ours = blocks.OfTensors(plain.source_tensors());
    const uint32_t last = ours[ours.size() / 2];
    const WeightBlock& at = blocks[last];
    std::string bytes(at.bytes, '\0');
    ASSERT_TRUE(model->Read(at.part, at.offset, absl::MakeSpan(bytes)).ok());
    const auto put = [&](const std::string& content) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(at.offset));
      file << content;
    };
    std::string flipped = bytes;
    flipped.back() = static_cast<char>(flipped.back() ^ 4);
    for (const std::string& damaged : {flipped, std::string(bytes.size(), '\0')}) {  // a hole
      put(damaged);
      const absl::Status status = Streamed(*checked).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("block ", last)));
      EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    }
    put(bytes);
    EXPECT_TRUE(Streamed(*checked).ok());
  }
  const Slice plain = Made(model, 2, 5);
  const auto checked = Slice::Make(model, {2, 5}, {.block_hashes = HashesOf(plain)});
  ASSERT_TRUE(checked.ok()) << checked.status();
  std::filesystem::resize_file(path, model->part_bytes(0) / 2);
  EXPECT_EQ(Streamed(*checked).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Slice, RequiresAHashForEachBlock) {
  const std::shared_ptr<const ModelFile> model = Opened(TinyLlama({}));
  for (const uint32_t end : {3u, 6u}) {
    const std::string hashes = HashesOf(Made(model, 0, end));
    for (const std::string& wrong : {hashes + "x", hashes.substr(32), std::string("x")}) {
      EXPECT_EQ(Slice::Make(model, {0, end}, {.block_hashes = wrong}).status().code(),
                absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(Slice, ThatIsCheckedIsLoadedByLibllama) {
  const std::shared_ptr<const ModelFile> model = OpenedInParts(TinyLlama({}), 2);
  for (const auto& [begin, end] : {std::pair(0u, 2u), std::pair(2u, 5u), std::pair(0u, 6u)}) {
    std::string hashes = HashesOf(Made(model, begin, end));
    const auto checked = Slice::Make(model, {begin, end}, {.block_hashes = hashes});
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_NE(Loaded(*checked), nullptr);
    hashes.back() = static_cast<char>(hashes.back() ^ 1);
    const auto damaged = Slice::Make(model, {begin, end}, {.block_hashes = hashes});
    ASSERT_TRUE(damaged.ok()) << damaged.status();
    EXPECT_EQ(Loaded(*damaged), nullptr);
  }
}

}  // namespace
}  // namespace strata
