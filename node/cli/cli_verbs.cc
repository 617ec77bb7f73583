#include "node/cli/cli_verbs.h"

#include <string>
#include <tuple>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "node/cli/cli_options.h"
#include "shard/model/cache_options.h"

namespace strata {
namespace {

constexpr char kNodeFooter[] = R"(
Examples:
  strata node                                        found by others on this network
  strata node --listen [::]:7400 --peer 10.8.0.3:7400    another one behind a VPN

Nodes of one cluster have one key, find each other by mDNS, and learn of more nodes from each other.
The first node makes the key; the next ones wait until 'strata approve' there admits them. Prints
{"node":{"id":…,"name":…,"cluster":…,"address":…,"addresses":[…],"http":…,"pid":…}} to stdout when it
listens.)";

constexpr char kHttpDefault[] = "127.0.0.1:7080";

constexpr char kPlanFooter[] = R"(
Examples:
  strata plan model.gguf --ctx 8192 --seqs 4 --objective throughput
  strata plan model.gguf --assign kitchen=0-19,attic/CUDA0=20-31

Layers count from 0, both ends included.)";

constexpr char kRunFooter[] = R"(
Examples:
  strata run model.gguf "Once upon a time" --max-tokens 200
  strata run model.gguf - < beginning.txt
  strata run model.gguf --embed "The sea"
  strata run hf:org/repo:Q4_K_M "Once upon a time"

The model's file is needed on one node: the others get their layers from it and store them. The text
goes to stdout, all else to stderr. MODEL may also name a loaded model, which then stays loaded, or
one that is fetched first: see strata pull --help.)";

constexpr char kLoadFooter[] = R"(
Examples:
  strata load model.gguf --seqs 8 --ctx 8192 --objective throughput
  strata load model.gguf --cache-type-k q8_0 --cache-type-v q8_0
  strata load model.gguf --exact
  strata load hf:org/repo:Q4_K_M

Without --exact, requests are computed together, and a kernel for several rows may round differently
than one for a single row: the same request and seed may give another text if other requests run
beside it. With --exact they give the same text bit for bit, also when it is replayed after a
failure, as long as stages are cut alike and on devices of the same kind. The model stays until it is
unloaded, and is loaded again if a node stops or dies: 'strata run NAME' and other programs use it.)";

constexpr char kServiceFooter[] = R"(
Examples:
  strata service install --http [::]:7080 --any-model
  sudo strata service install --system --name kitchen
  strata service logs

What follows --user or --system are options of `strata node`; files that they name need whole paths.
It starts with the machine, comes back after a crash, and its layers move to other nodes before it
stops. A node that asks to be admitted waits for `strata approve` as any other.)";

constexpr char kSelfUpdateFooter[] = R"(
Examples:
  strata self-update --check
  strata self-update

Fetches the newest version from where this one came from (STRATA_DOWNLOAD_URL names another place), checks
its signature, and puts it in this one's place. A service moves its layers to other nodes and starts again;
where it does not start, the version before is back. Nodes of other versions of libllama or libggml take no
layers beside the new ones (--allow-mixed-versions): update all machines.)";

constexpr char kUninstallFooter[] = R"(
Examples:
  strata uninstall
  strata uninstall --purge --yes

Says what it removes, and asks. Keys, ids, configuration and models stay but for --purge.)";

constexpr char kConfigFooter[] = R"(
Examples:
  strata config new > ~/.config/strata/node.toml
  strata config check

What the file says counts for each node that is started without --config, a service too, unless its
command line says otherwise. STRATA_CONFIG names another file; empty, none.)";

constexpr char kVersionFooter[] = R"(
Examples:
  strata version
  strata version --json

Nodes work together where libllama and libggml are the same.)";

constexpr char kUnloadFooter[] = R"(
Examples:
  strata unload
  strata unload tiny-llama

Requests that are running end with an error that says so.)";

constexpr char kDrainFooter[] = R"(
Examples:
  strata drain kitchen
  strata drain kitchen --undo

