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

// So much is lost at most when the power fails or the node is killed.
constexpr uint64_t kSaveBytes = 256u << 20;
constexpr double kRequestSeconds = 0.5;
// For the hashes that the source knows, after the last block.
constexpr absl::Duration kLearnTime = absl::Seconds(5);
// Blocks whose hashes the source is asked to make at a time.
constexpr size_t kTransferHashesMax = 16;

absl::Status WrongBytes(uint32_t block) {
  return absl::DataLossError(absl::StrCat("the bytes of block ", block,
                                          " do not have their hash: its disk or its memory fails"));
}

}  // namespace

// What comes of one request, checked and written as it comes. Its lane's thread.
class WeightTransfer::Batch {
 public:
  Batch(WeightTransfer* transfer, size_t giver, const std::vector<size_t>& places)
      : transfer_(transfer), giver_(giver), places_(places) {
    absl::MutexLock lock(transfer->mu_);
    for (const size_t place : places) blocks_.push_back(transfer->wanted_[place].block);
  }

  const std::vector<uint32_t>& blocks() const { return blocks_; }
  // The first that did not come.
  size_t next() const { return next_; }
  uint64_t bytes() const { return bytes_; }
  const absl::Status& broken() const { return broken_; }  // what it sent is none of what was asked
  const absl::Status& local() const { return local_; }    // this node's own

