#include "node/hub/catalogue.h"

#include <utility>

#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "node/hub/aliases.h"
#include "node/hub/model_source.h"

namespace strata {

extern const char kCatalogueText[];

namespace {

constexpr double kBitsOfAWeight = 4.85;  // of Q4_K_M, on average

}  // namespace

uint64_t CatalogueModel::bytes() const {
  return static_cast<uint64_t>(billions * 1e9 * kBitsOfAWeight / 8);
}

absl::StatusOr<std::vector<CatalogueModel>> ParseCatalogue(absl::string_view text) {
  std::vector<CatalogueModel> models;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    CatalogueModel model;
    if (words.size() != 3 || !CheckAliasName(words[0]).ok() ||
        !absl::SimpleAtod(words[2], &model.billions) || !(model.billions > 0)) {
      return absl::InvalidArgumentError(absl::StrCat("not NAME ORG/REPO BILLIONS: ", line));
    }
    model.name = words[0];
    model.source = absl::StrCat("hf:", words[1]);
    if (auto source = ParseModelSource(model.source); !source.ok()) return source.status();
    for (const CatalogueModel& other : models) {
      if (absl::EqualsIgnoreCase(other.name, model.name)) {
        return absl::InvalidArgumentError(absl::StrCat("is there twice: ", line));
      }
    }
    models.push_back(std::move(model));
  }
  return models;
}

const std::vector<CatalogueModel>& Catalogue() {
  static const auto* const models = [] {
    auto parsed = ParseCatalogue(kCatalogueText);
    CHECK_OK(parsed.status());  // the program's own text, which a test reads, too
    return new std::vector<CatalogueModel>(*std::move(parsed));
  }();
  return *models;
}

std::optional<std::string> CatalogueSource(absl::string_view name) {
  const size_t colon = name.find(':');
  for (const CatalogueModel& model : Catalogue()) {
    if (absl::EqualsIgnoreCase(model.name, name.substr(0, colon))) {
      return absl::StrCat(model.source, colon == name.npos ? "" : name.substr(colon));
    }
  }
  return std::nullopt;
}

}  // namespace strata
