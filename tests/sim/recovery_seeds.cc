// Plays seeds of a simulated cluster that serves requests, and prints their outcomes: recovery_sim
// [--seeds N] [--first SEED] [--nodes N] [--gentle] [--verbose]. Prints what happened in each that
// went wrong; exits with 1 if there is one.
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/sim/recovery_scenario.h"

namespace strata {
namespace {

struct Flags {
  uint64_t seeds = 100;
  uint64_t first = 1;
  size_t nodes = 0;
  bool gentle = false;
  bool verbose = false;
};

int Run(const Flags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<uint64_t> wrong;
  RecoverySim::Counts all;
  for (uint64_t seed = flags.first; seed < flags.first + flags.seeds; ++seed) {
    const RecoveryOutcome outcome =
        Play({.seed = seed, .nodes = flags.nodes, .gentle = flags.gentle});
    all.Add(outcome.counts);
    if (!outcome.wrong.empty()) {
      wrong.push_back(seed);
      std::cout << "seed " << seed << ": " << outcome.wrong << "\n";
    }
    if (flags.verbose) {
      std::cout << absl::StrFormat("seed %d: %016x, %s\n", seed, outcome.digest,
                                   outcome.counts.ToString());
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::cout << absl::StrFormat("%d seeds, %.1f ms each; %d went wrong%s%s\n%s\n", flags.seeds,
                               1e3 * took.count() / static_cast<double>(flags.seeds), wrong.size(),
                               wrong.empty() ? "" : ": ", absl::StrJoin(wrong, ", "),
                               all.ToString());
  for (const auto& [words, n] : all.failures) std::cout << n << " failed: " << words << "\n";
  for (const auto& [words, n] : all.refusals) std::cout << n << " refused: " << words << "\n";
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::Flags flags;
  CLI::App app("Requests in a simulated cluster, seed by seed");
  app.add_option("--seeds", flags.seeds, "How many")->check(CLI::PositiveNumber);
  app.add_option("--first", flags.first, "The first of them");
  app.add_option("--nodes", flags.nodes, "In each simulated cluster; by the seed unless given");
  app.add_flag("--gentle", flags.gentle, "One thing at a time happens");
  app.add_flag("--verbose", flags.verbose, "A line for each seed");
  CLI11_PARSE(app, argc, argv);
  return strata::Run(flags);
}
