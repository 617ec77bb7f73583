// Plays seeds of membership in a simulated network, 200 nodes each by default, and prints how many
// came to rest: membership_sim [--nodes N] [--seeds N] [--first SEED] [--loss P] [--calm-after MS]
// [--verbose]. Prints what happened in each that did not; exits with 1 if there is one.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/sim/scenario.h"

namespace strata {
namespace {

struct Flags {
  uint64_t seeds = 10;
  uint64_t first = 1;
  size_t nodes = 200;
  double loss = 0;
  int64_t calm_after_ms = 5000;
  bool verbose = false;
};

int Run(const Flags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<uint64_t> failed;
  std::vector<int64_t> rests_ms;
  uint64_t messages = 0;
  const auto summary = [&] {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::vector<int64_t> sorted = rests_ms;
    std::sort(sorted.begin(), sorted.end());
    const auto n = static_cast<double>(rests_ms.size() + failed.size());
    return absl::StrFormat(
        "seeds %d to %d of %d nodes: %d agreed, %d did not%s%s; longest until agreement %d ms, "
        "median %d ms; %d messages, %.2f s a seed\n",
        flags.first, flags.first + rests_ms.size() + failed.size() - 1, flags.nodes,
        rests_ms.size(), failed.size(), failed.empty() ? "" : ": ", absl::StrJoin(failed, ", "),
        sorted.empty() ? 0 : sorted.back(), sorted.empty() ? 0 : sorted[sorted.size() / 2],
        messages, took.count() / n);
  };
  for (uint64_t seed = flags.first; seed < flags.first + flags.seeds; ++seed) {
    Scenario scenario = LargeScenario(seed);
    if (flags.nodes != scenario.nodes) scenario = {.seed = seed, .nodes = flags.nodes};
    scenario.loss = flags.loss;
    scenario.calm_after_ms = flags.calm_after_ms;
    const Outcome outcome = Play(scenario);
    messages += outcome.messages;
    if (outcome.wrong.empty()) {
      rests_ms.push_back(outcome.rest_ms);
    } else {
      failed.push_back(seed);
      std::cout << "seed " << seed << ": " << outcome.wrong << "\n";
    }
    if (flags.verbose) {
      std::cout << absl::StrFormat("seed %d: %d ms, %d messages, %016x\n", seed, outcome.rest_ms,
                                   outcome.messages, outcome.digest)
                << std::flush;
    }
    if ((seed - flags.first) % 100 == 99) std::cout << summary() << std::flush;
  }
  std::cout << summary();
  return failed.empty() ? 0 : 1;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::Flags flags;
  CLI::App app("Membership in a simulated network, seed by seed");
  app.add_option("--seeds", flags.seeds, "How many")->check(CLI::PositiveNumber);
  app.add_option("--first", flags.first, "The first of them");
  app.add_option("--nodes", flags.nodes, "In each simulated cluster")->check(CLI::PositiveNumber);
  app.add_option("--loss", flags.loss, "Of messages, 0.1: a tenth");
  app.add_option("--calm-after", flags.calm_after_ms, "How long after a change all is calm, ms");
  app.add_flag("--verbose", flags.verbose, "A line for each seed");
  CLI11_PARSE(app, argc, argv);
  return strata::Run(flags);
}
