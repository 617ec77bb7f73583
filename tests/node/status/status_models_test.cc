#include "node/status/status_models.h"

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

struct StageInput {
  uint32_t stage = 0;
  uint32_t begin = 0, end = 0;
  uint64_t epoch = 1;
  std::string model = "tinz";
};

wire::StageStatus* Add(NodeReport* node, const StageInput& input) {
  wire::StageStatus* stage = node->info.add_stages();
  stage->set_stage(input.stage);
  stage->mutable_layers()->set_begin(input.begin);
  stage->mutable_layers()->set_end(input.end);
  stage->mutable_epoch()->set_counter(input.epoch);
  stage->set_model_name(input.model);
  stage->set_n_stages(3);
  stage->set_state(wire::StageStatus::SERVING);
  return stage;
}

ClusterSnapshot TwoNodes() {
  ClusterSnapshot report;
  for (const char* name : {"kitchen", "attic"}) {
    NodeReport& node = report.nodes.emplace_back();
    node.seen.mutable_record()->set_node_id(std::string("id of ") + name);
    node.seen.mutable_record()->set_name(name);
  }
  return report;
}

TEST(ModelsOf, PutsStagesOfAllNodesInThePlansOrder) {
  ClusterSnapshot report = TwoNodes();
  Add(&report.nodes.front(), {.stage = 2, .begin = 8, .end = 10});
  Add(&report.nodes.front(), {.stage = 0, .begin = 0, .end = 4});
  Add(&report.nodes[1], {.stage = 1, .begin = 4, .end = 8});
  const auto models = ModelsOf(report, nullptr);
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].name, "tinz");
  EXPECT_EQ(models[0].n_layers(), 10u);
  ASSERT_EQ(models[0].stages.size(), 3u);
  EXPECT_EQ(models[0].stages[0].node, "kitchen");
  EXPECT_EQ(models[0].stages[1].node, "attic");
  EXPECT_EQ(LayersText(models[0].stages[1].status.layers()), "4-7");
  EXPECT_EQ(StageText(models[0].stages[2]), "2");
}

TEST(ModelsOf, ModelsOfOneNameAreShownWithTheirIds) {
  ClusterSnapshot report = TwoNodes();
  Add(&report.nodes.front(), {.stage = 0, .end = 4})->set_model_id(std::string(32, '\x11'));
  Add(&report.nodes[1], {.stage = 1, .begin = 4, .end = 8})->set_model_id(std::string(32, '\x22'));
  Add(&report.nodes[1], {.stage = 0, .end = 4, .model = "b"})
      ->set_model_id(std::string(32, '\x33'));
  const auto models = ModelsOf(report, nullptr);
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].name, "b");
  EXPECT_EQ(models[1].name, "tinz@111111111111");
  EXPECT_EQ(models[2].name, "tinz@222222222222");
}

TEST(ModelsOf, KeepsModelsAndPlansApartTheNewestFirst) {
  ClusterSnapshot report = TwoNodes();
  Add(&report.nodes.front(), {.stage = 0, .end = 4, .epoch = 3, .model = "b"});
  Add(&report.nodes[1], {.stage = 0, .end = 4, .epoch = 12, .model = "b"});
  Add(&report.nodes[1], {.stage = 0, .end = 4, .epoch = 3, .model = "a"});
  const auto models = ModelsOf(report, nullptr);
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].name, "a");
  EXPECT_EQ(models[1].epoch.counter(), 12u);
  EXPECT_EQ(models[2].epoch.counter(), 3u);
}

