#include "node/daemon/node.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "nlohmann/json.hpp"
#include "node/api/anthropic/anthropic_routes.h"
#include "node/api/api_token_file.h"
#include "node/api/cross_origin.h"
#include "node/api/gemini/gemini_routes.h"
#include "node/api/llama/llama_routes.h"
#include "node/api/ollama/ollama_routes.h"
#include "node/api/openai/openai_error.h"
#include "node/api/openai/openai_routes.h"
#include "node/api/responses/responses_routes.h"
#include "node/base/exit_code.h"
#include "node/base/machine.h"
#include "node/base/process_setup.h"
#include "node/base/service_manager.h"
#include "node/base/standard_output.h"
#include "node/client/coordinator_client.h"
#include "node/http/http_tls.h"
#include "node/hub/hub_client.h"
#include "node/hub/local_models.h"
#include "node/keys/cluster_join.h"
#include "node/keys/key_file.h"
#include "node/web/page_routes.h"
#include "node/workers/device_limits.h"
#include "node/workers/parent_watch.h"
#include "node/workers/worker.h"
#include "shard/device/memory.h"
#include "shard/kv_transfer/kv_replicas.h"
#include "transport/base/clock.h"
#include "transport/base/node_id.h"
#include "transport/base/own_program.h"
#include "transport/base/printable_text.h"
#include "transport/base/version.h"
#include "transport/base/wall_clock.h"
#include "transport/link/link_probe.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/listening_server.h"
#include "transport/rpc/process_security.h"
#include "transport/security/trusted_networks.h"

namespace strata {
namespace {

constexpr size_t kNameBytesMax = 64;
// Of what a node keeps of processed prompts, the part that is for those of other nodes' stages.
constexpr uint64_t kReplicasPart = 4;
// How long calls may take to end at shutdown before they are cancelled.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

absl::StatusOr<HostPort> ParseOption(absl::string_view option, const std::string& value) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(value);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(option, " ", parsed.status().message()));
  }
  return parsed;
}

// --kv-cache-disk by default: a tenth of what is free on the folder's disk, at most 16 GB.
uint64_t KvBytesMaxOf(const std::string& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  return error ? 0 : std::min<uint64_t>(space.available / 10, 16'000'000'000);
}

// --http: a port alone is of this machine's loopback interface.
absl::StatusOr<HostPort> ParseHttp(const std::string& value) {
  if (auto port = ParseHostPort(absl::StrCat("127.0.0.1:", value)); port.ok()) return port;
  return ParseOption("--http", value);
}

// --ollama: a port alone is on the host of --http.
absl::StatusOr<HostPort> ParseOllama(const NodeOptions& options) {
  const absl::StatusOr<HostPort> http = ParseHttp(options.http);
  if (!http.ok()) return http.status();
  if (auto port = ParseHostPort(absl::StrCat("127.0.0.1:", options.ollama)); port.ok()) {
    return HostPort{http->host, port->port};
  }
  return ParseOption("--ollama", options.ollama);
}

// The address at which programs on this machine reach a server that listens at `listen`.
std::string LocalAddress(const HostPort& listen) {
  return JoinHostPort(IsAnyHost(listen.host) ? "127.0.0.1" : listen.host, listen.port);
}

// Hosts without a port get the port listened on.
absl::StatusOr<std::vector<std::string>> ParseAdvertised(const std::vector<std::string>& values,
                                                         uint16_t port) {
  std::vector<std::string> addresses;
  for (const std::string& value : values) {
    absl::StatusOr<HostPort> parsed = ParseHostPort(value);
    if (!parsed.ok()) parsed = ParseHostPort(JoinHostPort(value, port));
    if (parsed.ok()) addresses.push_back(JoinHostPort(parsed->host, parsed->port));
    if (!parsed.ok() || !IsDialable(addresses.back())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--advertise ", value, ": give an address or a full host name, with or without a port"));
    }
  }
  return addresses;
}

nlohmann::json HttpJson(const std::string& url) {
  if (url.empty()) return nullptr;
  return url;
}

absl::Status CheckName(absl::string_view option, const std::string& name) {
  if (!name.empty() && name.size() <= kNameBytesMax && IsPrintable(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": must be 1 to ", kNameBytesMax,
                                                 " bytes of text without invisible characters"));
}

}  // namespace

