#include "node/chat/tool_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Expr = GbnfExpr;

constexpr absl::string_view kOpen = "<tool_call>";
constexpr absl::string_view kClose = "</tool_call>";
constexpr absl::string_view kMistralMark = "[TOOL_CALLS]";
// Bytes of a call that are held back while its name or arguments do not come.
constexpr size_t kHeldBytesMax = 64 * 1024;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string Unquoted(const std::string& quoted) {
  const auto json = nlohmann::json::parse("\"" + quoted + "\"", nullptr, false);
  return json.is_string() ? json.get<std::string>() : quoted;
}

}  // namespace

ToolForm ToolFormOf(absl::string_view chat_template) {
  if (absl::StrContains(chat_template, kOpen)) return ToolForm::kTagged;
  // Mistral's newer form, [TOOL_CALLS]name[ARGS]{…}, is not supported.
  if (absl::StrContains(chat_template, kMistralMark) &&
      !absl::StrContains(chat_template, "[ARGS]")) {
    return ToolForm::kMistral;
  }
  if (absl::StrContains(chat_template, "<|python_tag|>") ||
      (absl::StrContains(chat_template, "\"parameters\"") &&
       absl::StrContains(chat_template, "ipython"))) {
    return ToolForm::kBare;
  }
  return ToolForm::kTagged;
}

absl::StatusOr<GbnfExpr> ToolCallGrammar(ToolForm form, const std::vector<CallableTool>& tools,
                                         bool several, JsonGrammar* grammar) {
  const char* arguments = form == ToolForm::kBare ? "\"parameters\": " : "\"arguments\": ";
  std::vector<Expr> parts;
  for (const CallableTool& tool : tools) {
    Expr schema = grammar->AnyObject();
    if (!tool.parameters.empty()) {
      const auto json = ParseSchema(tool.parameters, tool.path);
      if (!json.ok()) return json.status();
      auto read = grammar->Schema(*json, tool.path);
      if (!read.ok()) return read.status();
      schema = *std::move(read);
    }
    const std::string name = SchemaJson(tool.name).dump();
    parts.push_back(Expr::Sequence(
        {Expr::Text("{\"name\": " + name + ", " + arguments), std::move(schema), Expr::Text("}")}));
  }
  const Expr call = grammar->NewRule("call", Expr::Choice(std::move(parts)));
  const auto repeat = [several](Expr part) {
    return several ? Expr::Repeat(std::move(part), {}) : Expr::Text("");
  };
  switch (form) {
    case ToolForm::kTagged: {
      const Expr one = Expr::Sequence(
          {Expr::Text(kOpen), Expr::Text("\n"), call, Expr::Text("\n"), Expr::Text(kClose)});
      return Expr::Sequence({one, repeat(Expr::Sequence({Expr::Text("\n"), one}))});
    }
    case ToolForm::kBare:
      return Expr::Sequence({call, repeat(Expr::Sequence({Expr::Text("; "), call}))});
    case ToolForm::kMistral:
      return Expr::Sequence({Expr::Text(kMistralMark), Expr::Optional(Expr::Text(" ")),
                             Expr::Text("["), call,
                             repeat(Expr::Sequence({Expr::Text(", "), call})), Expr::Text("]")});
  }
  return call;
}

absl::string_view ToolReader::Mark() const {
  // Control tokens have no text, so the output may begin with what follows them.
  return options_.form == ToolForm::kTagged ? kOpen : kMistralMark;
}

bool ToolReader::Knows(const std::string& name) const {
  return std::find(options_.names.begin(), options_.names.end(), name) != options_.names.end();
}

ToolPiece ToolReader::Add(absl::string_view text) {
  ToolPiece out;
  for (const char c : text) {
    if (done()) break;
    Take(c, &out);
  }
  if (in_ == In::kCall && object_.emitted) Emit(&out);
  return out;
}

ToolPiece ToolReader::Finish() {
  ToolPiece out;
  if (in_ == In::kCall && !object_.emitted) GiveUp(&out);
  // Newlines behind the last call are dropped.
  if (complete_ > 0 && std::all_of(held_.begin(), held_.end(), IsSpace)) held_.clear();
  out.content += std::exchange(held_, {});
  return out;
}

