// How a model writes tool calls: the marks around them, and the shape of a name and its arguments.
// One description, from which both the grammar (tool_call_grammar.h) and the reader
// (tool_call_reader.h) are made. It is learned from what the model's template makes of known calls.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

// The calls that a template is tried with. Keys are in the order of the alphabet: some templates
// sort them.
inline constexpr absl::string_view kProbeNames[] = {"strata_alpha", "strata_beta"};
inline constexpr absl::string_view kProbeTextKey = "strata_city", kProbeNumberKey = "strata_days";
inline constexpr absl::string_view kProbeIds[] = {"strataid1", "strataid2"};  // as Mistral's: nine
inline constexpr absl::string_view kProbeTexts[] = {"strata-rome", "strata-oslo"};
inline constexpr absl::string_view kProbeNumbers[] = {"7", "8"};

// section_open call_open CALL call_close separator call_open CALL call_close section_close,
// where CALL is name_open NAME name_close ARGUMENTS arguments_close.
struct ToolCallForm {
  enum class Shape {
    kObject,      // {"name": NAME, "arguments": {…}}: an object with both
    kArguments,   // NAME {…}: the arguments are an object
    kParameters,  // NAME key_open KEY key_close VALUE value_close …: strings are not quoted
    kInline,      // NAME(KEY=VALUE, …): as a function is called in Python, or nearly so
  };
  Shape shape = Shape::kObject;
  std::string section_open = {}, section_close = {};
  std::string call_open = {}, call_close = {};
  std::string separator = {};
  std::string name_open = {}, name_close = {}, arguments_close = {};

  std::string number_mark = {};    // between a name and the call's number; empty: no number
  std::string name_key = {};       // kObject
  std::string arguments_key = {};  // kObject
  std::string call_id = {};        // an example of the call's id in the marks; empty: none

  std::string key_open = {};          // kParameters
  std::string key_close = {};         // kParameters, kInline
  std::string number_key_close = {};  // kParameters: before values that are no strings
  std::string value_close = {};       // kParameters
  std::string value_separator = {};   // kInline
  std::string quote = {};             // kInline: around a string
  bool python = false;                // kInline: True, False, None

  // Calls have no mark before them, so output that begins with one is a call.
  bool is_bare() const;
  bool operator==(const ToolCallForm&) const = default;
};

// Learns the form from the text of an assistant's message with one probe call, and with two; empty
// `two`: the template refuses several. Nothing where the calls are not shown.
std::optional<ToolCallForm> LearnToolCallForm(absl::string_view one, absl::string_view two);

// All marks of the form that output may have; none is empty.
std::vector<std::string> MarksOf(const ToolCallForm& form);

// As one line of JSON, and back; nothing where it is no form.
std::string EncodeToolCallForm(const ToolCallForm& form);
std::optional<ToolCallForm> DecodeToolCallForm(absl::string_view json);

// Whether text goes on with a mark at `*at`, spaces and newlines before it, in it and between its
// tags apart. `*at` goes behind it where it does.
enum class MarkMatch { kNo, kPartial, kYes };
MarkMatch MatchMark(absl::string_view text, absl::string_view mark, size_t* at);
// As MatchMark(), where any id may stand for `id` in the mark.
MarkMatch MatchMarkWithId(absl::string_view text, absl::string_view mark, absl::string_view id,
                          size_t* at);
size_t SkipSpace(absl::string_view text, size_t at);
// The mark without spaces before it, up to the first space or next tag within.
absl::string_view FirstRun(absl::string_view mark);
// Bytes at the end of `text` that begin `mark` without ending it.
size_t BytesOfBegunMark(absl::string_view text, absl::string_view mark);

}  // namespace strata
