// Channels and servers of gRPC with the settings that every one of Strata's has: keepalive, message
// sizes, windows, and what secures the process.
#pragma once

#include <memory>
#include <string>

namespace grpc {
class Channel;
class ServerBuilder;
}  // namespace grpc

namespace strata {

// How long a peer may leave what was sent unanswered.
inline constexpr int kKeepaliveTimeoutMs = 500;
// The same between a verb and the node that it asks: each waits where the machine is busy.
inline constexpr int kPatientTimeoutMs = 10'000;

// Channels of control services and links alike are made with this, so that keys have one place to
// go (process_security.h): with the keepalive and message size settings that links need, and a
// connection of its own. Does not connect yet. A peer that answers no more is noticed while a call
// is under way; without calls for some seconds there is no connection, until the next one.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           int keepalive_timeout_ms = kKeepaliveTimeoutMs);
// The same with a connection that stays, and costs next to nothing while nothing goes over it. That
// the peer hangs is noticed after `keepalive_ms`, or where that is 0, 60 s: calls need deadlines,
// or somebody who notices sooner.
std::shared_ptr<grpc::Channel> MakeQuietChannel(const std::string& address, int keepalive_ms = 0);
// Calls under way on one connection of a server, at most: others wait at their caller. More than
// the texts that one node asks another for (kGenerateCallsMax).
inline constexpr int kConnectionCallsMax = 4096;
// That any call may answer. A frame's have far less, so that one a bit too large gets our own clear
// refusal.
inline constexpr int kGrpcMessageBytesMax = 1 << 30;
// What a server without links takes as one message: the largest prompt, twice.
inline constexpr int kRequestBytesMax = 64 << 20;
enum class MessageSizes { kLinks, kRequests };
// The same settings for a server, which then also never shares its port with a stale process, and
// takes messages of links, or, patiently, none larger than requests may be. It has a
// ListeningServer's port, with ProcessServerCredentials().
void ConfigureServer(grpc::ServerBuilder* builder, MessageSizes sizes = MessageSizes::kLinks);

}  // namespace strata
