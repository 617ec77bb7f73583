#include "shard/kv_transfer/kv_replicator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/node.grpc.pb.h"
#include "shard/engine/sequence_state.h"
#include "shard/kv_transfer/cache_stream.h"
#include "shard/model/weight_blocks.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"
#include "transport/base/thread_name.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// Between two looks at a store that changes; and at a call that has nothing to do.
constexpr absl::Duration kLook = absl::Milliseconds(200);
constexpr absl::Duration kIdleLook = absl::Minutes(1);
// The longest wait behind a block.
constexpr absl::Duration kWaitMax = absl::Seconds(10);
// The longest time until a call is tried again.
constexpr absl::Duration kRetryMax = absl::Minutes(1);
// Names in a message.
constexpr size_t kNamesMax = 1024;

absl::Duration ThreadTime() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

LayerRange RangeOf(const wire::LayerRange& layers) { return {layers.begin(), layers.end()}; }

std::string WhyOf(const absl::Status& status) {
  return status.message().empty() ? absl::StatusCodeToString(status.code())
                                  : std::string(status.message());
}

class Replicator final : public KvFollower {
 public:
  Replicator(KvStore* store, const wire::ReplicaTarget& target, absl::Duration retry)
      : store_(store),
        target_(target),
        retry_(retry),
        stub_(wire::Node::NewStub(MakeQuietChannel(target.address()))),
        thread_([this] { Run(); }) {}

  ~Replicator() override {
    {
      absl::MutexLock lock(mu_);
      stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    store_->Wake();
    thread_.join();
  }

  wire::ReplicaStatus status() const override {
    wire::ReplicaStatus status;
    status.set_node_name(target_.node_name());
    *status.mutable_layers() = target_.layers();
    absl::MutexLock lock(mu_);
    status.set_bytes_behind(bytes_behind_);
    status.set_note(note_);
    return status;
  }

 private:
  using Stream = grpc::ClientReaderWriter<wire::KeepReplicasRequest, wire::KeepReplicasResponse>;

  bool stopping() {
    absl::MutexLock lock(mu_);
    return stopping_;
  }
  // True: it stops.
  bool Pause(absl::Duration time) {
    absl::MutexLock lock(mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&stopping_), time);
  }
  void SetNote(const absl::Status& status) {
    absl::MutexLock lock(mu_);
    note_ = status.ok() ? "" : PrintableText::From(WhyOf(status)).str();
  }

  void Run() {
    NameThread("kv_replicator");
    for (absl::Duration wait = retry_; !stopping(); wait = std::min(wait * 2, kRetryMax)) {
      grpc::ClientContext context;
      {
        absl::MutexLock lock(mu_);
        if (stopping_) return;
        context_ = &context;
      }
      const SteadyTime begin = SteadyTime::Now();
      const absl::Status ended = Follow(&context);
      if (SteadyTime::Now() - begin > kRetryMax) wait = retry_;  // it was fine
      {
        absl::MutexLock lock(mu_);
        context_ = nullptr;
        if (stopping_) return;
      }
      SetNote(ended);
      if (Pause(wait)) return;
    }
  }

  // One call, until it breaks or this stops.
  absl::Status Follow(grpc::ClientContext* context) {
    auto reader = store_->NewReader();
    if (!reader.ok()) return reader.status();
    const std::unique_ptr<Stream> stream = stub_->KeepReplicas(context);
    absl::Status status = Copy(*reader, stream.get());
    if (!status.ok()) context->TryCancel();
    stream->WritesDone();
    const grpc::Status ended = stream->Finish();
    if (IsUnknownCall(ended)) return absl::UnimplementedError("it has an older version of Strata");
    return status.ok() || ended.error_code() != grpc::StatusCode::CANCELLED ? FromGrpc(ended)
                                                                            : status;
  }

