#include "transport/grpc_threads.h"

#include <cstdint>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "grpc/support/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"

namespace strata {
namespace {

// Well below the 1 s after which a thread sleeps.
constexpr int64_t kTickMs = 250;

class Keeper {
 public:
  // Without credentials there is nothing to connect to: calls fail at once.
  Keeper() : stub_(grpc::CreateChannel("nowhere", nullptr)) { new Tick(this); }

 private:
  class Tick final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Tick(Keeper* keeper) : keeper_(keeper) {
      keeper_->stub_.PrepareBidiStreamingCall(&context_, "/strata.wire.None/None", {}, this);
      StartCall();
    }
    void OnDone(const grpc::Status&) override {
      keeper_->TickLater();
      delete this;
    }

   private:
    Keeper* const keeper_;
    grpc::ClientContext context_;
  };

  void TickLater() {
    // A new alarm, because the old one's callback may still be returning.
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kTickMs, GPR_TIMESPAN)),
        [this](bool) { new Tick(this); });
  }

  grpc::GenericStub stub_;
  std::unique_ptr<grpc::Alarm> alarm_;  // one tick at a time touches it
};

}  // namespace

void KeepGrpcThreads() {
  [[maybe_unused]] static const Keeper* const kept = [] {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    return new Keeper;  // never deleted
  }();
}

}  // namespace strata
