// Options that many verbs have, and the verbs of inspect_commands.cc. Any thread.
#pragma once

#include "CLI/CLI.hpp"
#include "node/cli/cli_verbs.h"
#include "node/keys/node_security.h"

namespace strata {

// Validators without a description, which the help would show. Text that is sent to nodes must be
// UTF-8.
CLI::Validator Utf8();
CLI::Validator Between(double least, double most);

// The options of every verb that calls nodes: --open, --key-file.
void AddKey(CLI::App* verb, KeyOptions* options);

// The options of every verb that calls a cluster.
void AddClient(CLI::App* verb, ClientOptions* options);

// `options` and `change` outlive the parsing.
void AddNodes(CLI::App* app, NodesOptions* options, KeyChangeOptions* change);
void AddStatus(CLI::App* app, StatusOptions* options);
void AddMeasure(CLI::App* app, MeasureOptions* options);
void AddProbe(CLI::App* app, ProbeRunOptions* options);
void AddDoctor(CLI::App* app, DoctorOptions* options);

// Those of cli_verbs_keys.cc.
void AddApprove(CLI::App* app, ApproveOptions* options);
void AddKeyVerbs(CLI::App* app, KeyVerbOptions* options, KeyChangeOptions* change);
void AddToken(CLI::App* app, TokenOptions* options);
void AddPage(CLI::App* app, TokenOptions* options);

// Those of cli_verbs_models.cc.
inline constexpr char kOfflineHelp[] =
    "Fetch nothing: use a model of that name that is here already";
void AddPull(CLI::App* app, PullVerbOptions* options);
void AddModels(CLI::App* app, ModelsOptions* options, ModelsSearchOptions* search);
void AddRemove(CLI::App* app, RemoveOptions* options);
void AddAlias(CLI::App* app, AliasOptions* options);
void AddCache(CLI::App* app, CacheVerbOptions* options);

}  // namespace strata
