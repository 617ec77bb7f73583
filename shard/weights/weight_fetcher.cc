#include "shard/weights/weight_fetcher.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "shard/weights/weight_queue.h"
#include "transport/rpc/status_details.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

// "300.0 MiB of weights: 200.0 MiB from 10.0.0.2:4242, 100.0 MiB from 10.0.0.3:4242".
std::string DescribeShares(const std::vector<WeightTransfer::Share>& shares) {
  uint64_t bytes = 0;
  std::vector<std::string> parts;
  for (const WeightTransfer::Share& share : shares) {
    bytes += share.bytes;
    if (share.bytes > 0) {
      parts.push_back(absl::StrCat(Mebibytes(share.bytes), " from ", share.address));
    }
  }
  for (const WeightTransfer::Share& share : shares) {
    if (share.address.empty() || share.why.ok() || absl::IsCancelled(share.why)) continue;
    parts.push_back(absl::StrCat(share.bytes > 0 ? "no more from " : "none from ", share.address,
                                 " (", share.why.message(), ")"));
  }
  return absl::StrCat(Mebibytes(bytes), " of weights: ", absl::StrJoin(parts, ", "));
}

}  // namespace

class WeightFetcher::Job {
 public:
  Job(Request request, Callbacks callbacks, const TokenOf& token_of)
      : request_(std::move(request)),
        progress_(std::move(callbacks.progress)),
        done_(std::move(callbacks.done)),
        source_(request_.model_id, request_.address, request_.idle_max) {
    if (request_.remote.parts_size() > 0) {
      server_ = std::make_unique<WebWeightSource>(request_.model_id, request_.remote, token_of);
    }
    for (const std::string& peer : request_.peers) {
      if (peers_.size() + 1 == kWeightSourcesMax) break;
      const bool known =
          absl::c_any_of(peers_, [&](const auto& each) { return each->address() == peer; });
      if (known || peer.empty() || peer == request_.address) continue;
      peers_.push_back(
          std::make_unique<NodeWeightSource>(request_.model_id, peer, request_.idle_max));
    }
  }

  void Cancel() {
    absl::MutexLock lock(mu_);
    cancelled_ = true;
    if (transfer_ != nullptr) transfer_->Cancel();
    source_.Cancel();
    for (const auto& peer : peers_) peer->Cancel();
    if (server_ != nullptr) server_->Cancel();
  }

  // Fetcher's thread.
  void Run(const std::shared_ptr<WeightCache>& cache) {
    absl::StatusOr<Fetched> fetched = Fetch(cache);
    if (!fetched.ok() && cancelled()) fetched = absl::CancelledError("fetching was cancelled");
    std::exchange(done_, nullptr)(std::move(fetched));
  }

 private:
  absl::StatusOr<Fetched> Fetch(const std::shared_ptr<WeightCache>& cache);
  absl::StatusOr<Fetched> FetchHeaders(WeightCache* cache);
  // `add` adds the model to a cache; after that `id` is its id.
  absl::StatusOr<Fetched> FetchHeadersElsewhere(const std::string* id,
                                                absl::FunctionRef<absl::Status(WeightCache*)> add);
  // Connects to the source.
  absl::Status ConnectSource();
  // Adds the model to the cache: from the source if it is connected (`source`), else from a peer or
  // the server; the id verifies the description.
  absl::Status Describe(WeightCache* cache, const absl::Status& source);
  // `source`: OK, or why the source cannot be used; set to its error here.
  absl::Status CompareHashes(WeightLease* lease, absl::Status* source);
  absl::Status CheckSuspect(WeightLease* lease);
  std::vector<uint32_t> BlocksOfFirstStage(const WeightLease& lease) const;
  // `source`: OK, or why the source cannot give missing blocks.
  absl::Status ReadMissing(WeightLease* lease, absl::Status source, Fetched* fetched);

  bool cancelled() {
    absl::MutexLock lock(mu_);
    return cancelled_;
  }

  const Request request_;
  WeightProgress progress_;
  absl::AnyInvocable<void(absl::StatusOr<Fetched>)> done_;
  NodeWeightSource source_;
  std::vector<std::unique_ptr<NodeWeightSource>> peers_;
  std::unique_ptr<WebWeightSource> server_;  // null: the model is on none

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  WeightTransfer* transfer_ ABSL_GUARDED_BY(mu_) = nullptr;
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
  if (server_ != nullptr) {
    if (auto s = WebWeightSource::Check(request_.remote); !s.ok()) return s;
  } else if (request_.model_id.empty()) {
    return absl::InvalidArgumentError("a fetch of no model");
  }
  if (request_.headers_only) return FetchHeaders(cache.get());
  absl::Status source = ConnectSource();
  const SliceOptions slice{.unverified = request_.unverified};
  auto lease = cache->Lease(request_.model_id, request_.layers, slice);
  if (absl::IsNotFound(lease.status())) {
    if (absl::Status status = Describe(cache.get(), source); !status.ok()) return status;
    lease = cache->Lease(request_.model_id, request_.layers, slice);
  }
  if (!lease.ok()) return lease.status();
  if (request_.check_again) (*lease)->MarkSuspect();

