#include "node/cli/cli.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "node/base/exit_code.h"
#include "node/base/logging.h"
#include "node/base/process_setup.h"
#include "node/base/standard_input.h"
#include "node/base/standard_output.h"
#include "node/cli/cli_verbs.h"
#include "transport/base/printable_text.h"
#include "transport/base/version.h"

namespace strata {
namespace {

constexpr char kFooter[] = R"(
Examples:
  strata demo                                a small model on three nodes of this machine
  strata demo --nodes 2 --model FILE.gguf --prompt "Once upon a time" --max-tokens 200
  strata node                                this machine's part of a cluster; others find it
  strata status                              who is here, what they have, what is wrong
  strata doctor                              why is that machine not seen?
  strata run FILE.gguf "Once upon a time"    a text, written by all of them

Exit status: 0 done; 1 failed; 2 a wrong command line; 3 the model is missing, damaged, unknown or
may not be cut so; 4 not enough memory or disk; 5 a node or worker failed; 6 the
doctor found something wrong; 130 interrupted.)";

std::string VersionText() {
  const wire::Versions& versions = LocalVersions();
  return absl::StrCat("strata ", versions.strata(), "\nprotocol ", versions.protocol(),
                      "\nlibllama ", versions.llama(), "\nlibggml ", versions.ggml());
}

// The footer as written, not filled like a paragraph: examples have lines of their own.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return absl::StrCat(CLI::Formatter::make_help(app, std::move(name), mode), app->get_footer(),
                        "\n");
  }
  std::string make_footer(const CLI::App*) const override { return ""; }
};

int Report(absl::string_view words, int code) {
  // Messages of peers and of the system may have lines; an error is one.
  const std::string line = absl::StrReplaceAll(words, {{"\n", " | "}, {"\r", ""}});
  fprintf(stderr, "strata: %s\n", PrintableText::From(line, kShownMessageBytesMax).str().c_str());
  return code;
}

int Finish(const absl::Status& status, bool about_models) {
  if (status.ok()) return kExitOk;
  ExitCode code = ExitCodeFor(status);
  if (code == kExitModel && !about_models) code = kExitFailure;
  return Report(status.message(), code);
}

}  // namespace