  // Whether to go on.
  bool Take(const wire::BlockChunk& chunk) {
    WeightLease* const lease = transfer_->lease_;
    const uint64_t size = chunk.data().size();
    if (next_ == blocks_.size() || chunk.block() != blocks_[next_] || chunk.offset() != at_ ||
        size == 0 || size > lease->all_blocks()[blocks_[next_]].bytes - at_) {
      broken_ = absl::DataLossError("it sent bytes that were not asked for");
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

  // Of the block that did not come to its end.
  void GiveUp() { transfer_->progress_->Add(0, std::exchange(at_, 0)); }

 private:
  bool End(std::string hash, const std::string& told) {
    const size_t place = places_[next_];
    const uint64_t bytes = std::exchange(at_, 0);
    transfer_->lease_->StartSaving(blocks_[next_]);  // not under the lock, which Cancel() wants
    ++next_;
    bool save = false, should_continue = true;
    uint64_t again = 0;
    {
      absl::MutexLock lock(transfer_->mu_);
      Wanted& wanted = transfer_->wanted_[place];
      Giver& giver = transfer_->givers_[giver_];
      const bool as_told = hash == told;
      const bool right = wanted.hash.empty() ? transfer_->IsBelieved(giver_) && as_told
                                             : hash == wanted.hash && (giver_ != 0 || as_told);
      if (right) {
        transfer_->lease_->Finish(wanted.block, std::move(hash));
        wanted.state = Wanted::State::kDone;
        giver.bytes += bytes;
        --transfer_->n_left_;
        transfer_->unsaved_bytes_ += bytes;
        save = transfer_->unsaved_bytes_ >= kSaveBytes;
        if (save) transfer_->unsaved_bytes_ = 0;
      } else {
        should_continue =
            transfer_->Refuse(giver_, place, /*wrong=*/true, WrongBytes(wanted.block));
        again = bytes;
      }
    }
    if (again > 0) transfer_->progress_->Add(0, again);
    if (save) local_ = transfer_->Save();
    return should_continue && local_.ok();
  }

  WeightTransfer* const transfer_;
  const size_t giver_;
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
    Wanted& wanted = wanted_.emplace_back();
    wanted.block = block;
    wanted.bytes = lease_->all_blocks()[block].bytes;
    pending_bytes_ += wanted.bytes;
  }
  n_left_ = wanted_.size();
  for (WeightSource* const source : options.sources) {
    if (givers_.size() < kWeightSourcesMax) givers_.emplace_back().source = source;
  }
  if (options.source.ok()) {
    givers_[0].has.assign(wanted_.size(), true);
    givers_[0].state = Giver::State::kGiving;
    hashes_may_come_ = true;
  } else {
    Leave(0, std::move(options.source));
  }
}

absl::Status WeightTransfer::Run() {
  std::vector<std::thread> threads;
  bool with_source = false;
  size_t n_givers = 0;
  {
    absl::MutexLock lock(mu_);
    join_until_ = SteadyTime::Now() + join_max_;
    n_givers = givers_.size();
    with_source = givers_[0].state == Giver::State::kGiving;
  }
  for (size_t giver = with_source ? 0 : 1; giver < n_givers; ++giver) {
    for (size_t lane = 0; lane < kWeightLanes; ++lane) {
      threads.emplace_back([this, giver, lane] { Lane(giver, lane == 0); });
    }
  }
  if (with_source) threads.emplace_back([this] { RunHashes(); });
  std::vector<WeightSource*> sources;
  {
    absl::MutexLock lock(mu_);
    CheckThatAllCanCome();
    const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Ended(); };
    mu_.Await(absl::Condition(&ended));
    // A short fetch must not end before it has learnt what will be needed when the source has gone.
    const auto learnt = [this]()
                            ABSL_SHARED_LOCKS_REQUIRED(mu_) { return learnt_ || !failed_.ok(); };
    if (with_source) mu_.AwaitWithTimeout(absl::Condition(&learnt), kLearnTime);
    for (const Giver& giver : givers_) sources.push_back(giver.source);
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
  for (const Giver& giver : givers_) {
    shares.push_back({giver.source->address(), giver.bytes, giver.why});
  }
  return shares;
}

void WeightTransfer::Lane(size_t giver, bool first) {
  if (first && giver != 0) Join(giver);
  while (true) {
    const Taken taken = Take(giver);
    if (taken.places.empty()) return;
    ReadBatch(giver, taken);
  }
}

void WeightTransfer::Join(size_t giver) {
  WeightSource* source = nullptr;
  {
    absl::MutexLock lock(mu_);
    source = givers_[giver].source;
  }
  absl::Status status = source->Connect();
  absl::StatusOr<std::vector<bool>> there = std::vector<bool>();
  if (status.ok()) {
    there = source->List(lease_->all_blocks().size());
    status = there.status();
  }
  absl::MutexLock lock(mu_);
  if (!status.ok()) {
    Leave(giver, std::move(status));
    return;
  }
  for (const Wanted& wanted : wanted_) givers_[giver].has.push_back((*there)[wanted.block]);
  givers_[giver].state = Giver::State::kGiving;
  CheckThatAllCanCome();
}

bool WeightTransfer::MayGive(size_t giver, const Wanted& wanted, size_t place) const {
  const Giver& from = givers_[giver];
  return from.state == Giver::State::kGiving && from.has[place] &&
         (wanted.not_of >> giver & 1) == 0 && (IsBelieved(giver) || !wanted.hash.empty());
}

WeightTransfer::Taken WeightTransfer::Take(size_t giver) {
  absl::MutexLock lock(mu_);
  if (giver == 0) {
    const auto joined = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return Ended() || absl::c_none_of(givers_, [](const Giver& each) {
               return each.state == Giver::State::kJoining;
             });
    };
    mu_.AwaitWithTimeout(absl::Condition(&joined), join_until_ - SteadyTime::Now());
  }
  const auto wanted_of = [this, giver]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    if (Ended() || givers_[giver].state == Giver::State::kGone) return true;
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (wanted_[i].state == Wanted::State::kPending && MayGive(giver, wanted_[i], i)) return true;
    }
    return false;
  };
  mu_.Await(absl::Condition(&wanted_of));
  if (Ended() || givers_[giver].state == Giver::State::kGone) return {};

  size_t n_giving = 0;
  for (const Giver& each : givers_) n_giving += each.state == Giver::State::kGiving ? 1 : 0;
  uint64_t bytes_max =
      std::clamp(static_cast<uint64_t>(givers_[giver].bytes_per_s * kRequestSeconds),
                 kWeightRequestBytesMin, kWeightRequestBytesMax);
  if (n_giving > 1) bytes_max = std::min(bytes_max, pending_bytes_ / (kWeightLanes * n_giving));
  Taken taken{.number = ++last_taken_, .places = {}};
  uint64_t bytes = 0;
  // The source from the front, peers from the back: neighbours go together.
  for (const bool others_too : {false, true}) {
    for (size_t i = 0; i < wanted_.size() && (taken.places.empty() || bytes < bytes_max); ++i) {
      const size_t place = giver == 0 ? i : wanted_.size() - 1 - i;
      Wanted& wanted = wanted_[place];
      if (wanted.state != Wanted::State::kPending || !MayGive(giver, wanted, place)) continue;
      bool others = false;
      for (size_t other = 0; other < givers_.size(); ++other) {
        others = others || (other != giver && MayGive(other, wanted, place));
      }
      if (others && !others_too) continue;
      if (!taken.places.empty() && bytes + wanted.bytes > bytes_max) {
        bytes = bytes_max;
        break;
      }
      taken.places.push_back(place);
      bytes += wanted.bytes;
      pending_bytes_ -= wanted.bytes;
      wanted.state = Wanted::State::kTaken;
      wanted.taken_by = taken.number;
    }
  }
  std::sort(taken.places.begin(), taken.places.end());
  return taken;
}

