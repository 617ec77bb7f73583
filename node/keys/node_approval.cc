#include "node/keys/node_approval.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "coordinator/models/node_match.h"
#include "transport/base/peer_addresses.h"
#include "transport/pairing/pairing_service.h"
#include "transport/security/tls_look.h"

namespace strata {
namespace {

constexpr absl::Duration kLook = absl::Seconds(2);
constexpr size_t kDigitsShown = 8;  // of ids

// The addresses of the waiting node that a person named.
absl::StatusOr<std::vector<std::string>> FindWaiting(const wire::GetClusterResponse& cluster,
                                                     const std::string& wanted) {
  std::vector<const wire::WaitingNode*> meant;
  std::vector<std::string> names;
  for (const wire::WaitingNode& node : cluster.waiting()) {
    const std::string id = absl::BytesToHexString(node.node_id());
    names.push_back(absl::StrCat(node.name(), " ", id.substr(0, kDigitsShown)));
    if (wanted.empty() || MatchesNode(wanted, {.name = node.name(), .id_hex = id})) {
      meant.push_back(&node);
    }
  }
  if (meant.size() == 1) {
    return std::vector<std::string>(meant[0]->addresses().begin(), meant[0]->addresses().end());
  }
  if (meant.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "several nodes wait (", absl::StrJoin(names, ", "), "): name one of them, or give its id"));
  }
  if (ParseHostPort(wanted).ok()) return std::vector<std::string>{wanted};
  const std::string who = wanted.empty() ? "" : absl::StrCat(" ", wanted);
  const std::string others =
      names.empty() ? "" : absl::StrCat(" (waiting: ", absl::StrJoin(names, ", "), ")");
  return absl::NotFoundError(
      absl::StrCat("no node", who, " waits for a key", others,
                   "; run 'strata node' on the new machine; if mDNS does not find it, run 'strata "
                   "approve HOST:PORT'"));
}

}  // namespace

absl::Status ApproveNode(ClusterStub* member, const std::string& node, const ClusterKey& key,
                         const ConfirmCodeFn& confirm) {
  const absl::StatusOr<wire::GetClusterResponse> cluster = member->GetCluster();
  if (!cluster.ok()) return cluster.status();
  const auto addresses = FindWaiting(*cluster, node);
  if (!addresses.ok()) return addresses.status();

  PairWithOptions pairing;
  pairing.self.cluster = cluster->cluster();
  for (const wire::ClusterNode& each : cluster->nodes()) {
    if (each.record().node_id() != cluster->asked()) continue;
    pairing.self.node_id = absl::BytesToHexString(each.record().node_id());
    pairing.self.name = each.record().name();
  }
  absl::Status status = absl::UnavailableError("the node announced no address");
  // A person's answer is for the machine at one address: behind another one may be another machine.
  bool asked = false;
  const ConfirmCodeFn ask_once = [&](const std::string& code) {
    asked = true;
    return confirm(code);
  };
  for (const std::string& address : *addresses) {
    pairing.address = address;
    status = PairWith(pairing, ask_once, key);
    if (asked || (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status))) break;
  }
  if (absl::IsUnavailable(status) && !asked) {
    // A member uses TLS alone, and closes other connections.
    const auto shown = LookAtCertificate(pairing.address, kLook);
    if (shown.ok() && shown->cluster_id == key.id()) {
      return absl::FailedPreconditionError(
          absl::StrCat(pairing.address, " is a member of this cluster already"));
    }
    if (shown.ok() && !shown->cluster_id.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          pairing.address, " has the key of another cluster, ", shown->cluster_id,
          ": stop it, move away the file cluster_key in its data dir, and start it again"));
    }
  }
  return status;
}

}  // namespace strata
