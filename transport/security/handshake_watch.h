// How handshakes of TLS end that gRPC makes for connections of ours: gRPC 1.51 says neither from
// which address one came that failed, nor, of a certificate, why. OpenSSL does, in a callback for
// each message; nothing here decides about a handshake. Thread-safe.
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

// Of each connection that begins a handshake it hears one end. Called by gRPC's threads, in the
// middle of it: must not block, nor call gRPC or OpenSSL.
class HandshakeObserver {
 public:
  virtual ~HandshakeObserver() = default;
  // Both sides are verified.
  virtual void OnHandshake(const std::string& source) = 0;
  // It failed. `reason`: one of some dozens, in words, without anything of the peer's.
  virtual void OnHandshakeFailed(const std::string& source, absl::string_view reason) = 0;
  // Neither: the connection ended without a word, or ran out of time. Not `begun`: nothing was
  // heard of it, as of somebody who only asks whether there is a port.
  virtual void OnHandshakeAbandoned(const std::string& source, bool begun, int64_t took_ms) = 0;
};

// Sees to it that contexts of TLS that are made from now on are watched. They do not become slower
// by more than a call for each record.
void WatchHandshakes();

// While it lives, connections that begin on this thread are `source`'s, and are told to `observer`,
// which they share.
class HandshakeSource {
 public:
  HandshakeSource(std::string source, std::shared_ptr<HandshakeObserver> observer);
  ~HandshakeSource();
  HandshakeSource(const HandshakeSource&) = delete;
  HandshakeSource& operator=(const HandshakeSource&) = delete;
};

}  // namespace strata
