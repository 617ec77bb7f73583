#include "shard/weights/weight_transfer.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// A power cut or a killed node loses at most so many bytes, or those of so much time.
constexpr uint64_t kSaveBytes = 256u << 20;
constexpr absl::Duration kSaveEvery = absl::Seconds(10);
constexpr double kRequestSeconds = 0.5;
// Time for the source's known hashes after the last block.
constexpr absl::Duration kLearnTime = absl::Seconds(5);
// Peers are asked what they have so often; and where none of them gets a block for so long, beside
// the time of two blocks at the server's speed, the server is asked for what they were to fetch.
constexpr absl::Duration kListEvery = absl::Milliseconds(500), kPeersPatience = absl::Seconds(3);
// Blocks per request for hashes that the source must compute.
constexpr size_t kTransferHashesMax = 16;

absl::Status WrongBytes(uint32_t block) {
  return absl::DataLossError(absl::StrCat("the bytes of block ", block,
                                          " do not have their hash: its disk or its memory fails"));
}

}  // namespace

// The blocks of one request, checked and written as they arrive. Used by its lane's thread.
class WeightTransfer::Batch {
 public:
  Batch(WeightTransfer* transfer, size_t provider, const std::vector<size_t>& places)
      : transfer_(transfer), provider_(provider), places_(places) {
    absl::MutexLock lock(transfer->mu_);
    for (const size_t place : places) blocks_.push_back(transfer->missing_[place].block);
  }

  const std::vector<uint32_t>& blocks() const { return blocks_; }
  // The first block that has not arrived.
  size_t next() const { return next_; }
  uint64_t bytes() const { return bytes_; }
  // Not OK: the node sent bytes that were not requested.
  const absl::Status& broken() const { return broken_; }
  const absl::Status& local() const { return local_; }  // this node's own

  // Returns whether to continue.
  bool Take(const wire::BlockChunk& chunk) {
    WeightLease* const lease = transfer_->lease_;
    const uint64_t size = chunk.data().size();
    if (next_ == blocks_.size() || chunk.block() != blocks_[next_] || chunk.offset() != at_ ||
        size == 0 || size > lease->all_blocks()[blocks_[next_]].bytes - at_) {
      broken_ = absl::DataLossError("it sent bytes that were not requested");
      return false;
    }
    hasher_.Add(chunk.data());
    local_ = lease->Write(blocks_[next_], at_, chunk.data());
    if (!local_.ok()) return false;
    at_ += size;
    bytes_ += size;
    transfer_->progress_->Add(size);
    if (at_ < lease->all_blocks()[blocks_[next_]].bytes) return true;
    return End(hasher_.Finish(), chunk.hash());
  }

  // Takes the bytes of an incomplete block off the progress.
  void GiveUp() { transfer_->progress_->Add(0, std::exchange(at_, 0)); }

 private:
  bool End(std::string hash, const std::string& reported) {
    const size_t place = places_[next_];
    const uint64_t bytes = std::exchange(at_, 0);
    transfer_->lease_->StartSaving(blocks_[next_]);  // not under the lock, which Cancel() needs
    ++next_;
    bool save = false, should_continue = true;
    uint64_t again = 0;
    {
      absl::MutexLock lock(transfer_->mu_);
      MissingBlock& missing = transfer_->missing_[place];
      Provider& provider = transfer_->providers_[provider_];
      const bool matches_report = hash == reported || !provider.source->sends_hashes();
      const bool right = missing.hash.empty()
                             ? transfer_->IsTrusted(provider_) && matches_report
                             : hash == missing.hash && (provider_ != 0 || matches_report);
      if (right) {
        transfer_->lease_->Finish(missing.block, std::move(hash));
        missing.state = MissingBlock::State::kDone;
        provider.bytes += bytes;
        --transfer_->n_left_;
        transfer_->unsaved_bytes_ += bytes;
        const SteadyTime now = SteadyTime::Now();
        save = transfer_->unsaved_bytes_ >= kSaveBytes || now - transfer_->saved_at_ >= kSaveEvery;
        if (save) {
          transfer_->unsaved_bytes_ = 0;
          transfer_->saved_at_ = now;
        }
      } else {
        should_continue =
            transfer_->Refuse(provider_, place, /*wrong=*/true, WrongBytes(missing.block));
        again = bytes;
      }
    }
    if (again > 0) transfer_->progress_->Add(0, again);
    if (save) local_ = transfer_->Save();
    return should_continue && local_.ok();
  }

