#include "node/chat/known_tool_calls.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"

namespace strata {
namespace {

using Form = ToolCallForm;
using Shape = ToolCallForm::Shape;

Form Object(std::string open, std::string close) {
  return {.call_open = std::move(open),
          .call_close = std::move(close),
          .separator = "\n",
          .name_open = R"({"name": ")",
          .name_close = R"(", "arguments": )",
          .arguments_close = "}",
          .name_key = "name",
          .arguments_key = "arguments"};
}
// Several objects in one array.
Form Array(std::string open, std::string close) {
  Form form = Object("", "");
  form.section_open = std::move(open);
  form.section_close = std::move(close);
  form.separator = ", ";
  return form;
}
Form Arguments(std::string open, std::string name_close, std::string close) {
  return {.shape = Shape::kArguments,
          .call_open = std::move(open),
          .call_close = std::move(close),
          .name_close = std::move(name_close)};
}
Form InSection(std::string open, std::string close, Form form) {
  form.section_open = std::move(open);
  form.section_close = std::move(close);
  return form;
}
// <function=f><parameter=a>…, whose names are attributes in some families.
Form Parameters(const std::string& function, const std::string& parameter, std::string quote) {
  const std::string tag = quote.empty() ? "=" : " name=" + quote;
  return {.shape = Shape::kParameters,
          .call_open = "<" + function + tag,
          .call_close = "</" + function + ">\n",
          .name_close = quote + ">\n",
          .key_open = "<" + parameter + tag,
          .key_close = quote + ">",
          .number_key_close = quote + ">",
          .value_close = "</" + parameter + ">\n"};
}
Form Python(std::string open, std::string close) {
  return {.shape = Shape::kInline,
          .section_open = std::move(open),
          .section_close = std::move(close),
          .separator = ", ",
          .name_close = "(",
          .arguments_close = ")",
          .key_close = "=",
          .value_separator = ", ",
          .quote = "\"",
          .python = true};
}
// f{a:<|"|>x<|"|>,b:1}, with a quote of the family's own.
Form Braces(std::string open, std::string close, std::string quote) {
  return {.shape = Shape::kInline,
          .call_open = std::move(open),
          .call_close = std::move(close),
          .name_close = "{",
          .arguments_close = "}",
          .key_close = ":",
          .value_separator = ",",
          .quote = std::move(quote)};
}

std::vector<Form> MakeForms() {
  Form lines = Parameters("function", "parameter", "");  // Qwen3-Coder
  lines.key_close = lines.number_key_close = ">\n";
  lines.value_close = "\n</parameter>\n";
  lines.call_open = "<tool_call>\n<function=";
  lines.call_close = "</function>\n</tool_call>";
  lines.separator = "\n";
  Form seed = Parameters("function", "parameter", "");
  Form tagged = {.shape = Shape::kParameters,  // GLM-4.5
                 .call_open = "<tool_call>",
                 .call_close = "</tool_call>",
                 .separator = "\n",
                 .name_close = "\n",
                 .key_open = "<arg_key>",
                 .key_close = "</arg_key>\n<arg_value>",
                 .number_key_close = "</arg_key>\n<arg_value>",
                 .value_close = "</arg_value>\n"};
  Form deepseek = Parameters("｜DSML｜invoke", "｜DSML｜parameter", "\"");  // DeepSeek V3.2
  deepseek.key_close = "\" string=\"true\">";
  deepseek.number_key_close = "\" string=\"false\">";
  Form numbered = Arguments("<|tool_call_begin|>functions.", "<|tool_call_argument_begin|>",
                            "<|tool_call_end|>");  // Kimi K2
  numbered.number_mark = ":";
  Form cohere = Array("<|START_ACTION|>[", "]<|END_ACTION|>");
  cohere.name_key = "tool_name";
  cohere.arguments_key = "parameters";
  cohere.name_open = R"({"tool_call_id": "0", "tool_name": ")";
  cohere.name_close = R"(", "parameters": )";
  cohere.call_id = "0";
  Form python_tag = Object("<|python_tag|>", "");  // Llama 3
  python_tag.arguments_key = "parameters";
  python_tag.name_close = R"(", "parameters": )";
  python_tag.separator = "; ";
  return {
      Object("<tool_call>\n", "\n</tool_call>"),  // Hermes, Qwen: the first one
      std::move(lines),
      std::move(tagged),
      InSection("<minimax:tool_call>\n", "</minimax:tool_call>",
                Parameters("invoke", "parameter", "\"")),
      InSection("<seed:tool_call>\n", "</seed:tool_call>", std::move(seed)),
      InSection("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", std::move(deepseek)),
      InSection(  // DeepSeek V3
          "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
          Arguments("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n",
                    "\n```<｜tool▁call▁end｜>")),
      InSection("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",  // DeepSeek V3.1
                Arguments("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")),
      InSection("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", std::move(numbered)),
      Arguments("[TOOL_CALLS]", "[ARGS]", ""),  // Mistral, newer
      Array("[TOOL_CALLS][", "]"),              // Mistral, older
      std::move(cohere),
      Braces("<|tool_call>call:", "<tool_call|>", "<|\"|>"),                    // Gemma 4
      Braces("<start_function_call>call:", "<end_function_call>", "<escape>"),  // FunctionGemma
      Array("<|tool_call|>[", "]<|/tool_call|>"),                               // Phi, Granite
      Array("<TOOLCALL>[", "]</TOOLCALL>"),                                     // Nemotron
      Array("<tool_calls>[", "]</tool_calls>"),                                 // Hunyuan
      Python("<|tool_call_start|>[", "]<|tool_call_end|>"),                     // LFM2
      Python("<|python_start|>[", "]<|python_end|>"),                           // Llama 4
      Python("```tool_code\n", "\n```"),                                        // Gemma 3
      std::move(python_tag),
      Arguments("<function=", ">", "</function>"),  // Functionary, Llama 3.1
  };
}

}  // namespace

const std::vector<ToolCallForm>& KnownToolCallForms() {
  static const auto* const forms = new std::vector<ToolCallForm>(MakeForms());
  return *forms;
}

const ToolCallForm& ToolCallFormNamedIn(absl::string_view chat_template) {
  const std::vector<ToolCallForm>& forms = KnownToolCallForms();
  // A mark that is only a part of the section's belongs to another family.
  for (const ToolCallForm& form : forms) {
    const std::string& open = form.section_open.empty() ? form.call_open : form.section_open;
    absl::string_view mark = FirstRun(open);
    while (!mark.empty() && mark.back() == '[') mark.remove_suffix(1);
    const bool is_named =
        !mark.empty() && absl::StrContains(chat_template, mark) &&
        (form.key_open.empty() || absl::StrContains(chat_template, form.key_open));
    // Those of one mark are told apart by what is behind the name.
    const absl::string_view close = FirstRun(form.name_close);
    if (is_named && (form.shape != ToolCallForm::Shape::kArguments ||
                     absl::StrContains(chat_template, close))) {
      if (&form == &forms[0] && absl::StrContains(chat_template, "<function=")) continue;
      if (&form == &forms[0] && absl::StrContains(chat_template, "<arg_key>")) continue;
      return form;
    }
  }
  // LFM2 and Kimi name only the list of tools, Phi the tool.
  for (const auto& [mark, open] : {std::pair<absl::string_view, absl::string_view>(
                                       "<|tool_list_start|>", "<|tool_call_start|>"),
                                   {"tool_declare", "<|tool_calls_section_begin|>"},
                                   {"<|tool|>", "<|tool_call|>"},
                                   {"ipython", "<|python_tag|>"}}) {
    if (!absl::StrContains(chat_template, mark)) continue;
    for (const ToolCallForm& form : forms) {
      if (absl::StartsWith(form.section_open + form.call_open, open)) return form;
    }
  }
  return forms[0];
}

}  // namespace strata
