// Internal to node/http/http_server.h: the server's core and its connections. Included only by
// http_server.cc and http_connection.cc, since Asio and Beast cost much to compile.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "node/http/http_server.h"
#include "node/http/http_stream.h"
#include "transport/base/clock.h"
#include "transport/rpc/connection_limiter.h"
#include "transport/rpc/refusal_log.h"

namespace strata {

inline constexpr size_t kHttpReadBytes = 64 * 1024;
// After a request with a larger body freed memory is given back to the system.
inline constexpr size_t kHttpLargeBodyBytes = 1024 * 1024;

// The state that connections and responders share, and the threads.
class HttpServer::Core final : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(Options options)
      : options_(std::move(options)),
        limiter_(options_.tls_connections, Clock::Real()),
        acceptor_(io_),
        tick_(io_) {}

  absl::Status Listen();
  void Run();
  void Stop();

  const Options& options() const { return options_; }
  uint16_t port() const { return port_; }
  Stats stats() const;

  // Any thread: `connection` has bytes to write, or must be dropped.
  void Wake(std::shared_ptr<Connection> connection);
  // Any thread: runs `task` on a handler's thread.
  void RunTask(absl::AnyInvocable<void() &&> task);

  // Server's thread.
  void Remove(Connection* connection) { connections_.erase(connection); }
  std::array<char, kHttpReadBytes>& scratch() { return scratch_; }
  bool ChargeBody(size_t bytes) {
    if (body_bytes_ + bytes > kHttpBodiesBytesMax) return false;
    body_bytes_ += bytes;
    return true;
  }
  // Charges `bytes`, if need be by closing other connections whose bodies are incomplete, the
  // oldest first. False: closing all of them would not suffice, and none was closed.
  bool ChargeBodyFirst(const Connection* self, size_t bytes);

  // Any thread.
  void ReleaseBody(size_t bytes) { body_bytes_ -= bytes; }
  // Any thread: a large request has ended; gives memory back soon, once for several.
  void EndLarge() { give_back_ = true; }

  std::atomic<uint64_t> requests{0}, bad_requests{0}, dropped{0};

 private:
  using Task = absl::AnyInvocable<void() &&>;

  void Accept();
  // Whether one more handshake may begin; else logs why not.
  bool Admit(const boost::asio::ip::tcp::socket& socket);
  void OnAccept(boost::asio::ip::tcp::socket socket);
  bool MakeRoom();
  void Tick();
  void WakeAll();
  void HandleTasks();

  const Options options_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
  ConnectionLimiter limiter_;
  std::optional<RefusalLog> refusals_;  // since Listen()

  // Server's thread.
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer tick_;
  std::map<Connection*, std::shared_ptr<Connection>> connections_;
  std::array<char, kHttpReadBytes> scratch_;
  std::atomic<size_t> body_bytes_{0};
  std::atomic<bool> give_back_{false};

  std::atomic<size_t> open_{0};
  std::atomic<uint64_t> accepted_{0}, refused_{0}, accept_failures_{0};

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<Connection>> wake_ ABSL_GUARDED_BY(mu_);  // at most all connections
  // At most one for each connection.
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
};

// One client. Its state belongs to the server's thread, unless stated otherwise.
class HttpServer::Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Core> core, boost::asio::ip::tcp::socket socket)
      : core_(std::move(core)), stream_(std::move(socket), core_->options().tls.get()) {
    boost::system::error_code ignored;
    if (const auto peer = stream_.socket().remote_endpoint(ignored); !ignored) {
      client_ = peer.address().to_string();
    }
    if (const auto local = stream_.socket().local_endpoint(ignored); !ignored) {
      const boost::asio::ip::address address = local.address();
      to_loopback_ = address.is_loopback() || (address.is_v6() && address.to_v6().is_v4_mapped() &&
                                               address.to_v6().to_bytes()[12] == 127);
    }
  }

  void Start() {
    if (stream_.has_tls()) {
      Handshake();
      return;
    }
    AwaitRequest();
    WaitRead();
  }
  // Refuses the client since there are too many. Instead of Start(); not with TLS.
  void StartRefused() {
    Refuse(503, "too many connections; try again");
    WaitRead();
  }
  void Close();
  // Its response would take memory without end, and a slot that others wait for.
  void DropSlowReader(const std::string& why);
  void CheckDeadlines(std::chrono::steady_clock::time_point now);
  // Writes the responders' bytes.
  void Flush();

  // May be closed for others. Connections without a request go before those that are sending one.
  bool may_go() const {
    return state_ == State::kHandshake || state_ == State::kIdle || state_ == State::kHeader;
  }
  bool GoesBefore(const Connection& other) const {
    const bool in_header = state_ == State::kHeader;
    const bool other_in_header = other.state_ == State::kHeader;
    return in_header != other_in_header ? other_in_header : since_ < other.since_;
  }
  // Bytes of an incomplete body.
  size_t unfinished_bytes() const { return state_ == State::kBody ? charged_ : 0; }

  // For responders, any thread; `exchange` is the number of the request that they answer.
  void Put(uint64_t exchange, absl::string_view bytes, bool last, bool streaming);
  void Cut(uint64_t exchange);  // the stream ends broken
  void PutWhenQuiet(uint64_t exchange, std::string bytes);
  void OnGone(uint64_t exchange, absl::AnyInvocable<void() &&> fn);
  void Run(absl::AnyInvocable<void() &&> fn) { core_->RunTask(std::move(fn)); }
  void EndLarge() { core_->EndLarge(); }

 private:
  enum class State { kHandshake, kIdle, kHeader, kBody, kHandling, kLinger, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void Enter(State state, std::optional<std::chrono::milliseconds> limit);
  void Handshake();
  void OnHandshake(const boost::system::error_code& error);
  void AwaitRequest();
  void WaitRead();
  void OnReadable(const boost::system::error_code& error);
  void OnEnd();
  void Parse();
  void ReleaseBody();
  void Dispatch();
  void Refuse(int status, const std::string& words);
  void WriteSome();
  void OnWritten(const boost::system::error_code& error, size_t bytes);
  void OnDrained();

  const std::shared_ptr<Core> core_;
  HttpStream stream_;
  std::string client_;
  bool to_loopback_ = false;

  State state_ = State::kIdle;
  std::chrono::steady_clock::time_point since_;
  std::optional<std::chrono::steady_clock::time_point> deadline_, write_deadline_, answer_deadline_;
  bool reading_ = false;  // a wait is in progress
  std::string in_;        // received, not parsed
  std::optional<Parser> parser_;
  size_t charged_ = 0;      // of the body, with the core
  bool keep_alive_ = true;  // after the current exchange
  bool writing_ = false;
  std::string writing_bytes_;
  size_t written_ = 0;
  std::chrono::steady_clock::time_point quiet_since_;  // time of the last write

  absl::Mutex mu_;
  uint64_t exchange_ ABSL_GUARDED_BY(mu_) = 0;
  std::string out_ ABSL_GUARDED_BY(mu_);
  std::string when_quiet_ ABSL_GUARDED_BY(mu_);  // of the current stream
  bool complete_ ABSL_GUARDED_BY(mu_) = true;    // nothing more comes for the exchange
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  bool overflown_ ABSL_GUARDED_BY(mu_) = false;
  bool cut_ ABSL_GUARDED_BY(mu_) = false;
  bool wake_pending_ ABSL_GUARDED_BY(mu_) = false;
  absl::AnyInvocable<void() &&> on_gone_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
