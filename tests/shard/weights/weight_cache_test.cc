#include "shard/weights/weight_cache.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::GgufBuilder;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::PartPath;
using ::strata::testing::TinyLlama;
using ::strata::testing::WriteFile;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Model = std::shared_ptr<const ModelFile>;

constexpr uint32_t kLayers = 6;

// Six layers with a MiB each, so that pages and samples are small beside them.
GgufBuilder Builder(const std::string& name, bool tied = false) {
  GgufBuilder builder = TinyLlama({.n_layer = kLayers, .tied = tied});
  builder.Set("general.name", GgufValue::String(name));
  for (uint32_t i = 0; i < kLayers; ++i) {
    builder.Tensor(absl::StrCat("blk.", i, ".extra.weight"), {256, 1024});
  }
  return builder;
}

Model Opened(const std::string& path) {
  auto model = ModelFile::Open(path);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

Model Written(const GgufBuilder& builder) {
  const std::string path = MakeTestFolder() + "/original.gguf";
  WriteFile(path, builder.Build());
  return Opened(path);
}

std::shared_ptr<WeightCache> Cache(const std::string& folder, uint64_t bytes_max = 0) {
  auto cache = WeightCache::Open({.folder = folder, .bytes_max = bytes_max});
  EXPECT_TRUE(cache.ok()) << cache.status();
  return *cache;
}

absl::Status Add(WeightCache* cache, const Model& model) {
  std::vector<uint64_t> part_bytes;
  for (size_t i = 0; i < model->paths().size(); ++i) part_bytes.push_back(model->part_bytes(i));
  size_t at = 0;
  return cache->Add(model->id(), part_bytes, [&]() -> absl::StatusOr<WeightCache::Piece> {
    WeightCache::Piece piece;
    if (at == model->identity().size()) return piece;
    const ModelFile::Range& range = model->identity()[at++];
    piece.part = range.part;
    piece.offset = range.offset;
    piece.bytes.resize(range.bytes);
    absl::Status status = model->Read(range.part, range.offset, absl::MakeSpan(piece.bytes));
    if (!status.ok()) return status;
    return piece;
  });
}

std::unique_ptr<WeightLease> Lease(WeightCache* cache, const Model& model, LayerRange layers) {
  auto lease = cache->Lease(model->id(), layers, {});
  EXPECT_TRUE(lease.ok()) << lease.status();
  return *std::move(lease);
}

// Fills the lease like a fetch. Returns how many bytes were missing.
uint64_t Fill(WeightLease* lease, const Model& from) {
  EXPECT_TRUE(lease->MakeRoom().ok());
  uint64_t bytes = 0;
  for (const uint32_t block : lease->Missing()) {
    const WeightBlock& at = lease->all_blocks()[block];
    std::string data(at.bytes, '\0');
    EXPECT_TRUE(from->Read(at.part, at.offset, absl::MakeSpan(data)).ok());
    EXPECT_TRUE(lease->Write(block, 0, data).ok());
    WeightHasher hasher;
    hasher.Add(data);
    lease->Finish(block, hasher.Finish());
    bytes += at.bytes;
  }
  EXPECT_TRUE(lease->Save().ok());
  return bytes;
}

std::string BytesOfSlice(const Model& model, LayerRange layers) {
  auto slice = Slice::Make(model, layers, {});
  EXPECT_TRUE(slice.ok()) << slice.status();
  std::string bytes(slice->file_bytes(), '\0');
  EXPECT_TRUE(slice->ReadAt(0, bytes.data(), bytes.size()).ok());
  return bytes;
}

uint64_t SourceBytes(const Model& model, LayerRange layers) {
  auto slice = Slice::Make(model, layers, {});
  EXPECT_TRUE(slice.ok()) << slice.status();
  uint64_t bytes = 0;
  for (const size_t tensor : slice->source_tensors())
    bytes += model->header().tensors[tensor].bytes;
  return bytes;
}

// The first byte of a block that no sample of the identity covers, flipped in its file.
void FlipByteOf(const Model& cached, const WeightLease& lease, uint32_t block) {
  const WeightBlock& at = lease.all_blocks()[block];
  std::fstream file(cached->paths()[at.part], std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at.offset));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(at.offset));
  file.put(static_cast<char>(byte ^ 1));
}

