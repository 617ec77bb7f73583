// Reads a page of /metrics as strictly as Prometheus' text format 0.0.4 is written
// (https://prometheus.io/docs/instrumenting/exposition_formats/), and checks the conventions for
// names and units (https://prometheus.io/docs/practices/naming/).
#pragma once

#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace strata::testing {

class Exposition {
 public:
  using Labels = std::map<std::string, std::string>;

  explicit Exposition(const std::string& text) {
    if (!absl::EndsWith(text, "\n")) Problem("the last line has no end", text);
    for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
      if (absl::StartsWith(line, "# HELP ")) {
        Help(line.substr(7));
      } else if (absl::StartsWith(line, "# TYPE ")) {
        Type(line.substr(7));
      } else {
        Sample(line);
      }
    }
    for (const auto& [name, family] : families_) CheckFamily(name, family);
  }

  // Each wrong line, with the reason.
  const std::vector<std::string>& problems() const { return problems_; }
  std::string TypeOf(const std::string& family) const {
    const auto found = families_.find(family);
    return found == families_.end() ? "" : found->second.type;
  }
  // The values of all samples of that name whose labels have all of `wanted`.
  std::vector<double> Values(const std::string& name, const Labels& wanted = {}) const {
    std::vector<double> values;
    for (const auto& [key, value] : samples_) {
      bool fits = key.first == name;
      for (const auto& [label, text] : wanted) {
        const auto found = key.second.find(label);
        fits = fits && found != key.second.end() && found->second == text;
      }
      if (fits) values.push_back(value);
    }
    return values;
  }
  // The value of the only such sample; NaN: there is none, or several.
  double Value(const std::string& name, const Labels& wanted = {}) const {
    const std::vector<double> values = Values(name, wanted);
    return values.size() == 1 ? values[0] : std::numeric_limits<double>::quiet_NaN();
  }

 private:
  struct Family {
    std::string type;
    bool has_help = false;
    std::vector<std::pair<std::string, Labels>> samples;
  };

  void Problem(absl::string_view what, absl::string_view line) {
    problems_.push_back(absl::StrCat(what, ": ", line));
  }
  static bool IsName(absl::string_view name, bool colons) {
    if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
    for (const char c : name) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' &&
          !(colons && c == ':')) {
        return false;
      }
    }
    return true;
  }
  void Help(absl::string_view rest) {
    const std::string name(rest.substr(0, rest.find(' ')));
    if (!IsName(name, true)) Problem("no name", rest);
    if (families_.contains(name)) Problem("a family in two places", rest);
    families_[name].has_help = name.size() + 1 < rest.size();
    last_ = name;
  }
  void Type(absl::string_view rest) {
    const std::vector<std::string> parts = absl::StrSplit(rest, ' ');
    static const std::set<std::string> kTypes = {"counter", "gauge", "histogram"};
    if (parts.size() != 2 || !kTypes.contains(parts[1])) return Problem("no type", rest);
    if (parts[0] != last_ || !families_[last_].type.empty() || !families_[last_].samples.empty()) {
      return Problem("a type that does not follow its help", rest);
    }
    families_[last_].type = parts[1];
  }
  // Reads the labels up to their "}"; false: they are wrong.
  static bool ReadLabels(absl::string_view* rest, Labels* labels) {
    while (!absl::ConsumePrefix(rest, "}")) {
      const size_t equals = rest->find("=\"");
      if (equals == absl::string_view::npos) return false;
      const std::string name(rest->substr(0, equals));
      if (!IsName(name, false) || absl::StartsWith(name, "__") || labels->contains(name))
        return false;
      rest->remove_prefix(equals + 2);
      std::string value;
      for (;; rest->remove_prefix(1)) {
        if (rest->empty()) return false;
        if (absl::ConsumePrefix(rest, "\"")) break;
        if (rest->front() != '\\') {
          value += rest->front();
          continue;
        }
        rest->remove_prefix(1);
        if (rest->empty()) return false;
        const char c = rest->front();
        if (c != '\\' && c != '"' && c != 'n') return false;
        value += c == 'n' ? '\n' : c;
      }
      (*labels)[name] = value;
      if (!absl::ConsumePrefix(rest, ",") && !absl::StartsWith(*rest, "}")) return false;
    }
    return true;
  }
  void Sample(absl::string_view line) {
    const size_t end = line.find_first_of("{ ");
    if (end == absl::string_view::npos) return Problem("no sample", line);
    const std::string name(line.substr(0, end));
    if (!IsName(name, true)) return Problem("no name", line);
    Labels labels;
    absl::string_view rest = line.substr(end);
    if (absl::ConsumePrefix(&rest, "{") && !ReadLabels(&rest, &labels)) {
      return Problem("wrong labels", line);
    }
    double value = 0;
    if (!absl::ConsumePrefix(&rest, " ") || !absl::SimpleAtod(rest, &value)) {
      return Problem("no value", line);
    }
    Family& family = families_[last_];
    std::string base = name;
    if (family.type == "histogram") {
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (name == last_ + suffix) base = last_;
      }
    }
    if (base != last_) return Problem("a sample outside its family", line);
    if (family.type == "counter" && value < 0) Problem("a counter below zero", line);
    if (!samples_.emplace(std::pair(name, labels), value).second) {
      Problem("the same sample twice", line);
    }
    family.samples.emplace_back(name, labels);
  }
  void CheckFamily(const std::string& name, const Family& family) {
    if (!family.has_help) Problem("no help", name);
    if (family.type.empty()) Problem("no type", name);
    if (family.samples.empty()) Problem("no samples", name);
    if (!absl::StartsWith(name, "strata_")) Problem("a name without its prefix", name);
    if ((family.type == "counter") != absl::EndsWith(name, "_total")) {
      Problem("_total is for counters, and for all of them", name);
    }
    static const std::set<std::string> kOtherUnits = {"ms", "us",  "milliseconds", "microseconds",
                                                      "kb", "mib", "minutes",      "percent"};
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(name, '_'))) {
      if (kOtherUnits.contains(word)) Problem("no base unit", name);
    }
    for (const auto& [sample, labels] : family.samples) {
      if (family.type == "histogram" && sample == name + "_count") CheckHistogram(name, labels);
    }
  }
  void CheckHistogram(const std::string& name, const Labels& labels) {
    std::map<double, double> buckets;
    for (const auto& [key, value] : samples_) {
      if (key.first != name + "_bucket") continue;
      Labels without = key.second;
      std::string le = without["le"];
      without.erase("le");
      double limit = std::numeric_limits<double>::infinity();
      if (without != labels) continue;
      if (le != "+Inf" && !absl::SimpleAtod(le, &limit)) Problem("no limit", le);
      buckets[limit] = value;
    }
    double before = 0;
    for (const auto& [limit, value] : buckets) {
      if (value < before) Problem("buckets do not rise", name);
      before = value;
    }
    if (buckets.empty() || buckets.rbegin()->first != std::numeric_limits<double>::infinity() ||
        before != samples_[{name + "_count", labels}]) {
      Problem("+Inf is not the count", name);
    }
    if (!samples_.contains({name + "_sum", labels})) Problem("no sum", name);
  }

  std::map<std::string, Family> families_;
  std::map<std::pair<std::string, Labels>, double> samples_;
  std::string last_;
  std::vector<std::string> problems_;
};

}  // namespace strata::testing