  WeightTransfer* const transfer_;
  const size_t provider_;
  const std::vector<size_t>& places_;
  std::vector<uint32_t> blocks_;
  size_t next_ = 0;
  uint64_t at_ = 0;  // in that block
  uint64_t bytes_ = 0;
  WeightHasher hasher_;
  absl::Status broken_, local_;
};

WeightTransfer::WeightTransfer(Options options)
    : lease_(options.lease),
      progress_(options.progress),
      join_max_(options.join_max),
      no_source_(options.no_source) {
  absl::MutexLock lock(mu_);
  for (const uint32_t block : lease_->Missing()) {
    MissingBlock& missing = missing_.emplace_back();
    missing.block = block;
    missing.bytes = lease_->all_blocks()[block].bytes;
    missing.of_peer = absl::c_linear_search(options.of_peers, block);
    pending_bytes_ += missing.bytes;
  }
  n_left_ = missing_.size();
  for (WeightSource* const source : options.sources) {
    if (providers_.size() < kWeightSourcesMax) providers_.emplace_back().source = source;
  }
  if (options.server != nullptr) {
    if (providers_.size() == kWeightSourcesMax) providers_.pop_back();
    server_ = providers_.size();
    providers_.emplace_back().source = options.server;
  }
  if (options.source.ok()) {
    providers_[0].has.assign(missing_.size(), true);
    providers_[0].state = Provider::State::kActive;
    hashes_may_come_ = true;
  } else {
    Leave(0, std::move(options.source));
  }
}

absl::Status WeightTransfer::Run() {
  std::vector<std::thread> threads;
  bool with_source = false;
  size_t n_providers = 0;
  {
    absl::MutexLock lock(mu_);
    saved_at_ = SteadyTime::Now();
    join_until_ = saved_at_ + join_max_;
    n_providers = providers_.size();
    with_source = providers_[0].state == Provider::State::kActive;
  }
  for (size_t provider = with_source ? 0 : 1; provider < n_providers; ++provider) {
    for (size_t lane = 0; lane < LanesOf(provider); ++lane) {
      threads.emplace_back([this, provider, lane] { Lane(provider, lane == 0); });
    }
  }
  if (with_source) threads.emplace_back([this] { RunHashes(); });
  if (server_ != SIZE_MAX) threads.emplace_back([this] { WatchPeers(); });
  std::vector<WeightSource*> sources;
  {
    absl::MutexLock lock(mu_);
    CheckAllObtainable();
    const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Ended(); };
    mu_.Await(absl::Condition(&ended));
    // Even a short fetch must get the hashes that are needed once the source is gone.
    const auto learnt = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return hashes_learnt_ || !failed_.ok();
    };
    if (with_source) mu_.AwaitWithTimeout(absl::Condition(&learnt), kLearnTime);
    for (const Provider& provider : providers_) sources.push_back(provider.source);
  }
  for (WeightSource* const source : sources) source->Cancel();
  for (std::thread& thread : threads) thread.join();
  absl::Status saved = Save();
  absl::MutexLock lock(mu_);
  return failed_.ok() ? saved : failed_;
}

void WeightTransfer::Cancel() {
  absl::MutexLock lock(mu_);
  Fail(absl::CancelledError("fetching was cancelled"));
}

std::vector<WeightTransfer::Share> WeightTransfer::shares() const {
  absl::MutexLock lock(mu_);
  std::vector<Share> shares;
  for (const Provider& provider : providers_) {
    shares.push_back({provider.source->address(), provider.bytes, provider.why});
  }
  return shares;
}

void WeightTransfer::Lane(size_t provider, bool first) {
  if (first && provider != 0) Join(provider);
  while (true) {
    const Assignment assignment = Take(provider);
    if (assignment.places.empty()) return;
    ReadBatch(provider, assignment);
  }
}

