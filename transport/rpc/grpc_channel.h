// Channels and servers of gRPC with the settings that all of Strata's have: keepalive, message
// sizes, windows, and the credentials of the process.
#pragma once

#include <memory>
#include <string>

namespace grpc {
class Channel;
class ServerBuilder;
}  // namespace grpc

namespace strata {

// How long a peer may take to acknowledge sent data.
inline constexpr int kKeepaliveTimeoutMs = 500;
// The same between a verb and the node that it calls: each waits where the machine is busy.
inline constexpr int kPatientTimeoutMs = 10'000;

// Makes the channels of control services and links alike, so that credentials have one place
// (process_security.h): with the keepalive and message size settings that links need, and a
// connection of its own. Does not connect yet. A dead peer is noticed while a call is in flight;
// after some seconds without calls the connection is closed, until the next call.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           int keepalive_timeout_ms = kKeepaliveTimeoutMs);
// The same with a connection that stays, and costs next to nothing while idle. A hanging peer is
// noticed after `keepalive_ms`, or where that is 0, 60 s: calls need deadlines, or a caller that
// notices sooner.
std::shared_ptr<grpc::Channel> MakeQuietChannel(const std::string& address, int keepalive_ms = 0);
// Most calls in flight on one connection of a server: others wait at their caller. More than the
// generations that one node requests from another (kGenerateCallsMax).
inline constexpr int kConnectionCallsMax = 4096;
// The largest message of any call. A frame's messages are far smaller, so that a frame a bit too
// large gets our own clear refusal.
inline constexpr int kGrpcMessageBytesMax = 1 << 30;
// The largest message that a server without links accepts: twice the largest prompt.
inline constexpr int kRequestBytesMax = 64 << 20;
enum class MessageSizes { kLinks, kRequests };
// The same settings for a server, which also never shares its port with a stale process. kLinks
// accepts messages of links; kRequests at most kRequestBytesMax, with kPatientTimeoutMs. The server
// listens by a ListeningServer, with ProcessServerCredentials().
void ConfigureServer(grpc::ServerBuilder* builder, MessageSizes sizes = MessageSizes::kLinks);

}  // namespace strata
