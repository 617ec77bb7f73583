#include "node/chat/tool_call_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

using Shape = ToolCallForm::Shape;

// Bytes of a call that are held back while its name does not come.
constexpr size_t kHeadBytesMax = 4096;

// The mark's last tag or word, as "<function=" of "<tool_call>\n<function=".
absl::string_view LastRun(absl::string_view mark) {
  absl::string_view last = FirstRun(mark);
  while (true) {
    mark.remove_prefix(static_cast<size_t>(last.data() + last.size() - mark.data()));
    const absl::string_view next = FirstRun(mark);
    if (next.empty()) return last;
    last = next;
  }
}

}  // namespace

void ToolPiece::AddCall(Call call) {
  if (call.name.empty() && call.arguments.empty()) return;
  if (call.name.empty() && !calls.empty() && calls.back().index == call.index) {
    calls.back().arguments += call.arguments;
  } else {
    calls.push_back(std::move(call));
  }
}

std::vector<ReadableTool> ReadableTools(const ChatTools& tools) {
  std::vector<ReadableTool> list;
  for (const ChatTool& tool : tools.list) {
    ReadableTool& read = list.emplace_back(ReadableTool{.name = tool.name, .parameters = {}});
    const SchemaJson schema =
        SchemaJson::parse(tool.parameters, nullptr, /*allow_exceptions=*/false);
    if (auto parameters = ParametersOf(schema)) read.parameters = *std::move(parameters);
  }
  return list;
}

ToolCallReader::ToolCallReader(Options options) : options_(std::move(options)) {
  for (const ToolCallForm& form : options_.forms) {
    const auto add = [&](std::string mark, bool is_whole) {
      const absl::string_view kept = absl::StripAsciiWhitespace(mark);
      const std::string run(FirstRun(kept));
      openings_.push_back(
          {.form = &form, .mark = std::string(kept), .run = run, .is_whole = is_whole});
      if (is_whole && !run.empty() && !absl::StrContains(first_bytes_, run[0])) {
        first_bytes_ += run[0];
      }
    };
    if (!form.section_open.empty()) add(form.section_open + form.call_open, true);
    // Without its section a call is still one, where its own mark is plain enough.
    const bool is_tag = !form.call_open.empty() && form.call_open[0] != ' ';
    add(form.call_open, form.section_open.empty() || is_tag);
    const absl::string_view last = LastRun(form.call_open);
    if (last != absl::StripAsciiWhitespace(form.call_open) && absl::StartsWith(last, "<") &&
        absl::EndsWith(last, "=")) {
      add(std::string(last), true);
    }
    has_bare_ = has_bare_ || form.is_bare();
  }
}

ToolPiece ToolCallReader::Add(absl::string_view text) {
  ToolPiece out;
  pending_.append(text);
  bool more = true;
  while (more && !done() && !pending_.empty()) {
    switch (in_) {
      case In::kContent:
        more = ReadContent(&out);
        break;
      case In::kHead:
        more = ReadHead(&out);
        break;
      case In::kObject:
        more = ReadObject(&out);
        break;
      case In::kArguments:
        more = ReadArguments(&out);
        break;
      case In::kBehind:
        more = ReadBehind(&out);
        break;
    }
  }
  if (done()) pending_.clear();
  return out;
}

ToolPiece ToolCallReader::Finish(bool is_cut) {
  ToolPiece out;
  switch (in_) {
    case In::kContent: {
      // Spaces behind a call are dropped.
      if (complete_ > 0 && SkipSpace(pending_, 0) == pending_.size()) break;
      // One byte behind other content may be anything; more of a mark is a call that was cut.
      const size_t mark = pending_.find_first_of(first_bytes_);
      const bool is_mark =
          is_cut && mark != std::string::npos && (!began_ || pending_.size() - mark > 1);
      if (!is_mark) out.content = pending_;  // only spaces are before a mark
      break;
    }
    case In::kHead:
      if (!is_cut) out.content = pending_;
      break;
    case In::kObject:
      if (!named_ && !is_cut) out.content = object_->raw();
      break;
    case In::kArguments:
    case In::kBehind:
      break;
  }
  pending_.clear();
  return out;
}

void ToolCallReader::EmitContent(size_t bytes, ToolPiece* out) {
  began_ = began_ || SkipSpace(absl::string_view(pending_).substr(0, bytes), 0) < bytes;
  out->content.append(pending_, 0, bytes);
  pending_.erase(0, bytes);
}

