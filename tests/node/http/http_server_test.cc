#include "node/http/http_server.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/http_client.h"

namespace strata {
namespace {

using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(60);

// Answers /echo with the request's body; queues all other requests for the test.
class HttpServerTest : public ::testing::Test {
 protected:
  struct PendingRequest {
    HttpRequest request;
    std::shared_ptr<HttpResponder> responder;
  };

  void Start(HttpServer::Options options = {}) {
    options.handler = [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      if (request.path == "/echo") {
        responder->Answer({.content_type = "text/plain", .body = std::move(request.body)});
        return;
      }
      absl::MutexLock lock(mu_);
      pending_.push_back({std::move(request), std::move(responder)});
    };
    options.error = [](int status, const std::string& words) {
      return HttpResponse{.status = status, .content_type = "text/plain", .body = words};
    };
    auto server = HttpServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  uint16_t port() const { return server_->port(); }
  PendingRequest Next() {
    absl::MutexLock lock(mu_);
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !pending_.empty(); };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kLong));
    PendingRequest pending = std::move(pending_.front());
    pending_.pop_front();
    return pending;
  }
  // Other clients are served all the while.
  void ExpectServes() {
    HttpClient other(port());
    ASSERT_TRUE(other.Post("/echo", "still here"));
    EXPECT_EQ(other.Read().body, "still here");
  }

  absl::Mutex mu_;
  std::deque<PendingRequest> pending_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, GivesTheHandlerTheWholeRequest) {
  Start();
  HttpClient client(port());
  client.Send(
      "POST /a/b?c=d HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-7\r\nContent-Length: 3\r\n\r\nabc");
  PendingRequest pending = Next();
  EXPECT_EQ(pending.request.method, "POST");
  EXPECT_EQ(pending.request.path, "/a/b");
  EXPECT_EQ(pending.request.query, "c=d");
  EXPECT_EQ(pending.request.id, "mine-7");
  EXPECT_EQ(pending.request.client, "127.0.0.1");
  EXPECT_TRUE(pending.request.to_loopback);
  EXPECT_EQ(pending.request.Header("host"), "x");
  EXPECT_EQ(pending.request.body, "abc");
  pending.responder->Answer({.status = 201, .headers = {{"X-More", "1"}}, .body = "{}"});
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 201);
  EXPECT_EQ(reply.body, "{}");
  EXPECT_EQ(reply.Header("x-more"), "1");
  EXPECT_EQ(reply.Header("x-request-id"), "mine-7");
  EXPECT_EQ(reply.Header("request-id"), "mine-7");
  EXPECT_EQ(reply.Header("connection"), "keep-alive");
}

TEST_F(HttpServerTest, AnIdThatCouldForgeALogIsReplaced) {
  Start();
  HttpClient client(port());
  client.Send("GET /x HTTP/1.1\r\nHost: x\r\nX-Request-Id: a b=c\r\n\r\n");
  EXPECT_THAT(Next().request.id, StartsWith("req-"));
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  HttpClient client(port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += absl::StrCat("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n",
                        i < 10 ? "0" : "", i);
  }
  ASSERT_TRUE(client.Send(all));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.Read().body, absl::StrCat(i < 10 ? "0" : "", i));
  }
}

TEST_F(HttpServerTest, ReadsChunkedBodiesAndThoseAfterContinue) {
  Start();
  HttpClient client(port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().body, "abcde");
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadHead().status, 100);
  client.Send("hi");
  EXPECT_EQ(client.Read().body, "hi");
}

