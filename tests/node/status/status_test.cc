#include "node/status/status.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Two nodes: "kitchen", which coordinates, and "attic"; the second has the link between them.
ClusterSnapshot Report() {
  ClusterSnapshot report;
  report.cluster.set_cluster("home");
  for (const char* name : {"kitchen", "attic"}) {
    NodeReport& node = report.nodes.emplace_back();
    node.seen.mutable_record()->set_node_id(absl::StrCat("id of ", name));
    node.seen.mutable_record()->set_name(name);
    node.seen.set_state("alive");
    wire::DeviceInfo* device = node.info.add_devices();
    device->set_name("CPU");
    device->set_memory_total(8ull << 30);
    device->set_memory_free(6ull << 30);
    device->mutable_speed()->set_memory_bytes_per_s(20e9);
    *report.cluster.add_nodes() = node.seen;
  }
  report.cluster.set_asked("id of kitchen");
  report.cluster.set_coordinator("id of kitchen");
  wire::ClusterNode* seen = report.nodes[1].sees.add_nodes();
  seen->mutable_record()->set_node_id("id of kitchen");
  seen->mutable_link()->set_round_trip_p50_us(310);
  seen->mutable_link()->set_round_trip_p99_us(900);
  seen->mutable_link()->set_bytes_per_s(117'000'000);
  return report;
}

TEST(StatusText, ShowsNodesDevicesAndLinks) {
  const std::string text = StatusText(Report());
  EXPECT_THAT(text, AllOf(HasSubstr("Cluster home, kitchen coordinates"), HasSubstr("20.0 GB/s"),
                          HasSubstr("6.0 GiB"), HasSubstr("0.31 ms"), HasSubstr("936 Mbit/s")));
  EXPECT_THAT(text, Not(HasSubstr("!")));
}

TEST(StatusText, ShowsStagesAndHowTheyFailed) {
  ClusterSnapshot report = Report();
  wire::StageStatus* stage = report.nodes[1].info.add_stages();
  stage->set_stage(1);
  stage->mutable_layers()->set_begin(10);
  stage->mutable_layers()->set_end(16);
  stage->set_device("CPU");
  stage->set_model_name("tinz");
  stage->set_state(wire::StageStatus::SERVING);
  stage->set_steps_done(77);
  stage->set_n_stages(3);
  EXPECT_THAT(StatusText(report), AllOf(HasSubstr("Model tinz, epoch 0"),
                                        ContainsRegex("1 +10-15 +attic +CPU +77 +idle"),
                                        ContainsRegex("0 +0-9 +on no node that answers"),
                                        HasSubstr("! tinz: stage 2 is on no node that answers")));
  stage->set_state(wire::StageStatus::FAILED);
  stage->mutable_status()->set_code(10);
  stage->mutable_status()->set_message("the worker aborted");
  EXPECT_THAT(StatusText(report),
              AllOf(ContainsRegex("1 +10-15 +attic +CPU +77 +failed"),
                    HasSubstr("! attic: stage 1, layers 10-15: the worker aborted")));
}

TEST(StatusText, ShowsWhyALinkDoesNotUseUcx) {
  ClusterSnapshot report = Report();
  for (uint32_t i = 0; i < 2; ++i) {
    wire::StageStatus* stage = report.nodes[i].info.add_stages();
    stage->set_stage(i);
    stage->mutable_layers()->set_begin(10 * i);
    stage->mutable_layers()->set_end(10 * i + 10);
    stage->set_device("CPU");
    stage->set_model_name("tinz");
    stage->set_state(wire::StageStatus::SERVING);
    stage->set_n_stages(2);
    stage->set_link_wire("gRPC");
  }
  EXPECT_THAT(StatusText(report), Not(HasSubstr("from stage")));
  report.nodes[0].info.mutable_stages(0)->set_link_note("UCX failed: 10.0.0.7:81 is silent");
  EXPECT_THAT(StatusText(report),
              AllOf(ContainsRegex("0 +0-9 +kitchen +CPU +0 +gRPC +idle"),
                    ContainsRegex("1 +10-19 +attic +CPU +0 +gRPC +idle"),
                    HasSubstr("\nfrom stage 0 by gRPC: UCX failed: 10.0.0.7:81 is silent\n"),
                    Not(HasSubstr("from stage 1")), Not(HasSubstr("!"))));
}

TEST(StatusText, AStageThatLoadsIsNoProblem) {
  ClusterSnapshot report = Report();
  wire::StageStatus* stage = report.nodes[1].info.add_stages();
  stage->mutable_layers()->set_end(16);
  stage->set_n_stages(1);
  stage->set_state(wire::StageStatus::LOADING);
  stage->mutable_progress()->set_bytes_done(1 << 29);
  stage->mutable_progress()->set_bytes_total(1 << 30);
  stage->mutable_status()->set_code(14);
  stage->mutable_status()->set_message("it is still loading");
  EXPECT_THAT(StatusText(report),
              AllOf(HasSubstr("loading, 50 % of 1.0 GiB"), Not(HasSubstr("!"))));
}

