// Tests of links over gRPC only: untrusted peers on the port, peers that die, copies of payloads.
#include "transport/link/grpc_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/support/log_capture.h"
#include "tests/support/raw_message.h"
#include "tests/support/recorder.h"
#include "tests/transport/link/link_child.h"
#include "tests/transport/link/step_frame.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/base/version.h"
#include "transport/link/grpc_message.h"
#include "transport/link/link_session.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/listening_server.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using ::testing::HasSubstr;

// A server that opens links into one receiver.
class Server {
 public:
  explicit Server(GrpcLinkAcceptor::Options options = {})
      : server_(options, [this](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
          AcceptedLink accepted;
          accepted.hello.set_credits(4);
          accepted.receiver = &heard;
          accepted.on_open = [this](std::unique_ptr<Link> link) {
            MutexLock lock(&mu_);
            links_.push_back(std::move(link));
            changed_.NotifyAll();
          };
          return accepted;
        }) {}
  ~Server() {
    Drop();
    server_.Stop();
  }

  absl::StatusOr<std::unique_ptr<Link>> Dial(Link::Receiver* receiver) {
    DialOptions options;
    options.address = server_.address();
    options.timeout_ms = 30'000;
    auto link = DialGrpcLink(options, receiver);
    if (link.ok()) WaitForLinks(++dialled_);
    return link;
  }
  void WaitForLinks(size_t n) {
    MutexLock lock(&mu_);
    while (links_.size() < n) changed_.Wait(&mu_);
  }
  Link* link(size_t i) {
    MutexLock lock(&mu_);
    return links_[i].get();
  }
  // Destroys the links accepted so far.
  void Drop() {
    std::vector<std::unique_ptr<Link>> links;
    MutexLock lock(&mu_);
    links.swap(links_);
  }
  GrpcServer& server() { return server_; }

  Recorder heard;

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  size_t dialled_ = 0;
  GrpcServer server_;
};

// A link still opens and carries a frame: earlier peers did no harm.
void ExpectServes(Server* server) {
  Recorder heard;
  const size_t before = server->heard.n_frames();
  auto link = server->Dial(&heard);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE((*link)->Send(Step(1)).ok());
  EXPECT_TRUE(server->heard.WaitForFrames(before + 1));
}

// One bidirectional call of raw messages, as an untrusted peer might make it.
class RawCall {
 public:
  explicit RawCall(const std::string& address, const char* method = "/strata.wire.Link/Stream")
      : stub_(MakeChannel(address)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Next();
  }
  ~RawCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool Write(const std::string& bytes) {
    call_->Write(testing::MessageOf(bytes), nullptr);
    return Next();
  }
  bool Write(const Frame& frame) {
    return Write(EncodeFramePrefixAndHeader(frame) + std::string(frame.payload.bytes()));
  }
  bool WritesDone() {
    call_->WritesDone(nullptr);
    return Next();
  }

  // The next frame; nullopt at the end of the call.
  std::optional<Frame> Read() {
    grpc::ByteBuffer message;
    call_->Read(&message, nullptr);
    if (!Next()) return std::nullopt;
    auto frame = DecodeFrame(Payload::Own(testing::BytesOf(message)));
    EXPECT_TRUE(frame.ok()) << frame.status();
    return *std::move(frame);
  }

  // The status of the call. REQUIRES: Read() has returned its end.
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    return status;
  }

  // Reads up to the kClose, checks its code and that the call ends with the same.
  void ExpectClosedWith(absl::StatusCode code) {
    wire::Status words;
    while (std::optional<Frame> frame = Read()) {
      if (frame->type == FrameType::kClose) {
        EXPECT_TRUE(ParseHeader(*frame, &words).ok());
      }
    }
    EXPECT_EQ(words.code(), static_cast<int>(code)) << words.message();
    EXPECT_EQ(static_cast<int>(Finish().error_code()), static_cast<int>(code));
  }

 private:
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

Frame Hello() {
  wire::Hello hello;
  *hello.mutable_versions() = LocalVersions();
  return MakeFrame(FrameType::kHello, hello);
}

// --- untrusted peers
// ------------------------------------------------------------------------------------

