// Internal to node/http/http_server.h: one client's byte stream, plain or by TLS, on a non-blocking
// socket. Server's thread. REQUIRES: with TLS the process ignores SIGPIPE.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "node/http/http_tls.h"

namespace strata {

class HttpStream {
 public:
  using Error = boost::system::error_code;

  // REQUIRES: `tls` outlives the stream. Null: plain.
  HttpStream(boost::asio::ip::tcp::socket socket, const HttpTls* tls);

  bool has_tls() const { return session_ != nullptr; }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

  // Calls `then` when the handshake has succeeded or failed. REQUIRES: has_tls().
  void Handshake(std::function<void(const Error&)> then);
  // After a failed Handshake(): whether the client spoke plain HTTP.
  bool spoke_http() const { return spoke_http_; }

  // Calls `then` when there may be something to read.
  void AwaitReadable(std::function<void(const Error&)> then);
  // would_block: nothing to read yet. REQUIRES: `size` is at least that of a TLS record, so that no
  // bytes stay in OpenSSL's buffer, which AwaitReadable() does not see.
  size_t ReadSome(char* bytes, size_t size, Error* error);
  // REQUIRES: `bytes` stay valid until `then`. One at a time.
  void WriteSome(absl::string_view bytes, std::function<void(const Error&, size_t)> then);

  // Closes the sending side.
  void ShutdownSend();
  void Close();

 private:
  struct FreeSession {
    void operator()(ssl_st* session) const;
  };
  // The event that an OpenSSL call which returned `result` waits for; sets `error` where it failed.
  enum class Wants { kNothing, kRead, kWrite };
  Wants CheckResult(int result, Error* error);

  boost::asio::ip::tcp::socket socket_;
  const std::unique_ptr<ssl_st, FreeSession> session_;  // null: plain
  bool is_up_ = false;                                  // the handshake has succeeded
  bool spoke_http_ = false;
};

}  // namespace strata
