#include "node/chat/tool_call_form.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;
using Shape = ToolCallForm::Shape;
constexpr size_t kNone = absl::string_view::npos;
// More text between a name and its arguments is no mark.
constexpr size_t kMarkBytesMax = 128;

// Behind the object of JSON that begins at `from`; kNone: none does.
size_t EndOfObject(absl::string_view text, size_t from) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = from; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return i + 1;
    }
  }
  return kNone;
}

Json ObjectAt(absl::string_view text, size_t from, size_t* end) {
  *end = EndOfObject(text, from);
  if (*end == kNone) return Json();
  Json json = Json::parse(text.substr(from, *end - from), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json();
}

bool IsArguments(const Json& json) {
  return json.is_object() && json.contains(std::string(kProbeTextKey));
}

// A probe call in a text, and the form as far as the call itself shows it.
struct Found {
  ToolCallForm form;
  size_t begin = 0, end = 0;  // of CALL; of kParameters without the last value_close
};

// Sets the names of the keys; false: it is no call.
bool ReadKeys(const Json& object, absl::string_view name, ToolCallForm* form) {
  form->name_key.clear();
  form->arguments_key.clear();
  form->call_id.clear();
  for (const auto& [key, value] : object.items()) {
    if (value == std::string(name)) {
      form->name_key = key;
    } else if (IsArguments(value)) {
      form->arguments_key = key;
    } else if (absl::EndsWith(key, "id") && value.is_string()) {
      form->call_id = value.get<std::string>();
    } else if (key == "function" && value.is_object()) {
      return ReadKeys(value, name, form);
    }
  }
  return !form->name_key.empty() && !form->arguments_key.empty();
}

std::optional<Found> FindObject(absl::string_view text, absl::string_view name, size_t from,
                                size_t name_at) {
  if (name_at == from || text[name_at - 1] != '"') return std::nullopt;
  std::optional<Found> found;
  for (size_t at = text.rfind('{', name_at); at != kNone && at >= from;
       at = at == 0 ? kNone : text.rfind('{', at - 1)) {
    Found next;
    next.begin = at;
    const Json object = ObjectAt(text, at, &next.end);
    if (ReadKeys(object, name, &next.form)) found = std::move(next);
  }
  if (!found) return std::nullopt;
  ToolCallForm& form = found->form;
  form.shape = Shape::kObject;
  form.name_open = std::string(text.substr(found->begin, name_at - found->begin));
  const size_t behind = name_at + name.size();
  const size_t key_at = text.find(absl::StrCat("\"", form.arguments_key, "\""), behind);
  const size_t arguments_at = key_at == kNone ? kNone : text.find('{', key_at);
  size_t end = 0;
  if (arguments_at < found->end && IsArguments(ObjectAt(text, arguments_at, &end))) {
    form.name_close = std::string(text.substr(behind, arguments_at - behind));
    form.arguments_close = std::string(text.substr(end, found->end - end));
  } else {  // the arguments come first
    form.name_open = absl::StrCat("{\"", form.name_key, "\": \"");
    form.name_close = absl::StrCat("\", \"", form.arguments_key, "\": ");
    form.arguments_close = "}";
    form.call_id.clear();
  }
  return found;
}

std::optional<Found> FindArguments(absl::string_view text, size_t behind) {
  const size_t key_at = text.find(kProbeTextKey, behind);
  for (size_t at = text.find('{', behind); at < key_at; at = text.find('{', at + 1)) {
    Found found;
    if (at - behind > kMarkBytesMax || !IsArguments(ObjectAt(text, at, &found.end))) continue;
    found.form.shape = Shape::kArguments;
    std::string close(text.substr(behind, at - behind));
    for (const absl::string_view id : kProbeIds) {
      if (absl::StrContains(close, id)) found.form.call_id = std::string(id);
    }
    // "functions.f:0" has the call's number.
    const size_t digits = close.find_first_of("0123456789");
    if (digits != kNone && digits > 0 && close[digits - 1] == ':') {
      found.form.number_mark = close.substr(0, digits);
      close.erase(0, std::min(close.size(), close.find_first_not_of("0123456789", digits)));
    }
    found.form.name_close = std::move(close);
    return found;
  }
  return std::nullopt;
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  return n;
}
size_t CommonSuffix(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < most && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}

// Of kInline: the arguments up to the closing bracket, and what is around the values.
bool ReadInline(absl::string_view text, size_t behind, absl::string_view value, Found* found) {
  ToolCallForm& form = found->form;
  const size_t key = text.find(kProbeTextKey, behind);
  const size_t value_at = text.find(value, key);
  form.name_close = std::string(text.substr(behind, key - behind));
  const size_t key_end = key + kProbeTextKey.size();
  const absl::string_view between = text.substr(key_end, value_at - key_end);
  const size_t quote = between.find_first_not_of("=: ");
  if (between.empty() || quote == kNone || quote == 0) return false;
  form.key_close = std::string(between.substr(0, quote));
  form.quote = std::string(between.substr(quote));
  const size_t second = text.find(kProbeNumberKey, value_at);
  const size_t value_end = value_at + value.size() + form.quote.size();
  if (second == kNone || second < value_end) return false;
  form.value_separator = std::string(text.substr(value_end, second - value_end));
  form.python = absl::StartsWith(form.name_close, "(");
  return true;
}

// Of kParameters: where one mark ends and the next begins shows at a tag's first character.
void SplitParameters(absl::string_view first, absl::string_view middle, ToolCallForm* form) {
  const size_t tag = middle.rfind('<');
  const size_t open = tag == kNone ? middle.size() - CommonSuffix(first, middle) : tag;
  form->key_open = std::string(middle.substr(open));
  form->value_close = std::string(middle.substr(0, open));
  form->name_close = std::string(absl::StripSuffix(first, form->key_open));
}

std::optional<Found> FindInlineOrParameters(absl::string_view text, size_t behind, int probe) {
  const size_t key = text.find(kProbeTextKey, behind);
  const size_t value = key == kNone ? kNone : text.find(kProbeTexts[probe], key);
  const size_t key2 = value == kNone ? kNone : text.find(kProbeNumberKey, value);
  const size_t value2 = key2 == kNone ? kNone : text.find(kProbeNumbers[probe], key2);
  if (value2 == kNone || key - behind > kMarkBytesMax) return std::nullopt;
  Found found;
  found.end = value2 + kProbeNumbers[probe].size();
  const char first = text[behind];
  if (first == '(' || first == '{') {
    found.form.shape = Shape::kInline;
    const size_t close = text.find(first == '(' ? ')' : '}', found.end);
    if (close == kNone || !ReadInline(text, behind, kProbeTexts[probe], &found)) {
      return std::nullopt;
    }
    found.form.arguments_close = std::string(text.substr(found.end, close + 1 - found.end));
    found.end = close + 1;
    return found;
  }
  found.form.shape = Shape::kParameters;
  const size_t value_end = value + kProbeTexts[probe].size();
  const size_t key_end = key + kProbeTextKey.size();
  const size_t key2_end = key2 + kProbeNumberKey.size();
  SplitParameters(text.substr(behind, key - behind), text.substr(value_end, key2 - value_end),
                  &found.form);
  found.form.key_close = std::string(text.substr(key_end, value - key_end));
  found.form.number_key_close = std::string(text.substr(key2_end, value2 - key2_end));
  if (found.form.key_open.empty() || FirstRun(found.form.value_close).empty() ||
      found.form.key_close.empty()) {
    return std::nullopt;
  }
  return found;
}

std::optional<Found> FindCall(absl::string_view text, int probe, size_t from) {
  const absl::string_view name = kProbeNames[probe];
  const size_t name_at = text.find(name, from);
  if (name_at == kNone) return std::nullopt;
  if (auto object = FindObject(text, name, from, name_at)) return object;
  const size_t behind = name_at + name.size();
  if (behind >= text.size()) return std::nullopt;
  auto found = FindArguments(text, behind);
  if (!found) found = FindInlineOrParameters(text, behind, probe);
  if (found) found->begin = name_at;
  return found;
}

// Cuts `text`, which ends or begins within a tag where another text differs, at that tag.
absl::string_view FromTag(absl::string_view text) {
  const size_t tag = text.find_first_of("<[");
  return tag == kNone ? absl::string_view() : text.substr(tag);
}
absl::string_view UpToTag(absl::string_view text) {
  const size_t tag = text.rfind('<');
  return tag == kNone || text.find('>', tag) != kNone ? text : text.substr(0, tag);
}

// What is before the first call, between two, and behind the last one.
struct Around {
  absl::string_view head, middle, tail;
};
void SplitMarks(const Around& around, ToolCallForm* form) {
  absl::string_view open =
      around.middle.substr(around.middle.size() - CommonSuffix(around.head, around.middle));
  if (open.size() < around.head.size()) open = FromTag(open);
  const absl::string_view middle = around.middle.substr(0, around.middle.size() - open.size());
  absl::string_view close = middle.substr(0, CommonPrefix(middle, around.tail));
  if (close.size() < around.tail.size() && close.size() < middle.size()) close = UpToTag(close);
  form->section_open = std::string(around.head.substr(0, around.head.size() - open.size()));
  form->call_open = std::string(open);
  form->call_close = std::string(close);
  form->separator = std::string(middle.substr(close.size()));
  form->section_close = std::string(around.tail.substr(close.size()));
}

// A template that refuses two calls does not show what is between them.
void GuessMarks(absl::string_view head, absl::string_view tail, ToolCallForm* form) {
  const bool is_list = absl::EndsWith(absl::StripTrailingAsciiWhitespace(head), "[");
  (is_list ? form->section_open : form->call_open) = std::string(head);
  (is_list ? form->section_close : form->call_close) = std::string(tail);
  form->separator = is_list ? ", " : head.empty() ? "; " : "\n";
}

struct Text {
  const char* key;
  std::string ToolCallForm::* member;
};
constexpr Text kTexts[] = {{"section_open", &ToolCallForm::section_open},
                           {"section_close", &ToolCallForm::section_close},
                           {"call_open", &ToolCallForm::call_open},
                           {"call_close", &ToolCallForm::call_close},
                           {"separator", &ToolCallForm::separator},
                           {"name_open", &ToolCallForm::name_open},
                           {"name_close", &ToolCallForm::name_close},
                           {"arguments_close", &ToolCallForm::arguments_close},
                           {"number_mark", &ToolCallForm::number_mark},
                           {"name_key", &ToolCallForm::name_key},
                           {"arguments_key", &ToolCallForm::arguments_key},
                           {"call_id", &ToolCallForm::call_id},
                           {"key_open", &ToolCallForm::key_open},
                           {"key_close", &ToolCallForm::key_close},
                           {"number_key_close", &ToolCallForm::number_key_close},
                           {"value_close", &ToolCallForm::value_close},
                           {"value_separator", &ToolCallForm::value_separator},
                           {"quote", &ToolCallForm::quote}};

}  // namespace

