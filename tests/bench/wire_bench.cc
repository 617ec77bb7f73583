// Frames in one direction between two processes of this host, over each transport: the latency of a
// single frame, the throughput with several in flight, and the time until a killed peer is noticed.
// Both processes read the same clock, so each frame carries the time when it was sent.
// scripts/bench-links.
//
//   wire_bench [FRAMES [WIRE…]]                the table; tcp, grpc, ucx-tcp, ucx-shm, these two
//                                              with -spin, and grpc-tls, or those named
//   wire_bench receive WIRE FILE CREDITS       the other process
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/base/mutex.h"
#include "transport/rpc/process_security.h"
#include "transport/security/cluster_certificates.h"
#include "transport/security/cluster_key.h"
#include "transport/security/tls_credentials.h"
#include "transport/ucx/ucx_link.h"

namespace strata {
namespace {

constexpr size_t kFramesMax = 20'000;
constexpr size_t kWarmUp = 200;
constexpr size_t kLatencyBytes = 16 << 10;
constexpr size_t kThroughputBytes = 1 << 20;
constexpr size_t kThroughputFrames = 1000;
constexpr uint32_t kThroughputCredits = 8;
constexpr int kKills = 10;
constexpr char kGrpcTls[] = "grpc-tls";
// TLS comes last: all links dialled or served after it use TLS.
constexpr const char* kWires[] = {"tcp",          "grpc",         "ucx-tcp", "ucx-shm",
                                  "ucx-tcp-spin", "ucx-shm-spin", kGrpcTls};
constexpr char kKeyVariable[] = "WIRE_BENCH_KEY";  // of the bench's own cluster

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Counters in a file that both processes map.
struct Samples {
  std::atomic<uint64_t> received;
  std::atomic<int64_t> last_ns;
  int64_t took_ns[kFramesMax];

