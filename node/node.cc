#include "node/node.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "nlohmann/json.hpp"
#include "node/child_process.h"
#include "node/machine.h"
#include "node/parent_watch.h"
#include "transport/grpc_link.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

constexpr size_t kNameBytesMax = 64;
// How long calls may take to end at shutdown before they are cut.
constexpr std::chrono::milliseconds kShutdownGrace(500);

// The host of "host:port", which others must be able to dial: it is what they are told.
absl::StatusOr<std::string> HostOf(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  const std::string host = listen.substr(0, colon);
  if (colon == std::string::npos || host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", listen, ": wants host:port, for example 192.168.1.7:0"));
  }
  if (host == "0.0.0.0" || host == "[::]" || host == "*") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen ", listen, ": wants the address that other nodes reach this one by"));
  }
  return host;
}

absl::Status CheckName(const std::string& name) {
  bool plain = !name.empty() && name.size() <= kNameBytesMax && ValidUtf8(name) == name;
  for (char c : name) plain = plain && !absl::ascii_iscntrl(static_cast<unsigned char>(c));
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--name: wants 1 to ", kNameBytesMax, " bytes of text"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> Node::Start(EventLoop* loop, NodeOptions options) {
  if (options.name.empty()) options.name = MachineName();
  if (absl::Status status = CheckName(options.name); !status.ok()) return status;
  absl::StatusOr<std::string> host = HostOf(options.listen);
  if (!host.ok()) return host.status();

  std::unique_ptr<Node> node(new Node(loop, options.name));
  if (options.ephemeral) {
    node->id_ = NewNodeId();
  } else {
    absl::StatusOr<std::string> path = options.data_dir;
    if (path->empty()) path = DataDir::Default();
    if (!path.ok()) return path.status();
    absl::StatusOr<DataDir> dir = DataDir::Open(*path);
    if (!dir.ok()) return dir.status();
    node->id_ = dir->node_id();
    node->data_dir_.emplace(*std::move(dir));
  }

  StageHost::Options stages;
  stages.node_name = options.name;
  stages.worker_program = options.worker_program.empty() ? OwnProgram() : options.worker_program;
  const uint32_t n_threads = options.n_threads == 0 ? MachineCores() : options.n_threads;
  stages.worker_args = {"strata",    "worker",
                        "--listen",  absl::StrCat(*host, ":0"),
                        "--threads", absl::StrCat(n_threads)};
  if (options.allow_mixed_versions) stages.worker_args.push_back("--allow-mixed-versions");
  if (options.verbose) stages.worker_args.push_back("--verbose");
  stages.timeouts = options.timeouts;
  stages.echo_stderr = options.verbose;
  node->host_ = std::make_unique<StageHost>(loop, std::move(stages));
  node->service_ = std::make_unique<NodeService>(
      loop, node->host_.get(), NodeService::Identity{.id = node->id_, .name = options.name});

  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  int port = 0;
  builder.AddListeningPort(options.listen, LinkServerCredentials(), &port);
  builder.RegisterService(node->service_.get());
  node->server_ = builder.BuildAndStart();
  if (node->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.listen));
  }
  node->address_ = absl::StrCat(*host, ":", port);
  return node;
}

Node::Node(EventLoop* loop, std::string name) : loop_(loop), name_(std::move(name)) {}

void Node::Shutdown(absl::AnyInvocable<void() &&> done) {
  CHECK(!shutdown_.joinable()) << "a node is shut down once";
  host_->StartShutdown();
  // Waits for calls whose ends the loop makes, so it cannot be on the loop.
  shutdown_ = std::thread([this, done = std::move(done)]() mutable {
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    loop_->Post(std::move(done));
  });
}

Node::~Node() {
  if (shutdown_.joinable()) {
    shutdown_.join();
  } else if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now());
  }
}

absl::Status RunNode(const NodeOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  absl::StatusOr<std::unique_ptr<Node>> node = Node::Start(loop.get(), options);
  if (!node.ok()) return node.status();

  bool stopping = false;
  const auto stop = [&] {
    if (!std::exchange(stopping, true)) (*node)->Shutdown([&] { loop->Stop(); });
  };
  std::unique_ptr<ParentWatch> watch;
  if (options.stop_with_parent) {
    watch = ParentWatch::Start(
        {.on_gone = [&] { loop->Post(stop); }, .hard_exit_after = absl::Seconds(5)});
  }
  std::vector<std::unique_ptr<EventLoop::Handle>> signals;
  for (int signum : {SIGINT, SIGTERM, SIGHUP}) {
    signals.push_back(loop->OnSignal(signum, [&, signum] {
      if (stopping && signum == SIGINT) _exit(130);  // workers see that, too
      stop();
    }));
  }

  const nlohmann::json ready = {{"node",
                                 {{"id", (*node)->id()},
                                  {"name", (*node)->name()},
                                  {"address", (*node)->address()},
                                  {"pid", getpid()}}}};
  const std::string line = ready.dump() + "\n";
  const bool told =
      fwrite(line.data(), 1, line.size(), stdout) == line.size() && fflush(stdout) == 0;
  if (told) {
    if (!options.stop_with_parent) {
      absl::FPrintF(stderr, "%s listens on %s. Ctrl-C stops it.\n", (*node)->name(),
                    (*node)->address());
    }
  } else {
    loop->Post(stop);  // nobody will know the address
  }
  loop->Run();
  node->reset();  // before the signals' watches: a second SIGTERM must not leave workers behind
  return told ? absl::OkStatus() : absl::UnavailableError("cannot write to stdout");
}

}  // namespace strata