void ToolReader::Take(char c, ToolPiece* out) {
  switch (in_) {
    case In::kText:
      TakeText(c, out);
      return;
    case In::kBetween:  // a mark has come
      if (c == '{') {
        object_ = {};
        object_.raw = std::exchange(held_, {});
        in_ = In::kCall;
        TakeCall(c, out);
      } else if (IsSpace(c) || (c == '[' && options_.form == ToolForm::kMistral)) {
        held_.push_back(c);
      } else {
        out->content += std::exchange(held_, {});
        in_ = In::kText;
        TakeText(c, out);
      }
      return;
    case In::kCall:
      TakeCall(c, out);
      return;
    case In::kBehind:
      if (options_.form == ToolForm::kTagged) {
        // Skips up to the closing mark; without one content follows.
        held_.push_back(c);
        const absl::string_view rest = absl::string_view(held_).substr(
            std::min(held_.find_first_not_of(" \n\t\r"), held_.size()));
        if (rest == kClose || !absl::StartsWith(kClose, rest)) {
          const bool closed = rest == kClose;
          std::string more = closed ? std::string() : std::string(rest);
          held_.clear();
          in_ = In::kText;
          for (const char each : more) TakeText(each, out);
        }
      } else if (c == '{') {
        in_ = In::kBetween;
        Take(c, out);
      } else if (!IsSpace(c) && c != ',' && c != ';' && c != ']') {
        in_ = In::kText;
        TakeText(c, out);
      }
      return;
  }
}

void ToolReader::TakeText(char c, ToolPiece* out) {
  const bool first = !began_;
  if (!IsSpace(c)) began_ = true;
  if (options_.form != ToolForm::kTagged && first &&
      held_.find_first_not_of(" \n\t\r") == std::string::npos) {
    // Output that begins so may be a call.
    if (c == '{' && options_.form == ToolForm::kBare) {
      in_ = In::kBetween;
      Take(c, out);
      return;
    }
    if (IsSpace(c)) {
      held_.push_back(c);
      return;
    }
  }
  held_.push_back(c);
  if (options_.form == ToolForm::kMistral && first && c == '[') {
    // "[{" begins a call, and "[TOOL_CALLS]" may.
    return;
  }
  if (options_.form == ToolForm::kMistral && absl::StrContains(held_, "[{") &&
      held_.find_first_not_of(" \n\t\r[{") == std::string::npos) {
    held_.pop_back();
    in_ = In::kBetween;
    Take(c, out);
    return;
  }
  if (options_.form == ToolForm::kBare) {
    out->content += std::exchange(held_, {});
    return;
  }
  const absl::string_view mark = Mark();
  if (absl::EndsWith(held_, mark)) {
    if (options_.form != ToolForm::kTagged) {
      out->content += held_.substr(0, held_.size() - mark.size());
    }
    held_ = std::string(mark);
    in_ = In::kBetween;
    return;
  }
  size_t hold = std::min(held_.size(), mark.size() - 1);
  while (!absl::EndsWith(held_, mark.substr(0, hold))) --hold;
  // Newlines before a call are dropped; before anything else they are emitted with it.
  size_t keep = held_.size() - hold;
  while (options_.form == ToolForm::kTagged && keep > 0 && IsSpace(held_[keep - 1])) --keep;
  out->content += held_.substr(0, keep);
  held_.erase(0, keep);
}