  void Add(int64_t sent_ns) {
    const int64_t now = NowNs();
    const uint64_t n = received.load(std::memory_order_relaxed);
    if (n < kFramesMax) took_ns[n] = now - sent_ns;
    last_ns.store(now, std::memory_order_relaxed);
    received.store(n + 1, std::memory_order_release);
  }
};

Samples* Map(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  CHECK_GE(fd, 0);
  CHECK_EQ(ftruncate(fd, sizeof(Samples)), 0);
  void* mapped = mmap(nullptr, sizeof(Samples), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(mapped != MAP_FAILED);
  close(fd);
  return static_cast<Samples*>(mapped);
}

// All links that this process dials or serves from now on use TLS, as between nodes.
void Secure(const ClusterKey& key) {
  const auto authority = ClusterAuthority::Of(key);
  CHECK_OK(authority);
  const auto certificate = authority->Issue({.node_id = absl::StrCat(getpid())});
  CHECK_OK(certificate);
  SecureThisProcess(key.id(),
                    ClusterCredentials::InMemory({authority->certificate_pem()}, *certificate));
}

std::unique_ptr<UcxLinks> StartUcx(const std::string& wire) {
  UcxLinks::Options options;
  options.transports = wire.starts_with("ucx-tcp") ? kUcxTcp : kUcxSharedMemory;
  options.spin = wire.ends_with("-spin");
  auto links = UcxLinks::Start(options);
  CHECK_OK(links);
  return *std::move(links);
}

void SetNoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

bool ReadAll(int fd, char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = read(fd, to, size);
    if (n <= 0) return false;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

void WriteAll(int fd, const char* from, size_t size) {
  while (size > 0) {
    const ssize_t n = send(fd, from, size, MSG_NOSIGNAL);
    CHECK_GT(n, 0);
    from += n;
    size -= static_cast<size_t>(n);
  }
}

// --- the process that receives
// --------------------------------------------------------------------

class Taker : public Link::Receiver {
 public:
  explicit Taker(Samples* samples) : samples_(samples) {}
  void OnFrame(Frame frame) override {
    wire::Step step;
    CHECK_OK(ParseHeader(frame, &step));
    samples_->Add(static_cast<int64_t>(step.step_id()));
    link->Release(1);
  }
  void OnClosed(absl::Status) override {}
  std::unique_ptr<Link> link;

 private:
  Samples* const samples_;
};

[[noreturn]] void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  while (true) pause();
}

// Sizes and times in front, one byte back, as credit of one frame would be.
[[noreturn]] void ReceiveBareTcp(Samples* samples) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  CHECK_EQ(listen(listener, 1), 0);
  socklen_t size = sizeof address;
  CHECK_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int fd = accept(listener, nullptr, nullptr);
  SetNoDelay(fd);
  std::vector<char> payload(kThroughputBytes);
  uint64_t front[2];
  while (ReadAll(fd, reinterpret_cast<char*>(front), sizeof front)) {
    CHECK_LE(front[1], payload.size());
    if (!ReadAll(fd, payload.data(), front[1])) break;
    samples->Add(static_cast<int64_t>(front[0]));
    if (front[1] == kLatencyBytes) WriteAll(fd, "1", 1);
  }
  while (true) pause();
}

[[noreturn]] void Receive(const std::string& wire, Samples* samples, uint32_t credits) {
  if (wire == "tcp") ReceiveBareTcp(samples);
  if (wire == kGrpcTls) {
    const auto key = ClusterKey::FromText(getenv(kKeyVariable));
    CHECK_OK(key);
    Secure(*key);
  }
  Taker taker(samples);
  const auto accept = [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
    AcceptedLink accepted;
    accepted.hello.set_credits(credits);
    accepted.receiver = &taker;
    accepted.on_open = [&](std::unique_ptr<Link> link) { taker.link = std::move(link); };
    return accepted;
  };
  if (wire == "grpc" || wire == kGrpcTls) {
    GrpcServer server({}, accept);
    Say(server.address());
  }
  const std::unique_ptr<UcxLinks> links = StartUcx(wire);
  const auto ticket = links->Offer({}, accept);
  CHECK_OK(ticket);
  Say(absl::StrCat(ticket->address, " ", absl::BytesToHexString(ticket->token), " ",
                   absl::BytesToHexString(ticket->key)));
}

// --- the process that sends
// ------------------------------------------------------------------------

// Another process of this program; killed at the end.
class Other {
 public:
  Other(const std::string& wire, uint32_t credits) {
    char path[] = "/tmp/wire_bench.XXXXXX";
    close(mkstemp(path));
    samples = Map(path);
    int out[2];
    CHECK_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<std::string> words = {"wire_bench", "receive", wire, path, absl::StrCat(credits)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    CHECK_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE* said_file = fdopen(out[0], "r");
    char line[512] = "";
    CHECK(std::fgets(line, sizeof line, said_file) != nullptr);
    std::fclose(said_file);
    said = line;
    unlink(path);
  }
  ~Other() {
    Kill();
    munmap(samples, sizeof(Samples));
  }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void WaitForFrames(uint64_t n) const {
    while (samples->received.load(std::memory_order_acquire) < n) usleep(1000);
  }

  Samples* samples;
  std::string said;

 private:
  pid_t pid_ = 0;
};

class Sender : public Link::Receiver {
 public:
  void OnFrame(Frame) override {}
  void OnWritable() override {
    MutexLock lock(&mu_);
    writable_ = true;
    changed_.NotifyAll();
  }
  void OnClosed(absl::Status) override {
    MutexLock lock(&mu_);
    closed_ns_ = NowNs();
    changed_.NotifyAll();
  }
  void WaitForWritable() {
    MutexLock lock(&mu_);
    while (!writable_) changed_.Wait(&mu_);
    writable_ = false;
  }
  int64_t WaitForClosed() {
    MutexLock lock(&mu_);
    while (closed_ns_ == 0) changed_.Wait(&mu_);
    return closed_ns_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool writable_ ABSL_GUARDED_BY(mu_) = false;
  int64_t closed_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

// A link to another process, with the objects that it needs.
struct Way {
  Way(const std::string& wire, uint32_t credits) : other(wire, credits) {
    std::istringstream said(other.said);
    std::string address, token, key;
    said >> address >> token >> key;
    if (wire == "grpc" || wire == kGrpcTls) {
      DialOptions options;
      options.address = address;
      auto dialled = DialGrpcLink(options, &sender);
      CHECK_OK(dialled);
      link = *std::move(dialled);
      return;
    }
    ucx = StartUcx(wire);
    UcxDialOptions options;
    options.ticket.address = address;
    CHECK(absl::HexStringToBytes(token, &options.ticket.token));
    CHECK(absl::HexStringToBytes(key, &options.ticket.key));
    auto dialled = ucx->Dial(std::move(options), &sender);
    CHECK_OK(dialled);
    link = *std::move(dialled);
  }

  void Send(const Payload& payload) {
    while (true) {
      wire::Step step;
      step.set_step_id(static_cast<uint64_t>(NowNs()));
      const absl::Status sent = link->Send(MakeFrame(FrameType::kStep, step, payload));
      if (sent.ok()) return;
      CHECK(absl::IsResourceExhausted(sent)) << sent;
      sender.WaitForWritable();
    }
  }

  Other other;
  Sender sender;
  std::unique_ptr<UcxLinks> ucx;
  std::unique_ptr<Link> link;
};

Payload Activations(size_t bytes) {
  return Payload::Own(std::vector<float>(bytes / sizeof(float), 1.5f));
}

void PrintTimes(const Samples& samples, size_t n) {
  std::vector<int64_t> took(samples.took_ns + kWarmUp, samples.took_ns + kWarmUp + n);
  std::sort(took.begin(), took.end());
  std::printf(" %.1f | %.1f |", static_cast<double>(took[n / 2]) / 1e3,
              static_cast<double>(took[n * 99 / 100]) / 1e3);
}

void PrintRate(int64_t began_ns, int64_t ended_ns) {
  const double bytes = static_cast<double>(kThroughputFrames * kThroughputBytes);
  std::printf(" %.2f |", bytes / static_cast<double>(ended_ns - began_ns));
}

void MeasureBareTcp(size_t n) {
  Other other("tcp", 1);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
  CHECK(absl::SimpleAtoi(other.said, &port));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  SetNoDelay(fd);
  std::vector<char> payload(kThroughputBytes);
  const auto send_one = [&](size_t bytes) {
    uint64_t front[2] = {static_cast<uint64_t>(NowNs()), bytes};
    iovec parts[] = {{front, sizeof front}, {payload.data(), bytes}};
    ssize_t sent = writev(fd, parts, 2);
    CHECK_GE(sent, static_cast<ssize_t>(sizeof front));
    const size_t done = static_cast<size_t>(sent) - sizeof front;
    WriteAll(fd, payload.data() + done, bytes - done);
  };
  for (size_t i = 0; i < kWarmUp + n; ++i) {
    send_one(kLatencyBytes);
    char back;
    CHECK(ReadAll(fd, &back, 1));
  }
  std::printf("| tcp |");
  PrintTimes(*other.samples, n);
  const int64_t began = NowNs();
  for (size_t i = 0; i < kThroughputFrames; ++i) send_one(kThroughputBytes);
  other.WaitForFrames(kWarmUp + n + kThroughputFrames);
  PrintRate(began, other.samples->last_ns);
  std::printf(" |\n");
  close(fd);
}

void MeasureLink(const std::string& wire, size_t n) {
  std::printf("| %s |", wire.c_str());
  {
    Way way(wire, 1);
    const Payload payload = Activations(kLatencyBytes);
    for (size_t i = 0; i < kWarmUp + n; ++i) way.Send(payload);
    way.other.WaitForFrames(kWarmUp + n);
    PrintTimes(*way.other.samples, n);
  }
  {
    Way way(wire, kThroughputCredits);
    const Payload payload = Activations(kThroughputBytes);
    for (size_t i = 0; i < kWarmUp; ++i) way.Send(payload);
    way.other.WaitForFrames(kWarmUp);
    const int64_t began = NowNs();
    for (size_t i = 0; i < kThroughputFrames; ++i) way.Send(payload);
    way.other.WaitForFrames(kWarmUp + kThroughputFrames);
    PrintRate(began, way.other.samples->last_ns);
  }
  int64_t slowest_ns = 0;
  for (int i = 0; i < kKills; ++i) {
    Way way(wire, 1);
    const int64_t killed = NowNs();
    way.other.Kill();
    slowest_ns = std::max(slowest_ns, way.sender.WaitForClosed() - killed);
  }
  std::printf(" %.1f |\n", static_cast<double>(slowest_ns) / 1e6);
  std::fflush(stdout);
}

int Measure(size_t n, const std::vector<std::string>& wires) {
  CHECK_LE(kWarmUp + n, kFramesMax);
  std::printf(
      "| wire | 16 KiB one way, µs: p50 | p99 | 1 MiB frames, GB/s | killed peer noticed, ms (most "
      "of %d) |\n| --- | --- | --- | --- | --- |\n",
      kKills);
  for (const std::string& wire : wires) {
    if (std::ranges::find(kWires, wire) == std::end(kWires)) {
      std::fprintf(stderr, "wire_bench: no wire '%s'\n", wire.c_str());
      return 2;
    }
    if (wire == "tcp") {
      MeasureBareTcp(n);
      continue;
    }
    if (wire == kGrpcTls) {
      const auto key = ClusterKey::New();
      CHECK_OK(key);
      setenv(kKeyVariable, key->ToText().Reveal().c_str(), 1);
      Secure(*key);
    }
    MeasureLink(wire, n);
  }
  return 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "receive") == 0) {
    strata::Receive(argv[2], strata::Map(argv[3]), static_cast<uint32_t>(std::stoul(argv[4])));
  }
  std::vector<std::string> wires(std::begin(strata::kWires), std::end(strata::kWires));
  if (argc > 2) wires.assign(argv + 2, argv + argc);
  return strata::Measure(argc > 1 ? std::stoul(argv[1]) : 10'000, wires);
}
