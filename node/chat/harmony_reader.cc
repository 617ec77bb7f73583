#include "node/chat/harmony_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace strata {
namespace {

constexpr absl::string_view kHarmonyStart = "<|start|>", kHarmonyChannel = "<|channel|>",
                            kHarmonyMessage = "<|message|>", kHarmonyConstrain = "<|constrain|>",
                            kHarmonyEnd = "<|end|>", kHarmonyCall = "<|call|>",
                            kHarmonyReturn = "<|return|>";
// What ends a message; some models leave out the end and start the next one.
constexpr absl::string_view kHarmonyEnds[] = {kHarmonyEnd, kHarmonyCall, kHarmonyReturn,
                                              kHarmonyStart, kHarmonyChannel};
constexpr absl::string_view kHarmonyRecipient = "to=functions.";
// More is no header.
constexpr size_t kHarmonyHeaderBytesMax = 1024;

}  // namespace

bool IsHarmony(absl::string_view chat_template) {
  return absl::StrContains(chat_template, kHarmonyChannel) &&
         absl::StrContains(chat_template, kHarmonyMessage) &&
         absl::StrContains(chat_template, "analysis");
}

std::vector<std::string> HarmonyMarks() {
  std::vector<std::string> marks;
  for (const absl::string_view mark :
       {kHarmonyStart, kHarmonyChannel, kHarmonyMessage, kHarmonyConstrain, kHarmonyEnd,
        kHarmonyCall, kHarmonyReturn}) {
    marks.emplace_back(mark);
  }
  return marks;
}

ToolCallForm HarmonyToolCalls() {
  return {.shape = ToolCallForm::Shape::kArguments,
          .call_open = "<|channel|>commentary to=functions.",
          .name_close = " <|constrain|>json<|message|>"};
}

HarmonyReader::HarmonyReader(absl::string_view prompt, std::vector<ReadableTool> tools)
    : tools_(std::move(tools)) {
  const size_t start = prompt.rfind(kHarmonyStart);
  if (start == absl::string_view::npos) return;
  const absl::string_view last = prompt.substr(start);
  const size_t message = last.find(kHarmonyMessage);
  if (message == absl::string_view::npos) return;
  const absl::string_view body = last.substr(message + kHarmonyMessage.size());
  if (absl::StrContains(body, kHarmonyEnd) || absl::StrContains(body, kHarmonyReturn)) return;
  Piece none;
  ReadHeader(last.substr(0, message), &none);
}

HarmonyReader::Piece HarmonyReader::Add(absl::string_view text) {
  Piece piece;
  pending_.append(text);
  while (!pending_.empty() && Read(&piece)) {
  }
  return piece;
}

void HarmonyReader::Skip(size_t bytes) {
  pending_.erase(0, bytes);
  read_ += bytes;
}

bool HarmonyReader::Read(Piece* piece) {
  if (to_ == To::kHeader) {
    const absl::string_view begun = absl::StripLeadingAsciiWhitespace(pending_);
    bool may_be_header = false;
    for (const absl::string_view mark : {kHarmonyStart, kHarmonyChannel, kHarmonyRecipient}) {
      may_be_header =
          may_be_header || absl::StartsWith(begun, mark) || absl::StartsWith(mark, begun);
    }
    const size_t message = pending_.find(kHarmonyMessage);
    const bool has_end = message != std::string::npos;
    const bool is_long = has_end
                             ? message > kHarmonyHeaderBytesMax
                             : pending_.size() > kHarmonyHeaderBytesMax + kHarmonyMessage.size();
    if (may_be_header && !is_long && !has_end) return false;
    if (may_be_header && !is_long) {
      ReadHeader(absl::string_view(pending_).substr(0, message), piece);
      Skip(message + kHarmonyMessage.size());
      return true;
    }
    // Output without any header is what is said.
    to_ = To::kContent;
    answers_ = true;
    return true;
  }
  size_t end = std::string::npos, hold = 0;
  absl::string_view mark;
  for (const absl::string_view each : kHarmonyEnds) {
    const size_t at = pending_.find(each);
    if (at < end) {
      end = at;
      mark = each;
    }
    hold = std::max(hold, BytesOfBegunMark(pending_, each));
  }
  const size_t taken = end == std::string::npos ? pending_.size() - hold : end;
  Emit(absl::string_view(pending_).substr(0, taken), piece);
  Skip(taken);
  if (end == std::string::npos) return false;
  const bool begins_next = mark == kHarmonyStart || mark == kHarmonyChannel;
  if (to_ == To::kCall && !name_.empty()) Emit("{}", piece);
  if (!begins_next) Skip(mark.size());
  if (to_ == To::kThought) {
    thought_end_ = read_;
    had_thought_ = true;
  }
  to_ = To::kHeader;
  return true;
}

// "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json": the recipient may
// stand before the channel, too.
void HarmonyReader::ReadHeader(absl::string_view header, Piece* piece) {
  const auto word_behind = [header](absl::string_view mark) {
    const size_t at = header.rfind(mark);
    if (at == absl::string_view::npos) return absl::string_view();
    absl::string_view word = header.substr(at + mark.size());
    return word.substr(0, word.find_first_of(" <\n"));
  };
  const absl::string_view channel = word_behind(kHarmonyChannel);
  const absl::string_view function = word_behind(kHarmonyRecipient);
  const bool is_tool =
      std::any_of(tools_.begin(), tools_.end(),
                  [function](const ReadableTool& tool) { return tool.name == function; });
  if (is_tool) {
    to_ = To::kCall;
    name_ = std::string(function);
    answers_ = true;
  } else if (channel == "analysis") {
    to_ = To::kThought;
    if (had_thought_) piece->thought += "\n\n";
  } else {
    // "commentary" to nobody is said before a call.
    to_ = To::kContent;
    answers_ = true;
  }
}

void HarmonyReader::Emit(absl::string_view text, Piece* piece) {
  if (text.empty()) return;
  if (to_ == To::kThought) {
    piece->thought.append(text);
  } else if (to_ == To::kCall) {
    if (!name_.empty()) ++calls_;
    piece->tools.AddCall(
        {.index = calls_ - 1, .name = std::exchange(name_, {}), .arguments = std::string(text)});
  } else {
    piece->tools.content.append(text);
  }
}

HarmonyReader::Piece HarmonyReader::Finish() {
  Piece piece;
  if (to_ == To::kHeader && pending_.size() == 1) piece.tools.content = pending_;
  if (to_ != To::kHeader) {
    // A mark that was cut is no text.
    for (const absl::string_view mark : kHarmonyEnds) {
      const size_t begun = BytesOfBegunMark(pending_, mark);
      if (begun > 1) pending_.resize(pending_.size() - begun);
    }
    Emit(pending_, &piece);
    if (to_ == To::kCall && !name_.empty()) Emit("{}", &piece);
  }
  pending_.clear();
  return piece;
}

}  // namespace strata
