// Many streams at a time from one node: the time from when a token is known until its client has
// it. HTTP server, OpenAI's forms and sockets are real; tokens come from a clock instead of a
// cluster, those of several requests at a time as from a step's result.
//
//   sse_bench [STREAMS [TOKENS_PER_S [SECONDS [REQUESTS_IN_A_STEP]]]]
//
// The clients are one other process, which reads all streams on one thread.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/globals.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "node/api/completion_session.h"
#include "node/api/openai/openai_error.h"
#include "node/api/openai/openai_request.h"
#include "node/api/openai/openai_response.h"
#include "node/http/http_server.h"
#include "node/workers/child_process.h"
#include "tests/support/cpu_seconds.h"
#include "transport/base/own_program.h"

namespace strata {
namespace {

constexpr absl::Duration kLong = absl::Minutes(5);
constexpr int64_t kSettleNs = 500'000'000;  // from the last client's request to the first token
constexpr size_t kSequenceDigits = 6;
constexpr size_t kTimeDigits = 16;

struct Load {
  size_t streams = 500;
  double tokens_per_s = 20;  // of each stream
  double seconds = 10;
  size_t step_requests = 500;

  uint32_t tokens() const { return static_cast<uint32_t>(seconds * tokens_per_s); }
};

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void AllowDescriptors() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Generates the next token of every request, one step after another, at fixed times.
class ClockSource final : public GenerationSource {
 public:
  explicit ClockSource(const Load& load) : load_(load) {}

  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest&,
                                             std::shared_ptr<GenerationListener> sink,
                                             GenerateOptions) override {
    class NullHandle final : public GenerationHandle {
      void Cancel() override {}
      void Finish() override {}
    };
    sink->OnStarted({1, 2, 3});
    absl::MutexLock lock(mu_);
    sinks_.push_back(std::move(sink));
    return std::make_shared<NullHandle>();
  }

  // False: not all clients have connected.
  bool Run() {
    std::vector<std::shared_ptr<GenerationListener>> sinks;
    {
      absl::MutexLock lock(mu_);
      const auto all = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return sinks_.size() == load_.streams;
      };
      if (!mu_.AwaitWithTimeout(absl::Condition(&all), kLong)) return false;
      sinks = sinks_;
    }
    const int64_t begin = NowNs() + kSettleNs;
    const double period_ns = 1e9 / load_.tokens_per_s;
    for (uint32_t i = 0; i < load_.tokens(); ++i) {
      for (size_t first = 0; first < sinks.size(); first += load_.step_requests) {
        const double part = static_cast<double>(first) / static_cast<double>(sinks.size());
        const int64_t due = begin + static_cast<int64_t>(period_ns * (i + part));
        std::this_thread::sleep_for(std::chrono::nanoseconds(due - NowNs()));
        wire::SampledToken token;
        token.set_piece(absl::StrFormat("%0*d%0*d", kSequenceDigits, i, kTimeDigits, due));
        const size_t end = std::min(first + load_.step_requests, sinks.size());
        for (size_t request = first; request < end; ++request) sinks[request]->OnToken(token);
      }
    }
    for (const auto& sink : sinks) {
      sink->OnEnd(absl::OkStatus(), FinishReason::kLength, GenerationUsage());
    }
    return true;
  }

 private:
  const Load load_;
  absl::Mutex mu_;
  std::vector<std::shared_ptr<GenerationListener>> sinks_ ABSL_GUARDED_BY(mu_);
};

// One client, its socket and the bytes of an incomplete event.
struct Client {
  int fd = -1;
  std::string in;
  uint32_t next = 0;  // token
  bool done = false;
  bool wrong = false;
};

// Reads whole events.
void Read(Client* client, int64_t now_ns, std::vector<int64_t>* late_ns) {
  constexpr absl::string_view kText = "\"text\":\"";
  size_t from = 0;
  for (size_t end; (end = client->in.find("\n\n", from)) != std::string::npos; from = end + 2) {
    const absl::string_view event = absl::string_view(client->in).substr(from, end - from);
    if (event.find("data: [DONE]") != absl::string_view::npos) client->done = true;
    const size_t at = event.find(kText);
    if (at == absl::string_view::npos) continue;
    const absl::string_view piece = event.substr(at + kText.size());
    if (piece.substr(0, 1) == "\"") continue;  // the last event, which has the finish reason
    uint32_t sequence = 0;
    int64_t due = 0;
    if (!absl::SimpleAtoi(piece.substr(0, kSequenceDigits), &sequence) ||
        !absl::SimpleAtoi(piece.substr(kSequenceDigits, kTimeDigits), &due) ||
        sequence != client->next) {
      client->wrong = true;
    }
    ++client->next;
    late_ns->push_back(now_ns - due);
  }
  client->in.erase(0, from);
}

