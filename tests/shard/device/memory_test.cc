// The memory of a stage: at most its slice, its KV cache, its compute buffer and 64 MiB. Unloading
// returns it. Each figure is measured in a fresh process, like a worker.
#include "shard/device/memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ggml.h"
#include "gtest/gtest.h"
#include "shard/engine/stage.h"
#include "shard/model/gguf.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

constexpr uint64_t kAllowanceBytes = 64 << 20;
constexpr uint32_t kLayers = 8;
constexpr uint32_t kBatch = 64;
const char* program = nullptr;

struct Shape {
  const char* name;
  uint64_t columns;
  uint64_t rows;  // 0: a vector, kept in f32
};

// A llama of 280 MiB, most of it in `type`. Its weights repeat one megabyte of blocks: only their
// place in memory is measured.
void WriteModel(const std::string& path, ggml_type type) {
  constexpr uint64_t kEmbd = 2048, kKv = 512, kFeedForward = 5632, kVocab = 32000;
  GgufHeader header;
  header.Set("general.architecture", GgufValue::String("llama"));
  header.Set("llama.block_count", GgufValue::U32(kLayers));
  header.Set("llama.context_length", GgufValue::U32(4096));
  header.Set("llama.embedding_length", GgufValue::U32(kEmbd));
  header.Set("llama.feed_forward_length", GgufValue::U32(kFeedForward));
  header.Set("llama.attention.head_count", GgufValue::U32(32));
  header.Set("llama.attention.head_count_kv", GgufValue::U32(8));
  header.Set("llama.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5f));
  header.Set("llama.vocab_size", GgufValue::U32(kVocab));
  header.Set("tokenizer.ggml.model", GgufValue::String("none"));
  auto add = [&header, type](const std::string& name, uint64_t columns, uint64_t rows) {
    GgufTensor tensor;
    tensor.name = name;
    tensor.n_dims = rows == 0 ? 1 : 2;
    tensor.dims = {columns, std::max<uint64_t>(rows, 1), 1, 1};
    tensor.type = rows == 0 ? GGML_TYPE_F32 : type;
    tensor.bytes = *GgufTensorBytes(tensor.type, tensor.dims);
    header.tensors.push_back(tensor);
  };
  add("token_embd.weight", kEmbd, kVocab);
  add("output_norm.weight", kEmbd, 0);
  add("output.weight", kEmbd, kVocab);
  const Shape shapes[] = {
      {"attn_norm", kEmbd, 0},
      {"attn_q", kEmbd, kEmbd},
      {"attn_k", kEmbd, kKv},
      {"attn_v", kEmbd, kKv},
      {"attn_output", kEmbd, kEmbd},
      {"ffn_norm", kEmbd, 0},
      {"ffn_up", kEmbd, kFeedForward},
      {"ffn_gate", kEmbd, kFeedForward},
      {"ffn_down", kFeedForward, kEmbd},
  };
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const Shape& shape : shapes) {
      add(absl::StrCat("blk.", layer, ".", shape.name, ".weight"), shape.columns, shape.rows);
    }
  }

  // Whole rows of blocks, so that a tensor may start with any of them.
  std::vector<float> values(1 << 18);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.02f * (static_cast<float>(i * 2654435761u % 1000) / 500 - 1);
  }
  std::string blocks(ggml_row_size(type, static_cast<int64_t>(values.size())), '\0');
  ggml_quantize_chunk(type, values.data(), blocks.data(), 0, 1, static_cast<int64_t>(values.size()),
                      nullptr);
  const float one = 1;

  std::ofstream file(path, std::ios::binary);
  file << SerializeGgufHeader(header);
  const auto data_begin = static_cast<uint64_t>(file.tellp());
  for (const GgufTensor& tensor : header.tensors) {
    const uint64_t begin = data_begin + tensor.offset;
    while (static_cast<uint64_t>(file.tellp()) < begin) file.put('\0');
    if (tensor.type == GGML_TYPE_F32) {
      for (uint64_t i = 0; i < tensor.dims[0]; ++i) {
        file.write(reinterpret_cast<const char*>(&one), sizeof(one));
      }
      continue;
    }
    for (uint64_t left = tensor.bytes; left > 0;) {
      const uint64_t n = std::min<uint64_t>(left, blocks.size());
      file.write(blocks.data(), static_cast<std::streamsize>(n));
      left -= n;
    }
  }
  ASSERT_TRUE(file.good()) << path;
}

