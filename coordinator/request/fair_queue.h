// The queue in which clients' requests wait, wherever they do: for a slot, for their tokens, or for
// a coordinator. One client cannot keep the others waiting:
//   - requests that have begun go first, in their order: their clients are in the middle of an
//     answer;
//   - of the others, clients take turns: the client that was served longest ago is next with its
//     first request, and a client that is new is served after those that wait already;
//   - the queue has a bound, of which the new requests of one client fill three quarters at most.
// Holds numbers, not requests. A value without clock; not thread-safe.
//
//   if (absl::Status full = queue.Add(id, client); !full.ok()) return full;
//   while (const auto next = queue.Next()) queue.Leave(*next, clients[*next]);  // all of them
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace strata {

class FairQueue {
 public:
  explicit FairQueue(size_t waiting_max) : waiting_max_(waiting_max) {}

  // Adds request `id` of `client`, behind its other ones; `begun`: behind all that have begun.
  // kResourceExhausted: the queue is full; AsOfOneClient(): the client's part of it. REQUIRES: no
  // request that has not left has this number.
  absl::Status Add(uint64_t id, const std::string& client, bool begun = false);
  // The request whose turn it is of those that `may` have one: of each client, only its first one
  // is asked for. It stays in the queue. nullopt: none.
  using Filter = absl::FunctionRef<bool(uint64_t id)>;
  std::optional<uint64_t> NextBegun(Filter may) const;
  std::optional<uint64_t> NextNew(Filter may) const;
  std::optional<uint64_t> Next() const;
  // Request `id`, which waits, has its turn, and its client the next one after all others.
  void Take(uint64_t id, const std::string& client);
  // A request that has had its turn has lost it again: it is before all others, beyond the bound.
  void PutBack(uint64_t id) { begun_.push_front(id); }
  // The request has ended, whether it waits or has had its turn. True: the client has no other, and
  // is forgotten. REQUIRES: once for each Add() that returned OK.
  bool Leave(uint64_t id, const std::string& client);

  size_t size() const { return n_new_ + begun_.size(); }  // requests that wait
  size_t n_begun() const { return begun_.size(); }

 private:
  struct Client {
    std::deque<uint64_t> waiting;
    size_t n_requests = 0;  // that have not left
    uint64_t turn = 0;      // rises
  };

  // True: it waited among the client's new requests.
  bool Remove(uint64_t id, Client* client);

  const size_t waiting_max_;
  uint64_t last_turn_ = 0;
  size_t n_new_ = 0;
  std::deque<uint64_t> begun_;
  std::map<std::string, Client> clients_;      // with at least one request
  std::map<uint64_t, const Client*> by_turn_;  // those with new requests that wait
};

}  // namespace strata