bool ToolCallForm::is_bare() const {
  return FirstRun(section_open).empty() && FirstRun(call_open).empty();
}

std::optional<ToolCallForm> LearnToolCallForm(absl::string_view one, absl::string_view two) {
  std::optional<Found> call = FindCall(one, 0, 0);
  if (!call) return std::nullopt;
  ToolCallForm form = std::move(call->form);
  const absl::string_view head = absl::StripLeadingAsciiWhitespace(one.substr(0, call->begin));
  size_t end = call->end;
  if (form.shape == Shape::kParameters) {
    // The last value may be followed by less space than one that another key follows.
    const absl::string_view rest = one.substr(end);
    const std::string close(absl::StripTrailingAsciiWhitespace(form.value_close));
    if (!absl::StartsWith(rest, close)) return std::nullopt;
    if (absl::StartsWith(rest, form.value_close)) {
      end += form.value_close.size();
    } else {
      end += close.size();
    }
  }
  const absl::string_view tail = absl::StripTrailingAsciiWhitespace(one.substr(end));
  const std::optional<Found> second =
      absl::StartsWith(two, one.substr(0, end)) ? FindCall(two, 1, end) : std::nullopt;
  if (second) {
    SplitMarks({.head = head, .middle = two.substr(end, second->begin - end), .tail = tail}, &form);
  } else {
    GuessMarks(head, tail, &form);
  }
  return form;
}

