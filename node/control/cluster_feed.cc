#include "node/control/cluster_feed.h"

#include <algorithm>
#include <utility>

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

absl::StatusOr<ClusterFeed::StateJson> JsonOf(const absl::StatusOr<ClusterState>& state) {
  if (!state.ok()) return state.status();
  ClusterFeed::StateJson json = {.cluster = StatusJson(state->report),
                                 .models = absl::UnavailableError("")};
  json.cluster.pop_back();  // the line's end
  if (!state->models.ok()) {
    json.models = state->models.status();
    return json;
  }
  nlohmann::json models = nlohmann::json::array();
  for (const wire::ModelStatus& model : *state->models) models.push_back(ModelJson(model));
  json.models = JsonText(nlohmann::json{{"models", std::move(models)}});
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
  const bool has_cluster = std::exchange(cluster_, json->cluster) != json->cluster;
  const bool has_models =
      json->models.ok() && std::exchange(models_, *json->models) != *json->models;
  next_ += options_.every *
           static_cast<int64_t>((cluster_.size() + models_.size()) / kWatchBytesPerSecond);
  for (Watcher& watcher : watchers_) {
    const bool is_new = std::exchange(watcher.is_new, false);
    std::string text;
    if (has_cluster || is_new) text += ServerSentEvent("cluster", cluster_);
    if (has_models || (is_new && !models_.empty())) text += ServerSentEvent("models", models_);
    absl::StrAppend(&text, events);
    if (!text.empty()) watcher.responder->Write(text);
  }
}

}  // namespace strata
