// Any text as what a template makes of the probe calls: a form that is learned is the same read
// back, its grammar is one that libllama can take, and its reader takes any text. Lines of the
// input are the text with one call, the text with two, and output.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "node/chat/tool_call_form.h"
#include "node/chat/tool_call_grammar.h"
#include "node/chat/tool_call_reader.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void CheckGrammar(const ToolCallForm& form) {
  JsonGrammar grammar;
  auto calls =
      ToolCallGrammar(form,
                      {{.name = "f",
                        .parameters = R"({"type":"object","properties":{"a":{"type":"string"},
                  "b":{"type":"integer"}},"required":["a"]})",
                        .path = "p"}},
                      /*several=*/true, &grammar);
  Check(calls.ok());
  const auto text = grammar.Finish(*std::move(calls), "tools");
  if (!text.ok()) return;  // too large
  Check(ParseGbnf(*text).ok());
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  absl::string_view input(reinterpret_cast<const char*>(data), size);
  absl::string_view parts[3];
  for (absl::string_view& part : parts) {
    part = input.substr(0, input.find('\x01'));
    input.remove_prefix(std::min(input.size(), part.size() + 1));
  }
  const auto form = LearnToolCallForm(parts[0], parts[1]);
  if (!form) return 0;
  // Bytes that are not UTF-8 do not come back: JSON has none.
  const auto back = DecodeToolCallForm(EncodeToolCallForm(*form));
  Check(back.has_value());
  const auto again = DecodeToolCallForm(EncodeToolCallForm(*back));
  Check(again == back);
  CheckGrammar(*back);
  ToolCallReader reader({.forms = {*back}, .tools = {{.name = "f", .parameters = {}}}});
  for (const char c : parts[2]) reader.Add(absl::string_view(&c, 1));
  reader.Finish(/*is_cut=*/false);
  return 0;
}
