#include "node/hub/pull_progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "node/base/progress.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

constexpr int kCells = 24, kLabelCells = 32;
constexpr absl::Duration kWindow = absl::Seconds(5);

std::string TimeText(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::min(seconds, 359'999.0)));
  if (whole >= 3600) {
    return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

}  // namespace

std::string PullProgressText(absl::string_view label, uint64_t done, uint64_t total,
                             double bytes_per_s) {
  const double part = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
  std::string text = absl::StrFormat("%s  %s  %2d %%  %s of %s", CutText(label, kLabelCells),
                                     BarText(part, kCells), static_cast<int>(part * 100),
                                     BytesString(done), BytesString(total));
  if (bytes_per_s > 0) {
    absl::StrAppendFormat(&text, "  %.1f MB/s  %s left", bytes_per_s / 1e6,
                          TimeText(static_cast<double>(total - done) / bytes_per_s));
  }
  return text;
}

PullProgress::PullProgress(std::FILE* out, bool terminal, std::string label)
    : out_(out), terminal_(terminal), label_(std::move(label)) {}

PullProgress::~PullProgress() {
  if (drawn_) absl::FPrintF(out_, "\n");
}

void PullProgress::Update(uint64_t done, uint64_t total) {
  const SteadyTime now = SteadyTime::Now();
  // A file that is fetched anew begins at 0.
  if (!seen_.empty() && done < seen_.back().second) seen_.clear();
  seen_.emplace_back(now, done);
  while (seen_.size() > 2 && now - seen_.front().first > kWindow) seen_.pop_front();
  if (terminal_) return Print(done, total);
  const uint64_t tenth = total == 0 ? 0 : done * 10 / total;
  if (tenth <= tenth_) return;
  tenth_ = tenth;
  Print(done, total);
}

void PullProgress::Print(uint64_t done, uint64_t total) {
  const double seconds = absl::ToDoubleSeconds(seen_.back().first - seen_.front().first);
  const double speed =
      seconds > 0 ? static_cast<double>(seen_.back().second - seen_.front().second) / seconds : 0;
  absl::FPrintF(out_, "%s  %s%s", terminal_ ? "\r\x1b[2K" : "",
                PullProgressText(label_, done, total, speed), terminal_ ? "" : "\n");
  std::fflush(out_);
  drawn_ = terminal_;
}

void PullProgress::Note(absl::string_view note) {
  absl::FPrintF(out_, "%s%v\n", drawn_ ? "\r\x1b[2K" : "",
                PrintableText::From(note, kShownMessageBytesMax));
  drawn_ = false;
}

}  // namespace strata
