#include "coordinator/generation/self_tests.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr size_t kNamedMax = 4;  // devices in a message

using Tests = std::vector<const wire::SelfTest*>;

// The layers that a point is a result of.
std::tuple<uint32_t, uint32_t, bool> KeyOf(const wire::SelfTestPoint& point) {
  return {point.layers().begin(), point.layers().end(), point.logits()};
}

const wire::SelfTestPoint* Find(const wire::SelfTest& test, const wire::SelfTestPoint& like) {
  const auto found = std::find_if(
      test.points().begin(), test.points().end(),
      [&like](const wire::SelfTestPoint& point) { return KeyOf(point) == KeyOf(like); });
  return found == test.points().end() ? nullptr : &*found;
}

bool IsComparable(const wire::SelfTest& a, const wire::SelfTest& b) {
  return a.version() == b.version() && a.model_id() == b.model_id() && a.setting() == b.setting();
}

bool IsSameKind(const wire::SelfTest& a, const wire::SelfTest& b) {
  return a.device_kind() == b.device_kind() && a.llama() == b.llama() && a.ggml() == b.ggml();
}

// The earlier tests that are comparable with `fresh`, the latest of each stage and device.
Tests Relevant(const wire::SelfTest& fresh, absl::Span<const wire::SelfTest> earlier) {
  Tests relevant;
  for (const wire::SelfTest& test : earlier) {
    if (!IsComparable(fresh, test)) continue;
    const auto same =
        std::find_if(relevant.begin(), relevant.end(),
                     [&test](const wire::SelfTest* other) { return IsSameSelfTest(*other, test); });
    if (same == relevant.end()) {
      relevant.push_back(&test);
    } else if ((*same)->unix_s() <= test.unix_s()) {
      *same = &test;
    }
  }
  return relevant;
}

std::string MakerText(const wire::SelfTest* test) {
  return absl::StrCat(test->node_name(), "/", test->device(), " (",
                      absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixSeconds(test->unix_s()),
                                       absl::UTCTimeZone()),
                      " UTC)");
}

std::string Names(const Tests& tests) {
  const auto end = tests.begin() + static_cast<ptrdiff_t>(std::min(tests.size(), kNamedMax));
  return absl::StrCat(absl::StrJoin(tests.begin(), end, ", ",
                                    [](std::string* out, const wire::SelfTest* test) {
                                      out->append(MakerText(test));
                                    }),
                      end == tests.end() ? "" : " and others");
}

std::string WhereText(const wire::SelfTestPoint& point) {
  const uint32_t begin = point.layers().begin(), last = point.layers().end() - 1;
  return absl::StrCat(
      begin == last ? absl::StrCat("layer ", last) : absl::StrCat("layers ", begin, "-", last),
      point.logits() ? " and the head" : "");
}

absl::Status WrongNumbers(absl::string_view what) {
  return WithWrongNumbers(absl::DataLossError(
      absl::StrCat("its self-test says that it computes wrong numbers: ", what,
                   "; check that machine's memory, and the model's file and the weights in the "
                   "cache folder there")));
}

}  // namespace

bool IsSameSelfTest(const wire::SelfTest& a, const wire::SelfTest& b) {
  return a.node_id() == b.node_id() && a.device() == b.device() && IsComparable(a, b) &&
         a.layers().begin() == b.layers().begin() && a.layers().end() == b.layers().end();
}

std::optional<double> ShareApart(const wire::SelfTestPoint& a, const wire::SelfTestPoint& b,
                                 bool same_kind) {
  const int n_rows = a.norm_size();
  if (KeyOf(a) != KeyOf(b) || n_rows == 0 || b.norm_size() != n_rows || a.sketch_size() == 0 ||
      a.sketch_size() % n_rows != 0 || b.sketch_size() != a.sketch_size()) {
    return std::nullopt;
  }
  if (a.hash() == b.hash()) return 0;
  const int n = a.sketch_size() / n_rows;
  std::vector<double> shares;
  for (int row = 0; row < n_rows; ++row) {
    // The mean square of a vector's projections is the square of its length.
    double square = 0;
    for (int i = row * n; i < (row + 1) * n; ++i) {
      square += std::pow(double{a.sketch(i)} - b.sketch(i), 2) / n;
    }
    const double norm = std::max(double{a.norm(row)}, double{b.norm(row)});
    const double share = square == 0 ? 0 : std::sqrt(square) / norm;
    shares.push_back(std::isnan(share) ? std::numeric_limits<double>::infinity() : share);
  }
  std::sort(shares.begin(), shares.end());
  return same_kind ? shares.back() : shares[shares.size() / 2];
}

absl::Status CheckSelfTest(const wire::SelfTest& fresh, absl::Span<const wire::SelfTest> earlier) {
  if (!fresh.fault().empty()) return WrongNumbers(fresh.fault());
  const Tests relevant = Relevant(fresh, earlier);
  for (const wire::SelfTestPoint& point : fresh.points()) {
    Tests agree, disagree;
    double apart = 0, allowed = 0;  // of the first that disagrees
    for (const wire::SelfTest* const test : relevant) {
      const wire::SelfTestPoint* const other = Find(*test, point);
      if (other == nullptr) continue;
      const bool same_kind = IsSameKind(fresh, *test);
      const std::optional<double> share = ShareApart(point, *other, same_kind);
      if (!share) continue;
      const double tolerance = same_kind ? kSelfTestToleranceSameKind : kSelfTestToleranceOtherKind;
      if (*share > tolerance && disagree.empty())
        std::tie(apart, allowed) = std::pair(*share, tolerance);
      (*share > tolerance ? disagree : agree).push_back(test);
    }
    if (disagree.empty()) continue;
    if (agree.size() >= disagree.size()) {
      LOG(WARNING) << WhereText(point) << " of a model on " << fresh.node_name() << "/"
                   << fresh.device() << " gives the same results as on " << Names(agree)
                   << ", but other results than on " << Names(disagree)
                   << ": check the memory and the weights on " << Names(disagree);
      continue;
    }
    const std::string what = absl::StrFormat(
        "%s gives results that are %.2g times their size away from those of %s, where %.2g is "
        "allowed",
        WhereText(point), apart, Names(disagree), allowed);
    if (disagree.size() > 1) return WrongNumbers(what);
    return WrongNumbers(absl::StrCat(
        what,
        "; a third device would show which of the two is wrong. If it is the other one, check "
        "that one, and remove the file self_tests in the data folders of the nodes"));
  }
  return absl::OkStatus();
}

}  // namespace strata
