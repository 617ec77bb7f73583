#include "node/chat/tool_call_grammar.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "node/chat/tool_parameters.h"

namespace strata {
namespace {

using Expr = GbnfExpr;
using Shape = ToolCallForm::Shape;

// Arguments of a call in one form.
class ArgumentsGrammar {
 public:
  ArgumentsGrammar(const ToolCallForm& form, JsonGrammar* grammar)
      : form_(form), grammar_(grammar) {}

  absl::StatusOr<Expr> Of(const CallableTool& tool) {
    SchemaJson schema = SchemaJson::object();
    if (!tool.parameters.empty()) {
      auto read = ParseSchema(tool.parameters, tool.path);
      if (!read.ok()) return read.status();
      schema = *std::move(read);
    }
    const bool is_object = form_.shape == Shape::kObject || form_.shape == Shape::kArguments;
    if (is_object && tool.parameters.empty()) return grammar_->AnyObject();
    if (is_object) return grammar_->Schema(schema, tool.path);
    const auto parameters = ParametersOf(schema);
    return form_.shape == Shape::kInline ? Inline(parameters, tool.path)
                                         : Tagged(parameters, tool.path);
  }

 private:
  absl::StatusOr<Expr> Tagged(const std::optional<std::vector<ToolParameter>>& parameters,
                              const std::string& path) {
    if (!parameters) {
      Expr any = Expr::Sequence({Expr::Text(form_.key_open), Key(), Expr::Text(form_.key_close),
                                 grammar_->TextUntil(form_.value_close)});
      return Expr::Repeat(std::move(any), {});
    }
    std::vector<Expr> parts;
    for (const ToolParameter& parameter : *parameters) {
      auto value = TaggedValue(parameter, path);
      if (!value.ok()) return value.status();
      Expr part = Expr::Sequence(
          {Expr::Text(absl::StrCat(form_.key_open, parameter.name)), *std::move(value)});
      parts.push_back(parameter.required ? std::move(part) : Expr::Optional(std::move(part)));
    }
    return Expr::Sequence(std::move(parts));
  }

  absl::StatusOr<Expr> TaggedValue(const ToolParameter& parameter, const std::string& path) {
    if (parameter.is_text && parameter.choices.empty()) {
      return Expr::Sequence({Expr::Text(form_.key_close), grammar_->TextUntil(form_.value_close)});
    }
    if (parameter.is_text) {
      std::vector<Expr> choices;
      for (const std::string& choice : parameter.choices) choices.push_back(Expr::Text(choice));
      return Expr::Sequence({Expr::Text(form_.key_close), Expr::Choice(std::move(choices)),
                             Expr::Text(form_.value_close)});
    }
    auto value = ValueOf(parameter, path);
    if (!value.ok()) return value.status();
    return Expr::Sequence(
        {Expr::Text(form_.number_key_close), *std::move(value), Expr::Text(form_.value_close)});
  }

  absl::StatusOr<Expr> ValueOf(const ToolParameter& parameter, const std::string& path) {
    return grammar_->Schema(parameter.schema, absl::StrCat(path, ".properties.", parameter.name));
  }

  // f(a=1, b=2): each but the first has the separator before it, so what may be first is a choice.
  absl::StatusOr<Expr> Inline(const std::optional<std::vector<ToolParameter>>& parameters,
                              const std::string& path) {
    const Expr separator = Expr::Text(form_.value_separator);
    if (!parameters) {
      const Expr any = Expr::Sequence({Key(), Expr::Text(form_.key_close), Quoted()});
      return Expr::Optional(
          Expr::Sequence({any, Expr::Repeat(Expr::Sequence({separator, any}), {})}));
    }
    std::vector<Expr> parts;
    for (const ToolParameter& parameter : *parameters) {
      auto value = InlineValue(parameter, path);
      if (!value.ok()) return value.status();
      parts.push_back(Expr::Sequence(
          {Expr::Text(absl::StrCat(parameter.name, form_.key_close)), *std::move(value)}));
    }
    // From the last one: `first` is the rest with nothing before it, `next` behind another one.
    Expr first = Expr::Text(""), next = Expr::Text("");
    for (size_t i = parts.size(); i-- > 0;) {
      Expr with_first = Expr::Sequence({parts[i], next});
      Expr with_next = Expr::Sequence({separator, parts[i], next});
      const bool required = (*parameters)[i].required;
      first = grammar_->NewRule("first",
                                required ? std::move(with_first)
                                         : Expr::Choice({std::move(with_first), std::move(first)}));
      next = grammar_->NewRule(
          "next", required ? std::move(with_next) : Expr::Choice({std::move(with_next), next}));
    }
    return first;
  }

