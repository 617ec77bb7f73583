// Whose prompt is made next, by a few processes (template_pool.h), so that no model's template and
// no client's messages keep the others waiting. Does no work and knows no clock: times are those of
// a steady clock, from any start.
//
// Of the prompts that may start, the next is the one whose model and client have together used
// least of the processes lately; of equals, the one that came first. What may start:
//   - a model or a client has all processes but one at most: one is kept for whoever comes;
//   - where prompts of that model, client and size were slow lately, a model and a client have one
//     process for such at a time, and all such prompts together all processes but one.
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

// What all, one model and one client have waiting at most.
inline constexpr size_t kTemplatesWaitingMax = 256;  // requests
inline constexpr size_t kTemplatesWaitingOfModelMax = kTemplatesWaitingMax / 2;
inline constexpr size_t kTemplatesWaitingOfClientMax = kTemplatesWaitingMax / 4;
inline constexpr size_t kTemplateBytesWaitingMax = 256 * 1024 * 1024;
inline constexpr size_t kTemplateBytesWaitingOfClientMax = kTemplateBytesWaitingMax / 2;
// Whose use is remembered.
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
    size_t processes = 3;  // how many run at a time at most; at least one
    size_t waiting_max = kTemplatesWaitingMax;
    absl::Duration slow = absl::Milliseconds(250);  // a prompt that takes longer is slow
    size_t large = 64 * 1024;  // one of more bytes says nothing of how slow smaller ones are
  };
  struct Whose {
    std::string model;
    std::string client;
  };
  using Id = uint64_t;

  explicit TemplateTurns(Options options) : options_(options) {}

  // A prompt of messages of so many bytes waits. kResourceExhausted, as AsOfOneClient(): this
  // client's own that wait are too many; kUnavailable: the model's or all are.
  absl::StatusOr<Id> Add(Whose whose, size_t bytes);
  // The next that may start; it runs from now on. nullopt: none. Where none runs, one may.
  std::optional<Id> Start(absl::Duration now);
  // Whether Start() has one.
  bool MayStart(absl::Duration now) const { return Next(now) != waiting_.end(); }
  // One that runs has ended, and has used so much of a processor.
  void End(Id id, absl::Duration used, absl::Duration now);

  size_t waiting() const { return waiting_.size(); }

 private:
  struct Prompt {
    Whose whose;
    size_t bytes = 0;
    bool slow = false;     // its like were when it started
    absl::Duration since;  // that it runs
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
  absl::Duration UsedBy(const Whose& whose, absl::Duration now) const;

  const Options options_;
  Id last_id_ = 0;
  Prompts waiting_;  // in the order in which they came
  Prompts running_;
  std::map<std::string, Model> models_;
  std::map<std::string, FadingAmount> clients_;  // what they used
  std::map<Kind, FadingAmount> longest_;         // of one prompt
};

}  // namespace strata
