#include "node/doctor/doctor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "node/base/json_line.h"
#include "node/base/standard_output.h"
#include "node/doctor/doctor_collect.h"
#include "transport/base/own_program.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

constexpr size_t kColumns = 80;

const char* Mark(Check::State state) {
  switch (state) {
    case Check::State::kOk:
      return "ok";
    case Check::State::kNote:
      return "-";
    case Check::State::kWrong:
      return "!";
  }
  return "";
}

const char* Name(Check::State state) {
  switch (state) {
    case Check::State::kOk:
      return "ok";
    case Check::State::kNote:
      return "note";
    case Check::State::kWrong:
      return "wrong";
  }
  return "";
}

// Wraps `text` at the width of a terminal, with lines after the first indented.
std::string Fill(absl::string_view text, size_t begin, const std::string& indent) {
  std::string out;
  size_t column = begin;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const auto width = static_cast<size_t>(TextWidth(word));
    if (column > indent.size() && column + 1 + width > kColumns) {
      absl::StrAppend(&out, "\n", indent, word);
      column = indent.size() + width;
    } else {
      absl::StrAppend(&out, out.empty() ? "" : " ", word);
      column += width + (out.size() == word.size() ? 0 : 1);
    }
  }
  return out;
}

}  // namespace

std::string DoctorText(const std::vector<Check>& checks) {
  const std::string indent(6, ' ');
  std::string out;
  size_t wrong = 0;
  for (const Check& check : checks) {
    const std::string mark = absl::StrCat(Mark(check.state), "  ").substr(0, 4);
    absl::StrAppend(&out, mark, std::string(4 - mark.size(), ' '),
                    Fill(PrintableLines(absl::StrCat(check.target, ": ", check.text)), 4, indent),
                    "\n");
    if (check.state == Check::State::kWrong) ++wrong;
    if (check.advice.empty()) continue;
    // The first line is a sentence; commands have lines of their own, for copying.
    bool first = true;
    for (const std::string& line :
         std::vector<std::string>(absl::StrSplit(PrintableLines(check.advice), '\n'))) {
      absl::StrAppend(&out, indent, first ? "> " : "    ",
                      first ? Fill(line, 8, std::string(8, ' ')) : line, "\n");
      first = false;
    }
  }
  if (wrong == 0) {
    absl::StrAppend(&out, "\nNothing is wrong.\n");
  } else {
    absl::StrAppend(&out, "\n", wrong, wrong == 1 ? " thing is" : " things are",
                    " wrong: the lines with \"!\".\n");
  }
  return out;
}

std::string DoctorJson(const std::vector<Check>& checks) {
  nlohmann::json list = nlohmann::json::array();
  bool ok = true;
  for (const Check& check : checks) {
    ok &= check.state != Check::State::kWrong;
    list.push_back({{"id", check.id},
                    {"target", check.target},
                    {"state", Name(check.state)},
                    {"text", check.text},
                    {"advice", check.advice}});
  }
  return JsonLine({{"ok", ok}, {"checks", std::move(list)}});
}

absl::StatusOr<bool> RunDoctor(const DoctorOptions& options) {
  const absl::StatusOr<DoctorFacts> facts =
      CollectFacts({.client = options.client, .program = OwnProgram(), .target = options.target});
  if (!facts.ok()) return facts.status();
  const std::vector<Check> checks = Diagnose(*facts);
  const std::string text = options.json ? DoctorJson(checks) : DoctorText(checks);
  if (absl::Status status = WriteToStdout(text); !status.ok()) return status;
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& check) { return check.state == Check::State::kWrong; });
}

}  // namespace strata