std::unique_ptr<Stage> LoadOf(const std::string& path, LayerRange layers, bool use_mmap) {
  absl::StatusOr<std::shared_ptr<const ModelFile>> model = ModelFile::Open(path);
  CHECK_OK(model.status());
  absl::StatusOr<Slice> slice = Slice::Make(*std::move(model), layers, {});
  CHECK_OK(slice.status());
  StageOptions options;
  options.n_ctx = 1024;
  options.n_seq_max = 4;
  options.n_batch = kBatch;
  options.use_mmap = use_mmap;
  absl::StatusOr<std::unique_ptr<Stage>> stage = Stage::Load(*slice, options, nullptr);
  CHECK_OK(stage.status());
  return *std::move(stage);
}

// A child: four times loads four stages, each on its own thread, and frees them; prints the most
// resident memory after that, and the caches of a stage.
int LoadAgainAndAgain(const std::string& path, LayerRange layers) {
  UseOneHeap();
  uint64_t resident = 0, kv_bytes = 0;
  for (int times = 0; times < 4; ++times) {
    std::vector<std::unique_ptr<Stage>> stages(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < stages.size(); ++i) {
      const LayerRange part = {layers.begin, layers.end - static_cast<uint32_t>(i % 2)};
      threads.emplace_back([&, i, part] { stages[i] = LoadOf(path, part, /*use_mmap=*/true); });
    }
    for (std::thread& thread : threads) thread.join();
    kv_bytes = stages.front()->facts().kv_bytes;
    stages.clear();
    ReleaseFreedMemory();
    resident = std::max(resident, ResidentBytes());
  }
  std::cout << resident << " " << kv_bytes << "\n";
  return 0;
}

// A child: loads a stage, uses it as a worker would, and prints its reported and its real memory.
int LoadAndUse(const std::string& path, LayerRange layers, bool use_mmap) {
  const std::unique_ptr<Stage> stage = LoadOf(path, layers, use_mmap);
  const Stage::Facts& facts = stage->facts();
  uint64_t resident = ResidentBytes();

  // libllama clears the caches when it makes them, so one batch touches all remaining memory.
  std::vector<int32_t> tokens(facts.is_first ? kBatch : 0, 7), positions(kBatch), slots(kBatch, 1);
  for (uint32_t i = 0; i < kBatch; ++i) positions[i] = static_cast<int32_t>(i);
  const std::vector<float> activations(
      facts.is_first ? 0 : static_cast<size_t>(kBatch) * facts.n_embd, 0.1f);
  const std::vector<uint32_t> outputs = {kBatch - 1};
  Stage::Batch batch;
  batch.tokens = tokens;
  batch.activations = activations;
  batch.positions = positions;
  batch.slots = slots;
  if (facts.is_last) batch.output_rows = outputs;
  CHECK_OK(stage->Decode(batch));
  const Payload out = facts.is_last ? Payload() : stage->TakeActivations();
  resident = std::max(resident, ResidentBytes());
  std::cout << resident << " " << facts.slice_bytes << " " << facts.kv_bytes << " "
            << facts.compute_bytes << "\n";
  return 0;
}

