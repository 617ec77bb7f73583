#include "node/weight_fetcher.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "node/weight_queue.h"
#include "node/weight_service.h"
#include "shard/model_file.h"
#include "transport/grpc_link.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

constexpr std::chrono::seconds kConnectTime(5);
constexpr std::chrono::milliseconds kConnectPoll(50);
// Sooner than gRPC gives up on an attempt to connect (MakeChannel: 1 s).
constexpr std::chrono::milliseconds kRefusedTime(500);
// So much is lost at most when the power fails.
constexpr uint64_t kSaveBytes = 1u << 30;

// Where a message could not be read there may be more behind it, and gRPC's end of the call waits
// for them to be taken: who sends such things must not keep this node waiting. The end itself comes
// at once.
constexpr absl::Duration kFinishTime = absl::Seconds(3);

// What the call ended with, after Read() has said no.
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

// Runs of numbers as ranges.
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

class WeightFetcher::Job {
 public:
  Job(Request request, Callbacks callbacks)
      : request_(std::move(request)), callbacks_(std::move(callbacks)) {}

  void Cancel() {
    absl::MutexLock lock(mu_);
    cancelled_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }

  // Fetcher's thread.
  void Run(const std::shared_ptr<WeightCache>& cache) {
    absl::StatusOr<Fetched> fetched = Fetch(cache);
    if (!fetched.ok() && cancelled()) fetched = absl::CancelledError("fetching was cancelled");
    std::exchange(callbacks_.done, nullptr)(std::move(fetched));
  }

 private:
  absl::StatusOr<Fetched> Fetch(const std::shared_ptr<WeightCache>& cache);
  absl::StatusOr<Fetched> FetchHeaders(WeightCache* cache);
  absl::Status Connect();
  absl::Status Describe(WeightCache* cache);
  absl::Status CompareHashes(WeightLease* lease);
  absl::Status CheckWhatIsThere(WeightLease* lease);
  absl::Status ReadMissing(WeightLease* lease);
  // Makes the blocks of `chunks` part of the cache; the writing thread.
  absl::Status Store(WeightLease* lease, const std::vector<uint32_t>& blocks,
                     WeightQueue<wire::BlockChunk>* chunks);

  bool cancelled() {
    absl::MutexLock lock(mu_);
    return cancelled_;
  }
  // A call that Cancel() ends, as long as the returned object lives.
  auto Cancellable(grpc::ClientContext* context) {
    absl::MutexLock lock(mu_);
    call_ = context;
    if (cancelled_) context->TryCancel();
    return absl::Cleanup([this] {
      absl::MutexLock end_lock(mu_);
      call_ = nullptr;
    });
  }
  // What a call to the source ended with, in words about it.
  absl::Status FromSource(const absl::Status& status) const {
    if (status.ok()) return status;
    absl::StatusCode code = status.code();
    // A source that no longer shares the model can be asked to by a new plan.
    if (absl::IsNotFound(status)) code = absl::StatusCode::kFailedPrecondition;
    // What gRPC makes of a server that goes; a cancelled fetch says so itself.
    if (absl::IsCancelled(status) || absl::IsUnknown(status)) code = absl::StatusCode::kUnavailable;
    return absl::Status(
        code, absl::StrCat("fetching weights from ", request_.address, ": ", status.message()));
  }
  void Advance(uint64_t bytes) {
    done_ += bytes;
    callbacks_.progress(done_, total_);
  }

  const Request request_;
  Callbacks callbacks_;

  // Fetcher's thread; the writing thread's while there is one.
  uint64_t done_ = 0, total_ = 0, fetched_ = 0;
  std::unique_ptr<wire::Weights::Stub> stub_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;
};

absl::StatusOr<WeightFetcher::Fetched> WeightFetcher::Job::Fetch(
    const std::shared_ptr<WeightCache>& cache) {
  if (cancelled()) return absl::CancelledError("");
  if (!request_.path.empty()) {
    auto model = ModelFile::Open(request_.path);
    if (model.ok() && (*model)->id() == request_.model_id) {
      return Fetched{.path = request_.path, .lease = nullptr, .headers = *std::move(model)};
    }
  }
  if (cache == nullptr) {
    return absl::FailedPreconditionError(
        "the model's file is on another machine, and this node has no cache (--cache-dir)");
  }
  if (request_.headers_only) return FetchHeaders(cache.get());
  absl::Status connected = Connect();
  const SliceOptions slice{.unverified = request_.unverified};
  auto lease = cache->Lease(request_.model_id, request_.layers, slice);
  if (absl::IsNotFound(lease.status())) {
    if (!connected.ok()) return connected;
    if (absl::Status status = Describe(cache.get()); !status.ok()) return status;
    lease = cache->Lease(request_.model_id, request_.layers, slice);
  }
  if (!lease.ok()) return lease.status();

  if (connected.ok()) {
    if (absl::Status status = CompareHashes(lease->get()); !status.ok()) return status;
  }
  if (absl::Status status = CheckWhatIsThere(lease->get()); !status.ok()) return status;
  if (!(*lease)->Missing().empty()) {
    if (!connected.ok()) return connected;
    if (absl::Status status = ReadMissing(lease->get()); !status.ok()) return status;
  }
  return Fetched{.path = (*lease)->path(), .lease = *std::move(lease), .bytes_fetched = fetched_};
}

