// Blocks on a disk that is what it is, or is damaged, full, or another's.
#include "shard/kv_store/kv_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "shard/kv_store/kv_folder.h"
#include "tests/support/temp_folder.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

KvName Name(int i) { return KvNamesOf("", std::vector<int32_t>(kKvBlockTokens, i)).front(); }

std::vector<fs::path> FilesOf(const KvStore& store) {
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(store.folder())) {
    if (file.path().filename().string().size() == 2 * kKvNameBytes) files.push_back(file.path());
  }
  return files;
}

wire::KvIdentity IdentityOf(const std::string& setting) {
  wire::KvIdentity identity;
  identity.set_setting(setting);
  return identity;
}

class KvStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<KvStore> Open(const std::string& identity = "a model",
                                uint64_t bytes_max = 1 << 20, uint64_t others_bytes_max = 1 << 20) {
    auto store = KvStore::Open({.folder = Folder(),
                                .identity = IdentityOf(identity),
                                .bytes_max = bytes_max,
                                .others_bytes_max = others_bytes_max});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::string Folder() const { return folder_ + "/kv"; }

  const std::string folder_ = testing::MakeTestFolder();
};

TEST_F(KvStoreTest, KeepsBlocksAlsoWhenItIsOpenedAgain) {
  std::unique_ptr<KvStore> store = Open();
  store->Put({Name(1), ""}, "one");
  store->Put({Name(2), ""}, std::string(100'000, '2'));
  EXPECT_EQ(*store->Get({Name(1), ""}), "one") << "before it is written, or behind";
  store.reset();
  store = Open();
  EXPECT_EQ(*store->Get({Name(1), ""}), "one");
  EXPECT_EQ(*store->Get({Name(2), ""}), std::string(100'000, '2'));
  EXPECT_TRUE(store->TakeLost().empty());
  EXPECT_TRUE(absl::IsNotFound(store->Get({Name(3), ""}).status()));
  EXPECT_EQ(store->TakeLost(), std::vector<KvName>{Name(3)});
  EXPECT_TRUE(store->TakeLost().empty());
}

TEST_F(KvStoreTest, ForgottenBlocksLeaveTheDisk) {
  std::unique_ptr<KvStore> store = Open();
  for (int i = 0; i < 20; ++i) store->Put({Name(i), ""}, absl::StrCat(i));
  for (int i = 0; i < 19; ++i) store->Forget(Name(i));  // written or not
  store->Forget(Name(99));
  store->Put({Name(0), ""}, "again");
  store.reset();
  store = Open();
  EXPECT_EQ(FilesOf(*store).size(), 2u);
  EXPECT_EQ(*store->Get({Name(0), ""}), "again");
  EXPECT_EQ(*store->Get({Name(19), ""}), "19");
}

TEST_F(KvStoreTest, NamesTheLeastRecentlyUsedFirst) {
  std::unique_ptr<KvStore> store = Open();
  for (int i = 0; i < 3; ++i) store->Put({Name(i), ""}, "x");
  store.reset();
  store = Open();
  // The file system's clock may be coarse.
  const timespec old[2] = {{.tv_sec = 1'000'000}, {.tv_sec = 1'000'000}};
  for (const fs::path& file : FilesOf(*store)) utimensat(AT_FDCWD, file.c_str(), old, 0);
  EXPECT_TRUE(store->Get({Name(1), ""}).ok());
  store.reset();
  store = Open();
  ASSERT_EQ(store->Names().size(), 3u);
  EXPECT_EQ(store->Names().back(), Name(1));
}

TEST_F(KvStoreTest, WhatASequenceBeginsWithIsUsedWithIt) {
  const std::unique_ptr<KvStore> store = Open("a model", 3500);
  for (const int i : {2, 1, 9}) store->Put({Name(i), ""}, std::string(1000, 'x'));
  store->Use({Name(1), Name(2), Name(5)});
  EXPECT_EQ(store->Names(), (std::vector<KvName>{Name(9), Name(2), Name(1)}));
  EXPECT_EQ(store->KeptBlocks().front().name, Name(1));
  store->Put({Name(3), ""}, std::string(1000, 'x'));
  EXPECT_EQ(store->TakeLost(), std::vector<KvName>{Name(9)});
}

TEST_F(KvStoreTest, AClockThatWasSetBackLosesNothingButTheOrder) {
  std::unique_ptr<KvStore> store = Open("a model", 3500);
  for (int i = 0; i < 3; ++i) store->Put({Name(i), ""}, std::string(1000, 'x'));
  store.reset();
  store = Open("a model", 3500);
  const timespec late[2] = {{.tv_sec = 4'000'000'000}, {.tv_sec = 4'000'000'000}};
  for (const fs::path& file : FilesOf(*store)) utimensat(AT_FDCWD, file.c_str(), late, 0);
  store.reset();
  store = Open("a model", 3500);
  EXPECT_EQ(store->Names().size(), 3u);
  for (int i = 3; i < 6; ++i) store->Put({Name(i), ""}, std::string(1000, 'x'));
  EXPECT_EQ(store->Names().size(), 3u);
  EXPECT_EQ(store->TakeLost().size(), 3u);
  EXPECT_LE(store->bytes_used(), 3500u);
  EXPECT_EQ(ListKvFolders(Folder()).size(), 1u);
}

TEST_F(KvStoreTest, ADamagedBlockIsNotReturned) {
  std::unique_ptr<KvStore> store = Open();
  for (int i = 0; i < 4; ++i) store->Put({Name(i), ""}, std::string(1000, 'x'));
  store.reset();
  store = Open();
  const std::vector<fs::path> files = FilesOf(*store);
  ASSERT_EQ(files.size(), 4u);
  fs::resize_file(files[0], 500);
  fs::resize_file(files[1], 0);
  std::fstream(files[2], std::ios::in | std::ios::out | std::ios::binary).seekp(600).put('!');
  fs::rename(files[2], Folder() + "/aside");
  fs::rename(files[3], files[2]);  // a whole block under another one's name
  fs::rename(Folder() + "/aside", files[3]);
  std::vector<KvName> damaged;
  for (int i = 0; i < 4; ++i) {
    const auto block = store->Get({Name(i), ""});
    EXPECT_TRUE(absl::IsDataLoss(block.status())) << block.status();
    damaged.push_back(Name(i));
  }
  EXPECT_EQ(store->TakeLost(), damaged);
  EXPECT_TRUE(FilesOf(*store).empty()) << "they are of no use";
  store->Put({Name(0), ""}, "new");
  EXPECT_EQ(*store->Get({Name(0), ""}), "new");
}

TEST_F(KvStoreTest, NothingOnTheDiskTellsWhatItIsOf) {
  std::unique_ptr<KvStore> store = Open();
  const std::string secret = "what somebody has asked";
  store->Put({Name(1), ""}, secret);
  const std::string folder = store->folder();
  store.reset();
  for (const auto& file : fs::recursive_directory_iterator(Folder())) {
    if (file.is_directory()) continue;
    std::ifstream in(file.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(bytes.find(secret.substr(0, 8)), std::string::npos) << file.path();
    EXPECT_EQ(bytes.find({Name(1).data(), 8}), std::string::npos) << file.path();
    struct stat mode = {};
    ASSERT_EQ(stat(file.path().c_str(), &mode), 0);
    EXPECT_EQ(mode.st_mode & 0777, 0600u) << file.path();
  }
  struct stat mode = {};
  ASSERT_EQ(stat(folder.c_str(), &mode), 0);
  EXPECT_EQ(mode.st_mode & 0777, 0700u);
}

TEST_F(KvStoreTest, AnotherIdentityOrKeyFindsNothing) {
  Open()->Put({Name(1), ""}, "one");
  std::unique_ptr<KvStore> other = Open("another model");
  EXPECT_TRUE(other->Names().empty());
  EXPECT_TRUE(absl::IsNotFound(other->Get({Name(1), ""}).status()));
  other.reset();
  // A folder that was copied from another machine has another key.
  fs::remove(Folder() + "/key");
  EXPECT_TRUE(Open()->Names().empty());
}

TEST_F(KvStoreTest, ABlockIsReadWithItsScopeAlone) {
  std::unique_ptr<KvStore> store = Open();
  store->Put({Name(1), "a token"}, "one");
  store->Put({Name(2), ""}, "two");
  store.reset();
  store = Open();
  EXPECT_EQ(*store->Get({Name(1), "a token"}), "one");
  EXPECT_EQ(*store->Get({Name(2), ""}), "two");
  // Whoever has the node's key and the names, but not the token.
  EXPECT_TRUE(absl::IsDataLoss(store->Get({Name(1), ""}).status()));
  EXPECT_TRUE(absl::IsDataLoss(store->Get({Name(2), "a token"}).status()));
}

TEST_F(KvStoreTest, FoldersAreListedAndClearedWhereNobodyHasThemOpen) {
  const auto open = [this](const std::string& model) {
    KvStore::Options options = {.folder = Folder(), .bytes_max = 1 << 20};
    wire::KvCacheAbout* const about = options.identity.mutable_about();
    about->set_model_id(model);
    about->set_model_name("The " + model);
    about->mutable_layers()->set_end(7);
    options.others_bytes_max = 1 << 20;
    return *KvStore::Open(std::move(options));
  };
  for (const char* model : {"one", "two"}) open(model)->Put({Name(1), ""}, std::string(1000, 'x'));
  const std::unique_ptr<KvStore> store = open("three");
  store->Put({Name(1), ""}, "x");
  std::map<std::string, wire::KvCache> caches;
  for (const KvFolder& folder : ListKvFolders(Folder())) {
    caches[folder.cache.about().model_name()] = folder.cache;
  }
  ASSERT_EQ(caches.size(), 3u);
  EXPECT_EQ(caches["The one"].blocks(), 1u);
  EXPECT_EQ(caches["The one"].bytes(), 1000 + kKvSealBytes);
  EXPECT_EQ(caches["The one"].about().layers().end(), 7u);
  EXPECT_NEAR(static_cast<double>(caches["The one"].used_unix_s()),
              static_cast<double>(absl::ToUnixSeconds(WallNow())), 60);
  EXPECT_FALSE(caches["The one"].loaded());
  EXPECT_TRUE(caches["The three"].loaded());

  EXPECT_EQ(ClearKvFolders(Folder(), "one"), 1000 + kKvSealBytes);
  EXPECT_EQ(ListKvFolders(Folder()).size(), 2u);
  EXPECT_EQ(ClearKvFolders(Folder(), ""), 1000 + kKvSealBytes);
  EXPECT_EQ(ListKvFolders(Folder()).size(), 1u) << "that of a stage stays";
  EXPECT_EQ(*store->Get({Name(1), ""}), "x");
  EXPECT_EQ(ClearKvFolders(folder_ + "/nothing", ""), 0u);
}

TEST_F(KvStoreTest, FollowersSeeTheMostRecentlyUsedFirstAndReadWithoutUsing) {
  std::unique_ptr<KvStore> store = Open();
  store->Put({Name(1), ""}, "one");
  store->Put({Name(2), "a token"}, "two");
  store.reset();
  store = Open();
  const auto kept = [&] {
    std::string text;
    for (const KvStore::Kept& block : store->KeptBlocks()) {
      for (const int i : {1, 2, 3}) {
        if (block.name == Name(i)) absl::StrAppend(&text, i, block.scope.value_or("?"), " ");
      }
    }
    return text;
  };
  EXPECT_EQ(kept(), "2? 1? ");
  const uint64_t before = store->AwaitChange(0, absl::ZeroDuration());
  ASSERT_TRUE(store->Get({Name(1), ""}).ok());
  EXPECT_EQ(kept(), "1 2? ");
  const uint64_t after = store->AwaitChange(before, absl::Seconds(10));
  EXPECT_NE(after, before);
  EXPECT_EQ(store->AwaitChange(after, absl::Milliseconds(1)), after);
  store->Put({Name(3), "a token"}, "three");
  EXPECT_NE(store->AwaitChange(after, absl::Seconds(10)), after);

  const auto reader = store->NewReader();
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(*reader->Read({Name(2), "a token"}), "two");
  EXPECT_EQ(*reader->Read({Name(3), "a token"}), "three");
  EXPECT_FALSE(reader->Read({Name(2), ""}).ok()) << "without the token";
  EXPECT_TRUE(absl::IsNotFound(reader->Read({Name(4), ""}).status()));
  EXPECT_EQ(kept(), "3a token 1 2? ") << "reading is not using";
  EXPECT_TRUE(store->TakeLost().empty());
}

TEST_F(KvStoreTest, OneAtATime) {
  const std::unique_ptr<KvStore> store = Open();
  const auto second = KvStore::Open({.folder = Folder(), .identity = IdentityOf("a model")});
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
}

TEST_F(KvStoreTest, MoreThanItsBytesAreLost) {
  std::unique_ptr<KvStore> store = Open("a model", 2500);
  for (int i = 0; i < 2; ++i) store->Put({Name(i), ""}, std::string(1000, 'x'));
  EXPECT_TRUE(store->Get({Name(0), ""}).ok());
  store->Put({Name(2), ""}, std::string(1000, 'x'));
  EXPECT_EQ(store->TakeLost(), std::vector<KvName>{Name(1)}) << "the least recently used one";
  store->Put({Name(3), ""}, std::string(3000, 'x'));
  EXPECT_EQ(store->TakeLost(), std::vector<KvName>{Name(3)}) << "there is never room for it";
  EXPECT_TRUE(store->Get({Name(0), ""}).ok() && store->Get({Name(2), ""}).ok());
  // The same after it was opened again.
  store.reset();
  store = Open("a model", 2500);
  EXPECT_TRUE(store->Get({Name(0), ""}).ok());
  store->Put({Name(4), ""}, std::string(1000, 'x'));
  EXPECT_EQ(store->TakeLost(), std::vector<KvName>{Name(2)});
}

TEST_F(KvStoreTest, StoresOfOtherModelsGoTheOldestFirst) {
  for (const char* identity : {"newer", "old"}) {
    const std::unique_ptr<KvStore> store = Open(identity);
    store->Put({Name(1), ""}, std::string(1000, 'x'));
  }
  const std::string old = Open("old")->folder();
  for (const auto& file : fs::directory_iterator(old)) {
    const timespec times[2] = {{.tv_sec = 1'000'000}, {.tv_sec = 1'000'000}};
    utimensat(AT_FDCWD, file.path().c_str(), times, 0);
  }
  {
    const std::unique_ptr<KvStore> used = Open("used");
    used->Put({Name(1), ""}, std::string(5000, 'x'));
    const std::unique_ptr<KvStore> store = Open("a model", 1000, 1500);
    EXPECT_EQ(*used->Get({Name(1), ""}), std::string(5000, 'x'));
  }
  EXPECT_TRUE(Open("old", 1000, 1 << 20)->Names().empty());
  EXPECT_EQ(Open("newer", 1 << 20, 1 << 20)->Names().size(), 1u);
  EXPECT_TRUE(Open("newer", 1000, 1 << 20)->Names().empty()) << "it has less room now";
}

TEST_F(KvStoreTest, AFolderThatIsRemovedIsMadeAgain) {
  std::unique_ptr<KvStore> store = Open();
  store->Put({Name(1), ""}, "one");
  store.reset();
  store = Open();
  fs::remove_all(store->folder());
  EXPECT_TRUE(absl::IsDataLoss(store->Get({Name(1), ""}).status()) ||
              store->TakeLost() == std::vector<KvName>{Name(1)});
  store->Put({Name(2), ""}, "two");
  store.reset();
  EXPECT_EQ(*Open()->Get({Name(2), ""}), "two");
}

TEST_F(KvStoreTest, AFullOrReadOnlyDiskLosesBlocksAndNothingElse) {
  std::unique_ptr<KvStore> store = Open();
  fs::remove_all(store->folder());
  std::ofstream(store->folder()) << "no folder";  // as good as either
  store->Put({Name(1), ""}, "one");
  std::vector<KvName> lost;
  for (int i = 0; i < 1000 && lost.empty(); ++i) {
    usleep(10'000);
    lost = store->TakeLost();
  }
  EXPECT_EQ(lost, std::vector<KvName>{Name(1)});
  EXPECT_TRUE(absl::IsNotFound(store->Get({Name(1), ""}).status()));
  std::ofstream(folder_ + "/file") << "no folder";
  const auto none = KvStore::Open({.folder = folder_ + "/file", .identity = IdentityOf("a model")});
  EXPECT_FALSE(none.ok());
}

TEST(KvNames, OfStatesTellTheirLengths) {
  std::vector<int32_t> tokens(400);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  const std::vector<uint32_t> lengths = {3, 300, 400};
  const std::vector<KvName> names = KvStateNamesOf("", tokens, lengths);
  ASSERT_EQ(names.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(KvStateLength(names[i]), lengths[i]);
  EXPECT_EQ(KvStateNamesOf("", tokens, {300}).front(), names[1]);
  EXPECT_NE(KvStateNamesOf("token a", tokens, {300}).front(), names[1]);
  ++tokens[100];
  const std::vector<KvName> others = KvStateNamesOf("", tokens, lengths);
  EXPECT_EQ(others[0], names[0]);
  EXPECT_NE(others[1], names[1]);
}

TEST(KvNames, AreOfAllTokensBeforeAndOfTheScope) {
  std::vector<int32_t> tokens(3 * kKvBlockTokens + 5);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  const std::vector<KvName> names = KvNamesOf("", tokens);
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(SplitKvNames(JoinKvNames(names)), names);
  EXPECT_EQ(KvNamesOf("", absl::MakeConstSpan(tokens).first(2 * kKvBlockTokens)),
            std::vector<KvName>(names.begin(), names.end() - 1));
  std::set<KvName> all(names.begin(), names.end());
  const auto add = [&all](const std::vector<KvName>& more) {
    all.insert(more.begin(), more.end());
  };
  add(KvNamesOf("token a", tokens));
  ++tokens[0];
  add(KvNamesOf("", tokens));
  EXPECT_EQ(all.size(), 9u) << "equal names of different blocks";
  --tokens[0];
  ++tokens[2 * kKvBlockTokens];
  const std::vector<KvName> later = KvNamesOf("", tokens);
  EXPECT_EQ(later[1], names[1]);
  EXPECT_NE(later[2], names[2]);
}

// Stores of a model whose stages have other layers.
class KvCutsTest : public KvStoreTest {
 protected:
  static wire::KvIdentity Cut(uint32_t begin, uint32_t end, const std::string& setting = "") {
    wire::KvIdentity identity = IdentityOf(setting);
    identity.mutable_about()->set_model_id("id");
    identity.mutable_about()->mutable_layers()->set_begin(begin);
    identity.mutable_about()->mutable_layers()->set_end(end);
    return identity;
  }
  std::unique_ptr<KvStore> OpenCut(const wire::KvIdentity& identity) {
    auto store = KvStore::Open({.folder = Folder(),
                                .identity = identity,
                                .bytes_max = 1 << 20,
                                .others_bytes_max = 1 << 20});
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return nullptr;
    (*store)->UseCuts([](absl::Span<const KvCuts::Part> parts) -> absl::StatusOr<std::string> {
      std::string joined;
      for (const KvCuts::Part& part : parts) {
        EXPECT_EQ(part.bytes.size(), part.n_layers);
        const auto n = part.layers.end() - part.layers.begin();
        absl::StrAppend(&joined, part.bytes.substr(part.layers.begin(), n));
      }
      if (absl::StrContains(joined, '?')) return absl::InvalidArgumentError("they do not fit");
      if (absl::StrContains(joined, '!')) return absl::ResourceExhaustedError("no memory");
      return joined;
    });
    return *std::move(store);
  }
  // A store that is closed again, with a letter of each layer in each of its blocks.
  void Keep(const wire::KvIdentity& identity, const std::map<int, std::string>& blocks) {
    const auto store = OpenCut(identity);
    for (const auto& [name, bytes] : blocks) store->Put({Name(name), "scope"}, bytes);
  }
  std::string Get(KvStore* store, int name) {
    auto bytes = store->Get({Name(name), "scope"});
    return bytes.ok() ? *bytes : std::string(bytes.status().message());
  }
};

TEST_F(KvCutsTest, BlocksAreMadeOfThoseOfOtherLayers) {
  Keep(Cut(0, 4), {{1, "abcd"}, {2, "ABCD"}, {3, "xxxx"}});
  Keep(Cut(3, 6), {{1, "def"}, {2, "DEF"}});
  Keep(Cut(4, 6), {{1, "ef"}, {4, "EF"}});
  Keep(Cut(0, 6, "another setting"), {{3, "123456"}});
  auto store = OpenCut(Cut(1, 6));
  EXPECT_EQ(store->Names().size(), 2u) << "of 3 and 4 some layers are missing";
  EXPECT_EQ(store->bytes_used(), 0u);
  EXPECT_EQ(Get(store.get(), 1), "bcdef");
  EXPECT_EQ(Get(store.get(), 2), "BCDEF");
  EXPECT_EQ(Get(store.get(), 3), "a KV block is not there");
  EXPECT_EQ(store->TakeLost(), std::vector<KvName>{Name(3)});
  EXPECT_EQ(store->Names().size(), 2u);
  store = nullptr;

  // They are its own now.
  for (const KvFolder& folder : ListKvFolders(Folder())) {
    if (folder.cache.about().layers().begin() != 1) RemoveKvFolder(folder.path);
  }
  store = OpenCut(Cut(1, 6));
  EXPECT_EQ(Get(store.get(), 1), "bcdef");
  // And those of a part of its layers.
  EXPECT_EQ(Get(OpenCut(Cut(2, 4)).get(), 2), "CD");
}

TEST_F(KvCutsTest, WhatIsForgottenOrOfNoUseLeavesTheDisk) {
  Keep(Cut(0, 2), {{1, "ab"}, {2, "?b"}, {3, "ab"}, {4, "a!"}});
  Keep(Cut(2, 4), {{1, "cd"}, {2, "cd"}, {3, "cd"}, {4, "cd"}});
  const auto left = [this] {
    uint64_t n = 0;
    for (const KvFolder& folder : ListKvFolders(Folder())) n += folder.cache.blocks();
    return n;
  };
  const auto store = OpenCut(Cut(0, 4));
  EXPECT_EQ(store->Names().size(), 4u);
  store->Forget(Name(1));
  EXPECT_EQ(left(), 6u);
  EXPECT_EQ(Get(store.get(), 2), "they do not fit");
  EXPECT_EQ(left(), 4u);
  EXPECT_TRUE(absl::IsDataLoss(store->Get({Name(3), "another scope"}).status()));
  EXPECT_EQ(Get(store.get(), 4), "no memory");
  EXPECT_EQ(left(), 2u);
  for (const KvFolder& folder : ListKvFolders(Folder())) fs::remove_all(folder.path);
  EXPECT_TRUE(absl::IsNotFound(store->Get({Name(4), "scope"}).status()));
  EXPECT_EQ(store->TakeLost(), (std::vector<KvName>{Name(2), Name(3), Name(4), Name(4)}));
  EXPECT_TRUE(store->Names().empty());
}

}  // namespace
}  // namespace strata
