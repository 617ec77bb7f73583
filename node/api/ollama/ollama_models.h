// The cluster's models as Ollama's API lists them. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "node/chat/template_check.h"
#include "proto/coordinator.pb.h"

namespace strata {

// As "2026-01-31T23:59:59.123456Z".
std::string OllamaTime(absl::Time time);

// /api/tags, where `models` are as ListedModels() has them, and with `running` /api/ps.
std::string OllamaModels(const std::vector<wire::ModelStatus>& models, absl::Time now,
                         bool running);
// /api/show.
std::string OllamaModel(const wire::ModelStatus& model, const ChatSupport& chat, absl::Time now);

}  // namespace strata