absl::Status Node::Check(const NodeOptions& options) {
  if (absl::Status s = CheckName("--name", options.name.empty() ? MachineName() : options.name);
      !s.ok()) {
    return s;
  }
  if (absl::Status s = CheckName("--cluster", options.cluster); !s.ok()) return s;
  const auto listen = ParseOption("--listen", options.listen);
  if (!listen.ok()) return listen.status();
  for (const std::string& peer : options.peers) {
    if (auto parsed = ParseOption("--peer", peer); !parsed.ok()) return parsed.status();
  }
  if (auto s = CheckInterfaces(options.links.trusted_interfaces); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--trust-link: ", s.message()));
  }
  if (options.suspect_after_ms > options.gone_after_ms) {
    return absl::InvalidArgumentError("--suspect-after: must not be more than --gone-after");
  }
  if (options.peers.size() > kStaticPeersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--peer: may be given ", kStaticPeersMax,
                     " times at most; a node learns of the others from its peers"));
  }
  if (auto limits = ParseDeviceLimits(options.devices, options.memory); !limits.ok()) {
    return limits.status();
  }
  if (auto advertised = ParseAdvertised(options.advertise, listen->port); !advertised.ok()) {
    return advertised.status();
  }
  if (options.http.empty()) return absl::OkStatus();
  if (auto http = ParseHttp(options.http); !http.ok()) return http.status();
  if (!options.ollama.empty()) {
    if (auto ollama = ParseOllama(options); !ollama.ok()) return ollama.status();
  }
  return CheckPolicy(options.browsers);
}

absl::StatusOr<NodeIdentity> Node::Identify(const NodeOptions& options) {
  NodeIdentity identity;
  if (options.ephemeral) {
    identity.id = NewNodeId();
    return identity;
  }
  absl::StatusOr<std::string> path = DataDir::PathOf(options.data_dir);
  if (!path.ok()) return path.status();
  absl::StatusOr<DataDir> dir = DataDir::Open(*path);
  if (!dir.ok()) return dir.status();
  identity.id = dir->node_id();
  identity.folder = *std::move(path);
  identity.data_dir.emplace(*std::move(dir));
  return identity;
}

