// Bodies of the control API, parsed from their JSON, and the list of their fields, which the API's
// description shows. Pure; no byte of the input is trusted.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "node/client/key_client.h"
#include "node/client/model_alias.h"
#include "proto/coordinator.pb.h"
#include "proto/frame.pb.h"

namespace strata {

struct ControlField {
  const char* name;
  const char* type;  // JSON Schema's
  const char* words;
  bool is_required = false;
};

// A model that is to be planned or loaded.
struct ControlModel {
  std::string model;  // a path on a node, or the name of a model that is loaded
  std::string node;   // id of the node that has the path; empty: the one that is called
  wire::PlacementOptions placement;
  bool use_mmap = true;
  bool allow_mixed_versions = false;
  int64_t keep_alive_ms = 0;  // as wire::LoadModelRequest has it
  bool pinned = false;
  wire::Speculation speculation = wire::SPECULATION_AUTO;
  std::string draft;  // the name or id of a loaded model; empty: none
};
absl::Span<const ControlField> PlanFields();
absl::Span<const ControlField> LoadFields();
// kInvalidArgument: what is wrong with which field; a field that is not in the list is wrong, too.
absl::StatusOr<ControlModel> ParsePlan(absl::string_view body);
absl::StatusOr<ControlModel> ParseLoad(absl::string_view body);

absl::StatusOr<wire::DrainNodeRequest> ParseDrain(absl::string_view body);
// Without an address.
absl::StatusOr<NodeRemoval> ParseNodeRemoval(absl::string_view body);

struct ControlConfirmation {
  std::string approval;
  bool is_same = false;
};
absl::StatusOr<ControlConfirmation> ParseConfirmation(absl::string_view body);

absl::StatusOr<ModelAlias> ParseAlias(absl::string_view body);

struct ControlToken {
  std::string name;
  std::string scopes;
  int64_t days = 0;  // 0: it does not expire
};
absl::StatusOr<ControlToken> ParseNewToken(absl::string_view body);

// The value of the first field, which is required.
absl::StatusOr<std::string> ParseText(absl::string_view body,
                                      absl::Span<const ControlField> fields);

inline constexpr std::array kUnloadFields = {
    ControlField{"model", "string", "Name, path or start of the id of a loaded model", true}};
inline constexpr std::array kDrainFields = {
    ControlField{"node", "string", "Name or start of the id of a node", true},
    ControlField{"undo", "boolean", "Let the node take layers again"}};
inline constexpr std::array kSessionFields = {
    ControlField{"code", "string", "The code of a link that strata page has printed", true}};
inline constexpr std::array kRemoveFileFields = {ControlField{
    "model", "string", "Path or name of a model that Strata has fetched to this node", true}};

inline constexpr std::array kApproveFields = {ControlField{
    "node", "string", "Name, start of the id, or host:port of a node that waits", true}};
inline constexpr std::array kConfirmFields = {
    ControlField{"approval", "string", "That of the event code", true},
    ControlField{"same", "boolean", "The new node shows the same code; absent: it does not"}};
inline constexpr std::array kRemoveNodeFields = {
    ControlField{"node", "string", "Name or start of the id of a node", true},
    ControlField{"now", "boolean", "Without waiting until its layers are on other nodes"}};
inline constexpr std::array kNewTokenFields = {
    ControlField{"name", "string", "Who or what will use it: letters, digits and -_.@", true},
    ControlField{"scopes", "string", "As strata token new --scope takes them; absent: chat"},
    ControlField{"days", "integer", "Days until it expires; absent: never"}};
inline constexpr std::array kRevokeTokenFields = {
    ControlField{"name", "string", "A token's name", true}};

inline constexpr std::array kNewAliasFields = {
    ControlField{"alias", "string", "Letters, digits and -_.", true},
    ControlField{"model", "string", "Name of a model, or path of its file on this node", true}};
inline constexpr std::array kRemoveAliasFields = {
    ControlField{"alias", "string", "A name that aliases lists", true}};
inline constexpr std::array kSearchFields = {
    ControlField{"words", "string", "Words of a model's name", true}};
inline constexpr std::array kPullFields = {ControlField{
    "model", "string", "As strata pull takes it: a short name, or hf:org/repo[:quant]", true}};

}  // namespace strata
