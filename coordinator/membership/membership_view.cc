// The public view of membership: ids, states and the view itself.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "coordinator/membership/membership.h"

namespace strata {

absl::StatusOr<NodeId> NodeId::FromHex(absl::string_view hex) {
  NodeId id;
  const auto half = [](absl::string_view digits, uint64_t* value) {
    for (const char c : digits) {
      int digit;
      if (c >= '0' && c <= '9') {
        digit = c - '0';
      } else if (c >= 'a' && c <= 'f') {
        digit = c - 'a' + 10;
      } else {
        return false;
      }
      *value = *value << 4 | static_cast<uint64_t>(digit);
    }
    return true;
  };
  if (hex.size() != 32 || !half(hex.substr(0, 16), &id.high) || !half(hex.substr(16), &id.low) ||
      id.is_nobody()) {
    return absl::InvalidArgumentError("a node id has 32 hex digits, not all of them 0");
  }
  return id;
}

std::string NodeId::ToHex() const { return absl::StrFormat("%016x%016x", high, low); }

const char* StateName(ClusterView::State state) {
  switch (state) {
    case ClusterView::State::kUnheard:
      return "unheard";
    case ClusterView::State::kAlive:
      return "alive";
    case ClusterView::State::kSuspected:
      return "suspected";
    case ClusterView::State::kGone:
      return "gone";
    case ClusterView::State::kOtherVersion:
      return "other version";
  }
  return "unknown";
}

const ClusterView::Node* ClusterView::Find(const NodeId& id) const {
  const auto found = std::lower_bound(
      nodes.begin(), nodes.end(), id,
      [](const Node& node, const NodeId& wanted) { return node.record.id < wanted; });
  return found != nodes.end() && found->record.id == id ? &*found : nullptr;
}

const ClusterView& Membership::view() {
  if (view_changes_ != changes_ || view_.coordinator != obeys(now_us_)) BuildView();
  for (ClusterView::Node& node : view_.nodes) {
    const size_t i = graph_.Find(node.record.id);
    node.last_heard_us = i == 0 ? now_us_ : peers_[i].last_heard_us;
  }
  return view_;
}

void Membership::BuildView() {
  view_changes_ = changes_;
  view_ = ClusterView();
  view_.coordinator = obeys(now_us_);
  view_.is_coordinator = role_ == Role::kCoordinator;
  view_.settled = settled_;
  view_.refused = out_;
  AddSharedIds(&view_);
  if (!view_.coordinator.is_nobody()) {
    view_.epoch = epoch_;
    const IndexSet& members = view_.is_coordinator ? members_ : peers_[obeyed_].members;
    members.ForEach([&](size_t i) { view_.members.push_back(graph_.id(i)); });
    std::sort(view_.members.begin(), view_.members.end());
  }
  for (size_t i = 0; i < graph_.bound(); ++i) {
    const Peer& peer = peers_[i];
    if (i != 0 && records_[i] == nullptr) continue;
    ClusterView::Node node;
    if (i == 0) {
      node.record = self_;
      node.state = ClusterView::State::kAlive;
      node.since_us = started_us_;
      node.obeys = view_.coordinator;
      node.live_requests = live_requests_;
    } else {
      node.record = *records_[i];
      for (const std::string& address : peer.learned) {
        std::vector<std::string>& all = node.record.addresses;
        if (std::find(all.begin(), all.end(), address) == all.end()) all.push_back(address);
      }
      node.record.nonce = peer.nonce;
      node.state = peer.state;
      node.ended = peer.leaving || peer.ended;
      node.since_us = peer.since_us;
      node.obeys = peer.said->obeys;
      node.live_requests = peer.said->live_requests;
    }
    node.reachable = graph_.Linked(0, i);
    node.member = std::binary_search(view_.members.begin(), view_.members.end(), node.record.id);
    view_.nodes.push_back(std::move(node));
  }
  std::sort(view_.nodes.begin(), view_.nodes.end(),
            [](const auto& a, const auto& b) { return a.record.id < b.record.id; });
}

}  // namespace strata