TEST(GrpcLink, GarbageOverGrpcGetsOneClearErrorAndHurtsNobody) {
  Server server;
  for (const std::string& garbage :
       {std::string("hello?"), std::string(), std::string(1 << 20, '\xff'), std::string("STRF")}) {
    RawCall call(server.server().address());
    call.Write(garbage);
    call.ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(server.heard.n_closed(), 0u);
  ExpectServes(&server);
}

TEST(GrpcLink, AStepBeforeHelloIsRefused) {
  Server server;
  RawCall call(server.server().address());
  call.Write(Step(1));
  call.ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST(GrpcLink, FramesBeyondTheCreditCloseTheLink) {
  Server server;
  RawCall call(server.server().address());
  ASSERT_TRUE(call.Write(Hello()));
  for (uint64_t i = 0; i < 5; ++i) call.Write(Step(i));
  call.ExpectClosedWith(absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::IsResourceExhausted(server.heard.WaitForClosed()));
  EXPECT_EQ(server.heard.n_frames(), 4u);
}

TEST(GrpcLink, GarbageOnAnOpenLinkClosesIt) {
  Server server;
  RawCall call(server.server().address());
  ASSERT_TRUE(call.Write(Hello()));
  call.Write(std::string("garbage"));
  call.ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::IsInvalidArgument(server.heard.WaitForClosed()));
}

TEST(GrpcLink, APayloadShorterThanItSaysClosesTheLink) {
  Server server;
  RawCall call(server.server().address());
  ASSERT_TRUE(call.Write(Hello()));
  std::string bytes = EncodeFramePrefixAndHeader(Step(1, Payload::Own(std::string(1000, 'x'))));
  call.Write(bytes + "only a little");
  call.ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST(GrpcLink, APieceOfAPayloadThatIsTooLongClosesTheLink) {
  Server server;
  RawCall call(server.server().address());
  ASSERT_TRUE(call.Write(Hello()));
  const std::string payload(kGrpcPieceBytes + 8, 'x');
  const std::string front = EncodeFramePrefixAndHeader(Step(1, Payload::Own(payload)));
  ASSERT_TRUE(call.Write(front + payload.substr(0, kGrpcPieceBytes)));
  call.Write(std::string(9, 'x'));
  call.ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server.heard.n_frames(), 0u);
}

TEST(GrpcLink, ADiallerThatStopsTalkingWithoutACloseIsUnavailable) {
  Server server;
  RawCall call(server.server().address());
  ASSERT_TRUE(call.Write(Hello()));
  server.WaitForLinks(1);
  call.WritesDone();
  EXPECT_TRUE(absl::IsUnavailable(server.heard.WaitForClosed()));
}

TEST(GrpcLink, ADiallerThatCancelsIsUnavailable) {
  Server server;
  {
    RawCall call(server.server().address());
    ASSERT_TRUE(call.Write(Hello()));
    server.WaitForLinks(1);
  }
  EXPECT_TRUE(absl::IsUnavailable(server.heard.WaitForClosed()));
}

TEST(GrpcLink, ASilentDiallerIsClosedInTime) {
  GrpcLinkAcceptor::Options options;
  options.hello_timeout_ms = 50;
  Server server(options);
  RawCall call(server.server().address());
  call.ExpectClosedWith(absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server.heard.n_closed(), 0u);
}

TEST(GrpcLink, ADiallerThatReadsNothingDelaysDestructionForABoundedTime) {
  Server server;
  RawCall call(server.server().address());
  ASSERT_TRUE(call.Write(Hello()));
  server.WaitForLinks(1);
  server.Drop();
  EXPECT_EQ(server.heard.n_closed(), 1u);
}

TEST(GrpcLink, OtherMethodsAreNotLinks) {
  Server server;
  RawCall call(server.server().address(), "/strata.wire.Node/Nothing");
  EXPECT_FALSE(call.Read().has_value());
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(GrpcLink, DiallingAServerWithoutLinksReportsThat) {
  class Nothing : public grpc::CallbackGenericService {
  } nothing;
  const ServiceServer server({.others = &nothing});
  Recorder heard;
  DialOptions options;
  options.address = server.address();
  const absl::Status status = DialGrpcLink(options, &heard).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes no links"));
}

class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {}
  ~Socket() { close(fd_); }
  int fd() const { return fd_; }
  // Listens on a port that it returns.
  int Listen() {
    sockaddr_in address = Loopback(0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  void Connect(int port) {
    sockaddr_in address = Loopback(port);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  // Writes all that the peer accepts, then reads until it closes.
  void WriteAndDrain(const std::string& bytes) {
    send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd_, SHUT_WR);
    char buffer[4096];
    while (read(fd_, buffer, sizeof buffer) > 0) {
    }
  }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  const int fd_;
};

TEST(GrpcLink, GarbageOverTcpHurtsNobody) {
  Server server;
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(100'000, '\0'),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(1000, '\xff')}) {
    Socket socket;
    socket.Connect(server.server().port());
    socket.WriteAndDrain(garbage);
  }
  ExpectServes(&server);
}

// --- no listener, or no answer
// -----------------------------------------------------------------

TEST(GrpcLink, AClosedPortIsUnavailable) {
  int port;
  {
    Socket socket;
    port = socket.Listen();
  }
  Recorder heard;
  DialOptions options;
  options.address = absl::StrCat("127.0.0.1:", port);
  const absl::Status status = DialGrpcLink(options, &heard).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(options.address));
  EXPECT_EQ(heard.n_closed(), 0u);
}

TEST(GrpcLink, ASilentPortFailsInTime) {
  Socket socket;
  Recorder heard;
  DialOptions options;
  options.address = absl::StrCat("127.0.0.1:", socket.Listen());
  options.timeout_ms = 100;
  EXPECT_TRUE(absl::IsDeadlineExceeded(DialGrpcLink(options, &heard).status()));
}

TEST(GrpcLink, ASilentAcceptorFailsInTime) {
  class Silent : public grpc::CallbackGenericService {
   public:
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
      class Reactor : public grpc::ServerGenericBidiReactor {
        void OnCancel() override { Finish(grpc::Status::CANCELLED); }
        void OnDone() override { delete this; }
      };
      return new Reactor;
    }
  } silent;
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  builder.RegisterCallbackGenericService(&silent);
  const auto server = ListeningServer::Start(
      {.address = "127.0.0.1:0", .credentials = ProcessServerCredentials()}, &builder);
  ASSERT_TRUE(server.ok()) << server.status();
  Recorder heard;
  DialOptions options;
  options.address = absl::StrCat("127.0.0.1:", (*server)->port());
  options.timeout_ms = 100;
  EXPECT_TRUE(absl::IsDeadlineExceeded(DialGrpcLink(options, &heard).status()));
  EXPECT_EQ(heard.n_closed(), 0u);
}

TEST(GrpcLink, APortIsNotSharedWithAnotherServer) {
  Server server;
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  GrpcLinkAcceptor acceptor({}, [](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
    return absl::UnavailableError("wrong server");
  });
  builder.RegisterCallbackGenericService(acceptor.service());
  EXPECT_THAT(ListeningServer::Start(
                  {.address = server.server().address(), .credentials = ProcessServerCredentials()},
                  &builder)
                  .status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(server.server().address())));
}

