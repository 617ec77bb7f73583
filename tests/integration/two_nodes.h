// Two nodes that have found each other, used through the program's verbs and by HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/http_client.h"
#include "tests/support/measured_speeds.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {

class TwoNodes : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  ~TwoNodes() override {
    for (const std::string& folder : folders_) KeepMeasuredSpeeds(STRATA_PROGRAM, folder);
  }
  void SetUp() override {
    for (size_t node : {0, 1}) {
      folders_.push_back(MakeTestFolder());
      nodes_.emplace_back();
      addresses_.emplace_back();
      ports_.push_back(0);
      ASSERT_NO_FATAL_FAILURE(StartNode(node, addresses_[0]));
    }
    ASSERT_TRUE(Eventually([this] {
      for (size_t i = 0; i < nodes_.size(); ++i) {
        const Json status = Run(i, {"status", "--json"});
        if (!status.is_object() || status["nodes"].size() != 2) return false;
        for (const auto& node : status["nodes"]) {
          if (node["state"] != "alive" || !node["answers"].get<bool>()) return false;
        }
      }
      return true;
    }));
  }

  // Waits for all devices of both nodes: also for software devices, whose shaders are compiled
  // first.
  bool WaitUntilMeasured() {
    const auto measured = [this] {
      const Json status = Run(0, {"status", "--json"});
      if (!status.is_object()) return false;
      for (const auto& node : status["nodes"]) {
        if (node["measuring"].get<bool>() || node["devices"].empty()) return false;
        for (const auto& device : node["devices"]) {
          if (device["memory_bytes_per_s"] == 0) return false;
        }
      }
      return true;
    };
    return Eventually(measured, absl::Milliseconds(500), 3 * Program::kLong);
  }

  // The node that coordinates, once both agree: each began as its own coordinator. 99: they don't.
  size_t Coordinator() {
    size_t found = 99;
    EXPECT_TRUE(Eventually([&] {
      const Json status = Run(0, {"status", "--json"});
      const Json other = Run(1, {"status", "--json"});
      if (!status.is_object() || !other.is_object()) return false;
      if (status["coordinator"] != other["coordinator"]) return false;
      for (const auto& each : status["nodes"]) {
        if (each["id"] == status["coordinator"]) found = each["name"] == kNames[0] ? 0 : 1;
      }
      return found != 99;
    }));
    return found;
  }

  // A node that has been killed starts anew, at another address.
  void StartAgain(size_t node) {
    nodes_[node].reset();
    StartNode(node, addresses_[1 - node]);
  }

  // More options for `strata node`.
  virtual std::vector<std::string> NodeArgs() const { return {}; }
  virtual std::vector<std::string> NodeArgsOf(size_t /*node*/) const { return NodeArgs(); }

  // Loads the demo model, half of its layers on each; returns the JSON of `strata load`.
  Json LoadOnBoth(uint32_t seqs, uint32_t n_ctx, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {
        "load",   STRATA_DEMO_MODEL,  "--assign", "attic=0-2,cellar=3-5",
        "--seqs", absl::StrCat(seqs), "--ctx",    absl::StrCat(n_ctx),
        "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return Run(0, std::move(args));
  }

  template <typename Condition>
  static bool Eventually(Condition condition, absl::Duration poll = absl::Milliseconds(50),
                         absl::Duration limit = Program::kLong) {
    const absl::Time until = absl::Now() + limit;
    while (!condition()) {
      if (absl::Now() > until) return false;
      absl::SleepFor(poll);
    }
    return true;
  }

  // strata VERB… through a node.
  std::unique_ptr<Program> Strata(size_t node, std::vector<std::string> args) {
    args.insert(args.end(), {"--node", addresses_[node]});
    return std::make_unique<Program>(std::move(args));
  }
  // The JSON that it wrote; where it failed, a string: its stderr.
  Json Run(size_t node, std::vector<std::string> args) {
    const auto program = Strata(node, std::move(args));
    if (program->ExitStatus() != 0) return program->err();
    return Json::parse(program->out(), nullptr, /*allow_exceptions=*/false);
  }
  // Node `node` in the status that node `asked` shows.
  Json Node(size_t asked, size_t node) {
    const Json status = Run(asked, {"status", "--json"});
    for (const auto& each : status["nodes"]) {
      if (each["name"] == kNames[node]) return each;
    }
    return {{"state", "unknown"}, {"stages", Json::array()}};
  }

  HttpReply Get(size_t node, const std::string& path) {
    HttpClient client(ports_[node]);
    EXPECT_TRUE(client.Get(path));
    return client.Read();
  }
  HttpReply Post(size_t node, const std::string& path, const Json& body) {
    HttpClient client(ports_[node]);
    EXPECT_TRUE(client.Post(path, body.dump()));
    return client.Read();
  }

  static constexpr const char* kNames[] = {"attic", "cellar"};
  std::vector<std::unique_ptr<Program>> nodes_;
  std::vector<std::string> addresses_;
  std::vector<uint16_t> ports_;       // of HTTP
  std::vector<std::string> folders_;  // of the nodes' data

 private:
  void StartNode(size_t node, const std::string& peer) {
    std::vector<std::string> args = {"node",   "--listen",   "127.0.0.1:0", "--no-mdns",
                                     "--name", kNames[node], "--threads",   "1",
                                     "--http", "0",          "--data-dir",  folders_[node]};
    UseMeasuredSpeeds(STRATA_PROGRAM, folders_[node]);
    for (std::string& arg : NodeArgsOf(node)) args.push_back(std::move(arg));
    if (!peer.empty()) args.insert(args.end(), {"--peer", peer});
    nodes_[node] = std::make_unique<Program>(std::move(args));
    const Json ready = Json::parse(nodes_[node]->FirstLine(), nullptr, false);
    ASSERT_TRUE(ready.is_object()) << nodes_[node]->err();
    addresses_[node] = ready["node"]["address"];
    const std::string url = ready["node"]["http"];
    uint32_t port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1), &port)) << url;
    ports_[node] = static_cast<uint16_t>(port);
  }
};

}  // namespace strata::testing
