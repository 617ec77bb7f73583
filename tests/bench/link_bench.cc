// Links over gRPC on the loopback: round trips of one frame, as between two stages, and one
// direction with several in flight, as with long prompts.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "benchmark/benchmark.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/base/mutex.h"

namespace strata {
namespace {

// Several frames in flight; and enough that a single one never waits for credit.
constexpr uint32_t kFewCredits = 8;
constexpr uint32_t kManyCredits = 256;

// Takes frames, gives them back at once, and counts.
class Counter : public Link::Receiver {
 public:
  void OnFrame(Frame frame) override {
    benchmark::DoNotOptimize(frame.payload.data());
    link->Release(1);
    MutexLock lock(&mu_);
    ++frames_;
    changed_.NotifyAll();
  }
  void OnWritable() override {
    MutexLock lock(&mu_);
    writable_ = true;
    changed_.NotifyAll();
  }
  void OnClosed(absl::Status) override {}

  void WaitForFrames(uint64_t n) {
    MutexLock lock(&mu_);
    while (frames_ < n) changed_.Wait(&mu_);
  }
  void WaitForWritable() {
    MutexLock lock(&mu_);
    while (!writable_) changed_.Wait(&mu_);
    writable_ = false;
  }

  std::unique_ptr<Link> link;

 private:
  Mutex mu_;
  CondVar changed_;
  uint64_t frames_ ABSL_GUARDED_BY(mu_) = 0;
  bool writable_ ABSL_GUARDED_BY(mu_) = false;
};

// Answers each frame with one of the same payload on a link of its own.
class Echo : public Link::Receiver {
 public:
  void OnFrame(Frame frame) override {
    CHECK_OK(back->Send(std::move(frame)));
    link->Release(1);
  }
  void OnClosed(absl::Status) override {}

  std::unique_ptr<Link> link;
  Link* back = nullptr;
};

template <typename Receiver>
std::unique_ptr<GrpcServer> Serve(Receiver* receiver, uint32_t credits) {
  return std::make_unique<GrpcServer>(
      GrpcLinkAcceptor::Options(),
      [receiver, credits](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
        AcceptedLink accepted;
        accepted.hello.set_credits(credits);
        accepted.receiver = receiver;
        accepted.on_open = [receiver](std::unique_ptr<Link> link) {
          receiver->link = std::move(link);
        };
        return accepted;
      });
}

std::unique_ptr<Link> Dial(const GrpcServer& server, Link::Receiver* receiver) {
  DialOptions options;
  options.address = server.address();
  auto link = DialGrpcLink(std::move(options), receiver);
  CHECK_OK(link);
  return *std::move(link);
}

Frame Step(const Payload& payload) {
  wire::Step step;
  for (int i = 0; i < 8; ++i) step.add_tokens(i);
  return MakeFrame(FrameType::kStep, step, payload);
}

void BM_RoundTrip(benchmark::State& state) {
  const Payload payload = Payload::Own(std::vector<float>(state.range(0) / sizeof(float)));
  Counter home;
  Echo echo;
  Counter ignored;
  auto home_server = Serve(&home, kManyCredits);
  auto echo_server = Serve(&echo, kManyCredits);
  auto back = Dial(*home_server, &ignored);
  echo.back = back.get();
  auto there = Dial(*echo_server, &ignored);
  uint64_t n = 0;
  for (auto _ : state) {
    CHECK_OK(there->Send(Step(payload)));
    home.WaitForFrames(++n);
  }
  state.SetBytesProcessed(2 * state.iterations() * state.range(0));
  there.reset();
  echo.link.reset();
  back.reset();
  home.link.reset();
}
BENCHMARK(BM_RoundTrip)->Arg(16 << 10)->Arg(1 << 20)->UseRealTime();

void BM_OneWay(benchmark::State& state) {
  const Payload payload = Payload::Own(std::vector<float>(state.range(0) / sizeof(float)));
  Counter counter;
  Counter sender;
  auto server = Serve(&counter, kFewCredits);
  auto link = Dial(*server, &sender);
  uint64_t n = 0;
  for (auto _ : state) {
    while (true) {
      const absl::Status sent = link->Send(Step(payload));
      if (sent.ok()) break;
      CHECK(absl::IsResourceExhausted(sent)) << sent;
      sender.WaitForWritable();
    }
    ++n;
  }
  counter.WaitForFrames(n);
  state.SetBytesProcessed(state.iterations() * state.range(0));
  link.reset();
  counter.link.reset();
}
BENCHMARK(BM_OneWay)->Arg(16 << 10)->Arg(1 << 20)->UseRealTime();

}  // namespace
}  // namespace strata