absl::StatusOr<std::unique_ptr<Node>> Node::Start(EventLoop* loop, NodeOptions options,
                                                  NodeIdentity identity, NodeSecurity* security) {
  if (options.name.empty()) options.name = MachineName();
  if (absl::Status status = Check(options); !status.ok()) return status;
  absl::StatusOr<HostPort> listen = ParseOption("--listen", options.listen);
  if (!listen.ok()) return listen.status();
  const absl::StatusOr<DeviceLimits> limits = ParseDeviceLimits(options.devices, options.memory);
  if (!limits.ok()) return limits.status();

  std::unique_ptr<Node> node(new Node(loop, options.name));
  std::string hashes_dir, devices_path, data_dir, self_tests_path;
  node->id_ = identity.id;
  if (identity.data_dir.has_value()) {
    node->data_dir_.emplace(*std::move(identity.data_dir));
    hashes_dir = identity.folder + "/hashes";
    devices_path = identity.folder + "/devices";
    self_tests_path = identity.folder + "/self_tests";
    data_dir = identity.folder;
    if (options.cache_dir.empty()) options.cache_dir = identity.folder + "/weights";
  }
  std::shared_ptr<WeightCache> cache;  // shared by the service, the fetcher and its leases
  if (!options.cache_dir.empty()) {
    auto opened =
        WeightCache::Open({.folder = options.cache_dir, .bytes_max = options.cache_bytes_max});
    if (!opened.ok()) return opened.status();
    cache = *std::move(opened);
  }
  node->weights_ = std::make_unique<WeightService>(
      hashes_dir, cache,
      [node = node.get()](const std::string& id) { return node->fetcher_->ServerOf(id); });
  node->fetcher_ = std::make_unique<WeightFetcher>(
      std::move(cache),
      [hub = HubOptionsFromEnvironment()](const std::string& url) { return TokenFor(hub, url); });

  absl::StatusOr<NodeId> id = NodeId::FromHex(node->id_);
  if (!id.ok()) return id.status();
  ClusterRuntime::Options cluster;
  cluster.self = {
      .id = *id,
      // The first one of an id waits for no lease (membership.cc).
      .boot = options.in_demo ? 1 : static_cast<uint64_t>(absl::ToUnixMicros(WallNow())),
      .name = PrintableText::From(options.name),
      .cluster = PrintableText::From(options.cluster),
      .protocol = LocalVersions().protocol(),
      .strata = PrintableText::From(LocalVersions().strata()),
      .llama = PrintableText::From(LocalVersions().llama()),
      .ggml = PrintableText::From(LocalVersions().ggml()),
      .nonce = NewNonce()};
  if (!identity.folder.empty()) cluster.id_file = identity.folder + "/node_id";
  if (security != nullptr) cluster.key_id = security->cluster_id();
  cluster.peers = options.peers;
  if (!options.mdns) cluster.discovery = nullptr;
  cluster.membership.suspect_after_ms = options.suspect_after_ms;
  cluster.membership.gone_after_ms = options.gone_after_ms;
  node->cluster_ = std::make_unique<ClusterRuntime>(loop, SleeplessClock(), std::move(cluster),
                                                    PeerTransport::Grpc(loop));
  node->self_tests_ = std::make_unique<SelfTestFile>(std::move(self_tests_path));
  if (!identity.folder.empty()) {
    node->desired_file_ = std::make_unique<DesiredStateFile>(identity.folder + "/desired_state",
                                                             node->cluster_->OwnerLine());
  }
  StageHost::Options stages;
  stages.node_id = node->id_;
  stages.self_tests = node->self_tests_.get();
  stages.node_name = options.name;
  stages.file_key = [weights = node->weights_.get()](const std::string& path) {
    return weights->FileKeyOf(path);
  };
  stages.worker_program = options.worker_program.empty() ? OwnProgram() : options.worker_program;
  const uint32_t n_threads = options.n_threads == 0 ? MachineCores() : options.n_threads;
  stages.worker_args = {"strata",    "worker",
                        "--listen",  JoinHostPort(ListenHost(listen->host), 0),
                        "--threads", absl::StrCat(n_threads)};
  if (security == nullptr) {
    stages.worker_args.push_back("--open");
  } else {
    stages.worker_args.insert(stages.worker_args.end(), {"--tls-dir", security->folder()});
  }
  for (std::string& arg : LinkArgs(options.links)) stages.worker_args.push_back(std::move(arg));
  if (options.verbose) stages.worker_args.push_back("--verbose");
  if (options.log_requests || options.verbose) stages.worker_args.push_back("--log-requests");
  if (options.log_format == LogFormat::kJson) {
    stages.worker_args.insert(stages.worker_args.end(), {"--log-format", "json"});
  }
  stages.timeouts = options.timeouts;
  stages.echo_stderr = options.verbose;
  stages.fetcher = node->fetcher_.get();
  stages.standby = options.standby;
  stages.limits = *limits;
  if (!data_dir.empty()) {
    stages.kv_folder = KvFolderPath(data_dir);
    stages.kv_bytes_max = options.kv_bytes_max.value_or(KvBytesMaxOf(data_dir));
  }
  const std::string kv_folder = stages.kv_folder;
  const uint64_t kv_bytes_max = stages.kv_bytes_max;
  const uint64_t replica_bytes_max = kv_bytes_max / kReplicasPart;
  stages.kv_bytes_max -= replica_bytes_max;
  node->replicas_ = KvReplicas::Start(
      {.folder = kv_folder, .bytes_max = replica_bytes_max, .all_bytes_max = kv_bytes_max});
  stages.on_load = [replicas = node->replicas_.get()](const wire::StageSpec& spec, bool begins) {
    if (begins) {
      replicas->BeginLoad(spec.model_id(), spec.layers());
    } else {
      replicas->EndLoad(spec.model_id(), spec.layers());
    }
  };
  node->host_ = std::make_unique<StageHost>(loop, std::move(stages));
  if (options.keep_awake) {
    node->sleep_inhibitor_ = std::make_unique<SleepInhibitor>(loop, [host = node->host_.get()] {
      uint64_t steps = 0;
      for (const wire::StageStatus& stage : host->Stages()) steps += stage.steps_done();
      return steps;
    });
  }
  if (options.measure) {
    node->benchmarks_ =
        std::make_unique<Benchmarks>(loop,
                                     Benchmarks::Options{.program = OwnProgram(),
                                                         .cache_path = devices_path,
                                                         .n_threads = n_threads,
                                                         .presumes = options.in_demo,
                                                         .limits = *limits},
                                     node->cluster_.get(), node->host_.get());
  }
  node->link_probe_ = MakeLinkProbeService();
  node->cluster_service_ =
      std::make_unique<ClusterService>(loop, node->cluster_.get(), node->benchmarks_.get());
  node->doctor_ = std::make_unique<DoctorService>(
      loop, node->cluster_.get(),
      DoctorService::Options{.listen_host = ListenHost(listen->host),
                             .data_dir = data_dir,
                             .program = options.measure ? OwnProgram() : ""});
  ModelFolders models = ModelFoldersFromEnvironment();
  models.others = options.models;
  for (const std::string& folder : options.models) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) {
      LOG(WARNING) << "--models " << PrintableText::OfPath(folder) << ": no such folder is there";
    }
  }
  node->service_ = std::make_unique<NodeService>(
      loop, node->host_.get(), node->benchmarks_.get(), node->self_tests_.get(),
      NodeService::Identity{.id = node->id_,
                            .name = options.name,
                            .models = std::move(models),
                            .data_dir = data_dir,
                            .kv_folder = kv_folder,
                            .kv_bytes_max = kv_bytes_max,
                            .replicas = node->replicas_.get()},
      [cluster = node->cluster_.get(), local = LocalAddress(*listen)](const std::string& other) {
        const absl::StatusOr<NodeId> parsed = NodeId::FromHex(other);
        if (!parsed.ok()) return std::string();
        return *parsed == cluster->id() ? local : cluster->AddressOf(*parsed);
      },
      [made = node.get()] { return made->coordinator_->Problems(); });

  node->coordinator_ = std::make_unique<Coordinator>(
      loop, node->cluster_.get(), node->fetcher_.get(),
      Coordinator::Options{.node_id = node->id_,
                           .listen_host = absl::StrContains(ListenHost(listen->host), ':')
                                              ? absl::StrCat("[", ListenHost(listen->host), "]")
                                              : ListenHost(listen->host),
                           .self_tests = node->self_tests_.get(),
                           .desired_file = node->desired_file_.get(),
                           .on_more_work = [host = node->host_.get()] { host->WatchWorkers(); },
                           .own_report =
                               [self = node->service_.get(), sees = node->cluster_service_.get()] {
                                 return OwnReport{.info = self->Info(), .cluster = sees->Cluster()};
                               }});
  node->gateway_ = std::make_unique<Gateway>(loop, node->cluster_.get(), node->coordinator_.get(),
                                             Gateway::Options());
  node->coordinator_service_ =
      std::make_unique<CoordinatorService>(node->coordinator_.get(), node->gateway_.get(),
                                           CoordinatorService::Options{.node_id = node->id_});

  node->key_service_ = std::make_unique<KeyService>(loop, node->cluster_.get(), security);

  // People may have given the last port to other nodes (--peer).
  const uint16_t last_port =
      listen->port == 0 && node->data_dir_ ? node->data_dir_->last_port() : 0;
  if (last_port == 0 || !node->Listen({listen->host, last_port}).ok()) {
    if (absl::Status status = node->Listen(*listen); !status.ok()) return status;
  }
  const uint16_t port = node->server_->port();
  if (last_port != 0 && port != last_port) {
    LOG(WARNING) << "port " << last_port << ", which this node used before, is taken; it uses port "
                 << port << " now";
  }
  listen->port = port;
  absl::StatusOr<std::vector<std::string>> advertise =
      ParseAdvertised(options.advertise, listen->port);
  if (!advertise.ok()) return advertise.status();
  if (node->data_dir_.has_value()) {
    if (absl::Status status = node->data_dir_->WriteAddress(LocalAddress(*listen)); !status.ok()) {
      return status;
    }
  }
  node->gateway_->Start(LocalAddress(*listen));
  if (absl::Status status = node->ListenHttp(options, identity.folder, LocalAddress(*listen));
      !status.ok()) {
    return status;
  }
  if (node->data_dir_.has_value()) {
    const std::string& url = node->http_url_;
    if (absl::Status status = node->data_dir_->WritePageUrl(options.page ? url : "");
        !status.ok()) {
      return status;
    }
  }
  node->coordinator_->Start(LocalAddress(*listen));
  node->cluster_->Start({.address = *listen, .advertise = *std::move(advertise)});
  const std::vector<std::string>& addresses = node->cluster_->own_addresses();
  node->address_ = addresses.empty() ? LocalAddress(*listen) : addresses.front();
  return node;
}

