#include "node/status/status_source.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

// The time for the answer of one node; the screen's reader waits for it.
constexpr int64_t kAnswerMs = 1'500;
// The time for its report about all nodes, which waits for the others.
constexpr int64_t kReportMs = 6'000;

}  // namespace

StatusSource::StatusSource(std::string address, Calls calls)
    : calls_(std::move(calls)), address_(std::move(address)) {}

absl::StatusOr<std::unique_ptr<StatusSource>> StatusSource::Connect(const ClientOptions& options) {
  absl::StatusOr<std::unique_ptr<ClusterStub>> client = ConnectToCluster(options);
  if (!client.ok()) return client.status();
  Calls calls;
  calls.collect = [](const std::string& address) { return FetchReport(address, kReportMs); };
  calls.find = [options]() -> absl::StatusOr<std::string> {
    ClientOptions again = options;
    again.timeout_ms = kAnswerMs;
    absl::StatusOr<std::unique_ptr<ClusterStub>> found = ConnectToCluster(again);
    if (!found.ok()) return found.status();
    return (*found)->address();
  };
  return std::make_unique<StatusSource>((*client)->address(), std::move(calls));
}

absl::StatusOr<ClusterSnapshot> StatusSource::Fetch() {
  std::string address = address_;
  absl::Status first;
  for (size_t tried = 0; tried <= kOthersMax + 1; ++tried) {
    absl::StatusOr<ClusterSnapshot> report = calls_.collect(address);
    if (report.ok()) {
      address_ = address;
      others_.clear();
      for (const NodeReport& node : report->nodes) {
        const std::string& other = node.seen.address();
        if (node.id() != report->cluster.asked() && node.seen.state() == "alive" &&
            !other.empty()) {
          others_.push_back(other);
        }
      }
      return report;
    }
    if (tried == 0) first = report.status();
    if (tried < std::min(kOthersMax, others_.size())) {
      address = others_.front();
      std::rotate(others_.begin(), others_.begin() + 1, others_.end());
    } else if (tried <= kOthersMax) {
      // The node may be back with another port, or another node may be near.
      absl::StatusOr<std::string> found = calls_.find();
      if (!found.ok() || *found == address_) break;
      address = *found;
      tried = kOthersMax;
    }
  }
  return first;
}

}  // namespace strata