int RunCommandLine(int argc, char** argv) {
  // gRPC reads it once. What it has to say is in the statuses, too, in one line.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);

  CommandLine line;
  CLI::App app("Strata pools machines into one that is big enough for a large language model.",
               "strata");
  app.formatter(std::make_shared<HelpFormatter>());  // shared with the verbs
  app.footer(kFooter);
  app.set_version_flag("--version", VersionText);
  app.require_subcommand(1);
  AddVerbs(&app, &line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);  // prints, and does not look
    return Finish(WriteToStdout(""), /*about_models=*/false);
  } catch (const CLI::ParseError& error) {
    std::string words = "strata";
    const CLI::App* last = &app;
    for (const CLI::App* chosen : app.get_subcommands()) {
      absl::StrAppend(&words, " ", chosen->get_name());
      last = chosen;
    }
    std::string what = error.what();
    // CLI11 says only that one is missing.
    const std::vector<std::string> strange = last->remaining();
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) &&
        last->get_require_subcommand_min() > 0 && !strange.empty()) {
      what = absl::StrCat("'", words, "' has no '", strange[0], "'");
    }
    return Report(absl::StrCat(what, " (see ", words, " --help)"), kExitUsage);
  }

  const bool is_node = app.got_subcommand("node");
  if (const absl::Status enough = CheckDescriptors(
          is_node ? kNodeDescriptorsMin : kVerbDescriptorsMin, is_node ? "a node" : "this");
      !enough.ok()) {
    return Report(enough.message(), kExitFailure);
  }
  if (app.got_subcommand("status")) {
    StartLogging({});
    return Finish(RunStatus(line.status), /*about_models=*/false);
  }
  if (app.got_subcommand("measure")) {
    StartLogging({});
    return Finish(RunMeasure(line.measure), /*about_models=*/false);
  }
  if (app.got_subcommand("plan")) {
    StartLogging({});
    return Finish(RunPlan(line.plan), /*about_models=*/true);
  }
  if (app.got_subcommand("run")) {
    StartLogging({.verbose = line.run_verbose});
    if (!line.run.prompt.has_value() && isatty(STDIN_FILENO) != 0) {
      return Report("prompt is required (see strata run --help)", kExitUsage);
    }
    if (line.run.prompt.value_or("-") != "-") {
      line.run.text.prompt = *std::move(line.run.prompt);
    } else {
      absl::StatusOr<std::string> prompt = ReadPromptFromStdin();
      if (!prompt.ok()) return Report(prompt.status().message(), kExitUsage);
      line.run.text.prompt = *std::move(prompt);
    }
    return Finish(RunRun(line.run), /*about_models=*/true);
  }
  if (app.got_subcommand("doctor")) {
    StartLogging({});
    const absl::StatusOr<bool> fine = RunDoctor(line.doctor);
    if (!fine.ok()) return Finish(fine.status(), /*about_models=*/false);
    return *fine ? kExitOk : kExitUnwell;
  }
  if (app.got_subcommand("token")) {
    StartLogging({});
    const CLI::App* const token = app.get_subcommand("token");
    const auto run = token->got_subcommand("new")    ? RunTokenNew
                     : token->got_subcommand("list") ? RunTokenList
                                                     : RunTokenRevoke;
    return Finish(run(line.token), /*about_models=*/false);
  }
  if (app.got_subcommand("approve")) {
    StartLogging({});
    return Finish(RunApprove(line.approve), /*about_models=*/false);
  }
  if (app.got_subcommand("key")) {
    StartLogging({});
    const CLI::App* const key = app.get_subcommand("key");
    if (key->got_subcommand("rotate")) {
      return Finish(RunKeyRotate(line.key_change), /*about_models=*/false);
    }
    const auto run = key->got_subcommand("show")  ? RunKeyShow
                     : key->got_subcommand("new") ? RunKeyNew
                                                  : RunKeySet;
    return Finish(run(line.key), /*about_models=*/false);
  }
  if (app.got_subcommand("load")) {
    StartLogging({});
    return Finish(RunLoad(line.load), /*about_models=*/true);
  }
  if (app.got_subcommand("unload")) {
    StartLogging({});
    return Finish(RunUnload(line.unload), /*about_models=*/true);
  }
  if (app.got_subcommand("drain")) {
    StartLogging({});
    return Finish(RunDrain(line.drain), /*about_models=*/false);
  }
  if (app.got_subcommand("probe")) {
    StartLogging({});
    return Finish(RunProbe(line.probe), /*about_models=*/false);
  }
  if (app.got_subcommand("worker")) {
    StartLogging({.verbose = line.worker_verbose,
                  .requests = line.worker.log_requests,
                  .format = line.worker.log_format,
                  .is_worker = true});
    return Finish(RunWorker(line.worker), /*about_models=*/false);
  }
  if (app.got_subcommand("template")) {
    return Finish(RunTemplateProcess(line.template_limits), /*about_models=*/false);
  }
  if (app.got_subcommand("node")) {
    StartLogging({.verbose = line.node.verbose,
                  .requests = line.node.log_requests,
                  .format = line.node.log_format});
    return Finish(RunNode(line.node), /*about_models=*/false);
  }
  if (app.got_subcommand("nodes")) {
    StartLogging({});
    const bool remove = app.get_subcommand("nodes")->got_subcommand("remove");
    return Finish(remove ? RunNodesRemove(line.key_change) : RunNodes(line.nodes),
                  /*about_models=*/false);
  }
  StartLogging({.verbose = line.demo.verbose});
  if (!line.demo.cuts.empty() && app.get_subcommand("demo")->count("--nodes") == 0) {
    line.demo.nodes = static_cast<uint32_t>(line.demo.cuts.size()) + 1;
  }
  return Finish(RunDemo(line.demo), /*about_models=*/true);
}

}  // namespace strata
