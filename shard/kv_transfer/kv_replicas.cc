#include "shard/kv_transfer/kv_replicas.h"

#include <algorithm>
#include <compare>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "shard/kv_store/kv_store.h"
#include "shard/model/weight_blocks.h"
#include "transport/base/steady_time.h"
#include "transport/base/thread_name.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using Request = wire::KeepReplicasRequest;
using Response = wire::KeepReplicasResponse;

absl::Status Released() {
  return absl::UnavailableError(
      "a stage of the model is being loaded there, or its processed prompts are being removed");
}

// Layers of a model. An empty range means all of its layers, an empty id all models.
struct Layers {
  explicit Layers(std::string of_model, const wire::LayerRange& layers = {})
      : model_id(std::move(of_model)), begin(layers.begin()), end(layers.end()) {}
  bool Has(const Layers& other) const {
    return model_id.empty() || (model_id == other.model_id && (end == 0 || *this == other));
  }
  auto operator<=>(const Layers&) const = default;

  std::string model_id;
  uint32_t begin, end;
};

class KvReplicasImpl final : public KvReplicas {
 public:
  explicit KvReplicasImpl(Options options)
      : options_(std::move(options)), thread_([this] { Run(); }) {}

  ~KvReplicasImpl() override {
    {
      absl::MutexLock lock(mu_);
      stopping_ = true;
    }
    thread_.join();
  }

  grpc::ServerBidiReactor<Request, Response>* Keep() override { return new Call(this); }

  void BeginLoad(const std::string& model_id, const wire::LayerRange& layers) override {
    Post([this, of = Layers(model_id, layers)] { ReleaseUntil(SteadyTime::InfiniteFuture(), of); });
  }
  void EndLoad(const std::string& model_id, const wire::LayerRange& layers) override {
    Post([this, of = Layers(model_id, layers)] { released_.erase(of); });
  }
  void Close(const std::string& model_id) override {
    absl::Notification closed;
    Post([&] {
      ReleaseUntil(SteadyTime::Now() + kReplicasClosed, Layers(model_id));
      closed.Notify();
    });
    closed.WaitForNotification();
  }
  std::vector<wire::HeldReplica> Held() const override {
    absl::MutexLock lock(mu_);
    std::vector<wire::HeldReplica> held;
    for (const auto& [layers, one] : held_) {
      if (one.comes || SteadyTime::Now() - one.at < kReplicasHeld) held.push_back(one.replica);
    }
    return held;
  }

 private:
  // The reactor waits while the thread handles a request, and the other way round.
  class Call final : public grpc::ServerBidiReactor<Request, Response> {
   public:
    explicit Call(KvReplicasImpl* replicas) : replicas_(replicas) {
      replicas_->Post([this] { replicas_->Begin(this); });
    }

    // The thread alone uses these.
    std::unique_ptr<KvStore> store;  // null: not opened yet, or released
    uint64_t bytes_max = 0;          // of the store
    std::string block;               // the parts of one that have come
    bool is_too_large = false;       // that one

    void ReadNext() { StartRead(&request_); }
    void Answer(Response response) {
      response_ = std::move(response);
      StartWrite(&response_);
    }

   private:
    ~Call() override = default;
    void OnReadDone(bool ok) override {
      if (!ok) {
        Finish(grpc::Status::OK);
        return;
      }
      replicas_->Post([this] {
        absl::Status status = replicas_->Handle(this, request_);
        if (!status.ok()) Finish(ToGrpc(status));
      });
    }
    void OnWriteDone(bool ok) override {
      if (ok) {
        ReadNext();
      } else {
        Finish(grpc::Status::OK);
      }
    }
    void OnDone() override {
      replicas_->Post([this] {
        replicas_->CloseStore(this);
        replicas_->calls_.erase(this);
        delete this;
      });
    }

    KvReplicasImpl* const replicas_;
    Request request_;
    Response response_;
  };

  void ReleaseUntil(SteadyTime until, const Layers& released) {
    released_.insert_or_assign(released, until);
    for (Call* const call : calls_) {
      if (call->store != nullptr && released.Has(LayersOfStore(*call->store))) CloseStore(call);
    }
    absl::MutexLock lock(mu_);
    if (released.end == 0)
      std::erase_if(held_, [&](const auto& one) { return released.Has(one.first); });
  }
  bool IsReleased(const Layers& layers) {
    const SteadyTime now = SteadyTime::Now();
    std::erase_if(released_, [&](const auto& each) { return each.second <= now; });
    return std::ranges::any_of(released_, [&](const auto& each) { return each.first.Has(layers); });
  }
  static Layers LayersOfStore(const KvStore& store) {
    const wire::KvCacheAbout& about = store.identity().about();
    return Layers(about.model_id(), about.layers());
  }

  // Closes the call's store: what comes next ends the call.
  void CloseStore(Call* call) {
    if (call->store == nullptr) return;
    {
      absl::MutexLock lock(mu_);
      const auto held = held_.find(LayersOfStore(*call->store));
      if (held != held_.end()) {
        held->second.comes = false;
        held->second.at = SteadyTime::Now();
      }
    }
    call->store = nullptr;
    call->bytes_max = 0;
  }

