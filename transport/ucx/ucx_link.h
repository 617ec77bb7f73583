// Links over UCX: verbs and RoCE where the hardware has them, shared memory between processes of
// one host, TCP otherwise. The same contract as every link (link.h). Two processes set such a link
// up over gRPC: UCX itself knows neither keys nor names.
//
// A dialler gets a ticket from the acceptor over gRPC, shows its token once, and both ends put a
// checksum with the ticket's key on everything they send. Nothing is encrypted, so the address
// belongs to the loopback or to an interface that a person trusts.
//
// One thread for each UcxLinks; it calls the receivers. Source: the UCP API of UCX 1.23 (ucp.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "transport/link/link.h"

namespace strata {

// UCX's choices of transports. On one host shared memory, with TCP, over which the ends connect;
// TCP alone; between hosts verbs and RoCE where the interface has them, else TCP.
inline constexpr char kUcxSharedMemory[] = "posix,sysv,self,tcp";
inline constexpr char kUcxTcp[] = "tcp,self";
inline constexpr char kUcxNetwork[] = "rc,tcp";

// Limits: tickets issued and not used yet; peers that have shown no ticket; peers that have shown
// one, and have not sent a Hello yet.
inline constexpr size_t kUcxTicketsMax = 256;
inline constexpr size_t kUcxUnprovenMax = 16;
inline constexpr size_t kUcxSilentMax = 64;

// Good for one link.
struct UcxTicket {
  std::string address;  // host:port, host a number
  std::string token;
  std::string key;  // secret, as the token is
};

struct UcxOfferOptions {
  bool allow_mixed_versions = false;
  int64_t ticket_timeout_ms = 30'000;
  int64_t hello_timeout_ms = 10'000;  // a link without a Hello is closed after this
};

struct UcxDialOptions {
  UcxTicket ticket;
  wire::Hello hello;
  bool allow_mixed_versions = false;
  int64_t timeout_ms = 10'000;
  // Called, at most once and before OnClosed(), when the connection itself failed: the peer died,
  // or UCX failed. On the link's thread; must not block.
  absl::AnyInvocable<void(const absl::Status&) &&> on_break;
};

// For processes that use no RDMA device: without one UCX registers no memory, so it need not track
// changes of mappings. It would else rewrite mmap() and its like when it is loaded, for 0.4 s. A
// UCX_MEM_MMAP_HOOK_MODE in the environment takes precedence.
// REQUIRES: the process has no other threads yet.
void DisableUcxMemoryHooks();

class UcxLinks {
 public:
  struct Options {
    // The numeric address of one interface, the only one that is used and listened on.
    std::string host = "127.0.0.1";
    // By UCX's names. The environment's UCX_… variables set other options.
    std::string transports = kUcxSharedMemory;
    // Never sleeps: uses a whole core to save some microseconds.
    bool spin = false;
    // How long a new peer may take to show its token.
    int64_t prove_timeout_ms = 5'000;
  };

  // kUnimplemented where Strata was built without UCX; kInvalidArgument when `host` is no address
  // of an interface of this machine, or means all of them; kUnavailable when UCX is not installed
  // or does not start with these options. The first call of a process loads UCX.
  static absl::StatusOr<std::unique_ptr<UcxLinks>> Start(Options options);

  // Destroy the links first: remaining links break. Waits for the thread, which waits at most 2 s
  // for peers.
  virtual ~UcxLinks() = default;

  // A ticket for one link to this process, which `accept` then decides about. kResourceExhausted:
  // too many unused tickets.
  virtual absl::StatusOr<UcxTicket> Offer(UcxOfferOptions options, AcceptLinkFn accept) = 0;

  // As DialGrpcLink(): blocks for at most `timeout_ms`, never call it on a loop or from a receiver.
  // Errors: kUnavailable when nothing answers there or the ticket is refused, kDeadlineExceeded,
  // kInvalidArgument for a malformed ticket, kFailedPrecondition for incompatible versions, or the
  // acceptor's own status.
  virtual absl::StatusOr<std::unique_ptr<Link>> Dial(UcxDialOptions options,
                                                     Link::Receiver* receiver) = 0;
};

}  // namespace strata
