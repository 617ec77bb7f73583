// Options that many verbs have, and the verbs of inspect_commands.cc. Any thread.
#pragma once

#include "CLI/CLI.hpp"
#include "node/cli/cli_verbs.h"
#include "node/keys/node_security.h"

namespace strata {

// Validators without a description, which would be shown in the help. Text that travels must be
// UTF-8.
CLI::Validator Utf8();
CLI::Validator Between(double least, double most);

// What every verb has that talks to nodes: --open, --key-file.
void AddKey(CLI::App* verb, KeyOptions* options);

// What every verb that asks a cluster has.
void AddClient(CLI::App* verb, ClientOptions* options);

// What they take outlives the parsing.
void AddNodes(CLI::App* app, NodesOptions* options, KeyChangeOptions* change);
void AddStatus(CLI::App* app, StatusOptions* options);
void AddMeasure(CLI::App* app, MeasureOptions* options);
void AddProbe(CLI::App* app, ProbeRunOptions* options);
void AddDoctor(CLI::App* app, DoctorOptions* options);

// Those of cli_verbs_keys.cc.
void AddApprove(CLI::App* app, ApproveOptions* options);
void AddKeyVerbs(CLI::App* app, KeyVerbOptions* options, KeyChangeOptions* change);
void AddToken(CLI::App* app, TokenOptions* options);

}  // namespace strata