Node::Node(EventLoop* loop, std::string name) : loop_(loop), name_(std::move(name)) {}

absl::Status Node::Listen(const HostPort& listen) {
  grpc::ServerBuilder builder;
  ConfigureServer(&builder, MessageSizes::kRequests);
  grpc::ResourceQuota quota("calls");
  builder.SetResourceQuota(quota.SetMaxThreads(kCallThreadsMax));
  builder.RegisterService(service_.get());
  builder.RegisterService(weights_.get());
  builder.RegisterService(cluster_service_.get());
  builder.RegisterService(coordinator_service_.get());
  builder.RegisterService(link_probe_.get());
  builder.RegisterService(doctor_.get());
  builder.RegisterService(key_service_.get());
  auto server =
      ListeningServer::Start({.address = JoinHostPort(ListenHost(listen.host), listen.port),
                              .credentials = ProcessServerCredentials()},
                             &builder);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return absl::OkStatus();
}

absl::StatusOr<ApiScopes> Node::UseTokens(const NodeOptions& options, const std::string& folder,
                                          const std::string& host) {
  const std::string path = ApiTokenFilePath(folder);
  if (!folder.empty()) tokens_ = std::make_unique<ApiTokens>(path, Clock::Real());
  // No other user or program of this machine commands the cluster.
  const ApiScopes open = {.chat = true, .view = true};
  if (IsLoopbackHost(host)) return open;
  if (options.http_no_auth) {
    LOG(WARNING) << "anybody who can connect to " << host
                 << " may use the HTTP API: no token is needed (--no-auth)";
    return open;
  }
  if (options.ephemeral) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http or --ollama at ", host,
                     ": clients need a token there, and an ephemeral node stores none; with "
                     "--no-auth nobody needs one"));
  }
  const auto tokens = ReadApiTokens(path);
  if (!tokens.ok()) return tokens.status();
  if (tokens->empty()) {
    LOG(WARNING) << "no client can use the HTTP API yet: make a token with strata token new NAME";
  }
  return ApiScopes();
}

