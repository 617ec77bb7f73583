// Bodies of the control API, parsed from their JSON, and the list of their fields, which the API's
// description shows. Pure; no byte of the input is trusted.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/coordinator.pb.h"

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
};
absl::Span<const ControlField> PlanFields();
absl::Span<const ControlField> LoadFields();
// kInvalidArgument: what is wrong with which field; a field that is not in the list is wrong, too.
absl::StatusOr<ControlModel> ParsePlan(absl::string_view body);
absl::StatusOr<ControlModel> ParseLoad(absl::string_view body);

absl::Span<const ControlField> UnloadFields();
absl::StatusOr<std::string> ParseUnload(absl::string_view body);  // the model

absl::Span<const ControlField> DrainFields();
absl::StatusOr<wire::DrainNodeRequest> ParseDrain(absl::string_view body);

absl::Span<const ControlField> SessionFields();
absl::StatusOr<std::string> ParseSession(absl::string_view body);  // the link's code

}  // namespace strata