TEST(ModelsOf, ShowsStagesThatNoNodeReports) {
  ClusterSnapshot report = TwoNodes();
  Add(&report.nodes.front(), {.stage = 2, .begin = 8, .end = 10})->set_n_stages(1'000'000'000);
  const auto models = ModelsOf(report, nullptr);
  ASSERT_EQ(models[0].stages.size(), 3u);
  EXPECT_EQ(StageText(models[0].stages[0]), "0-1");
  EXPECT_EQ(LayersText(models[0].stages[0].status.layers()), "0-7");
  EXPECT_EQ(DoingText(models[0].stages[0]), "on no node that answers");
  EXPECT_EQ(StageText(models[0].stages[2]), "3-999999999");
  EXPECT_EQ(LayersText(models[0].stages[2].status.layers()), "");
}

TEST(ModelsOf, CountsStepsByTheNodesOwnClock) {
  ClusterSnapshot before = TwoNodes(), now = TwoNodes();
  for (ClusterSnapshot* report : {&before, &now}) {
    wire::StageStatus* stage = Add(&report->nodes.front(), {.stage = 0, .end = 4});
    stage->set_worker_pid(7);
    stage->set_told_ms(report == &before ? 1'000 : 1'500);
    stage->set_steps_done(report == &before ? 10 : 20);
  }
  EXPECT_EQ(ModelsOf(now, &before)[0].stages[0].steps_per_s, 20.0);
  EXPECT_EQ(DoingText(ModelsOf(now, &before)[0].stages[0]), "20.0 steps/s");
  EXPECT_EQ(ModelsOf(now, nullptr)[0].stages[0].steps_per_s, std::nullopt);
  // The report is not newer, or of another worker.
  EXPECT_EQ(ModelsOf(now, &now)[0].stages[0].steps_per_s, std::nullopt);
  now.nodes[0].info.mutable_stages(0)->set_worker_pid(8);
  EXPECT_EQ(ModelsOf(now, &before)[0].stages[0].steps_per_s, std::nullopt);
}

TEST(DoingText, DescribesTheState) {
  StageView stage;
  const auto doing = [&stage](wire::StageStatus::State state) {
    stage.status.set_state(state);
    return DoingText(stage);
  };
  EXPECT_EQ(doing(wire::StageStatus::FETCHING), "fetching");
  stage.status.mutable_progress()->set_bytes_done(270);
  stage.status.mutable_progress()->set_bytes_total(1000);
  EXPECT_EQ(doing(wire::StageStatus::FETCHING), "fetching, 27 % of 0.0 MiB");
  EXPECT_EQ(doing(wire::StageStatus::WAITING), "its worker starts");
  EXPECT_EQ(doing(wire::StageStatus::LOADING), "loading, 27 % of 0.0 MiB");
  EXPECT_EQ(doing(wire::StageStatus::UNLOADING), "unloading");
  EXPECT_EQ(doing(wire::StageStatus::FAILED), "failed");
  EXPECT_EQ(doing(wire::StageStatus::SERVING), "idle");
  stage.status.set_busy_ms(3);
  EXPECT_EQ(doing(wire::StageStatus::SERVING), "on a step");
  stage.status.set_busy_ms(12'340);
  EXPECT_EQ(doing(wire::StageStatus::SERVING), "on one step for 12.3 s");
  stage.status.set_busy_ms(0);
  stage.status.mutable_activations()->set_type(wire::F16);
  stage.status.mutable_activations()->set_f32_rows_max(8);
  EXPECT_EQ(doing(wire::StageStatus::SERVING), "idle, sends f32 to 8 rows, then f16");
  stage.status.set_kv_disk_bytes(3 << 20);
  stage.status.clear_activations();
  EXPECT_EQ(doing(wire::StageStatus::SERVING), "idle, keeps 3.0 MiB of prompts");
  wire::ReplicaStatus* const replica = stage.status.add_replicas();
  replica->set_node_name("attic");
  EXPECT_EQ(doing(wire::StageStatus::SERVING), "idle, keeps 3.0 MiB of prompts, copies at attic");
  replica->set_bytes_behind(1 << 20);
  EXPECT_EQ(doing(wire::StageStatus::SERVING),
            "idle, keeps 3.0 MiB of prompts, copies at attic but for 1.0 MiB");
  replica->set_note("it keeps no prompts\x1b");
  EXPECT_EQ(doing(wire::StageStatus::SERVING),
            "idle, keeps 3.0 MiB of prompts, no copies at attic: it keeps no prompts\\u001b");
  replica->clear_node_name();
  replica->set_note("no other node has room for its layers");
  EXPECT_EQ(doing(wire::StageStatus::SERVING),
            "idle, keeps 3.0 MiB of prompts, no copies: no other node has room for its layers");
}

TEST(DoingText, HandlesNodesWithoutStates) {
  StageView stage;
  EXPECT_EQ(DoingText(stage), "idle");
  stage.status.mutable_status()->set_code(10);
  EXPECT_EQ(DoingText(stage), "failed");
}

}  // namespace
}  // namespace strata