std::unique_ptr<ControlApi> Node::MakeControlApi(const NodeOptions& options,
                                                 const std::string& folder,
                                                 const std::string& address) {
  ControlApi::Options control = {
      .node = {.id = id_,
               .name = name_,
               .address = address,
               .data_dir = folder,
               .key = options.key,
               .on_files_changed = [service = service_.get()] { service->ForgetLocalModels(); }},
      .view_only = options.page_view_only};
  control.feed.origin = NewNodeId();
  control.feed.fetch = [this]() -> absl::StatusOr<ClusterState> {
    auto report = coordinator_->Report();
    if (!report.ok()) return report.status();
    ClusterState state = {.report = *std::move(report), .models = std::vector<wire::ModelStatus>()};
    absl::Notification listed;
    gateway_->ListModels(absl::Milliseconds(500), [&](const absl::StatusOr<Gateway::Models>& list) {
      if (list.ok()) {
        state.models = **list;
      } else {
        state.models = list.status();
      }
      listed.Notify();
    });
    listed.WaitForNotification();
    return state;
  };
  return std::make_unique<ControlApi>(std::move(control));
}

absl::Status Node::ListenHttp(const NodeOptions& options, const std::string& folder,
                              const std::string& self) {
  if (options.http.empty()) return absl::OkStatus();
  const absl::StatusOr<HostPort> address = ParseHttp(options.http);
  if (!address.ok()) return address.status();
  std::optional<HostPort> ollama;
  if (!options.ollama.empty()) {
    const absl::StatusOr<HostPort> parsed = ParseOllama(options);
    if (!parsed.ok()) return parsed.status();
    ollama = *parsed;
  }
  const bool is_wider = ollama && IsLoopbackHost(address->host);  // perhaps
  const absl::StatusOr<ApiScopes> open =
      UseTokens(options, folder, is_wider ? ollama->host : address->host);
  if (!open.ok()) return open.status();
  auto backend = std::make_unique<ApiBackend>(
      gateway_.get(), TemplatePool::Options{.program = options.worker_program},
      ModelNaming{.any_model = options.any_model, .loads_known = options.autoload});
  ApiRoutes routes;
  for (ApiRoutes& dialect : std::array{OpenAiRoutes(backend.get()), ResponsesRoutes(backend.get()),
                                       AnthropicRoutes(backend.get()), OllamaRoutes(backend.get()),
                                       LlamaRoutes(backend.get()), GeminiRoutes(backend.get())}) {
    std::ranges::move(dialect, std::back_inserter(routes));
  }
  std::unique_ptr<ControlApi> control;
  if (options.page) {
    control = MakeControlApi(options, folder, self);
    std::ranges::move(control->Routes(), std::back_inserter(routes));
    std::ranges::move(PageRoutes(PageFiles()), std::back_inserter(routes));
  }
  BrowserPolicy browsers = options.browsers;
  for (const char* domain : {"", ".local"}) {
    browsers.hosts.push_back(absl::StrCat(MachineName(), domain));
  }
  auto api = std::make_unique<HttpApi>(
      backend.get(), coordinator_.get(),
      HttpApi::Options{.node_id = id_,
                       .node_name = name_,
                       .tokens = tokens_.get(),
                       .open = *open,
                       .error_form = OpenAiError,
                       .browsers = std::move(browsers)},
      std::move(routes), [this](HttpApi::OnStages then) {
        loop_->Post([this, then = std::move(then)]() mutable { std::move(then)(host_->Stages()); });
      });
  HttpServer::Options http;
  if (!options.http_certificate.empty() || !options.http_key.empty()) {
    auto tls = HttpTls::Load({.certificate = options.http_certificate, .key = options.http_key},
                             WallNow());
    if (!tls.ok()) return tls.status();
    http.tls = *std::move(tls);
  }
  http.host = address->host;
  http.port = address->port;
  http.handler = [api = api.get()](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    api->Handle(std::move(request), std::move(responder));
  };
  http.error = [](int status, const std::string& message) {
    return ErrorResponse(status, message, OpenAiError);
  };
  auto server = HttpServer::Start(http);
  if (absl::IsUnavailable(server.status()) && options.http_any_port) {
    http.port = 0;
    server = HttpServer::Start(http);
    if (server.ok()) {
      LOG(WARNING) << "port " << address->port << " is taken; the HTTP API uses port "
                   << (*server)->port() << " (--http chooses one)";
    }
  }
  if (absl::IsInvalidArgument(server.status())) return server.status();
  if (!server.ok()) {
    LOG(WARNING) << "no HTTP API: " << server.status().message();
    return absl::OkStatus();
  }
  api_backend_ = std::move(backend);
  api_ = std::move(api);
  control_ = std::move(control);
  http_ = *std::move(server);
  api_->SetServer(http_.get());
  http_url_ = absl::StrCat(http.tls == nullptr ? "http://" : "https://",
                           LocalAddress({address->host, http_->port()}));
  return ollama ? ListenOllama(*ollama, std::move(http)) : absl::OkStatus();
}