bool ToolCallReader::ReadContent(ToolPiece* out) {
  const absl::string_view text = pending_;
  if (has_bare_ && !began_) {
    const size_t at = SkipSpace(text, 0);
    if (at == text.size()) return false;
    if (text[at] == '{' || text[at] == '[') {
      in_ = In::kHead;
      return true;
    }
  }
  size_t end = text.size();
  for (size_t at = text.find_first_of(first_bytes_); at < text.size();
       at = text.find_first_of(first_bytes_, at + 1)) {
    MarkMatch best = MarkMatch::kNo;
    for (const Opening& opening : openings_) {
      if (!opening.is_whole || opening.run.empty() || text[at] != opening.run[0]) continue;
      size_t behind = at;
      best = std::max(best, MatchMark(text, opening.run, &behind));
    }
    if (best == MarkMatch::kNo) continue;
    end = at;
    if (best == MarkMatch::kYes) in_ = In::kHead;
    break;
  }
  // Spaces before a call are dropped; before anything else they are emitted with it.
  size_t kept = end;
  while (kept > 0 && absl::ascii_isspace(static_cast<unsigned char>(text[kept - 1]))) --kept;
  EmitContent(kept, out);
  return in_ == In::kHead;
}

// The name of a tool, and what is behind it.
ToolCallReader::Head ToolCallReader::MatchName(const Opening& opening, absl::string_view text,
                                               size_t at) const {
  const ToolCallForm& form = *opening.form;
  Head head = {.form = &form};
  for (const ReadableTool& tool : options_.tools) {
    const absl::string_view rest = text.substr(at);
    if (!absl::StartsWith(rest, tool.name)) {
      if (absl::StartsWith(tool.name, rest)) head.match = MarkMatch::kPartial;
      continue;
    }
    size_t behind = at + tool.name.size();
    if (!form.number_mark.empty() && absl::StartsWith(text.substr(behind), form.number_mark)) {
      behind += form.number_mark.size();
      while (behind < text.size() &&
             absl::ascii_isdigit(static_cast<unsigned char>(text[behind]))) {
        ++behind;
      }
    }
    Head named = {.form = &form, .tool = &tool, .end = behind};
    named.match = MatchMarkWithId(text, form.name_close, form.call_id, &named.end);
    if (named.match == MarkMatch::kYes) named = MatchArguments(named, text);
    if (named.match == MarkMatch::kYes) return named;
    head.match = std::max(head.match, named.match);
  }
  return head;
}

// Behind a name there are arguments, or the call ends.
ToolCallReader::Head ToolCallReader::MatchArguments(const Head& named,
                                                    absl::string_view text) const {
  Head head = named;
  const ToolCallForm& form = *named.form;
  if (form.shape == Shape::kInline) return head;
  const size_t next = SkipSpace(text, named.end);
  head.match = MarkMatch::kPartial;
  if (next == text.size()) return head;
  const std::string open = form.shape == Shape::kParameters ? form.key_open : "{";
  head.match = MarkMatch::kNo;
  for (const std::string& mark : {open, form.call_close, form.section_close}) {
    size_t behind = next;
    if (!FirstRun(mark).empty()) {
      head.match = std::max(head.match, MatchMark(text, FirstRun(mark), &behind));
    }
  }
  return head;
}

ToolCallReader::Head ToolCallReader::MatchHead(absl::string_view text, bool is_further) const {
  Head best;
  for (const Opening& opening : openings_) {
    if (!opening.is_whole && !(is_further && opening.form == form_)) continue;
    if (opening.mark.empty() && !(is_further ? opening.form == form_ : !began_)) continue;
    size_t at = 0;
    Head head = {.match = MatchMark(text, opening.mark, &at), .form = opening.form};
    if (head.match == MarkMatch::kYes) {
      size_t next = SkipSpace(text, at);
      if (opening.form->shape == Shape::kObject) {
        if (next < text.size() && text[next] == '[') next = SkipSpace(text, next + 1);
        head.end = next;
        head.match = next == text.size() ? MarkMatch::kPartial
                     : text[next] == '{' ? MarkMatch::kYes
                                         : MarkMatch::kNo;
      } else if (next == text.size()) {
        head.match = MarkMatch::kPartial;
      } else {
        head = MatchName(opening, text, next);
      }
    }
    if (head.match == MarkMatch::kYes) return head;
    if (head.match == MarkMatch::kPartial) best = head;
  }
  return best;
}

