#include "transport/link/link_probe.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/probe.grpc.pb.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

constexpr size_t kRoundTripBytes = 16 * 1024;
constexpr size_t kRoundTripsMax = 200;
constexpr size_t kRoundTripsWarm = 4;  // connecting and first pages; not counted
// As between steps, which are some milliseconds apart, so that threads go to sleep in between:
// without a pause, round trips take half as long.
constexpr absl::Duration kRoundTripPause = absl::Milliseconds(3);
// Size of a one-way frame: large on a fast link, where its fixed cost then does not count, small
// where a large one would take long.
constexpr size_t kBulkBytes = 64 * 1024;
constexpr size_t kBulkFastBytes = 512 * 1024;
constexpr uint32_t kFastRoundTripUs = 2'000;
constexpr size_t kBulkWindow = 8;  // frames in flight, so that the link never waits for an answer

// Enough for a fast link to show its speed; filling it longer would cost both ends much of a core.
constexpr size_t kBulkBytesMax = 32 << 20;

// The answering side of one measurement. Deletes itself.
class EchoStream final : public grpc::ServerBidiReactor<wire::EchoFrame, wire::EchoFrame> {
 public:
  explicit EchoStream(std::atomic<int>* streams) : streams_(streams) {
    if (streams_->fetch_add(1) >= kEchoStreamsMax) {
      Finish(ToGrpc(absl::ResourceExhaustedError("too many measurements at the same time")));
      return;
    }
    StartRead(&in_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    if (in_.reply_bytes() > kEchoFrameBytesMax) {
      Finish(ToGrpc(
          absl::InvalidArgumentError(absl::StrCat("reply_bytes is at most ", kEchoFrameBytesMax))));
      return;
    }
    out_.mutable_payload()->resize(in_.reply_bytes());
    StartWrite(&out_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&in_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override {
    --*streams_;
    delete this;
  }

  std::atomic<int>* const streams_;
  wire::EchoFrame in_, out_;
};

using Stream = grpc::ClientReaderWriter<wire::EchoFrame, wire::EchoFrame>;

uint32_t Microseconds(absl::Duration duration) {
  return static_cast<uint32_t>(std::max<int64_t>(1, absl::ToInt64Microseconds(duration)));
}

// Does round trips until the budget is spent. False: the stream broke.
bool MeasureRoundTrips(Stream* stream, absl::Duration budget, absl::FunctionRef<bool()> may_go,
                       wire::LinkSpeed* speed) {
  wire::EchoFrame frame, reply;
  frame.mutable_payload()->resize(kRoundTripBytes);
  frame.set_reply_bytes(kRoundTripBytes);
  std::vector<absl::Duration> times;
  SteadyTime until = SteadyTime::InfiniteFuture();
  for (size_t i = 0; times.size() < kRoundTripsMax; ++i) {
    if (!may_go()) break;
    const SteadyTime begin = SteadyTime::Now();
    if (!stream->Write(frame) || !stream->Read(&reply)) return false;
    const SteadyTime end = SteadyTime::Now();
    if (i >= kRoundTripsWarm) times.push_back(end - begin);
    if (i == 0) until = end + budget;
    // On a slow link three must suffice.
    if (end >= until && times.size() >= 3) break;
    if (i >= kRoundTripsWarm) absl::SleepFor(kRoundTripPause);
  }
  if (times.empty()) return true;
  std::sort(times.begin(), times.end());
  speed->set_round_trip_p50_us(Microseconds(times[times.size() / 2]));
  speed->set_round_trip_p99_us(Microseconds(times[times.size() * 99 / 100]));
  return true;
}

// Sends frames with empty answers. The first window fills the link's buffers and is not counted.
bool MeasureThroughput(Stream* stream, absl::Duration budget, absl::FunctionRef<bool()> may_go,
                       wire::LinkSpeed* speed) {
  wire::EchoFrame frame, reply;
  const bool fast = speed->round_trip_p50_us() < kFastRoundTripUs;
  frame.mutable_payload()->resize(fast ? kBulkFastBytes : kBulkBytes);
  size_t answered = 0, sent = 0;
  SteadyTime begin = SteadyTime::InfiniteFuture(), end = begin;
  const SteadyTime until = SteadyTime::Now() + budget;
  bool sending = true;
  while (sending || answered < sent) {
    sending = sending && may_go() && sent * frame.payload().size() < kBulkBytesMax &&
              (SteadyTime::Now() < until || sent < 2 * kBulkWindow);
    if (sending && sent < answered + kBulkWindow) {
      if (!stream->Write(frame)) return false;
      ++sent;
      continue;
    }
    if (answered == sent) break;
    if (!stream->Read(&reply)) return false;
    end = SteadyTime::Now();
    if (++answered == kBulkWindow) begin = end;
  }
  if (answered <= kBulkWindow || end <= begin) return true;
  const double bytes = static_cast<double>((answered - kBulkWindow) * frame.payload().size());
  speed->set_bytes_per_s(static_cast<uint64_t>(bytes / absl::ToDoubleSeconds(end - begin)));
  return true;
}

class LinkProbeService final : public wire::LinkProbe::CallbackService {
 public:
  grpc::ServerBidiReactor<wire::EchoFrame, wire::EchoFrame>* Echo(
      grpc::CallbackServerContext*) override {
    return new EchoStream(&streams_);
  }

 private:
  std::atomic<int> streams_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeLinkProbeService() {
  return std::make_unique<LinkProbeService>();
}

absl::StatusOr<wire::LinkSpeed> MeasureLink(const MeasureLinkOptions& options,
                                            absl::FunctionRef<bool()> may_go) {
  // A connection of its own, so that no request's frames wait behind the measurement.
  const std::unique_ptr<wire::LinkProbe::Stub> stub =
      wire::LinkProbe::NewStub(MakeChannel(options.address));
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(options.timeout));
  const std::unique_ptr<Stream> stream = stub->Echo(&context);
  wire::LinkSpeed speed;
  const bool complete =
      MeasureRoundTrips(stream.get(), options.round_trip_budget, may_go, &speed) &&
      MeasureThroughput(stream.get(), options.throughput_budget, may_go, &speed);
  if (complete) {
    stream->WritesDone();
    wire::EchoFrame rest;
    while (stream->Read(&rest)) {
    }
  }
  const absl::Status status = FromGrpc(stream->Finish());
  if (!complete || !status.ok()) {
    return absl::Status(status.ok() ? absl::StatusCode::kUnavailable : status.code(),
                        absl::StrCat(options.address, ": ",
                                     status.ok() ? "the measurement broke off" : status.message()));
  }
  if (speed.round_trip_p50_us() == 0) {
    return absl::AbortedError(
        absl::StrCat(options.address, ": no time for a measurement, the machine is busy"));
  }
  return speed;
}

}  // namespace strata
