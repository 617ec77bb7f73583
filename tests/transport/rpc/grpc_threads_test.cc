#include "transport/rpc/grpc_threads.h"

#include <memory>

#include "absl/synchronization/notification.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

// A call that owns its channel and deletes itself, as a dialled link does.
class OwnCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit OwnCall(absl::Notification* gone) : gone_{gone}, stub_(MakeChannel("127.0.0.1:1")) {
    stub_.PrepareBidiStreamingCall(&context_, "/strata.wire.None/None", {}, this);
    StartCall();
    context_.TryCancel();
  }
  void OnDone(const grpc::Status&) override { delete this; }

 private:
  struct AtEnd {
    absl::Notification* gone;
    ~AtEnd() { gone->Notify(); }
  };
  AtEnd gone_;  // the last to go
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
};

TEST(GrpcThreads, TheLastChannelMayBeDestroyedInACallback) {
  for (int i = 0; i < 20; ++i) {
    absl::Notification gone;
    new OwnCall(&gone);
    gone.WaitForNotification();
  }
}

#ifdef __linux__
TEST(GrpcThreads, TheyWakeOnlyForWork) {
  absl::Notification gone;
  new OwnCall(&gone);
  gone.WaitForNotification();  // one of them has run that
  EXPECT_TRUE(GrpcThreadsWaitForWork());
}
#endif

}  // namespace
}  // namespace strata
