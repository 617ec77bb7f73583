#include "node/api/responses/response_store.h"

#include <iterator>
#include <utility>

namespace strata {
namespace {

constexpr size_t kEntryBytes = 512;   // about what the containers take for a response
constexpr size_t kItemIdBytes = 192;  // and for the id of an item

size_t BytesOf(const std::string& client, const std::string& id, const StoredResponse& response) {
  size_t bytes = kEntryBytes + client.size() + 2 * id.size() + response.response.size() +
                 response.output.size() + response.input.size();
  for (const std::string& item : response.output_ids) bytes += kItemIdBytes + 2 * item.size();
  return bytes;
}

}  // namespace

void ResponseStore::Put(const std::string& client, const std::string& id, StoredResponse response) {
  const size_t bytes = BytesOf(client, id, response);
  absl::MutexLock lock(mu_);
  if (const auto old = by_id_.find(id); old != by_id_.end()) Remove(old->second);
  if (bytes > limits_.bytes || limits_.responses == 0) return;
  while (entries_.size() >= limits_.responses || bytes_ + bytes > limits_.bytes) {
    Remove(std::prev(entries_.end()));
  }
  entries_.push_front({.client = client,
                       .id = id,
                       .response = std::make_shared<const StoredResponse>(std::move(response)),
                       .bytes = bytes});
  bytes_ += bytes;
  by_id_[id] = entries_.begin();
  for (const std::string& item : entries_.front().response->output_ids) {
    by_item_[item] = entries_.begin();
  }
}

std::shared_ptr<const StoredResponse> ResponseStore::Find(const std::string& client,
                                                          const std::string& id) {
  absl::MutexLock lock(mu_);
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : Use(client, found->second);
}

std::shared_ptr<const StoredResponse> ResponseStore::FindByItem(const std::string& client,
                                                                const std::string& item_id) {
  absl::MutexLock lock(mu_);
  const auto found = by_item_.find(item_id);
  return found == by_item_.end() ? nullptr : Use(client, found->second);
}

bool ResponseStore::Erase(const std::string& client, const std::string& id) {
  absl::MutexLock lock(mu_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->client != client) return false;
  Remove(found->second);
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::Use(const std::string& client,
                                                         Entries::iterator entry) {
  if (entry->client != client) return nullptr;
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->response;
}

void ResponseStore::Remove(Entries::iterator entry) {
  for (const std::string& item : entry->response->output_ids) {
    const auto found = by_item_.find(item);
    if (found != by_item_.end() && found->second == entry) by_item_.erase(found);
  }
  by_id_.erase(entry->id);
  bytes_ -= entry->bytes;
  entries_.erase(entry);
}

}  // namespace strata