void WeightTransfer::ReadBatch(size_t giver, const Taken& taken) {
  const std::vector<size_t>& places = taken.places;
  Batch batch(this, giver, places);
  WeightSource* source = nullptr;
  {
    absl::MutexLock lock(mu_);
    source = givers_[giver].source;
  }
  const SteadyTime begun = SteadyTime::Now();
  absl::Status status = source->Read(
      batch.blocks(), [&batch](const wire::BlockChunk& chunk) { return batch.Take(chunk); });
  const double seconds = absl::ToDoubleSeconds(SteadyTime::Now() - begun);
  batch.GiveUp();

  absl::MutexLock lock(mu_);
  if (seconds > 0) givers_[giver].bytes_per_s = static_cast<double>(batch.bytes()) / seconds;
  for (const size_t place : places) {
    Wanted& wanted = wanted_[place];
    // One that was refused may have been taken again.
    if (wanted.state != Wanted::State::kTaken || wanted.taken_by != taken.number) continue;
    wanted.state = Wanted::State::kPending;
    pending_bytes_ += wanted.bytes;
  }
  if (!batch.local().ok()) return Fail(batch.local());
  if (Ended()) return;
  if (givers_[giver].state == Giver::State::kGone) return CheckThatAllCanCome();
  if (!batch.broken().ok()) return Leave(giver, source->Named(batch.broken()));
  const bool all_came = batch.next() == places.size();
  if (status.ok() && !all_came) status = absl::DataLossError("it sent too little");
  if (status.ok()) return CheckThatAllCanCome();
  // A node whose cache has lost a block has others still.
  const bool lost = absl::IsDataLoss(status) || (absl::IsNotFound(status) && giver != 0);
  if (lost && !all_came) {
    Refuse(giver, places[batch.next()], /*wrong=*/false, status);
    CheckThatAllCanCome();
    return;
  }
  Leave(giver, absl::IsNotFound(status) ? source->Named(status) : std::move(status));
}

bool WeightTransfer::Refuse(size_t giver, size_t place, bool wrong, const absl::Status& why) {
  Giver& from = givers_[giver];
  Wanted& wanted = wanted_[place];
  LOG(WARNING) << from.source->Named(why).message();
  wanted.not_of |= 1u << giver;
  if (wrong) wanted.wrong_of |= 1u << giver;
  if (wanted.state == Wanted::State::kTaken) {
    wanted.state = Wanted::State::kPending;
    pending_bytes_ += wanted.bytes;
  }
  if (++from.refused < kRefusedBlocksMax) {
    CheckThatAllCanCome();
    return !Ended();
  }
  Leave(giver, from.source->Named(why));
  return false;
}

void WeightTransfer::Leave(size_t giver, absl::Status why) {
  Giver& from = givers_[giver];
  if (from.state == Giver::State::kGone) return;
  from.state = Giver::State::kGone;
  from.why = std::move(why);
  if (giver == 0) UseKeptHashes();  // those that it is asked for now may come still
  CheckThatAllCanCome();
}

void WeightTransfer::UseKeptHashes() {
  const WeightHashes known = lease_->KnownOfMissing();
  for (Wanted& wanted : wanted_) {
    const auto found = known.find(wanted.block);
    if (found != known.end() && wanted.hash.empty()) wanted.hash = found->second;
  }
}

