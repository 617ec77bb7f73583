#include "shard/weights/weight_service.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "shard/weights/weight_queue.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/grpc_status.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// Stored files of hashes; the oldest are removed.
constexpr size_t kHashFilesMax = 64;
// Hashes in one response.
constexpr int kHashesMax = 256;
constexpr absl::Duration kHashesEvery = absl::Seconds(1);

void DropOldest(const std::string& folder, size_t files_max) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) {
    files.emplace_back(file.last_write_time(error), file.path());
  }
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i + files_max < files.size(); ++i) fs::remove(files[i].second, error);
}

}  // namespace

struct WeightService::ServedModel {
  ServedModel(std::shared_ptr<const ModelFile> file, std::string file_key)
      : model(std::move(file)), blocks(*model), key(std::move(file_key)) {}

  // Constant.
  const std::shared_ptr<const ModelFile> model;  // shared with the cache, or not at all
  const WeightBlocks blocks;
  const std::string key;  // of the file, or the number of the cache's entry

  absl::Mutex mu;
  WeightHashes hashes ABSL_GUARDED_BY(mu);
  bool unsaved ABSL_GUARDED_BY(mu) = false;

  std::string HashOf(uint32_t block) {
    absl::MutexLock lock(mu);
    const auto found = hashes.find(block);
    return found == hashes.end() ? "" : found->second;
  }
};

// kInvalidArgument: blocks that the model does not have; kNotFound: blocks that are not cached.
absl::StatusOr<std::vector<uint32_t>> WeightService::Lookup::RequestedBlocks(
    const wire::BlocksRequest& request, bool may_fetch) const {
  const size_t n_blocks = shared->blocks.size();
  std::vector<uint32_t> listed;
  for (const wire::BlockRange& range : request.blocks()) {
    if (range.begin() >= range.end() || range.end() > n_blocks ||
        listed.size() + (range.end() - range.begin()) > n_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("blocks ", range.begin(), "-", range.end(), " of ", n_blocks));
    }
    for (uint32_t block = range.begin(); block < range.end(); ++block) {
      if (snapshot.has_value() && !snapshot->hashes.contains(block) && !may_fetch) {
        if (request.known_only()) continue;
        return absl::NotFoundError(absl::StrCat("block ", block, " is not in the cache there"));
      }
      listed.push_back(block);
    }
  }
  return listed;
}

std::string WeightService::Lookup::HashOf(uint32_t block) const {
  if (!snapshot.has_value()) return shared->HashOf(block);
  const auto found = snapshot->hashes.find(block);
  return found == snapshot->hashes.end() ? "" : found->second;
}

// Counts as a concurrent read, and stores new hashes when it ends.
class WeightService::Reading {
 public:
  Reading(WeightService* service, Lookup found, std::vector<uint32_t> blocks)
      : service_(service), found_(std::move(found)), blocks_(std::move(blocks)) {
    ++service_->reads_;
  }
  Reading(const Reading&) = delete;
  ~Reading() {
    service_->SaveHashes(found_.shared.get());
    --service_->reads_;
  }

  const Lookup& found() const { return found_; }
  const std::vector<uint32_t>& blocks() const { return blocks_; }

 private:
  WeightService* const service_;
  const Lookup found_;
  const std::vector<uint32_t> blocks_;
};

WeightService::WeightService(std::string hashes_folder, std::shared_ptr<WeightCache> cache,
                             ServerOf server_of)
    : hashes_folder_(std::move(hashes_folder)),
      cache_(std::move(cache)),
      server_of_(std::move(server_of)) {
  if (hashes_folder_.empty()) return;
  const absl::Status made = MakePrivateFolder(hashes_folder_);
  if (!made.ok()) LOG(WARNING) << made.message();
}

WeightService::~WeightService() = default;

bool WeightService::ShareAgain(const std::string& path, wire::ShareModelResponse* response) {
  ServedModelPtr same;
  {
    absl::MutexLock lock(mu_);
    const auto found = std::ranges::find_if(shared_, [&](const ServedModelPtr& shared) {
      return absl::c_linear_search(shared->model->paths(), path);
    });
    if (found != shared_.end()) same = *found;
  }
  if (same == nullptr) return false;
  if (!same->model->CheckUnchanged().ok()) return false;
  response->set_model_id(same->model->id());
  response->set_bytes(same->model->tensor_bytes());
  absl::MutexLock lock(mu_);
  // Another file with the same id may have been shared meanwhile.
  shared_.remove_if(
      [&same](const ServedModelPtr& each) { return each->model->id() == same->model->id(); });
  shared_.push_front(std::move(same));
  if (shared_.size() > kSharedModelsMax) shared_.pop_back();
  return true;
}