absl::StatusOr<WeightFetcher::Fetched> WeightFetcher::Job::FetchHeaders(WeightCache* cache) {
  auto headers = cache->Headers(request_.model_id);
  if (absl::IsNotFound(headers.status())) {
    if (absl::Status status = Connect(); !status.ok()) return status;
    if (absl::Status status = Describe(cache); !status.ok()) return status;
    headers = cache->Headers(request_.model_id);
  }
  if (!headers.ok()) return headers.status();
  return Fetched{.path = (*headers)->paths().front(), .lease = nullptr, .headers = *headers};
}

absl::Status WeightFetcher::Job::Connect() {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(request_.address);
  const auto now = [] { return std::chrono::system_clock::now(); };
  const auto until = now() + kConnectTime;
  auto begun = now();  // the attempt to connect
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    // The source listened when its address was told, so once refused is enough. An attempt without
    // an answer takes gRPC longer, and is made again: a packet may have been lost.
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && now() - begun < kRefusedTime) {
      return FromSource(absl::UnavailableError(
          "nobody listens there (the connection was refused, or no way leads there)"));
    }
    if (cancelled()) return absl::CancelledError("");
    if (now() > until) {
      return FromSource(absl::UnavailableError(
          absl::StrCat("nobody answers there within ", kConnectTime.count(), " s")));
    }
    if (channel->WaitForStateChange(state, now() + kConnectPoll)) {
      state = channel->GetState(/*try_to_connect=*/true);
      if (state == GRPC_CHANNEL_CONNECTING) begun = now();
    }
  }
  stub_ = wire::Weights::NewStub(channel);
  return absl::OkStatus();
}

absl::Status WeightFetcher::Job::Describe(WeightCache* cache) {
  grpc::ClientContext context;
  const auto call = Cancellable(&context);
  wire::DescribeModelRequest request;
  request.set_model_id(request_.model_id);
  const auto reader = stub_->DescribeModel(&context, request);
  wire::ModelPiece sizes;
  if (!reader->Read(&sizes)) {
    const absl::Status status = FinishOf(reader.get(), &context);
    return FromSource(status.ok() ? absl::InternalError("an empty answer") : status);
  }
  absl::Status ended;
  bool has_ended = false;
  const std::vector<uint64_t> part_bytes(sizes.part_bytes().begin(), sizes.part_bytes().end());
  absl::Status status =
      cache->Add(request_.model_id, part_bytes, [&]() -> absl::StatusOr<WeightCache::Piece> {
        wire::ModelPiece piece;
        if (reader->Read(&piece)) {
          return WeightCache::Piece{.part = piece.part(),
                                    .offset = piece.offset(),
                                    .bytes = std::move(*piece.mutable_data())};
        }
        has_ended = true;
        ended = FromSource(FinishOf(reader.get(), &context));
        if (!ended.ok()) return ended;
        return WeightCache::Piece{};
      });
  if (!has_ended) {
    context.TryCancel();
    reader->Finish().ok();
  }
  return status.ok() || !ended.ok() || absl::IsResourceExhausted(status) ? status
                                                                         : FromSource(status);
}

// Blocks of another file with the same id are noticed here.
absl::Status WeightFetcher::Job::CompareHashes(WeightLease* lease) {
  std::vector<uint32_t> there;
  for (const uint32_t block : lease->blocks()) {
    if (!lease->HashOf(block).empty()) there.push_back(block);
  }
  if (there.empty()) return absl::OkStatus();
  grpc::ClientContext context;
  const auto call = Cancellable(&context);
  const auto reader = stub_->HashBlocks(&context, RequestOf(request_.model_id, there));
  std::vector<uint32_t> differ;
  wire::BlockHashes answer;
  while (reader->Read(&answer)) {
    for (const wire::BlockHash& hash : answer.hashes()) {
      const std::string ours = lease->HashOf(hash.block());
      if (!ours.empty() && ours != hash.hash() &&
          std::binary_search(there.begin(), there.end(), hash.block())) {
        differ.push_back(hash.block());
      }
    }
  }
  absl::Status status = FinishOf(reader.get(), &context);
  if (cancelled()) return absl::CancelledError("");
  if (!status.ok() && lease->Missing().empty()) {
    LOG(WARNING) << FromSource(status).message() << "; what the cache has is used as it is";
    status = absl::OkStatus();
  }
  if (!status.ok()) return FromSource(status);
  return differ.empty() ? absl::OkStatus() : lease->Forget(differ);
}

