// A node: one running `strata` process on one machine. It keeps its id, finds the other nodes of
// its cluster, offers the services wire.Cluster to them and wire.Node to the coordinator, and
// starts a worker for each device that gets a stage. It never calls libllama, so it outlives
// the crash of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/desired_state_file.h"
#include "coordinator/models/self_test_file.h"
#include "node/api/api_backend.h"
#include "node/api/api_tokens.h"
#include "node/api/cross_origin.h"
#include "node/api/http_api.h"
#include "node/base/data_dir.h"
#include "node/control/control_api.h"
#include "node/gateway/gateway.h"
#include "node/http/http_server.h"
#include "node/keys/node_security.h"
#include "node/measure/benchmarks.h"
#include "node/rpc/cluster_service.h"
#include "node/rpc/coordinator_service.h"
#include "node/rpc/doctor_service.h"
#include "node/rpc/key_service.h"
#include "node/rpc/node_service.h"
#include "node/workers/sleep_inhibitor.h"
#include "node/workers/stage_host.h"
#include "shard/serving/link_selector.h"
#include "shard/weights/weight_fetcher.h"
#include "shard/weights/weight_service.h"
#include "transport/base/event_loop.h"
#include "transport/base/peer_addresses.h"
#include "transport/rpc/request_log.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace strata {

class ListeningServer;

// Most threads of a node that answer calls which wait for something (plans, weights, the doctor):
// about twice the number of such calls that their own bounds allow. More calls are
// kResourceExhausted.
inline constexpr int kCallThreadsMax = 512;

struct NodeOptions {
  // host:port, all interfaces; workers listen on the same host. Port 0: the last one, if the data
  // dir has it and it is free, else any free one.
  std::string listen = "[::]:0";
  std::string name;  // empty: the machine's
  std::string cluster = "default";
  // [host:]port of the HTTP API; empty: none. A port that is taken is a warning.
  std::string http;
  bool http_any_port = false;  // if that port is taken, any other is used
  // [host:]port at which the HTTP API listens as well, for clients of Ollama: a port alone is on
  // the host of `http`; empty: none. A port that is taken is a warning.
  std::string ollama;
  bool any_model = false;        // requests for a model that is not loaded get the only one that is
  bool autoload = true;          // requests for a known model that is not loaded load it
  bool http_no_auth = false;     // no client needs a token, wherever it listens
  std::string http_certificate;  // PEM; the API then uses HTTPS; empty: HTTP
  std::string http_key;          // PEM, of that certificate
  BrowserPolicy browsers;        // of the HTTP API
  bool page = true;              // the HTTP API has a page, and the control API that it uses
  bool page_view_only = false;   // by which nobody changes the cluster
  std::vector<std::string> peers;  // host:port of nodes to look for, besides mDNS
  std::vector<std::string>
      advertise;  // host or host:port announced to others instead of the interfaces'
  bool mdns = true;
  bool measure = true;      // devices and links
  bool standby = false;     // it fetches the weights of layers that it would get ahead
  bool keep_awake = false;  // the machine does not sleep while its stages compute
  // A node of `strata demo`: takes all devices and all links for alike instead of measuring them,
  // and waits for no lease, since its id is new.
  bool in_demo = false;
  int64_t suspect_after_ms = 1'000;  // of silence
  int64_t gone_after_ms = 2'000;     // the same
  uint32_t n_threads = 0;            // for a worker; 0: the cores of the machine
  std::vector<std::string> devices;  // to use, as ParseDeviceLimits() takes them; empty: all
  std::vector<std::string> memory;   // most memory of each; the same
  std::string data_dir;              // empty: DataDir::Default()
  KeyOptions key;
  std::string key_from;             // a file with the key, where the data dir has none; empty: none
  bool ephemeral = false;           // an id that is not stored, no data dir
  std::vector<std::string> models;  // folders with models, besides those of other programs
  std::string cache_dir;            // fetched weights; empty: in the data dir, if there is one
  uint64_t cache_bytes_max = 0;     // 0: half of what is free on its disk
  // Of processed prompts in the data dir; 0: none; unset: KvBytesMaxOf() its disk.
  std::optional<uint64_t> kv_bytes_max;
  bool stop_with_parent = false;  // stop when stdin ends
  LinkSelectorOptions links;      // between its stages and others
  bool verbose = false;
  bool log_requests = false;  // from HTTP to every stage; with `verbose`, too
  LogFormat log_format = LogFormat::kText;
  std::string worker_program;  // empty: this program
  WorkerTimeouts timeouts;
};