grpc::Status WeightService::ShareModel(grpc::ServerContext*, const wire::ShareModelRequest* request,
                                       wire::ShareModelResponse* response) {
  if (ShareAgain(request->path(), response)) return grpc::Status::OK;
  absl::StatusOr<std::shared_ptr<const ModelFile>> model = ModelFile::Open(request->path());
  if (!model.ok()) return ToGrpc(model.status());
  // The file may have been written to while its headers were read.
  if (absl::Status status = (*model)->CheckUnchanged(); !status.ok()) return ToGrpc(status);
  if (absl::Status status = CheckNoHoles(**model); !status.ok()) return ToGrpc(status);
  response->set_model_id((*model)->id());
  response->set_bytes((*model)->tensor_bytes());
  auto shared = std::make_shared<ServedModel>(*model, (*model)->file_key());
  if (!hashes_folder_.empty()) {
    absl::MutexLock hashes_lock(shared->mu);
    shared->hashes =
        ReadStoredHashes(absl::StrCat(hashes_folder_, "/", absl::BytesToHexString(shared->key)),
                         shared->key, shared->blocks.size());
  }
  absl::MutexLock lock(mu_);
  // Of several files with one id, the last one is used; running calls keep theirs.
  const auto same = std::find_if(shared_.begin(), shared_.end(), [&](const ServedModelPtr& shared) {
    return shared->model->id() == (*model)->id();
  });
  if (same != shared_.end()) {
    if ((*same)->key == shared->key) shared = *same;
    shared_.erase(same);
  }
  shared_.push_front(std::move(shared));
  if (shared_.size() > kSharedModelsMax) shared_.pop_back();
  return grpc::Status::OK;
}

std::string WeightService::FileKeyOf(const std::string& path) const {
  absl::MutexLock lock(mu_);
  for (const ServedModelPtr& shared : shared_) {
    if (absl::c_linear_search(shared->model->paths(), path)) return shared->key;
  }
  return "";
}

absl::StatusOr<WeightService::Lookup> WeightService::Find(const std::string& model_id) {
  ServedModelPtr found;
  {
    absl::MutexLock lock(mu_);
    for (const ServedModelPtr& shared : shared_) {
      if (shared->model->id() == model_id) found = shared;
    }
  }
  if (found == nullptr) return FindCached(model_id);
  if (absl::Status status = found->model->CheckUnchanged(); !status.ok()) {
    if (auto cached = FindCached(model_id); cached.ok()) return cached;
    return status;
  }
  return Lookup{.shared = std::move(found), .snapshot = std::nullopt};
}

absl::StatusOr<WeightService::Lookup> WeightService::FindCached(const std::string& model_id) {
  absl::Status none = absl::NotFoundError("no such model is shared here");
  if (cache_ == nullptr) return none;
  absl::StatusOr<WeightCache::Snapshot> snapshot = cache_->TakeSnapshot(model_id);
  if (!snapshot.ok()) return none;
  const std::string key = absl::StrCat(snapshot->entry);
  {
    absl::MutexLock lock(mu_);
    std::erase_if(cached_, [&](const ServedModelPtr& cached) {
      return cached->model->id() == model_id && cached->key != key;
    });
    for (const ServedModelPtr& cached : cached_) {
      if (cached->model->id() != model_id) continue;
      return Lookup{.shared = cached, .snapshot = *std::move(snapshot)};
    }
  }
  absl::StatusOr<std::shared_ptr<const ModelFile>> model = cache_->Headers(model_id);
  if (!model.ok()) return none;
  auto opened = std::make_shared<ServedModel>(*std::move(model), key);
  absl::MutexLock lock(mu_);
  cached_.push_front(opened);
  if (cached_.size() > kCachedModelsMax) cached_.pop_back();
  return Lookup{.shared = std::move(opened), .snapshot = *std::move(snapshot)};
}

grpc::Status WeightService::ListBlocks(grpc::ServerContext*, const wire::ListBlocksRequest* request,
                                       wire::BlockList* response) {
  const absl::StatusOr<Lookup> found = Find(request->model_id());
  if (!found.ok()) return ToGrpc(found.status());
  if (!found->snapshot.has_value()) {
    response->add_blocks()->set_end(static_cast<uint32_t>(found->shared->blocks.size()));
    return grpc::Status::OK;
  }
  wire::BlockRange* last = nullptr;
  for (const auto& [block, hash] : found->snapshot->hashes) {
    if (last == nullptr || last->end() != block) {
      last = response->add_blocks();
      last->set_begin(block);
    }
    last->set_end(block + 1);
  }
  return grpc::Status::OK;
}

