#include "node/hub/quant_choice.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "node/base/progress.h"

namespace strata {
namespace {

constexpr absl::string_view kSeparators = "-._/";

bool IsDigit(absl::string_view text, size_t at) {
  return at < text.size() && absl::ascii_isdigit(text[at]);
}

// `word` is in capitals.
bool IsQuant(absl::string_view word) {
  for (const absl::string_view whole : {"F16", "BF16", "F32", "FP16", "MXFP4", "NVFP4"}) {
    if (word == whole || absl::StartsWith(word, absl::StrCat(whole, "_"))) return true;
  }
  for (const absl::string_view letters : {"Q", "IQ", "TQ"}) {
    if (absl::StartsWith(word, letters) && IsDigit(word, letters.size())) {
      const absl::string_view rest = word.substr(letters.size() + 1);
      return rest.empty() || rest[0] == '_';
    }
  }
  return false;
}

// Without .gguf, and where it is one of several parts (…-00002-of-00003), without that.
struct FileName {
  absl::string_view stem;
  uint32_t part = 1, parts = 1;
};
FileName Split(absl::string_view file) {
  FileName name = {.stem = file.substr(0, file.size() - 5)};
  constexpr size_t kTail = 15;  // "-00002-of-00003"
  if (name.stem.size() <= kTail) return name;
  const absl::string_view tail = name.stem.substr(name.stem.size() - kTail);
  uint32_t part = 0, parts = 0;
  if (tail[0] == '-' && tail.substr(6, 4) == "-of-" && absl::SimpleAtoi(tail.substr(1, 5), &part) &&
      absl::SimpleAtoi(tail.substr(10), &parts) && part >= 1 && part <= parts) {
    name = {.stem = name.stem.substr(0, name.stem.size() - kTail), .part = part, .parts = parts};
  }
  return name;
}

// Bits of a weight by the quant's name; 0: unknown.
int BitsOf(absl::string_view quant) {
  quant = absl::StripPrefix(quant, "UD-");
  if (absl::StartsWith(quant, "F32")) return 32;
  if (absl::StrContains(quant, "FP4")) return 4;
  if (absl::StrContains(quant, "F16") || absl::StrContains(quant, "FP16")) return 16;
  for (const absl::string_view letters : {"Q", "IQ", "TQ"}) {
    if (absl::StartsWith(quant, letters) && IsDigit(quant, letters.size())) {
      return quant[letters.size()] - '0';
    }
  }
  return 0;
}

std::string SizeOf(const ModelVariant& variant) {
  return variant.bytes == 0 ? "size unknown" : BytesString(variant.bytes);
}

// "Q4_K_M (4.6 GiB), Q8_0 (7.9 GiB)"; by their files where two have the same quant.
std::string List(absl::Span<const ModelVariant> variants) {
  return absl::StrJoin(variants, ", ", [&](std::string* out, const ModelVariant& variant) {
    const auto same = absl::c_count_if(
        variants, [&](const ModelVariant& other) { return other.quant == variant.quant; });
    absl::StrAppend(out, same > 1 ? variant.parts[0].name : variant.quant, " (", SizeOf(variant),
                    ")");
  });
}

}  // namespace

std::string QuantOf(absl::string_view file) {
  const std::string text =
      absl::AsciiStrToUpper(absl::EndsWithIgnoreCase(file, ".gguf") ? Split(file).stem : file);
  std::string found;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at > 0 && !absl::StrContains(kSeparators, text[at - 1])) continue;
    const absl::string_view rest = absl::string_view(text).substr(at);
    const absl::string_view word = rest.substr(0, rest.find_first_of("-./"));
    if (!IsQuant(word)) continue;
    const bool is_dynamic = at >= 3 && absl::string_view(text).substr(at - 3, 3) == "UD-";
    found = absl::StrCat(is_dynamic ? "UD-" : "", word);
  }
  return found;
}