// --- peers that die
// -------------------------------------------------------------------------------

TEST(GrpcLink, AServerThatShutsDownIsUnavailableAtBothEnds) {
  Server server;
  Recorder heard;
  auto link = server.Dial(&heard);
  ASSERT_TRUE(link.ok()) << link.status();
  server.server().Stop();
  EXPECT_TRUE(absl::IsUnavailable(heard.WaitForClosed()));
  EXPECT_TRUE(absl::IsUnavailable(server.heard.WaitForClosed()));
  EXPECT_TRUE(absl::IsUnavailable((*link)->Send(Step(1))));
}

TEST(GrpcLink, AKilledAcceptorIsUnavailable) {
  LinkChild child({"accept"});
  Recorder heard;
  DialOptions options;
  options.address = absl::StrCat("127.0.0.1:", std::stoi(child.said()));
  auto link = DialGrpcLink(options, &heard);
  ASSERT_TRUE(link.ok()) << link.status();
  ASSERT_TRUE((*link)->Send(Step(1)).ok());
  child.Kill();
  EXPECT_TRUE(absl::IsUnavailable(heard.WaitForClosed()));
  EXPECT_TRUE(absl::IsUnavailable((*link)->Send(Step(2))));
}

TEST(GrpcLink, AKilledDiallerIsUnavailable) {
  Server server;
  LinkChild child({"dial", server.server().address()});
  EXPECT_EQ(child.said(), "open\n");
  ASSERT_TRUE(server.heard.WaitForFrames(4));
  child.Kill();
  EXPECT_TRUE(absl::IsUnavailable(server.heard.WaitForClosed()));
}