void WeightTransfer::Join(size_t provider) {
  WeightSource* source = nullptr;
  {
    absl::MutexLock lock(mu_);
    source = providers_[provider].source;
  }
  absl::Status status = source->Connect();
  if (status.ok()) status = ListBlocks(provider);
  // The server must send the bytes that the peers have.
  const WeightHashes of_peer =
      status.ok() && server_ != SIZE_MAX ? KnownHashes(provider) : WeightHashes();
  absl::MutexLock lock(mu_);
  if (!status.ok()) {
    Leave(provider, std::move(status));
    return;
  }
  for (MissingBlock& missing : missing_) {
    const auto found = of_peer.find(missing.block);
    if (found != of_peer.end() && missing.hash.empty()) missing.hash = found->second;
  }
  providers_[provider].state = Provider::State::kActive;
  CheckAllObtainable();
}

absl::Status WeightTransfer::ListBlocks(size_t provider) {
  WeightSource* source = nullptr;
  {
    absl::MutexLock lock(mu_);
    source = providers_[provider].source;
  }
  const size_t n_blocks = lease_->all_blocks().size();
  absl::StatusOr<std::vector<bool>> there = source->List(n_blocks);
  // It may get some from the server.
  if (absl::IsNotFound(there.status()) && server_ != SIZE_MAX) there.emplace(n_blocks, false);
  if (!there.ok()) return there.status();
  absl::MutexLock lock(mu_);
  Provider& listed = providers_[provider];
  if (server_ != SIZE_MAX && provider != server_ &&
      providers_[server_].state == Provider::State::kGone) {
    there->assign(n_blocks, true);  // it may fetch them for this node
  }
  listed.has.clear();
  for (const MissingBlock& missing : missing_) listed.has.push_back((*there)[missing.block]);
  listed.n_listed = static_cast<size_t>(absl::c_count(*there, true));
  return absl::OkStatus();
}

WeightHashes WeightTransfer::KnownHashes(size_t provider) {
  WeightSource* source = nullptr;
  std::vector<uint32_t> blocks;
  {
    absl::MutexLock lock(mu_);
    source = providers_[provider].source;
    for (size_t i = 0; i < missing_.size(); ++i) {
      if (providers_[provider].has[i]) blocks.push_back(missing_[i].block);
    }
  }
  WeightHashes hashes;
  if (blocks.empty() || !source->sends_hashes()) return hashes;
  // Without them it is asked for the blocks all the same.
  source
      ->Hash(blocks, /*known_only=*/true,
             [&](uint32_t block, const std::string& hash) { hashes[block] = hash; })
      .IgnoreError();
  return hashes;
}

void WeightTransfer::WatchPeers() {
  size_t listed_before = 0;
  for (SteadyTime since = SteadyTime::Now();;) {
    std::vector<size_t> peers;
    {
      absl::MutexLock lock(mu_);
      const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Ended(); };
      if (mu_.AwaitWithTimeout(absl::Condition(&ended), kListEvery)) return;
      const bool any = absl::c_any_of(missing_, [](const MissingBlock& missing) {
        return missing.of_peer && missing.state == MissingBlock::State::kPending;
      });
      for (size_t i = 1; i < server_; ++i) {
        if (providers_[i].state == Provider::State::kActive) peers.push_back(i);
      }
      const double lane_bytes_per_s = providers_[server_].bytes_per_s;
      absl::Duration patience = kPeersPatience;
      if (lane_bytes_per_s > 0) {
        patience += absl::Seconds(2 * static_cast<double>(kWeightBlockBytes) / lane_bytes_per_s);
      }
      const bool joining = absl::c_any_of(
          providers_, [](const Provider& each) { return each.state == Provider::State::kJoining; });
      if (!any || !peers_have_time_ || (peers.empty() && !joining) ||
          SteadyTime::Now() - since >= patience) {
        peers_have_time_ = false;
        return;
      }
    }
    for (const size_t peer : peers) {
      absl::Status status = ListBlocks(peer);
      if (status.ok()) continue;
      absl::MutexLock lock(mu_);
      Leave(peer, std::move(status));
    }
    absl::MutexLock lock(mu_);
    size_t listed = 0;
    for (const size_t peer : peers) listed += providers_[peer].n_listed;
    if (std::exchange(listed_before, listed) != listed) since = SteadyTime::Now();
  }
}