// The time for a response begins with it, not with the "100 Continue" long before.
TEST_F(HttpServerTest, AnswersLateAfterContinue) {
  Start({.write_ms = 100});
  HttpClient client(port());
  client.Send("POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadHead().status, 100);
  client.Send("hi");
  PendingRequest pending = Next();
  absl::SleepFor(absl::Milliseconds(500));
  pending.responder->Answer({.body = "late"});
  EXPECT_EQ(client.Read().body, "late");
  EXPECT_EQ(server_->stats().dropped, 0u);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Start();
  HttpClient client(port());
  client.Send(
      "HEAD /x HTTP/1.1\r\nHost: x\r\n\r\nPOST /echo HTTP/1.1\r\nHost: x\r\n"
      "Content-Length: 1\r\n\r\na");
  PendingRequest pending = Next();
  EXPECT_EQ(pending.request.method, "GET");
  pending.responder->Answer({.body = "long"});
  const HttpReply head = client.ReadHead();
  EXPECT_EQ(head.Header("content-length"), "4");
  EXPECT_EQ(client.Read().body, "a");
}

TEST_F(HttpServerTest, StreamsEachPieceAtOnce) {
  Start();
  HttpClient client(port());
  client.Get("/stream");
  PendingRequest pending = Next();
  pending.responder->Begin({.content_type = "text/event-stream"});
  EXPECT_EQ(client.ReadHead().Header("transfer-encoding"), "chunked");
  for (const char* piece : {"data: 1\n\n", "data: 2\n\n"}) {
    pending.responder->Write(piece);
    EXPECT_EQ(client.ReadChunk(), piece);
  }
  pending.responder->End();
  EXPECT_EQ(client.ReadChunk(), "");
  client.Post("/echo", "next");
  EXPECT_EQ(client.Read().body, "next");
}

TEST_F(HttpServerTest, AnOldClientsStreamEndsWithItsConnection) {
  Start();
  HttpClient client(port());
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  PendingRequest pending = Next();
  pending.responder->Begin({.body = "a"});
  pending.responder->Write("b");
  pending.responder->End();
  EXPECT_THAT(client.ReadHead().head, ::testing::Not(HasSubstr("chunked")));
  EXPECT_EQ(client.ReadToEnd(), "ab");
}

TEST_F(HttpServerTest, ReportsThatTheClientHasGone) {
  Start();
  absl::Notification gone;
  HttpClient client(port());
  client.Get("/stream");
  PendingRequest pending = Next();
  pending.responder->OnGone([&] { gone.Notify(); });
  pending.responder->Begin({});
  client.Close();
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kLong));
  pending.responder->Write("nobody reads this");
  pending.responder->End();
}

TEST_F(HttpServerTest, DoesNotReportAClientThatGoesAfterItsResponse) {
  Start();
  bool gone = false;
  {
    HttpClient client(port());
    client.Get("/x");
    PendingRequest pending = Next();
    pending.responder->OnGone([&] { gone = true; });
    pending.responder->Answer({.body = "x"});
    EXPECT_EQ(client.Read().body, "x");
  }
  server_.reset();
  EXPECT_FALSE(gone);
}

TEST_F(HttpServerTest, AnUnansweredRequestIsAnError) {
  Start();
  HttpClient client(port());
  client.Get("/x");
  Next();  // dropped
  EXPECT_EQ(client.Read().status, 500);
  client.Get("/stream");
  Next().responder->Begin({.body = "begun"});
  client.ReadHead();
  EXPECT_EQ(client.ReadChunk(), "begun");
  EXPECT_EQ(client.ReadToEnd(), "");  // cut, without the last chunk
}