TEST(GrpcLink, APeerThatHangsIsUnavailable) {
  LinkChild child({"accept"});
  Recorder heard;
  DialOptions options;
  options.address = absl::StrCat("127.0.0.1:", std::stoi(child.said()));
  options.keepalive_ms = 100;
  auto link = DialGrpcLink(options, &heard);
  ASSERT_TRUE(link.ok()) << link.status();
  child.Stop();  // its kernel still answers; only the keepalive notices
  EXPECT_TRUE(absl::IsUnavailable(heard.WaitForClosed()));
}

// --- copies and lifetimes
// ----------------------------------------------------------------------

// Floats whose owner records when the last reference is gone.
class WatchedPayload {
 public:
  explicit WatchedPayload(size_t n) : values_(n, 1.5f) {}

  Payload payload() {
    std::shared_ptr<const void> owner(values_.data(), [this](const void*) { gone_.set_value(); });
    return Payload::Share(std::move(owner), values_.data(), values_.size() * sizeof(float));
  }
  bool WaitUntilReleased() {
    return gone_.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  }

 private:
  std::vector<float> values_;
  std::promise<void> gone_;
};

TEST(GrpcLink, ASentPayloadIsReleased) {
  WatchedPayload watched(1 << 20);
  Server server;
  Recorder heard;
  auto link = server.Dial(&heard);
  ASSERT_TRUE(link.ok()) << link.status();
  ASSERT_TRUE((*link)->Send(Step(1, watched.payload())).ok());
  ASSERT_TRUE(server.heard.WaitForFrames(1));
  EXPECT_EQ(server.heard.frames()[0].payload.floats()[12345], 1.5f);
  EXPECT_TRUE(watched.WaitUntilReleased());
}

// Blocks in its first frame until Open().
class BlockedReceiver : public Link::Receiver {
 public:
  void OnFrame(Frame frame) override {
    if (n_++ == 0) open_.get_future().wait();
    heard.OnFrame(std::move(frame));
  }
  void OnClosed(absl::Status status) override { heard.OnClosed(std::move(status)); }
  void Open() { open_.set_value(); }
  Recorder heard;

 private:
  int n_ = 0;
  std::promise<void> open_;
};

TEST(GrpcLink, APayloadIsSentFromWhereItLies) {
  BlockedReceiver receiver;
  std::promise<std::unique_ptr<Link>> opened;
  GrpcServer server({}, [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
    AcceptedLink accepted;
    accepted.hello.set_credits(2);
    accepted.receiver = &receiver;
    accepted.on_open = [&](std::unique_ptr<Link> link) { opened.set_value(std::move(link)); };
    return accepted;
  });
  Recorder heard;
  DialOptions options;
  options.address = server.address();
  auto link = DialGrpcLink(options, &heard);
  ASSERT_TRUE(link.ok()) << link.status();
  auto acceptor = opened.get_future().get();

  // 64 MiB fit into no window: their end is not sent yet while the far side does not read. A value
  // written there now arrives, so no copy was made.
  std::vector<float> values(16 << 20, 1.0f);
  ASSERT_TRUE((*link)->Send(Step(1)).ok());
  const auto not_owned = std::make_shared<int>();
  ASSERT_TRUE(
      (*link)->Send(Step(2, Payload::Share(not_owned, values.data(), values.size() * 4))).ok());
  values.back() = 2.0f;
  receiver.Open();
  ASSERT_TRUE(receiver.heard.WaitForFrames(2));
  EXPECT_EQ(receiver.heard.frames()[1].payload.floats().front(), 1.0f);
  EXPECT_EQ(receiver.heard.frames()[1].payload.floats().back(), 2.0f);
  link->reset();
  acceptor.reset();
}

TEST(GrpcLink, UnsentPayloadsAreReleasedWhenTheLinkCloses) {
  WatchedPayload a(4 << 20), b(4 << 20), c(4 << 20);
  Server server;
  Recorder heard;
  auto link = server.Dial(&heard);
  ASSERT_TRUE(link.ok()) << link.status();
  for (WatchedPayload* watched : {&a, &b, &c}) {
    ASSERT_TRUE((*link)->Send(Step(1, watched->payload())).ok());
  }
  server.link(0)->Close(absl::AbortedError("plan"));
  EXPECT_TRUE(a.WaitUntilReleased());
  EXPECT_TRUE(b.WaitUntilReleased());
  EXPECT_TRUE(c.WaitUntilReleased());
}