// A block of a large tensor.
uint32_t LargeBlock(const WeightLease& lease) {
  return *std::max_element(lease.blocks().begin(), lease.blocks().end(),
                           [&](uint32_t a, uint32_t b) {
                             return lease.all_blocks()[a].bytes < lease.all_blocks()[b].bytes;
                           });
}

class WeightCacheOfModel : public ::testing::TestWithParam<bool> {};

TEST_P(WeightCacheOfModel, GivesTheSlicesOfTheOriginal) {
  const Model original = Written(Builder("m", /*tied=*/GetParam()));
  for (const LayerRange layers : {LayerRange{0, 2}, {2, 5}, {5, 6}, {0, kLayers}}) {
    const auto cache = Cache(MakeTestFolder());
    ASSERT_TRUE(Add(cache.get(), original).ok());
    const auto lease = Lease(cache.get(), original, layers);
    EXPECT_EQ(Fill(lease.get(), original), SourceBytes(original, layers));
    EXPECT_THAT(lease->Missing(), IsEmpty());
    const Model cached = Opened(lease->path());
    EXPECT_EQ(cached->id(), original->id());
    EXPECT_TRUE(BytesOfSlice(cached, layers) == BytesOfSlice(original, layers))
        << layers.begin << "-" << layers.end;
  }
}

INSTANTIATE_TEST_SUITE_P(Tied, WeightCacheOfModel, ::testing::Bool());

TEST(WeightCache, KeepsSplitModels) {
  const std::string prefix = MakeTestFolder() + "/model";
  const std::vector<std::string> parts = Builder("m").BuildParts(3);
  for (int i = 0; i < 3; ++i) WriteFile(PartPath(prefix, i + 1, 3), parts[i]);
  const Model original = Opened(PartPath(prefix, 1, 3));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  const auto lease = Lease(cache.get(), original, {1, 4});
  Fill(lease.get(), original);
  EXPECT_TRUE(BytesOfSlice(Opened(lease->path()), {1, 4}) == BytesOfSlice(original, {1, 4}));
}

TEST(WeightCache, TakesNoMoreOfTheDiskThanItHas) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  const auto lease = Lease(cache.get(), original, {2, 3});
  Fill(lease.get(), original);
  EXPECT_LT(cache->bytes_used(), original->tensor_bytes() / 2);
}

TEST(WeightCache, HasAllBlocksAfterARestart) {
  const Model original = Written(Builder("m"));
  const std::string folder = MakeTestFolder();
  {
    const auto cache = Cache(folder);
    ASSERT_TRUE(Add(cache.get(), original).ok());
    const auto lease = Lease(cache.get(), original, {0, 3});
    Fill(lease.get(), original);
  }
  const auto cache = Cache(folder);
  EXPECT_GT(cache->bytes_used(), 3u << 20);
  const auto lease = Lease(cache.get(), original, {0, 3});
  EXPECT_THAT(lease->Missing(), IsEmpty());
  EXPECT_THAT(lease->Suspect(), IsEmpty());
  for (const uint32_t block : lease->blocks()) EXPECT_TRUE(lease->Check(block));
}

TEST(WeightCache, AChangedCutMissesOnlyNewBlocks) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  Fill(Lease(cache.get(), original, {1, 3}).get(), original);
  const uint64_t more = Fill(Lease(cache.get(), original, {2, 5}).get(), original);
  EXPECT_EQ(more, SourceBytes(original, {1, 5}) - SourceBytes(original, {1, 3}));
  EXPECT_EQ(Fill(Lease(cache.get(), original, {1, 5}).get(), original), 0u);
}