void WeightTransfer::CheckThatAllCanCome() {
  if (Ended()) return;
  for (size_t place = 0; place < wanted_.size(); ++place) {
    const Wanted& wanted = wanted_[place];
    if (wanted.state != Wanted::State::kPending) continue;
    const bool hash_may_come = !wanted.hash.empty() || (hashes_may_come_ && !wanted.hash_asked);
    bool may_come = false;
    for (size_t i = 0; i < givers_.size() && !may_come; ++i) {
      const Giver& giver = givers_[i];
      if (giver.state == Giver::State::kGone || (wanted.not_of >> i & 1) != 0) continue;
      if (giver.state == Giver::State::kGiving && !giver.has[place]) continue;
      may_come = IsBelieved(i) || hash_may_come;
    }
    if (!may_come) return Fail(WhyNot(wanted));
  }
}

absl::Status WeightTransfer::WhyNot(const Wanted& wanted) const {
  for (size_t i = 0; i < givers_.size(); ++i) {
    if ((wanted.wrong_of >> i & 1) == 0) continue;
    absl::Status wrong = givers_[i].source->Named(WrongBytes(wanted.block));
    if (givers_.size() == 1) return wrong;
    return absl::DataLossError(absl::StrCat(wrong.message(), "; no other node gives that block"));
  }
  const Giver& source = givers_[0];
  absl::Status why = source.why;
  if (why.ok()) {
    why = source.source->Named(
        absl::DataLossError(absl::StrCat("block ", wanted.block, " is damaged there")));
  }
  if (givers_.size() == 1) return why;
  if (wanted.hash.empty() && !no_source_) {
    return absl::Status(
        why.code(), absl::StrCat(why.message(), "; it never told the hash of block ", wanted.block,
                                 ", so copies of other nodes cannot be checked"));
  }
  uint64_t left = 0;
  for (const Wanted& each : wanted_) left += each.state == Wanted::State::kDone ? 0 : each.bytes;
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
    source = givers_[0].source;
    for (size_t i = 0; i < wanted_.size(); ++i) places[wanted_[i].block] = i;
  }
  const size_t n_blocks = lease_->all_blocks().size();
  WeightHashes told;
  const auto take = [&](uint32_t block, const std::string& hash) {
    if (block < n_blocks) told[block] = hash;
  };
  const auto use = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [block, hash] : told) {
      const auto place = places.find(block);
      if (place != places.end()) wanted_[place->second].hash = hash;
    }
  };
  // All that the source knows, for the time when it has gone.
  std::vector<uint32_t> all(n_blocks);
  for (uint32_t block = 0; block < n_blocks; ++block) all[block] = block;
  absl::Status status = source->Hash(all, /*known_only=*/true, take);
  lease_->Learn(told);
  {
    absl::MutexLock lock(mu_);
    learnt_ = true;
    use();
  }
  // Then what peers have and it has not hashed yet, from the side that peers take from.
  while (status.ok()) {
    std::vector<uint32_t> blocks;
    {
      absl::MutexLock lock(mu_);
      const auto next = [this](size_t i) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        const Wanted& wanted = wanted_[i];
        if (wanted.state != Wanted::State::kPending || !wanted.hash.empty() || wanted.hash_asked) {
          return false;
        }
        for (size_t giver = 1; giver < givers_.size(); ++giver) {
          if (givers_[giver].state == Giver::State::kGiving && givers_[giver].has[i]) return true;
        }
        return false;
      };
      const auto any = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        if (Ended() || givers_[0].state == Giver::State::kGone) return true;
        for (size_t i = 0; i < wanted_.size(); ++i) {
          if (next(i)) return true;
        }
        return false;
      };
      mu_.Await(absl::Condition(&any));
      if (Ended()) return;
      if (givers_[0].state == Giver::State::kGone) break;
      for (size_t i = wanted_.size(); i-- > 0 && blocks.size() < kTransferHashesMax;) {
        if (!next(i)) continue;
        blocks.push_back(wanted_[i].block);
      }
    }
    std::reverse(blocks.begin(), blocks.end());
    told.clear();
    status = source->Hash(blocks, /*known_only=*/false, take);
    lease_->Learn(told);
    absl::MutexLock lock(mu_);
    use();
    for (const uint32_t block : blocks) wanted_[places[block]].hash_asked = true;
    CheckThatAllCanCome();
  }
  absl::MutexLock lock(mu_);
  hashes_may_come_ = false;
  CheckThatAllCanCome();
}

}  // namespace strata