grpc::Status WeightService::DescribeModel(grpc::ServerContext*,
                                          const wire::DescribeModelRequest* request,
                                          grpc::ServerWriter<wire::ModelPiece>* writer) {
  return ToGrpc(Describe(request->model_id(), writer));
}

grpc::Status WeightService::HashBlocks(grpc::ServerContext* context,
                                       const wire::BlocksRequest* request,
                                       grpc::ServerWriter<wire::BlockHashes>* writer) {
  return ToGrpc(Hash(context, *request, writer));
}

grpc::Status WeightService::ReadBlocks(grpc::ServerContext*, const wire::BlocksRequest* request,
                                       grpc::ServerWriter<wire::BlockChunk>* writer) {
  return ToGrpc(Read(*request, writer));
}

absl::Status WeightService::Describe(const std::string& model_id,
                                     grpc::ServerWriter<wire::ModelPiece>* writer) {
  const absl::StatusOr<Lookup> found = Find(model_id);
  if (!found.ok()) return found.status();
  const ModelFile& model = *found->shared->model;
  wire::ModelPiece sizes;
  for (size_t i = 0; i < model.paths().size(); ++i) sizes.add_part_bytes(model.part_bytes(i));
  if (!writer->Write(sizes)) return absl::CancelledError("the peer has gone");
  for (const ModelFile::Range& range : model.identity()) {
    wire::ModelPiece piece;
    piece.set_part(static_cast<uint32_t>(range.part));
    for (uint64_t done = 0; done < range.bytes; done += piece.data().size()) {
      std::string* data = piece.mutable_data();
      data->resize(std::min<uint64_t>(kWeightChunkBytes, range.bytes - done));
      piece.set_offset(range.offset + done);
      absl::Status status = model.Read(range.part, range.offset + done, absl::MakeSpan(*data));
      if (!status.ok()) return status;
      if (!writer->Write(piece)) return absl::CancelledError("the peer has gone");
    }
  }
  return absl::OkStatus();
}

absl::Status WeightService::ReadBlock(const Lookup& found, uint32_t block,
                                      const std::function<bool(wire::BlockChunk)>& on_chunk) {
  ServedModel* const shared = found.shared.get();
  const WeightBlock& at = shared->blocks[block];
  std::string hash = found.HashOf(block);
  const bool cached = found.snapshot.has_value();
  const bool known = !cached && !hash.empty();
  WeightHasher hasher;
  for (uint64_t done = 0; done < at.bytes;) {
    wire::BlockChunk chunk;
    chunk.set_block(block);
    chunk.set_offset(done);
    std::string* data = chunk.mutable_data();
    data->resize(std::min<uint64_t>(kWeightChunkBytes, at.bytes - done));
    absl::Status status = shared->model->Read(at.part, at.offset + done, absl::MakeSpan(*data));
    if (!status.ok()) return cached ? absl::NotFoundError(status.message()) : status;
    if (!known) hasher.Add(*data);
    done += data->size();
    if (done == at.bytes) {
      if (cached) {
        status = cache_->Confirm(shared->model->id(), *found.snapshot, block, hasher.Finish());
        if (!status.ok()) return status;
      } else if (!known) {
        hash = hasher.Finish();
        if (status = shared->model->CheckUnchanged(); !status.ok()) return status;
        bytes_hashed_ += at.bytes;
        absl::MutexLock lock(shared->mu);
        shared->hashes[block] = hash;
        shared->unsaved = true;
      }
      chunk.set_hash(hash);
    }
    if (!on_chunk(std::move(chunk))) return absl::CancelledError("the peer has gone");
  }
  return absl::OkStatus();
}

absl::Status WeightService::RelayBlock(WeightSource* server, const Lookup& found, uint32_t block,
                                       const std::function<bool(wire::BlockChunk)>& on_chunk) {
  const WeightBlocks& blocks = found.shared->blocks;
  WeightHasher hasher;
  bool stopped = false;
  absl::Status status = server->Read(blocks, {block}, [&](const wire::BlockChunk& read) {
    wire::BlockChunk chunk = read;
    hasher.Add(chunk.data());
    if (chunk.offset() + chunk.data().size() == blocks[block].bytes) {
      chunk.set_hash(hasher.Finish());
    }
    stopped = !on_chunk(std::move(chunk));
    return !stopped;
  });
  if (stopped) return absl::CancelledError("the peer has gone");
  return status;
}