TEST(WeightCache, NoticesAFlippedByte) {
  const Model original = Written(Builder("m"));
  const std::string folder = MakeTestFolder();
  uint32_t flipped = 0;
  {
    const auto cache = Cache(folder);
    ASSERT_TRUE(Add(cache.get(), original).ok());
    const auto lease = Lease(cache.get(), original, {0, 3});
    Fill(lease.get(), original);
    flipped = LargeBlock(*lease);
    FlipByteOf(Opened(lease->path()), *lease, flipped);
  }
  const auto cache = Cache(folder);
  const auto lease = Lease(cache.get(), original, {0, 3});
  for (const uint32_t block : lease->blocks()) EXPECT_EQ(lease->Check(block), block != flipped);
  EXPECT_THAT(lease->Missing(), ElementsAreArray({flipped}));
  Fill(lease.get(), original);
  EXPECT_TRUE(BytesOfSlice(Opened(lease->path()), {0, 3}) == BytesOfSlice(original, {0, 3}));
}

TEST(WeightCache, ADamagedIdentityIsRepaired) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  std::string path;
  {
    const auto lease = Lease(cache.get(), original, {0, 3});
    Fill(lease.get(), original);
    path = lease->path();
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(0);
    file.put('X');
  }
  EXPECT_THAT(cache->Lease(original->id(), {0, 3}, {}), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_TRUE(Add(cache.get(), original).ok());
  EXPECT_THAT(Lease(cache.get(), original, {0, 3})->Missing(), IsEmpty());
}

// Damage to the files of a cache while its process runs.
struct Mishap {
  std::string name;
  std::function<void(const std::string& path)> happen;  // to a model's file
  bool all_is_lost = true;
};

class WeightCacheMishaps : public ::testing::TestWithParam<Mishap> {
 protected:
  void SetUp() override {
    cache_ = Cache(MakeTestFolder());
    ASSERT_TRUE(Add(cache_.get(), original_).ok());
    lease_ = Lease(cache_.get(), original_, {0, 4});
    Fill(lease_.get(), original_);
  }
  // Recovers like a fetch.
  void ExpectRecovered() {
    GetParam().happen(lease_->path());
    auto lease = cache_->Lease(original_->id(), {0, 4}, {});
    EXPECT_THAT(lease, StatusIs(absl::StatusCode::kNotFound));
    ASSERT_TRUE(Add(cache_.get(), original_).ok());
    lease = cache_->Lease(original_->id(), {0, 4}, {});
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (const uint32_t block : (*lease)->Suspect()) (*lease)->Check(block);
    // The hashes of missing blocks are still known, so that any node can send them.
    const WeightHashes known = (*lease)->KnownMissingHashes();
    for (const uint32_t block : (*lease)->Missing()) EXPECT_TRUE(known.contains(block));
    const uint64_t bytes = Fill(lease->get(), original_);
    EXPECT_GT(bytes, 0u);
    EXPECT_EQ(bytes == SourceBytes(original_, {0, 4}), GetParam().all_is_lost);
    EXPECT_TRUE(BytesOfSlice(Opened((*lease)->path()), {0, 4}) == BytesOfSlice(original_, {0, 4}));
  }

  const Model original_ = Written(Builder("m"));
  std::shared_ptr<WeightCache> cache_;
  std::unique_ptr<WeightLease> lease_;
};

TEST_P(WeightCacheMishaps, AreNoticedWhileNothingIsLoaded) {
  const std::string path = lease_->path();
  lease_.reset();
  GetParam().happen(path);
  auto lease = cache_->Lease(original_->id(), {0, 4}, {});
  EXPECT_THAT(lease, StatusIs(absl::StatusCode::kNotFound));
  ASSERT_TRUE(Add(cache_.get(), original_).ok());
  lease_ = Lease(cache_.get(), original_, {0, 4});
  for (const uint32_t block : lease_->Suspect()) lease_->Check(block);
  const uint64_t bytes = Fill(lease_.get(), original_);
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(bytes == SourceBytes(original_, {0, 4}), GetParam().all_is_lost);
  EXPECT_TRUE(BytesOfSlice(Opened(path), {0, 4}) == BytesOfSlice(original_, {0, 4}));
}

