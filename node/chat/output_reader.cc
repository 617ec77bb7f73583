#include "node/chat/output_reader.h"

#include <utility>
#include <vector>

#include "node/chat/known_tool_calls.h"

namespace strata {
namespace {

std::variant<ThoughtSplitter, HarmonyReader> ReaderOf(const OutputReader::Options& options) {
  const bool offers = options.tools != nullptr && options.tools->offered();
  if (options.format.is_harmony && options.splits_thoughts) {
    return HarmonyReader(options.prompt,
                         offers ? ReadableTools(*options.tools) : std::vector<ReadableTool>());
  }
  const ThoughtForm& thoughts = options.format.thoughts;
  return ThoughtSplitter(
      {.form = thoughts,
       .begins_open = !options.begins_answer && thoughts.IsOpenIn(options.prompt),
       .splits = options.splits_thoughts && !options.begins_answer});
}

}  // namespace

OutputReader::OutputReader(Options options) : reader_(ReaderOf(options)) {
  if (std::holds_alternative<HarmonyReader>(reader_)) return;
  if (options.tools == nullptr || !options.tools->offered()) return;
  std::vector<ToolCallForm> forms = {std::move(options.format.calls)};
  for (const ToolCallForm& form : KnownToolCallForms()) {
    if (form != forms[0]) forms.push_back(form);
  }
  calls_.emplace(ToolCallReader::Options{.forms = std::move(forms),
                                         .tools = ReadableTools(*options.tools),
                                         .calls_max = options.tools->parallel ? 0u : 1u});
}

OutputPiece OutputReader::Read(ThoughtSplitter::Piece split) {
  OutputPiece piece = {.thought = std::move(split.thought), .tools = {}};
  if (calls_) {
    piece.tools = calls_->Add(split.content);
  } else {
    piece.tools.content = std::move(split.content);
  }
  return piece;
}

OutputPiece OutputReader::Add(absl::string_view text) {
  if (auto* harmony = std::get_if<HarmonyReader>(&reader_)) {
    HarmonyReader::Piece piece = harmony->Add(text);
    return {.thought = std::move(piece.thought), .tools = std::move(piece.tools)};
  }
  return Read(std::get<ThoughtSplitter>(reader_).Add(text));
}

OutputPiece OutputReader::Finish(bool is_cut) {
  if (auto* harmony = std::get_if<HarmonyReader>(&reader_)) {
    HarmonyReader::Piece piece = harmony->Finish();
    return {.thought = std::move(piece.thought), .tools = std::move(piece.tools)};
  }
  OutputPiece piece = Read(std::get<ThoughtSplitter>(reader_).Finish());
  if (!calls_) return piece;
  ToolPiece rest = calls_->Finish(is_cut);
  piece.tools.content += rest.content;
  for (ToolPiece::Call& call : rest.calls) piece.tools.AddCall(std::move(call));
  return piece;
}

uint32_t OutputReader::calls() const {
  if (const auto* harmony = std::get_if<HarmonyReader>(&reader_)) return harmony->calls();
  return calls_ ? calls_->calls() : 0;
}

bool OutputReader::in_thought() const {
  return std::visit([](const auto& reader) { return reader.in_thought(); }, reader_);
}
bool OutputReader::answers() const {
  return std::visit([](const auto& reader) { return reader.answers(); }, reader_);
}
size_t OutputReader::thought_end() const {
  return std::visit([](const auto& reader) { return reader.thought_end(); }, reader_);
}

std::string ThoughtEnding(const ChatFormat& format, bool may_call) {
  if (!format.is_harmony) return format.thoughts.close_text;
  const std::string next = "<|end|><|start|>assistant";
  return may_call ? next : next + "<|channel|>final<|message|>";
}

std::string BehindThought(const ChatFormat& format) {
  if (format.is_harmony) return "<|start|>assistant";
  const std::string& text = format.thoughts.close_text;
  return text.substr(text.find(format.thoughts.close) + format.thoughts.close.size());
}

}  // namespace strata
