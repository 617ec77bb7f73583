// A stage server between two in-memory links, with a stage that computes nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "shard/serving/stage_server.h"
#include "tests/support/memory_link.h"

namespace strata {

inline constexpr absl::Duration kStageServerPatience = absl::Seconds(30);

// Has no caches.
class StageWithoutCaches : public Stage {
 public:
  void Clear() override {}
  Held SlotStateOf(int32_t) const override { return {}; }
  bool SplitsCaches() const override { return false; }
  absl::StatusOr<CachePart> ReadCache(int32_t, uint32_t, uint32_t) override {
    return absl::InvalidArgumentError("nothing is there");
  }
  absl::Status WriteCache(int32_t, const CachePart&) override {
    return absl::DataLossError("it holds nothing");
  }
};

// A middle stage of rows of two floats: adds 1 to each. Position 66 fails; Decode waits for `gate`.
class FakeStage final : public StageWithoutCaches {
 public:
  explicit FakeStage(absl::Notification* gate) : gate_(gate) {
    facts_.n_embd = 2;
    facts_.n_seq_max = 4;
    facts_.n_batch = 8;
  }
  absl::Status Decode(const Batch& batch) override {
    if (gate_ != nullptr) gate_->WaitForNotification();
    for (int32_t position : batch.positions) {
      if (position == 66) return absl::ResourceExhaustedError("the KV cache is full");
    }
    out_.assign(batch.activations.begin(), batch.activations.end());
    for (float& value : out_) value += 1;
    return absl::OkStatus();
  }
  Payload TakeActivations() override { return Payload::Own(std::move(out_)); }
  absl::Span<const float> Logits(size_t) override { return {}; }
  absl::Status Apply(const wire::KvEdit& edit) override {
    if (edit.kind() == wire::KvEdit::SHIFT) return absl::UnimplementedError("cannot shift");
    return absl::OkStatus();
  }
  const llama_vocab* vocab() const override { return nullptr; }
  const Facts& facts() const override { return facts_; }

 private:
  absl::Notification* const gate_;
  Facts facts_;
  std::vector<float> out_;
};

// Collects the frames that one end of a link gets.
class Collector final : public Link::Receiver {
 public:
  void OnFrame(Frame frame) override {
    absl::MutexLock lock(mu_);
    frames_.push_back(std::move(frame));
  }
  void OnClosed(absl::Status status) override {
    absl::MutexLock lock(mu_);
    closed_ = std::move(status);
    is_closed_ = true;
  }
  Frame Next() {
    absl::MutexLock lock(mu_);
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !frames_.empty(); };
    if (!mu_.AwaitWithTimeout(absl::Condition(&there), kStageServerPatience)) {
      ADD_FAILURE() << "no frame came";
      return {};
    }
    Frame frame = std::move(frames_.front());
    frames_.pop_front();
    return frame;
  }
  absl::Status Closed() {
    absl::MutexLock lock(mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(&is_closed_), kStageServerPatience)) {
      return absl::DeadlineExceededError("the link stays open");
    }
    return closed_;
  }

 private:
  absl::Mutex mu_;
  std::deque<Frame> frames_ ABSL_GUARDED_BY(mu_);
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

class StageServerTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(nullptr); }

  ~StageServerTest() override {
    if (!gate_.HasBeenNotified()) gate_.Notify();
    in_.reset();
    server_.reset();
    out_.reset();
  }

  static wire::StageSpec Spec() {
    wire::StageSpec spec;
    spec.set_model_id("model");
    spec.mutable_epoch()->set_counter(3);
    spec.mutable_epoch()->set_coordinator_id("c");
    spec.set_stage(1);
    spec.set_n_stages(3);
    spec.mutable_layers()->set_begin(2);
    spec.mutable_layers()->set_end(4);
    return spec;
  }

  void Start(absl::Notification* gate) {
    Start(Spec(), [gate] { return std::make_unique<FakeStage>(gate); });
  }
  void Start(const wire::StageSpec& spec, StageServer::LoadFn load) {
    absl::Notification loaded;
    server_ = StageServer::Start(spec, Clock::Real(), std::move(load),
                                 [&loaded](const absl::StatusOr<Stage::Facts>& facts) {
                                   EXPECT_TRUE(facts.ok());
                                   loaded.Notify();
                                 });
    loaded.WaitForNotification();
  }

  // The Hello of the stage before.
  static wire::Hello Before() {
    wire::Hello hello;
    hello.set_model_id("model");
    *hello.mutable_epoch() = Spec().epoch();
    hello.set_from_stage(0);
    hello.set_to_stage(1);
    hello.set_n_embd(2);
    return hello;
  }

  absl::StatusOr<DialledMemoryLink> Dial(const wire::Hello& hello, Link::Receiver* receiver) {
    return DialMemoryLink(
        {.hello = hello},
        [this](const wire::Hello& peer) -> absl::StatusOr<AcceptedLink> {
          auto incoming = server_->Accept(peer);
          if (!incoming.ok()) return incoming.status();
          return AcceptedLink{.hello = incoming->hello,
                              .receiver = incoming->receiver,
                              .on_open = [this](std::unique_ptr<Link> link) {
                                server_->SetIncoming(std::move(link));
                              }};
        },
        receiver);
  }

  void ConnectIn() { ConnectIn(Before()); }
  void ConnectIn(const wire::Hello& before) {
    auto dialled = Dial(before, &in_end_);
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    in_ = std::move(dialled->link);
    in_wire_ = dialled->wire;
  }

  // Waits until the stage has released both links.
  void AwaitNoLinks() {
    auto accepted = server_->Accept(Before());
    while (absl::IsUnavailable(accepted.status())) {
      absl::SleepFor(absl::Milliseconds(1));
      accepted = server_->Accept(Before());
    }
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    server_->AbandonIncoming();
  }

  std::unique_ptr<Link> DialIn(Link::Receiver* receiver) {
    auto dialled = Dial(Before(), receiver);
    EXPECT_TRUE(dialled.ok()) << dialled.status();
    return std::move(dialled->link);
  }

  // Connects the stage after, which grants `credits` frames.
  void ConnectOut(uint32_t credits = 64) {
    auto dialled = DialMemoryLink(
        {.hello = server_->OutgoingHello()},
        [this, credits](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
          wire::Hello hello;
          hello.set_credits(credits);
          return AcceptedLink{
              .hello = hello, .receiver = &out_end_, .on_open = [this](std::unique_ptr<Link> link) {
                out_ = std::move(link);
              }};
        },
        server_->outgoing_receiver());
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    out_wire_ = dialled->wire;
    server_->SetOutgoing(std::move(dialled->link), "");
  }

  static Frame StepFrame(uint64_t id, int32_t position = 0) {
    wire::Step step;
    step.set_model_id("model");
    *step.mutable_epoch() = Spec().epoch();
    step.set_step_id(id);
    step.add_tokens(1);
    step.add_positions(position);
    step.add_slots(0);
    return MakeFrame(FrameType::kStep, step, Payload::Own(std::vector<float>{1.5f, -2.0f}));
  }

  absl::Notification gate_;
  Collector in_end_, out_end_;
  std::unique_ptr<StageServer> server_;
  std::unique_ptr<Link> in_, out_;
  std::shared_ptr<MemoryWire> in_wire_, out_wire_;
};

}  // namespace strata
