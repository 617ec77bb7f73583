#include "transport/rpc/grpc_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpc/grpc.h"
#include "grpc/support/sync.h"
#include "grpc/support/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"

#if defined(GPR_ABSEIL_SYNC) && !defined(__APPLE__)
// Replaces gRPC's own: the dynamic linker searches the program before its libraries.
extern "C" int gpr_cv_wait(gpr_cv* cv, gpr_mu* mu,
                           gpr_timespec until) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  auto* const changed = reinterpret_cast<absl::CondVar*>(cv);
  auto* const mutex = reinterpret_cast<absl::Mutex*>(mu);
  if (gpr_time_cmp(until, gpr_inf_future(until.clock_type)) == 0) {
    changed->Wait(mutex);
    return 0;
  }
  const gpr_timespec left = gpr_convert_clock_type(until, GPR_TIMESPAN);
  const absl::Duration most = absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
  return changed->WaitWithTimeout(mutex, most) ? 1 : 0;
}
#endif

namespace strata {
namespace {

// Well below the 1 s after which a thread sleeps.
constexpr int64_t kTickMs = 250;

// Whether those threads wait without a limit; set by themselves.
std::atomic<bool> threads_wait{false};

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
      if (!threads_wait) keeper_->TickLater();
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
  std::unique_ptr<grpc::Alarm> alarm_;  // used by one tick at a time
};

// Whether this is one of those threads, by the name that gRPC gives them.
bool RunsCallbacks() {
#ifdef __linux__
  static thread_local const bool runs = [] {
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
           std::strcmp(name, "nexting_thread") == 0;
  }();
  return runs;
#else
  return false;
#endif
}

}  // namespace

bool GrpcThreadsWaitForWork() { return threads_wait; }

void KeepGrpcThreads() {
  [[maybe_unused]] static const Keeper* const kept = [] {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    return new Keeper;  // never deleted
  }();
}

}  // namespace strata

// Replaces gRPC's own for all libraries of the process, since a program's symbols come first. Its
// callers pass the limit of 1 s as `deadline`.
extern "C" grpc_event grpc_completion_queue_next(grpc_completion_queue* queue,
                                                 gpr_timespec deadline, void* reserved) {
  static const auto next = reinterpret_cast<decltype(&grpc_completion_queue_next)>(
      dlsym(RTLD_NEXT, "grpc_completion_queue_next"));
  if (strata::RunsCallbacks()) {
    strata::threads_wait = true;
    deadline = gpr_inf_future(GPR_CLOCK_REALTIME);
  }
  return next(queue, deadline, reserved);
}