  if (absl::Status status = CompareHashes(lease->get(), &source); !status.ok()) return status;
  if (absl::Status status = CheckSuspect(lease->get()); !status.ok()) return status;
  Fetched fetched;
  if (!(*lease)->Missing().empty()) {
    absl::Status status = ReadMissing(lease->get(), std::move(source), &fetched);
    if (!status.ok()) return status;
  }
  // A read for another node may have found a damaged block meanwhile.
  if (!(*lease)->Missing().empty()) {
    return absl::UnavailableError(
        "cached blocks were removed while others were fetched; try again");
  }
  fetched.path = (*lease)->path();
  fetched.block_hashes = (*lease)->BlockHashes();
  fetched.lease = *std::move(lease);
  return fetched;
}

absl::StatusOr<WeightFetcher::Fetched> WeightFetcher::Job::FetchHeaders(WeightCache* cache) {
  std::string id = request_.model_id;
  auto headers = cache->Headers(id);
  if (absl::IsNotFound(headers.status())) {
    const absl::Status source = ConnectSource();
    const auto add = [&](WeightCache* to) -> absl::Status {
      if (!id.empty()) return Describe(to, source);
      const auto added = server_->AddTo(to);
      if (added.ok()) id = *added;
      return added.status();
    };
    absl::Status status = add(cache);
    // Planning must not need disk space.
    if (DiskShortageOf(status)) return FetchHeadersElsewhere(&id, add);
    if (!status.ok()) return status;
    headers = cache->Headers(id);
  }
  if (!headers.ok()) return headers.status();
  return Fetched{.path = (*headers)->paths().front(), .lease = nullptr, .headers = *headers};
}

// The folder is removed at once: the headers are in memory.
absl::StatusOr<WeightFetcher::Fetched> WeightFetcher::Job::FetchHeadersElsewhere(
    const std::string* id, absl::FunctionRef<absl::Status(WeightCache*)> add) {
  const auto folder = NewPrivateFolder();
  if (!folder.ok()) return folder.status();
  const absl::Cleanup remove = [&folder] {
    std::error_code error;
    std::filesystem::remove_all(*folder, error);
  };
  const auto cache = WeightCache::Open({.folder = *folder, .bytes_max = UINT64_MAX});
  if (!cache.ok()) return cache.status();
  if (absl::Status status = add(cache->get()); !status.ok()) return status;
  auto headers = (*cache)->Headers(*id);
  if (!headers.ok()) return headers.status();
  return Fetched{.path = (*headers)->paths().front(), .lease = nullptr, .headers = *headers};
}

absl::Status WeightFetcher::Job::ConnectSource() {
  if (!request_.address.empty()) return source_.Connect();
  if (server_ != nullptr) return absl::UnavailableError("the model's file is on a server");
  return absl::UnavailableError("no node that answers has the model's file");
}

absl::Status WeightFetcher::Job::Describe(WeightCache* cache, const absl::Status& source) {
  if (source.ok()) return source_.Describe(cache);
  for (const auto& peer : peers_) {
    if (cancelled()) return absl::CancelledError("");
    absl::Status status = peer->Connect();
    if (status.ok()) status = peer->Describe(cache);
    if (status.ok() || absl::IsResourceExhausted(status)) return status;  // this node's disk
    // The first that loads a model from a server find nothing of it at the others.
    if (server_ == nullptr) LOG(WARNING) << status.message();
  }
  return server_ == nullptr ? source : server_->Describe(cache);
}

// Detects blocks of another file with the same id.
absl::Status WeightFetcher::Job::CompareHashes(WeightLease* lease, absl::Status* source) {
  std::vector<uint32_t> there;
  for (const uint32_t block : lease->blocks()) {
    if (!lease->HashOf(block).empty()) there.push_back(block);
  }
  if (there.empty() || !source->ok()) return absl::OkStatus();
  std::vector<uint32_t> differ;
  absl::Status status =
      source_.Hash(there, /*known_only=*/false, [&](uint32_t block, const std::string& hash) {
        const std::string ours = lease->HashOf(block);
        if (!ours.empty() && ours != hash &&
            std::binary_search(there.begin(), there.end(), block)) {
          differ.push_back(block);
        }
      });
  if (cancelled()) return absl::CancelledError("");
  if (!status.ok()) {
    *source = source_.Named(status);
    if (lease->Missing().empty()) {
      LOG(WARNING) << source->message() << "; the cached weights are used without comparison";
    }
    return absl::OkStatus();
  }
  return differ.empty() ? absl::OkStatus() : lease->Forget(differ);
}

