#include "node/control/control_request.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/sampler_fields.h"

namespace strata {
namespace {

constexpr FieldReader::Range kUint32 = {0, std::numeric_limits<uint32_t>::max()};
constexpr FieldReader::Range kKeepAliveMs = {0, 1e12};  // some thirty years
constexpr FieldReader::Range kDays = {0, 36'500};

// Those of a plan, then those that only a load has.
constexpr std::array kModelFields = {
    ControlField{"model", "string",
                 "Absolute path of a GGUF file on a node, or the name of a loaded model", true},
    ControlField{"node", "string", "Id of the node that has the file; absent: this one"},
    ControlField{"ctx", "integer", "Tokens of each request; absent: what fits"},
    ControlField{"seqs", "integer", "Requests at a time"},
    ControlField{"objective", "string", "latency or throughput"},
    ControlField{"assign", "string", "Layers by hand, as strata plan --assign has them"},
    ControlField{"exclude", "string", "Nodes or devices to leave out, with commas"},
    ControlField{"reserve", "string", "Memory to leave free, as strata plan --reserve has it"},
    ControlField{"unverified", "boolean", "Allow an architecture that is not in the table"},
    ControlField{"activations", "string", "Between stages: f32, f16, bf16, q8_0 or auto"},
    ControlField{"cpu_moe", "string", "Experts in the host's memory: auto, all or none"},
    ControlField{"cache_type_k", "string", "Type of the cache's keys"},
    ControlField{"cache_type_v", "string", "Type of the cache's values"},
    ControlField{"flash_attention", "string", "auto, on or off"},
    ControlField{"kv_cells", "integer", "Tokens of all requests together; absent: ctx each"},
    ControlField{"checkpoints", "integer", "Checkpoints of a cache that cannot go back"},
    ControlField{"exact", "boolean", "The output of a request never depends on others"},
    ControlField{"mmap", "boolean", "Map the weights instead of reading them (default: true)"},
    ControlField{"allow_mixed_versions", "boolean", "Nodes may have different versions"},
    ControlField{
        "keep_alive_ms", "integer",
        "It is unloaded when it has had no request for so long; 0 (the default): it stays"},
    ControlField{"pinned", "boolean", "It is never unloaded to make room for another model"},
    ControlField{"speculate", "string",
                 "Drafts of the next tokens: auto (the default), off, ngram, draft"},
    ControlField{"draft", "string", "A loaded model with the same vocabulary that drafts tokens"},
};
constexpr size_t kLoadOnlyFields = 6;

// The body as an object that has only these fields, and those that are required.
absl::StatusOr<nlohmann::json> ParseBody(absl::string_view body,
                                         absl::Span<const ControlField> fields) {
  absl::StatusOr<nlohmann::json> json = ParseJsonObject(body);
  if (!json.ok()) return json.status();
  for (const auto& [name, value] : json->items()) {
    const bool is_known = std::ranges::any_of(
        fields, [&name = name](const ControlField& field) { return name == field.name; });
    if (!is_known) return BadParam(name, "is no field of this request");
  }
  for (const ControlField& field : fields) {
    if (!field.is_required || TextMember(*json, field.name) != nullptr) continue;
    return BadParam(field.name, "must be a string");
  }
  return json;
}

wire::PlacementOptions ReadPlacement(FieldReader* reader) {
  wire::PlacementOptions placement;
  const auto number = [reader](const char* name, uint32_t missing = 0) {
    return static_cast<uint32_t>(reader->Integer(name, kUint32).value_or(missing));
  };
  const auto text = [reader](const char* name) { return reader->Text(name).value_or(""); };
  placement.set_n_ctx(number("ctx"));
  placement.set_n_seqs(number("seqs"));
  placement.set_objective(text("objective"));
  placement.set_assign(text("assign"));
  placement.set_exclude(text("exclude"));
  placement.set_reserve(text("reserve"));
  placement.set_unverified(reader->Bool("unverified").value_or(false));
  placement.set_activations(text("activations"));
  placement.set_cpu_moe(text("cpu_moe"));
  wire::CacheSpec* cache = placement.mutable_cache();
  cache->set_type_k(text("cache_type_k"));
  cache->set_type_v(text("cache_type_v"));
  cache->set_flash_attention(text("flash_attention"));
  cache->set_kv_cells(number("kv_cells"));
  cache->set_exact(reader->Bool("exact").value_or(false));
  if (const auto checkpoints = reader->Integer("checkpoints", kUint32)) {
    cache->set_checkpoints(static_cast<uint32_t>(*checkpoints));
  }
  return placement;
}

absl::StatusOr<ControlModel> ParseModel(absl::string_view body,
                                        absl::Span<const ControlField> fields) {
  const auto json = ParseBody(body, fields);
  if (!json.ok()) return json.status();
  FieldReader reader(*json);
  ControlModel model = {.model = reader.Text("model").value_or(""),
                        .node = reader.Text("node").value_or(""),
                        .placement = ReadPlacement(&reader),
                        .use_mmap = reader.Bool("mmap").value_or(true),
                        .allow_mixed_versions = reader.Bool("allow_mixed_versions").value_or(false),
                        .keep_alive_ms = reader.Integer("keep_alive_ms", kKeepAliveMs).value_or(0),
                        .pinned = reader.Bool("pinned").value_or(false),
                        .speculation = ReadSpeculation(&reader).value_or(wire::SPECULATION_AUTO),
                        .draft = reader.Text("draft").value_or("")};
  if (!reader.status().ok()) return reader.status();
  return model;
}

}  // namespace

absl::Span<const ControlField> LoadFields() { return kModelFields; }
absl::Span<const ControlField> PlanFields() {
  return LoadFields().subspan(0, kModelFields.size() - kLoadOnlyFields);
}

absl::StatusOr<ControlModel> ParsePlan(absl::string_view body) {
  return ParseModel(body, PlanFields());
}
absl::StatusOr<ControlModel> ParseLoad(absl::string_view body) {
  return ParseModel(body, LoadFields());
}

absl::StatusOr<wire::DrainNodeRequest> ParseDrain(absl::string_view body) {
  const auto json = ParseBody(body, kDrainFields);
  if (!json.ok()) return json.status();
  FieldReader reader(*json);
  wire::DrainNodeRequest request;
  request.set_node(*TextMember(*json, "node"));
  request.set_undo(reader.Bool("undo").value_or(false));
  if (!reader.status().ok()) return reader.status();
  return request;
}

absl::StatusOr<NodeRemoval> ParseNodeRemoval(absl::string_view body) {
  const auto json = ParseBody(body, kRemoveNodeFields);
  if (!json.ok()) return json.status();
  FieldReader reader(*json);
  NodeRemoval removal = {.node = *TextMember(*json, "node"),
                         .now = reader.Bool("now").value_or(false)};
  if (!reader.status().ok()) return reader.status();
  return removal;
}

absl::StatusOr<ControlConfirmation> ParseConfirmation(absl::string_view body) {
  const auto json = ParseBody(body, kConfirmFields);
  if (!json.ok()) return json.status();
  FieldReader reader(*json);
  ControlConfirmation confirmation = {.approval = *TextMember(*json, "approval"),
                                      .is_same = reader.Bool("same").value_or(false)};
  if (!reader.status().ok()) return reader.status();
  return confirmation;
}

absl::StatusOr<ModelAlias> ParseAlias(absl::string_view body) {
  const auto json = ParseBody(body, kNewAliasFields);
  if (!json.ok()) return json.status();
  return ModelAlias{.name = *TextMember(*json, "alias"), .model = *TextMember(*json, "model")};
}

absl::StatusOr<ControlToken> ParseNewToken(absl::string_view body) {
  const auto json = ParseBody(body, kNewTokenFields);
  if (!json.ok()) return json.status();
  FieldReader reader(*json);
  ControlToken token = {.name = *TextMember(*json, "name"),
                        .scopes = reader.Text("scopes").value_or("chat"),
                        .days = reader.Integer("days", kDays).value_or(0)};
  if (!reader.status().ok()) return reader.status();
  return token;
}

absl::StatusOr<std::string> ParseText(absl::string_view body,
                                      absl::Span<const ControlField> fields) {
  const auto json = ParseBody(body, fields);
  if (!json.ok()) return json.status();
  return *TextMember(*json, fields.front().name);
}

}  // namespace strata