std::vector<std::string> MarksOf(const ToolCallForm& form) {
  std::vector<std::string> marks;
  for (const std::string* mark :
       {&form.section_open, &form.section_close, &form.call_open, &form.call_close, &form.separator,
        &form.name_close, &form.key_open, &form.key_close, &form.number_key_close,
        &form.value_close, &form.quote}) {
    if (!mark->empty()) marks.push_back(*mark);
  }
  return marks;
}

std::string EncodeToolCallForm(const ToolCallForm& form) {
  Json json = {{"shape", static_cast<int>(form.shape)}, {"python", form.python}};
  for (const Text& text : kTexts) {
    if (!(form.*text.member).empty()) json[text.key] = form.*text.member;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<ToolCallForm> DecodeToolCallForm(absl::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("shape") || !json["shape"].is_number_unsigned()) {
    return std::nullopt;
  }
  const auto shape = json["shape"].get<uint64_t>();
  if (shape > static_cast<uint64_t>(Shape::kInline)) return std::nullopt;
  ToolCallForm form = {.shape = static_cast<Shape>(shape)};
  form.python = json.value("python", Json(false)) == true;
  for (const Text& each : kTexts) {
    const auto found = json.find(each.key);
    if (found != json.end() && found->is_string()) form.*each.member = found->get<std::string>();
  }
  return form;
}

MarkMatch MatchMarkWithId(absl::string_view text, absl::string_view mark, absl::string_view id,
                          size_t* at) {
  const size_t id_at = id.empty() ? kNone : mark.find(id);
  if (id_at == kNone) return MatchMark(text, mark, at);
  size_t from = *at;
  const MarkMatch before = MatchMark(text, mark.substr(0, id_at), &from);
  if (before != MarkMatch::kYes) return before;
  while (from < text.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text[from])) ||
                                absl::StrContains("-_", text[from]))) {
    ++from;
  }
  if (from == text.size()) return MarkMatch::kPartial;
  const MarkMatch behind = MatchMark(text, mark.substr(id_at + id.size()), &from);
  if (behind == MarkMatch::kYes) *at = from;
  return behind;
}

