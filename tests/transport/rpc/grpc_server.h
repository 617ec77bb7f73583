// Servers on port zero of the loopback: one that accepts links only, and one for a test's services.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "transport/link/grpc_link.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/listening_server.h"
#include "transport/rpc/process_security.h"

namespace strata {

class GrpcServer {
 public:
  GrpcServer(GrpcLinkAcceptor::Options options, AcceptLinkFn accept)
      : acceptor_(options, std::move(accept)) {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.RegisterCallbackGenericService(acceptor_.service());
    auto started = ListeningServer::Start(
        {.address = "127.0.0.1:0", .credentials = ProcessServerCredentials()}, &builder);
    CHECK_OK(started.status());
    server_ = *std::move(started);
    port_ = server_->port();
  }
  ~GrpcServer() { Stop(); }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Breaks the links that are still open.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(DeadlineIn(absl::ZeroDuration()));
    server_.reset();
  }

 private:
  GrpcLinkAcceptor acceptor_;
  int port_ = 0;
  std::unique_ptr<ListeningServer> server_;
};

class ServiceServer {
 public:
  struct Served {
    grpc::Service* service = nullptr;
    grpc::CallbackGenericService* others = nullptr;  // every method that `service` has not
  };
  // They outlive this.
  explicit ServiceServer(const Served& served) {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.AddListeningPort("127.0.0.1:0", ProcessServerCredentials(), &port_);
    if (served.service != nullptr) builder.RegisterService(served.service);
    if (served.others != nullptr) builder.RegisterCallbackGenericService(served.others);
    server_ = builder.BuildAndStart();
    CHECK(server_ != nullptr);
  }
  ~ServiceServer() { Stop(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Cancels the calls in flight, and waits for them.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(DeadlineIn(absl::ZeroDuration()));
    server_.reset();
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace strata