void ToolReader::TakeCall(char c, ToolPiece* out) {
  Object& o = object_;
  o.raw.push_back(c);
  if (o.in_string) {
    if (o.escaped) {
      o.escaped = false;
    } else if (c == '\\') {
      o.escaped = true;
    } else if (c == '"') {
      o.in_string = false;
      if (o.depth == 1 && o.is_key) o.key = Unquoted(o.quoted);
      if (o.depth == 1 && !o.is_key && o.key == "name") {
        o.name = Unquoted(o.quoted);
        o.has_name = true;
      }
    }
    if (o.in_string && o.depth == 1) o.quoted.push_back(c);
  } else {
    const bool argument = o.depth == 1 && !o.is_key && o.arguments_at == 0 && !IsSpace(c) &&
                          (o.key == "arguments" || o.key == "parameters");
    if (argument) {
      o.arguments_at = o.arguments_emitted = o.raw.size() - 1;
      o.is_text = c == '"';
    }
    if (c == '"') {
      o.in_string = true;
      o.quoted.clear();
    } else if (c == '{' || c == '[') {
      ++o.depth;
    } else if (c == '}' || c == ']') {
      --o.depth;
      if (o.depth == 1 && o.arguments_at != 0 && !o.arguments_over) EndArguments(out);
    } else if (c == ':' && o.depth == 1) {
      o.is_key = false;
      // Any other key: the output is JSON, but not a call.
      constexpr absl::string_view kKeys[] = {"name", "arguments", "parameters",
                                             "type", "id",        "function"};
      if (!o.emitted && std::find(std::begin(kKeys), std::end(kKeys), o.key) == std::end(kKeys)) {
        GiveUp(out);
        return;
      }
    }
    if (o.arguments_at != 0 && !o.arguments_over && (o.depth == 0 || (o.depth == 1 && c == ','))) {
      o.raw.pop_back();
      EndArguments(out);
      o.raw.push_back(c);
    }
    if (c == ',' && o.depth == 1) o.is_key = true;
  }
  if (!o.emitted && ((o.has_name && !Knows(o.name)) || o.raw.size() > kHeldBytesMax)) {
    GiveUp(out);
    return;
  }
  if (!o.emitted && o.has_name && o.arguments_at != 0) {
    o.emitted = true;
    if (o.arguments_over) {
      // The arguments came before the name.
      ToolPiece::Call call = {.index = calls_++, .name = o.name, .arguments = {}};
      const auto json = nlohmann::ordered_json::parse(
          o.raw.substr(std::min(o.raw.find('{'), o.raw.size())) + (o.depth > 0 ? "}" : ""), nullptr,
          false);
      for (const char* key : {"arguments", "parameters"}) {
        if (json.is_object() && json.contains(key)) {
          call.arguments = json[key].is_string() ? json[key].get<std::string>() : json[key].dump();
        }
      }
      out->calls.push_back(std::move(call));
      o.closed = true;
    }
  }
  if (o.depth > 0) return;
  // The object is over.
  if (!o.emitted && o.has_name && Knows(o.name)) {
    out->calls.push_back({.index = calls_++, .name = o.name, .arguments = "{}"});
    o.emitted = true;
  }
  if (!o.emitted) {
    GiveUp(out);
    return;
  }
  ++complete_;
  held_.clear();
  in_ = In::kBehind;
}

void ToolReader::EndArguments(ToolPiece* out) {
  object_.arguments_over = true;
  if (!object_.emitted && !(object_.has_name && Knows(object_.name))) return;
  object_.emitted = true;
  Emit(out);
  object_.closed = true;
}

// Emits the arguments that have not been emitted yet.
void ToolReader::Emit(ToolPiece* out) {
  Object& o = object_;
  if (o.closed) return;
  if (o.is_text && !o.arguments_over) return;  // a string is emitted whole
  std::string more = o.raw.substr(std::min(o.arguments_emitted, o.raw.size()));
  if (o.is_text) {
    const auto json = nlohmann::json::parse(more, nullptr, false);
    if (json.is_string()) more = json.get<std::string>();
  } else if (o.arguments_over) {
    while (!more.empty() && IsSpace(more.back())) more.pop_back();
  }
  o.arguments_emitted = o.raw.size();
  ToolPiece::Call call = {
      .index = calls_, .name = std::exchange(o.name, {}), .arguments = std::move(more)};
  if (!call.name.empty()) {
    ++calls_;
  } else {
    --call.index;
  }
  if (call.name.empty() && call.arguments.empty()) return;
  if (!out->calls.empty() && out->calls.back().index == call.index) {
    out->calls.back().arguments += call.arguments;
  } else {
    out->calls.push_back(std::move(call));
  }
}

void ToolReader::GiveUp(ToolPiece* out) {
  out->content += std::exchange(object_.raw, {});
  object_ = {};
  held_.clear();
  began_ = true;
  in_ = In::kText;
}

}  // namespace strata
