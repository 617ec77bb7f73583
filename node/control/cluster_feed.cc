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

absl::StatusOr<ClusterFeed::Texts> TextsOf(const absl::StatusOr<ClusterState>& state) {
  if (!state.ok()) return state.status();
  ClusterFeed::Texts texts = {.cluster = StatusJson(state->report),
                              .models = absl::UnavailableError("")};
  texts.cluster.pop_back();  // the line's end
  if (!state->models.ok()) {
    texts.models = state->models.status();
    return texts;
  }
  nlohmann::json models = nlohmann::json::array();
  for (const wire::ModelStatus& model : *state->models) models.push_back(ModelJson(model));
  texts.models = JsonText(nlohmann::json{{"models", std::move(models)}});
  return texts;
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

absl::Status ClusterFeed::Look(OnTexts then) {
  absl::MutexLock lock(mu_);
  if (waiting_.size() >= kLooksWaitingMax) {
    return absl::ResourceExhaustedError("too many look at the cluster at a time; try again");
  }
  waiting_.push_back(std::move(then));
  return absl::OkStatus();
}

absl::Status ClusterFeed::Watch(absl::string_view last_id, HttpResponse head,
                                std::shared_ptr<HttpResponder> responder) {
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
    const absl::StatusOr<Texts> texts = TextsOf(state);
    std::vector<OnTexts> waiting;
    {
      absl::MutexLock lock(mu_);
      waiting.swap(waiting_);
      Publish(state, texts);
    }
    for (OnTexts& then : waiting) std::move(then)(texts);
  }
}

void ClusterFeed::Publish(const absl::StatusOr<ClusterState>& state,
                          const absl::StatusOr<Texts>& texts) {
  if (watchers_.empty()) return;  // what happens while nobody watches is seen at the next look
  std::string events;
  if (!texts.ok()) {
    events = ProblemEvent(texts.status());
  } else {
    events = log_.Update(state->report, state->models.ok() ? &*state->models : nullptr, WallNow());
    if (texts->cluster != cluster_) {
      cluster_ = texts->cluster;
      ++cluster_version_;
    }
    if (!texts->models.ok()) {
      absl::StrAppend(&events, ProblemEvent(texts->models.status()));
    } else if (*texts->models != models_) {
      models_ = *texts->models;
      ++models_version_;
    }
    next_ += options_.every *
             static_cast<int64_t>((cluster_.size() + models_.size()) / kWatchBytesPerSecond);
  }
  const std::string cluster = ServerSentEvent("cluster", cluster_);
  const std::string models = ServerSentEvent("models", models_);
  for (Watcher& watcher : watchers_) {
    std::string text;
    if (texts.ok() && std::exchange(watcher.cluster, cluster_version_) != cluster_version_) {
      text += cluster;
    }
    if (texts.ok() && std::exchange(watcher.models, models_version_) != models_version_) {
      text += models;
    }
    absl::StrAppend(&text, events);
    if (!text.empty()) watcher.responder->Write(text);
  }
}

}  // namespace strata
