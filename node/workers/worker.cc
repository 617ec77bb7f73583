#include "node/workers/worker.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "node/base/process_setup.h"
#include "node/workers/child_process.h"
#include "node/workers/parent_watch.h"
#include "shard/device/memory.h"
#include "shard/worker/worker_service.h"
#include "transport/base/clock.h"
#include "transport/base/event_loop.h"
#include "transport/rpc/process_security.h"
#include "transport/security/tls_credentials.h"
#include "transport/ucx/ucx_link.h"

namespace strata {
namespace {

// The cluster's name in messages; the folder of certificates decides which cluster it is.
constexpr char kOfItsNode[] = "of the node";

}  // namespace

std::vector<std::string> LinkArgs(const LinkSelectorOptions& links) {
  std::vector<std::string> args;
  if (!links.ucx) args.push_back("--no-ucx");
  if (links.spin) args.push_back("--spin");
  if (links.allow_mixed_versions) args.push_back("--allow-mixed-versions");
  for (const std::string& interface : links.trusted_interfaces) {
    args.insert(args.end(), {"--trust-link", interface});
  }
  return args;
}

absl::Status RunWorker(const WorkerRunOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  PreferOomKill();
  UseOneHeap();
  if (options.links.trusted_interfaces.empty()) DisableUcxMemoryHooks();
  if (!options.open) {
    auto credentials = ClusterCredentials::Follow({.folder = options.tls_folder});
    if (!credentials.ok()) return credentials.status();
    SecureThisProcess(kOfItsNode, *std::move(credentials));
  }
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  // Destroyed after the server, whose end may hang in a step.
  const std::unique_ptr<ParentWatch> watch =
      ParentWatch::Start({.on_gone = [&loop] { loop->Stop(); }});
  std::vector<std::unique_ptr<EventLoop::Handle>> signals;
  for (int signum : EndSignals()) {
    signals.push_back(loop->OnSignal(signum, [&loop] { loop->Stop(); }));
  }
  absl::StatusOr<std::unique_ptr<WorkerServer>> server = WorkerServer::Start(
      {.listen = options.listen, .n_threads = options.n_threads, .wires = options.links},
      Clock::Real());
  if (!server.ok()) return server.status();

  const nlohmann::json ready = {{"worker", {{"address", (*server)->address()}, {"pid", getpid()}}}};
  printf("%s\n", ready.dump().c_str());
  fflush(stdout);
  loop->Run();
  server->reset();
  signals.clear();
  // A node may ask to stop more than once; a later signal must not look like a crash.
  for (int signum : {SIGINT, SIGTERM, SIGHUP}) signal(signum, SIG_IGN);
  return absl::OkStatus();
}

}  // namespace strata
