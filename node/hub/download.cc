#include "node/hub/download.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "node/base/progress.h"
#include "node/hub/part_file.h"
#include "shard/model/gguf_bytes.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"
#include "transport/http/ranged_file.h"

namespace strata {
namespace {

constexpr int kContentsMax = 3;               // of one file, until it fails
constexpr uint64_t kSplitBytesMin = 4 << 20;  // less is not worth a connection of its own
constexpr uint64_t kDiskReserveBytes = 64 << 20;
constexpr absl::Duration kShowEvery = absl::Milliseconds(200);

absl::Status Changed() { return absl::AbortedError("the file changed at the server"); }

// The range of a file that one connection fetches.
struct Piece {
  uint64_t at = 0, end = 0;
  bool is_taken = false;
};

class FileDownload {
 public:
  FileDownload(const DownloadFile& file, const DownloadOptions& options, PartFile* part)
      : file_(file), options_(options), part_(*part) {}

  // kAborted: the file changed.
  absl::Status Run();

 private:
  absl::StatusOr<FileProbe> AskServer();
  std::string FolderOfFile() const {
    return std::filesystem::path(file_.path).parent_path().string();
  }
  absl::Status CheckDisk() const;
  absl::Status DiskFull(const absl::Status& why) const;
  absl::Status FetchPieces();
  void Work();
  std::optional<size_t> TakePiece() ABSL_LOCKS_EXCLUDED(mu_);
  bool SplitLargest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status FetchPiece(WebGetter* http, size_t index);
  absl::Status FetchWhole();
  absl::Status FetchWholeOnce(WebGetter* http);
  absl::Status Check();
  absl::StatusOr<absl::Duration> TimeToWait(const absl::Status& why, int attempt)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WaitAndSay(const absl::Status& why, int attempt) ABSL_LOCKS_EXCLUDED(mu_);
  bool Stopped() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<MissingRange> Missing() ABSL_LOCKS_EXCLUDED(mu_);
  void SayNotes() ABSL_LOCKS_EXCLUDED(mu_);

  const DownloadFile& file_;
  const DownloadOptions& options_;
  PartFile& part_;
  FileProbe probe_;
  std::unique_ptr<RangedFile> ranges_;  // constant while there are threads

  absl::Mutex mu_;
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mu_);
  int working_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mu_);  // for the calling thread to say
};

bool FileDownload::Stopped() {
  if (options_.cancelled()) return true;
  absl::MutexLock lock(mu_);
  return !failed_.ok();
}

// Before the next attempt; `why` where there is none.
absl::StatusOr<absl::Duration> FileDownload::TimeToWait(const absl::Status& why, int attempt) {
  if (!absl::IsUnavailable(why) || attempt >= kAttemptsMax) return why;
  const absl::Duration wait = BackOff(options_.retry_first, attempt, why);
  if (std::string note = NextAttemptNote(why, wait); !note.empty()) {
    absl::MutexLock lock(mu_);
    if (notes_.empty() || notes_.back() != note) notes_.push_back(std::move(note));
  }
  return wait;
}

// On the calling thread.
absl::Status FileDownload::WaitAndSay(const absl::Status& why, int attempt) {
  const auto wait = TimeToWait(why, attempt);
  SayNotes();
  return wait.ok() ? WaitUnless(options_.cancelled, *wait) : wait.status();
}

void FileDownload::SayNotes() {
  std::vector<std::string> notes;
  {
    absl::MutexLock lock(mu_);
    notes.swap(notes_);
  }
  for (const std::string& note : notes) options_.note(note);
}

absl::StatusOr<FileProbe> FileDownload::AskServer() {
  WebGetter http(options_.cancelled);
  return AskForModel(&http, file_.request, options_);
}

absl::Status FileDownload::CheckDisk() const {
  const uint64_t missing = part_.bytes_missing() + kDiskReserveBytes;
  const std::string folder = FolderOfFile();
  struct statvfs disk = {};
  if (statvfs(folder.c_str(), &disk) != 0) return absl::OkStatus();  // writing says why
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (free >= missing) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the disk of ", PrintableText::OfPath(folder).str(), " has ", BytesString(free),
      " free, and ", BytesString(missing), " are needed: ", BytesString(missing - free),
      " are missing; XDG_CACHE_HOME names another folder"));
}

