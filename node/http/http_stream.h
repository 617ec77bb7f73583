// Inside node/http/http_server.h: one client's bytes, plain or by TLS, on a socket that never
// blocks. Server's thread. With TLS the process ignores SIGPIPE.
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

  // `tls` outlives it; null: plain.
  HttpStream(boost::asio::ip::tcp::socket socket, const HttpTls* tls);

  bool has_tls() const { return session_ != nullptr; }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

  // Calls `then` when both sides speak TLS, or cannot. Precondition: has_tls().
  void Handshake(std::function<void(const Error&)> then);
  // After Handshake() failed: the client spoke plain HTTP.
  bool spoke_http() const { return spoke_http_; }

  // Calls `then` when there may be something to read.
  void AwaitReadable(std::function<void(const Error&)> then);
  // would_block: not yet. A record of TLS is never larger than `bytes`, so nothing stays behind
  // that AwaitReadable() would not see.
  size_t ReadSome(char* bytes, size_t size, Error* error);
  // `bytes` stay there until `then`. One at a time.
  void WriteSome(absl::string_view bytes, std::function<void(const Error&, size_t)> then);

  // Says that nothing more comes.
  void ShutdownSend();
  void Close();

 private:
  struct FreeSession {
    void operator()(ssl_st* session) const;
  };
  // What a call of OpenSSL that returned `result` was short of; in `error`, why it failed.
  enum class Wants { kNothing, kRead, kWrite };
  Wants Look(int result, Error* error);

  boost::asio::ip::tcp::socket socket_;
  const std::unique_ptr<ssl_st, FreeSession> session_;  // null: plain
  bool is_up_ = false;                                  // the handshake is over
  bool spoke_http_ = false;
};

}  // namespace strata