The node's layers move to other nodes; running requests pause and then continue. It gets no new
layers until --undo or a restart. If the other nodes have no room for the layers, nothing changes.)";

constexpr char kDemoFooter[] = R"(
Examples:
  strata demo --nodes 2 --model FILE.gguf --prompt "Once upon a time" --max-tokens 200
  strata demo --model FILE.gguf --cut 2,5 --temperature 0 --json

The text goes to stdout, all else to stderr.)";

constexpr char kMixedHelp[] =
    "Work with nodes that run other versions of libllama or libggml; the text may be wrong";
constexpr char kVerboseHelp[] = "Log what happens to stderr";

// How a text is generated.
void AddGenerateFlags(CLI::App* verb, GenerateFlags* options) {
  verb->add_option("--max-tokens", options->tokens_max, "Tokens to generate at most")
      ->check(Between(1, 1 << 24))
      ->capture_default_str()
      ->type_name("N");
  verb->add_option("--temperature", options->temperature, "0 always takes the likeliest token")
      ->check(Between(0, 1000))
      ->capture_default_str()
      ->type_name("T");
  verb->add_option("--top-k", options->top_k, "Choose among the K likeliest; 0: all")
      ->check(Between(0, 1 << 24))
      ->capture_default_str()
      ->type_name("K");
  verb->add_option("--top-p", options->top_p, "Choose among the likeliest with this probability")
      ->check(Between(0, 1))
      ->capture_default_str()
      ->type_name("P");
  verb->add_option("--min-p", options->min_p,
                   "Leave out tokens less likely than P times the best one")
      ->check(Between(0, 1))
      ->capture_default_str()
      ->type_name("P");
  verb->add_option("--seed", options->seed,
                   "The same seed gives the same text, on the same devices with the same threads, "
                   "if the model runs no other request meanwhile")
      ->capture_default_str()
      ->type_name("S");
  verb->add_flag("--ignore-eos", options->ignore_eos, "Continue where the model would end");
  verb->add_flag_callback(
      "--no-mmap", [options] { options->use_mmap = false; },
      "Read the model's file instead of mapping it");
  verb->add_flag("--json", options->json, "Print the result as JSON");
}

void AddContext(CLI::App* verb, uint32_t* n_ctx, bool* unverified) {
  verb->add_option("--ctx", *n_ctx,
                   "Positions of the context (default: as many as fit, up to the model's own)")
      ->check(Between(1, 1 << 24))
      ->type_name("N");
  verb->add_flag("--unverified", *unverified,
                 "Cut an architecture that was never tested; the text may be wrong");
}

// Placement of the layers.
void AddPlacement(CLI::App* verb, PlanOptions* options) {
  verb->add_option("model", options->model,
                   "A GGUF model on the machine of the node that --node names, or the name of one "
                   "to fetch (see strata pull --help)")
      ->required()
      ->type_name("MODEL");
  AddClient(verb, &options->client);
  verb->add_flag("--offline", options->offline, kOfflineHelp);
  verb->add_flag("--whole", options->whole,
                 "Fetch the whole file to this machine, not each node its own layers");
  verb->add_option("--objective", options->objective,
                   "latency: one request as fast as possible; throughput: many requests")
      ->capture_default_str()
      ->type_name("WHICH");
  verb->add_option("--assign", options->assign, "Layers by hand: nodeA=0-19,nodeB/CUDA0=20-31")
      ->check(Utf8())
      ->type_name("PLACES");
  verb->add_option("--exclude", options->exclude, "Nodes or devices to leave out: nodeA,nodeB/CPU")
      ->check(Utf8())
      ->type_name("PLACES");
  verb->add_option(
          "--activations", options->activations,
          "Type of the activations between stages: f32 (default, exact), f16, bf16, q8_0, or "
          "auto: fewer bytes over slow links")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0", "auto"}))
      ->type_name("TYPE");
  verb->add_option("--cpu-moe", options->cpu_moe,
                   "Experts in the CPU's memory, the rest of their layers on the node's GPU: auto "
                   "(default; as many as do not fit the GPU), all, none")
      ->check(CLI::IsMember({"auto", "all", "none"}))
      ->type_name("WHICH");
  verb->add_option("--reserve", options->reserve,
                   "Memory to leave free: 2GiB on every node, or nodeA=2GiB,nodeB=512M")
      ->check(Utf8())
      ->type_name("BYTES");
}