// Of a disk that others filled meanwhile.
absl::Status FileDownload::DiskFull(const absl::Status& why) const {
  return absl::ResourceExhaustedError(
      absl::StrCat(why.message(), "; ", BytesString(part_.bytes_missing()),
                   " are still to come: make room and try again, or name another folder in "
                   "XDG_CACHE_HOME",
                   probe_.has_ranges ? "; what came is kept" : ""));
}

std::vector<MissingRange> FileDownload::Missing() {
  std::vector<MissingRange> missing;
  absl::MutexLock lock(mu_);
  for (const Piece& piece : pieces_) {
    if (piece.at < piece.end) missing.push_back({.begin = piece.at, .end = piece.end});
  }
  std::sort(missing.begin(), missing.end(),
            [](const MissingRange& a, const MissingRange& b) { return a.begin < b.begin; });
  return missing;
}

// Makes a piece of the second half of the largest one, unless that is small.
bool FileDownload::SplitLargest() {
  const auto largest = absl::c_max_element(
      pieces_, [](const Piece& a, const Piece& b) { return a.end - a.at < b.end - b.at; });
  if (largest == pieces_.end() || largest->end - largest->at < 2 * kSplitBytesMin) return false;
  const uint64_t middle = largest->at + (largest->end - largest->at) / 2;
  const Piece second = {.at = middle, .end = std::exchange(largest->end, middle)};
  pieces_.push_back(second);
  return true;
}

// The next piece that nobody fetches, else half of one that somebody does.
std::optional<size_t> FileDownload::TakePiece() {
  absl::MutexLock lock(mu_);
  do {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].is_taken || pieces_[i].at >= pieces_[i].end) continue;
      pieces_[i].is_taken = true;
      return i;
    }
  } while (SplitLargest());
  return std::nullopt;
}

absl::Status FileDownload::FetchPiece(WebGetter* http, size_t index) {
  uint64_t at = 0, end = 0;
  {
    absl::MutexLock lock(mu_);
    at = pieces_[index].at;
    end = pieces_[index].end;
  }
  if (at >= end) return absl::OkStatus();
  const absl::Status enough = absl::OutOfRangeError("enough");
  const absl::Status status = ranges_->ReadOnce(http, at, end, [&](absl::string_view bytes) {
    uint64_t room = 0;
    {
      absl::MutexLock lock(mu_);
      room = pieces_[index].end - std::min(pieces_[index].end, at);
    }
    const bool is_last = bytes.size() >= room;
    bytes = bytes.substr(0, room);
    if (auto s = part_.Write(at, bytes); !s.ok()) return s;
    at += bytes.size();
    absl::MutexLock lock(mu_);
    pieces_[index].at = at;
    // The end may have moved: somebody else fetches what follows.
    return is_last && pieces_[index].end < end ? enough : absl::OkStatus();
  });
  // It had ranges when it was asked first: another of its machines may have them.
  if (absl::IsUnimplemented(status)) return absl::UnavailableError(status.message());
  return status == enough ? absl::OkStatus() : status;
}

void FileDownload::Work() {
  WebGetter http([this] { return Stopped(); });
  absl::Status status;
  while (status.ok()) {
    const auto piece = TakePiece();
    if (!piece.has_value()) break;
    uint64_t before = 0;
    for (int attempt = 1;; ++attempt) {
      status = FetchPiece(&http, *piece);
      if (status.ok()) break;
      {
        absl::MutexLock lock(mu_);
        if (std::exchange(before, pieces_[*piece].at) < pieces_[*piece].at) attempt = 1;
      }
      const auto wait = TimeToWait(status, attempt);
      status = wait.ok() ? WaitUnless([this] { return Stopped(); }, *wait) : wait.status();
      if (!status.ok()) break;
    }
  }
  absl::MutexLock lock(mu_);
  if (!status.ok() && failed_.ok()) failed_ = status;
  --working_;
}