absl::StatusOr<std::unique_ptr<WeightService::Reading>> WeightService::BeginReading(
    const wire::BlocksRequest& request, bool may_fetch) {
  absl::StatusOr<Lookup> found = Find(request.model_id());
  if (!found.ok()) return found.status();
  absl::StatusOr<std::vector<uint32_t>> blocks = found->RequestedBlocks(request, may_fetch);
  if (!blocks.ok()) return blocks.status();
  auto reading = std::make_unique<Reading>(this, *std::move(found), *std::move(blocks));
  if (reads_ > kWeightReadsMax) {
    return absl::ResourceExhaustedError("too many nodes read weights here at the same time");
  }
  return reading;
}

absl::Status WeightService::Hash(grpc::ServerContext* context, const wire::BlocksRequest& request,
                                 grpc::ServerWriter<wire::BlockHashes>* writer) {
  const absl::StatusOr<std::unique_ptr<Reading>> reading =
      BeginReading(request, /*may_fetch=*/false);
  if (!reading.ok()) return reading.status();
  const Lookup& found = (*reading)->found();
  wire::BlockHashes hashes;
  SteadyTime last_write = SteadyTime::Now();
  for (const uint32_t block : (*reading)->blocks()) {
    if (found.HashOf(block).empty()) {
      if (request.known_only()) continue;
      absl::Status status = ReadBlock(
          found, block, [context](const wire::BlockChunk&) { return !context->IsCancelled(); });
      if (!status.ok()) return status;
    }
    wire::BlockHash* entry = hashes.add_hashes();
    entry->set_block(block);
    entry->set_hash(found.HashOf(block));
    // Write regularly: the caller gives up on a silent source.
    if (hashes.hashes_size() == kHashesMax || SteadyTime::Now() - last_write >= kHashesEvery) {
      if (!writer->Write(hashes)) return absl::CancelledError("the peer has gone");
      hashes.Clear();
      last_write = SteadyTime::Now();
    }
  }
  if (hashes.hashes_size() > 0) writer->Write(hashes);
  return absl::OkStatus();
}

absl::Status WeightService::Read(const wire::BlocksRequest& request,
                                 grpc::ServerWriter<wire::BlockChunk>* writer) {
  const std::shared_ptr<WeightSource> server =
      server_of_ == nullptr ? nullptr : server_of_(request.model_id());
  const absl::StatusOr<std::unique_ptr<Reading>> reading =
      BeginReading(request, /*may_fetch=*/server != nullptr);
  if (!reading.ok()) return reading.status();
  const Lookup& found = (*reading)->found();

  WeightQueue<wire::BlockChunk> chunks(kWeightChunksMax);
  absl::Status outcome;  // the reader's, until it is joined
  std::thread reader([&] {
    for (const uint32_t block : (*reading)->blocks()) {
      const auto push = [&chunks](wire::BlockChunk chunk) { return chunks.Push(std::move(chunk)); };
      const bool is_here = !found.snapshot.has_value() || found.snapshot->hashes.contains(block);
      outcome =
          is_here ? ReadBlock(found, block, push) : RelayBlock(server.get(), found, block, push);
      if (!outcome.ok()) break;
    }
    chunks.Close();
  });
  while (std::optional<wire::BlockChunk> chunk = chunks.Pop()) {
    // Before Write(): the caller may read it right after the last chunk.
    bytes_sent_ += chunk->data().size();
    if (!writer->Write(*chunk)) break;
  }
  chunks.Close();
  reader.join();
  return outcome;
}

void WeightService::SaveHashes(ServedModel* shared) {
  if (hashes_folder_.empty()) return;
  // Two calls may end at the same time: the one with more hashes must write last.
  absl::MutexLock lock(saving_mu_);
  WeightHashes hashes;
  {
    absl::MutexLock hashes_lock(shared->mu);
    if (!std::exchange(shared->unsaved, false)) return;
    hashes = shared->hashes;
  }
  const std::string path = absl::StrCat(hashes_folder_, "/", absl::BytesToHexString(shared->key));
  DropOldest(hashes_folder_, kHashFilesMax - 1);
  const absl::Status status = WriteStoredHashes(path, shared->key, hashes);
  if (!status.ok()) LOG(WARNING) << "the hashes of weights cannot be stored: " << status.message();
}

}  // namespace strata
