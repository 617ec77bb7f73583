#include "node/chat/tool_call_arguments.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;
using Shape = ToolCallForm::Shape;

constexpr size_t kKeyBytesMax = 1024;

// As JSON writes the inside of a string. Bytes beyond ASCII stay, as a character may come in parts.
void AppendEscaped(absl::string_view text, std::string* out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppendFormat(out, "\\u%04x", c);
        } else {
          out->push_back(c);
        }
    }
  }
}
std::string QuotedJson(absl::string_view text) {
  std::string out = "\"";
  AppendEscaped(text, &out);
  out += '"';
  return out;
}

// A word without quotes: JSON's and Python's literals, numbers, else a string.
std::string ValueOfWord(absl::string_view word) {
  word = absl::StripAsciiWhitespace(word);
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null") return "null";
  const Json json = Json::parse(word, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? QuotedJson(word) : std::string(word);
}

// A list or dictionary as Python writes it, as JSON; nothing where it is none.
std::optional<std::string> ValueOfPython(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.empty() || !absl::StrContains("[{", text[0])) return std::nullopt;
  std::string json;
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != '\0') {
      const bool is_escape = c == '\\' && i + 1 < text.size();
      if (c == quote) {
        json += '"';
        quote = '\0';
      } else if (is_escape && text[++i] != '\'') {
        json += {'\\', text[i]};
      } else {
        AppendEscaped(text.substr(i, 1), &json);
      }
    } else if (c == '"' || c == '\'') {
      json += '"';
      quote = c;
    } else if (absl::ascii_isupper(static_cast<unsigned char>(c))) {
      const size_t begin = i;
      while (i + 1 < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[i + 1]))) {
        ++i;
      }
      const absl::string_view word = text.substr(begin, i + 1 - begin);
      const std::string value = ValueOfWord(word);  // of True, False and None
      absl::StrAppend(&json, value[0] == '"' ? word : value);
    } else {
      json += c == '(' ? '[' : c == ')' ? ']' : c;
    }
  }
  if (!Json::accept(json)) return std::nullopt;
  return json;
}

// Passes an object on as it is.
class ObjectArguments final : public ToolArgumentsReader {
 public:
  bool Read(std::string* pending, std::string* out) override {
    size_t i = 0;
    if (depth_ == 0) pending->erase(0, SkipSpace(*pending, 0));
    for (bool done = false; i < pending->size() && !done; ++i) {
      const char c = (*pending)[i];
      if (quoted_) {
        if (std::exchange(escaped_, false)) continue;
        escaped_ = c == '\\';
        quoted_ = c != '"';
      } else if (c == '"') {
        quoted_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        done = done_ = --depth_ <= 0;
      } else if (depth_ == 0 && !absl::ascii_isspace(static_cast<unsigned char>(c))) {
        *out += "{}";  // there are none
        pending->erase(0, i);
        return true;
      }
    }
    out->append(*pending, 0, i);
    pending->erase(0, i);
    return done_;
  }

 private:
  int depth_ = 0;
  bool quoted_ = false, escaped_ = false, done_ = false;
};

// <parameter=KEY>VALUE</parameter>…
class TaggedArguments final : public ToolArgumentsReader {
 public:
  TaggedArguments(const ToolCallForm& form, const std::vector<ToolParameter>& parameters)
      : form_(form),
        parameters_(parameters),
        close_(FirstRun(form.value_close)),
        key_close_(FirstRun(form.key_close)),
        skips_newline_(absl::EndsWith(form.key_close, "\n")),
        drops_newline_(absl::StartsWith(form.value_close, "\n")) {}

  bool Read(std::string* pending, std::string* out) override {
    if (!std::exchange(begun_, true)) *out += '{';
    while (true) {
      switch (in_) {
        case In::kNext: {
          size_t at = 0;
          const MarkMatch next = MatchMark(*pending, form_.key_open, &at);
          if (next == MarkMatch::kPartial) return false;
          if (next == MarkMatch::kNo) {
            *out += '}';
            return true;
          }
          pending->erase(0, at);
          in_ = In::kKey;
          break;
        }
        case In::kKey:
          if (!ReadKey(pending, out)) return false;
          break;
        case In::kValueBegin:
          if (skips_newline_) {
            if (pending->empty()) return false;
            if ((*pending)[0] == '\n') pending->erase(0, 1);
          }
          in_ = In::kValue;
          break;
        case In::kValue:
          if (!ReadValue(pending, out)) return false;
          break;
      }
    }
  }

 private:
  enum class In { kNext, kKey, kValueBegin, kValue };
  enum class Type { kText, kOther };