// The KV cache.
void AddCache(CLI::App* verb, PlanOptions* options) {
  for (const auto& [name, type, what] :
       {std::tuple("--cache-type-k,--type-k", &options->type_k, "keys"),
        std::tuple("--cache-type-v,--type-v", &options->type_v, "values")}) {
    verb->add_option(
            name, *type,
            absl::StrCat("Type of the cache's ", what, ": f16 (default), q8_0, q4_0, f32 or bf16"))
        ->check(CLI::IsMember({"f16", "q8_0", "q4_0", "f32", "bf16"}))
        ->type_name("TYPE");
  }
  verb->add_option("--flash-attention", options->flash_attention,
                   "auto (default), on or off; a quantised cache of values needs it")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->type_name("WHEN");
  verb->add_option("--kv-cells", options->kv_cells,
                   "Positions of all requests together (default: --ctx for each request)")
      ->check(Between(1, 1 << 30))
      ->type_name("N");
  verb->add_flag(
      "--exact", options->exact,
      "The same request and seed give the same text bit for bit, whatever other requests "
      "run: no two requests are computed together, which costs speed if there are several "
      "(not with --kv-cells)");
  verb->add_option(
          "--checkpoints", options->checkpoints,
          "Saved states for models whose cache cannot be trimmed (default: 2 for each request)")
      ->check(Between(0, kCheckpointsMax))
      ->type_name("N");
}

// The request log.
void AddRequestLog(CLI::App* verb, bool* on, LogFormat* format) {
  verb->add_flag(
      "--log-requests", *on,
      "Log a line for each request, with its id, on each node and worker it passes; no prompts");
  verb->add_option_function<std::string>(
          "--log-format",
          [format](const std::string& name) {
            *format = name == "json" ? LogFormat::kJson : LogFormat::kText;
          },
          "Lines for people (text, the default) or for programs (json)")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT");
}

// The links between stages.
void AddLinks(CLI::App* verb, LinkSelectorOptions* options) {
  verb->add_flag_callback(
      "--no-ucx", [options] { options->ucx = false; }, "All links between stages go over gRPC");
  verb->add_option("--trust-link", options->trusted_interfaces,
                   "A network interface, say of a cable between two of your machines, over which "
                   "UCX may send data without encryption; may be given again")
      ->allow_extra_args(false)
      ->type_name("IFACE");
  verb->add_flag(
      "--spin", options->spin,
      "Links over UCX never sleep: some microseconds faster, but one core is always busy");
  verb->add_flag("--allow-mixed-versions", options->allow_mixed_versions, kMixedHelp);
}

