// Parses the options that override the planner: --assign, --exclude, --reserve, --objective,
// --cpu-moe. Names are checked against the cluster by MakePlan. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/problem/plan.h"

namespace strata {

// "nodeA=0-19,nodeB/CUDA0=20-31,nodeC=32": layers count from 0, both ends included. Errors of all
// these functions: kInvalidArgument, with the part that is wrong and the right syntax.
absl::StatusOr<std::vector<Assignment>> ParseAssign(absl::string_view text);
// "nodeA,nodeB/CPU"
absl::StatusOr<std::vector<std::string>> ParseExclude(absl::string_view text);
// "2GiB" for every node, "nodeA=2GiB,nodeB=512M", or both: a node's own value overrides the general
// one.
absl::StatusOr<std::vector<Reserve>> ParseReserve(absl::string_view text);
// "latency", "throughput"
absl::StatusOr<Objective> ParseObjective(absl::string_view text);
std::string ObjectiveName(Objective objective);
// "auto", "all", "none"
absl::StatusOr<CpuMoe> ParseCpuMoe(absl::string_view text);

// "4096", "512M", "1.5GiB"; K, M, G, T are powers of 1024, with or without B or iB.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

}  // namespace strata
