#include "node/chat/template_turns.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"

namespace strata {
namespace {

constexpr int64_t kTurnRetryMs = 1'000;
// Smaller amounts count as zero: prompts of light users are served in the order in which they came.
constexpr absl::Duration kLittle = absl::Milliseconds(10);

absl::Status TooMany(const char* of) {
  return WithRetryAfterMs(absl::UnavailableError(absl::StrCat(
                              "too many requests", of, " wait for their prompts; try again")),
                          kTurnRetryMs);
}

// Makes room for one more.
template <typename Map, typename AmountOf>
void ForgetSome(Map* map, absl::Duration now, AmountOf amount_of) {
  if (map->size() < kTemplateUsersMax) return;
  std::erase_if(*map, [&](const auto& each) { return amount_of(each.second).At(now) < kLittle; });
  if (map->size() >= kTemplateUsersMax) map->clear();
}

}  // namespace

absl::Duration FadingAmount::At(absl::Duration now) const {
  if (amount_ == absl::ZeroDuration()) return amount_;
  return amount_ * std::exp2(-absl::FDivDuration(now - since_, kHalfLife));
}

absl::StatusOr<TemplateTurns::Id> TemplateTurns::Add(Owner owner, size_t bytes) {
  size_t of_model = 0, of_client = 0, all_bytes = bytes, client_bytes = bytes;
  for (const auto& [id, other] : waiting_) {
    of_model += other.owner.model == owner.model ? 1 : 0;
    all_bytes += other.bytes;
    if (other.owner.client != owner.client) continue;
    ++of_client;
    client_bytes += other.bytes;
  }
  if (of_client >= kTemplatesWaitingOfClientMax ||
      (of_client > 0 && client_bytes > kTemplateBytesWaitingOfClientMax)) {
    return AsOfOneClient(WithRetryAfterMs(
        absl::ResourceExhaustedError(absl::StrCat(
            of_client, " requests of this client wait for their prompts; try again later")),
        kTurnRetryMs));
  }
  if (of_model >= kTemplatesWaitingOfModelMax) return TooMany(" for this model");
  if (waiting_.size() >= options_.waiting_max || all_bytes > kTemplateBytesWaitingMax) {
    return TooMany("");
  }
  waiting_.emplace(++last_id_, Prompt{.owner = std::move(owner), .bytes = bytes});
  return last_id_;
}

bool TemplateTurns::WasSlow(const Prompt& prompt, absl::Duration now) const {
  const auto [model_name, client] = prompt.owner;
  const bool large = IsLarge(prompt);
  if (const auto own = longest_.find({model_name, client, large}); own != longest_.end()) {
    return own->second.At(now) > options_.slow;
  }
  // For a client that is new to the model, the model's slowness with other clients is assumed.
  const auto model = models_.find(model_name);
  return model != models_.end() && model->second.longest[large ? 1 : 0].At(now) > options_.slow;
}

bool TemplateTurns::Allowed(const Prompt& prompt, absl::Duration now) const {
  const size_t most = std::max<size_t>(options_.processes, 2) - 1;
  if (running_.size() >= std::max<size_t>(options_.processes, 1)) return false;
  size_t of_model = 0, of_client = 0, slow = 0;
  bool slow_of_either = false;
  for (const auto& [id, other] : running_) {
    const bool same_model = other.owner.model == prompt.owner.model;
    const bool same_client = other.owner.client == prompt.owner.client;
    const bool is_slow = other.slow || now - other.since > options_.slow;
    of_model += same_model ? 1 : 0;
    of_client += same_client ? 1 : 0;
    slow += is_slow ? 1 : 0;
    slow_of_either = slow_of_either || (is_slow && (same_model || same_client));
  }
  if (of_model >= most || of_client >= most) return false;
  return !WasSlow(prompt, now) || (slow < most && !slow_of_either);
}

absl::Duration TemplateTurns::UsedBy(const Owner& owner, absl::Duration now) const {
  const auto model = models_.find(owner.model);
  const auto client = clients_.find(owner.client);
  absl::Duration used;
  if (model != models_.end()) used += model->second.used.At(now);
  if (client != clients_.end()) used += client->second.At(now);
  return absl::Floor(used, kLittle);
}

TemplateTurns::Prompts::const_iterator TemplateTurns::Next(absl::Duration now) const {
  auto next = waiting_.end();
  absl::Duration least = absl::InfiniteDuration();
  for (auto each = waiting_.begin(); each != waiting_.end(); ++each) {
    if (!Allowed(each->second, now)) continue;
    const absl::Duration used = UsedBy(each->second.owner, now);
    if (used >= least) continue;
    next = each;
    least = used;
  }
  return next;
}

std::optional<TemplateTurns::Id> TemplateTurns::Start(absl::Duration now) {
  const auto next = Next(now);
  if (next == waiting_.end()) return std::nullopt;
  const Id id = next->first;
  Prompt prompt = next->second;
  prompt.slow = WasSlow(prompt, now);
  prompt.since = now;
  waiting_.erase(next);
  running_.emplace(id, std::move(prompt));
  return id;
}

void TemplateTurns::End(Id id, absl::Duration used, absl::Duration now) {
  const auto ended = running_.find(id);
  if (ended == running_.end()) return;
  const Prompt prompt = std::move(ended->second);
  running_.erase(ended);
  const auto same = [](const FadingAmount& amount) { return amount; };
  ForgetSome(&models_, now, [](const Model& model) { return model.used; });
  ForgetSome(&clients_, now, same);
  ForgetSome(&longest_, now, same);
  const bool large = IsLarge(prompt);
  Model& model = models_[prompt.owner.model];
  model.used.Add(used, now);
  model.longest[large ? 1 : 0].Raise(used, now);
  clients_[prompt.owner.client].Add(used, now);
  longest_[{prompt.owner.model, prompt.owner.client, large}].Raise(used, now);
}

}  // namespace strata