TEST(StatusText, ShowsHowManyLinksAreLeftOut) {
  ClusterSnapshot report = Report();
  for (int i = 0; i < 10; ++i) {
    NodeReport& node = report.nodes.emplace_back();
    node.seen.mutable_record()->set_node_id(absl::StrCat("id ", i));
    for (const NodeReport& other : report.nodes) {
      wire::ClusterNode* seen = node.sees.add_nodes();
      seen->mutable_record()->set_node_id(other.id());
      seen->mutable_link()->set_bytes_per_s(1'000'000);
    }
  }
  EXPECT_THAT(StatusText(report), HasSubstr("and 26 more; --json has them all\n"));
}

TEST(StatusText, ShowsProblems) {
  ClusterSnapshot report = Report();
  report.cluster.clear_coordinator();
  report.nodes[0].info.mutable_devices(0)->clear_speed();
  report.nodes[0].info.mutable_devices(0)->set_problem("driver: no");
  report.nodes[0].info.add_problems("tinz cannot be served now: no such file");
  report.nodes[1].status = absl::UnavailableError("it is gone");
  report.nodes[1].info.Clear();
  EXPECT_THAT(StatusText(report), AllOf(HasSubstr("! no node coordinates"),
                                        HasSubstr("! kitchen/CPU is not used: driver: no"),
                                        HasSubstr("! kitchen: tinz cannot be served now: no such"),
                                        HasSubstr("! attic: it is gone")));
}

TEST(StatusText, ShowsThatTwoMachinesHaveOneId) {
  ClusterSnapshot report = Report();
  wire::SharedId* shared = report.nodes[1].sees.add_shared_ids();
  shared->set_node_id("id of kitchen");
  shared->set_name("kitchen");
  shared->set_taken_address("10.0.0.5:7400");
  shared->set_refused_address("10.0.0.9:7400");
  EXPECT_THAT(StatusText(report),
              HasSubstr("! two machines have the id of kitchen: 10.0.0.5:7400 is taken, "
                        "10.0.0.9:7400 is refused; "));
}

TEST(StatusText, TellsNodesOfOneNameApart) {
  ClusterSnapshot report = Report();
  report.nodes[1].seen.mutable_record()->set_name("Kitchen");
  report.cluster.mutable_nodes(1)->mutable_record()->set_name("Kitchen");
  DisambiguateNodeNames(&report);
  EXPECT_THAT(StatusText(report),
              AllOf(HasSubstr("kitchen-6964206f coordinates"), HasSubstr("Kitchen-6964206f"),
                    HasSubstr("! two nodes have the name kitchen: ")));
}

TEST(StatusJson, HasTheSameFacts) {
  ClusterSnapshot report = Report();
  wire::StageStatus* stage = report.nodes[0].info.add_stages();
  stage->mutable_layers()->set_end(16);
  stage->set_model_name("tinz");
  stage->set_state(wire::StageStatus::SERVING);
  stage->set_steps_done(77);
  wire::ModelStatus loaded;
  loaded.set_keep_alive_ms(60'000);
  const nlohmann::json json = StatusJson(report, {loaded});
  EXPECT_EQ(json["models"][0]["keep_alive_ms"], 60'000);
  EXPECT_EQ(json["cluster"], "home");
  ASSERT_EQ(json["nodes"].size(), 2u);
  EXPECT_EQ(json["nodes"][0]["devices"][0]["memory_bytes_per_s"], 20e9);
  // A measurement of either side counts for the link.
  EXPECT_EQ(json["nodes"][0]["links"].size(), 1u);
  EXPECT_EQ(json["nodes"][0]["stages"][0]["state"], "serving");
  EXPECT_EQ(json["nodes"][0]["stages"][0]["steps_done"], 77);
  EXPECT_TRUE(json["problems"].empty());
}

TEST(ClusterSnapshot, MeasuresUntilEveryLinkAndDeviceIsKnown) {
  ClusterSnapshot report = Report();
  EXPECT_FALSE(report.measuring());
  report.nodes[0].info.set_measuring(true);
  EXPECT_TRUE(report.measuring());
  report.nodes[0].info.set_measuring(false);
  report.nodes[1].sees.Clear();
  EXPECT_TRUE(report.measuring());
  // A node that does not answer is not waited for.
  report.nodes[1].status = absl::UnavailableError("gone");
  EXPECT_FALSE(report.measuring());
}

}  // namespace
}  // namespace strata
