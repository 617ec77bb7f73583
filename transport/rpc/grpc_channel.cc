#include "transport/rpc/grpc_channel.h"

#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"
#include "transport/rpc/grpc_threads.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

// A dead machine is noticed after about this and kKeepaliveTimeoutMs.
constexpr int kKeepaliveTimeMs = 500;
// Pings cost each connection two messages and a timer, all day, so they are rare where membership
// or the caller notices sooner.
constexpr int kQuietKeepaliveTimeMs = 60'000;
// A channel without calls for this long closes its connection, which ends its pings.
constexpr int kCallsIdleMs = 5'000;

constexpr int kWindowBytes = 512 << 10;

// The settings of both ends: calls `set(name, value)` for each.
template <typename Set>
void ForEachSetting(int keepalive_ms, int keepalive_timeout_ms, Set set) {
  set(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_timeout_ms);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kGrpcMessageBytesMax);
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
  // gRPC's own estimate of the bandwidth-delay product counts data that waits in queues, so it lets
  // more and more wait there, with pings behind it. This window is more than a LAN of 10 Gbit/s
  // needs.
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  // Nothing here compresses, and an untrusted message must not grow while it is read.
  set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

// `idle_ms` 0: the channel keeps its connection.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, int keepalive_ms,
                                          int keepalive_timeout_ms, int idle_ms) {
  KeepGrpcThreads();
  grpc::ChannelArguments arguments;
  ForEachSetting(keepalive_ms, keepalive_timeout_ms,
                 [&](const char* name, int value) { arguments.SetInt(name, value); });
  if (idle_ms > 0) arguments.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, idle_ms);
  // Activations must not queue in front of control calls, nor one link in front of another.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Peers are on the LAN: a proxy for the Internet cannot reach them.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A retry would keep sent messages, and frames must not be sent twice.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  const auto credentials = ProcessChannelCredentials(&arguments);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int keepalive_timeout_ms) {
  return NewChannel(address, kKeepaliveTimeMs, keepalive_timeout_ms, kCallsIdleMs);
}

std::shared_ptr<grpc::Channel> MakeQuietChannel(const std::string& address, int keepalive_ms) {
  return NewChannel(address, keepalive_ms > 0 ? keepalive_ms : kQuietKeepaliveTimeMs,
                    kKeepaliveTimeoutMs, /*idle_ms=*/0);
}

void ConfigureServer(grpc::ServerBuilder* builder, MessageSizes sizes) {
  KeepGrpcThreads();
  // TCP notices a caller's dead machine sooner (listening_server.cc).
  const bool patient = sizes == MessageSizes::kRequests;
  ForEachSetting(kQuietKeepaliveTimeMs, patient ? kPatientTimeoutMs : kKeepaliveTimeoutMs,
                 [&](const char* name, int value) { builder->AddChannelArgument(name, value); });
  if (patient) builder->SetMaxReceiveMessageSize(kRequestBytesMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kConnectionCallsMax);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Let channels ping as often as configured above.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepaliveTimeMs / 2);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  SetConnectionBounds(builder);
}

}  // namespace strata
