// The verbs that inspect nodes and devices.
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "node/cli/cli_options.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

constexpr char kNodesFooter[] = R"(
Examples:
  strata nodes
  strata nodes --node 10.8.0.3:7400 --json
  strata nodes remove attic              its layers move, then all others get a new key

HERE: for how long the node has been heard. HEARD: how long ago it was last heard.)";

constexpr char kStatusFooter[] = R"(
Examples:
  strata status --node 10.8.0.3:7400
  strata status --watch                  on the terminal, once a second; q quits
  strata status --watch --json           a line of JSON once a second

Each problem has a line that begins with "!".)";

constexpr char kMeasureFooter[] = R"(
Examples:
  strata measure
  strata measure kitchen attic --json

Nodes measure when they start, and links again now and then: this is for changes that they cannot
notice. Prints the results before and now. A node that computes is not measured: exit status 1; a
node that does not answer: exit status 5.)";

constexpr char kProbeFooter[] = R"(
Examples:
  strata probe
  strata probe --device CPU --threads 4

Prints one line of JSON for each device. Speeds are bytes of weights computed per second, for
batches of 1, 4, 8, 16 and 128 rows.)";

constexpr char kDoctorFooter[] = R"(
Examples:
  strata doctor                              this machine and every node of the cluster
  strata doctor kitchen                      a node, by its name
  strata doctor 192.168.1.7:7400 --json      a machine that is not found
  strata doctor --node 10.8.0.3:7400         a cluster, from outside, through one of its nodes

Checks multicast on each interface, connections in both directions (nodes try them, too), versions,
clocks, memory and disk. "ok" is fine, "-" is good to know, "!" is wrong, with what to do about it.
Takes 3 to 15 seconds. Exit status: 0 nothing is wrong; 6 something is.)";

}  // namespace

CLI::Validator Utf8() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        return ValidUtf8(text) == text ? "" : "it is not valid UTF-8";
      },
      "");
}

CLI::Validator Between(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        double value = 0;
        // NaN is not between, either.
        if (absl::SimpleAtod(text, &value) && value >= least && value <= most) return "";
        return absl::StrFormat("%s is not between %.15g and %.15g", text, least, most);
      },
      "");
}

void AddKey(CLI::App* verb, KeyOptions* options) {
  verb->add_flag(
      "--open", options->open,
      "Without a key: nothing between nodes is encrypted, and anybody who reaches one may "
      "use it");
  verb->add_option("--key-file", options->file,
                   "The cluster's key (default: the one in the data dir)")
      ->envname("STRATA_KEY_FILE")
      ->type_name("FILE");
}

void AddClient(CLI::App* verb, ClientOptions* options) {
  verb->add_option("--node", options->node,
                   "The node to call (default: this machine's, else one found by mDNS)")
      ->type_name("HOST:PORT");
  verb->add_option("--cluster", options->cluster,
                   "The cluster's name, to choose among those found by mDNS")
      ->check(Utf8())
      ->type_name("NAME");
  verb->add_option("--data-dir", options->data_dir, "The data dir of this machine's node")
      ->type_name("DIR");
  AddKey(verb, &options->key);
}

void AddNodes(CLI::App* app, NodesOptions* options, KeyChangeOptions* change) {
  CLI::App* verb = app->add_subcommand("nodes", "Show the nodes of the cluster, or remove one");
  verb->footer(kNodesFooter);
  AddClient(verb, &options->client);
  verb->add_flag("--json", options->json, "Print JSON");
  CLI::App* remove = verb->add_subcommand("remove", "Remove a node: the others get a new key");
  remove->add_option("name", change->node, "Its name, or the start of its id")
      ->required()
      ->check(Utf8())
      ->type_name("NODE");
  remove->add_flag("--now", change->now, "Do not wait until its layers are on other nodes");
  AddClient(remove, &change->client);
}

void AddStatus(CLI::App* app, StatusOptions* options) {
  CLI::App* verb =
      app->add_subcommand("status", "Show the cluster: devices, memory, links, stages, problems");
  verb->footer(kStatusFooter);
  AddClient(verb, &options->client);
  verb->add_flag("--watch", options->watch, "Keep showing it until you quit");
  verb->add_flag("--json", options->json, "Print JSON");
}

void AddMeasure(CLI::App* app, MeasureOptions* options) {
  CLI::App* verb = app->add_subcommand("measure", "Measure devices and links again");
  verb->footer(kMeasureFooter);
  verb->add_option("nodes", options->nodes, "Names or ids (default: all nodes of the cluster)")
      ->check(Utf8())
      ->type_name("NODE");
  AddClient(verb, &options->client);
  verb->add_flag("--json", options->json, "Print JSON");
}

void AddProbe(CLI::App* app, ProbeRunOptions* options) {
  CLI::App* verb = app->add_subcommand("probe", "List or measure this machine's devices");
  verb->footer(kProbeFooter);
  verb->add_option("--device", options->device, "Measure this one (default: only list them)")
      ->check(Utf8())
      ->type_name("NAME");
  verb->add_option("--threads", options->n_threads,
                   "Threads of the CPU (default: one for each core)")
      ->check(Between(1, 4096))
      ->type_name("N");
  verb->add_option("--budget", options->budget_ms, "How long to measure, ms")
      ->check(Between(100, 600'000))
      ->capture_default_str()
      ->type_name("MS");
}

void AddDoctor(CLI::App* app, DoctorOptions* options) {
  CLI::App* verb =
      app->add_subcommand("doctor", "Find out why a machine is not found, and what to do about it");
  verb->footer(kDoctorFooter);
  verb->add_option("host", options->target,
                   "A node's name or id, or a machine (default: all nodes of the cluster)")
      ->check(Utf8())
      ->type_name("HOST[:PORT]");
  AddClient(verb, &options->client);
  verb->add_flag("--json", options->json, "Print JSON");
}

}  // namespace strata
