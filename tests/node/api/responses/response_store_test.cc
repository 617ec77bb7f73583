#include "node/api/responses/response_store.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

StoredResponse Response(const std::string& text, std::vector<std::string> items = {}) {
  return {.response = text, .output = "[]", .input = "[]", .output_ids = std::move(items)};
}

TEST(ResponseStore, KeepsAResponseForItsClientAlone) {
  ResponseStore store;
  store.Put("ann", "resp_1", Response("one", {"msg_1"}));
  ASSERT_NE(store.Find("ann", "resp_1"), nullptr);
  EXPECT_EQ(store.Find("ann", "resp_1")->response, "one");
  EXPECT_EQ(store.FindByItem("ann", "msg_1")->response, "one");
  EXPECT_EQ(store.Find("bob", "resp_1"), nullptr);
  EXPECT_EQ(store.FindByItem("bob", "msg_1"), nullptr);
  EXPECT_FALSE(store.Erase("bob", "resp_1"));
  EXPECT_NE(store.Find("ann", "resp_1"), nullptr);
}

TEST(ResponseStore, ErasesAResponseAndItsItems) {
  ResponseStore store;
  store.Put("ann", "resp_1", Response("one", {"msg_1"}));
  EXPECT_TRUE(store.Erase("ann", "resp_1"));
  EXPECT_EQ(store.Find("ann", "resp_1"), nullptr);
  EXPECT_EQ(store.FindByItem("ann", "msg_1"), nullptr);
  EXPECT_FALSE(store.Erase("ann", "resp_1"));
}

TEST(ResponseStore, DropsTheOneThatWasNotUsedForLongest) {
  ResponseStore store({.responses = 2});
  store.Put("ann", "1", Response("one", {"a"}));
  store.Put("ann", "2", Response("two"));
  EXPECT_NE(store.Find("ann", "1"), nullptr);
  EXPECT_EQ(store.Find("bob", "2"), nullptr);  // no use of it
  store.Put("ann", "3", Response("three"));
  EXPECT_NE(store.Find("ann", "1"), nullptr);
  EXPECT_EQ(store.Find("ann", "2"), nullptr);
  EXPECT_NE(store.FindByItem("ann", "a"), nullptr);
  EXPECT_NE(store.Find("ann", "3"), nullptr);
}

TEST(ResponseStore, HoldsNoMoreBytesThanItMay) {
  ResponseStore store({.bytes = 10'000});
  for (int i = 0; i < 10; ++i) {
    store.Put("ann", absl::StrCat(i), Response(std::string(2'500, 'x')));
  }
  int kept = 0;
  for (int i = 0; i < 10; ++i) kept += store.Find("ann", absl::StrCat(i)) != nullptr ? 1 : 0;
  EXPECT_EQ(kept, 3);
  EXPECT_NE(store.Find("ann", "9"), nullptr);
  store.Put("ann", "large", Response(std::string(10'000, 'x')));
  EXPECT_EQ(store.Find("ann", "large"), nullptr);
  EXPECT_NE(store.Find("ann", "9"), nullptr);  // it did not give way
}

TEST(ResponseStore, AResponseThatWasFoundOutlivesItsPlace) {
  ResponseStore store({.responses = 1});
  store.Put("ann", "1", Response("one"));
  const auto found = store.Find("ann", "1");
  store.Put("ann", "2", Response("two"));
  EXPECT_EQ(found->response, "one");
}

TEST(ResponseStore, IsUsedFromSeveralThreads) {
  ResponseStore store({.responses = 8});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, &wrong, t] {
      for (int i = 0; i < 500; ++i) {
        const std::string id = absl::StrCat(t, "/", i), item = absl::StrCat("item ", id);
        store.Put("ann", id, Response(id, {item}));
        const auto found = store.FindByItem("ann", item);
        if (found != nullptr && found->response != id) ++wrong;
        if (i % 3 == 0) store.Erase("ann", id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace strata
