// Links over UCX: verbs and RoCE where the hardware has them, shared memory between processes of
// one host, TCP otherwise. The same contract as every link (link.h); gRPC stays beside it and is
// what two processes agree over: UCX itself knows neither keys nor names.
//
// A dialler gets a ticket from the acceptor over gRPC, shows its token once, and both ends put a
// checksum with the ticket's key on everything they send. What is sent can be read by whoever sees
// the wire, so the address belongs to the loopback or to an interface that a person trusts.
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

// What UCX may choose from. On one host memory, beside TCP, over which the ends find each other;
// TCP alone; between hosts verbs and RoCE where the interface has them, else TCP.
inline constexpr char kUcxSharedMemory[] = "posix,sysv,self,tcp";
inline constexpr char kUcxTcp[] = "tcp,self";
inline constexpr char kUcxNetwork[] = "rc,tcp";

// Tickets given out and not used yet; strangers that have shown none; peers that have, and have not
// said Hello yet.
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
  int64_t hello_timeout_ms = 10'000;  // a peer that says nothing is closed after this
};

struct UcxDialOptions {
  UcxTicket ticket;
  wire::Hello hello;
  bool allow_mixed_versions = false;
  int64_t timeout_ms = 10'000;
  // Told, at most once and before OnClosed(), that the wire itself failed: the peer died, or UCX
  // did. On the link's thread; must not block.
  absl::AnyInvocable<void(const absl::Status&) &&> on_break;
};

// For processes that use no RDMA device, before they have threads: UCX need not see what becomes of
// memory, which it registers with nobody then. It would else rewrite mmap() and its like when it is
// loaded, for four tenths of a second. A person's UCX_MEM_MMAP_HOOK_MODE stands.
void KeepUcxFromHooking();

class UcxLinks {
 public:
  struct Options {
    // A number, the address of one interface: it alone is used and listened on.
    std::string host = "127.0.0.1";
    // As UCX names them. The environment's UCX_… variables set what is not set here.
    std::string transports = kUcxSharedMemory;
    // Never sleeps: a core for some microseconds less.
    bool spin = false;
    // How long a stranger may take to show its token.
    int64_t prove_timeout_ms = 5'000;
  };

  // kUnimplemented where Strata was built without UCX; kInvalidArgument when `host` is no address
  // of an interface of this machine, or is that of all; kUnavailable when UCX is not installed or
  // does not start so. The first call of a process loads UCX.
  static absl::StatusOr<std::unique_ptr<UcxLinks>> Start(Options options);

  // Destroy the links first: those that are left break. Waits for the thread, 2 s at most for
  // peers.
  virtual ~UcxLinks() = default;

  // A ticket for one link to here, which then asks `accept`. kResourceExhausted: too many are out.
  virtual absl::StatusOr<UcxTicket> Offer(UcxOfferOptions options, AcceptLinkFn accept) = 0;

  // As DialGrpcLink(): blocks for at most `timeout_ms`, never call it on a loop or from a receiver.
  // Errors: kUnavailable nobody there or a ticket that is not taken, kDeadlineExceeded,
  // kInvalidArgument an unfit ticket, kFailedPrecondition versions that do not fit, or the
  // acceptor's own words.
  virtual absl::StatusOr<std::unique_ptr<Link>> Dial(UcxDialOptions options,
                                                     Link::Receiver* receiver) = 0;
};

}  // namespace strata
