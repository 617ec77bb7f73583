#include "node/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "node/http/http_core.h"
#include "shard/device/memory.h"
#include "transport/base/peer_addresses.h"

namespace strata {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using SteadyClock = std::chrono::steady_clock;
using Ms = std::chrono::milliseconds;

// Kernel buffer for bytes that a client has not received.
constexpr int kSendBufferBytes = 256 * 1024;

// A client whose machine sleeps or whose network is down does not close, and its generation would
// run for nothing. TCP probes an idle connection; two minutes, since a client may merely pause.
constexpr int kVanishedMs = 120'000;
constexpr int kProbeAfterS = 30, kProbeEveryS = 15, kProbesMax = 6;

void DetectDeadClient(int socket) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
  set(IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
#else
  set(IPPROTO_TCP, TCP_KEEPALIVE, kProbeAfterS);  // macOS's name
#endif
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbesMax);
#ifdef TCP_USER_TIMEOUT
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kVanishedMs);  // for unacknowledged and unsent bytes
#endif
}

}  // namespace

absl::Status HttpServer::Core::Listen() {
  error_code error;
  const std::string host = options_.host == "localhost" ? "127.0.0.1" : ListenHost(options_.host);
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--http: ", options_.host,
                                                   " is not an address of this machine: use an "
                                                   "IP address, localhost or [::]"));
  }
  tcp::endpoint at(address, options_.port);
  acceptor_.open(at.protocol(), error);
  if (error && IsAnyHost(options_.host)) {  // no IPv6 here
    at = tcp::endpoint(asio::ip::address_v4::any(), options_.port);
    acceptor_.open(at.protocol(), error);
  }
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && at.protocol() == tcp::v6()) {
    error_code ignored;
    acceptor_.set_option(asio::ip::v6_only(false), ignored);
  }
  if (!error) acceptor_.bind(at, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor_.non_blocking(true, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ",
                                               JoinHostPort(options_.host, options_.port),
                                               " for HTTP: ", error.message()));
  }
  port_ = acceptor_.local_endpoint(error).port();
  refusals_.emplace(absl::StrCat(port_), Clock::Real());
  return absl::OkStatus();
}

void HttpServer::Core::Run() {
  Accept();
  Tick();
  threads_.emplace_back([this] { io_.run(); });
  for (int i = 0; i < options_.handler_threads; ++i) {
    threads_.emplace_back([this] { HandleTasks(); });
  }
}

void HttpServer::Core::Stop() {
  asio::post(io_, [this] {
    error_code ignored;
    acceptor_.close(ignored);
    tick_.cancel();
    const auto connections = connections_;
    for (const auto& [raw, connection] : connections) connection->Close();
  });
  std::deque<Task> dropped_tasks;
  {
    absl::MutexLock lock(mu_);
    stopped_ = true;
    dropped_tasks.swap(tasks_);
  }
  dropped_tasks.clear();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  absl::MutexLock lock(mu_);
  wake_.clear();
}

HttpServer::Stats HttpServer::Core::stats() const {
  return {.connections = open_,
          .accepted = accepted_,
          .refused = refused_,
          .accept_failures = accept_failures_,
          .requests = requests,
          .bad_requests = bad_requests,
          .dropped = dropped};
}

void HttpServer::Core::Accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      OnAccept(std::move(socket));
      Accept();
      return;
    }
    // Most likely out of descriptors: MakeRoom() frees one, and others will be free soon.
    ++accept_failures_;
    MakeRoom();
    LOG_EVERY_N_SEC(WARNING, 10) << "HTTP: cannot accept a connection: " << error.message();
    auto pause = std::make_shared<asio::steady_timer>(io_, Ms(100));  // lives while it waits
    pause->async_wait([this, pause](const error_code&) {
      if (acceptor_.is_open()) Accept();
    });
  });
}

bool HttpServer::Core::Admit(const tcp::socket& socket) {
  error_code error;
  const std::string source = socket.remote_endpoint(error).address().to_string();
  if (error) return false;  // the client has gone
  return AdmitOrLog(source, &limiter_, &*refusals_);
}

