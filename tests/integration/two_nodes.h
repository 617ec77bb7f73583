// Two nodes that have found each other, asked by the program's verbs and by HTTP.
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
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {

class TwoNodes : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  void SetUp() override {
    for (const char* name : {"attic", "cellar"}) ASSERT_NO_FATAL_FAILURE(StartNode(name));
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

  // More words for `strata node`.
  virtual std::vector<std::string> NodeArgs() const { return {}; }

  // The demo model, half of its layers on each; what `strata load` says.
  Json LoadOnBoth(uint32_t seqs, uint32_t n_ctx) {
    return Run(0, {"load", STRATA_DEMO_MODEL, "--assign", "attic=0-2,cellar=3-5", "--seqs",
                   absl::StrCat(seqs), "--ctx", absl::StrCat(n_ctx), "--json"});
  }

  template <typename Condition>
  static bool Eventually(Condition condition) {
    const absl::Time until = absl::Now() + Program::kLong;
    while (!condition()) {
      if (absl::Now() > until) return false;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return true;
  }

  // strata VERB… through a node.
  std::unique_ptr<Program> Strata(size_t node, std::vector<std::string> args) {
    args.insert(args.end(), {"--node", addresses_[node]});
    return std::make_unique<Program>(std::move(args));
  }
  // What it wrote, or a string: what it wrote of why it failed.
  Json Run(size_t node, std::vector<std::string> args) {
    const auto program = Strata(node, std::move(args));
    if (program->ExitStatus() != 0) return program->err();
    return Json::parse(program->out(), nullptr, /*allow_exceptions=*/false);
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

  std::vector<std::unique_ptr<Program>> nodes_;
  std::vector<std::string> addresses_;
  std::vector<uint16_t> ports_;  // of HTTP

 private:
  void StartNode(const std::string& name) {
    std::vector<std::string> args = {"node",   "--listen", "127.0.0.1:0", "--no-mdns",
                                     "--name", name,       "--threads",   "1",
                                     "--http", "0",        "--data-dir",  MakeTestFolder()};
    for (std::string& arg : NodeArgs()) args.push_back(std::move(arg));
    if (!addresses_.empty()) args.insert(args.end(), {"--peer", addresses_[0]});
    nodes_.push_back(std::make_unique<Program>(std::move(args)));
    const Json ready = Json::parse(nodes_.back()->FirstLine(), nullptr, false);
    ASSERT_TRUE(ready.is_object()) << nodes_.back()->err();
    addresses_.push_back(ready["node"]["address"]);
    const std::string url = ready["node"]["http"];
    uint32_t port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1), &port)) << url;
    ports_.push_back(static_cast<uint16_t>(port));
  }
};

}  // namespace strata::testing
