#include "node/cli/cache_command.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

wire::ListKeptPromptsResponse Kept() {
  wire::ListKeptPromptsResponse kept;
  wire::KeptPrompts* const node = kept.add_nodes();
  node->set_node(std::string(16, '\x01'));
  node->set_node_name("kitchen");
  node->mutable_kept()->set_bytes_max(uint64_t{2} << 30);
  wire::KvCache* cache = node->mutable_kept()->add_caches();
  cache->mutable_about()->set_model_id(std::string(32, '\x0a'));
  cache->mutable_about()->set_model_name("Tiny");
  cache->mutable_about()->mutable_layers()->set_end(4);
  cache->set_bytes(3 << 20);
  cache->set_blocks(12);
  cache->set_loaded(true);
  cache->set_used_unix_s(1'800'000'000);
  node->mutable_kept()->add_caches()->set_blocks(1);  // of a folder that tells nothing
  node->mutable_kept()->add_caches();                 // and of an empty one
  kept.add_nodes()->set_node_name("attic");
  kept.add_silent("cellar");
  return kept;
}

TEST(CacheCommand, TheTableShowsWhatEachNodeKeeps) {
  const std::string table = KeptPromptsTable(Kept());
  EXPECT_THAT(table, ContainsRegex("kitchen  Tiny   0-3     3.0 MiB  2027-01-1[45] ..:..  loaded"));
  EXPECT_THAT(table, HasSubstr("kitchen  ?"));
  EXPECT_EQ(std::ranges::count(table, '\n'), 4) << table;
  EXPECT_THAT(table, HasSubstr("kitchen keeps 3.0 MiB, at most 2.0 GiB; attic keeps 0"));
}

TEST(CacheCommand, JsonHasCompleteIds) {
  const auto json = nlohmann::json::parse(KeptPromptsJson(Kept()));
  ASSERT_EQ(json["nodes"].size(), 2u);
  EXPECT_EQ(json["nodes"][0]["id"], "01010101010101010101010101010101");
  const nlohmann::json& cache = json["nodes"][0]["caches"][0];
  EXPECT_EQ(cache["model_id"].get<std::string>().size(), 64u);
  EXPECT_EQ(cache["layers"], nlohmann::json({0, 4}));
  EXPECT_EQ(cache["bytes"], 3 << 20);
  EXPECT_EQ(json["silent"][0], "cellar");
}

}  // namespace
}  // namespace strata
