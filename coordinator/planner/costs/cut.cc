#include "coordinator/planner/costs/cut.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace strata {
namespace {

std::string Allowed(const CutRule& rule) {
  if (rule.cut_points.empty()) {
    return absl::StrCat(rule.architecture, " may not be cut: ", rule.reason);
  }
  constexpr size_t kShown = 24;
  const size_t shown = std::min(kShown, rule.cut_points.size());
  return absl::StrCat(rule.architecture, " may be cut at ",
                      absl::StrJoin(absl::MakeConstSpan(rule.cut_points).first(shown), ", "),
                      shown < rule.cut_points.size() ? ", …" : "",
                      rule.reason.empty() ? "" : absl::StrCat(" (", rule.reason, ")"));
}

// Whether a stage of several may have so many layers.
bool SizeAllowed(const CutRule& rule, uint32_t n_layers) {
  return std::find(rule.forbidden_sizes.begin(), rule.forbidden_sizes.end(), n_layers) ==
         rule.forbidden_sizes.end();
}

std::vector<LayerRange> Ranges(absl::Span<const uint32_t> begins, uint32_t n_layer) {
  std::vector<LayerRange> ranges;
  for (size_t i = 0; i < begins.size(); ++i) {
    ranges.push_back({begins[i], i + 1 < begins.size() ? begins[i + 1] : n_layer});
  }
  return ranges;
}

}  // namespace

LayerBytes CountLayerBytes(const GgufHeader& header) {
  LayerBytes bytes;
  const std::string architecture = header.GetString("general.architecture").value_or("");
  bytes.layers.resize(header.GetInteger(architecture + ".block_count").value_or(0));
  uint64_t token_embd = 0;
  bool has_output = false;
  for (const GgufTensor& tensor : header.tensors) {
    absl::string_view rest = tensor.name;
    if (absl::ConsumePrefix(&rest, "blk.")) {
      uint32_t layer = 0;
      if (absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer) && layer < bytes.layers.size()) {
        bytes.layers[layer] += tensor.bytes;
      }
    } else if (absl::StartsWith(tensor.name, "output")) {
      bytes.last += tensor.bytes;
      has_output |= tensor.name == "output.weight";
    } else {
      bytes.first += tensor.bytes;
      if (tensor.name == "token_embd.weight") token_embd = tensor.bytes;
    }
  }
  if (!has_output) bytes.last += token_embd;
  return bytes;
}

absl::StatusOr<std::vector<LayerRange>> CutByBytes(const LayerBytes& bytes, const CutRule& rule,
                                                   uint32_t n_stages) {
  const auto n_layer = static_cast<uint32_t>(bytes.layers.size());
  if (n_stages == 0 || n_stages > n_layer) {
    return absl::InvalidArgumentError(absl::StrCat(n_stages, " stages: the model has ", n_layer,
                                                   " layers, so 1 to ", n_layer, " are possible"));
  }
  if (n_stages > 1 && rule.cut_points.size() + 1 < n_stages) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot be cut into ", n_stages, " stages: ", Allowed(rule)));
  }
  // The points where a stage may begin, and the end of the model.
  std::vector<uint32_t> points = {0};
  points.insert(points.end(), rule.cut_points.begin(), rule.cut_points.end());
  points.push_back(n_layer);
  std::vector<uint64_t> before(n_layer + 1, 0);  // bytes of layers [0, i)
  for (uint32_t i = 0; i < n_layer; ++i) before[i + 1] = before[i] + bytes.layers[i];
  const auto stage_bytes = [&](uint32_t begin, uint32_t end) {
    return before[end] - before[begin] + (begin == 0 ? bytes.first : 0) +
           (end == n_layer ? bytes.last : 0);
  };

  // best[s][p]: smallest largest stage of s + 1 stages over layers [0, points[p]).
  constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  const size_t n_points = points.size();
  std::vector<std::vector<uint64_t>> best(n_stages, std::vector<uint64_t>(n_points, kNever));
  std::vector<std::vector<size_t>> from(n_stages, std::vector<size_t>(n_points, 0));
  for (size_t p = 1; p < n_points; ++p) {
    if (n_stages == 1 || SizeAllowed(rule, points[p])) best[0][p] = stage_bytes(0, points[p]);
  }
  for (uint32_t s = 1; s < n_stages; ++s) {
    for (size_t p = s + 1; p < n_points; ++p) {
      for (size_t q = s; q < p; ++q) {
        if (best[s - 1][q] == kNever || !SizeAllowed(rule, points[p] - points[q])) continue;
        const uint64_t largest = std::max(best[s - 1][q], stage_bytes(points[q], points[p]));
        if (largest < best[s][p]) {
          best[s][p] = largest;
          from[s][p] = q;
        }
      }
    }
  }
  if (best[n_stages - 1][n_points - 1] == kNever) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot be cut into ", n_stages, " stages: ", Allowed(rule), ", and no stage may have ",
        absl::StrJoin(rule.forbidden_sizes, " or "), " layers"));
  }
  std::vector<uint32_t> begins(n_stages, 0);
  size_t p = n_points - 1;
  for (uint32_t s = n_stages - 1; s > 0; --s) {
    p = from[s][p];
    begins[s] = points[p];
  }
  return Ranges(begins, n_layer);
}

absl::StatusOr<std::vector<LayerRange>> CutAt(uint32_t n_layer, const CutRule& rule,
                                              absl::Span<const uint32_t> cuts) {
  std::vector<uint32_t> begins = {0};
  for (uint32_t cut : cuts) {
    if (cut <= begins.back() || cut >= n_layer) {
      return absl::InvalidArgumentError(absl::StrCat("cut ", cut,
                                                     ": cuts must rise and lie in 1 to ",
                                                     n_layer - 1, " (", n_layer, " layers)"));
    }
    if (!std::binary_search(rule.cut_points.begin(), rule.cut_points.end(), cut)) {
      return absl::FailedPreconditionError(absl::StrCat("cut ", cut, ": ", Allowed(rule)));
    }
    begins.push_back(cut);
  }
  std::vector<LayerRange> ranges = Ranges(begins, n_layer);
  for (const LayerRange& range : ranges) {
    if (ranges.size() > 1 && !SizeAllowed(rule, range.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("layers ", range.begin, "-", range.end - 1, " are ", range.size(), ": ",
                       rule.architecture, " may have no stage of so many (", rule.reason, ")"));
    }
  }
  return ranges;
}

}  // namespace strata
