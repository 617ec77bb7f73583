// A gRPC server behind a port that we listen on ourselves: connections are counted before anything
// of them is read (connection_limiter.h), those over the bounds are closed at once, the others are
// gRPC's. Who does not get in, here or in the handshake, is told of (refusal_log.h).
//
//   grpc::ServerBuilder builder;
//   ConfigureServer(&builder);
//   builder.RegisterService(&service);
//   auto server = ListeningServer::Start({.address = "[::]:7400",
//                                         .credentials = ProcessServerCredentials()}, &builder);
//
// Thread-safe, but for the end.
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
    // host:port; port 0: any. Any of [::], 0.0.0.0 and * is all interfaces, IPv6 and IPv4; a name
    // is all of its addresses.
    std::string address;
    std::shared_ptr<grpc::ServerCredentials> credentials;
    ConnectionLimits limits;
    int handshake_max_ms = 5'000;  // of any of its connections, with or without TLS
    Clock* clock = Clock::Real();  // of the limits; outlives this, and its connections
  };
  // Listens, builds and starts the server. kUnavailable: it cannot listen there, and why;
  // kInvalidArgument: that is no address. Blocks on the resolver where the host is a name.
  static absl::StatusOr<std::unique_ptr<ListeningServer>> Start(const Options& options,
                                                                grpc::ServerBuilder* builder);
  // As Shutdown() at once, unless that was called.
  ~ListeningServer();
  ListeningServer(const ListeningServer&) = delete;
  ListeningServer& operator=(const ListeningServer&) = delete;

  uint16_t port() const { return port_; }

  // Takes no connections any more and frees the port; then as grpc::Server::Shutdown(): waits for
  // calls under way, and cuts them at `deadline`. Once.
  void Shutdown(gpr_timespec deadline);

 private:
  class Acceptor;

  ListeningServer();

  uint16_t port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;  // null: shut down
};

}  // namespace strata
