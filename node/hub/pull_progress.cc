#include "node/hub/pull_progress.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "node/base/progress.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

constexpr int kCells = 24, kLabelCells = 32;

}  // namespace

std::string PullProgressText(absl::string_view label, uint64_t done, uint64_t total,
                             double bytes_per_s) {
  const double part = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
  const std::string text = absl::StrFormat("%s  %s  %2d %%  %s of %s", CutText(label, kLabelCells),
                                           BarText(part, kCells), static_cast<int>(part * 100),
                                           BytesString(done), BytesString(total));
  const std::string speed = SpeedText(bytes_per_s, total - done);
  return speed.empty() ? text : absl::StrCat(text, "  ", speed);
}

PullProgress::PullProgress(std::FILE* out, bool terminal, std::string label)
    : out_(out), terminal_(terminal), label_(std::move(label)) {}

PullProgress::~PullProgress() {
  if (drawn_) absl::FPrintF(out_, "\n");
}

void PullProgress::Update(uint64_t done, uint64_t total) {
  speed_.Update(SteadyTime::Now(), done);
  if (terminal_) return Print(done, total);
  const uint64_t tenth = total == 0 ? 0 : done * 10 / total;
  if (tenth <= tenth_) return;
  tenth_ = tenth;
  Print(done, total);
}

void PullProgress::Print(uint64_t done, uint64_t total) {
  absl::FPrintF(out_, "%s  %s%s", terminal_ ? "\r\x1b[2K" : "",
                PullProgressText(label_, done, total, speed_.bytes_per_s()), terminal_ ? "" : "\n");
  std::fflush(out_);
  drawn_ = terminal_;
}

void PullProgress::Note(absl::string_view note) {
  absl::FPrintF(out_, "%s%v\n", drawn_ ? "\r\x1b[2K" : "",
                PrintableText::From(note, kShownMessageBytesMax));
  drawn_ = false;
}

}  // namespace strata