  absl::StatusOr<Expr> InlineValue(const ToolParameter& parameter, const std::string& path) {
    if (parameter.is_text && parameter.choices.empty()) return Quoted();
    if (parameter.is_text) {
      std::vector<Expr> choices;
      for (const std::string& choice : parameter.choices) {
        choices.push_back(Expr::Text(absl::StrCat(form_.quote, choice, form_.quote)));
      }
      return Expr::Choice(std::move(choices));
    }
    if (parameter.is_truth && form_.python) {
      return Expr::Choice({Expr::Text("True"), Expr::Text("False")});
    }
    return ValueOf(parameter, path);
  }

  // A string. In Python and JSON a quote within is escaped, other families' quotes cannot be.
  Expr Quoted() {
    if (form_.quote.size() > 1) {
      return Expr::Sequence({Expr::Text(form_.quote), grammar_->TextUntil(form_.quote)});
    }
    const auto quote = static_cast<uint32_t>(form_.quote.empty() ? '"' : form_.quote[0]);
    const Expr character = Expr::Choice(
        {Expr::Class({{quote, quote}, {'\\', '\\'}, {0, 0x1F}}, /*negated=*/true),
         Expr::Sequence({Expr::Text("\\"),
                         Expr::Class({{quote, quote}, {'\\', '\\'}, {'n', 'n'}, {'t', 't'}})})});
    return Expr::Sequence(
        {Expr::Text(form_.quote), Expr::Repeat(character, {}), Expr::Text(form_.quote)});
  }
  static Expr Key() {
    return Expr::Repeat(Expr::Class({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}}),
                        {.min = 1, .max = 64});
  }

  const ToolCallForm& form_;
  JsonGrammar* const grammar_;
};

// The mark with an id in it, where there is one.
Expr WithId(const std::string& mark, const std::string& id) {
  const size_t at = id.empty() ? std::string::npos : mark.find(id);
  if (at == std::string::npos) return Expr::Text(mark);
  const bool digits =
      std::all_of(id.begin(), id.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  const auto size = static_cast<uint32_t>(id.size());
  Expr any = digits ? Expr::Class({{'0', '9'}}) : Expr::Class({{'0', '9'}, {'a', 'z'}, {'A', 'Z'}});
  return Expr::Sequence({Expr::Text(mark.substr(0, at)),
                         Expr::Repeat(std::move(any), {.min = size, .max = size}),
                         Expr::Text(mark.substr(at + id.size()))});
}

}  // namespace

absl::StatusOr<GbnfExpr> ToolCallGrammar(const ToolCallForm& form,
                                         const std::vector<CallableTool>& tools, bool several,
                                         JsonGrammar* grammar) {
  ArgumentsGrammar of(form, grammar);
  std::vector<Expr> choices;
  for (const CallableTool& tool : tools) {
    auto arguments = of.Of(tool);
    if (!arguments.ok()) return arguments.status();
    std::vector<Expr> parts = {Expr::Text(tool.name)};
    if (!form.number_mark.empty()) {
      parts.push_back(Expr::Text(form.number_mark));
      parts.push_back(Expr::Repeat(Expr::Class({{'0', '9'}}), {.min = 1, .max = 2}));
    }
    parts.push_back(WithId(form.name_close, form.call_id));
    parts.push_back(*std::move(arguments));
    choices.push_back(Expr::Sequence(std::move(parts)));
  }
  const Expr call = grammar->NewRule(
      "call",
      Expr::Sequence({Expr::Text(form.call_open), WithId(form.name_open, form.call_id),
                      Expr::Choice(std::move(choices)), WithId(form.arguments_close, form.call_id),
                      Expr::Text(form.call_close)}));
  std::vector<Expr> all = {Expr::Text(form.section_open), call};
  if (several) {
    all.push_back(Expr::Repeat(Expr::Sequence({Expr::Text(form.separator), call}), {}));
  }
  all.push_back(Expr::Text(form.section_close));
  return Expr::Sequence(std::move(all));
}

}  // namespace strata
