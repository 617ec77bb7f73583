// A node: one running `strata` process on one machine. It keeps its id, finds the other nodes of
// its cluster, offers the services wire.Cluster to them and wire.Node to the coordinator, and
// starts a worker for each device that gets a stage. It never calls libllama, so it outlives
// whatever a model does.
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
#include "coordinator/models/self_test_file.h"
#include "node/api/api_tokens.h"
#include "node/api/openai/openai_api.h"
#include "node/base/data_dir.h"
#include "node/gateway/gateway.h"
#include "node/http/http_server.h"
#include "node/keys/node_security.h"
#include "node/measure/benchmarks.h"
#include "node/rpc/cluster_service.h"
#include "node/rpc/coordinator_service.h"
#include "node/rpc/doctor_service.h"
#include "node/rpc/key_service.h"
#include "node/rpc/node_service.h"
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

// Threads of a node that answer calls which wait for something (plans, weights, the doctor), at
// most: about twice as many as such calls there can be by bounds of their own. More calls are
// kResourceExhausted.
inline constexpr int kCallThreadsMax = 512;

struct NodeOptions {
  // host:port, all interfaces; workers listen on the same host. Port 0: that of last time, if the
  // data dir tells and it is free, else any free one.
  std::string listen = "[::]:0";
  std::string name;  // empty: the machine's
  std::string cluster = "default";
  // [host:]port of the HTTP API; empty: none. A port that is taken is a warning.
  std::string http;
  bool http_any_port = false;                // where that port is taken, any other will do
  bool http_no_auth = false;                 // nobody needs a token, wherever it listens
  std::string http_certificate;              // PEM; the API speaks HTTPS by it; empty: HTTP
  std::string http_key;                      // PEM, of that certificate
  std::vector<std::string> allowed_origins;  // of pages in browsers that may use the HTTP API
  std::vector<std::string> peers;            // host:port of nodes to look for, besides mDNS
  std::vector<std::string>
      advertise;  // host or host:port told to others instead of the interfaces'
  bool mdns = true;
  bool measure = true;               // devices and links
  int64_t suspect_after_ms = 1'000;  // of silence
  int64_t gone_after_ms = 2'000;     // the same
  uint32_t n_threads = 0;            // for a worker; 0: the cores of the machine
  std::vector<std::string> devices;  // offered, as ParseDeviceOffer() takes them; empty: all
  std::vector<std::string> memory;   // of them, at most; the same
  std::string data_dir;              // empty: DataDir::Default()
  KeyOptions key;
  bool ephemeral = false;         // an id that is not kept, no data dir
  std::string cache_dir;          // fetched weights; empty: in the data dir, if there is one
  uint64_t cache_bytes_max = 0;   // 0: half of what is free on its disk
  bool stop_with_parent = false;  // stop when stdin ends
  LinkSelectorOptions wires;      // how its stages link with others
  bool verbose = false;
  bool log_requests = false;  // from HTTP to every stage; with `verbose`, too
  LogFormat log_format = LogFormat::kText;
  std::string worker_program;  // empty: this program
  WorkerTimeouts timeouts;
};

// Who a node is, and the lock that it is that alone.
struct NodeIdentity {
  std::string id;
  std::string folder;               // where it keeps things; empty: nowhere
  std::optional<DataDir> data_dir;  // that folder's
};

class Node {
 public:
  // Of the options --data-dir and --ephemeral. Errors are DataDir's.
  static absl::StatusOr<NodeIdentity> Identify(const NodeOptions& options);

  // `loop` outlives the node and is not running yet, or this is its thread. kInvalidArgument: an
  // option; kUnavailable: the address cannot be listened on; else what DataDir says.
  // `security`, that of this process, outlives the node; null: everything is plain.
  static absl::StatusOr<std::unique_ptr<Node>> Start(EventLoop* loop, NodeOptions options,
                                                     NodeIdentity identity, NodeSecurity* security);

  // After the loop has run.
  ~Node();

  const std::string& id() const { return id_; }
  const std::string& name() const { return name_; }
  // host:port by which others may reach it; the first of several.
  const std::string& address() const { return address_; }
  // "http://host:port" of its API; empty: none.
  const std::string& http_url() const { return http_url_; }
  ClusterRuntime* cluster() { return cluster_.get(); }
  const WeightService& weights() const { return *weights_; }

  // Says good-bye to the cluster, stops accepting, ends the calls under way, stops the workers,
  // then calls `done`. Loop thread, once.
  void Shutdown(absl::AnyInvocable<void() &&> done);

 private:
  Node(EventLoop* loop, std::string name);
  void Leave(absl::AnyInvocable<void() &&> done);

  // Starts the server. kUnavailable: it cannot listen there.
  absl::Status Listen(const HostPort& listen);
  // `folder`: where this node keeps things.
  absl::Status ListenHttp(const NodeOptions& options, const std::string& folder);
  // Sets tokens_ where the API listens for others.
  absl::Status UseTokens(const NodeOptions& options, const std::string& folder,
                         const std::string& host);

  EventLoop* const loop_;
  const std::string name_;
  std::optional<DataDir> data_dir_;
  std::string id_;
  std::string address_;
  std::unique_ptr<WeightService> weights_;
  std::unique_ptr<WeightFetcher> fetcher_;
  std::unique_ptr<SelfTestFile> self_tests_;
  std::unique_ptr<StageHost> host_;
  std::unique_ptr<ClusterRuntime> cluster_;
  std::unique_ptr<Benchmarks> benchmarks_;  // null: nothing is measured
  std::unique_ptr<NodeService> service_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<grpc::Service> link_probe_;
  std::unique_ptr<ClusterService> cluster_service_;
  std::unique_ptr<DoctorService> doctor_;
  std::unique_ptr<CoordinatorService> coordinator_service_;
  std::unique_ptr<KeyService> key_service_;
  std::unique_ptr<ListeningServer> server_;
  std::string http_url_;
  std::unique_ptr<OpenAiApi> api_;     // null: no HTTP
  std::unique_ptr<ApiTokens> tokens_;  // the API's; null: everybody may use it
  std::unique_ptr<HttpServer> http_;   // the same
  std::thread shutdown_;
};

// `strata node`: runs a node until SIGINT, SIGTERM or, if asked, the end of stdin. Prints one line
// of JSON to stdout when it listens:
// {"node":{"id":…,"name":…,"address":"host:port","http":…,"pid":…}}. Blocks.
absl::Status RunNode(const NodeOptions& options);

}  // namespace strata