  // OK: the call has ended, and its status says why.
  absl::Status Copy(const KvStore::Reader& reader, Stream* stream) {
    wire::KeepReplicasRequest request;
    wire::KvIdentity* const identity = request.mutable_store();
    *identity = store_->identity();
    *identity->mutable_about()->mutable_layers() = target_.layers();
    identity->set_device(target_.device());
    wire::KeepReplicasResponse there;
    if (!stream->Write(request) || !stream->Read(&there)) return absl::OkStatus();
    copied_.clear();
    for (const KvName& name : SplitKvNames(there.names())) copied_.insert(name);
    uint64_t seen = 0;
    for (SteadyTime looked = SteadyTime::InfinitePast();;) {
      const SteadyTime begin = SteadyTime::Now();
      const absl::Duration used = ThreadTime();
      const uint64_t changes = store_->AwaitChange(seen, absl::ZeroDuration());
      if (stopping()) break;  // a later Wake() is another change than `changes`
      const bool is_first = looked == SteadyTime::InfinitePast();
      if (is_first || (changes != seen && begin - looked >= kLook)) {
        looked = begin;
        seen = changes;
        if (!Look(stream)) return absl::OkStatus();
      }
      if (next_ < blocks_.size()) {
        if (absl::Status status = CopyNext(reader, stream); !status.ok()) return status;
      } else if (changes == seen && store_->AwaitChange(seen, kIdleLook) == seen) {
        if (!Exchange(wire::KeepReplicasRequest(), stream)) return absl::OkStatus();
      }
      const bool copies = next_ < blocks_.size();
      const absl::Duration wait =
          std::max((ThreadTime() - used) * kReplicaProcessorWaits,
                   copies ? (SteadyTime::Now() - begin) * kReplicaTimeWaits : kLook);
      if (Pause(std::min(wait, kWaitMax))) break;
    }
    return absl::CancelledError("it is not wanted any more");
  }

  // Reads what the store keeps; has the node forget what it does not keep any more.
  bool Look(Stream* stream) {
    blocks_ = store_->KeptBlocks();
    next_ = 0;
    if (!ForgetOthers(stream)) return false;
    SkipUnwanted();
    CountBehind();
    SetNote(absl::OkStatus());
    return true;
  }
  void CountBehind() {
    uint64_t behind = 0;
    for (const KvStore::Kept& block : blocks_) {
      if (IsWanted(block)) behind += block.bytes;
    }
    absl::MutexLock lock(mu_);
    bytes_behind_ = behind;
  }
  bool IsWanted(const KvStore::Kept& block) const {
    return block.scope && !copied_.contains(block.name);
  }
  void SkipUnwanted() {
    while (next_ < blocks_.size() && !IsWanted(blocks_[next_])) ++next_;
  }

  // Copies the next block; what cannot be copied stays behind.
  absl::Status CopyNext(const KvStore::Reader& reader, Stream* stream) {
    const KvStore::Kept& block = blocks_[next_++];
    const absl::StatusOr<std::string> bytes = Read(reader, block);
    if (absl::IsUnimplemented(bytes.status())) return bytes.status();
    for (int tries = 0; bytes.ok() && tries < 2; ++tries) {
      const std::optional<bool> kept = Send(block, *bytes, stream);
      if (!kept) return CallBroke();
      if (*kept) {
        copied_.insert(block.name);
        absl::MutexLock lock(mu_);
        bytes_behind_ -= std::min(bytes_behind_, block.bytes);
        break;
      }
      // As much as it takes of what was used less recently makes room, once.
      const std::vector<KvName> room = LessRecent(block.bytes);
      if (room.empty()) break;
      if (!Forget(room, stream)) return CallBroke();
      CountBehind();
    }
    SkipUnwanted();
    return absl::OkStatus();
  }
  static absl::Status CallBroke() { return absl::UnavailableError("the connection to it broke"); }

  // Copies there of `bytes` in all, the least recently used first; none: there are not so many.
  std::vector<KvName> LessRecent(uint64_t bytes) const {
    std::vector<KvName> names;
    uint64_t found = 0;
    for (size_t i = blocks_.size(); i > next_ && found < bytes; --i) {
      if (!copied_.contains(blocks_[i - 1].name)) continue;
      names.push_back(blocks_[i - 1].name);
      found += blocks_[i - 1].bytes;
    }
    return found < bytes ? std::vector<KvName>() : names;
  }