bool ToolCallReader::ReadHead(ToolPiece* out) {
  const Head head = MatchHead(pending_, /*is_further=*/false);
  if (head.match == MarkMatch::kPartial && pending_.size() <= kHeadBytesMax) return false;
  if (head.match == MarkMatch::kYes) {
    Begin(head, out);
    return true;
  }
  // What only looked like a call goes on as content behind its first byte.
  in_ = In::kContent;
  EmitContent(SkipSpace(pending_, 0) + 1, out);
  return true;
}

void ToolCallReader::Begin(const Head& head, ToolPiece* out) {
  form_ = head.form;
  began_ = true;
  if (head.tool == nullptr) {
    named_ = false;
    // The mark stays before the object, which may turn out to be no call.
    object_.emplace(*form_, pending_.substr(0, head.end), [this](const std::string& name) {
      return std::any_of(options_.tools.begin(), options_.tools.end(),
                         [&name](const ReadableTool& tool) { return tool.name == name; });
    });
    pending_.erase(0, head.end);
    in_ = In::kObject;
    return;
  }
  pending_.erase(0, head.end);
  arguments_ = NewToolArgumentsReader(*form_, head.tool->parameters);
  Emit(head.tool->name, "", out);
  in_ = In::kArguments;
}

void ToolCallReader::Emit(std::string name, std::string arguments, ToolPiece* out) {
  if (!name.empty()) ++calls_;
  out->AddCall({.index = calls_ - 1, .name = std::move(name), .arguments = std::move(arguments)});
}

bool ToolCallReader::ReadObject(ToolPiece* out) {
  const ToolCallObjectReader::State state = object_->Read(&pending_);
  if (state == ToolCallObjectReader::State::kRefused) {
    pending_.insert(0, object_->raw());
    object_.reset();
    in_ = In::kContent;
    EmitContent(SkipSpace(pending_, 0) + 1, out);
    return true;
  }
  std::string arguments = object_->TakeArguments();
  if (!object_->name().empty() && (named_ || !arguments.empty())) {
    Emit(std::exchange(named_, true) ? "" : object_->name(), std::move(arguments), out);
  }
  if (state == ToolCallObjectReader::State::kReading) return false;
  object_.reset();
  ++complete_;
  in_ = In::kBehind;
  return true;
}

bool ToolCallReader::ReadArguments(ToolPiece* out) {
  std::string json;
  const bool complete = arguments_->Read(&pending_, &json);
  Emit("", std::move(json), out);
  if (!complete) return false;
  arguments_.reset();
  ++complete_;
  in_ = In::kBehind;
  return true;
}

// Skips what ends a call and a section, up to a further call or content.
bool ToolCallReader::ReadBehind(ToolPiece* out) {
  size_t at = 0;
  while (at < pending_.size() && (absl::ascii_isspace(static_cast<unsigned char>(pending_[at])) ||
                                  absl::StrContains(",;]", pending_[at]))) {
    ++at;
  }
  pending_.erase(0, at);
  if (pending_.empty()) return false;
  MarkMatch best = MarkMatch::kNo;
  for (const std::string* mark : {&form_->call_close, &form_->section_close}) {
    absl::string_view rest = *mark;
    // Some models leave out a part of it.
    for (absl::string_view run = FirstRun(rest); !run.empty(); run = FirstRun(rest)) {
      rest.remove_prefix(static_cast<size_t>(run.data() + run.size() - rest.data()));
      while (!run.empty() && absl::StrContains(",;]", run[0])) run.remove_prefix(1);
      if (run.empty()) continue;
      size_t behind = 0;
      const MarkMatch match = MatchMark(pending_, run, &behind);
      if (match == MarkMatch::kYes) {
        pending_.erase(0, behind);
        return true;
      }
      best = std::max(best, match);
    }
  }
  const Head head = MatchHead(pending_, /*is_further=*/true);
  if (head.match == MarkMatch::kYes) {
    Begin(head, out);
    return true;
  }
  if (std::max(best, head.match) == MarkMatch::kPartial && pending_.size() <= kHeadBytesMax) {
    return false;
  }
  in_ = In::kContent;
  return true;
}

}  // namespace strata