bool WeightTransfer::CanProvide(size_t provider, const MissingBlock& missing, size_t place) const {
  const Provider& from = providers_[provider];
  if (from.state != Provider::State::kActive || !from.has[place] ||
      (missing.unavailable_from >> provider & 1) != 0 ||
      (!IsTrusted(provider) && missing.hash.empty())) {
    return false;
  }
  if (provider == server_ && missing.of_peer && peers_have_time_) return false;
  // The link to the server is the slowest.
  for (size_t node = 0; provider == server_ && node < server_; ++node) {
    if (CanProvide(node, missing, place)) return false;
  }
  return true;
}

WeightTransfer::Assignment WeightTransfer::Take(size_t provider) {
  absl::MutexLock lock(mu_);
  if (provider == 0 || provider == server_) {
    const auto joined = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return Ended() || absl::c_none_of(providers_, [](const Provider& each) {
               return each.state == Provider::State::kJoining;
             });
    };
    mu_.AwaitWithTimeout(absl::Condition(&joined), join_until_ - SteadyTime::Now());
  }
  const auto has_work = [this, provider]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    if (Ended() || providers_[provider].state == Provider::State::kGone) return true;
    for (size_t i = 0; i < missing_.size(); ++i) {
      if (missing_[i].state == MissingBlock::State::kPending &&
          CanProvide(provider, missing_[i], i))
        return true;
    }
    return false;
  };
  mu_.Await(absl::Condition(&has_work));
  if (Ended() || providers_[provider].state == Provider::State::kGone) return {};

  size_t n_active = 0;
  for (const Provider& each : providers_) {
    n_active += each.state == Provider::State::kActive ? 1 : 0;
  }
  uint64_t bytes_max =
      std::clamp(static_cast<uint64_t>(providers_[provider].bytes_per_s * kRequestSeconds),
                 kWeightRequestBytesMin, kWeightRequestBytesMax);
  if (provider == server_) {
    bytes_max = std::min(bytes_max, pending_bytes_ / kServerLanes);
  } else if (n_active > 1) {
    bytes_max = std::min(bytes_max, pending_bytes_ / (kWeightLanes * n_active));
  }
  Assignment assignment{.number = ++last_assignment_, .places = {}};
  uint64_t bytes = 0;
  // The source and the server take from the front, peers from the back, so that neighbours stay
  // together.
  for (const bool shared_too : {false, true}) {
    for (size_t i = 0; i < missing_.size() && (assignment.places.empty() || bytes < bytes_max);
         ++i) {
      const bool from_front = provider == 0 || provider == server_;
      const size_t place = from_front ? i : missing_.size() - 1 - i;
      MissingBlock& missing = missing_[place];
      if (missing.state != MissingBlock::State::kPending || !CanProvide(provider, missing, place)) {
        continue;
      }
      bool others = false;
      for (size_t other = 0; other < providers_.size(); ++other) {
        others = others || (other != provider && CanProvide(other, missing, place));
      }
      if (others && !shared_too) continue;
      if (!assignment.places.empty() && bytes + missing.bytes > bytes_max) {
        bytes = bytes_max;
        break;
      }
      assignment.places.push_back(place);
      bytes += missing.bytes;
      pending_bytes_ -= missing.bytes;
      missing.state = MissingBlock::State::kAssigned;
      missing.assigned_to = assignment.number;
    }
  }
  std::sort(assignment.places.begin(), assignment.places.end());
  return assignment;
}