absl::Status FileDownload::FetchPieces() {
  // From now on a full disk has room for the state.
  if (auto s = part_.Save(part_.missing()); !s.ok()) return s;
  const int connections = std::max(options_.connections, 1);
  {
    absl::MutexLock lock(mu_);
    for (const MissingRange& range : part_.missing()) {
      pieces_.push_back({.at = range.begin, .end = range.end});
    }
    while (pieces_.size() < static_cast<size_t>(connections) && SplitLargest()) {
    }
    working_ = connections;
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < connections; ++i) {
    threads.emplace_back([this] { Work(); });
  }
  absl::Status saved;
  for (SteadyTime save_at = SteadyTime::Now() + options_.save_every;;) {
    bool is_done = false;
    {
      absl::MutexLock lock(mu_);
      const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return working_ == 0; };
      is_done =
          mu_.AwaitWithTimeout(absl::Condition(&ended), std::min(kShowEvery, options_.save_every));
    }
    SayNotes();
    uint64_t missing = 0;
    const std::vector<MissingRange> ranges = Missing();
    for (const MissingRange& range : ranges) missing += range.end - range.begin;
    options_.progress(probe_.bytes - missing, probe_.bytes);
    if (is_done) break;
    if (SteadyTime::Now() < save_at) continue;
    saved.Update(part_.Save(ranges));
    save_at = SteadyTime::Now() + options_.save_every;
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status status;
  {
    absl::MutexLock lock(mu_);
    status = failed_;
  }
  if (!absl::IsAborted(status)) saved.Update(part_.Save(Missing()));
  if (status.ok()) status = saved;
  return options_.cancelled() ? absl::CancelledError("interrupted") : status;
}

absl::Status FileDownload::FetchWholeOnce(WebGetter* http) {
  uint64_t at = 0;
  if (auto emptied = part_.Begin("", probe_.bytes); !emptied.ok()) return emptied.status();
  SteadyTime show_at = SteadyTime::Now();
  FileBeginning beginning{std::string(kGgufMagic)};
  bool is_checked = false;
  WebAnswer begun;
  const auto check = [&]() -> absl::Status {
    if (auto s = beginning.Check(begun); !s.ok()) return s;
    is_checked = true;
    return IsOtherContent(probe_.etag, begun) ? Changed() : absl::OkStatus();
  };
  const auto answer = http->Stream(
      file_.request,
      [&](const WebAnswer& answers) {
        begun = answers;
        return absl::OkStatus();
      },
      [&](absl::string_view bytes) -> absl::Status {
        if (!is_checked && beginning.Add(bytes)) {
          if (auto s = check(); !s.ok()) return s;
        }
        if (probe_.bytes > 0 && at + bytes.size() > probe_.bytes) return Changed();
        if (auto s = part_.Write(at, bytes); !s.ok()) return s;
        at += bytes.size();
        if (SteadyTime::Now() >= show_at) {
          options_.progress(at, std::max(at, probe_.bytes));
          show_at = SteadyTime::Now() + kShowEvery;
        }
        return absl::OkStatus();
      });
  if (!answer.ok()) return answer.status();
  if (answer->status != 200) return ErrorOfAnswer(file_.request, *answer, options_.explain);
  if (!is_checked) {
    if (auto s = check(); !s.ok()) return s;
  }
  if (probe_.bytes > 0 && at < probe_.bytes) {
    return absl::UnavailableError("the server sent less than the file has");
  }
  return absl::OkStatus();
}

// A server without ranges begins anew after each cut.
absl::Status FileDownload::FetchWhole() {
  WebGetter http(options_.cancelled);
  for (int attempt = 1;; ++attempt) {
    absl::Status status = FetchWholeOnce(&http);
    if (status.ok()) return status;
    status = WaitAndSay(status, attempt);
    if (!status.ok()) return options_.cancelled() ? absl::CancelledError("interrupted") : status;
  }
}

absl::Status FileDownload::Check() {
  if (file_.sha256.empty()) return absl::OkStatus();
  const auto sha256 = part_.Sha256(options_.cancelled);
  if (!sha256.ok()) return sha256.status();
  if (*sha256 == file_.sha256) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("what came has the SHA-256 ", *sha256, ", and not ",
                                          file_.sha256, ", as the hub says: it is thrown away"));
}

