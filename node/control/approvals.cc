#include "node/control/approvals.h"

#include "absl/time/time.h"
#include "transport/base/node_id.h"
#include "transport/pairing/pairing.h"

namespace strata {

std::string Approvals::Begin() {
  std::string id = NewNodeId();
  absl::MutexLock lock(mu_);
  answers_.emplace(id, std::nullopt);
  return id;
}

bool Approvals::Wait(const std::string& id) {
  absl::MutexLock lock(mu_);
  const std::optional<bool>& answer = answers_.at(id);
  const auto has_answer = [&answer] { return answer.has_value(); };
  mu_.AwaitWithTimeout(absl::Condition(&has_answer), absl::Microseconds(kPairingUs));
  return answer.value_or(false);
}

void Approvals::End(const std::string& id) {
  absl::MutexLock lock(mu_);
  answers_.erase(id);
}

absl::Status Approvals::Answer(absl::string_view id, bool is_same) {
  absl::MutexLock lock(mu_);
  const auto found = answers_.find(id);
  if (found == answers_.end()) {
    return absl::NotFoundError("no such approval waits any more; begin again");
  }
  if (!found->second.has_value()) found->second = is_same;
  return absl::OkStatus();
}

}  // namespace strata
