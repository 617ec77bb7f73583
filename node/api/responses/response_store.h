// Responses that their clients may read again, and go on from: in memory, on the node that
// generated them. The one that was not used for longest goes first.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace strata {

inline constexpr size_t kStoredResponsesMax = 1024;
inline constexpr size_t kStoredResponseBytesMax = 64u << 20;  // of all of them

struct StoredResponse {
  std::string response;  // JSON's text
  std::string output;    // of its items, a list
  // JSON's text of a list: the items that it was generated from, those of earlier turns included.
  std::string input;
  std::vector<std::string> output_ids;  // of the response's items
};

// Thread-safe. A client sees its own responses only.
class ResponseStore {
 public:
  struct Limits {
    size_t responses = kStoredResponsesMax;
    size_t bytes = kStoredResponseBytesMax;
  };
  ResponseStore() : ResponseStore(Limits()) {}
  explicit ResponseStore(Limits limits) : limits_(limits) {}

  // One that exceeds the limits by itself is not kept.
  void Put(const std::string& client, const std::string& id, StoredResponse response);
  // Null: there is none, or no longer.
  std::shared_ptr<const StoredResponse> Find(const std::string& client, const std::string& id);
  // The response that has this item in its output; null: none.
  std::shared_ptr<const StoredResponse> FindByItem(const std::string& client,
                                                   const std::string& item_id);
  // False: there is none.
  bool Erase(const std::string& client, const std::string& id);

 private:
  struct Entry {
    std::string client, id;
    std::shared_ptr<const StoredResponse> response;  // shared with those who found it
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // the one used last is first

  std::shared_ptr<const StoredResponse> Use(const std::string& client, Entries::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  absl::Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Entries::iterator> by_id_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Entries::iterator> by_item_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata
