#include "coordinator/models/chat_templates.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

// As converters write them: the usual template has no name, each other one has its own.
constexpr char kKey[] = "tokenizer.chat_template";
constexpr char kUsualName[] = "default";
constexpr char kToolsName[] = "tool_use";

std::string TemplateAt(const GgufHeader& header, const std::string& key) {
  const std::string text = header.GetString(key).value_or("");
  return text.size() <= kChatTemplateBytesMax ? ValidUtf8(text) : "";
}

std::string KeyOf(const std::string& name) {
  return name == kUsualName ? kKey : absl::StrCat(kKey, ".", name);
}

std::string NamesIn(const GgufHeader& header) {
  std::vector<std::string> names;
  for (const auto& [key, value] : header.metadata) {
    absl::string_view name = key;
    if (!absl::ConsumePrefix(&name, kKey)) continue;
    if (name.empty()) names.emplace_back(kUsualName);
    if (absl::ConsumePrefix(&name, ".")) names.emplace_back(ValidUtf8(name));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

}  // namespace

absl::StatusOr<ChatTemplates> ChatTemplatesOf(const GgufHeader& header,
                                              const wire::LoadModelRequest& request) {
  if (request.chat_template().size() > kGivenChatTemplateBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--chat-template: may have at most ",
                                                   kGivenChatTemplateBytesMax >> 10, " KiB"));
  }
  if (!request.chat_template().empty()) {
    return ChatTemplates{.usual = ValidUtf8(request.chat_template()), .with_tools = ""};
  }
  if (const std::string& name = request.chat_template_name(); !name.empty()) {
    std::string named = TemplateAt(header, KeyOf(name));
    if (!named.empty()) return ChatTemplates{.usual = std::move(named), .with_tools = ""};
    return absl::InvalidArgumentError(
        absl::StrCat("--chat-template: there is no such file here, and the model has no template "
                     "of the name ",
                     name, "; it has: ", NamesIn(header)));
  }
  return ChatTemplates{.usual = TemplateAt(header, kKey),
                       .with_tools = TemplateAt(header, KeyOf(kToolsName))};
}

}  // namespace strata