void WeightTransfer::ReadBatch(size_t provider, const Assignment& assignment) {
  const std::vector<size_t>& places = assignment.places;
  Batch batch(this, provider, places);
  WeightSource* source = nullptr;
  {
    absl::MutexLock lock(mu_);
    source = providers_[provider].source;
  }
  const SteadyTime begun = SteadyTime::Now();
  absl::Status status =
      source->Read(lease_->all_blocks(), batch.blocks(),
                   [&batch](const wire::BlockChunk& chunk) { return batch.Take(chunk); });
  const double seconds = absl::ToDoubleSeconds(SteadyTime::Now() - begun);
  batch.GiveUp();

  absl::MutexLock lock(mu_);
  if (seconds > 0) providers_[provider].bytes_per_s = static_cast<double>(batch.bytes()) / seconds;
  for (const size_t place : places) {
    MissingBlock& missing = missing_[place];
    // A refused block may have been assigned again.
    if (missing.state != MissingBlock::State::kAssigned ||
        missing.assigned_to != assignment.number) {
      continue;
    }
    missing.state = MissingBlock::State::kPending;
    pending_bytes_ += missing.bytes;
  }
  if (!batch.local().ok()) return Fail(batch.local());
  if (Ended()) return;
  if (providers_[provider].state == Provider::State::kGone) return CheckAllObtainable();
  if (!batch.broken().ok()) return Leave(provider, source->Named(batch.broken()));
  const bool all_came = batch.next() == places.size();
  if (status.ok() && !all_came) status = absl::DataLossError("it sent too little");
  if (status.ok()) return CheckAllObtainable();
  // A node whose cache has lost a block still has others.
  const bool lost = absl::IsDataLoss(status) || (absl::IsNotFound(status) && provider != 0);
  if (lost && !all_came) {
    Refuse(provider, places[batch.next()], /*wrong=*/false, status);
    CheckAllObtainable();
    return;
  }
  Leave(provider, absl::IsNotFound(status) ? source->Named(status) : std::move(status));
}

bool WeightTransfer::Refuse(size_t provider, size_t place, bool wrong, const absl::Status& why) {
  Provider& from = providers_[provider];
  MissingBlock& missing = missing_[place];
  LOG(WARNING) << from.source->Named(why).message();
  missing.unavailable_from |= 1u << provider;
  if (wrong) missing.wrong_from |= 1u << provider;
  if (missing.state == MissingBlock::State::kAssigned) {
    missing.state = MissingBlock::State::kPending;
    pending_bytes_ += missing.bytes;
  }
  if (++from.refused < kRefusedBlocksMax) {
    CheckAllObtainable();
    return !Ended();
  }
  Leave(provider, from.source->Named(why));
  return false;
}

void WeightTransfer::Leave(size_t provider, absl::Status why) {
  Provider& from = providers_[provider];
  if (from.state == Provider::State::kGone) return;
  from.state = Provider::State::kGone;
  from.why = std::move(why);
  if (provider == 0) UseStoredHashes();  // a running request for hashes may still return some
  // Peers that reach the server fetch from there for this node.
  if (provider == server_ &&
      (absl::IsUnavailable(from.why) || absl::IsPermissionDenied(from.why))) {
    peers_have_time_ = false;
    for (size_t peer = 1; peer < server_; ++peer) {
      providers_[peer].has.assign(missing_.size(), true);
    }
  }
  CheckAllObtainable();
}

void WeightTransfer::UseStoredHashes() {
  const WeightHashes known = lease_->KnownMissingHashes();
  for (MissingBlock& missing : missing_) {
    const auto found = known.find(missing.block);
    if (found != known.end() && missing.hash.empty()) missing.hash = found->second;
  }
}

void WeightTransfer::CheckAllObtainable() {
  if (Ended()) return;
  for (size_t place = 0; place < missing_.size(); ++place) {
    const MissingBlock& missing = missing_[place];
    if (missing.state != MissingBlock::State::kPending) continue;
    const bool hash_may_come =
        !missing.hash.empty() || (hashes_may_come_ && !missing.hash_requested);
    bool may_come = false;
    for (size_t i = 0; i < providers_.size() && !may_come; ++i) {
      const Provider& provider = providers_[i];
      if (provider.state == Provider::State::kGone || (missing.unavailable_from >> i & 1) != 0) {
        continue;
      }
      if (provider.state == Provider::State::kActive && !provider.has[place]) continue;
      may_come = IsTrusted(i) || hash_may_come;
    }
    if (!may_come) return Fail(UnobtainableError(missing));
  }
}

