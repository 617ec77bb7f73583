#include "node/api/metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/exposition.h"

namespace strata {
namespace {

using ::strata::testing::Exposition;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

wire::ModelStage Stage(const std::string& node) {
  wire::ModelStage stage;
  stage.set_node_name(node);
  stage.set_device("CPU");
  stage.mutable_info()->set_kv_bytes(4096);
  return stage;
}

Coordinator::ModelStats Model(const std::string& name, char id) {
  Coordinator::ModelStats model = {.name = PrintableText::From(name),
                                   .id = std::string(32, id),
                                   .serving = true,
                                   .stages = {Stage("kitchen"), Stage("attic")}};
  SchedulerStats& stats = model.scheduler;
  stats.tokens = 12;
  stats.rows = 700;
  stats.kv_cells = 100;
  stats.kv_cells_used = 25;
  stats.steps_by_rows[0] = 4;
  stats.steps_by_rows[7] = 1;
  stats.steps_by_rows.back() = 2;
  stats.stages = {{.compute_us = 1'500'000, .steps = 3, .bytes_in = 70},
                  {.compute_us = 1, .steps = 3, .bytes_in = 9'000'000'000}};
  stats.idle_share = {0.25, 1};
  stats.bytes_returned = 33;
  return model;
}

wire::StageStatus OwnStage(uint32_t stage) {
  wire::StageStatus status;
  status.set_stage(stage);
  status.set_model_name("tiny");
  status.set_device("CPU");
  status.set_state(wire::StageStatus::SERVING);
  status.set_busy_us(2'500'000);
  status.set_bytes_in(11);
  status.set_bytes_out(12);
  status.set_window_ms(10'000);
  status.set_idle_share(0.5F);
  return status;
}

TEST(Metrics, ThePageIsInPrometheusFormat) {
  MetricsView view = {.node_id = "ab", .node_name = "kitchen"};
  view.models = {Model("tiny", 'a'), Model("a \"b\"\n\\ \xFF", 'b')};
  view.stages = {OwnStage(0), OwnStage(1)};
  view.http = {.connections = 2};
  view.api = {.requests = 4, .first_token_us = 1'250'000};
  view.api.first_tokens[1] = 3;
  view.api.first_tokens.back() = 1;
  const Exposition page(MetricsText(view));
  EXPECT_THAT(page.problems(), IsEmpty());

  const Exposition::Labels odd = {{"model", "a \"b\"\\n\\ \ufffd"}};
  EXPECT_EQ(page.Value("strata_tokens_total", odd), 12);
  EXPECT_EQ(page.Value("strata_kv_used_ratio", odd), 0.25);
  EXPECT_EQ(page.Value("strata_step_rows_bucket", {{"model", "tiny"}, {"le", "64"}}), 4);
  EXPECT_EQ(page.Value("strata_step_rows_bucket", {{"model", "tiny"}, {"le", "128"}}), 5);
  EXPECT_EQ(page.Value("strata_step_rows_bucket", {{"model", "tiny"}, {"le", "+Inf"}}), 7);
  EXPECT_EQ(page.Value("strata_step_rows_sum", {{"model", "tiny"}}), 700);

  const Exposition::Labels second = {
      {"model", "tiny"}, {"stage", "1"}, {"node", "attic"}, {"device", "CPU"}};
  EXPECT_EQ(page.Value("strata_stage_compute_seconds_total", second), 1e-6);
  EXPECT_EQ(page.Value("strata_stage_idle_ratio", second), 1);
  EXPECT_EQ(page.Value("strata_stage_idle_ratio", {{"model", "tiny"}, {"node", "kitchen"}}), 0.25);
  EXPECT_EQ(page.Value("strata_stage_kv_bytes", second), 4096);

  const auto link = [&page](const std::string& from, const std::string& to) {
    return page.Value("strata_link_bytes_total", {{"model", "tiny"}, {"from", from}, {"to", to}});
  };
  EXPECT_EQ(link("coordinator", "0"), 70);
  EXPECT_EQ(link("0", "1"), 9e9);
  EXPECT_EQ(link("1", "coordinator"), 33);

  EXPECT_EQ(page.Value("strata_node_stage_busy_seconds_total", {{"stage", "1"}}), 2.5);
  EXPECT_EQ(page.Value("strata_node_stage_received_bytes_total", {{"stage", "0"}}), 11);
  EXPECT_EQ(page.Value("strata_node_stage_idle_ratio", {{"stage", "0"}}), 0.5);
  EXPECT_EQ(page.Value("strata_http_connections"), 2);
  EXPECT_EQ(page.Value("strata_api_first_token_seconds_bucket", {{"le", "0.1"}}), 3);
  EXPECT_EQ(page.Value("strata_api_first_token_seconds_count"), 4);
  EXPECT_EQ(page.Value("strata_api_first_token_seconds_sum"), 1.25);
  EXPECT_EQ(page.TypeOf("strata_tokens_total"), "counter");
}

TEST(Metrics, ModelsOfOneNameAreDistinguished) {
  const Exposition page(MetricsText({.models = {Model("tiny", 'a'), Model("tiny", 'b')}}));
  EXPECT_THAT(page.problems(), IsEmpty());
  EXPECT_THAT(page.Values("strata_tokens_total", {{"model", "tiny"}}), SizeIs(2));
}

TEST(Metrics, ANodeWithoutModelsHasAPage) {
  const Exposition page(MetricsText({.node_name = "attic"}));
  EXPECT_THAT(page.problems(), IsEmpty());
  EXPECT_EQ(page.Value("strata_node_info", {{"node", "attic"}}), 1);
}

// The test's own parser finds malformed pages.
TEST(Exposition, FindsMalformedPages) {
  const std::string head = "# HELP strata_a_total A.\n# TYPE strata_a_total counter\n";
  EXPECT_THAT(Exposition(head + "strata_a_total 1\n").problems(), IsEmpty());
  for (const std::string& text :
       {head + "strata_a_total 1", head + "strata_a_total 1\nstrata_a_total 2\n",
        head + "strata_a_total{b=\"c} 1\n", head + "strata_a_total{b=\"\\x\"} 1\n",
        head + "strata_a_total -1\n", head + "strata_b 1\n", head, std::string("strata_a 1\n"),
        head + "strata_a_total one\n",
        std::string("# HELP strata_a_ms A.\n# TYPE strata_a_ms gauge\nstrata_a_ms 1\n")}) {
    EXPECT_THAT(Exposition(text).problems(), Not(IsEmpty())) << text;
  }
}

}  // namespace
}  // namespace strata
