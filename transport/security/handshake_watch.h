// Reports the end of TLS handshakes that gRPC makes for our connections: of a failed handshake,
// gRPC 1.51 reports neither the address nor why a certificate was refused. OpenSSL does, in a
// callback for each message; nothing here decides about a handshake. Thread-safe.
//
//   WatchHandshakes();   // before the first credentials are made
//   {
//     const HandshakeSource source("192.168.1.7", observer);
//     acceptor->HandleNewConnection(&connection);   // makes the SSL, on this thread
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

// Gets exactly one call for each connection. Called on gRPC's threads, inside the handshake: must
// not block, nor call gRPC or OpenSSL.
class HandshakeObserver {
 public:
  virtual ~HandshakeObserver() = default;
  // The handshake succeeded: both sides are verified.
  virtual void OnHandshake(const std::string& source) = 0;
  // The handshake failed. `reason`: one of some dozens of phrases, without bytes from the peer.
  virtual void OnHandshakeFailed(const std::string& source, absl::string_view reason) = 0;
  // The connection was closed without an alert, or ran out of time. Not `begun`: no byte was
  // received, as from a port scan.
  virtual void OnHandshakeAbandoned(const std::string& source, bool begun, int64_t took_ms) = 0;
};

// Watches all TLS contexts that are made from now on. It costs them one call for each record.
void WatchHandshakes();

// While it lives, connections that begin on this thread belong to `source`, and are reported to
// `observer`, which they share.
class HandshakeSource {
 public:
  HandshakeSource(std::string source, std::shared_ptr<HandshakeObserver> observer);
  ~HandshakeSource();
  HandshakeSource(const HandshakeSource&) = delete;
  HandshakeSource& operator=(const HandshakeSource&) = delete;
};

}  // namespace strata
