#include "node/measure/link_benchmark.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "transport/link/link_probe.h"

namespace strata {
namespace {

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

LinkBenchmark::LinkBenchmark(EventLoop* loop, Options options)
    : LinkBenchmark(loop, options,
                    [](const std::string& address, absl::FunctionRef<bool()> should_continue) {
                      return MeasureLink({.address = address}, should_continue);
                    }) {}

LinkBenchmark::LinkBenchmark(EventLoop* loop, Options options, Measure measure)
    : loop_(loop), options_(options), measure_(std::move(measure)) {}

LinkBenchmark::~LinkBenchmark() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void LinkBenchmark::SetPeers(const std::vector<Peer>& peers) {
  std::map<NodeId, PeerLink> links;
  for (const Peer& peer : peers) {
    if (peer.address.empty()) continue;
    const auto known = links_.find(peer.id);
    if (known != links_.end() && known->second.address == peer.address) {
      links[peer.id] = std::move(known->second);
      continue;
    }
    PeerLink& link = links[peer.id];
    link.address = peer.address;
    link.due_ms = NowMs() + Pause();
  }
  links_ = std::move(links);
  Arm();
}

void LinkBenchmark::SetBusy(bool busy) {
  if (busy_.exchange(busy) != busy) Arm();
}

void LinkBenchmark::MeasureAgain() {
  for (auto& [id, link] : links_) {
    link.due_ms = NowMs();
    link.pending = true;
  }
  Arm();
}

int64_t LinkBenchmark::next_due_ms() const {
  int64_t due_ms = kNever;
  if (in_flight_ || busy_) return due_ms;
  for (const auto& [id, link] : links_) due_ms = std::min(due_ms, link.due_ms);
  return due_ms;
}

void LinkBenchmark::Arm() {
  timer_.reset();
  const int64_t due_ms = next_due_ms();
  if (due_ms == kNever) return;
  const auto delay_ms = static_cast<uint64_t>(std::max<int64_t>(0, due_ms - NowMs()));
  timer_ = loop_->StartTimer({.delay_ms = delay_ms}, [this] { Tick(); });
}

uint32_t LinkBenchmark::pending() const {
  return static_cast<uint32_t>(std::count_if(links_.begin(), links_.end(),
                                             [](const auto& link) { return link.second.pending; }));
}

const wire::LinkSpeed* LinkBenchmark::Find(const NodeId& id) const {
  const auto found = links_.find(id);
  if (found == links_.end() || found->second.speed.round_trip_p50_us() == 0) return nullptr;
  return &found->second.speed;
}

int64_t LinkBenchmark::PauseFactor() const {
  return 1 + static_cast<int64_t>(links_.size() / options_.links);
}

int64_t LinkBenchmark::Pause() {
  return PauseFactor() * (options_.pause_ms +
                          std::uniform_int_distribution<int64_t>(0, options_.pause_ms)(chance_));
}

void LinkBenchmark::Tick() {
  if (in_flight_ || busy_) return;
  const std::pair<const NodeId, PeerLink>* next = nullptr;
  for (const auto& link : links_) {
    if (link.second.due_ms > NowMs()) continue;
    if (next == nullptr || link.second.due_ms < next->second.due_ms) next = &link;
  }
  if (next != nullptr) return Begin(next->first, next->second.address);
  Arm();
}

void LinkBenchmark::Begin(const NodeId& id, const std::string& address) {
  in_flight_ = true;
  if (thread_.joinable()) thread_.join();  // it has posted its result, so it is ending
  thread_ = std::thread([this, id, address, alive = std::weak_ptr<const char>(alive_)] {
    auto speed = measure_(address, [this] { return !stop_ && !busy_; });
    if (stop_) return;
    loop_->Post([this, id, address, alive, speed = std::move(speed)] {
      if (!alive.expired()) End(id, address, speed);
    });
  });
}

void LinkBenchmark::End(const NodeId& id, const std::string& address,
                        const absl::StatusOr<wire::LinkSpeed>& speed) {
  in_flight_ = false;
  const absl::Cleanup arm = [this] { Arm(); };
  const int64_t pause_ms = Pause();
  for (auto& [other, link] : links_) link.due_ms = std::max(link.due_ms, NowMs() + pause_ms);
  const auto found = links_.find(id);
  if (found == links_.end() || found->second.address != address) return;  // it has changed
  PeerLink& link = found->second;
  // Without throughput the measurement was stopped: round trips count, the rest is measured later.
  const bool is_complete = speed.ok() && speed->bytes_per_s() > 0;
  link.due_ms = NowMs() + (is_complete ? OldAfterMs() : options_.retry_ms);
  if (speed.ok()) {
    const uint64_t before = link.speed.bytes_per_s();
    link.speed = *speed;
    link.speed.set_measurement(++measurements_);
    if (is_complete) link.pending = false;
    if (!is_complete) link.speed.set_bytes_per_s(before);
  } else {
    LOG(INFO) << "the link to " << address << " was not measured: " << speed.status();
  }
}

}  // namespace strata
