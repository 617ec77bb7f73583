#include "transport/link/round_trip.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/link/promised_link.h"

namespace strata {
namespace {

constexpr size_t kFrameBytes = 16 << 10;
constexpr int kTrips = 15;
constexpr int kTripsWarm = 3;  // first pages, and lanes that UCX still changes; not counted
// As between steps, which are some milliseconds apart, so that threads go to sleep in between.
constexpr std::chrono::milliseconds kPause(1);
constexpr std::chrono::seconds kAllMax(3);

}  // namespace

absl::StatusOr<absl::Duration> RoundTripTimer::Measure(Link* link) {
  const auto bytes = std::make_shared<std::string>(kFrameBytes, '\0');
  std::vector<absl::Duration> took;
  const Time give_up = std::chrono::steady_clock::now() + kAllMax;
  for (int trip = 0; trip < kTripsWarm + kTrips; ++trip) {
    std::this_thread::sleep_for(kPause);
    Frame frame;
    frame.type = FrameType::kStep;
    frame.payload = Payload::Share(bytes, bytes->data(), bytes->size());
    const absl::StatusOr<Time> start = Send(link, frame, give_up);
    if (!start.ok()) return start.status();
    // There is one credit: an empty frame can go once it is back.
    Frame next;
    next.type = FrameType::kStep;
    const absl::StatusOr<Time> back = Send(link, next, give_up);
    if (!back.ok()) return back.status();
    if (trip >= kTripsWarm) took.push_back(absl::FromChrono(*back - *start));
  }
  std::nth_element(took.begin(), took.begin() + kTrips / 2, took.end());
  return took[kTrips / 2];
}

absl::StatusOr<RoundTripTimer::Time> RoundTripTimer::Send(Link* link, const Frame& frame,
                                                          Time give_up) {
  while (true) {
    {
      MutexLock lock(&mu_);
      writable_ = false;
    }
    const Time now = std::chrono::steady_clock::now();
    absl::Status sent = link->Send(frame);
    if (sent.ok()) return now;
    if (!absl::IsResourceExhausted(sent)) return sent;
    MutexLock lock(&mu_);
    while (!writable_ && !closed_) {
      if (!changed_.WaitUntil(&mu_, give_up)) {
        return absl::DeadlineExceededError(
            absl::StrCat(kTripsWarm + kTrips, " frames of 16 KiB took more than ", kAllMax.count(),
                         " s, one after the other"));
      }
    }
    if (closed_) return why_.ok() ? absl::UnavailableError("the peer closed the link") : why_;
  }
}

void RoundTripTimer::OnWritable() {
  MutexLock lock(&mu_);
  writable_ = true;
  changed_.NotifyAll();
}

void RoundTripTimer::OnClosed(absl::Status status) {
  MutexLock lock(&mu_);
  closed_ = true;
  why_ = std::move(status);
  changed_.NotifyAll();
}

class RoundTripSink::End final : public Link::Receiver {
 public:
  void SetIncoming(std::unique_ptr<Link> link) {
    link_ = std::move(link);
    ready_ = true;
  }
  // The peer left before its link was open.
  void AbandonIncoming() { closed_ = ready_ = true; }
  void OnFrame(Frame) override { link_->Release(1); }
  void OnClosed(absl::Status) override { closed_ = true; }
  // No call is in progress or can come, so this can be destroyed at once.
  bool closed() const { return ready_ && closed_; }

 private:
  std::atomic<bool> ready_{false};
  std::atomic<bool> closed_{false};
  std::unique_ptr<Link> link_;  // set once, before the first frame
};

RoundTripSink::RoundTripSink() = default;
RoundTripSink::~RoundTripSink() { Clear(); }

absl::StatusOr<AcceptedLink> RoundTripSink::Accept() {
  auto end = std::make_shared<End>();
  {
    MutexLock lock(&mu_);
    const auto open =
        std::count_if(ends_.begin(), ends_.end(), [](const auto& one) { return !one->closed(); });
    if (static_cast<size_t>(open) >= kRoundTripLinksMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kRoundTripLinksMax, " links are being measured already"));
    }
    if (ends_.size() >= 2 * kRoundTripLinksMax) {
      return absl::ResourceExhaustedError(
          "too many measured links have closed and not been destroyed yet");
    }
    ends_.push_back(end);
  }
  AcceptedLink accepted;
  accepted.hello.set_probe(true);
  accepted.hello.set_credits(1);
  accepted.receiver = end.get();
  accepted.on_open = PromisedLink(std::move(end));
  return accepted;
}

void RoundTripSink::ReclaimClosedLinks() {
  std::vector<std::shared_ptr<End>> closed;  // destroyed after the lock
  MutexLock lock(&mu_);
  const auto first =
      std::partition(ends_.begin(), ends_.end(), [](const auto& one) { return !one->closed(); });
  std::move(first, ends_.end(), std::back_inserter(closed));
  ends_.erase(first, ends_.end());
}

void RoundTripSink::Clear() {
  std::vector<std::shared_ptr<End>> all;  // destroyed after the lock
  MutexLock lock(&mu_);
  all.swap(ends_);
}

}  // namespace strata
