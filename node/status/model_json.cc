#include "node/status/model_json.h"

#include <string>

#include "absl/strings/escaping.h"
#include "coordinator/models/model_state.h"
#include "coordinator/request/generation_request.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

nlohmann::json ModelStagesJson(const wire::ModelStatus& model) {
  nlohmann::json stages = nlohmann::json::array();
  for (const wire::ModelStage& stage : model.stages()) {
    stages.push_back({{"node", stage.node_name()},
                      {"node_id", stage.node_id()},
                      {"device", stage.device()},
                      {"layers", {stage.layers().begin(), stage.layers().end()}},
                      {"slice_bytes", stage.info().slice_bytes()},
                      {"host_bytes", stage.info().host_bytes()},
                      {"kv_bytes", stage.info().kv_bytes()},
                      {"compute_bytes", stage.info().compute_bytes()},
                      {"load_ms", stage.info().load_ms()}});
  }
  return stages;
}

nlohmann::json ModelJson(const wire::ModelStatus& model) {
  return {{"model", model.name()},
          {"id", absl::BytesToHexString(model.model_id())},
          {"architecture", model.architecture()},
          {"layers", model.n_layer()},
          {"tensor_bytes", model.tensor_bytes()},
          {"path", model.source().path()},
          {"source", model.source().node()},
          {"epoch", model.epoch().counter()},
          {"state", ModelStateText(model.state())},
          {"problem",
           model.status().code() == 0 ? "" : std::string(FromWire(model.status()).message())},
          {"ctx", model.n_ctx()},
          {"seqs", model.n_seqs()},
          {"exact", model.exact()},
          {"speculate", SpeculationName(model.speculation())},
          {"draft", model.draft()},
          {"draft_tokens", model.draft_tokens()},
          {"accepted_tokens", model.accepted_tokens()},
          {"has_chat_template", !model.chat_template().empty()},
          {"requests_running", model.requests_running()},
          {"requests_waiting", model.requests_waiting()},
          {"loaded_s_ago", model.loaded_s_ago()},
          {"keep_alive_ms", model.keep_alive_ms()},
          {"idle_ms", model.idle_ms()},
          {"pinned", model.pinned()},
          {"stages", ModelStagesJson(model)}};
}

}  // namespace strata