// A child's output; `how` is "mmap", "read" or "again".
std::string RunChild(const std::string& path, LayerRange layers, const char* how) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) return "";
  const std::string begin = absl::StrCat(layers.begin);
  const std::string end = absl::StrCat(layers.end);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    close(pipe_fds[0]);
    execl(program, program, "--child", path.c_str(), begin.c_str(), end.c_str(), how, nullptr);
    _exit(127);
  }
  close(pipe_fds[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(pipe_fds[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
  close(pipe_fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return text;
}

struct MemoryUse {
  uint64_t resident = 0;
  uint64_t slice = 0;
  uint64_t kv = 0;
  uint64_t compute = 0;
};

MemoryUse Measure(const std::string& path, LayerRange layers, bool use_mmap) {
  MemoryUse measured;
  std::istringstream(RunChild(path, layers, use_mmap ? "mmap" : "read")) >> measured.resident >>
      measured.slice >> measured.kv >> measured.compute;
  return measured;
}

class StageMemory : public ::testing::TestWithParam<ggml_type> {
 protected:
  void SetUp() override {
    path_ = testing::MakeTestFolder() + "/model.gguf";
    WriteModel(path_, GetParam());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;
};

TEST_P(StageMemory, IsTheSliceItsCachesAndAnAllowance) {
  if (testing::kHasAddressSanitizer) GTEST_SKIP() << "AddressSanitizer's own memory would count";
  struct Case {
    const char* what;
    LayerRange layers;
    bool use_mmap;
  };
  const Case cases[] = {
      {"first", {0, 3}, true},
      {"middle", {3, 6}, true},
      {"last", {6, kLayers}, true},
      {"whole, mapped", {0, kLayers}, true},
      {"whole, read", {0, kLayers}, false},
  };
  for (const Case& c : cases) {
    const MemoryUse m = Measure(path_, c.layers, c.use_mmap);
    const uint64_t bound = m.slice + m.kv + m.compute + kAllowanceBytes;
    std::printf(
        "%-14s resident %4llu MiB, slice %4llu + KV %3llu + compute %3llu + 64 = %4llu MiB\n",
        c.what, static_cast<unsigned long long>(m.resident >> 20),
        static_cast<unsigned long long>(m.slice >> 20), static_cast<unsigned long long>(m.kv >> 20),
        static_cast<unsigned long long>(m.compute >> 20),
        static_cast<unsigned long long>(bound >> 20));
    EXPECT_GT(m.resident, 0u) << c.what;
    EXPECT_LE(m.resident, bound) << c.what;
    EXPECT_GT(m.kv, 0u) << c.what;
    EXPECT_GT(m.compute, 0u) << c.what;
  }
}

TEST_P(StageMemory, GoesBackWhereverItWasLoaded) {
  if (testing::kHasAddressSanitizer) GTEST_SKIP() << "AddressSanitizer's own memory would count";
#ifndef __GLIBC__
  GTEST_SKIP() << "this C library's retention of freed memory is not known";
#endif
  uint64_t resident = 0, kv = 0;
  std::istringstream(RunChild(path_, {3, 6}, "again")) >> resident >> kv;
  std::printf("resident %llu MiB at most behind four stages with %llu MiB of caches each\n",
              static_cast<unsigned long long>(resident >> 20),
              static_cast<unsigned long long>(kv >> 20));
  EXPECT_GT(resident, 0u);
  EXPECT_LT(resident, kv);
}

INSTANTIATE_TEST_SUITE_P(Types, StageMemory, ::testing::Values(GGML_TYPE_Q4_0, GGML_TYPE_Q6_K),
                         [](const auto& info) { return ggml_type_name(info.param); });

TEST(AvailableBytes, IsMoreThanThisProcessNeeds) {
  EXPECT_GT(AvailableBytes(), uint64_t{1} << 20);
  EXPECT_GT(ResidentBytes(), uint64_t{1} << 20);
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "--child") == 0) {
    strata::LayerRange layers;
    if (!absl::SimpleAtoi(argv[3], &layers.begin) || !absl::SimpleAtoi(argv[4], &layers.end)) {
      return 2;
    }
    if (std::strcmp(argv[5], "again") == 0) return strata::LoadAgainAndAgain(argv[2], layers);
    return strata::LoadAndUse(argv[2], layers, std::strcmp(argv[5], "mmap") == 0);
  }
  strata::program = argv[0];
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