TEST_P(WeightCacheMishaps, AreNoticedWhileAStageIsLoaded) { ExpectRecovered(); }

TEST_P(WeightCacheMishaps, InvalidateSnapshots) {
  const auto snapshot = cache_->TakeSnapshot(original_->id());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  const auto& [block, hash] = *snapshot->hashes.begin();
  EXPECT_TRUE(cache_->Confirm(original_->id(), *snapshot, block, hash).ok());
  ExpectRecovered();
  EXPECT_THAT(cache_->Confirm(original_->id(), *snapshot, block, hash),
              StatusIs(absl::StatusCode::kNotFound));
}

INSTANTIATE_TEST_SUITE_P(
    All, WeightCacheMishaps,
    ::testing::Values(
        Mishap{"folder_removed",
               [](const std::string& path) {
                 std::filesystem::remove_all(std::filesystem::path(path).parent_path());
               }},
        Mishap{"cache_removed",
               [](const std::string& path) {
                 std::filesystem::remove_all(
                     std::filesystem::path(path).parent_path().parent_path());
               }},
        Mishap{"file_removed", [](const std::string& path) { std::filesystem::remove(path); }},
        Mishap{"emptied", [](const std::string& path) { std::filesystem::resize_file(path, 0); }},
        Mishap{"cut_short",
               [](const std::string& path) {
                 std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
               },
               /*all_is_lost=*/false},
        Mishap{"replaced_by_holes",
               [](const std::string& path) {
                 const auto bytes = std::filesystem::file_size(path);
                 std::filesystem::remove(path);
                 WriteFile(path, "");
                 std::filesystem::resize_file(path, bytes);
               },
               /*all_is_lost=*/false}),  // except the identity's bytes
    [](const auto& info) { return info.param.name; });

// Replaced by an incomplete copy: its size and header are right.
TEST(WeightCache, AReplacedFileIsCheckedAgain) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  const auto before = Lease(cache.get(), original, {0, 3});
  Fill(before.get(), original);
  EXPECT_THAT(before->Suspect(), IsEmpty());
  const std::string path = before->path();
  std::filesystem::copy_file(path, path + ".new");
  std::filesystem::rename(path + ".new", path);
  const uint32_t flipped = LargeBlock(*before);
  FlipByteOf(Opened(path), *before, flipped);
  const auto lease = Lease(cache.get(), original, {0, 3});
  EXPECT_THAT(lease->Suspect(), ElementsAreArray(lease->blocks()));
  for (const uint32_t block : lease->blocks()) EXPECT_EQ(lease->Check(block), block != flipped);
  Fill(lease.get(), original);
  EXPECT_TRUE(BytesOfSlice(Opened(path), {0, 3}) == BytesOfSlice(original, {0, 3}));
}

TEST(WeightCache, LoadersGetHashesAndCanHaveAllBlocksChecked) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  const auto lease = Lease(cache.get(), original, {0, 3});
  Fill(lease.get(), original);
  const Model cached = Opened(lease->path());
  const auto slice = Slice::Make(cached, {0, 3}, {.block_hashes = lease->BlockHashes()});
  ASSERT_TRUE(slice.ok()) << slice.status();
  std::string bytes(slice->file_bytes(), '\0');
  EXPECT_TRUE(slice->ReadAt(0, bytes.data(), bytes.size()).ok());
  const uint32_t flipped = LargeBlock(*lease);
  FlipByteOf(cached, *lease, flipped);
  EXPECT_THAT(slice->ReadAt(0, bytes.data(), bytes.size()), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(lease->Suspect(), IsEmpty());
  lease->MarkSuspect();
  EXPECT_THAT(lease->Suspect(), ElementsAreArray(lease->blocks()));
  for (const uint32_t block : lease->blocks()) EXPECT_EQ(lease->Check(block), block != flipped);
}

