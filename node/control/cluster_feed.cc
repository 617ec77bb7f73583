#include "node/control/cluster_feed.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/openai/openai_error.h"
#include "node/api/server_sent_events.h"
#include "node/status/model_json.h"
#include "node/status/status.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

using Json = nlohmann::json;

// Fields that differ at each look, though nothing happens.
constexpr std::array kAges = {"idle_ms", "loaded_s_ago", "told_ms"};
// A change of a device's free memory by less than this part of all its memory is not sent.
constexpr double kMemoryStep = 1.0 / 256;

bool IsSameMemory(const Json& device, uint64_t before, uint64_t now) {
  const auto total = device.value("memory_total", uint64_t{0});
  return static_cast<double>(std::max(before, now) - std::min(before, now)) <
         kMemoryStep * static_cast<double>(total);
}

// Whether two states are the same but for what kAges and kMemoryStep leave out.
bool IsSameState(const Json& before, const Json& now) {
  if (before.type() != now.type() || before.size() != now.size()) return false;
  if (now.is_array()) return std::ranges::equal(before, now, IsSameState);
  if (!now.is_object()) return before == now;
  return std::ranges::all_of(now.items(), [&](const auto& item) {
    const auto old = before.find(item.key());
    if (old == before.end()) return false;
    if (absl::c_linear_search(kAges, item.key())) return true;
    if (item.key() == "memory_free") return IsSameMemory(now, *old, item.value());
    return IsSameState(*old, item.value());
  });
}

absl::StatusOr<ClusterFeed::StateJson> JsonOf(const absl::StatusOr<ClusterState>& state) {
  if (!state.ok()) return state.status();
  const std::vector<wire::ModelStatus> loaded =
      state->models.value_or(std::vector<wire::ModelStatus>());
  ClusterFeed::StateJson json = {.cluster = StatusJson(state->report, loaded),
                                 .models = absl::UnavailableError("")};
  if (!state->models.ok()) {
    json.models = state->models.status();
    return json;
  }
  Json models = Json::array();
  for (const wire::ModelStatus& model : loaded) models.push_back(ModelJson(model));
  json.models = Json{{"models", std::move(models)}};
  return json;
}

std::string ProblemEvent(const absl::Status& status) {
  return ServerSentEvent("problem", OpenAiError(ErrorOf(status)));
}

}  // namespace

ClusterFeed::ClusterFeed(Options options)
    : options_(std::move(options)), log_(options_.origin), thread_([this] { Run(); }) {}

ClusterFeed::~ClusterFeed() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status ClusterFeed::Look(OnState then) {
  absl::MutexLock lock(mu_);
  if (waiting_.size() >= kLooksWaitingMax) {
    return absl::ResourceExhaustedError("too many look at the cluster at a time; try again");
  }
  waiting_.push_back(std::move(then));
  return absl::OkStatus();
}

absl::Status ClusterFeed::Watch(absl::string_view last_id, HttpResponse head,
                                const std::shared_ptr<HttpResponder>& responder) {
  std::list<Watcher>::iterator at;
  {
    absl::MutexLock lock(mu_);
    if (watchers_.size() >= kWatchersMax) {
      return absl::ResourceExhaustedError("too many watch the cluster at a time");
    }
    absl::StrAppend(&head.body, "retry: 2000\n\n", log_.After(last_id));
    responder->Begin(std::move(head));
    at = watchers_.insert(watchers_.end(), Watcher{.responder = responder});
    is_new_ = true;
  }
  responder->OnGone([this, at] {
    absl::MutexLock lock(mu_);
    watchers_.erase(at);
  });
  return absl::OkStatus();
}

void ClusterFeed::Run() {
  while (true) {
    {
      absl::MutexLock lock(mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || !waiting_.empty() || !watchers_.empty();
      };
      mu_.Await(absl::Condition(&wanted));
      const auto at_once = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || !waiting_.empty() || is_new_;
      };
      mu_.AwaitWithTimeout(absl::Condition(&at_once),
                           std::max(next_ - SteadyTime::Now(), absl::ZeroDuration()));
      if (stopping_) return;
      next_ = SteadyTime::Now() + options_.every;
      is_new_ = false;
    }
    const absl::StatusOr<ClusterState> state = options_.fetch();
    const absl::StatusOr<StateJson> json = JsonOf(state);
    std::vector<OnState> waiting;
    {
      absl::MutexLock lock(mu_);
      waiting.swap(waiting_);
      Publish(state, json);
    }
    for (OnState& then : waiting) std::move(then)(json);
  }
}

void ClusterFeed::Update(Json now, const char* type, bool any_is_new, Published* published) {
  published->has_changed = !IsSameState(published->json, now);
  if (published->has_changed || any_is_new) {
    published->event = ServerSentEvent(type, JsonText(now));
  }
  if (published->has_changed) published->json = std::move(now);
}

void ClusterFeed::Publish(const absl::StatusOr<ClusterState>& state,
                          const absl::StatusOr<StateJson>& json) {
  if (watchers_.empty()) return;  // what happens while nobody watches is seen at the next look
  if (!json.ok()) {
    const std::string problem = ProblemEvent(json.status());
    for (Watcher& watcher : watchers_) watcher.responder->Write(problem);
    return;
  }
  std::string events =
      log_.Update(state->report, state->models.ok() ? &*state->models : nullptr, WallNow());
  if (!json->models.ok()) absl::StrAppend(&events, ProblemEvent(json->models.status()));
  const bool any_is_new = std::ranges::any_of(watchers_, &Watcher::is_new);
  Update(json->cluster, "cluster", any_is_new, &cluster_);
  models_.has_changed = false;
  if (json->models.ok()) Update(*json->models, "models", any_is_new, &models_);
  next_ += options_.every * static_cast<int64_t>((cluster_.event.size() + models_.event.size()) /
                                                 kWatchBytesPerSecond);
  for (Watcher& watcher : watchers_) {
    const bool is_new = std::exchange(watcher.is_new, false);
    std::string text;
    for (const Published* published : {&cluster_, &models_}) {
      if (published->has_changed || is_new) text += published->event;
    }
    absl::StrAppend(&text, events);
    if (!text.empty()) watcher.responder->Write(text);
  }
}

}  // namespace strata