  static bool Exchange(const wire::KeepReplicasRequest& request, Stream* stream) {
    wire::KeepReplicasResponse done;
    return stream->Write(request) && stream->Read(&done);
  }
  bool Forget(const std::vector<KvName>& names, Stream* stream) {
    for (size_t begin = 0; begin < names.size(); begin += kNamesMax) {
      const auto part = absl::MakeConstSpan(names).subspan(begin, kNamesMax);
      wire::KeepReplicasRequest request;
      request.set_forget(JoinKvNames(part));
      if (!Exchange(request, stream)) return false;
      for (const KvName& name : part) copied_.erase(name);
    }
    return true;
  }
  // Has the node forget what the store does not keep any more.
  bool ForgetOthers(Stream* stream) {
    std::set<KvName> kept;
    for (const KvStore::Kept& block : blocks_) kept.insert(block.name);
    std::vector<KvName> gone;
    for (const KvName& name : copied_) {
      if (!kept.contains(name)) gone.push_back(name);
    }
    return Forget(gone, stream);
  }

  absl::StatusOr<std::string> Read(const KvStore::Reader& reader,
                                   const KvStore::Kept& block) const {
    auto bytes = reader.Read({block.name, *block.scope});
    const LayerRange all = RangeOf(store_->identity().about().layers());
    const LayerRange wanted = RangeOf(target_.layers());
    if (!bytes.ok() || wanted == all) return bytes;
    return LayersOf(*bytes, all.size(), {wanted.begin - all.begin, wanted.end - all.begin});
  }

  // Whether the node keeps it; nullopt: the call has ended.
  static std::optional<bool> Send(const KvStore::Kept& block, const std::string& bytes,
                                  Stream* stream) {
    for (size_t begin = 0;;) {
      const absl::string_view part = absl::string_view(bytes).substr(begin, kCachePieceBytes);
      begin += part.size();
      wire::KeepReplicasRequest request;
      wire::ReplicaBlock* const to = request.mutable_block();
      to->set_name(std::string(block.name.begin(), block.name.end()));
      to->set_scope(*block.scope);
      to->set_data(std::string(part));
      to->set_more(begin < bytes.size());
      if (!to->more()) to->set_hash(HashOfBytes(bytes));
      if (!stream->Write(request)) return std::nullopt;
      if (!to->more()) break;
    }
    wire::KeepReplicasResponse done;
    if (!stream->Read(&done)) return std::nullopt;
    return !done.refused();
  }

  KvStore* const store_;
  const wire::ReplicaTarget target_;
  const absl::Duration retry_;
  const std::unique_ptr<wire::Node::Stub> stub_;

  // Of the thread: what the store keeps, as of the last look; the next one that is to be copied;
  // and what is there.
  std::vector<KvStore::Kept> blocks_;
  size_t next_ = 0;
  std::set<KvName> copied_;

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the call in progress
  uint64_t bytes_behind_ ABSL_GUARDED_BY(mu_) = 0;
  std::string note_ ABSL_GUARDED_BY(mu_) = "not there yet";
  std::thread thread_;
};

class None final : public KvFollower {
 public:
  explicit None(const wire::ReplicaTarget& target) { status_.set_note(target.why_none()); }
  wire::ReplicaStatus status() const override { return status_; }

 private:
  wire::ReplicaStatus status_;
};

}  // namespace

std::unique_ptr<KvFollower> StartReplicator(KvStore* store, const wire::ReplicaTarget& target,
                                            absl::Duration retry) {
  return std::make_unique<Replicator>(store, target, retry);
}

std::unique_ptr<KvFollower> NoReplicator(const wire::ReplicaTarget& target) {
  return std::make_unique<None>(target);
}

}  // namespace strata