absl::Status Node::ListenOllama(const HostPort& address, HttpServer::Options http) {
  http.host = address.host;
  http.port = address.port;
  http.handler = [handler = std::move(http.handler)](HttpRequest request,
                                                     std::shared_ptr<HttpResponder> responder) {
    if (AnswerOllamaGreeting(request, responder.get())) return;
    handler(std::move(request), std::move(responder));
  };
  auto server = HttpServer::Start(http);
  if (absl::IsInvalidArgument(server.status())) return server.status();
  if (!server.ok()) {
    LOG(WARNING) << "no API at Ollama's port: " << server.status().message()
                 << "; the same API is at " << http_url_;
    return absl::OkStatus();
  }
  ollama_ = *std::move(server);
  ollama_url_ = absl::StrCat(http.tls == nullptr ? "http://" : "https://",
                             LocalAddress({http.host, ollama_->port()}));
  return absl::OkStatus();
}

void Node::Shutdown(absl::AnyInvocable<void() &&> done) {
  CHECK(!shutdown_.joinable()) << "a node is shut down once";
  // Waits for calls that the loop ends, so it cannot run on the loop.
  shutdown_ = std::thread([this, done = std::move(done)]() mutable {
    coordinator_->Stop();  // while other nodes can still learn of it; ends all requests
    gateway_->Stop();
    ollama_.reset();
    http_.reset();
    loop_->Post([this, done = std::move(done)]() mutable { Leave(std::move(done)); });
  });
}

