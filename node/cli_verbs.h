// The verbs of the command line and their options: names, help, and what values are taken.
#pragma once

#include "node/approve.h"
#include "node/cluster_nodes.h"
#include "node/demo.h"
#include "node/doctor.h"
#include "node/key_change.h"
#include "node/key_verbs.h"
#include "node/measure.h"
#include "node/node.h"
#include "node/probe.h"
#include "node/run.h"
#include "node/status.h"
#include "node/template_process.h"
#include "node/token_verbs.h"
#include "node/worker.h"

namespace CLI {
class App;
}

namespace strata {

// What was asked for; each verb fills in its own.
struct CommandLine {
  NodeOptions node;
  NodesOptions nodes;
  StatusOptions status;
  MeasureOptions measure;
  PlanOptions plan;
  RunOptions run;
  LoadOptions load;
  UnloadOptions unload;
  DrainOptions drain;
  DemoOptions demo;
  DoctorOptions doctor;
  TokenOptions token;
  ApproveOptions approve;
  KeyVerbOptions key;
  KeyChangeOptions key_change;
  ProbeRunOptions probe;
  WorkerRunOptions worker;
  TemplateLimits template_limits;
  bool run_verbose = false;
  bool worker_verbose = false;
};

// `line` outlives the parsing.
void AddVerbs(CLI::App* app, CommandLine* line);

}  // namespace strata
