#include "node/api/ollama/ollama_models.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/ollama/ollama_error.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

// For models that stay loaded until they are unloaded.
constexpr absl::Duration kForever = absl::Hours(24 * 365 * 100);

// When the model goes if no request comes.
absl::Time ExpiryOf(const wire::ModelStatus& model, absl::Time now) {
  if (model.keep_alive_ms() == 0) return now + kForever;
  const int64_t idle_ms = std::max<int64_t>(model.idle_ms(), 0);
  return now + absl::Milliseconds(std::max<int64_t>(model.keep_alive_ms() - idle_ms, 0));
}

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
    const std::string name(absl::StripPrefix(model.name(), "ollama:"));  // as Ollama has it itself
    OrderedJson one = {{"name", name},
                       {"model", name},
                       {"size", model.tensor_bytes()},
                       {"digest", absl::BytesToHexString(model.model_id())},
                       {"details", DetailsOf(model)}};
    if (running) {
      one["expires_at"] = OllamaTime(ExpiryOf(model, now));
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
  OrderedJson info = OrderedJson::object();
  if (!architecture.empty()) {  // else nobody has read its headers
    info = {{"general.architecture", architecture},
            {"general.basename", model.name()},
            {absl::StrCat(architecture, ".context_length"), model.n_ctx()},
            {absl::StrCat(architecture, ".block_count"), model.n_layer()}};
  }
  return JsonText({{"modelfile", ""},
                   {"parameters", absl::StrFormat("%-30s %d", "num_ctx", model.n_ctx())},
                   {"template", ValidUtf8(model.chat_template())},
                   {"details", DetailsOf(model)},
                   {"model_info", std::move(info)},
                   {"capabilities", std::move(capabilities)},
                   {"modified_at", OllamaTime(LoadedAt(model, now))}});
}

}  // namespace strata