  // False: more has to come.
  bool ReadKey(std::string* pending, std::string* out) {
    const size_t end = pending->find(key_close_);
    if (end == std::string::npos && pending->size() < kKeyBytesMax) return false;
    const std::string key = pending->substr(0, std::min(end, pending->size()));
    size_t at = key.size();
    MarkMatch text = MatchMark(*pending, form_.key_close, &at);
    MarkMatch number = MarkMatch::kNo;
    if (text != MarkMatch::kYes) {
      at = key.size();
      number = MatchMark(*pending, form_.number_key_close, &at);
    }
    const bool partial = text == MarkMatch::kPartial || number == MarkMatch::kPartial;
    if (number != MarkMatch::kYes && text != MarkMatch::kYes && partial) return false;
    pending->erase(0, at);
    if (std::exchange(any_, true)) *out += ", ";
    *out += absl::StrCat(QuotedJson(absl::StripAsciiWhitespace(key)), ": ");
    SetType(std::string(absl::StripAsciiWhitespace(key)), number == MarkMatch::kYes);
    if (type_ == Type::kText) *out += '"';
    value_.clear();
    in_ = In::kValueBegin;
    return true;
  }

  void SetType(const std::string& key, bool is_marked_number) {
    parameter_ = nullptr;
    const bool is_marked_text = !is_marked_number && form_.number_key_close != form_.key_close;
    type_ = is_marked_text ? Type::kText : Type::kOther;
    for (const ToolParameter& parameter : parameters_) {
      if (parameter.name != key) continue;
      parameter_ = &parameter;
      type_ = parameter.is_text ? Type::kText : Type::kOther;
    }
  }

  bool ReadValue(std::string* pending, std::string* out) {
    const size_t end = pending->find(close_);
    if (end == std::string::npos) {
      size_t hold = BytesOfBegunMark(*pending, close_);
      // The newline before the mark is the mark's.
      if (drops_newline_ && pending->size() > hold &&
          (*pending)[pending->size() - hold - 1] == '\n') {
        ++hold;
      }
      Take(absl::string_view(*pending).substr(0, pending->size() - hold), out);
      pending->erase(0, pending->size() - hold);
      return false;
    }
    const size_t cut = drops_newline_ && end > 0 && (*pending)[end - 1] == '\n' ? 1 : 0;
    Take(absl::string_view(*pending).substr(0, end - cut), out);
    pending->erase(0, end + close_.size());
    if (type_ == Type::kText) {
      *out += '"';
    } else {
      *out += Converted();
    }
    in_ = In::kNext;
    return true;
  }

  void Take(absl::string_view text, std::string* out) {
    if (type_ == Type::kText) {
      AppendEscaped(text, out);
    } else {
      value_.append(text);
    }
  }

  std::string Converted() const {
    std::string value = ValueOfWord(value_);
    if (value[0] == '"') value = ValueOfPython(value_).value_or(value);
    const bool is_json = value[0] != '"' || value == absl::StripAsciiWhitespace(value_);
    return is_json && (parameter_ == nullptr || parameter_->Takes(value)) ? value
                                                                          : QuotedJson(value_);
  }

  const ToolCallForm& form_;
  const std::vector<ToolParameter>& parameters_;
  const std::string close_, key_close_;
  const bool skips_newline_, drops_newline_;
  In in_ = In::kNext;
  Type type_ = Type::kText;
  const ToolParameter* parameter_ = nullptr;  // of the value; null: not known
  bool begun_ = false, any_ = false;
  std::string value_;  // so far, where it is not written as it comes
};

// f(a=1, b="x", c=[True, {"k": None}]) from behind the opening bracket on.
class InlineArguments final : public ToolArgumentsReader {
 public:
  explicit InlineArguments(const ToolCallForm& form) : form_(form) {}

  bool Read(std::string* pending, std::string* out) override {
    if (levels_.empty()) {
      *out += '{';
      levels_.push_back({.is_object = true});
    }
    size_t i = 0;
    bool more = true;
    while (i < pending->size() && more && !levels_.empty()) {
      more = quote_.empty() ? Take(*pending, &i, out) : TakeQuoted(*pending, &i, out);
    }
    pending->erase(0, i);
    return levels_.empty();
  }

 private:
  struct Level {
    bool is_object = false;
    bool is_value = false;  // of an object: behind the key
    bool any = false;       // it has a member already
  };