// --- a member that turns hostile
// ------------------------------------------------------------------------------------

// Raw calls, all on one connection, that do not wait for each other.
class Flood {
 public:
  explicit Flood(const std::string& address) : stub_(MakeChannel(address)) {}
  ~Flood() {
    for (const auto& one : calls_) one->context.TryCancel();
    for (const auto& one : calls_) one->done.WaitForNotification();
  }

  void Call(int n, const std::string& metadata = "") {
    for (int i = 0; i < n; ++i) {
      calls_.push_back(std::make_unique<One>());
      One* const one = calls_.back().get();
      one->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      if (!metadata.empty()) one->context.AddMetadata("x-much", metadata);
      stub_.PrepareBidiStreamingCall(&one->context, "/strata.wire.Link/Stream", {}, one);
      one->StartRead(&one->read);  // first: once it has begun it may end at any time
      one->StartCall();
    }
  }
  // The status of the last call that ended.
  absl::Status Last() {
    calls_.back()->done.WaitForNotification();
    return calls_.back()->status;
  }

 private:
  struct One final : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    void OnDone(const grpc::Status& said) override {
      status = FromGrpc(said);
      done.Notify();
    }
    grpc::ClientContext context;
    grpc::ByteBuffer read;
    absl::Status status;
    absl::Notification done;
  };

  grpc::GenericStub stub_;
  std::vector<std::unique_ptr<One>> calls_;
};

TEST(GrpcLinkHostileMember, ThousandsOfSilentLinksAreRefusedAndLeaveNothing) {
  Server server;
  const absl::Time begin = absl::Now();
  testing::LogCapture log;
  {
    Flood flood(server.server().address());
    flood.Call(3'000);
    EXPECT_TRUE(absl::IsResourceExhausted(flood.Last())) << flood.Last();
    EXPECT_THAT(flood.Last().message(), HasSubstr("no Hello yet"));
  }
  {
    // Its places are free again once the ends of its calls are noticed.
    Recorder heard;
    while (!server.Dial(&heard).ok()) ASSERT_LT(absl::Now(), begin + absl::Seconds(60));
  }
  ExpectServes(&server);
  // Logged, but not three thousand times.
  const size_t n_lines = log.WaitFor("refused a link from").size();
  EXPECT_GE(n_lines, 1u);
  EXPECT_LE(n_lines, static_cast<size_t>(absl::ToInt64Seconds(absl::Now() - begin)) + 2);
}

TEST(GrpcLinkHostileMember, ManyCallsOnOneConnectionWaitForEachOther) {
  std::atomic<int> there{0}, most{0};
  class Waiting final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Waiting(std::atomic<int>* there) : there_(there) {}
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override {
      --*there_;
      delete this;
    }

   private:
    std::atomic<int>* const there_;
  };
  class Service final : public grpc::CallbackGenericService {
   public:
    Service(std::atomic<int>* there, std::atomic<int>* most) : there_(there), most_(most) {}
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
      const int now = ++*there_;
      for (int seen = *most_; seen < now && !most_->compare_exchange_weak(seen, now);) {
      }
      return new Waiting(there_);
    }

   private:
    std::atomic<int>* const there_;
    std::atomic<int>* const most_;
  };
  Service service(&there, &most);
  const ServiceServer server({.others = &service});
  const std::string address = server.address();
  {
    Flood flood(address);
    flood.Call(kConnectionCallsMax + 500);
    while (there < kConnectionCallsMax) absl::SleepFor(absl::Milliseconds(1));
    // Another connection has calls of its own.
    Flood other(address);
    other.Call(1);
    while (there < kConnectionCallsMax + 1) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(most, kConnectionCallsMax + 1);
  }
}

TEST(GrpcLinkHostileMember, LargeMetadataIsRefusedAndOthersServed) {
  Server server;
  Flood flood(server.server().address());
  flood.Call(1, std::string(256 << 10, 'x'));
  EXPECT_FALSE(flood.Last().ok());
  EXPECT_EQ(server.heard.n_frames(), 0u);
  ExpectServes(&server);
}

TEST(GrpcLink, ManyLinksOpenAndCloseAtOnce) {
  Server server;
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        Recorder heard;
        DialOptions options;
        options.address = server.server().address();
        auto link = DialGrpcLink(options, &heard);
        if (!link.ok() || !(*link)->Send(Step(i)).ok()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace strata
