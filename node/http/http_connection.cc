#include <algorithm>
#include <boost/beast/http/write.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/log/log.h"
#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "node/http/http_core.h"

namespace strata {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;
using Ms = std::chrono::milliseconds;

// Bytes of requests that a client sends before the current one is answered.
constexpr size_t kPipelinedBytesMax = 64 * 1024;
// How long a client whose connection is being closed may still send, while it reads the response.
constexpr Ms kLinger(2'000);
// A complete response may take write_ms and a millisecond for so many bytes.
constexpr size_t kAnswerBytesPerMsMin = 16;
constexpr size_t kIdBytesMax = 64;
// The response to a client that speaks plain HTTP to a TLS port.
constexpr char kSpeaksHttps[] =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 37\r\n"
    "Connection: close\r\n\r\nthis port speaks HTTPS: use https://\n";

bool IsPlainId(absl::string_view id) {
  return !id.empty() && id.size() <= kIdBytesMax && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

// A header of access control that occurs twice: proxies and servers differ in which one they read.
// Null: none does.
const char* DuplicateHeader(const http::fields& fields) {
  for (const char* name : {"Host", "Authorization", "X-Api-Key", "Origin"}) {
    if (fields.count(name) > 1) return name;
  }
  return nullptr;
}

std::string NewId() {
  thread_local absl::BitGen random;
  return absl::StrFormat("req-%016x", absl::Uniform<uint64_t>(random));
}

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

class HttpServer::Responder final : public HttpResponder {
 public:
  struct Exchange {
    uint64_t number;
    unsigned version;
    bool keep_alive;
    bool head_only;
    std::string id;
    bool large = false;  // the request was
  };
  Responder(std::shared_ptr<Connection> connection, Exchange exchange)
      : connection_(std::move(connection)), exchange_(std::move(exchange)) {}
  ~Responder() override {
    if (state_ == kOpen) {
      Answer({.status = 500, .content_type = "text/plain", .body = "no answer\n"});
    } else if (state_ == kStreaming) {
      connection_->Cut(exchange_.number);
    }
    if (exchange_.large) connection_->EndLarge();
  }

  void Answer(HttpResponse response) override {
    int open = kOpen;
    if (!state_.compare_exchange_strong(open, kDone)) return;
    Header header = HeaderOf(response);
    if (response.status != 204) {
      header.set(http::field::content_length, absl::StrCat(response.body.size()));
    }
    const std::string bytes = TextOf(header) + (exchange_.head_only ? "" : response.body);
    connection_->Put(exchange_.number, bytes, /*last=*/true, /*streaming=*/false);
  }

  void Begin(HttpResponse head) override {
    int open = kOpen;
    if (!state_.compare_exchange_strong(open, kStreaming)) return;
    Header header = HeaderOf(head);
    if (chunked()) header.set(http::field::transfer_encoding, "chunked");
    connection_->Put(exchange_.number, TextOf(header) + Chunk(head.body), /*last=*/false,
                     /*streaming=*/true);
    if (!head.when_quiet.empty()) {
      connection_->PutWhenQuiet(exchange_.number, Chunk(head.when_quiet));
    }
  }
  void Write(absl::string_view bytes) override {
    if (state_ != kStreaming || bytes.empty()) return;
    connection_->Put(exchange_.number, Chunk(bytes), /*last=*/false, /*streaming=*/true);
  }
  void End() override {
    int streaming = kStreaming;
    if (!state_.compare_exchange_strong(streaming, kDone)) return;
    connection_->Put(exchange_.number, chunked() && !exchange_.head_only ? "0\r\n\r\n" : "",
                     /*last=*/true, /*streaming=*/true);
  }
  void OnGone(absl::AnyInvocable<void() &&> fn) override {
    connection_->OnGone(exchange_.number, std::move(fn));
  }
  void Run(absl::AnyInvocable<void() &&> fn) override { connection_->Run(std::move(fn)); }

 private:
  enum State { kOpen, kStreaming, kDone };
  using Header = http::response_header<>;

  bool chunked() const { return exchange_.version >= 11; }
  std::string Chunk(absl::string_view bytes) const {
    if (bytes.empty() || exchange_.head_only) return "";
    return chunked() ? absl::StrFormat("%x\r\n%s\r\n", bytes.size(), bytes) : std::string(bytes);
  }
  Header HeaderOf(const HttpResponse& response) const {
    Header header;
    header.result(static_cast<unsigned>(response.status));
    for (const char* name : {"x-request-id", "request-id"}) header.set(name, exchange_.id);
    if (response.status != 204) header.set(http::field::content_type, response.content_type);
    for (const auto& [name, value] : response.headers) header.insert(name, value);
    header.set(http::field::connection, exchange_.keep_alive ? "keep-alive" : "close");
    return header;
  }
  static std::string TextOf(const Header& header) {
    std::ostringstream text;
    text << header;
    return std::move(text).str();
  }

  const std::shared_ptr<Connection> connection_;
  const Exchange exchange_;
  std::atomic<int> state_{kOpen};
};

// Connection: reading.

void HttpServer::Connection::Enter(State state, std::optional<Ms> limit) {
  state_ = state;
  since_ = SteadyClock::now();
  deadline_.reset();
  if (limit) deadline_ = since_ + *limit;
}

void HttpServer::Connection::Handshake() {
  Enter(State::kHandshake, Ms(core_->options().handshake_ms));
  stream_.Handshake([self = shared_from_this()](const error_code& error) {
    if (self->state_ == State::kHandshake) self->OnHandshake(error);
  });
}

void HttpServer::Connection::OnHandshake(const error_code& error) {
  if (!error) {
    AwaitRequest();
    WaitRead();
    return;
  }
  ++core_->bad_requests;
  if (stream_.spoke_http()) {
    error_code ignored;
    // Reads the client's bytes, since closing with bytes unread would discard our response.
    stream_.socket().read_some(asio::buffer(core_->scratch()), ignored);
    stream_.socket().write_some(asio::buffer(kSpeaksHttps, sizeof(kSpeaksHttps) - 1), ignored);
    stream_.ShutdownSend();
    Enter(State::kLinger, kLinger);
    return;
  }
  Close();
}

void HttpServer::Connection::AwaitRequest() {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(kHttpHeaderBytesMax);
  parser_->body_limit(kHttpBodyBytesMax);
  Enter(State::kIdle, Ms(core_->options().idle_ms));
}

// One wait is always in progress, so that a client's close is noticed; except for a client that
// keeps sending before its response.
void HttpServer::Connection::WaitRead() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kHandling && in_.size() >= kPipelinedBytesMax) return;
  reading_ = true;
  stream_.AwaitReadable([self = shared_from_this()](const error_code& error) {
    self->reading_ = false;
    self->OnReadable(error);
  });
}

void HttpServer::Connection::OnReadable(const error_code& error) {
  if (state_ == State::kClosed) return;
  error_code failed = error;
  size_t n = 0;
  if (!failed) n = stream_.ReadSome(core_->scratch().data(), core_->scratch().size(), &failed);
  if (failed == asio::error::would_block || failed == asio::error::try_again) {
    WaitRead();
    return;
  }
  if (failed) {
    OnEnd();
    return;
  }
  if (state_ != State::kLinger) {
    in_.append(core_->scratch().data(), n);
    if (state_ != State::kHandling) Parse();
  }
  WaitRead();
}

// A half-closed connection counts as gone: no API client closes its side and still reads.
void HttpServer::Connection::OnEnd() { Close(); }

void HttpServer::Connection::Parse() {
  if (in_.empty()) return;
  if (state_ == State::kIdle) Enter(State::kHeader, Ms(core_->options().header_ms));
  const bool had_header = parser_->is_header_done();
  error_code error;
  size_t used = 0;
  while (used < in_.size() && !parser_->is_done()) {
    const size_t n = parser_->put(asio::buffer(in_.data() + used, in_.size() - used), error);
    used += n;
    if (error || n == 0) break;
  }
  in_.erase(0, used);
  if (error == http::error::need_more) error = {};
  if (error == http::error::header_limit) {
    Refuse(431, absl::StrCat("the header is larger than ", kHttpHeaderBytesMax, " bytes"));
  } else if (error == http::error::body_limit) {
    Refuse(413, absl::StrCat("the body is larger than ", kHttpBodyBytesMax, " bytes"));
  } else if (error) {
    Refuse(400, absl::StrCat("not a valid HTTP request: ", error.message()));
  }
  if (error) return;
  if (!had_header && parser_->is_header_done()) {
    if (const char* name = DuplicateHeader(parser_->get()); name != nullptr) {
      Refuse(400, absl::StrCat("the header has ", name, " more than once"));
      return;
    }
  }
  const size_t body = parser_->get().body().size();
  if (body > charged_) {
    if (!core_->ChargeBodyFirst(this, body - charged_)) {
      Refuse(503, "too many large requests at a time; try again");
      return;
    }
    charged_ = body;
  }
  if (parser_->is_done()) {
    Dispatch();
  } else if (!had_header && parser_->is_header_done()) {
    Enter(State::kBody, Ms(core_->options().body_ms));
    const auto expect = parser_->get().find(http::field::expect);
    if (expect != parser_->get().end() && absl::EqualsIgnoreCase(expect->value(), "100-continue")) {
      {
        absl::MutexLock lock(mu_);
        out_ += "HTTP/1.1 100 Continue\r\n\r\n";
      }
      Flush();
    }
  }
}

void HttpServer::Connection::ReleaseBody() {
  core_->ReleaseBody(charged_);
  charged_ = 0;
}

void HttpServer::Connection::Dispatch() {
  Parser::value_type message = parser_->release();
  HttpRequest request;
  const std::string target(message.target());
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  request.method = std::string(message.method_string());
  const bool head_only = request.method == "HEAD";
  if (head_only) request.method = "GET";
  request.client = client_;
  request.to_loopback = to_loopback_;
  request.secure = stream_.has_tls();
  for (const auto& field : message) {
    request.headers.emplace_back(absl::AsciiStrToLower(field.name_string()),
                                 std::string(field.value()));
  }
  request.id = std::string(request.Header("x-request-id"));
  if (!IsPlainId(request.id)) request.id = NewId();
  request.body = std::move(message.body());
  keep_alive_ = message.keep_alive();
  // The body waits for the handler, and stays charged until the handler has returned.
  const size_t charge = std::exchange(charged_, 0);
  Enter(State::kHandling, std::nullopt);
  ++core_->requests;
  Responder::Exchange exchange = {.number = 0,
                                  .version = message.version(),
                                  .keep_alive = keep_alive_,
                                  .head_only = head_only,
                                  .id = request.id,
                                  .large = charge > kHttpLargeBodyBytes};
  // A stream to an old client ends with its connection.
  if (exchange.version < 11) keep_alive_ = exchange.keep_alive = false;
  {
    absl::MutexLock lock(mu_);
    exchange.number = ++exchange_;
    when_quiet_.clear();
    complete_ = false;
    on_gone_ = nullptr;
  }
  auto responder = std::make_shared<Responder>(shared_from_this(), std::move(exchange));
  core_->RunTask([core = core_.get(), request = std::move(request), charge,
                  responder = std::move(responder)]() mutable {
    core->options().handler(std::move(request), std::move(responder));
    core->ReleaseBody(charge);
  });
}

void HttpServer::Connection::Refuse(int status, const std::string& words) {
  if (status != 503) ++core_->bad_requests;
  ReleaseBody();
  keep_alive_ = false;
  in_.clear();
  Enter(State::kHandling, std::nullopt);
  Responder::Exchange exchange = {
      .number = 0, .version = 11, .keep_alive = false, .head_only = false, .id = NewId()};
  {
    absl::MutexLock lock(mu_);
    exchange.number = ++exchange_;
    when_quiet_.clear();
    complete_ = false;
    on_gone_ = nullptr;
  }
  Responder(shared_from_this(), std::move(exchange)).Answer(core_->options().error(status, words));
}

// Connection: writing.

void HttpServer::Connection::Put(uint64_t exchange, absl::string_view bytes, bool last,
                                 bool streaming) {
  {
    absl::MutexLock lock(mu_);
    if (gone_ || complete_ || exchange != exchange_) return;
    if (streaming && out_.size() + bytes.size() > kHttpOutboxBytesMax) {
      overflown_ = true;
      out_.clear();
    } else {
      out_.append(bytes.data(), bytes.size());
    }
    complete_ = last && !overflown_;
    if (complete_) on_gone_ = nullptr;
    if (wake_pending_) return;
    wake_pending_ = true;
  }
  core_->Wake(shared_from_this());
}

void HttpServer::Connection::Cut(uint64_t exchange) {
  {
    absl::MutexLock lock(mu_);
    if (gone_ || complete_ || exchange != exchange_) return;
    complete_ = cut_ = true;
    on_gone_ = nullptr;
    if (wake_pending_) return;
    wake_pending_ = true;
  }
  core_->Wake(shared_from_this());
}

void HttpServer::Connection::PutWhenQuiet(uint64_t exchange, std::string bytes) {
  absl::MutexLock lock(mu_);
  if (exchange == exchange_) when_quiet_ = std::move(bytes);
}

void HttpServer::Connection::OnGone(uint64_t exchange, absl::AnyInvocable<void() &&> fn) {
  {
    absl::MutexLock lock(mu_);
    if (exchange != exchange_ || complete_) return;
    if (!gone_) {
      on_gone_ = std::move(fn);
      return;
    }
  }
  std::move(fn)();
}

void HttpServer::Connection::Flush() {
  if (state_ == State::kClosed) return;
  bool overflown = false;
  bool complete = false;
  {
    absl::MutexLock lock(mu_);
    wake_pending_ = false;
    overflown = overflown_;
    complete = complete_;
    if (!writing_ && !overflown) {
      writing_bytes_.swap(out_);
      out_.clear();
    }
  }
  if (overflown) {
    return DropSlowReader(
        absl::StrCat("it is ", kHttpOutboxBytesMax, " bytes of its stream behind"));
  }
  if (writing_) return;
  if (writing_bytes_.empty()) {
    if (complete && state_ == State::kHandling) OnDrained();
    return;
  }
  writing_ = true;
  written_ = 0;
  const auto now = SteadyClock::now();
  write_deadline_ = now + Ms(core_->options().write_ms);
  if (complete && state_ == State::kHandling && !answer_deadline_) {  // else a "100 Continue"
    answer_deadline_ =
        *write_deadline_ + Ms(static_cast<int64_t>(writing_bytes_.size() / kAnswerBytesPerMsMin));
  }
  WriteSome();
}

void HttpServer::Connection::WriteSome() {
  stream_.WriteSome(absl::string_view(writing_bytes_).substr(written_),
                    [self = shared_from_this()](const error_code& error, size_t bytes) {
                      self->OnWritten(error, bytes);
                    });
}

void HttpServer::Connection::OnWritten(const error_code& error, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) {
    Close();
    return;
  }
  written_ += bytes;
  if (bytes > 0) write_deadline_ = SteadyClock::now() + Ms(core_->options().write_ms);
  if (written_ < writing_bytes_.size()) {
    WriteSome();
    return;
  }
  writing_ = false;
  write_deadline_.reset();
  quiet_since_ = SteadyClock::now();
  writing_bytes_.clear();
  if (writing_bytes_.capacity() > kHttpReadBytes) writing_bytes_.shrink_to_fit();
  Flush();
}