TEST_F(HttpServerTest, AHeaderTooLargeIsRefused) {
  Start();
  HttpClient client(port());
  client.Send(absl::StrCat("GET /x HTTP/1.1\r\nHost: x\r\nA: ", std::string(20'000, 'a')));
  EXPECT_EQ(client.Read().status, 431);
  EXPECT_EQ(client.ReadToEnd(), "");
  ExpectServes();
}

TEST_F(HttpServerTest, ABodyTooLargeIsRefusedBeforeItIsRead) {
  Start();
  HttpClient client(port());
  client.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
  EXPECT_EQ(client.Read().status, 413);
  HttpClient chunked(port());
  chunked.Send("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string mib(1024 * 1024, 'a');
  for (int i = 0; i < 20 && chunked.Send(absl::StrCat("100000\r\n", mib, "\r\n")); ++i) {
  }
  EXPECT_EQ(chunked.Read().status, 413);
  ExpectServes();
}

TEST_F(HttpServerTest, TheLargestBodyIsRead) {
  Start();
  HttpClient client(port());
  const std::string body(kHttpBodyBytesMax, 'a');
  ASSERT_TRUE(client.Post("/echo", body));
  EXPECT_EQ(client.Read().body.size(), body.size());
}

TEST_F(HttpServerTest, GarbageIsRefused) {
  Start();
  for (const std::string& garbage :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 11), std::string("hello\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"), std::string("GET /x\r\n\r\n"),
        std::string("GET /x HTTP/1.1\r\nno colon\r\n\r\n"),
        std::string("POST /x HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST /x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        std::string("POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    HttpClient client(port());
    client.Send(garbage);
    EXPECT_EQ(client.Read().status, 400) << garbage;
    EXPECT_EQ(client.ReadToEnd(), "");
  }
  ExpectServes();
}

TEST_F(HttpServerTest, WhatDecidesWhoIsLetInIsSaidOnce) {
  Start();
  for (const char* header :
       {"Host: localhost\r\nHost: evil.example\r\n", "Host: localhost\r\nhost: localhost\r\n",
        "Host: a\r\nOrigin: http://a\r\nOrigin: http://b\r\n",
        "Host: a\r\nX-Api-Key: x\r\nx-api-key: y\r\n",
        "Host: a\r\nAuthorization: Bearer x\r\nAuthorization: Bearer y\r\n"}) {
    HttpClient client(port());
    // The server does not wait for the body, which never comes.
    client.Send(absl::StrCat("POST /echo HTTP/1.1\r\n", header, "Content-Length: 5\r\n\r\n"));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400) << header;
    EXPECT_THAT(reply.body, HasSubstr("more than once"));
  }
  HttpClient others(port());
  others.Send("GET /echo HTTP/1.1\r\nHost: a\r\nAccept: x\r\nAccept: y\r\n\r\n");
  EXPECT_EQ(others.Read().status, 200);
}

TEST_F(HttpServerTest, MemoryOfLargeRequestsIsGivenBackWhenTheyHaveEnded) {
  std::atomic<int> given_back = 0;
  absl::Notification once;
  Start({.release_memory =
             [&] {
               if (++given_back == 1) once.Notify();
             },
         .quiet_ms = 20});  // looks often
  HttpClient client(port());
  ASSERT_TRUE(client.Post("/echo", std::string(1000, 'a')));
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(given_back, 0);
  ASSERT_TRUE(client.Post("/kept", std::string(2 << 20, 'a')));
  PendingRequest pending = Next();
  ASSERT_TRUE(client.Post("/echo", std::string(10, 'a')));
  EXPECT_EQ(given_back, 0);  // the request is still in progress
  pending.responder->Answer({.body = "{}"});
  pending = {};
  EXPECT_TRUE(once.WaitForNotificationWithTimeout(kLong));
}

TEST_F(HttpServerTest, ASlowSenderIsDropped) {
  Start({.header_ms = 100, .body_ms = 100});
  HttpClient header(port()), body(port());
  header.Send("GET /x HT");
  body.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab");
  EXPECT_EQ(header.Read().status, 408);
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_EQ(header.ReadToEnd(), "");
  EXPECT_EQ(server_->stats().dropped, 2u);
}

TEST_F(HttpServerTest, AByteNowAndThenDoesNotHelp) {
  Start({.header_ms = 200});
  HttpClient client(port());
  // Ends because the server closes: a header that never ends is cut.
  const absl::Time until = absl::Now() + kLong;
  while (client.Send("G") && absl::Now() < until) {
  }
  EXPECT_LT(absl::Now(), until);
  ExpectServes();
}

TEST_F(HttpServerTest, QuietConnectionsAreClosed) {
  Start({.idle_ms = 2'000});
  HttpClient never(port()), once(port());
  once.Post("/echo", "a");
  EXPECT_EQ(once.Read().body, "a");
  EXPECT_EQ(once.ReadToEnd(), "");
  EXPECT_EQ(never.ReadToEnd(), "");
}

TEST_F(HttpServerTest, AClientThatReadsNoStreamIsDroppedWhenItsQueueIsFull) {
  Start();
  HttpClient client(port(), {.receive_buffer_bytes = 4096});
  client.Get("/stream");
  PendingRequest pending = Next();
  absl::Notification gone;
  pending.responder->OnGone([&] { gone.Notify(); });
  pending.responder->Begin({});
  const std::string piece(64 * 1024, 'a');
  // Many times the bytes that fit into the queue and the kernel.
  for (int i = 0; i < 1000 && !gone.HasBeenNotified(); ++i) pending.responder->Write(piece);
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(server_->stats().dropped, 1u);
  ExpectServes();
}

TEST_F(HttpServerTest, AClientThatReadsNoResponseIsDroppedInTime) {
  Start({.write_ms = 100});
  HttpClient client(port(), {.receive_buffer_bytes = 4096});
  client.Get("/x");
  PendingRequest pending = Next();
  absl::Notification gone;
  pending.responder->Begin({});
  pending.responder->OnGone([&] { gone.Notify(); });
  pending.responder->Write(std::string(kHttpOutboxBytesMax - 4096, 'a'));
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kLong));
  ExpectServes();
}

TEST_F(HttpServerTest, TheQuietestConnectionIsClosedForANewOneAndABusyOneStays) {
  Start({.connections_max = 4});
  HttpClient busy(port());
  busy.Get("/stream");
  PendingRequest pending = Next();
  pending.responder->Begin({});
  busy.ReadHead();
  std::vector<std::unique_ptr<HttpClient>> quiet;
  for (int i = 0; i < 20; ++i) quiet.push_back(std::make_unique<HttpClient>(port()));
  ExpectServes();
  pending.responder->Write("still here");
  EXPECT_EQ(busy.ReadChunk(), "still here");
  EXPECT_EQ(quiet[0]->ReadToEnd(), "");
}

TEST_F(HttpServerTest, WhenAllAreBusyTheNextGetsAResponse) {
  Start({.connections_max = 2});
  HttpClient first(port()), second(port());
  first.Get("/x");
  const PendingRequest first_pending = Next();
  second.Get("/x");
  const PendingRequest second_pending = Next();
  HttpClient third(port());
  const HttpReply reply = third.Read();
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("too many connections"));
  EXPECT_EQ(server_->stats().refused, 1u);
}

TEST_F(HttpServerTest, ARefusedClientReadsTheReasonThoughItHasSentMuch) {
  Start({.connections_max = 1});
  HttpClient busy(port());
  busy.Get("/x");
  const PendingRequest pending = Next();
  for (int i = 0; i < 20; ++i) {
    HttpClient refused(port());
    refused.Post("/echo", std::string(1000, 'a'));
    refused.Post("/echo", std::string(1000, 'a'));
    EXPECT_EQ(refused.Read().status, 503);
    EXPECT_EQ(refused.ReadToEnd(), "");
  }
}

TEST_F(HttpServerTest, ASlowHeaderIsClosedAfterAnIdleConnection) {
  Start({.connections_max = 2});
  HttpClient slow(port()), quiet(port());
  slow.Send("GET /x HT");
  quiet.Post("/echo", "a");
  EXPECT_EQ(quiet.Read().body, "a");
  HttpClient third(port());
  third.Get("/x");
  const PendingRequest pending = Next();
  EXPECT_EQ(quiet.ReadToEnd(), "");
  ExpectServes();
  EXPECT_EQ(slow.ReadToEnd(), "");
}

TEST_F(HttpServerTest, IncompleteBodiesAreDroppedForOthers) {
  Start({});
  std::vector<std::unique_ptr<HttpClient>> slow;
  const std::string most(kHttpBodyBytesMax - 1, 'a');
  for (size_t i = 0; i < kHttpBodiesBytesMax / kHttpBodyBytesMax; ++i) {
    slow.push_back(std::make_unique<HttpClient>(port()));
    slow.back()->Send(absl::StrCat(
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: ", kHttpBodyBytesMax, "\r\n\r\n", most));
  }
  HttpClient other(port());
  other.Post("/echo", std::string(kHttpBodyBytesMax / 2, 'b'));
  EXPECT_EQ(other.Read().status, 200);
}

TEST_F(HttpServerTest, AQuietStreamIsKeptOpenByItsComment) {
  Start({.quiet_ms = 20});
  HttpClient client(port());
  client.Get("/stream");
  PendingRequest pending = Next();
  pending.responder->Begin({.body = "begun", .when_quiet = ": waiting\n\n"});
  client.ReadHead();
  EXPECT_EQ(client.ReadChunk(), "begun");
  EXPECT_EQ(client.ReadChunk(), ": waiting\n\n");
  EXPECT_EQ(client.ReadChunk(), ": waiting\n\n");
  pending.responder->Write("piece");
  pending.responder->End();
  std::string chunk = client.ReadChunk();
  while (chunk == ": waiting\n\n") chunk = client.ReadChunk();
  EXPECT_EQ(chunk, "piece");
  chunk = client.ReadChunk();
  while (chunk == ": waiting\n\n") chunk = client.ReadChunk();
  EXPECT_EQ(chunk, "");
  // The next stream of the connection has no such comment: only its own bytes come.
  client.Get("/stream");
  pending = Next();
  pending.responder->Begin({.body = "next"});
  client.ReadHead();
  EXPECT_EQ(client.ReadChunk(), "next");
  ExpectServes();
  pending.responder->End();
  EXPECT_EQ(client.ReadChunk(), "");
}

TEST_F(HttpServerTest, WithoutFreeDescriptorsAcceptingPausesAndResumes) {
  Start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  HttpClient quiet(port());
  quiet.Post("/echo", "a");
  EXPECT_EQ(quiet.Read().body, "a");
  // Opens the clients' sockets first; then no further descriptor is free.
  std::vector<int> sockets;
  for (int i = 0; i < 4; ++i) sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  const absl::Time since = absl::Now();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (const int each : sockets)
    clients.push_back(std::make_unique<HttpClient>(port(), HttpClient::Options{.socket = each}));
  const absl::Time until = absl::Now() + kLong;
  while (server_->stats().accept_failures < 2 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  const uint64_t failures = server_->stats().accept_failures;
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_GE(failures, 2u);
  EXPECT_LE(failures, 2 + absl::ToInt64Milliseconds(absl::Now() - since) / 50);  // it does not spin
  EXPECT_EQ(quiet.ReadToEnd(), "");  // the quiet connection is closed
  for (const auto& client : clients) {
    EXPECT_TRUE(client->Post("/echo", "b"));
    EXPECT_EQ(client->Read().body, "b");
  }
}

TEST_F(HttpServerTest, AThousandStreamsAtATime) {
  constexpr int kStreams = 1000;
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 3 * kStreams) GTEST_SKIP() << "too few file descriptors";
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 3 * kStreams);
  setrlimit(RLIMIT_NOFILE, &limit);
  Start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::vector<PendingRequest> pending;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    ASSERT_TRUE(clients.back()->connected());
    clients.back()->Get("/stream");
    pending.push_back(Next());
    pending.back().responder->Begin({});
  }
  for (int piece = 0; piece < 5; ++piece) {
    for (PendingRequest& each : pending) each.responder->Write(absl::StrCat("piece ", piece));
  }
  for (PendingRequest& each : pending) each.responder->End();
  for (const auto& client : clients) {
    EXPECT_EQ(client->Read().body, "piece 0piece 1piece 2piece 3piece 4");
  }
}

TEST_F(HttpServerTest, RespondersMayOutliveTheServer) {
  Start();
  HttpClient client(port());
  client.Get("/stream");
  PendingRequest pending = Next();
  absl::Notification gone;
  pending.responder->OnGone([&] { gone.Notify(); });
  pending.responder->Begin({});
  server_.reset();
  EXPECT_TRUE(gone.HasBeenNotified());
  pending.responder->Write("x");
  pending.responder->Run([] { ADD_FAILURE() << "runs after the server's end"; });
  pending.responder->End();
}

TEST(HttpServer, APortThatIsTakenIsUnavailable) {
  HttpServer::Options options;
  options.handler = [](const HttpRequest&, const std::shared_ptr<HttpResponder>&) {};
  options.error = [](int, const std::string&) { return HttpResponse(); };
  const auto first = HttpServer::Start(options);
  ASSERT_TRUE(first.ok()) << first.status();
  options.port = (*first)->port();
  EXPECT_EQ(HttpServer::Start(options).status().code(), absl::StatusCode::kUnavailable);
  options.host = "not an address";
  EXPECT_EQ(HttpServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace strata
