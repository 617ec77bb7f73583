// What a peer shows to whoever connects, for telling people why two nodes do not get on: gRPC only
// says that a handshake failed ("certificate verify failed", "Socket closed"), whether the key is
// another, a clock is wrong or something else listens there. For `strata doctor` and errors; never
// for deciding whom to trust: nothing here is verified.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace strata {

struct ShownCertificate {
  std::string cluster_id;  // empty: it is not of the kind that nodes have
  std::string node_id;
  absl::Time not_before;
  absl::Time not_after;
};

// Connects to `address`, host:port, and looks at the certificate that comes first in a handshake of
// TLS 1.3; shows none itself and says nothing else. Blocks for some `timeout`, and until a name is
// looked up. kUnavailable: nobody is there; kDeadlineExceeded: nobody answers;
// kFailedPrecondition: whoever is there does not speak TLS 1.3.
absl::StatusOr<ShownCertificate> LookAtCertificate(const std::string& address,
                                                   absl::Duration timeout);

// Why a node of `cluster_id` and whoever showed that refuse each other, as far as that tells, in
// words for people that say what to do; empty when it looks good. `now`: by this machine's clock.
std::string WhyRefused(const ShownCertificate& shown, absl::string_view cluster_id, absl::Time now);

// Whether `error`, gRPC's words for a connection that failed, says that the certificate shown there
// was not taken: mostly it is of another key.
bool SaysWrongCertificate(absl::string_view error);

}  // namespace strata