  // There is a block of it.
  void Hold(const wire::KvIdentity& identity) {
    const wire::KvCacheAbout& about = identity.about();
    HeldOne one = {.at = SteadyTime::Now(), .comes = true};
    one.replica.set_model_id(about.model_id());
    *one.replica.mutable_layers() = about.layers();
    one.replica.set_device(identity.device());
    absl::MutexLock lock(mu_);
    held_.insert_or_assign(Layers(about.model_id(), about.layers()), std::move(one));
    // Those whose call goes on are no more than that.
    while (held_.size() > kReplicaCallsMax) {
      held_.erase(std::ranges::min_element(held_, {}, [](const auto& each) {
        return std::pair(each.second.comes, each.second.at);
      }));
    }
  }

  void Begin(Call* call) {
    calls_.insert(call);
    if (options_.folder.empty() || options_.bytes_max == 0) {
      call->Finish(ToGrpc(
          absl::FailedPreconditionError("it keeps no prompts (strata node --kv-cache-disk)")));
    } else if (calls_.size() > kReplicaCallsMax) {
      call->Finish(ToGrpc(absl::ResourceExhaustedError("it keeps copies of too many stages")));
    } else {
      call->ReadNext();
    }
  }

  // OK: the call reads on, or gets an answer.
  absl::Status Handle(Call* call, const Request& request) {
    if (request.has_store()) return Open(call, request.store());
    if (call->store == nullptr) return Released();
    if (request.has_block()) return Take(call, request.block());
    for (const KvName& name : SplitKvNames(request.forget())) call->store->Forget(name);
    if (call->store->bytes_used() == 0) {
      absl::MutexLock lock(mu_);
      held_.erase(LayersOfStore(*call->store));
    }
    call->Answer(Response());
    return absl::OkStatus();
  }

  absl::Status Open(Call* call, const wire::KvIdentity& identity) {
    if (call->store != nullptr) return absl::InvalidArgumentError("a call has one store");
    const Layers layers(identity.about().model_id(), identity.about().layers());
    if (IsReleased(layers)) return Released();
    // A call whose connection broke may not know yet.
    const std::string text = identity.SerializeAsString();
    for (Call* const other : calls_) {
      const bool has_it =
          other->store != nullptr && other->store->identity().SerializeAsString() == text;
      if (has_it) CloseStore(other);
    }
    uint64_t left = options_.bytes_max;
    for (const Call* const other : calls_) left -= std::min(left, other->bytes_max);
    // The other half is for stages that come later.
    auto store = KvStore::Open({.folder = options_.folder,
                                .identity = identity,
                                .bytes_max = left / 2,
                                .others_bytes_max = options_.all_bytes_max,
                                .all_bytes_max = options_.all_bytes_max,
                                .waits = false});
    if (!store.ok()) return store.status();
    call->store = *std::move(store);
    call->bytes_max = left / 2;
    Response there;
    there.set_names(JoinKvNames(call->store->Names()));
    if (!there.names().empty()) Hold(identity);
    call->Answer(std::move(there));
    return absl::OkStatus();
  }

  absl::Status Take(Call* call, const wire::ReplicaBlock& block) {
    const std::vector<KvName> names = SplitKvNames(block.name());
    if (names.size() != 1 || block.scope().size() > kKvScopeBytesMax) {
      return absl::InvalidArgumentError("what came is not a KV block");
    }
    call->is_too_large =
        call->is_too_large || call->block.size() + block.data().size() > call->bytes_max;
    if (!call->is_too_large) call->block += block.data();
    if (block.more()) {
      call->ReadNext();
      return absl::OkStatus();
    }
    std::string bytes = std::exchange(call->block, {});
    const bool is_too_large = std::exchange(call->is_too_large, false);
    if (!is_too_large && HashOfBytes(bytes) != block.hash()) {
      return absl::DataLossError("a KV block was damaged on its way");
    }
    uint64_t waiting = bytes.size();
    for (const Call* const other : calls_) {
      if (other->store != nullptr) waiting += other->store->waiting_bytes();
    }
    if (waiting > kKvWaitingBytesMax) {
      return absl::ResourceExhaustedError("its disk is slower than copies come");
    }
    Response response;
    KvStore* const store = call->store.get();
    // What is there already is worth more than a new block, unless the other node forgets it.
    response.set_refused(is_too_large ||
                         store->bytes_used() + bytes.size() + kKvSealBytes > store->bytes_max());
    if (!response.refused()) store->Put({names.front(), block.scope()}, std::move(bytes));
    if (!store->TakeLost().empty()) {
      return absl::ResourceExhaustedError("its disk takes no more processed prompts");
    }
    if (!response.refused()) Hold(store->identity());
    call->Answer(std::move(response));
    return absl::OkStatus();
  }

  void Post(absl::AnyInvocable<void() &&> task) {
    absl::MutexLock lock(mu_);
    tasks_.push_back(std::move(task));
  }
  void Run() {
    NameThread("kv_replicas");
    while (true) {
      absl::AnyInvocable<void() &&> task;
      {
        absl::MutexLock lock(mu_);
        const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
          return !tasks_.empty() || stopping_;
        };
        mu_.Await(absl::Condition(&has_work));
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      std::move(task)();
    }
  }

  const Options options_;
  // The thread alone uses these.
  std::set<Call*> calls_;
  std::map<Layers, SteadyTime> released_;  // until then

  mutable absl::Mutex mu_;
  struct HeldOne {
    SteadyTime at;       // when the last block came, or its call ended
    bool comes = false;  // its call has not ended
    wire::HeldReplica replica;
  };
  std::map<Layers, HeldOne> held_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::AnyInvocable<void() &&>> tasks_ ABSL_GUARDED_BY(mu_);  // a few of each call
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<KvReplicas> KvReplicas::Start(Options options) {
  return std::make_unique<KvReplicasImpl>(std::move(options));
}

}  // namespace strata
