// The verbs of the command line and their options: names, help, and the values they accept.
#pragma once

#include "node/chat/template_process.h"
#include "node/cli/alias_command.h"
#include "node/cli/approve.h"
#include "node/cli/cache_command.h"
#include "node/cli/cluster_nodes.h"
#include "node/cli/hub_commands.h"
#include "node/cli/install_script.h"
#include "node/cli/key_change.h"
#include "node/cli/key_verbs.h"
#include "node/cli/measure.h"
#include "node/cli/model_commands.h"
#include "node/cli/models_command.h"
#include "node/cli/node_config.h"
#include "node/cli/remove_command.h"
#include "node/cli/service_command.h"
#include "node/cli/token_verbs.h"
#include "node/cli/version_command.h"
#include "node/daemon/node.h"
#include "node/demo/demo.h"
#include "node/doctor/doctor.h"
#include "node/measure/probe.h"
#include "node/status/status.h"
#include "node/workers/worker.h"

namespace CLI {
class App;
}

namespace strata {

// The parsed command line; each verb fills in its own options.
struct CommandLine {
  NodeOptions node;
  std::string node_config;  // the value of --config
  NodesOptions nodes;
  StatusOptions status;
  MeasureOptions measure;
  PlanOptions plan;
  RunOptions run;
  LoadOptions load;
  UnloadOptions unload;
  DrainOptions drain;
  PullVerbOptions pull;
  ModelsOptions models;
  ModelsSearchOptions models_search;
  RemoveOptions remove;
  AliasOptions alias;
  CacheVerbOptions cache;
  DemoOptions demo;
  DoctorOptions doctor;
  TokenOptions token;
  TokenOptions page;
  ApproveOptions approve;
  KeyVerbOptions key;
  KeyChangeOptions key_change;
  ProbeRunOptions probe;
  WorkerRunOptions worker;
  VersionOptions version;
  ServiceOptions service;
  ConfigOptions config;
  SelfUpdateOptions self_update;
  UninstallOptions uninstall;
  std::string reference_of;  // a verb, for its man page; a program's path, for its unit
  TemplateLimits template_limits;
  bool run_verbose = false;
  bool worker_verbose = false;
};

// `line` outlives the parsing.
void AddVerbs(CLI::App* app, CommandLine* line);

// The options that `strata node` would read from these words and from its configuration file.
// kInvalidArgument: it refuses them; kNotFound: the file cannot be read.
absl::StatusOr<NodeOptions> ParseNodeOptions(std::vector<std::string> words);

}  // namespace strata
