// Fetches a peer's certificate, to explain to people why two nodes cannot connect: gRPC only says
// that a handshake failed ("certificate verify failed", "Socket closed"), no matter whether the key
// differs, a clock is wrong or another program listens there. For `strata doctor` and errors; never
// to decide whom to trust: nothing here is verified.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace strata {

struct ShownCertificate {
  std::string cluster_id;  // empty: not a node's certificate
  std::string node_id;
  absl::Time not_before;
  absl::Time not_after;
};

// Connects to `address`, host:port, and reads the peer's certificate from a handshake of TLS 1.3;
// shows none itself and sends nothing else. Blocks for about `timeout`, and until a name is
// resolved. kUnavailable: nothing listens there; kDeadlineExceeded: no answer;
// kFailedPrecondition: the peer does not speak TLS 1.3.
absl::StatusOr<ShownCertificate> LookAtCertificate(const std::string& address,
                                                   absl::Duration timeout);

// Why a node of `cluster_id` and the peer that showed the certificate refuse each other, as far as
// it shows, for people and with the remedy; empty when it looks valid. `now`: this machine's clock.
std::string WhyRefused(const ShownCertificate& shown, absl::string_view cluster_id, absl::Time now);

// Whether `error`, gRPC's message for a failed connection, says that the peer's certificate was
// refused: mostly it is of another key.
bool SaysWrongCertificate(absl::string_view error);

}  // namespace strata