absl::Status WeightTransfer::UnobtainableError(const MissingBlock& missing) const {
  for (size_t i = 0; i < providers_.size(); ++i) {
    if ((missing.wrong_from >> i & 1) == 0) continue;
    absl::Status wrong = providers_[i].source->Named(WrongBytes(missing.block));
    if (providers_.size() == 1) return wrong;
    return absl::DataLossError(absl::StrCat(wrong.message(), "; no other node gives that block"));
  }
  const Provider& source = providers_[server_ == SIZE_MAX ? 0 : server_];
  absl::Status why = source.why;
  if (why.ok()) {
    why = source.source->Named(
        absl::DataLossError(absl::StrCat("block ", missing.block, " is damaged there")));
  }
  if (providers_.size() == 1) return why;
  if (missing.hash.empty() && !no_source_) {
    return absl::Status(
        why.code(), absl::StrCat(why.message(), "; it never sent the hash of block ", missing.block,
                                 ", so copies of other nodes cannot be checked"));
  }
  uint64_t left = 0;
  for (const MissingBlock& each : missing_) {
    left += each.state == MissingBlock::State::kDone ? 0 : each.bytes;
  }
  return absl::Status(why.code(), absl::StrCat(why.message(), "; of the ", Mebibytes(left),
                                               " that are still to come no other node has all"));
}

void WeightTransfer::Fail(absl::Status why) {
  if (failed_.ok()) failed_ = std::move(why);
}

absl::Status WeightTransfer::Save() {
  absl::MutexLock lock(save_mu_);
  return lease_->Save();
}

void WeightTransfer::RunHashes() {
  WeightSource* source = nullptr;
  std::map<uint32_t, size_t> places;
  {
    absl::MutexLock lock(mu_);
    source = providers_[0].source;
    for (size_t i = 0; i < missing_.size(); ++i) places[missing_[i].block] = i;
  }
  const size_t n_blocks = lease_->all_blocks().size();
  WeightHashes reported;
  const auto take = [&](uint32_t block, const std::string& hash) {
    if (block < n_blocks) reported[block] = hash;
  };
  const auto use = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [block, hash] : reported) {
      const auto place = places.find(block);
      if (place != places.end()) missing_[place->second].hash = hash;
    }
  };
  // All hashes that the source knows, for when it is gone.
  std::vector<uint32_t> all(n_blocks);
  for (uint32_t block = 0; block < n_blocks; ++block) all[block] = block;
  absl::Status status = source->Hash(all, /*known_only=*/true, take);
  lease_->Learn(reported);
  {
    absl::MutexLock lock(mu_);
    hashes_learnt_ = true;
    use();
  }
  // Then the peers' blocks that it has not hashed yet, from the end that peers take from.
  while (status.ok()) {
    std::vector<uint32_t> blocks;
    {
      absl::MutexLock lock(mu_);
      const auto next = [this](size_t i) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        const MissingBlock& missing = missing_[i];
        if (missing.state != MissingBlock::State::kPending || !missing.hash.empty() ||
            missing.hash_requested) {
          return false;
        }
        for (size_t provider = 1; provider < providers_.size(); ++provider) {
          if (providers_[provider].state == Provider::State::kActive &&
              providers_[provider].has[i]) {
            return true;
          }
        }
        return false;
      };
      const auto any = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        if (Ended() || providers_[0].state == Provider::State::kGone) return true;
        for (size_t i = 0; i < missing_.size(); ++i) {
          if (next(i)) return true;
        }
        return false;
      };
      mu_.Await(absl::Condition(&any));
      if (Ended()) return;
      if (providers_[0].state == Provider::State::kGone) break;
      for (size_t i = missing_.size(); i-- > 0 && blocks.size() < kTransferHashesMax;) {
        if (!next(i)) continue;
        blocks.push_back(missing_[i].block);
      }
    }
    std::reverse(blocks.begin(), blocks.end());
    reported.clear();
    status = source->Hash(blocks, /*known_only=*/false, take);
    lease_->Learn(reported);
    absl::MutexLock lock(mu_);
    use();
    for (const uint32_t block : blocks) missing_[places[block]].hash_requested = true;
    CheckAllObtainable();
  }
  absl::MutexLock lock(mu_);
  hashes_may_come_ = false;
  CheckAllObtainable();
}

}  // namespace strata
