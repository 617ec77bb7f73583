#include "node/base/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

constexpr int kCells = 24;
constexpr absl::Duration kDrawEvery = absl::Milliseconds(500);

}  // namespace

std::string BytesString(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

ProgressBars::ProgressBars(std::FILE* out, bool terminal, std::vector<std::string> labels)
    : out_(out), terminal_(terminal) {
  int width = 0;
  for (const std::string& label : labels) width = std::max(width, TextWidth(label));
  for (const std::string& label : labels) rows_.push_back({.label = FitText(label, width)});
}

void ProgressBars::Update(size_t row, uint64_t done, uint64_t total) {
  Row& r = rows_[row];
  r.done = std::min(done, total);
  r.total = total;
  if (total == 0) return;  // nothing is known yet
  const int cells = static_cast<int>(r.done * kCells / total);
  const SteadyTime now = SteadyTime::Now();
  r.speed.Update(now, r.done);
  if (cells == r.shown && now - drawn_at_ < kDrawEvery) return;
  r.shown = cells;
  if (terminal_) Draw();
}

void ProgressBars::Finish() {
  for (Row& row : rows_) {
    row.done = row.total;
    row.shown = kCells;
  }
  Draw();
}

void ProgressBars::Draw() {
  if (drawn_ && terminal_) absl::FPrintF(out_, "\x1b[%dA", static_cast<int>(rows_.size()));
  for (const Row& row : rows_) Print(row);
  std::fflush(out_);
  drawn_ = true;
  drawn_at_ = SteadyTime::Now();
}

void ProgressBars::Print(const Row& row) const {
  if (!terminal_) {
    absl::FPrintF(out_, "  %s  %s\n", row.label, BytesString(row.total));
    return;
  }
  const std::string speed =
      row.done < row.total ? SpeedText(row.speed.bytes_per_s(), row.total - row.done) : "";
  absl::FPrintF(out_, "\x1b[2K  %s  %s %s%s%s\n", row.label,
                BarText(static_cast<double>(row.shown) / kCells, kCells), BytesString(row.total),
                speed.empty() ? "" : "  ", speed);
}

}  // namespace strata
