// Fair queueing of prompts on a few processes (template_pool.h), so that no model's template and no
// client's messages keep the others waiting. Does no work and reads no clock: times are those of a
// steady clock, from any start.
//
// Of the prompts that may start, the next is the one whose model and client have together used
// least processor time lately; of equals, the one that came first. A prompt may start if:
//   - its model and its client each run on fewer than all processes but one: one stays free for
//     others;
//   - or, where prompts of that model, client and size were slow lately: no slow prompt of its
//   model
//     or its client runs, and slow prompts together run on fewer than all processes but one.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace strata {

// Limits of waiting requests: of all, of one model and of one client.
inline constexpr size_t kTemplatesWaitingMax = 256;  // requests
inline constexpr size_t kTemplatesWaitingOfModelMax = kTemplatesWaitingMax / 2;
inline constexpr size_t kTemplatesWaitingOfClientMax = kTemplatesWaitingMax / 4;
inline constexpr size_t kTemplateBytesWaitingMax = 256 * 1024 * 1024;
inline constexpr size_t kTemplateBytesWaitingOfClientMax = kTemplateBytesWaitingMax / 2;
// Models and clients whose use is remembered.
inline constexpr size_t kTemplateUsersMax = 1024;

// An amount that halves every kHalfLife.
class FadingAmount {
 public:
  static constexpr absl::Duration kHalfLife = absl::Seconds(15);
  absl::Duration At(absl::Duration now) const;
  void Add(absl::Duration amount, absl::Duration now) { Set(At(now) + amount, now); }
  void Raise(absl::Duration amount, absl::Duration now) { Set(std::max(At(now), amount), now); }

 private:
  void Set(absl::Duration amount, absl::Duration now) {
    amount_ = amount;
    since_ = now;
  }
  absl::Duration amount_, since_;
};

class TemplateTurns {
 public:
  struct Options {
    size_t processes = 3;  // prompts that run at a time at most; at least one
    size_t waiting_max = kTemplatesWaitingMax;
    absl::Duration slow = absl::Milliseconds(250);  // a prompt that takes longer is slow
    size_t large = 64 * 1024;  // larger prompts do not count for the slowness of smaller ones
  };
  struct Owner {
    std::string model;
    std::string client;
  };
  using Id = uint64_t;

  explicit TemplateTurns(Options options) : options_(options) {}

  // Queues a prompt of messages of so many bytes. kResourceExhausted, as AsOfOneClient(): too many
  // of this client wait; kUnavailable: too many of the model or of all wait.
  absl::StatusOr<Id> Add(Owner owner, size_t bytes);
  // Starts the next prompt that may start. nullopt: none. Where none runs, a waiting one may start.
  std::optional<Id> Start(absl::Duration now);
  // Whether Start() would start one.
  bool MayStart(absl::Duration now) const { return Next(now) != waiting_.end(); }
  // A running prompt has ended, and has used so much processor time.
  void End(Id id, absl::Duration used, absl::Duration now);

  size_t waiting() const { return waiting_.size(); }

 private:
  struct Prompt {
    Owner owner;
    size_t bytes = 0;
    bool slow = false;     // prompts of its kind were slow when it started
    absl::Duration since;  // its start
  };
  using Prompts = std::map<Id, Prompt>;
  struct Model {
    FadingAmount used;
    std::array<FadingAmount, 2> longest;  // of one prompt: small, large
  };
  using Kind = std::tuple<std::string, std::string, bool>;  // model, client, large

  bool IsLarge(const Prompt& prompt) const { return prompt.bytes > options_.large; }
  Prompts::const_iterator Next(absl::Duration now) const;
  bool Allowed(const Prompt& prompt, absl::Duration now) const;
  bool WasSlow(const Prompt& prompt, absl::Duration now) const;
  absl::Duration UsedBy(const Owner& owner, absl::Duration now) const;

  const Options options_;
  Id last_id_ = 0;
  Prompts waiting_;  // in the order in which they came
  Prompts running_;
  std::map<std::string, Model> models_;
  std::map<std::string, FadingAmount> clients_;  // processor time used
  std::map<Kind, FadingAmount> longest_;         // of one prompt
};

}  // namespace strata
