#include "node/hub/near_names.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

constexpr size_t kComparedBytesMax = 128;
constexpr size_t kComparedNamesMax = 2'000;
constexpr size_t kWithinBytesMin = 3;  // "a" is within most names

// The number of characters that are added, left out or changed, or swapped with their neighbours,
// to get from `a` to `b`; `more_than` + 1 where they are more than that.
size_t EditDistance(absl::string_view a, absl::string_view b, size_t more_than) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > more_than) return more_than + 1;
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before = std::exchange(last, row);
    if (*std::min_element(last.begin(), last.end()) > more_than &&
        *std::min_element(before.begin(), before.end()) > more_than) {
      return more_than + 1;
    }
  }
  return last.back();
}

// As its hub itself has it.
std::string Compared(absl::string_view name) {
  std::string text = absl::AsciiStrToLower(name.substr(0, kComparedBytesMax));
  for (const absl::string_view hub : {"hf:", "ollama:"}) {
    if (absl::StartsWith(text, hub)) return text.substr(hub.size());
  }
  return text;
}

}  // namespace

std::vector<std::string> NearNames(absl::string_view name, absl::Span<const std::string> names) {
  const std::string wanted = Compared(name);
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& each : names.subspan(0, std::min(names.size(), kComparedNamesMax))) {
    const std::string other = Compared(each);
    const size_t shorter = std::min(wanted.size(), other.size());
    const size_t differ_max = std::max<size_t>(1, shorter / 3);
    size_t distance = EditDistance(wanted, other, differ_max);
    if (distance > differ_max) {
      const bool is_within = shorter >= kWithinBytesMin &&
                             (absl::StrContains(other, wanted) || absl::StrContains(wanted, other));
      if (!is_within) continue;
      distance = differ_max + std::max(wanted.size(), other.size()) - shorter;
    }
    near.emplace_back(distance, each);
  }
  std::stable_sort(near.begin(), near.end());
  std::vector<std::string> nearest;
  for (auto& [distance, each] : near) {
    if (nearest.size() == kNearNamesMax) break;
    if (std::find(nearest.begin(), nearest.end(), each) == nearest.end()) {
      nearest.push_back(std::move(each));
    }
  }
  return nearest;
}

std::string NearText(absl::string_view name, absl::Span<const std::string> names) {
  const std::vector<std::string> near = NearNames(name, names);
  if (near.empty()) return "";
  return absl::StrCat("; near are: ",
                      absl::StrJoin(near, ", ", [](std::string* out, const std::string& each) {
                        absl::StrAppend(out, PrintableText::From(each).str());
                      }));
}

}  // namespace strata
