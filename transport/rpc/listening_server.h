// A gRPC server behind a port that we listen on ourselves: connections are counted before any byte
// is read (connection_limiter.h), those over the bounds are closed at once, the others are handed
// to gRPC. Refused connections and failed handshakes are logged (refusal_log.h).
//
//   grpc::ServerBuilder builder;
//   ConfigureServer(&builder);
//   builder.RegisterService(&service);
//   auto server = ListeningServer::Start({.address = "[::]:7400",
//                                         .credentials = ProcessServerCredentials()}, &builder);
//
// Thread-safe, but for Shutdown() and the destructor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpc/support/time.h"
#include "transport/base/clock.h"
#include "transport/rpc/connection_limiter.h"

namespace grpc {
class Server;
class ServerBuilder;
class ServerCredentials;
}  // namespace grpc

namespace strata {

class ListeningServer {
 public:
  struct Options {
    // host:port; port 0: any free port. Each of [::], 0.0.0.0 and * means all interfaces, IPv6 and
    // IPv4; a name means all of its addresses.
    std::string address;
    std::shared_ptr<grpc::ServerCredentials> credentials;
    ConnectionLimits limits;
    int handshake_max_ms = 5'000;  // of each connection, with or without TLS
    Clock* clock = Clock::Real();  // of the limits; outlives this, and its connections
  };
  // Listens, builds and starts the server. kUnavailable: it cannot listen there, with the reason;
  // kInvalidArgument: not an address. Blocks on the resolver where the host is a name.
  static absl::StatusOr<std::unique_ptr<ListeningServer>> Start(const Options& options,
                                                                grpc::ServerBuilder* builder);
  // Calls Shutdown() with a deadline of now, unless it was called before.
  ~ListeningServer();
  ListeningServer(const ListeningServer&) = delete;
  ListeningServer& operator=(const ListeningServer&) = delete;

  uint16_t port() const { return port_; }

  // Stops accepting connections and frees the port; then as grpc::Server::Shutdown(): waits for
  // calls in flight, and cancels them at `deadline`. Call it once.
  void Shutdown(gpr_timespec deadline);

 private:
  class Acceptor;

  ListeningServer();

  uint16_t port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;  // null: shut down
};

}  // namespace strata
