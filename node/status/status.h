// `strata status`: the state of the cluster and its problems. status_watch.h has the live view.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/models/cluster_snapshot.h"
#include "nlohmann/json_fwd.hpp"
#include "node/client/cluster_client.h"
#include "node/status/status_models.h"

namespace strata {

struct StatusOptions {
  ClientOptions client;
  bool json = false;
  bool watch = false;
};

// Prints to stdout. Blocks. kUnavailable: no node answers.
absl::Status RunStatus(const StatusOptions& options);

// As the coordinator lists the loaded models, by the node at `address`; empty where it does not
// answer at once. Blocks.
std::vector<wire::ModelStatus> LoadedModels(const std::string& address);

// For people, or for programs; the text ends with a line's end. `loaded`: as of LoadedModels().
// Pure.
std::string StatusText(const ClusterSnapshot& report,
                       const std::vector<wire::ModelStatus>& loaded = {});
nlohmann::json StatusJson(const ClusterSnapshot& report,
                          const std::vector<wire::ModelStatus>& loaded);

// The problems that a person should know of, a line each. Pure.
std::vector<std::string> ProblemsOf(const ClusterSnapshot& report,
                                    const std::vector<ModelView>& models);
// Empty: no node coordinates.
std::string CoordinatorName(const ClusterSnapshot& report);
std::string BandwidthText(const wire::DeviceInfo& device);

// A measured link; `speed` lives as long as the report.
struct LinkView {
  std::string from, to;
  const wire::LinkSpeed* speed = nullptr;
};
std::vector<LinkView> LinksOf(const ClusterSnapshot& report);
std::string LinkRateText(uint64_t bytes_per_s);

// The text shows at most so many links.
inline constexpr size_t kLinksShownMax = 40;

// The nodes that wait for a key: [{"id":…,"name":…,"addresses":[…]}, …]. Pure.
nlohmann::json WaitingNodesJson(const wire::GetClusterResponse& cluster);

}  // namespace strata