absl::Status WeightFetcher::Job::CheckWhatIsThere(WeightLease* lease) {
  const std::vector<uint32_t> unchecked = lease->Unchecked();
  total_ = lease->all_blocks().BytesOf(unchecked) + lease->all_blocks().BytesOf(lease->Missing()) +
           lease->all_blocks().BytesOf(lease->blocks());
  Advance(0);
  for (const uint32_t block : unchecked) {
    if (cancelled()) return absl::CancelledError("");
    absl::StatusOr<bool> good = lease->Check(block);
    if (!good.ok()) return good.status();
    const uint64_t bytes = lease->all_blocks()[block].bytes;
    if (!*good) {
      LOG(WARNING) << "block " << block << " of " << lease->path()
                   << " is damaged and fetched again";
      total_ += bytes;
    }
    Advance(bytes);
  }
  return absl::OkStatus();
}

absl::Status WeightFetcher::Job::ReadMissing(WeightLease* lease) {
  if (absl::Status status = lease->MakeRoom(); !status.ok()) return status;
  const std::vector<uint32_t> missing = lease->Missing();
  grpc::ClientContext context;
  const auto call = Cancellable(&context);
  const auto reader = stub_->ReadBlocks(&context, RequestOf(request_.model_id, missing));
  WeightQueue<wire::BlockChunk> chunks(kWeightChunksMax);
  absl::Status stored;  // the writing thread's, until it is joined
  std::thread writing([&] {
    stored = Store(lease, missing, &chunks);
    chunks.Close();
  });
  wire::BlockChunk chunk;
  while (reader->Read(&chunk)) {
    if (!chunks.Push(std::move(chunk))) break;
    chunk.Clear();
  }
  chunks.Close();
  writing.join();
  if (!stored.ok()) context.TryCancel();
  const absl::Status ended = FinishOf(reader.get(), &context);
  // Whatever has come stays.
  absl::Status saved = lease->Save();
  if (!stored.ok()) return stored;
  if (!ended.ok()) return FromSource(ended);
  if (!lease->Missing().empty()) return FromSource(absl::DataLossError("it sent too little"));
  return saved;
}

absl::Status WeightFetcher::Job::Store(WeightLease* lease, const std::vector<uint32_t>& blocks,
                                       WeightQueue<wire::BlockChunk>* chunks) {
  auto block = blocks.begin();
  uint64_t at = 0, unsaved = 0;
  WeightHasher hasher;
  while (std::optional<wire::BlockChunk> chunk = chunks->Pop()) {
    const uint64_t size = chunk->data().size();
    if (block == blocks.end() || chunk->block() != *block || chunk->offset() != at || size == 0 ||
        size > lease->all_blocks()[*block].bytes - at) {
      return FromSource(absl::DataLossError("it sent bytes that were not asked for"));
    }
    hasher.Add(chunk->data());
    if (absl::Status status = lease->Write(*block, at, chunk->data()); !status.ok()) return status;
    at += size;
    fetched_ += size;
    Advance(size);
    if (at < lease->all_blocks()[*block].bytes) continue;
    const std::string hash = hasher.Finish();
    if (hash != chunk->hash()) {
      return FromSource(absl::DataLossError(absl::StrCat("the bytes of block ", *block,
                                                         " do not have their hash: its disk or its "
                                                         "memory fails")));
    }
    lease->Finish(*block, hash);
    unsaved += at;
    at = 0;
    ++block;
    if (unsaved < kSaveBytes) continue;
    unsaved = 0;
    if (absl::Status status = lease->Save(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

WeightFetcher::WeightFetcher(std::shared_ptr<WeightCache> cache)
    : cache_(std::move(cache)), thread_([this] { Run(); }), letting_go_([this] {
        while (let_go_.Pop().has_value()) {
        }
      }) {}

WeightFetcher::~WeightFetcher() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    for (const std::shared_ptr<Job>& job : jobs_) job->Cancel();
  }
  thread_.join();
  let_go_.Close();
  letting_go_.join();
}

void WeightFetcher::LetGo(std::shared_ptr<WeightLease> lease) { let_go_.Push(std::move(lease)); }

std::shared_ptr<WeightFetcher::Job> WeightFetcher::Start(Request request, Callbacks callbacks) {
  {
    absl::MutexLock lock(mu_);
    if (!stopping_ && jobs_.size() < kFetchesMax) {
      return jobs_.emplace_back(std::make_shared<Job>(std::move(request), std::move(callbacks)));
    }
  }
  callbacks.done(absl::ResourceExhaustedError("too many fetches of weights"));
  return nullptr;
}

void WeightFetcher::Cancel(Job* job) {
  if (job != nullptr) job->Cancel();
}

void WeightFetcher::Run() {
  while (true) {
    std::shared_ptr<Job> job;
    {
      absl::MutexLock lock(mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || !jobs_.empty();
      };
      mu_.Await(absl::Condition(&wanted));
      if (jobs_.empty()) return;
      job = jobs_.front();
    }
    job->Run(cache_);
    absl::MutexLock lock(mu_);
    jobs_.pop_front();
  }
}

}  // namespace strata
