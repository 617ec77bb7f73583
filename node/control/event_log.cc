#include "node/control/event_log.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/server_sent_events.h"

namespace strata {

void EventLog::Add(const char* kind, nlohmann::json details, absl::Time now) {
  details["kind"] = kind;
  details["at_ms"] = absl::ToUnixMillis(now);
  events_.push_back(absl::StrCat("id: ", origin_, "-", next_++, "\n",
                                 ServerSentEvent("event", JsonText(details))));
  if (events_.size() > kEventsKeptMax) events_.pop_front();
}

void EventLog::UpdateNodes(const ClusterSnapshot& report, absl::Time now) {
  std::map<std::string, Node> nodes;
  for (const NodeReport& node : report.nodes) {
    const bool is_there = node.seen.state() == "alive" || node.seen.state() == "suspected";
    nodes[node.id()] = {.name = node.name(), .is_there = is_there};
  }
  const std::string coordinator = report.cluster.coordinator();
  if (std::exchange(has_nodes_, true)) {
    for (const auto& [id, node] : nodes) {
      const auto before = nodes_.find(id);
      const bool was_there = before != nodes_.end() && before->second.is_there;
      if (node.is_there == was_there) continue;
      Add(node.is_there ? "node_joined" : "node_lost", {{"node", node.name}}, now);
    }
    for (const auto& [id, node] : nodes_) {
      if (node.is_there && !nodes.contains(id)) Add("node_lost", {{"node", node.name}}, now);
    }
    if (coordinator != coordinator_) {
      const auto found = nodes.find(coordinator);
      Add(found == nodes.end() ? "no_coordinator" : "coordinates",
          {{"node", found == nodes.end() ? "" : found->second.name}}, now);
    }
  }
  nodes_ = std::move(nodes);
  coordinator_ = coordinator;
}

void EventLog::UpdateModels(const std::vector<wire::ModelStatus>& models, absl::Time now) {
  using Status = wire::ModelStatus;
  std::map<std::string, Model> found;
  for (const Status& status : models) {
    Model model = {.name = status.name(),
                   .state = status.state(),
                   .epoch = status.epoch().counter(),
                   .since = now};
    const auto it = models_.find(status.model_id());
    const Model* before = it == models_.end() ? nullptr : &it->second;
    const bool was_lost = before != nullptr && before->state == Status::RECOVERING;
    // Between the recovery's plan and its end the model is loaded.
    if (before != nullptr &&
        (before->state == model.state || (was_lost && model.state == Status::LOADING))) {
      model.state = before->state;
      model.since = before->since;
    }
    nlohmann::json details = {{"model", model.name}};
    if (has_models_) {
      if (before == nullptr || before->state != model.state) {
        switch (model.state) {
          case Status::LOADING:
            Add("model_loading", std::move(details), now);
            break;
          case Status::SERVING:
            if (was_lost) details["seconds"] = absl::ToDoubleSeconds(now - before->since);
            Add(was_lost ? "model_recovered" : "model_loaded", std::move(details), now);
            break;
          case Status::RECOVERING:
            Add("model_recovering", std::move(details), now);
            break;
          case Status::MOVING:
            Add("model_moving", std::move(details), now);
            break;
          case Status::FAILED:
            Add("model_failed", std::move(details), now);
            break;
          default:
            break;
        }
      } else if (model.state == Status::SERVING && before->epoch != model.epoch) {
        Add("model_moved", std::move(details), now);
      }
    }
    found[status.model_id()] = std::move(model);
  }
  for (const auto& [id, model] : models_) {
    if (!found.contains(id)) Add("model_unloaded", {{"model", model.name}}, now);
  }
  models_ = std::move(found);
  has_models_ = true;
}

std::string EventLog::Update(const ClusterSnapshot& report,
                             const std::vector<wire::ModelStatus>* models, absl::Time now) {
  const uint64_t first = next_;
  UpdateNodes(report, now);
  if (models != nullptr) UpdateModels(*models, now);
  return After(absl::StrCat(origin_, "-", first - 1));
}

std::string EventLog::After(absl::string_view last_id) const {
  uint64_t last = 0;
  if (!absl::ConsumePrefix(&last_id, absl::StrCat(origin_, "-")) ||
      !absl::SimpleAtoi(last_id, &last) || last >= next_) {
    last = 0;
  }
  const uint64_t kept = next_ - events_.size();  // the number of the first one kept
  std::string text;
  for (uint64_t i = std::max(last + 1, kept); i < next_; ++i) text += events_[i - kept];
  return text;
}

}  // namespace strata