void HttpServer::Core::OnAccept(tcp::socket socket) {
  ++accepted_;
  if (options_.tls != nullptr && !Admit(socket)) {
    ++refused_;
    return;
  }
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  DetectDeadClient(socket.native_handle());
  const bool refused = connections_.size() >= options_.connections_max && !MakeRoom();
  if (refused) ++refused_;
  if (refused && options_.tls != nullptr) return;  // a refused client gets no handshake
  if (connections_.size() >= options_.connections_max + kHttpRefusalsMax) return;
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  auto connection = std::make_shared<Connection>(shared_from_this(), std::move(socket));
  connections_[connection.get()] = connection;
  open_ = connections_.size();
  if (refused) {
    connection->StartRefused();
  } else {
    connection->Start();
  }
}

// Closes the connection that has been quiet for longest. False: all are busy.
bool HttpServer::Core::MakeRoom() {
  std::shared_ptr<Connection> quietest;
  for (const auto& [raw, connection] : connections_) {
    if (raw->may_go() && (!quietest || raw->GoesBefore(*quietest))) quietest = connection;
  }
  if (quietest == nullptr) return false;
  quietest->Close();
  return true;
}

bool HttpServer::Core::ChargeBodyFirst(const Connection* self, size_t bytes) {
  if (ChargeBody(bytes)) return true;
  std::vector<std::shared_ptr<Connection>> others;
  size_t unfinished = 0;
  for (const auto& [raw, connection] : connections_) {
    if (raw == self || raw->unfinished_bytes() == 0) continue;
    others.push_back(connection);
    unfinished += raw->unfinished_bytes();
  }
  if (body_bytes_ - unfinished + bytes > kHttpBodiesBytesMax) return false;
  std::ranges::sort(others, [](const auto& a, const auto& b) { return a->GoesBefore(*b); });
  for (const std::shared_ptr<Connection>& other : others) {
    ++dropped;
    other->Close();
    if (ChargeBody(bytes)) return true;
  }
  return false;
}

void HttpServer::Core::Tick() {
  const int64_t shortest =
      std::min({options_.handshake_ms, options_.header_ms, options_.body_ms, options_.idle_ms,
                options_.write_ms, options_.quiet_ms, int64_t{2'000}});
  tick_.expires_after(Ms(std::max<int64_t>(shortest / 4, 1)));
  tick_.async_wait([this](const error_code& error) {
    if (error || !acceptor_.is_open()) return;
    const auto now = SteadyClock::now();
    const auto connections = connections_;
    for (const auto& [raw, connection] : connections) connection->CheckDeadlines(now);
    open_ = connections_.size();
    if (give_back_.exchange(false)) {
      RunTask([this] { options_.release_memory(); });  // may take some milliseconds
    }
    Tick();
  });
}

void HttpServer::Core::Wake(std::shared_ptr<Connection> connection) {
  absl::MutexLock lock(mu_);
  if (stopped_) return;
  wake_.push_back(std::move(connection));
  if (std::exchange(woken_, true)) return;
  asio::post(io_, [this] { WakeAll(); });
}

void HttpServer::Core::WakeAll() {
  std::vector<std::shared_ptr<Connection>> woken;
  {
    absl::MutexLock lock(mu_);
    woken.swap(wake_);
    woken_ = false;
  }
  for (const auto& connection : woken) connection->Flush();
}

void HttpServer::Core::RunTask(Task task) {
  absl::MutexLock lock(mu_);
  if (!stopped_) tasks_.push_back(std::move(task));
}

void HttpServer::Core::HandleTasks() {
  const auto wanted = [this]()
                          ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopped_ || !tasks_.empty(); };
  while (true) {
    Task task;
    {
      absl::MutexLock lock(mu_);
      mu_.Await(absl::Condition(&wanted));
      if (stopped_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    std::move(task)();
  }
}

// Server.

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  if (options.release_memory == nullptr) options.release_memory = ReleaseFreedMemory;
  auto core = std::make_shared<Core>(std::move(options));
  if (absl::Status status = core->Listen(); !status.ok()) return status;
  core->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

HttpServer::HttpServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}
HttpServer::~HttpServer() { core_->Stop(); }
uint16_t HttpServer::port() const { return core_->port(); }
HttpServer::Stats HttpServer::stats() const { return core_->stats(); }

}  // namespace strata