absl::Status FileDownload::Run() {
  auto probe = AskServer();
  if (!probe.ok()) return probe.status();
  probe_ = *std::move(probe);
  // Its hash says what it is, where each of several servers may have an ETag of its own.
  if (!file_.sha256.empty()) probe_.etag.clear();
  if (file_.bytes > 0 && probe_.bytes > 0 && probe_.bytes != file_.bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the server has ", probe_.bytes, " bytes of it, and the hub says ", file_.bytes));
  }
  if (probe_.bytes == 0) probe_.bytes = file_.bytes;
  ranges_ = std::make_unique<RangedFile>(RangedFile::Options{.request = file_.request,
                                                             .bytes = probe_.bytes,
                                                             .etag = probe_.etag,
                                                             .direct_url = probe_.direct_url,
                                                             .magic = std::string(kGgufMagic),
                                                             .explain = options_.explain});
  const std::string validator = file_.sha256.empty() ? probe_.etag : file_.sha256;
  const bool has_ranges = probe_.has_ranges;
  // Without ranges nothing of before is of use.
  const auto was_other = part_.Begin(has_ranges ? validator : "", probe_.bytes);
  if (!was_other.ok()) return was_other.status();
  if (*was_other && has_ranges)
    options_.note("the file at the server is another one by now: it is fetched anew");
  if (auto s = CheckDisk(); !s.ok()) return s;
  if (auto s = part_.Resize(); !s.ok()) return s;
  if (auto s = has_ranges ? FetchPieces() : FetchWhole(); !s.ok()) {
    return absl::IsResourceExhausted(s) ? DiskFull(s) : s;
  }
  return Check();
}

}  // namespace

absl::StatusOr<FileProbe> AskForModel(WebGetter* http, const WebRequest& request,
                                      const DownloadOptions& options) {
  FileProbe probe;
  absl::Status status = Retry({.first = options.retry_first,
                               .attempts_max = kFirstAttemptsMax,
                               .cancelled = options.cancelled,
                               .note = options.note},
                              [&] {
                                // Its first bytes, which no page of a proxy has.
                                auto asked =
                                    ProbeFile(http, request, kGgufMagic.size(), options.explain);
                                if (!asked.ok()) return asked.status();
                                probe = *std::move(asked);
                                return absl::OkStatus();
                              });
  if (!status.ok()) return status;
  if (probe.begin == kGgufMagic) return probe;
  return absl::FailedPreconditionError(absl::StrCat(
      PrintableText::From(request.url).str(), ": is no GGUF file",
      probe.type.empty() ? "" : absl::StrCat(" but ", PrintableText::From(probe.type).str()),
      ": is it the address of a page, or is there a log-in page in between?"));
}

absl::Status Download(const DownloadFile& file, const DownloadOptions& options) {
  std::error_code error;
  if (std::filesystem::is_regular_file(file.path, error)) return absl::OkStatus();
  auto part = PartFile::Open(file.path, options.cancelled, [&] {
    options.note(absl::StrCat("another process is fetching ",
                              PrintableText::From(file.path, kShownPathBytesMax).str(),
                              ": waiting for it"));
  });
  if (absl::IsAlreadyExists(part.status())) return absl::OkStatus();
  if (!part.ok()) return part.status();
  for (int content = 1;; ++content) {
    absl::Status status = FileDownload(file, options, &*part).Run();
    if (status.ok()) return part->Finish();
    const bool is_other = absl::IsAborted(status) || absl::IsDataLoss(status);
    if (!is_other) {
      if (!part->HasBytes()) part->Discard();
      return status;
    }
    (void)part->Begin("", 0);  // nothing of it is of use
    if (content == kContentsMax - (absl::IsDataLoss(status) ? 1 : 0)) {
      part->Discard();
      return absl::IsAborted(status)
                 ? absl::UnavailableError(absl::StrCat(status.message(), " again and again"))
                 : status;
    }
    options.note(absl::StrCat(status.message(), "; it is fetched anew"));
  }
}

}  // namespace strata
