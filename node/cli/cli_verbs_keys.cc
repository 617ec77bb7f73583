// The verbs about access: the cluster's key, new nodes, tokens of the HTTP API.
#include "CLI/CLI.hpp"
#include "node/api/api_token_file.h"
#include "node/cli/cli_options.h"

namespace strata {
namespace {

constexpr char kApproveFooter[] = R"(
Examples:
  strata approve                       the only node that waits
  strata approve kitchen
  strata approve 10.8.0.7:7400         a node that mDNS does not find

Run 'strata node' on the new machine first: both it and this command show a code. Answer yes if the
codes are the same: then the new machine gets the cluster's key, and is a member.)";

constexpr char kKeyFooter[] = R"(
Examples:
  strata key show                      to carry it by hand: 'strata key set' there reads it
  strata key new                       a cluster of which this machine is the first node
  strata key rotate                    a new key for all nodes, while they run

Anybody who has the key is a member: may use all nodes, and read all prompts and answers.)";

constexpr char kTokenFooter[] = R"(
Examples:
  strata token new anna --requests-per-minute 60 --days 30
  strata token list
  strata token revoke anna

'strata node --http [::]:7080' listens for the whole network, and serves clients with a token.)";

constexpr char kPageFooter[] = R"(
Whoever opens the link first, within ten minutes, may load and unload models and drain nodes for
twelve hours. Without it the page at the address of the HTTP API shows the cluster, and chats. Paste
the link into a browser: on a command line other users would see it.)";

void AddDataDir(CLI::App* verb, std::string* data_dir) {
  verb->add_option("--data-dir", *data_dir,
                   "The node's data dir (default: $XDG_STATE_HOME/strata or ~/.local/state/strata)")
      ->type_name("DIR");
}

}  // namespace

void AddApprove(CLI::App* app, ApproveOptions* options) {
  CLI::App* verb = app->add_subcommand("approve", "Admit a new node that waits for the key");
  verb->footer(kApproveFooter);
  verb->add_option("name", options->node, "Its name, the start of its id, or its address")
      ->check(Utf8())
      ->type_name("NODE");
  AddClient(verb, &options->client);
}

void AddKeyVerbs(CLI::App* app, KeyVerbOptions* options, KeyChangeOptions* change) {
  CLI::App* verb = app->add_subcommand("key", "The cluster's key on this machine");
  verb->footer(kKeyFooter);
  verb->require_subcommand(1);
  const auto add = [&](const char* name, const char* what) {
    CLI::App* action = verb->add_subcommand(name, what);
    AddDataDir(action, &options->data_dir);
    return action;
  };
  add("show", "Print it");
  add("new", "Make a key, for a new cluster");
  add("set", "Read a key from stdin, and store it")
      ->add_flag("--replace", options->replace, "Replace the key that is there");
  AddClient(verb->add_subcommand("rotate", "Give all nodes a new key, while they run"),
            &change->client);
}

void AddToken(CLI::App* app, TokenOptions* options) {
  CLI::App* verb = app->add_subcommand("token", "Tokens for clients of this machine's HTTP API");
  verb->footer(kTokenFooter);
  verb->require_subcommand(1);
  const auto add = [&](const char* name, const char* what) {
    CLI::App* action = verb->add_subcommand(name, what);
    AddDataDir(action, &options->data_dir);
    return action;
  };
  CLI::App* made = add("new", "Make a token and print it, this once");
  CLI::App* list = add("list", "List the tokens, without their secrets");
  CLI::App* revoke = add("revoke", "Revoke a token");
  for (CLI::App* action : {made, revoke}) {
    action->add_option("name", options->name, "The token's name: letters, digits and -_.@")
        ->required()
        ->type_name("NAME");
  }
  made->add_option("--requests-per-minute", options->requests_per_minute,
                   "Most requests in any minute (default: any number)")
      ->check(Between(1, kRequestsPerMinuteMax))
      ->type_name("N");
  made->add_option("--requests-at-once", options->streams_max,
                   "Most requests at once (default: any number)")
      ->check(Between(1, kTokenStreamsMax))
      ->type_name("N");
  made->add_option("--days", options->days, "Days until it expires (default: never)")
      ->check(Between(1, 36500))
      ->type_name("N");
  made->add_option("--scope", options->scopes,
                   "What its holder may do: chat, view (see the cluster), admin (change it); with "
                   "commas")
      ->capture_default_str()
      ->type_name("SCOPES");
  list->add_flag("--json", options->json, "Print JSON");
}

void AddPage(CLI::App* app, TokenOptions* options) {
  CLI::App* verb = app->add_subcommand("page", "Print a link to the page of this machine's node");
  verb->footer(kPageFooter);
  AddDataDir(verb, &options->data_dir);
  verb->add_flag("--json", options->json, "Print JSON");
}

}  // namespace strata
