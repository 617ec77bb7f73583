// `strata status`: what the cluster is and does, and what is wrong with it. status_watch.h has the
// live view of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/models/cluster_snapshot.h"
#include "node/client/cluster_client.h"
#include "node/status/status_models.h"

namespace strata {

struct StatusOptions {
  ClientOptions client;
  bool json = false;
  bool watch = false;
};

// Prints to stdout. Blocks. kUnavailable: nobody is there.
absl::Status RunStatus(const StatusOptions& options);

// For people, or one line of JSON; each ends with a line's end. Pure.
std::string StatusText(const ClusterSnapshot& report);
std::string StatusJson(const ClusterSnapshot& report);

// What a person should know or do something about, a line each. Pure.
std::vector<std::string> ProblemsOf(const ClusterSnapshot& report,
                                    const std::vector<ModelView>& models);
// Empty: nobody coordinates.
std::string CoordinatorName(const ClusterSnapshot& report);
std::string BandwidthText(const wire::DeviceInfo& device);

// The measured ones; `speed` lives as long as the report.
struct LinkView {
  std::string from, to;
  const wire::LinkSpeed* speed = nullptr;
};
std::vector<LinkView> LinksOf(const ClusterSnapshot& report);
std::string LinkRateText(uint64_t bytes_per_s);

// More links than these are not shown to people.
inline constexpr size_t kLinksShownMax = 40;

}  // namespace strata
