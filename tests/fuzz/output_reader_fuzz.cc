// Any output of a model: thoughts, content and calls are the same in pieces of any size, calls are
// of offered tools, and what is no thought and no call is content, byte for byte. The first byte
// chooses the form, the second the prompt and the size of the pieces.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/chat/chat_format.h"
#include "node/chat/known_tool_calls.h"
#include "node/chat/output_reader.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

struct Output {
  std::string thought, content;
  std::vector<std::string> names, arguments;
  bool operator==(const Output&) const = default;
};

const ChatTools& Tools() {
  static const auto* const tools = new ChatTools{
      .list = {{.name = "f", .json = "", .parameters = ""},
               {.name = "fg", .json = "", .parameters = R"({"type":"object","properties":{
                   "a":{"type":"string"},"b":{"type":"integer"},"c":{"type":["string","null"]}}})"}}};
  return *tools;
}

Output Read(const OutputReader::Options& options, absl::string_view text, size_t bytes,
            bool is_cut) {
  OutputReader reader(options);
  Output output;
  const auto take = [&output](const OutputPiece& piece) {
    output.thought += piece.thought;
    output.content += piece.tools.content;
    for (const ToolPiece::Call& call : piece.tools.calls) {
      if (!call.name.empty()) {
        Check(call.index == output.names.size() && (call.name == "f" || call.name == "fg"));
        output.names.push_back(call.name);
        output.arguments.emplace_back();
      }
      Check(call.index < output.names.size());
      output.arguments[call.index] += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(reader.Add(text.substr(at, bytes)));
  take(reader.Finish(is_cut));
  Check(reader.calls() == output.names.size());
  Check(reader.thought_end() <= text.size());
  return output;
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  constexpr size_t kBytesMax = 4096;
  if (size < 2 || size > kBytesMax) return 0;
  const std::vector<ToolCallForm>& forms = KnownToolCallForms();
  OutputReader::Options options = {.format = DecodeChatFormat("")};
  options.format.is_harmony = data[0] % (forms.size() + 1) == forms.size();
  if (!options.format.is_harmony) options.format.calls = forms[data[0] % (forms.size() + 1)];
  options.prompt = (data[1] & 1) != 0 ? "<think>\n" : "<|start|>assistant";
  options.tools = (data[1] & 2) != 0 ? &Tools() : nullptr;
  const bool is_cut = (data[1] & 4) != 0;
  const size_t bytes = 1 + (data[1] >> 3);
  const absl::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Output whole = Read(options, text, text.size() + 1, is_cut);
  Check(Read(options, text, bytes, is_cut) == whole);
  if (whole.names.empty() && whole.thought.empty() && !is_cut && !options.format.is_harmony &&
      (data[1] & 1) == 0 && text.find("</think>") == absl::string_view::npos) {
    // A thought that has begun and says nothing is left out.
    const size_t begin = text.find_first_not_of(" \n\t\r\v\f");
    const bool thinks = begin != absl::string_view::npos && text.substr(begin, 7) == "<think>";
    Check(thinks || whole.content == text);
  }
  return 0;
}
