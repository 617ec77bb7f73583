#include "shard/weights/node_weight_source.h"

#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "shard/model/weight_blocks.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

constexpr absl::Duration kConnectTime = absl::Seconds(5);
constexpr absl::Duration kConnectPoll = absl::Milliseconds(50);
// Sooner than gRPC gives up on an attempt to connect (MakeChannel: 1 s).
constexpr absl::Duration kRefusedTime = absl::Milliseconds(500);
constexpr absl::Duration kListTime = absl::Seconds(5);

// After an unreadable message there may be more, and gRPC ends the call only once they are read: a
// node that sends such messages must not block this one. The end itself comes at once.
constexpr absl::Duration kFinishTime = absl::Seconds(3);

// The final status of the call, after Read() returned false.
template <typename Message>
absl::Status FinishOf(grpc::ClientReader<Message>* reader, grpc::ClientContext* context) {
  absl::Notification ended;
  std::thread limit([&] {
    if (!ended.WaitForNotificationWithTimeout(kFinishTime)) context->TryCancel();
  });
  const absl::Status status = FromGrpc(reader->Finish());
  ended.Notify();
  limit.join();
  return status;
}

// Cancels a call whose other end is silent for too long.
class IdleLimit {
 public:
  IdleLimit(grpc::ClientContext* context, absl::Duration limit)
      : context_(context), limit_(limit), thread_([this] { Watch(); }) {}
  ~IdleLimit() {
    {
      absl::MutexLock lock(mu_);
      ended_ = true;
    }
    thread_.join();
  }

  // reader->Read(message), with the limit.
  template <typename Reader, typename Message>
  bool Read(Reader* reader, Message* message) {
    Set(SteadyTime::Now());
    const bool received = reader->Read(message);
    Set(SteadyTime::InfiniteFuture());
    return received;
  }
  bool hit() {
    absl::MutexLock lock(mu_);
    return hit_;
  }

 private:
  void Set(SteadyTime since) {
    absl::MutexLock lock(mu_);
    since_ = since;
  }
  void Watch() {
    absl::MutexLock lock(mu_);
    while (!mu_.AwaitWithTimeout(absl::Condition(&ended_), limit_ / 4)) {
      if (SteadyTime::Now() - since_ < limit_) continue;
      hit_ = true;
      context_->TryCancel();
    }
  }

  grpc::ClientContext* const context_;
  const absl::Duration limit_;
  absl::Mutex mu_;
  SteadyTime since_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfiniteFuture();
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool hit_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Consecutive blocks become ranges.
wire::BlocksRequest RequestOf(const std::string& model_id, const std::vector<uint32_t>& blocks) {
  wire::BlocksRequest request;
  request.set_model_id(model_id);
  wire::BlockRange* last = nullptr;
  for (const uint32_t block : blocks) {
    if (last == nullptr || last->end() != block) {
      last = request.add_blocks();
      last->set_begin(block);
    }
    last->set_end(block + 1);
  }
  return request;
}

}  // namespace

NodeWeightSource::NodeWeightSource(std::string model_id, std::string address,
                                   absl::Duration idle_max)
    : model_id_(std::move(model_id)), address_(std::move(address)), idle_max_(idle_max) {}

void NodeWeightSource::Cancel() {
  absl::MutexLock lock(mu_);
  cancelled_ = true;
  for (grpc::ClientContext* const call : calls_) call->TryCancel();
}

bool NodeWeightSource::cancelled() {
  absl::MutexLock lock(mu_);
  return cancelled_;
}

// A call that Cancel() ends, as long as the returned object lives.
auto NodeWeightSource::Cancellable(grpc::ClientContext* context) {
  absl::MutexLock lock(mu_);
  calls_.insert(context);
  if (cancelled_) context->TryCancel();
  return absl::Cleanup([this, context] {
    absl::MutexLock end_lock(mu_);
    calls_.erase(context);
  });
}

absl::Status NodeWeightSource::EndOf(const absl::Status& status) {
  if (status.ok()) return status;
  if (cancelled()) return absl::CancelledError("fetching was cancelled");
  return Named(status);
}

absl::Status NodeWeightSource::IdleError() const {
  return Named(absl::UnavailableError(
      absl::StrCat("it sent nothing for ", absl::FormatDuration(idle_max_))));
}

