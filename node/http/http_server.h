// An HTTP/1.1 server for the API: one thread reads and writes for all clients, a few others run the
// handler. The handler gets a whole request, and answers at once or streams later, from any thread.
// Everything that a client can make large or slow has a bound here, so that one client does not
// slow down the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/rpc/connection_limiter.h"

namespace strata {

class HttpTls;

inline constexpr size_t kHttpConnectionsMax = 1024;
// Connections beyond kHttpConnectionsMax that get a 503 and are closed; further ones are closed
// without a response.
inline constexpr size_t kHttpRefusalsMax = 256;
inline constexpr size_t kHttpHeaderBytesMax = 16 * 1024;
inline constexpr size_t kHttpBodyBytesMax = 16 * 1024 * 1024;
// Bodies of all requests that are being read or wait for a handler.
inline constexpr size_t kHttpBodiesBytesMax = 256 * 1024 * 1024;
// Bytes of a stream that its client has not received yet; a client further behind is dropped.
inline constexpr size_t kHttpOutboxBytesMax = 1024 * 1024;

struct HttpRequest {
  // The client's x-request-id if it is plain, else a new one. Every response has it, as
  // x-request-id and as request-id: clients look for either.
  std::string id;
  std::string method;  // HEAD comes as GET
  std::string path;    // without the query
  std::string query;
  std::string client;  // its IP address; once admitted by a token, "token " and the token's name
  bool to_loopback = false;                                  // came in at 127.0.0.1 or ::1
  bool secure = false;                                       // by TLS
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  // The value of the first header of that name; empty: none.
  absl::string_view Header(absl::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};  // further ones
  std::string body;
  // Of a stream: bytes to write when nothing was written for Options::quiet_ms; empty: none.
  std::string when_quiet = {};
};

// Answers one request. Thread-safe; no call blocks, and no call has an effect after the client has
// gone. A responder that is destroyed before its response is complete answers 500, or cuts the
// stream.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;

  // Sends the whole response. REQUIRES: called once, without Begin().
  virtual void Answer(HttpResponse response) = 0;

  // Starts a stream: its head goes out at once, each Write() as soon as it can, until End().
  virtual void Begin(HttpResponse head) = 0;  // with the first bytes, if any, as its body
  virtual void Write(absl::string_view bytes) = 0;
  virtual void End() = 0;

  // Calls `fn` when the client goes before its response is complete; at once if it has gone. On the
  // server's thread or this one: must not block. Instead of what was given before.
  virtual void OnGone(absl::AnyInvocable<void() &&> fn) = 0;

  // Calls `fn` on a handler's thread: for slow work that continues from another thread's callback.
  // Never, if the server has stopped. One at a time.
  virtual void Run(absl::AnyInvocable<void() &&> fn) = 0;
};

class HttpServer {
 public:
  // On one of `handler_threads`; may block.
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;
  struct Options {
    std::string host = "127.0.0.1";  // a number, "localhost", or as IsAnyHost()
    uint16_t port = 0;               // 0: any free one
    Handler handler;
    // The server's own responses to bad requests: too large, too slow, malformed.
    std::function<HttpResponse(int status, const std::string& words)> error;
    // Gives freed memory back to the system, on a handler's thread; called once large requests have
    // ended. Null: ReleaseFreedMemory().
    std::function<void()> release_memory;
    int handler_threads = 2;
    size_t connections_max = kHttpConnectionsMax;
    std::shared_ptr<const HttpTls> tls;  // null: plain HTTP; shared with other servers
    ConnectionLimits tls_connections;    // with `tls`, where each costs a handshake; no known peers
    int64_t handshake_ms = 10'000;       // of TLS
    int64_t header_ms = 10'000;          // from a request's first byte to the end of its header
    int64_t body_ms = 60'000;            // from there to the end of its body
    int64_t idle_ms = 75'000;            // between requests
    int64_t write_ms = 30'000;           // without a byte taken by the client
    int64_t quiet_ms = 10'000;  // of a stream without a byte; proxies cut it after 30 s or more
  };
  struct Stats {
    size_t connections = 0;
    uint64_t accepted = 0;
    uint64_t refused = 0;          // too many connections, at a time or in a second
    uint64_t accept_failures = 0;  // most likely no descriptor was free; retried
    uint64_t requests = 0;
    uint64_t bad_requests = 0;  // answered by the server itself
    uint64_t dropped = 0;       // clients too slow to send a request or to read a response
  };

  // Listens. kUnavailable: the address is taken or not this machine's; kInvalidArgument: not an
  // address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);

  // Closes all connections; their OnGone() is called. Blocks until running handlers return.
  // Responders may outlive the server.
  ~HttpServer();

  uint16_t port() const;
  Stats stats() const;

 private:
  class Core;
  class Connection;
  class Responder;
  explicit HttpServer(std::shared_ptr<Core> core);

  const std::shared_ptr<Core> core_;  // shared with connections and responders
};

}  // namespace strata