absl::Status WeightFetcher::Job::CheckSuspect(WeightLease* lease) {
  const std::vector<uint32_t> suspect = lease->Suspect();
  const WeightBlocks& blocks = lease->all_blocks();
  progress_.Add(0, blocks.BytesOf(suspect) + blocks.BytesOf(lease->Missing()) +
                       blocks.BytesOf(lease->blocks()));
  for (const uint32_t block : suspect) {
    if (cancelled()) return absl::CancelledError("");
    const bool good = lease->Check(block);
    const uint64_t bytes = blocks[block].bytes;
    if (!good) {
      LOG(WARNING) << "block " << block << " of " << lease->path()
                   << " is damaged and fetched again";
    }
    progress_.Add(bytes, good ? 0 : bytes);
  }
  return absl::OkStatus();
}

absl::Status WeightFetcher::Job::ReadMissing(WeightLease* lease, absl::Status source,
                                             Fetched* fetched) {
  if (!source.ok() && peers_.empty() && server_ == nullptr) return source;
  if (absl::Status status = lease->MakeRoom(); !status.ok()) return status;
  std::vector<WeightSource*> sources = {&source_};
  for (const auto& peer : peers_) sources.push_back(peer.get());
  WeightTransfer transfer({.lease = lease,
                           .sources = std::move(sources),
                           .source = std::move(source),
                           .no_source = request_.address.empty(),
                           .server = server_.get(),
                           .of_peers = BlocksOfFirstStage(*lease),
                           .progress = &progress_,
                           .join_max = request_.join_max});
  {
    absl::MutexLock lock(mu_);
    if (cancelled_) return absl::CancelledError("");
    transfer_ = &transfer;
  }
  const absl::Cleanup forget = [this] {
    absl::MutexLock lock(mu_);
    transfer_ = nullptr;
  };
  absl::Status status = transfer.Run();
  fetched->shares = transfer.shares();
  for (const WeightTransfer::Share& share : fetched->shares) fetched->bytes_fetched += share.bytes;
  LOG(INFO) << DescribeShares(fetched->shares);
  return status;
}

// The blocks that the first stage of a plan has, too: an embedding that is the output as well. That
// stage is to fetch them from the server, and the others from it.
std::vector<uint32_t> WeightFetcher::Job::BlocksOfFirstStage(const WeightLease& lease) const {
  std::vector<uint32_t> shared;
  if (server_ == nullptr || request_.layers.begin == 0) return shared;
  const auto first = Slice::Make(lease.model(), {0, 1}, {.unverified = request_.unverified});
  if (!first.ok()) return shared;
  absl::c_set_intersection(lease.blocks(), lease.all_blocks().OfTensors(first->source_tensors()),
                           std::back_inserter(shared));
  return shared;
}

WeightFetcher::WeightFetcher(std::shared_ptr<WeightCache> cache, TokenOf token_of)
    : cache_(std::move(cache)),
      token_of_(std::move(token_of)),
      thread_([this] { Run(); }),
      releaser_([this] {
        while (released_.Pop().has_value()) {
        }
      }) {}

WeightFetcher::~WeightFetcher() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    for (const std::shared_ptr<Job>& job : jobs_) job->Cancel();
    for (const Server& server : servers_) {
      if (server.source != nullptr) server.source->Cancel();
    }
  }
  thread_.join();
  released_.Close();
  releaser_.join();
}

void WeightFetcher::LetGo(std::shared_ptr<WeightLease> lease) { released_.Push(std::move(lease)); }

std::shared_ptr<WeightFetcher::Job> WeightFetcher::Start(Request request, Callbacks callbacks) {
  {
    absl::MutexLock lock(mu_);
    if (request.remote.parts_size() > 0 && !request.model_id.empty()) {
      Server server = {.model_id = request.model_id, .remote = request.remote};
      const auto known = absl::c_find_if(
          servers_, [&](const Server& each) { return each.model_id == server.model_id; });
      if (known != servers_.end()) {
        if (known->remote.SerializeAsString() == server.remote.SerializeAsString()) {
          server.source = std::move(known->source);
        }
        servers_.erase(known);
      }
      servers_.push_back(std::move(server));
      if (servers_.size() > kServersMax) servers_.pop_front();
    }
    if (!stopping_ && jobs_.size() < kFetchesMax) {
      return jobs_.emplace_back(
          std::make_shared<Job>(std::move(request), std::move(callbacks), token_of_));
    }
  }
  callbacks.done(absl::ResourceExhaustedError("too many fetches of weights"));
  return nullptr;
}

std::shared_ptr<WeightSource> WeightFetcher::ServerOf(const std::string& model_id) {
  absl::MutexLock lock(mu_);
  const auto found =
      absl::c_find_if(servers_, [&](const Server& server) { return server.model_id == model_id; });
  if (found == servers_.end() || !WebWeightSource::Check(found->remote).ok()) return nullptr;
  if (found->source == nullptr) {
    found->source = std::make_shared<WebWeightSource>(model_id, found->remote, token_of_);
  }
  return found->source;
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