// The identity of a node, and the lock by which it alone has it.
struct NodeIdentity {
  std::string id;
  std::string folder;               // where it stores files; empty: nowhere
  std::optional<DataDir> data_dir;  // that folder's
};

class Node {
 public:
  // Whether Start() would refuse the options, as far as they alone show it. kInvalidArgument.
  static absl::Status Check(const NodeOptions& options);

  // By the options --data-dir and --ephemeral. Errors are DataDir's.
  static absl::StatusOr<NodeIdentity> Identify(const NodeOptions& options);

  // `loop` outlives the node and is not running yet, or this is its thread. kInvalidArgument: an
  // option; kUnavailable: the address cannot be listened on; else an error of DataDir.
  // `security`, that of this process, outlives the node; null: everything is plain.
  static absl::StatusOr<std::unique_ptr<Node>> Start(EventLoop* loop, NodeOptions options,
                                                     NodeIdentity identity, NodeSecurity* security);

  // REQUIRES: the loop has ended.
  ~Node();

  const std::string& id() const { return id_; }
  const std::string& name() const { return name_; }
  // host:port at which others may reach it; the first of several.
  const std::string& address() const { return address_; }
  // "http://host:port" of its API; empty: none.
  const std::string& http_url() const { return http_url_; }
  // The same at the port for Ollama's clients.
  const std::string& ollama_url() const { return ollama_url_; }
  ClusterRuntime* cluster() { return cluster_.get(); }
  const WeightService& weights() const { return *weights_; }

  // Leaves the cluster, stops accepting, ends the calls in flight, stops the workers, then calls
  // `done`. Loop thread, once.
  void Shutdown(absl::AnyInvocable<void() &&> done);

 private:
  Node(EventLoop* loop, std::string name);
  void Leave(absl::AnyInvocable<void() &&> done);

  // Starts the server. kUnavailable: cannot listen there.
  absl::Status Listen(const HostPort& listen);
  // `folder`: where this node stores files; `self`: the address at which it reaches itself.
  absl::Status ListenHttp(const NodeOptions& options, const std::string& folder,
                          const std::string& self);
  // Serves the API for Ollama's clients, too. REQUIRES: `http` is that of http_, which listens.
  absl::Status ListenOllama(const HostPort& address, HttpServer::Options http);
  // Sets tokens_ if this node stores any. Returns what clients without a token may do.
  absl::StatusOr<ApiScopes> UseTokens(const NodeOptions& options, const std::string& folder,
                                      const std::string& host);
  // The control API, whose calls go to `address`, this node's own.
  std::unique_ptr<ControlApi> MakeControlApi(const NodeOptions& options, const std::string& folder,
                                             const std::string& address);

  EventLoop* const loop_;
  const std::string name_;
  std::optional<DataDir> data_dir_;
  std::string id_;
  std::string address_;
  std::unique_ptr<WeightService> weights_;
  std::unique_ptr<WeightFetcher> fetcher_;
  std::unique_ptr<SelfTestFile> self_tests_;
  std::unique_ptr<DesiredStateFile> desired_file_;  // null: the node stores nothing
  std::unique_ptr<KvReplicas> replicas_;
  std::unique_ptr<StageHost> host_;
  std::unique_ptr<ClusterRuntime> cluster_;
  std::unique_ptr<Benchmarks> benchmarks_;           // null: nothing is measured
  std::unique_ptr<SleepInhibitor> sleep_inhibitor_;  // null: the machine sleeps as it would
  std::unique_ptr<NodeService> service_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<grpc::Service> link_probe_;
  std::unique_ptr<ClusterService> cluster_service_;
  std::unique_ptr<DoctorService> doctor_;
  std::unique_ptr<CoordinatorService> coordinator_service_;
  std::unique_ptr<KeyService> key_service_;
  std::unique_ptr<ListeningServer> server_;
  std::string http_url_, ollama_url_;
  std::unique_ptr<ApiBackend> api_backend_;
  std::unique_ptr<HttpApi> api_;         // null: no HTTP
  std::unique_ptr<ControlApi> control_;  // null: none
  std::unique_ptr<ApiTokens> tokens_;    // the API's; null: this node stores none
  std::unique_ptr<HttpServer> http_;     // the same
  std::unique_ptr<HttpServer> ollama_;   // null: no port for Ollama's clients
  std::thread shutdown_;
};

// `strata node`: runs a node until SIGINT, SIGTERM or, if asked, the end of stdin. Prints one line
// of JSON to stdout when it listens:
// {"node":{"id":…,"name":…,"address":"host:port","http":…,"pid":…}}. Blocks.
absl::Status RunNode(const NodeOptions& options);

}  // namespace strata