std::vector<ModelVariant> VariantsOf(absl::Span<const HubFile> files, bool with_lacking) {
  std::map<std::pair<std::string, uint32_t>, std::map<uint32_t, HubFile>> found;  // stem, parts
  for (const HubFile& file : files) {
    if (!absl::EndsWithIgnoreCase(file.name, ".gguf") ||
        absl::StrContainsIgnoreCase(file.name, "mmproj") ||
        absl::StrContainsIgnoreCase(file.name, "imatrix")) {
      continue;
    }
    const FileName name = Split(file.name);
    found[{std::string(name.stem), name.parts}][name.part] = file;
  }
  std::vector<ModelVariant> variants;
  for (auto& [name, parts] : found) {
    if (parts.size() != name.second && !with_lacking) continue;
    ModelVariant variant = {.quant = QuantOf(parts.begin()->second.name)};
    if (variant.quant.empty()) variant.quant = name.first.substr(name.first.rfind('/') + 1);
    for (auto& [part, file] : parts) {
      variant.bytes += file.bytes;
      variant.parts.push_back(std::move(file));
    }
    variants.push_back(std::move(variant));
  }
  absl::c_stable_sort(
      variants, [](const ModelVariant& a, const ModelVariant& b) { return a.bytes < b.bytes; });
  return variants;
}

absl::StatusOr<QuantChoice> ChooseQuant(absl::Span<const ModelVariant> variants,
                                        absl::string_view quant, absl::string_view file,
                                        std::optional<uint64_t> bytes_max) {
  if (variants.empty()) return absl::NotFoundError("there is no GGUF file");
  const auto chosen_by = [&](auto means) {
    std::vector<ModelVariant> found;
    for (const ModelVariant& variant : variants) {
      if (means(variant)) found.push_back(variant);
    }
    return found;
  };
  if (!file.empty()) {
    // Any part means the whole.
    const auto found = chosen_by([&](const ModelVariant& variant) {
      return absl::c_any_of(variant.parts, [&](const HubFile& part) { return part.name == file; });
    });
    if (!found.empty()) return QuantChoice{.variant = found[0]};
    return absl::NotFoundError(
        absl::StrCat("there is no model in a file ", file, "; there are ", List(variants)));
  }
  if (!quant.empty()) {
    std::vector<ModelVariant> found = chosen_by(
        [&](const ModelVariant& variant) { return absl::EqualsIgnoreCase(variant.quant, quant); });
    if (found.empty()) {
      found = chosen_by([&](const ModelVariant& variant) {
        return absl::EqualsIgnoreCase(absl::StripPrefix(variant.quant, "UD-"), quant) ||
               absl::StartsWithIgnoreCase(variant.quant, absl::StrCat(quant, "_"));
      });
    }
    if (found.size() == 1) return QuantChoice{.variant = found[0]};
    if (found.empty()) {
      return absl::NotFoundError(
          absl::StrCat("there is no ", quant, "; there are ", List(variants)));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(quant, " may be any of ", List(found), ": name one of them"));
  }
  if (variants.size() == 1) return QuantChoice{.variant = variants[0]};
  const auto best = chosen_by([](const ModelVariant& variant) {
    const int bits = BitsOf(variant.quant);
    return bits > 0 && bits <= 8;
  });
  const absl::Span<const ModelVariant> among = best.empty() ? variants : absl::MakeConstSpan(best);
  if (bytes_max.has_value()) {
    const ModelVariant* largest = nullptr;
    for (const ModelVariant& variant : among) {
      if (variant.bytes > 0 && variant.bytes <= *bytes_max) largest = &variant;
    }
    if (largest != nullptr) {
      return QuantChoice{
          .variant = *largest,
          .why = absl::StrCat(largest->quant, " (", SizeOf(*largest), ") is the best that fits in ",
                              BytesString(*bytes_max))};
    }
    if (among[0].bytes > 0) {
      return absl::ResourceExhaustedError(absl::StrCat("none fits in ", BytesString(*bytes_max),
                                                       ": there are ", List(variants),
                                                       "; to fetch one anyway, name it"));
    }
  }
  // Q4_K_M, else the smallest of four bits and more, else the largest.
  const ModelVariant* chosen = &among.back();
  for (const ModelVariant& variant : among) {
    if (BitsOf(variant.quant) >= 4) {
      chosen = &variant;
      break;
    }
  }
  for (const ModelVariant& variant : among) {
    if (variant.quant == "Q4_K_M") {
      chosen = &variant;
      break;
    }
  }
  return QuantChoice{
      .variant = *chosen,
      .why = absl::StrCat(chosen->quant, " (", SizeOf(*chosen),
                          ") is taken, as none was named; there are ", List(variants))};
}

}  // namespace strata
