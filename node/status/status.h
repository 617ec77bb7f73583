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

// For people, or one line of JSON; each ends with a line's end. `loaded`: as the coordinator lists
// the models; empty where it is not known how long they stay. Pure.
std::string StatusText(const ClusterSnapshot& report,
                       const std::vector<wire::ModelStatus>& loaded = {});
std::string StatusJson(const ClusterSnapshot& report,
                       const std::vector<wire::ModelStatus>& loaded = {});

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
