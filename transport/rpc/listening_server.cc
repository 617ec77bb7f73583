#include "transport/rpc/listening_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "transport/base/descriptor.h"
#include "transport/base/thread_name.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/refusal_log.h"
#include "transport/security/handshake_watch.h"

namespace strata {
namespace {

// Connections of one port before the next port's turn, and before the thread checks for its stop.
constexpr int kAcceptsAtOnce = 64;
// The pause when there are no descriptors or no memory, which connections free when they end.
constexpr int kNapMs = 100;

void SetInt(int fd, int level, int option, int value) {
  // An option that cannot be set keeps the system's default.
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

// Not inherited by children, and never blocking.
bool SetCloexecNonblock(int fd) {
  return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 &&
         fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0;
}

std::string ErrorText(int error) { return std::generic_category().message(error); }

uint16_t PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

// Invalid with errno set.
Descriptor ListenOn(const sockaddr* address, socklen_t size) {
  Descriptor socket(::socket(address->sa_family, SOCK_STREAM, 0));
  if (!socket.valid() || !SetCloexecNonblock(socket.fd())) return Descriptor();
  // Does not take a port on which another process listens; it frees ports of connections that have
  // ended.
  SetInt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address->sa_family == AF_INET6) SetInt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.fd(), address, size) != 0 || listen(socket.fd(), SOMAXCONN) != 0) {
    return Descriptor();
  }
  return socket;
}

Descriptor ListenOnAll(uint16_t port) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  Descriptor socket = ListenOn(reinterpret_cast<sockaddr*>(&six), sizeof six);
  if (socket.valid() || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)) return socket;
  sockaddr_in four{};  // a machine without IPv6
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  return ListenOn(reinterpret_cast<sockaddr*>(&four), sizeof four);
}

void SetPort(sockaddr* address, uint16_t port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

// Sockets that listen at `address`, all on one port.
absl::StatusOr<std::vector<Descriptor>> Listen(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t number = 0;
  if (colon == address.npos || !absl::SimpleAtoi(address.substr(colon + 1), &number) ||
      number > UINT16_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", address, ": wants host:port"));
  }
  auto port = static_cast<uint16_t>(number);
  absl::string_view bare = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&bare, "[")) absl::ConsumeSuffix(&bare, "]");
  const std::string host(bare);
  const auto failed = [&](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
  };

  std::vector<Descriptor> sockets;
  if (host == "::" || host == "0.0.0.0" || host == "*") {
    Descriptor socket = ListenOnAll(port);
    if (!socket.valid()) return failed(ErrorText(errno));
    sockets.push_back(std::move(socket));
    return sockets;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return failed(gai_strerror(error));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  int first_error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    SetPort(one->ai_addr, port);
    Descriptor socket = ListenOn(one->ai_addr, one->ai_addrlen);
    if (socket.valid()) {
      port = PortOf(socket.fd());
      sockets.push_back(std::move(socket));
    } else if (first_error == 0) {
      first_error = errno;
    }
  }
  if (sockets.empty()) return failed(ErrorText(first_error));
  return sockets;
}

// The address without the port: "192.168.1.7", also where it is mapped into IPv6, or "fd00::7".
std::string SourceOf(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, text, sizeof text);
  } else if (peer.ss_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&six)) {
      inet_ntop(AF_INET, six.s6_addr + 12, text, sizeof text);
    } else {
      inet_ntop(AF_INET6, &six, text, sizeof text);
    }
  }
  return text;
}

// Makes closing `socket` reset the connection, so that its ports are not in TIME_WAIT for a minute.
void Reset(const Descriptor& socket) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

// Admits connections at one port. Shared with connections whose handshakes have not ended.
class ConnectionGate final : public HandshakeObserver {
 public:
  ConnectionGate(const ListeningServer::Options& options, uint16_t port)
      : handshake_max_ms_(options.handshake_max_ms),
        limiter_(options.limits, options.clock),
        refusals_(absl::StrCat(port), options.clock) {}

  bool Admit(const std::string& source) { return AdmitOrLog(source, &limiter_, &refusals_); }
  // From now on handshakes fail because of the shutdown, and are not logged.
  void Close() { closed_ = true; }

  void OnHandshake(const std::string& source) override { limiter_.SetKnown(source); }
  void OnHandshakeFailed(const std::string& source, absl::string_view reason) override {
    refusals_.Add(source, reason);
  }
  void OnHandshakeAbandoned(const std::string& source, bool begun, int64_t took_ms) override {
    if (closed_) return;
    if (took_ms >= handshake_max_ms_) {
      refusals_.Add(source, "it does not end its handshake in time");
    } else if (begun) {
      refusals_.Add(source, "it leaves in the middle of its handshake: is it of another cluster?");
    }
  }

 private:
  const int handshake_max_ms_;
  std::atomic<bool> closed_ = false;
  ConnectionLimiter limiter_;
  RefusalLog refusals_;
};

}  // namespace

class ListeningServer::Acceptor {
 public:
  using GrpcAcceptor = grpc::experimental::ExternalConnectionAcceptor;

