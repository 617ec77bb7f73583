#include "node/http/http_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <climits>
#include <utility>

namespace strata {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

void HttpStream::FreeSession::operator()(ssl_st* session) const { SSL_free(session); }

HttpStream::HttpStream(tcp::socket socket, const HttpTls* tls)
    : socket_(std::move(socket)), session_(tls == nullptr ? nullptr : tls->NewSession()) {
  if (session_ != nullptr) SSL_set_fd(session_.get(), static_cast<int>(socket_.native_handle()));
}

HttpStream::Wants HttpStream::CheckResult(int result, Error* error) {
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_NONE:
      return Wants::kNothing;
    case SSL_ERROR_WANT_READ:
      return Wants::kRead;
    case SSL_ERROR_WANT_WRITE:
      return Wants::kWrite;
    case SSL_ERROR_ZERO_RETURN:
      *error = asio::error::eof;
      break;
    default:
      while (const unsigned long why = ERR_get_error()) {
        spoke_http_ |= ERR_GET_REASON(why) == SSL_R_HTTP_REQUEST;
      }
      *error = asio::error::connection_aborted;
  }
  return Wants::kNothing;
}

void HttpStream::Handshake(std::function<void(const Error&)> then) {
  Error error;
  ERR_clear_error();
  const Wants wants = CheckResult(SSL_accept(session_.get()), &error);
  if (wants == Wants::kNothing) {
    is_up_ = !error;
    then(error);
    return;
  }
  socket_.async_wait(wants == Wants::kRead ? tcp::socket::wait_read : tcp::socket::wait_write,
                     [this, then = std::move(then)](const Error& failed) mutable {
                       if (failed) {
                         then(failed);
                       } else {
                         Handshake(std::move(then));
                       }
                     });
}

void HttpStream::AwaitReadable(std::function<void(const Error&)> then) {
  socket_.async_wait(tcp::socket::wait_read, std::move(then));
}

size_t HttpStream::ReadSome(char* bytes, size_t size, Error* error) {
  if (session_ == nullptr) return socket_.read_some(asio::buffer(bytes, size), *error);
  ERR_clear_error();
  const int n = SSL_read(session_.get(), bytes, static_cast<int>(std::min<size_t>(size, INT_MAX)));
  if (CheckResult(n, error) != Wants::kNothing) *error = asio::error::would_block;
  return n > 0 ? static_cast<size_t>(n) : 0;
}

void HttpStream::WriteSome(absl::string_view bytes,
                           std::function<void(const Error&, size_t)> then) {
  if (session_ == nullptr) {
    socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), std::move(then));
    return;
  }
  // Waits first, so that `then` never runs inside this call.
  socket_.async_wait(tcp::socket::wait_write,
                     [this, bytes, then = std::move(then)](const Error& failed) mutable {
                       Error error = failed;
                       int n = 0;
                       if (!error) {
                         ERR_clear_error();
                         n = SSL_write(session_.get(), bytes.data(),
                                       static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
                         if (CheckResult(n, &error) != Wants::kNothing) {
                           WriteSome(bytes, std::move(then));
                           return;
                         }
                       }
                       then(error, n > 0 ? static_cast<size_t>(n) : 0);
                     });
}

void HttpStream::ShutdownSend() {
  if (is_up_) {
    ERR_clear_error();
    SSL_shutdown(session_.get());
    ERR_clear_error();
  }
  Error ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void HttpStream::Close() {
  Error ignored;
  socket_.close(ignored);
}

}  // namespace strata