int RunClients(uint16_t port, const Load& load) {
  AllowDescriptors();
  std::vector<Client> clients(load.streams);
  std::vector<pollfd> polled;
  const std::string body = absl::StrCat(
      "{\"model\":\"m\",\"prompt\":\"p\",\"stream\":true,"
      "\"max_tokens\":",
      load.tokens(), "}");
  const std::string request = absl::StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
      "\r\n\r\n", body);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (Client& client : clients) {
    client.fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client.fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0 ||
        send(client.fd, request.data(), request.size(), 0) !=
            static_cast<ssize_t>(request.size())) {
      std::perror("a client cannot connect");
      return 1;
    }
    polled.push_back({.fd = client.fd, .events = POLLIN, .revents = 0});
  }
  std::vector<int64_t> late_ns;
  late_ns.reserve(load.streams * load.tokens());
  std::vector<char> bytes(65536);
  for (size_t open = clients.size(); open > 0;) {
    if (poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(kLong))) <=
        0) {
      break;
    }
    for (size_t i = 0; i < clients.size(); ++i) {
      if (polled[i].revents == 0) continue;
      Client& client = clients[i];
      const ssize_t n = recv(client.fd, bytes.data(), bytes.size(), 0);
      if (n > 0) {
        client.in.append(bytes.data(), static_cast<size_t>(n));
        Read(&client, NowNs(), &late_ns);
      }
      if (n <= 0 || client.done) {
        polled[i].fd = -1;
        --open;
      }
    }
  }
  size_t incomplete = 0, wrong = 0;
  for (const Client& client : clients) {
    if (!client.done || client.next != load.tokens()) ++incomplete;
    if (client.wrong) ++wrong;
    close(client.fd);
  }
  std::sort(late_ns.begin(), late_ns.end());
  const auto ms = [&late_ns](double share) {
    const auto at = static_cast<size_t>(share * static_cast<double>(late_ns.size()));
    return late_ns.empty() ? 0.0
                           : 1e-6 * static_cast<double>(late_ns[std::min(at, late_ns.size() - 1)]);
  };
  absl::PrintF("| %d | %d | %.0f | %d of %d | %d | %.2f | %.2f | %.2f | %.2f | %.2f |",
               load.streams, load.step_requests, load.tokens_per_s, late_ns.size(),
               load.streams * load.tokens(), incomplete + wrong, ms(0.5), ms(0.9), ms(0.99), ms(1),
               testing::CpuSeconds() / load.seconds);
  return incomplete + wrong == 0 ? 0 : 1;
}

int RunServer(const Load& load) {
  AllowDescriptors();
  ClockSource source(load);
  const auto counters = std::make_shared<ApiCounters>();  // shared with calls
  HttpServer::Options options;
  options.error = [](int status, const std::string& words) {
    return ErrorResponse(status, words, OpenAiError);
  };
  options.handler = [&](const HttpRequest& http, std::shared_ptr<HttpResponder> responder) {
    auto request = ParseCompletion(http.body);
    if (!request.ok()) {
      responder->Answer(ErrorResponse(request.status(), OpenAiError));
      return;
    }
    CompletionSession::Options call;
    call.writer = std::make_unique<OpenAiWriter>(ApiAnswer{
        .chat = false, .id = "cmpl-0123456789abcdef01234567", .created_s = 1, .model = "m"});
    call.request_id = http.id;
    call.client = http.client;
    call.tokens_max = request->tokens_max.value_or(1);
    call.request = *std::move(request);
    CompletionSession::Start(&source, std::move(call), std::move(responder), counters);
  };
  auto server = HttpServer::Start(std::move(options));
  if (!server.ok()) {
    absl::FPrintF(stderr, "%s\n", server.status().ToString());
    return 1;
  }
  ChildProcess::Options clients;
  clients.program = OwnProgram();
  clients.args = {"sse_bench",
                  "--clients",
                  absl::StrCat((*server)->port()),
                  absl::StrCat(load.streams),
                  absl::StrCat(load.tokens_per_s),
                  absl::StrCat(load.seconds),
                  absl::StrCat(load.step_requests)};
  std::string row;
  clients.on_stdout_line = [&row](absl::string_view line) { row = line; };
  clients.on_stderr_line = [](absl::string_view line) { absl::FPrintF(stderr, "%s\n", line); };
  auto child = ChildProcess::Start(std::move(clients));
  if (!child.ok()) {
    absl::FPrintF(stderr, "%s\n", child.status().ToString());
    return 1;
  }
  const bool ran = source.Run();
  const double cpu = testing::CpuSeconds() / load.seconds;
  if (!ran || !(*child)->WaitForExit(kLong)) return 1;
  absl::PrintF(
      "| streams | requests in a step | tokens/s each | tokens | incomplete streams | p50 ms "
      "| p90 ms | p99 ms | max ms | cores: clients | server |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n%s %.2f |\n",
      row, cpu);
  return (*child)->exit().code;
}

int Main(std::vector<std::string> args) {
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kWarning);
  uint32_t port = 0;
  const bool is_clients =
      args.size() > 1 && args[0] == "--clients" && absl::SimpleAtoi(args[1], &port);
  if (is_clients) args.erase(args.begin(), args.begin() + 2);
  Load load;
  const bool understood = (args.empty() || absl::SimpleAtoi(args[0], &load.streams)) &&
                          (args.size() < 2 || absl::SimpleAtod(args[1], &load.tokens_per_s)) &&
                          (args.size() < 3 || absl::SimpleAtod(args[2], &load.seconds));
  load.step_requests = load.streams;
  if (!understood || (args.size() >= 4 && !absl::SimpleAtoi(args[3], &load.step_requests)) ||
      args.size() > 4 || load.streams == 0 || load.step_requests == 0 || load.tokens() == 0) {
    absl::FPrintF(stderr,
                  "usage: sse_bench [STREAMS [TOKENS_PER_S [SECONDS [REQUESTS_IN_A_STEP]]]]\n");
    return 2;
  }
  return is_clients ? RunClients(static_cast<uint16_t>(port), load) : RunServer(load);
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) { return strata::Main({argv + 1, argv + argc}); }