size_t SkipSpace(absl::string_view text, size_t at) {
  while (at < text.size() && absl::ascii_isspace(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

MarkMatch MatchMark(absl::string_view text, absl::string_view mark, size_t* at) {
  size_t from = *at;
  for (absl::string_view rest = absl::StripLeadingAsciiWhitespace(mark); !rest.empty();
       rest = absl::StripLeadingAsciiWhitespace(rest)) {
    const absl::string_view run = FirstRun(rest);
    rest.remove_prefix(run.size());
    from = SkipSpace(text, from);
    const absl::string_view here = text.substr(from);
    if (!absl::StartsWith(here, run)) {
      return absl::StartsWith(run, here) ? MarkMatch::kPartial : MarkMatch::kNo;
    }
    from += run.size();
  }
  *at = from;
  return MarkMatch::kYes;
}

absl::string_view FirstRun(absl::string_view mark) {
  mark = absl::StripLeadingAsciiWhitespace(mark);
  size_t end = 0;
  while (end < mark.size() && !absl::ascii_isspace(static_cast<unsigned char>(mark[end]))) {
    const bool begins_tag = mark[end] == '<' || mark[end] == '[';
    if (begins_tag && end > 0 && (mark[end - 1] == '>' || mark[end - 1] == ']')) break;
    ++end;
  }
  return mark.substr(0, end);
}

size_t BytesOfBegunMark(absl::string_view text, absl::string_view mark) {
  if (mark.empty()) return 0;
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (absl::StartsWith(mark, text.substr(text.size() - n))) return n;
  }
  return 0;
}

}  // namespace strata