absl::Status NodeWeightSource::Connect() {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(address_);
  const SteadyTime until = SteadyTime::Now() + kConnectTime;
  SteadyTime begun = SteadyTime::Now();  // the attempt to connect
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    // The source listened when its address was announced, so one refusal is final. An attempt
    // without an answer takes gRPC longer, and is repeated: a packet may have been lost.
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && SteadyTime::Now() - begun < kRefusedTime) {
      return Named(absl::UnavailableError(
          "nobody listens there (the connection was refused, or there is no route)"));
    }
    if (cancelled()) return absl::CancelledError("fetching was cancelled");
    if (SteadyTime::Now() > until) {
      return Named(absl::UnavailableError(
          absl::StrCat("nobody answers there within ", absl::FormatDuration(kConnectTime))));
    }
    if (channel->WaitForStateChange(state, DeadlineIn(kConnectPoll))) {
      state = channel->GetState(/*try_to_connect=*/true);
      if (state == GRPC_CHANNEL_CONNECTING) begun = SteadyTime::Now();
    }
  }
  stub_ = wire::Weights::NewStub(channel);
  return absl::OkStatus();
}

absl::Status NodeWeightSource::Describe(WeightCache* cache) {
  grpc::ClientContext context;
  const auto call = Cancellable(&context);
  wire::DescribeModelRequest request;
  request.set_model_id(model_id_);
  const auto reader = stub_->DescribeModel(&context, request);
  IdleLimit idle(&context, idle_max_);
  const auto read = [&](wire::ModelPiece* piece) { return idle.Read(reader.get(), piece); };
  const auto end = [&] {
    absl::Status status = FinishOf(reader.get(), &context);
    return idle.hit() ? IdleError() : EndOf(status);
  };
  wire::ModelPiece sizes;
  if (!read(&sizes)) {
    absl::Status status = end();
    return status.ok() ? Named(absl::InternalError("an empty response")) : status;
  }
  absl::Status ended;
  bool has_ended = false;
  const std::vector<uint64_t> part_bytes(sizes.part_bytes().begin(), sizes.part_bytes().end());
  absl::Status status =
      cache->Add(model_id_, part_bytes, [&]() -> absl::StatusOr<WeightCache::Piece> {
        wire::ModelPiece piece;
        if (read(&piece)) {
          return WeightCache::Piece{.part = piece.part(),
                                    .offset = piece.offset(),
                                    .bytes = std::move(*piece.mutable_data())};
        }
        has_ended = true;
        ended = end();
        if (!ended.ok()) return ended;
        return WeightCache::Piece{};
      });
  if (!has_ended) {
    context.TryCancel();
    reader->Finish().ok();
  }
  return status.ok() || !ended.ok() || absl::IsResourceExhausted(status) ? status : Named(status);
}

absl::StatusOr<std::vector<bool>> NodeWeightSource::List(size_t n_blocks) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(kListTime));
  const auto call = Cancellable(&context);
  wire::ListBlocksRequest request;
  request.set_model_id(model_id_);
  wire::BlockList list;
  absl::Status status = FromGrpc(stub_->ListBlocks(&context, request, &list));
  if (absl::IsNotFound(status)) return status;
  if (!status.ok()) return EndOf(status);
  auto there = ReadBlockList(list, n_blocks);
  if (!there.ok()) return Named(there.status());
  return there;
}

absl::Status NodeWeightSource::Hash(const std::vector<uint32_t>& blocks, bool known_only,
                                    OnHash on_hash) {
  grpc::ClientContext context;
  const auto call = Cancellable(&context);
  wire::BlocksRequest request = RequestOf(model_id_, blocks);
  request.set_known_only(known_only);
  const auto reader = stub_->HashBlocks(&context, request);
  IdleLimit idle(&context, idle_max_);
  wire::BlockHashes answer;
  while (idle.Read(reader.get(), &answer)) {
    for (const wire::BlockHash& hash : answer.hashes()) {
      if (hash.hash().size() == kWeightHashBytes) on_hash(hash.block(), hash.hash());
    }
  }
  absl::Status status = FinishOf(reader.get(), &context);
  return idle.hit() ? IdleError() : EndOf(status);
}

absl::Status NodeWeightSource::Read(const WeightBlocks& /*all*/,
                                    const std::vector<uint32_t>& blocks, OnChunk on_chunk) {
  grpc::ClientContext context;
  const auto call = Cancellable(&context);
  const auto reader = stub_->ReadBlocks(&context, RequestOf(model_id_, blocks));
  IdleLimit idle(&context, idle_max_);
  bool stopped = false;
  for (wire::BlockChunk chunk; !stopped; chunk.Clear()) {
    if (!idle.Read(reader.get(), &chunk)) break;
    stopped = !on_chunk(chunk);
  }
  if (stopped) context.TryCancel();
  absl::Status status = FinishOf(reader.get(), &context);
  if (stopped) return absl::OkStatus();
  if (idle.hit()) return IdleError();
  if (absl::IsNotFound(status) || absl::IsDataLoss(status)) return status;
  return EndOf(status);
}

}  // namespace strata