// All bytes of the response are with the kernel.
void HttpServer::Connection::OnDrained() {
  answer_deadline_.reset();
  bool cut = false;
  {
    absl::MutexLock lock(mu_);
    cut = cut_;
  }
  if (cut) {
    Close();
    return;
  }
  if (!keep_alive_) {
    // Closing with bytes unread would discard the response before the client has read it.
    stream_.ShutdownSend();
    in_.clear();
    Enter(State::kLinger, kLinger);
    WaitRead();
    return;
  }
  AwaitRequest();
  Parse();
  WaitRead();
}

void HttpServer::Connection::DropSlowReader(const std::string& why) {
  ++core_->dropped;
  LOG_EVERY_N_SEC(WARNING, 10) << "HTTP API: the connection of " << client_
                               << " is closed: " << why;
  Close();
}

void HttpServer::Connection::CheckDeadlines(SteadyClock::time_point now) {
  const bool slow_writer = deadline_ && now >= *deadline_;
  const bool slow_reader = (write_deadline_ && now >= *write_deadline_) ||
                           (answer_deadline_ && now >= *answer_deadline_);
  if (slow_reader) {
    DropSlowReader("it reads its response too slowly, or not at all");
  } else if (slow_writer && (state_ == State::kHeader || state_ == State::kBody)) {
    ++core_->dropped;
    Refuse(408, "the request takes too long to arrive");
  } else if (slow_writer) {
    if (state_ == State::kHandshake) ++core_->dropped;
    Close();
  } else if (state_ == State::kHandling && !writing_ &&
             now >= quiet_since_ + Ms(core_->options().quiet_ms)) {
    {
      absl::MutexLock lock(mu_);
      if (complete_ || !out_.empty() || when_quiet_.empty()) return;
      out_ = when_quiet_;
    }
    Flush();
  }
}

void HttpServer::Connection::Close() {
  if (state_ == State::kClosed) return;
  Enter(State::kClosed, std::nullopt);
  write_deadline_.reset();
  answer_deadline_.reset();
  ReleaseBody();
  parser_.reset();
  stream_.Close();
  absl::AnyInvocable<void() &&> on_gone;
  {
    absl::MutexLock lock(mu_);
    gone_ = true;
    out_.clear();
    on_gone = std::move(on_gone_);
    on_gone_ = nullptr;
  }
  if (on_gone) std::move(on_gone)();
  core_->Remove(this);  // may destroy this
}

}  // namespace strata