TEST(WeightCache, KnowsNothingOfBlocksThatWereNotSaved) {
  const Model original = Written(Builder("m"));
  const std::string folder = MakeTestFolder();
  {
    const auto cache = Cache(folder);
    ASSERT_TRUE(Add(cache.get(), original).ok());
    const auto lease = Lease(cache.get(), original, {0, 2});
    lease->Finish(lease->blocks()[0], std::string(kWeightHashBytes, 'h'));
  }
  const auto cache = Cache(folder);
  const auto lease = Lease(cache.get(), original, {0, 2});
  EXPECT_THAT(lease->Missing(), ElementsAreArray(lease->blocks()));
}

TEST(WeightCache, BlocksOfAFailedSyncAreMissing) {
  const Model model = Written(Builder("model"));
  bool fails = false;
  auto cache = WeightCache::Open(
      {.folder = MakeTestFolder(), .sync = [&](int, const std::string& path) -> absl::Status {
         if (fails) return absl::ResourceExhaustedError(path);
         return absl::OkStatus();
       }});
  ASSERT_TRUE(cache.ok()) << cache.status();
  ASSERT_TRUE(Add(cache->get(), model).ok());
  Fill(Lease(cache->get(), model, {0, 2}).get(), model);

  const auto lease = Lease(cache->get(), model, {0, 4});
  const std::vector<uint32_t> missing = lease->Missing();
  for (const uint32_t block : missing) {
    ASSERT_TRUE(lease->Write(block, 0, "some").ok());
    lease->Finish(block, std::string(kWeightHashBytes, 'x'));
  }
  EXPECT_THAT(lease->Missing(), IsEmpty());
  fails = true;
  EXPECT_THAT(lease->Save(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(lease->Missing(), missing);
  lease->Finish(missing[0], std::string(kWeightHashBytes, 'x'));  // finished before the failure
  EXPECT_EQ(lease->Missing(), missing);
  fails = false;
  Fill(lease.get(), model);
  EXPECT_TRUE(BytesOfSlice(Opened(lease->path()), {0, 4}) == BytesOfSlice(model, {0, 4}));
}

TEST(WeightCache, DamagedHashesMeanNoBlocks) {
  const Model original = Written(Builder("m"));
  const std::string folder = MakeTestFolder();
  {
    const auto cache = Cache(folder);
    ASSERT_TRUE(Add(cache.get(), original).ok());
    Fill(Lease(cache.get(), original, {0, 2}).get(), original);
  }
  const std::string blocks = folder + "/" + absl::BytesToHexString(original->id()) + "/blocks";
  std::filesystem::resize_file(blocks, std::filesystem::file_size(blocks) - 7);
  const auto cache = Cache(folder);
  const auto lease = Lease(cache.get(), original, {0, 2});
  EXPECT_THAT(lease->Missing(), ElementsAreArray(lease->blocks()));
}

TEST(WeightCache, RefusesOtherModels) {
  const Model original = Written(Builder("m"));
  const Model other = Written(Builder("another"));
  const auto cache = Cache(MakeTestFolder());
  EXPECT_THAT(cache->Lease(original->id(), {0, 2}, {}), StatusIs(absl::StatusCode::kNotFound));
  bool given = false;
  EXPECT_THAT(cache->Add(original->id(), {1000},
                         [&]() -> absl::StatusOr<WeightCache::Piece> {
                           if (std::exchange(given, true)) return WeightCache::Piece{};
                           return WeightCache::Piece{.part = 0, .offset = 0, .bytes = "GGUF"};
                         }),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(cache->Add(original->id(), {1000},
                         []() -> absl::StatusOr<WeightCache::Piece> {
                           return WeightCache::Piece{.part = 0, .offset = 999, .bytes = "GGUF"};
                         }),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(cache->Add(original->id(), {1000},
                         []() -> absl::StatusOr<WeightCache::Piece> {
                           return absl::UnavailableError("gone");
                         }),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(cache->Add("short", {1000},
                         []() -> absl::StatusOr<WeightCache::Piece> {
                           return absl::InternalError("not called");
                         }),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(cache->Lease(original->id(), {0, 2}, {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(cache->bytes_used(), 0u);
}

TEST(WeightCache, RemovesTheLeastRecentlyUsedModel) {
  std::vector<Model> models;
  for (const char* name : {"a", "b", "c"}) models.push_back(Written(Builder(name)));
  const auto cache = Cache(MakeTestFolder(), models[0]->tensor_bytes() * 5 / 2);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Add(cache.get(), models[i]).ok());
    Fill(Lease(cache.get(), models[i], {0, kLayers}).get(), models[i]);
  }
  Lease(cache.get(), models[0], {0, 1});  // used again
  ASSERT_TRUE(Add(cache.get(), models[2]).ok());
  Fill(Lease(cache.get(), models[2], {0, kLayers}).get(), models[2]);
  EXPECT_THAT(Lease(cache.get(), models[0], {0, kLayers})->Missing(), IsEmpty());
  EXPECT_THAT(cache->Lease(models[1]->id(), {0, 1}, {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_LE(cache->bytes_used(), cache->bytes_max());
}

TEST(WeightCache, KeepsLeasedBlocksAndReportsTheShortage) {
  const Model a = Written(Builder("a")), b = Written(Builder("b"));
  const auto cache = Cache(MakeTestFolder(), a->tensor_bytes() * 3 / 2);
  ASSERT_TRUE(Add(cache.get(), a).ok());
  const auto loaded = Lease(cache.get(), a, {0, kLayers});
  Fill(loaded.get(), a);
  ASSERT_TRUE(Add(cache.get(), b).ok());
  const auto wanted = Lease(cache.get(), b, {0, kLayers});
  const absl::Status full = wanted->MakeRoom();
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--cache-size")));
  EXPECT_THAT(loaded->Missing(), IsEmpty());
  EXPECT_TRUE(BytesOfSlice(Opened(loaded->path()), {0, kLayers}) == BytesOfSlice(a, {0, kLayers}));
}

TEST(WeightCache, MakesRoomInTheModelItself) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder(), original->tensor_bytes() * 4 / 5);
  ASSERT_TRUE(Add(cache.get(), original).ok());
  Fill(Lease(cache.get(), original, {0, 3}).get(), original);
  const auto kept = Lease(cache.get(), original, {2, 3});
  const auto lease = Lease(cache.get(), original, {3, kLayers});
  Fill(lease.get(), original);
  EXPECT_LE(cache->bytes_used(), cache->bytes_max());
  const Model cached = Opened(lease->path());
  EXPECT_EQ(cached->id(), original->id());
  EXPECT_TRUE(BytesOfSlice(cached, {3, kLayers}) == BytesOfSlice(original, {3, kLayers}));
  EXPECT_THAT(kept->Missing(), IsEmpty());
  EXPECT_TRUE(BytesOfSlice(cached, {2, 3}) == BytesOfSlice(original, {2, 3}));
  EXPECT_THAT(Lease(cache.get(), original, {0, 2})->Missing(), ::testing::Not(IsEmpty()));
}

TEST(WeightCache, KeepsBlocksThatAnotherStageHasLoaded) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder(), original->tensor_bytes() * 4 / 5);
  ASSERT_TRUE(Add(cache.get(), original).ok());
  const auto loaded = Lease(cache.get(), original, {0, 3});
  Fill(loaded.get(), original);
  // A damaged block: missing for others, but the loaded stage still reads it.
  const uint32_t block = LargeBlock(*loaded);
  const auto snapshot = cache->TakeSnapshot(original->id());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_THAT(cache->Confirm(original->id(), *snapshot, block, std::string(kWeightHashBytes, 'x')),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(loaded->Missing(), ElementsAreArray({block}));
  const auto wanted = Lease(cache.get(), original, {3, kLayers});
  EXPECT_THAT(wanted->MakeRoom(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(BytesOfSlice(Opened(loaded->path()), {0, 3}) == BytesOfSlice(original, {0, 3}));
}

// A stage of the model may start at any moment, so the samples that its id is a hash of must stay.
TEST(WeightCache, AModelCanBeOpenedWhileRoomIsMadeInIt) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder(), original->tensor_bytes() * 4 / 5);
  ASSERT_TRUE(Add(cache.get(), original).ok());
  const std::string path = Lease(cache.get(), original, {0, 1})->path();
  std::atomic<bool> ended = false;
  std::thread opens([&] {
    while (!ended) ASSERT_EQ(Opened(path)->id(), original->id());
  });
  const auto keeps = Lease(cache.get(), original, {2, 3});  // else the model itself would go
  for (int i = 0; i < 20; ++i) {
    Fill(Lease(cache.get(), original, {0, 3}).get(), original);
    Fill(Lease(cache.get(), original, {3, kLayers}).get(), original);
  }
  ended = true;
  opens.join();
}

TEST(WeightCache, ABlockThatWasFetchedAgainIsNotMarkedMissing) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  const auto lease = Lease(cache.get(), original, {0, 3});
  Fill(lease.get(), original);
  const uint32_t block = LargeBlock(*lease);
  const std::string wrong(kWeightHashBytes, 'x');
  const auto before = cache->TakeSnapshot(original->id());
  ASSERT_TRUE(before.ok()) << before.status();
  ASSERT_TRUE(lease->Forget({block}).ok());
  Fill(lease.get(), original);
  EXPECT_THAT(cache->Confirm(original->id(), *before, block, wrong),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(lease->Missing(), IsEmpty());
  EXPECT_TRUE(cache->Confirm(original->id(), *before, block, lease->HashOf(block)).ok());
  const auto after = cache->TakeSnapshot(original->id());
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_THAT(cache->Confirm(original->id(), *after, block, wrong),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(WeightCache, DataThatIsLoadedIsNotReplaced) {
  const Model original = Written(Builder("m"));
  const auto cache = Cache(MakeTestFolder());
  ASSERT_TRUE(Add(cache.get(), original).ok());
  auto loaded = Lease(cache.get(), original, {0, 2});
  Fill(loaded.get(), original);
  const auto other = Lease(cache.get(), original, {1, 3});
  const uint32_t block = LargeBlock(*other);
  ASSERT_FALSE(other->HashOf(block).empty());
  EXPECT_THAT(other->Forget({block}), StatusIs(absl::StatusCode::kFailedPrecondition));
  loaded.reset();
  EXPECT_TRUE(other->Forget({block}).ok());
  EXPECT_EQ(other->HashOf(block), "");
}

TEST(WeightCache, IsOfOneProcess) {
  const std::string folder = MakeTestFolder();
  const auto cache = Cache(folder);
  EXPECT_THAT(WeightCache::Open({.folder = folder}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(folder)));
}

TEST(WeightBlocks, ThatWereNeverWrittenAreRefusedInAUsersFile) {
  const std::string bytes = Builder("m").Build();
  const std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, bytes);
  EXPECT_TRUE(CheckNoHoles(*Opened(path)).ok());
  // Its last MiB is still to come.
  std::filesystem::resize_file(path, bytes.size() - (3u << 19));
  std::filesystem::resize_file(path, bytes.size());
  const Model model = Opened(path);
  if (!model->IsHole(0, bytes.size() - (1u << 20), 1u << 20)) GTEST_SKIP() << "no holes here";
  EXPECT_THAT(CheckNoHoles(*model), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
}

TEST(WeightBlocks, CutLargeTensors) {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  builder.Tensor("blk.1.extra.weight", {1024, 5120});  // 20 MiB
  const Model model = Written(builder);
  const WeightBlocks blocks(*model);
  const std::vector<uint32_t> of_last = blocks.OfTensors({model->header().tensors.size() - 1});
  ASSERT_THAT(of_last, SizeIs(2));
  EXPECT_EQ(blocks[of_last[0]].bytes, kWeightBlockBytes);
  EXPECT_EQ(blocks[of_last[1]].bytes, (20u << 20) - kWeightBlockBytes);
  EXPECT_EQ(blocks[of_last[1]].offset, blocks[of_last[0]].offset + kWeightBlockBytes);
  std::vector<uint32_t> all(blocks.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_EQ(blocks.BytesOf(all), model->tensor_bytes());
}

}  // namespace
}  // namespace strata
