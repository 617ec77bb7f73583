// The verbs that say who may do what: the cluster's key, new nodes, tokens of the HTTP API.
#include "CLI/CLI.hpp"
#include "node/api/api_token_file.h"
#include "node/cli/cli_options.h"

namespace strata {
namespace {

constexpr char kApproveFooter[] = R"(
Examples:
  strata approve                       the only one that waits
  strata approve kitchen
  strata approve 10.8.0.7:7400         where mDNS does not reach

Run 'strata node' on the new machine first: it shows a code, and so does this. Say yes where they are
the same: then that machine has the cluster's key, and is a member.)";

constexpr char kKeyFooter[] = R"(
Examples:
  strata key show                      to carry it by hand: 'strata key set' there reads it
  strata key new                       a cluster of which this machine is the first node
  strata key rotate                    a new key for all nodes, while they go on

Whoever has the key is a member: may use all nodes, and read all texts.)";

constexpr char kTokenFooter[] = R"(
Examples:
  strata token new anna --requests-per-minute 60 --days 30
  strata token list
  strata token revoke anna

'strata node --http [::]:7080' listens for the whole network, and lets in who shows a token.)";

void AddDataDir(CLI::App* verb, std::string* data_dir) {
  verb->add_option("--data-dir", *data_dir,
                   "The node's (default: $XDG_STATE_HOME/strata or ~/.local/state/strata)")
      ->type_name("DIR");
}

}  // namespace

void AddApprove(CLI::App* app, ApproveOptions* options) {
  CLI::App* verb = app->add_subcommand("approve", "Admit a new node that waits for the key");
  verb->footer(kApproveFooter);
  verb->add_option("name", options->node, "Its name, the start of its id, or where it listens")
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
  add("new", "Make one, for a new cluster");
  add("set", "Read one from stdin, and keep it")
      ->add_flag("--replace", options->replace, "In place of the key that is there");
  AddClient(verb->add_subcommand("rotate", "Give all nodes a new one, while they run"),
            &change->client);
}

void AddToken(CLI::App* app, TokenOptions* options) {
  CLI::App* verb =
      app->add_subcommand("token", "Who may use this machine's HTTP API from elsewhere");
  verb->footer(kTokenFooter);
  verb->require_subcommand(1);
  const auto add = [&](const char* name, const char* what) {
    CLI::App* action = verb->add_subcommand(name, what);
    AddDataDir(action, &options->data_dir);
    return action;
  };
  CLI::App* made = add("new", "Make a token and print it, this once");
  CLI::App* list = add("list", "Show the tokens there are, without their texts");
  CLI::App* revoke = add("revoke", "Let nobody in with this token any more");
  for (CLI::App* action : {made, revoke}) {
    action->add_option("name", options->name, "What people call it: letters, digits and -_.@")
        ->required()
        ->type_name("NAME");
  }
  made->add_option("--requests-per-minute", options->requests_per_minute,
                   "Requests in any minute (default: any number)")
      ->check(Between(1, kRequestsPerMinuteMax))
      ->type_name("N");
  made->add_option("--texts", options->streams_max, "Texts at once (default: any number)")
      ->check(Between(1, kTokenStreamsMax))
      ->type_name("N");
  made->add_option("--days", options->days, "Days that it is good for (default: until revoked)")
      ->check(Between(1, 36500))
      ->type_name("N");
  list->add_flag("--json", options->json, "Print JSON");
}

}  // namespace strata
