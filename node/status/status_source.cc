#include "node/status/status_source.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

// For the answer of one node: the reader of the screen waits for it.
constexpr int64_t kAnswerMs = 1'500;
// For its answer about all, which waits for the others'.
constexpr int64_t kReportMs = 6'000;

}  // namespace

StatusSource::StatusSource(std::string address, Ways ways)
    : ways_(std::move(ways)), address_(std::move(address)) {}

absl::StatusOr<std::unique_ptr<StatusSource>> StatusSource::Connect(const ClientOptions& options) {
  absl::StatusOr<std::unique_ptr<ClusterStub>> client = ConnectToCluster(options);
  if (!client.ok()) return client.status();
  Ways ways;
  ways.collect = [](const std::string& address) { return FetchReport(address, kReportMs); };
  ways.find = [options]() -> absl::StatusOr<std::string> {
    ClientOptions again = options;
    again.timeout_ms = kAnswerMs;
    absl::StatusOr<std::unique_ptr<ClusterStub>> found = ConnectToCluster(again);
    if (!found.ok()) return found.status();
    return (*found)->address();
  };
  return std::make_unique<StatusSource>((*client)->address(), std::move(ways));
}

absl::StatusOr<ClusterSnapshot> StatusSource::Ask() {
  std::string address = address_;
  absl::Status first;
  for (size_t tried = 0; tried <= kOthersMax + 1; ++tried) {
    absl::StatusOr<ClusterSnapshot> report = ways_.collect(address);
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
      // It may have come back with another port, or another one may be near.
      absl::StatusOr<std::string> found = ways_.find();
      if (!found.ok() || *found == address_) break;
      address = *found;
      tried = kOthersMax;
    }
  }
  return first;
}

}  // namespace strata