void AddNode(CLI::App* app, NodeOptions* options, std::string* config) {
  CLI::App* verb = app->add_subcommand("node", "Run a node: this machine's part of the cluster");
  verb->footer(kNodeFooter);
  verb->add_option(
          "--config", *config,
          "A file with options of these, for a node that is started without them (default: "
          "~/.config/strata/node.toml, else /etc/strata/node.toml, if there)")
      ->configurable(false)
      ->type_name("FILE");
  verb->add_option("--listen", options->listen,
                   "Where to listen; [::] is all interfaces, port 0 the last port or a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  options->http = kHttpDefault;
  options->http_any_port = true;
  CLI::Option* http =
      verb->add_option_function<std::string>(
              "--http",
              [options](const std::string& address) {
                options->http = address;
                options->http_any_port = false;
              },
              absl::StrCat("Where the HTTP API listens; [::]:PORT is all interfaces, for "
                           "clients with a token (strata token) (default: ",
                           kHttpDefault, ", or a free port if that is taken)"))
          ->type_name("[HOST:]PORT");
  CLI::Option* ollama =
      verb->add_flag("--ollama{11434}", options->ollama,
                     "The HTTP API listens here, too, for clients of Ollama; a port alone is on "
                     "the host of --http (default: 11434, Ollama's own port)")
          ->type_name("[=[HOST:]PORT]");
  verb->add_flag("--any-model", options->any_model,
                 "Requests for a model that is not loaded get the only one that is, whatever name "
                 "they have");
  verb->add_flag_callback(
      "--no-autoload", [options] { options->autoload = false; },
      "Requests load no models: what is not loaded by strata load or run is not found");
  verb->add_flag_callback(
          "--no-http", [options] { options->http.clear(); }, "No HTTP API")
      ->excludes(http)
      ->excludes(ollama);
  verb->add_flag("--no-auth", options->http_no_auth,
                 "Let everybody on the network use the HTTP API, without a token");
  CLI::Option* no_page = verb->add_flag_callback(
      "--no-page", [options] { options->page = false; }, "No page, and no control API");
  verb->add_flag("--page-view-only", options->page_view_only,
                 "Nobody may change the cluster by the page or the control API")
      ->excludes(no_page);
  verb->add_option("--tls-cert", options->http_certificate,
                   "The HTTP API uses HTTPS, with this certificate and its chain")
      ->type_name("FILE.pem");
  verb->add_option("--tls-key", options->http_key,
                   "The private key of --tls-cert; nobody else may read the file")
      ->type_name("FILE.pem");
  verb->add_option("--allow-origin", options->browsers.origins,
                   "Origin of pages in browsers that may use the HTTP API, as "
                   "https://chat.example, http://192.168.1.5:* or chrome-extension://*; may be "
                   "given again (those of this machine's own programs may anyway)")
      ->allow_extra_args(false)
      ->type_name("ORIGIN");
  verb->add_option("--allow-host", options->browsers.hosts,
                   "Name under which programs reach the HTTP API of this machine at loopback, as "
                   "host.docker.internal; may be given again")
      ->allow_extra_args(false)
      ->type_name("NAME");
  verb->add_option("--name", options->name, "The node's name (default: the machine's name)")
      ->check(Utf8())
      ->type_name("NAME");
  verb->add_option("--cluster", options->cluster,
                   "The cluster's name; nodes of other clusters are ignored")
      ->check(Utf8())
      ->capture_default_str()
      ->type_name("NAME");
  verb->add_option(
          "--peer", options->peers,
          "The address of a node that mDNS does not find; a name stands for all addresses that it "
          "has, and is looked up again; may be given again")
      ->allow_extra_args(false)
      ->type_name("HOST:PORT");
  verb->add_option("--advertise", options->advertise,
                   "The address for other nodes to dial, instead of this machine's own ones")
      ->allow_extra_args(false)
      ->type_name("HOST[:PORT]");
  verb->add_flag_callback(
      "--no-mdns", [options] { options->mdns = false; },
      "Neither look for other nodes by mDNS nor announce this one");
  verb->add_flag_callback(
      "--no-measure", [options] { options->measure = false; },
      "Measure neither devices nor links; plans then leave this node out");
  verb->add_flag(
      "--keep-awake", options->keep_awake,
      "Keep the machine from going to sleep while its stages compute, and a minute more");
  verb->add_flag("--in-demo", options->in_demo)->configurable(false)->group("");  // not shown
  verb->add_option("--suspect-after", options->suspect_after_ms,
                   "Silence after which a node is suspected, ms")
      ->check(Between(100, 3'600'000))
      ->capture_default_str()
      ->type_name("MS");
  verb->add_option("--gone-after", options->gone_after_ms, "Silence after which it is gone, ms")
      ->check(Between(200, 3'600'000))
      ->capture_default_str()
      ->type_name("MS");
  verb->add_option("--threads", options->n_threads,
                   "Threads that compute a stage (default: one for each core)")
      ->check(Between(1, 4096))
      ->type_name("N");
  verb->add_option("--device", options->devices,
                   "Use only these devices, as 'strata probe' names them: CUDA0,CPU; may be given "
                   "again (default: all)")
      ->allow_extra_args(false)
      ->check(Utf8())
      ->type_name("NAMES");
  verb->add_option("--memory", options->memory,
                   "Most memory to use of each device: 6GiB, or CUDA0=6GiB,CPU=8GiB")
      ->allow_extra_args(false)
      ->check(Utf8())
      ->type_name("BYTES");
  verb->add_option("--data-dir", options->data_dir,
                   "Where the node stores its id, key, tokens and weights (default: "
                   "$XDG_STATE_HOME/strata or ~/.local/state/strata)")
      ->type_name("DIR");
  AddKey(verb, &options->key);
  verb->add_option("--key-from", options->key_from,
                   "Where there is no key yet, take it from this file, which others may read: "
                   "a secret that Kubernetes mounts")
      ->excludes("--open")
      ->type_name("FILE");
  verb->add_option("--models", options->models,
                   "A folder with GGUF files that the cluster may load, besides those of Hugging "
                   "Face, Ollama, LM Studio and llama.cpp; may be given again")
      ->allow_extra_args(false)
      ->type_name("DIR");
  verb->add_option("--cache-dir", options->cache_dir,
                   "Where weights from other nodes are stored (default: in the data dir)")
      ->type_name("DIR");
  verb->add_option("--cache-size", options->cache_bytes_max,
                   "Most disk space for these weights (default: half of what is free)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true).description(""))
      ->type_name("SIZE");
  verb->add_option("--kv-cache-disk", options->kv_bytes_max,
                   "Most disk space for processed prompts, encrypted, in the data dir; 0: none "
                   "(default: a tenth of what is free, at most 16 GB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true).description(""))
      ->type_name("SIZE");
  verb->add_flag(
      "--standby", options->standby,
      "Fetch ahead the weights of layers that this machine would get if another one were "
      "lost, so that requests go on within seconds");
  verb->add_flag("--ephemeral", options->ephemeral, "Take a new id and store nothing");
  verb->add_flag("--stop-with-parent", options->stop_with_parent, "Stop when stdin ends");
  AddLinks(verb, &options->links);
  AddRequestLog(verb, &options->log_requests, &options->log_format);
  verb->add_flag("--verbose", options->verbose, kVerboseHelp);
}

void AddDemo(CLI::App* app, DemoOptions* options) {
  CLI::App* verb =
      app->add_subcommand("demo", "Share one model among nodes on this machine and generate text");
  verb->footer(kDemoFooter);
  verb->add_option("--nodes", options->nodes,
                   "How many nodes (default: 3, or one for each stage that --cut makes)")
      ->check(Between(1, kDemoNodesMax))
      ->type_name("N");
  verb->add_option("--model", options->model, "A GGUF model (default: the demo's own small one)")
      ->type_name("FILE");
  verb->add_option("--prompt", options->generation.prompt, "How the text begins")
      ->check(Utf8())
      ->capture_default_str()
      ->type_name("TEXT");
  AddGenerateFlags(verb, &options->generation);
  AddContext(verb, &options->generation.n_ctx, &options->generation.unverified);
  verb->add_option("--cut", options->cuts,
                   "Layers at which the stages after the first begin (default: equal bytes)")
      ->delimiter(',')
      ->type_name("L,L,…");
  verb->add_option("--threads", options->n_threads,
                   "Threads of each node (default: the cores divided by the nodes)")
      ->check(Between(1, 4096))
      ->type_name("N");
  verb->add_flag("--verbose", options->verbose, kVerboseHelp);
}

void AddPlan(CLI::App* app, PlanOptions* options) {
  CLI::App* verb =
      app->add_subcommand("plan", "Show how a model would be shared, and why; nothing is loaded");
  verb->footer(kPlanFooter);
  AddPlacement(verb, options);
  verb->add_option("--seqs", options->n_seqs, "Requests at a time to have room for")
      ->check(Between(1, 4096))
      ->capture_default_str()
      ->type_name("N");
  AddContext(verb, &options->n_ctx, &options->unverified);
  AddCache(verb, options);
  verb->add_flag("--json", options->json, "Print JSON");
}

void AddRun(CLI::App* app, RunOptions* options, bool* verbose) {
  CLI::App* verb =
      app->add_subcommand("run", "Share a model among the cluster's nodes and generate text");
  verb->footer(kRunFooter);
  AddPlacement(verb, &options->plan);
  verb->add_option(
          "prompt", options->prompt,
          "How the text begins; '-', or none if stdin is not a terminal: read it from stdin")
      ->check(Utf8())
      ->type_name("PROMPT");
  AddGenerateFlags(verb, &options->generation);
  AddContext(verb, &options->generation.n_ctx, &options->generation.unverified);
  AddCache(verb, &options->plan);
  verb->add_flag("--context-shift", options->generation.context_shift,
                 "At the context's end, drop the older half and continue, if the model can");
  verb->add_flag("--embed", options->embed,
                 "Print the prompt's embedding, a JSON array, instead of a text");
  verb->add_flag("--allow-mixed-versions", options->generation.allow_mixed_versions, kMixedHelp);
  verb->add_flag("--verbose", *verbose, kVerboseHelp);
}

void AddLoad(CLI::App* app, LoadOptions* options) {
  CLI::App* verb = app->add_subcommand("load", "Share a model among the cluster's nodes");
  verb->footer(kLoadFooter);
  AddPlacement(verb, &options->plan);
  options->plan.n_seqs = 0;
  verb->add_option("--seqs", options->plan.n_seqs,
                   "Requests at a time to have room for (default: 4)")
      ->check(Between(1, 4096))
      ->type_name("N");
  AddContext(verb, &options->plan.n_ctx, &options->plan.unverified);
  AddCache(verb, &options->plan);
  verb->add_flag_callback(
      "--no-mmap", [options] { options->use_mmap = false; },
      "Read the model's file instead of mapping it");
  verb->add_option("--chat-template", options->chat_template,
                   "How a chat becomes a prompt: a file here (Jinja), or the name of one of the "
                   "templates in the model's file, as tool_use (default: the file's)")
      ->check(Utf8())
      ->type_name("FILE|NAME");
  verb->add_option_function<std::string>(
          "--keep-alive",
          [options](const std::string& text) {
            absl::Duration time;
            if (!absl::ParseDuration(text, &time) || time < absl::ZeroDuration()) {
              throw CLI::ValidationError("--keep-alive", "must be a time as 30m or 1h30m");
            }
            options->keep_alive_ms = absl::ToInt64Milliseconds(time);
          },
          "Unload the model when it has had no request for so long, as 30m (default, and 0: never)")
      ->type_name("TIME");
  verb->add_option_function<std::string>(
          "--speculate",
          [options](const std::string& name) {
            options->speculation = SpeculationNamed(name).value_or(wire::SPECULATION_AUTO);
          },
          "While stages would be idle they compute drafts of the next tokens; the output is the "
          "same: auto (default; as long as enough drafts prove right), off, ngram (always, from "
          "what it and recent requests repeat), or draft (always, of the draft model)")
      ->check(CLI::IsMember({"auto", "off", "ngram", "draft"}))
      ->type_name("WHEN");
  verb->add_option("--draft", options->draft,
                   "A smaller model with the same vocabulary, which drafts the tokens of this one; "
                   "it is loaded first, if it is not")
      ->type_name("MODEL");
  verb->add_flag("--pin", options->pinned,
                 "Never unload the model to make room for one that a request names");
  verb->add_flag("--allow-mixed-versions", options->allow_mixed_versions, kMixedHelp);
  verb->add_flag("--json", options->plan.json, "Print JSON");
}

void AddUnload(CLI::App* app, UnloadOptions* options) {
  CLI::App* verb = app->add_subcommand("unload", "Unload a model and free its memory");
  verb->footer(kUnloadFooter);
  verb->add_option("model", options->model,
                   "Its name, file or the start of its id (default: the only one)")
      ->type_name("MODEL");
  AddClient(verb, &options->client);
  verb->add_flag("--json", options->json, "Print JSON");
}

void AddVersion(CLI::App* app, VersionOptions* options) {
  CLI::App* verb = app->add_subcommand("version", "Show which Strata this is");
  verb->footer(kVersionFooter);
  verb->add_flag("--json", options->json, "Print JSON, with each library and plug-in");
}

void AddService(CLI::App* app, ServiceOptions* options) {
  CLI::App* verb = app->add_subcommand("service", "A node that starts with the machine");
  verb->footer(kServiceFooter);
  verb->require_subcommand(1);
  for (const auto& [name, what] :
       {std::pair("install", "Install and start it: [OPTIONS OF node…]"),
        std::pair("uninstall", "Stop and remove it"), std::pair("status", "Show whether it runs"),
        std::pair("logs", "Show the end of its log")}) {
    CLI::App* action = verb->add_subcommand(name, what);
    CLI::Option* user = action->add_flag("--user", "Yours (default)");
    action
        ->add_flag("--system", options->is_system,
                   "The system's, with a user of its own; needs root")
        ->excludes(user);
    action->prefix_command(absl::string_view(name) == "install");
  }
}

void AddConfig(CLI::App* app, ConfigOptions* options) {
  CLI::App* verb = app->add_subcommand("config", "The configuration file of a node");
  verb->footer(kConfigFooter);
  verb->require_subcommand(1);
  verb->add_subcommand("new", "Print one with all options, to choose from");
  verb->add_subcommand("check", "Say what is wrong with one")
      ->add_option("file", options->file, "The file (default: the one that a node reads)")
      ->type_name("FILE");
}

void AddSelfUpdate(CLI::App* app, SelfUpdateOptions* options) {
  CLI::App* verb = app->add_subcommand("self-update", "Install the newest version");
  verb->footer(kSelfUpdateFooter);
  verb->add_flag("--check", options->check, "Say whether there is a newer one, and do no more");
}

void AddUninstall(CLI::App* app, UninstallOptions* options) {
  CLI::App* verb = app->add_subcommand("uninstall", "Remove what the installer has installed");
  verb->footer(kUninstallFooter);
  verb->add_flag("--purge", options->purge, "Keys, ids, configuration and models, too");
  verb->add_flag("--yes", options->yes, "Do not ask");
}

void AddDrain(CLI::App* app, DrainOptions* options) {
  CLI::App* verb = app->add_subcommand("drain", "Move all layers off a node");
  verb->footer(kDrainFooter);
  verb->add_option("name", options->node,
                   "Its name, or the start of its id (default: this machine's node)")
      ->check(Utf8())
      ->type_name("NODE");
  verb->add_flag("--undo", options->undo, "Let it take layers again");
  AddClient(verb, &options->client);
  verb->add_flag("--json", options->json, "Print JSON");
}

void AddWorker(CLI::App* app, WorkerRunOptions* options, bool* verbose) {
  CLI::App* verb = app->add_subcommand("worker", "Hold the stages of one device; a node starts it");
  verb->group("");  // not shown
  verb->add_option("--listen", options->listen, "Address to listen on")->type_name("HOST:PORT");
  verb->add_option("--tls-dir", options->tls_folder, "Its node's certificates")->type_name("DIR");
  verb->add_flag("--open", options->open, "Without certificates");
  verb->add_option("--threads", options->n_threads, "Threads that compute a stage")
      ->check(Between(1, 4096))
      ->type_name("N");
  AddLinks(verb, &options->links);
  AddRequestLog(verb, &options->log_requests, &options->log_format);
  verb->add_flag("--verbose", *verbose, kVerboseHelp);
}

void AddReference(CLI::App* app, std::string* of) {
  CLI::App* verb =
      app->add_subcommand("reference", "Man pages, completions for shells, a package's unit");
  verb->group("");  // not shown
  verb->require_subcommand(1);
  verb->add_subcommand("man", "The man page of strata, or of a verb")
      ->add_option("verb", *of, "The verb")
      ->type_name("VERB");
  verb->add_subcommand("unit", "The system's service for systemd, of a package")
      ->add_option("program", *of, "Path of the installed program")
      ->required()
      ->type_name("FILE");
  for (const char* what : {"bash", "zsh", "fish", "nodes", "models"}) {
    verb->add_subcommand(what, absl::StrCat("For completions: ", what));
  }
  verb->add_subcommand("verbs", "The verbs that have a man page");
}

void AddTemplate(CLI::App* app, TemplateLimits* limits) {
  CLI::App* verb = app->add_subcommand("template", "Run chat templates; a node starts it");
  verb->group("");  // not shown
  verb->add_option("--time", limits->time_ms, "Limit for one request, ms")->type_name("MS");
  verb->add_option("--memory", limits->memory_bytes, "Limit for one request, bytes")
      ->type_name("BYTES");
}

}  // namespace

void AddVerbs(CLI::App* app, CommandLine* line) {
  AddNode(app, &line->node, &line->node_config);
  AddNodes(app, &line->nodes, &line->key_change);
  AddStatus(app, &line->status);
  AddMeasure(app, &line->measure);
  AddPlan(app, &line->plan);
  AddRun(app, &line->run, &line->run_verbose);
  AddLoad(app, &line->load);
  AddUnload(app, &line->unload);
  AddDrain(app, &line->drain);
  AddPull(app, &line->pull);
  AddModels(app, &line->models, &line->models_search);
  AddRemove(app, &line->remove);
  AddAlias(app, &line->alias);
  AddCache(app, &line->cache);
  AddDemo(app, &line->demo);
  AddDoctor(app, &line->doctor);
  AddApprove(app, &line->approve);
  AddKeyVerbs(app, &line->key, &line->key_change);
  AddToken(app, &line->token);
  AddPage(app, &line->page);
  AddService(app, &line->service);
  AddConfig(app, &line->config);
  AddSelfUpdate(app, &line->self_update);
  AddUninstall(app, &line->uninstall);
  AddVersion(app, &line->version);
  AddProbe(app, &line->probe);
  AddWorker(app, &line->worker, &line->worker_verbose);
  AddTemplate(app, &line->template_limits);
  AddReference(app, &line->reference_of);
}

namespace {

// Parses `words` as CLI11 wants them: in reverse.
absl::Status ParseWords(std::vector<std::string> words, CLI::App* app) {
  words.insert(words.begin(), "node");
  std::reverse(words.begin(), words.end());
  try {
    app->parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NodeOptions> ParseNodeOptions(std::vector<std::string> words) {
  CommandLine line;
  CLI::App app;
  AddVerbs(&app, &line);
  if (absl::Status status = ParseWords(words, &app); !status.ok()) return status;
  const std::string config = line.node.in_demo ? "" : NodeConfigPath(line.node_config);
  if (config.empty()) return std::move(line.node);
  const auto more = ReadNodeConfig(config, *app.get_subcommand("node"));
  if (!more.ok()) return more.status();
  words.insert(words.end(), more->begin(), more->end());
  CommandLine whole;
  CLI::App again;
  AddVerbs(&again, &whole);
  if (absl::Status status = ParseWords(std::move(words), &again); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(config, ": ", status.message()));
  }
  return std::move(whole.node);
}

}  // namespace strata
