// Calls that a node forwards to another node, which answers them itself: no call is forwarded
// twice. Any thread.
#pragma once

#include <memory>

#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"

namespace strata {

// Metadata key of a forwarded call; its value has no meaning.
inline constexpr char kForwardedKey[] = "strata-forwarded";

inline bool WasForwarded(const grpc::ServerContextBase& context) {
  return context.client_metadata().contains(kForwardedKey);
}

// The context for the call to the other node, which ends with the call it serves.
inline std::unique_ptr<grpc::ClientContext> Onward(const grpc::ServerContext& context) {
  auto onward = grpc::ClientContext::FromServerContext(context);
  onward->AddMetadata(kForwardedKey, "1");
  return onward;
}

}  // namespace strata
