// Steps of a key change from a member, in any order, with right keys, other keys and none. After
// all of them the node has one key, the one in its file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/log/check.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "node/keys/key_file.h"
#include "node/keys/node_security.h"
#include "node/rpc/key_service.h"
#include "tests/fuzz/service_calls.h"
#include "transport/base/event_loop.h"
#include "transport/base/run_on_loop.h"

namespace strata {
namespace {

// Numbers of keys in inputs, each replaced by the key's text, so that inputs pass the first check.
constexpr size_t kKeys = 4;

class FuzzedNode {
 public:
  FuzzedNode() : thread_([this] { loop_->Run(); }) {
    fuzz::BeQuiet();
    RunOnLoop(loop_.get(), [this] {
      ClusterKey first = NewKey();
      CHECK_OK(CreateKeyFile(path_, first));
      auto security =
          NodeSecurity::Start(std::move(first), {.node_id = "00000000000000000000000000000001",
                                                 .folder = folder_ + "/tls",
                                                 .key_path = path_});
      CHECK_OK(security.status());
      security_ = security->release();
    });
    cluster_ = new ClusterRuntime(loop_.get(), SleeplessClock(), Options(),
                                  PeerTransport::Grpc(loop_.get()));
    service_ = new KeyService(loop_.get(), cluster_, security_);
  }

  void Run(absl::string_view input) {
    for (int steps = 0; steps < 16 && !input.empty(); ++steps) {
      const size_t size = fuzz::TakeSize(&input);
      wire::KeyStep step;
      const bool parsed = step.ParseFromString(std::string(input.substr(0, size)));
      input.remove_prefix(std::min(size, input.size()));
      if (!parsed) continue;
      Fill(&step);
      wire::KeyStepResponse response;
      const grpc::Status status = service_->TakeStep(nullptr, &step, &response);
      CHECK(status.ok() || !status.error_message().empty());
    }
    // Ends all key changes before the next input.
    for (const ClusterKey& key : keys_) {
      wire::KeyStep step;
      wire::KeyStepResponse response;
      step.set_key_id(key.id());
      for (const auto kind : {wire::KeyStep::ABANDON, wire::KeyStep::FINISH}) {
        step.set_kind(kind);
        service_->TakeStep(nullptr, &step, &response);
      }
    }
    RunOnLoop(loop_.get(), [this] {
      const auto kept = ReadKeyFile(path_);
      CHECK_OK(kept.status());
      CHECK_EQ(kept->id(), security_->cluster_id());
      CHECK_OK(security_->ForgetOthers());
    });
  }

 private:
  static ClusterKey NewKey() {
    absl::StatusOr<ClusterKey> key = ClusterKey::New();
    CHECK_OK(key.status());
    return *std::move(key);
  }
  static ClusterRuntime::Options Options() {
    ClusterRuntime::Options options;
    options.self = {.id = {.high = 0, .low = 1}, .boot = 1, .name = "n", .cluster = "home"};
    options.discovery = nullptr;
    return options;
  }
  void Fill(wire::KeyStep* step) const {
    for (size_t i = 0; i < kKeys; ++i) {
      const std::string number(1, static_cast<char>('0' + i));
      if (step->key() == number) step->set_key(keys_[i].ToText().Reveal());
      if (step->key_id() == number) step->set_key_id(keys_[i].id());
    }
  }
  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  const std::string folder_ = fuzz::FuzzFolder();
  const std::string path_ = folder_ + "/cluster_key";
  ClusterKey keys_[kKeys] = {NewKey(), NewKey(), NewKey(), NewKey()};
  std::thread thread_;
  // They live as long as the process.
  NodeSecurity* security_ = nullptr;
  ClusterRuntime* cluster_ = nullptr;
  KeyService* service_ = nullptr;
};

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const node = new strata::FuzzedNode;
  node->Run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
