// Three nodes that know each other, on hosts of one switch, used through the program's verbs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/net/network.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {

class ThreeHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
    MakeHosts();
    StartNodes();
  }

  void MakeHosts() {
    lan_ = std::make_unique<Switch>("lan");
    for (size_t i = 0; i < 3; ++i) {
      hosts_.push_back(std::make_unique<Host>(absl::StrCat("host-", i + 1)));
      lan_->Plug(*hosts_[i], "eth0", {absl::StrCat("10.78.0.", i + 1, "/24")});
      folders_.push_back(MakeTestFolder());
      nodes_.emplace_back();
    }
  }
  void StartNodes() {
    for (size_t i = 0; i < 3; ++i) StartNode(i);
    for (const auto& node : nodes_) {
      for (const auto& other : nodes_) {
        ASSERT_TRUE(Eventually([&] { return node->Sees(*other); })) << node->errors();
      }
    }
  }

  // Also restarts a node that has ended, with its id and its cache.
  void StartNode(size_t host) {
    const std::string& folder = folders_[host];
    std::vector<std::string> options = OptionsOf(host);
    options.insert(options.end(), {"--data-dir", folder});
    nodes_[host] = std::make_unique<NodeOn>(hosts_[host].get(), hosts_[host]->name(),
                                            std::move(options), NodeOn::Measure::kYes);
  }
  virtual std::vector<std::string> OptionsOf(size_t host) const {
    return {"--cache-dir", folders_[host] + "/cache"};
  }

  // Runs strata on a host; its output, stdout and stderr.
  struct Outcome {
    bool ok = false;
    std::string text;
  };
  Outcome Strata(size_t host, const std::string& verb_and_options,
                 absl::Duration limit = absl::Minutes(1)) const {
    Outcome outcome;
    outcome.ok =
        hosts_[host]->TryShell(absl::StrCat("exec ", STRATA_PROGRAM, " ", verb_and_options,
                                            " --node 127.0.0.1:", nodes_[host]->port(), " 2>&1"),
                               &outcome.text, limit);
    return outcome;
  }

  // The tokens that `run ...` generates on a host; none: it failed.
  std::vector<int32_t> TokensOf(size_t host, const std::string& run) const {
    const nlohmann::json report = Json(host, run);
    if (!report.is_object()) return {};
    return report["tokens"];
  }
  // The JSON on its stdout; discarded: it failed.
  nlohmann::json Json(size_t host, const std::string& verb_and_options) const {
    std::string out;
    hosts_[host]->TryShell(
        absl::StrCat(STRATA_PROGRAM, " ", verb_and_options,
                     " --json --node 127.0.0.1:", nodes_[host]->port(), " 2>/dev/null"),
        &out);
    return nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
  }

  std::unique_ptr<Switch> lan_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::string> folders_;  // of the nodes' data
  std::vector<std::unique_ptr<NodeOn>> nodes_;
};

}  // namespace strata::testing