  // A string has begun, or a word goes on. False: more has to come.
  bool Take(absl::string_view text, size_t* i, std::string* out) {
    const absl::string_view rest = text.substr(*i);
    const bool is_blank = absl::StripAsciiWhitespace(word_).empty();
    if (is_blank && form_.quote.size() > 1) {
      if (absl::StartsWith(rest, form_.quote)) {
        *i += form_.quote.size();
        BeginString(form_.quote, out);
        return true;
      }
      if (absl::StartsWith(form_.quote, rest)) return false;
    }
    const char c = text[(*i)++];
    Level& level = levels_.back();
    if ((c == '"' || c == '\'') && is_blank) {
      BeginString(absl::string_view(&c, 1), out);
    } else if ((c == '{' || c == '[' || c == '(') && is_blank) {
      BeginMember(out);
      word_.clear();
      *out += c == '{' ? '{' : '[';
      levels_.push_back({.is_object = c == '{'});
      ended_ = false;
    } else if (c == '}' || c == ']' || c == ')') {
      EndMember(out);
      *out += level.is_object ? '}' : ']';
      levels_.pop_back();
      if (!levels_.empty()) levels_.back().is_value = false;
      ended_ = true;
    } else if (c == ',') {
      EndMember(out);
      level.is_value = false;
      ended_ = false;
    } else if ((c == '=' || c == ':') && level.is_object && !level.is_value) {
      EndKey(out);
    } else {
      word_.push_back(c);
    }
    return true;
  }

  bool TakeQuoted(absl::string_view text, size_t* i, std::string* out) {
    const absl::string_view rest = text.substr(*i);
    if (absl::StartsWith(rest, quote_)) {
      *i += quote_.size();
      quote_.clear();
      if (!in_key_) *out += '"';
      ended_ = !in_key_;
      in_key_ = false;
      return true;
    }
    if (absl::StartsWith(quote_, rest)) return false;
    const char c = rest[0];
    std::string* to = in_key_ ? &word_ : out;
    if (c == '\\' && quote_.size() == 1) {
      if (rest.size() < 2) return false;
      const char escaped = rest[1];
      if (escaped == 'u' && !in_key_) return TakeCode(rest, i, out);
      *i += 2;
      constexpr absl::string_view kKept = "\\nrtbf/\"";
      if (in_key_ || escaped == '\'') {
        AppendEscaped(absl::string_view(&escaped, 1), to);
      } else if (absl::StrContains(kKept, escaped)) {
        *to += {'\\', escaped};
      } else {
        AppendEscaped(rest.substr(0, 2), to);
      }
      return true;
    }
    ++*i;
    if (in_key_) {
      to->push_back(c);
    } else {
      AppendEscaped(absl::string_view(&c, 1), to);
    }
    return true;
  }

  // "\u00e9" is the same in JSON.
  static bool TakeCode(absl::string_view rest, size_t* i, std::string* out) {
    constexpr size_t kBytes = 6;
    size_t digits = 2;
    while (digits < std::min(rest.size(), kBytes) &&
           absl::ascii_isxdigit(static_cast<unsigned char>(rest[digits]))) {
      ++digits;
    }
    if (digits == rest.size() && digits < kBytes) return false;
    const absl::string_view text = rest.substr(0, digits);
    *i += text.size();
    if (digits == kBytes) {
      out->append(text);
    } else {
      AppendEscaped(text, out);
    }
    return true;
  }

  void BeginString(absl::string_view quote, std::string* out) {
    quote_ = std::string(quote);
    word_.clear();
    in_key_ = levels_.back().is_object && !levels_.back().is_value;
    if (in_key_) return;
    BeginMember(out);
    *out += '"';
  }
  // Of an object the key has written the separator.
  void BeginMember(std::string* out) {
    Level& level = levels_.back();
    if (!level.is_object && std::exchange(level.any, true)) *out += ", ";
    if (level.is_object && !level.is_value) {
      // A value without a key: JSON needs one.
      word_.clear();
      EndKey(out);
    }
  }
  void EndKey(std::string* out) {
    Level& level = levels_.back();
    if (std::exchange(level.any, true)) *out += ", ";
    *out += absl::StrCat(QuotedJson(absl::StripAsciiWhitespace(word_)), ": ");
    word_.clear();
    level.is_value = true;
    ended_ = false;
  }
  void EndMember(std::string* out) {
    const bool blank = absl::StripAsciiWhitespace(word_).empty();
    const bool lacks_value = levels_.back().is_object && levels_.back().is_value && !ended_;
    if (!ended_ && (!blank || lacks_value)) {
      const std::string word = std::exchange(word_, {});
      BeginMember(out);
      *out += blank ? "null" : ValueOfWord(word);
    }
    word_.clear();
  }

  const ToolCallForm& form_;
  std::vector<Level> levels_;
  std::string quote_;  // of the string that has begun; empty: none
  std::string word_;
  bool in_key_ = false;  // the string is a key
  bool ended_ = false;   // the member has its value
};

}  // namespace

std::unique_ptr<ToolArgumentsReader> NewToolArgumentsReader(
    const ToolCallForm& form, const std::vector<ToolParameter>& parameters) {
  switch (form.shape) {
    case Shape::kParameters:
      return std::make_unique<TaggedArguments>(form, parameters);
    case Shape::kInline:
      return std::make_unique<InlineArguments>(form);
    default:
      return std::make_unique<ObjectArguments>();
  }
}

}  // namespace strata
