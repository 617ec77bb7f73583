#include "node/api/stop_string_filter.h"

#include <algorithm>
#include <utility>

#include "transport/base/utf8.h"

namespace strata {
namespace {

// Bytes at the end of `text` that may be the start of `stop`, but not all of it.
size_t StartsAtEnd(absl::string_view text, absl::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

std::string StopStringFilter::Add(absl::string_view piece) {
  if (stopped_) return "";
  const bool may_stop = ++tokens_ > options_.tokens_min;
  bytes_ += piece.size();
  ends_.push_back(bytes_);
  held_.append(piece.data(), piece.size());
  size_t stop_at = std::string::npos;
  size_t hold = UnfinishedUtf8Bytes(held_);
  for (const std::string& stop : options_.stops) {
    if (!may_stop) break;
    const size_t at = held_.find(stop);
    if (at < stop_at) {
      stop_at = at;
      stop_ = stop;
    }
    hold = std::max(hold, StartsAtEnd(held_, stop));
  }
  if (stop_at == std::string::npos) return Show(held_.size() - hold);
  stopped_ = true;
  std::string text = Show(stop_at + (options_.show_stop ? stop_.size() : 0));
  // A part of the token that the stop string begins in is shown.
  if (!ends_.empty() && last_end_ < shown_) ++tokens_shown_;
  ends_.clear();
  held_.clear();
  return text;
}

std::string StopStringFilter::Finish() {
  if (stopped_) return "";
  std::string text = Show(held_.size());
  tokens_shown_ += ends_.size();
  ends_.clear();
  return text;
}

std::string StopStringFilter::Show(size_t bytes) {
  std::string text = held_.substr(0, bytes);
  held_.erase(0, bytes);
  shown_ += bytes;
  while (!ends_.empty() && ends_.front() <= shown_) {
    last_end_ = ends_.front();
    ends_.pop_front();
    ++tokens_shown_;
  }
  return text;
}

void CharacterCount::Add(absl::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (missing_ > 0 && byte >= low_ && byte <= high_) {
      --missing_;
      low_ = 0x80;
      high_ = 0xBF;
      continue;
    }
    ++begun_;
    // The well-formed sequences of Unicode's table 3-7.
    missing_ = byte >= 0xC2 && byte <= 0xDF   ? 1
               : byte >= 0xE0 && byte <= 0xEF ? 2
               : byte >= 0xF0 && byte <= 0xF4 ? 3
                                              : 0;
    low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  }
}

uint64_t CharacterCount::PositionOf(absl::string_view next) const {
  if (missing_ == 0) return begun_;
  const auto byte = next.empty() ? low_ : static_cast<unsigned char>(next[0]);
  return byte >= low_ && byte <= high_ ? begun_ - 1 : begun_;
}

}  // namespace strata
