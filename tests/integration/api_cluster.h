// Two nodes with the demo model over both, and their HTTP APIs.
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
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/two_nodes.h"

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

class ApiCluster : public TwoNodes {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    const Json loaded = LoadOnBoth(seqs(), n_ctx(), LoadArgs());
    ASSERT_TRUE(loaded.is_object()) << loaded;
    name_ = loaded["model"];
  }

  // Sequences at a time.
  virtual uint32_t seqs() const { return 16; }
  virtual uint32_t n_ctx() const { return 2048; }
  // More options for `strata load`.
  virtual std::vector<std::string> LoadArgs() const { return {}; }

  Json Completion(size_t node, const Json& body) {
    const HttpReply reply = Post(node, "/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  // From that node's /metrics; -1: it has no such metric.
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
  // A metric of a model, which only the coordinator has; -1: neither node has it.
  double Metric(const std::string& name) { return std::max(MetricOf(0, name), MetricOf(1, name)); }
  Json Ask(const Json& more = Json::object()) const {
    Json body = {{"model", name_},   {"prompt", "The old captain"},
                 {"max_tokens", 24}, {"temperature", 0.4},
                 {"top_k", 40},      {"top_p", 0.95},
                 {"seed", 7}};
    body.update(more);
    return body;
  }

  std::string name_;
};

// The tests of one program use the same cluster, one after the other: starting it takes longer than
// most of them. One that fails leaves it to no other, and one that changes it (Renew()) neither.
// The model is loaded so that outputs do not depend on what earlier tests left in its caches.
class SharedApiCluster : public ApiCluster {
 protected:
  std::vector<std::string> LoadArgs() const override { return {"--exact"}; }
  void SetUp() override {
    if (kept_.nodes.empty()) {
      ApiCluster::SetUp();
      return;
    }
    nodes_ = std::exchange(kept_.nodes, {});
    addresses_ = kept_.addresses;
    ports_ = kept_.ports;
    folders_ = kept_.folders;
    name_ = kept_.name;
  }
  void TearDown() override {
    if (HasFailure() || is_changed_) return;
    kept_ = {std::move(nodes_), addresses_, ports_, folders_, name_};
  }
  static void TearDownTestSuite() { kept_ = {}; }

  // The next test has a cluster of its own.
  void Renew() { is_changed_ = true; }

 private:
  struct Kept {
    std::vector<std::unique_ptr<Program>> nodes;
    std::vector<std::string> addresses;
    std::vector<uint16_t> ports;
    std::vector<std::string> folders;
    std::string name;
  };
  inline static Kept kept_;
  bool is_changed_ = false;
};

}  // namespace strata::testing
