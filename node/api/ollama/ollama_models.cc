#include "node/api/ollama/ollama_models.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/ollama/ollama_error.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Models stay loaded until they are unloaded.
constexpr absl::Duration kForever = absl::Hours(24 * 365 * 100);

absl::Time LoadedAt(const wire::ModelStatus& model, absl::Time now) {
  return now - absl::Seconds(std::max<int64_t>(model.loaded_s_ago(), 0));
}

OrderedJson DetailsOf(const wire::ModelStatus& model) {
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", model.architecture()},
          {"families", OrderedJson::array({model.architecture()})},
          // A coordinator knows neither.
          {"parameter_size", ""},
          {"quantization_level", ""}};
}

}  // namespace

std::string OllamaTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", time, absl::UTCTimeZone());
}

std::string OllamaModels(const std::vector<wire::ModelStatus>& models, absl::Time now,
                         bool running) {
  OrderedJson list = OrderedJson::array();
  for (const wire::ModelStatus& model : models) {
    OrderedJson one = {{"name", model.name()},
                       {"model", model.name()},
                       {"size", model.tensor_bytes()},
                       {"digest", absl::BytesToHexString(model.model_id())},
                       {"details", DetailsOf(model)}};
    if (running) {
      one["expires_at"] = OllamaTime(now + kForever);
      one["size_vram"] = 0;  // not known: nodes say only which device has which layers
      one["context_length"] = model.n_ctx();
    } else {
      one["modified_at"] = OllamaTime(LoadedAt(model, now));
    }
    list.push_back(std::move(one));
  }
  return JsonText({{"models", std::move(list)}});
}

std::string OllamaModel(const wire::ModelStatus& model, const ChatSupport& chat, absl::Time now) {
  OrderedJson capabilities = OrderedJson::array({"completion"});
  if (chat.status.ok()) {
    if (!chat.tools_in_words || !model.tools_chat_template().empty()) {
      capabilities.push_back("tools");
    }
    if (chat.thinks) capabilities.push_back("thinking");
  }
  const std::string& architecture = model.architecture();
  OrderedJson info = {{"general.architecture", architecture},
                      {"general.basename", model.name()},
                      {absl::StrCat(architecture, ".context_length"), model.n_ctx()},
                      {absl::StrCat(architecture, ".block_count"), model.n_layer()}};
  return JsonText({{"modelfile", ""},
                   {"parameters", absl::StrFormat("%-30s %d", "num_ctx", model.n_ctx())},
                   {"template", ValidUtf8(model.chat_template())},
                   {"details", DetailsOf(model)},
                   {"model_info", std::move(info)},
                   {"capabilities", std::move(capabilities)},
                   {"modified_at", OllamaTime(LoadedAt(model, now))}});
}

}  // namespace strata