  // Starts the thread. `stop` is a pipe's ends.
  Acceptor(std::vector<Descriptor> listening, std::pair<Descriptor, Descriptor> stop,
           std::shared_ptr<ConnectionGate> gate, std::unique_ptr<GrpcAcceptor> grpc)
      : listening_(std::move(listening)),
        stop_read_(std::move(stop.first)),
        stop_write_(std::move(stop.second)),
        gate_(std::move(gate)),
        grpc_(std::move(grpc)),
        thread_([this] { Run(); }) {}

  ~Acceptor() {
    gate_->Close();
    stop_write_.Close();  // the other end sees it
    thread_.join();
  }

 private:
  void Run() {
    NameThread("acceptor");
    std::vector<pollfd> polled{{.fd = stop_read_.fd(), .events = POLLIN, .revents = 0}};
    for (const Descriptor& one : listening_) {
      polled.push_back({.fd = one.fd(), .events = POLLIN, .revents = 0});
    }
    bool can_accept = true;
    for (;;) {
      const int ready = can_accept ? poll(polled.data(), static_cast<nfds_t>(polled.size()), -1)
                                   : poll(polled.data(), 1, kNapMs);
      if (ready < 0) {
        // Other errors are impossible: the descriptors are ours.
        CHECK(errno == EINTR || errno == EAGAIN || errno == ENOMEM) << ErrorText(errno);
        continue;
      }
      if (ready > 0 && polled[0].revents != 0) return;
      can_accept = true;
      for (const Descriptor& one : listening_) can_accept &= AcceptSome(one.fd());
    }
  }

  // False: no descriptors or no memory for now.
  bool AcceptSome(int listening) {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      sockaddr_storage peer{};
      socklen_t size = sizeof peer;
#ifdef __linux__
      Descriptor socket(accept4(listening, reinterpret_cast<sockaddr*>(&peer), &size,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
#else
      Descriptor socket(accept(listening, reinterpret_cast<sockaddr*>(&peer), &size));
#endif
      if (!socket.valid()) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          LOG_EVERY_N_SEC(ERROR, 60) << "cannot take connections: " << ErrorText(errno);
          return false;
        }
        continue;  // the peer closed the connection before it was accepted
      }
      Take(std::move(socket), SourceOf(peer));
    }
    return true;
  }

  void Take(Descriptor socket, const std::string& source) {
    if (!gate_->Admit(source)) return Reset(socket);
#ifndef __linux__
    if (!SetCloexecNonblock(socket.fd())) return;
#endif
    // The options that gRPC sets on sockets that it has accepted itself.
    SetInt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef TCP_USER_TIMEOUT
    SetInt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, kKeepaliveTimeoutMs);
#endif
#ifdef SO_NOSIGPIPE
    SetInt(socket.fd(), SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
    const HandshakeSource handshake(source, gate_);
    GrpcAcceptor::NewConnectionParameters connection;
    connection.fd = socket.Release();
    grpc_->HandleNewConnection(&connection);
  }

  const std::vector<Descriptor> listening_;
  const Descriptor stop_read_;
  Descriptor stop_write_;
  const std::shared_ptr<ConnectionGate> gate_;  // shared with handshakes
  const std::unique_ptr<GrpcAcceptor> grpc_;
  std::thread thread_;  // last, because it uses all of the above
};

absl::StatusOr<std::unique_ptr<ListeningServer>> ListeningServer::Start(
    const Options& options, grpc::ServerBuilder* builder) {
  absl::StatusOr<std::vector<Descriptor>> listening = Listen(options.address);
  if (!listening.ok()) return listening.status();
  int ends[2];
  if (pipe(ends) != 0) return absl::ErrnoToStatus(errno, "pipe");
  std::pair<Descriptor, Descriptor> stop(ends[0], ends[1]);
  if (!SetCloexecNonblock(ends[0]) || !SetCloexecNonblock(ends[1])) {
    return absl::ErrnoToStatus(errno, "pipe");
  }

  std::unique_ptr<ListeningServer> made(new ListeningServer);
  made->port_ = PortOf(listening->front().fd());
  WatchHandshakes();
  // A millisecond more than ConnectionGate counts, because gRPC rounds.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options.handshake_max_ms + 1);
  auto grpc = builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, options.credentials);
  made->server_ = builder->BuildAndStart();
  if (made->server_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.address, ": gRPC cannot start a server"));
  }
  made->acceptor_ = std::make_unique<Acceptor>(
      *std::move(listening), std::move(stop),
      std::make_shared<ConnectionGate>(options, made->port_), std::move(grpc));
  return made;
}

ListeningServer::ListeningServer() = default;

ListeningServer::~ListeningServer() {
  if (acceptor_ != nullptr) Shutdown(DeadlineIn(absl::ZeroDuration()));
}

void ListeningServer::Shutdown(gpr_timespec deadline) {
  CHECK(acceptor_ != nullptr) << "a server is shut down once";
  // First, because gRPC never closes descriptors that it is handed after its shutdown.
  acceptor_.reset();
  server_->Shutdown(deadline);
}

}  // namespace strata
