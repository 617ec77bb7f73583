// Two nodes with the demo model over both, its layers halved, and their HTTP APIs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/http_client.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {

// The events of a stream up to [DONE], which must be its last.
inline std::vector<nlohmann::json> EventsOf(const std::string& body) {
  std::vector<nlohmann::json> events;
  std::vector<std::string> parts = absl::StrSplit(body, "\n\n", absl::SkipEmpty());
  EXPECT_FALSE(parts.empty());
  if (parts.empty()) return events;
  EXPECT_EQ(parts.back(), "data: [DONE]");
  parts.pop_back();
  for (const std::string& part : parts) {
    if (absl::StartsWith(part, ":")) continue;  // a comment: the stream is quiet
    events.push_back(nlohmann::json::parse(absl::StripPrefix(part, "data: "), nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << part;
  }
  return events;
}

class ApiCluster : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  void SetUp() override {
    for (const char* name : {"attic", "cellar"}) StartNode(name);
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
    const Json loaded = Run(0, {"load", STRATA_DEMO_MODEL, "--assign", "attic=0-2,cellar=3-5",
                                "--seqs", absl::StrCat(seqs()), "--ctx", "2048", "--json"});
    ASSERT_TRUE(loaded.is_object()) << loaded;
    name_ = loaded["model"];
  }

  // Texts at a time.
  virtual int seqs() const { return 16; }

  void StartNode(const std::string& name) {
    std::vector<std::string> args = {"node",   "--listen", "127.0.0.1:0", "--no-mdns",
                                     "--name", name,       "--threads",   "1",
                                     "--http", "0",        "--data-dir",  MakeTestFolder()};
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

  template <typename Condition>
  static bool Eventually(Condition condition) {
    const absl::Time until = absl::Now() + Program::kLong;
    while (!condition()) {
      if (absl::Now() > until) return false;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return true;
  }

  Json Run(size_t node, std::vector<std::string> args) {
    args.insert(args.end(), {"--node", addresses_[node]});
    Program program(std::move(args));
    if (program.ExitStatus() != 0) return program.err();
    return Json::parse(program.out(), nullptr, /*allow_exceptions=*/false);
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
  Json Completion(size_t node, const Json& body) {
    const HttpReply reply = Post(node, "/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  // Of that node's /metrics; -1: it does not say it.
  double MetricOf(size_t node, const std::string& name) {
    const HttpReply reply = Get(node, "/metrics");
    for (absl::string_view line : absl::StrSplit(reply.body, '\n')) {
      double value = 0;
      if ((absl::StartsWith(line, name + "{") || absl::StartsWith(line, name + " ")) &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
        return value;
      }
    }
    return -1;
  }
  // A model's, of the node that coordinates; -1: neither says it.
  double Metric(const std::string& name) { return std::max(MetricOf(0, name), MetricOf(1, name)); }
  Json Ask(Json more = Json::object()) const {
    Json body = {{"model", name_},   {"prompt", "The old captain"},
                 {"max_tokens", 24}, {"temperature", 0.4},
                 {"top_k", 40},      {"top_p", 0.95},
                 {"seed", 7}};
    body.update(more);
    return body;
  }

  std::vector<std::unique_ptr<Program>> nodes_;
  std::vector<std::string> addresses_;
  std::vector<uint16_t> ports_;
  std::string name_;
};

}  // namespace strata::testing