void Node::Leave(absl::AnyInvocable<void() &&> done) {
  shutdown_.join();
  host_->StartShutdown();
  cluster_->Leave([this, done = std::move(done)]() mutable {
    shutdown_ = std::thread([this, done = std::move(done)]() mutable {
      server_->Shutdown(DeadlineIn(kShutdownGrace));
      loop_->Post(std::move(done));
    });
  });
}

Node::~Node() {
  ollama_.reset();
  http_.reset();
  if (shutdown_.joinable()) {
    shutdown_.join();
  } else if (server_ != nullptr) {
    // Calls that wait for the loop, which has ended, are ended here.
    coordinator_->StopCalls();
    gateway_->Stop();
    server_->Shutdown(DeadlineIn(absl::ZeroDuration()));
  }
}

namespace {

// Null: with --open, nothing is encrypted.
absl::StatusOr<std::unique_ptr<NodeSecurity>> Secure(const NodeOptions& options,
                                                     const NodeIdentity& identity) {
  if (options.key.open) {
    LOG(WARNING) << "--open: whoever reaches this node may use it, and reads what goes between "
                    "nodes; only for networks where you trust everybody";
    return nullptr;
  }
  const std::string key_path = !options.key.file.empty() ? options.key.file
                               : identity.folder.empty() ? ""
                                                         : KeyFilePath(identity.folder);
  absl::StatusOr<ClusterKey> key = FindKey(options.key, identity.folder);
  if (absl::IsNotFound(key.status()) && !options.key_from.empty()) {
    key = TakeKeyFile(options.key_from);
    if (!key.ok()) return key.status();
    if (!key_path.empty()) {
      if (absl::Status status = CreateKeyFile(key_path, *key); !status.ok()) return status;
    }
  }
  if (absl::IsNotFound(key.status()) && options.key.file.empty()) {
    const absl::StatusOr<HostPort> listen = ParseOption("--listen", options.listen);
    if (!listen.ok()) return listen.status();
    key = AwaitKey(
        {.self = {.node_id = identity.id,
                  .name = PrintableText::From(options.name.empty() ? MachineName() : options.name),
                  .cluster = PrintableText::From(options.cluster),
                  .protocol = LocalVersions().protocol()},
         .listen = *listen,
         .mdns = options.mdns,
         .peers = options.peers,
         .key_path = key_path,
         .stop_with_parent = options.stop_with_parent});
  }
  if (!key.ok()) return key.status();
  return NodeSecurity::Start(*std::move(key),
                             {.node_id = identity.id,
                              .folder = identity.folder.empty() ? "" : identity.folder + "/tls",
                              .key_path = key_path});
}

}  // namespace

