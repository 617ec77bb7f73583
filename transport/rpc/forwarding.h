// Calls that a node passes on to another one, which answers them itself: no call goes further than
// that. Any thread.
#pragma once

#include <memory>

#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"

namespace strata {

// Metadata of a call that a node has passed on; its value says nothing.
inline constexpr char kForwardedKey[] = "strata-forwarded";

inline bool WasForwarded(const grpc::ServerContextBase& context) {
  return context.client_metadata().contains(kForwardedKey);
}

// For the call to the other node: ends with the call that it is made for.
inline std::unique_ptr<grpc::ClientContext> Onward(const grpc::ServerContext& context) {
  auto onward = grpc::ClientContext::FromServerContext(context);
  onward->AddMetadata(kForwardedKey, "1");
  return onward;
}

}  // namespace strata
