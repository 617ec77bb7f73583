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
                    [](const std::string& address, absl::FunctionRef<bool()> may_go) {
                      return MeasureLink({.address = address}, may_go);
                    }) {}

LinkBenchmark::LinkBenchmark(EventLoop* loop, Options options, Measure measure)
    : loop_(loop), options_(options), measure_(std::move(measure)) {}

LinkBenchmark::~LinkBenchmark() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void LinkBenchmark::SetPeers(const std::vector<Peer>& peers) {
  std::map<NodeId, Way> ways;
  for (const Peer& peer : peers) {
    if (peer.address.empty()) continue;
    const auto known = ways_.find(peer.id);
    if (known != ways_.end() && known->second.address == peer.address) {
      ways[peer.id] = std::move(known->second);
      continue;
    }
    Way& way = ways[peer.id];
    way.address = peer.address;
    way.due_ms = NowMs() + Pause();
  }
  ways_ = std::move(ways);
  Arm();
}

void LinkBenchmark::SetBusy(bool busy) {
  if (busy_.exchange(busy) != busy) Arm();
}

void LinkBenchmark::MeasureAgain() {
  for (auto& [id, way] : ways_) {
    way.due_ms = NowMs();
    way.asked = true;
  }
  Arm();
}

int64_t LinkBenchmark::next_due_ms() const {
  int64_t due_ms = kNever;
  if (under_way_ || busy_) return due_ms;
  for (const auto& [id, way] : ways_) due_ms = std::min(due_ms, way.due_ms);
  return due_ms;
}

void LinkBenchmark::Arm() {
  timer_.reset();
  const int64_t due_ms = next_due_ms();
  if (due_ms == kNever) return;
  const auto delay_ms = static_cast<uint64_t>(std::max<int64_t>(0, due_ms - NowMs()));
  timer_ = loop_->StartTimer({.delay_ms = delay_ms}, [this] { Tick(); });
}

uint32_t LinkBenchmark::asked() const {
  return static_cast<uint32_t>(
      std::count_if(ways_.begin(), ways_.end(), [](const auto& way) { return way.second.asked; }));
}

const wire::LinkSpeed* LinkBenchmark::Find(const NodeId& id) const {
  const auto found = ways_.find(id);
  if (found == ways_.end() || found->second.speed.round_trip_p50_us() == 0) return nullptr;
  return &found->second.speed;
}

int64_t LinkBenchmark::Crowd() const {
  return 1 + static_cast<int64_t>(ways_.size() / options_.ways);
}

int64_t LinkBenchmark::Pause() {
  return Crowd() * (options_.pause_ms +
                    std::uniform_int_distribution<int64_t>(0, options_.pause_ms)(chance_));
}

void LinkBenchmark::Tick() {
  if (under_way_ || busy_) return;
  const std::pair<const NodeId, Way>* next = nullptr;
  for (const auto& way : ways_) {
    if (way.second.due_ms > NowMs()) continue;
    if (next == nullptr || way.second.due_ms < next->second.due_ms) next = &way;
  }
  if (next != nullptr) return Begin(next->first, next->second.address);
  Arm();
}

void LinkBenchmark::Begin(const NodeId& id, const std::string& address) {
  under_way_ = true;
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
  under_way_ = false;
  const absl::Cleanup arm = [this] { Arm(); };
  const int64_t pause_ms = Pause();
  for (auto& [other, way] : ways_) way.due_ms = std::max(way.due_ms, NowMs() + pause_ms);
  const auto found = ways_.find(id);
  if (found == ways_.end() || found->second.address != address) return;  // another way by now
  Way& way = found->second;
  // Without throughput it was stopped half way: what there is counts, the rest is measured later.
  const bool whole = speed.ok() && speed->bytes_per_s() > 0;
  way.due_ms = NowMs() + (whole ? OldAfterMs() : options_.retry_ms);
  if (speed.ok()) {
    const uint64_t before = way.speed.bytes_per_s();
    way.speed = *speed;
    way.speed.set_measurement(++measurements_);
    if (whole) way.asked = false;
    if (!whole) way.speed.set_bytes_per_s(before);
  } else {
    LOG(INFO) << "the way to " << address << " was not measured: " << speed.status();
  }
}

}  // namespace strata