absl::Status RunNode(const NodeOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  KeepLittleFreedMemory();
  const absl::StatusOr<DeviceLimits> limits = ParseDeviceLimits(options.devices, options.memory);
  if (!limits.ok()) return limits.status();
  if (auto s = CheckDeviceLimits(*limits, OwnProgram()); !s.ok()) return s;
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  absl::StatusOr<NodeIdentity> identity = Node::Identify(options);
  if (!identity.ok()) return identity.status();
  const auto security = Secure(options, *identity);
  if (absl::IsCancelled(security.status())) return absl::OkStatus();  // stopped, as a node is
  if (!security.ok()) return security.status();
  absl::StatusOr<std::unique_ptr<Node>> node =
      Node::Start(loop.get(), options, *std::move(identity), security->get());
  if (!node.ok()) return node.status();

  bool stopping = false;
  const auto stop = [&] {
    if (std::exchange(stopping, true)) return;
    NotifyServiceManager("STOPPING=1");
    (*node)->Shutdown([&] { loop->Stop(); });
  };
  std::unique_ptr<ParentWatch> watch;
  if (options.stop_with_parent) {
    watch = ParentWatch::Start(
        {.on_gone = [&] { loop->Post(stop); }, .hard_exit_after = absl::Seconds(5)});
  }
  std::vector<std::unique_ptr<EventLoop::Handle>> signals;
  for (int signum : EndSignals()) {
    signals.push_back(loop->OnSignal(signum, [&, signum] {
      if (stopping && signum == SIGINT) _exit(kExitInterrupted);  // workers notice by their stdin
      stop();
    }));
  }

  const nlohmann::json ready = {{"node",
                                 {{"id", (*node)->id()},
                                  {"name", (*node)->name()},
                                  {"cluster", options.cluster},
                                  {"address", (*node)->address()},
                                  {"addresses", (*node)->cluster()->own_addresses()},
                                  {"http", HttpJson((*node)->http_url())},
                                  {"ollama", HttpJson((*node)->ollama_url())},
                                  {"pid", getpid()}}}};
  const std::string line = ready.dump() + "\n";
  const absl::Status announced = WriteToStdout(line);
  if (announced.ok()) {
    if (!options.stop_with_parent && options.log_format == LogFormat::kText) {
      const std::string& http = (*node)->http_url();
      absl::FPrintF(stderr, "%s listens on %s%s. Ctrl-C stops it.\n", (*node)->name(),
                    (*node)->address(),
                    http.empty() ? "" : absl::StrCat("; the API is at ", http, "/v1"));
    }
  } else {
    loop->Post(stop);  // nobody can learn the address
  }
  std::unique_ptr<EventLoop::Handle> alive;
  if (const absl::Duration every = WatchdogInterval() / 2; every > absl::ZeroDuration()) {
    const auto ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(every));
    alive = loop->StartTimer({.delay_ms = ms, .repeat_ms = ms},
                             [] { NotifyServiceManager("WATCHDOG=1"); });
  }
  NotifyServiceManager("READY=1");
  loop->Run();
  signal(SIGINT, [](int) { _exit(kExitInterrupted); });  // the loop handles no signals any more
  node->reset();  // before `signals`: a second SIGTERM must not leave workers behind
  return announced;
}

}  // namespace strata
