// The screen of `strata status --watch`, in several sizes.
#include "node/status/status_view.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ftxui/dom/node.hpp"
#include "ftxui/screen/screen.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLongName[] =
    "a-machine-with-a-name-that-somebody-did-not-want-to-type-twice.example";
constexpr char kWideName[] = "台所のとても速いコンピューター";

const std::vector<ftxui::Dimensions>& Sizes() {
  static const auto* const sizes = new std::vector<ftxui::Dimensions>{
      {.dimx = 80, .dimy = 24}, {.dimx = 80, .dimy = 50}, {.dimx = 120, .dimy = 40},
      {.dimx = 40, .dimy = 10}, {.dimx = 20, .dimy = 3},  {.dimx = 1, .dimy = 1},
  };
  return *sizes;
}

wire::StageStatus* AddStage(NodeReport* node, uint32_t stage, wire::StageStatus::State state) {
  wire::StageStatus* added = node->info.add_stages();
  added->set_stage(stage);
  added->mutable_layers()->set_begin(10 * stage);
  added->mutable_layers()->set_end(10 * stage + 10);
  added->mutable_epoch()->set_counter(3);
  added->set_model_name("qwen3-235b-a22b-instruct-q4_k_m");
  added->set_device("CPU");
  added->set_state(state);
  added->set_steps_done(123'456);
  added->set_resident_bytes(7ull << 30);
  return added;
}

// With devices, links and, on each node, one stage of one model.
ClusterSnapshot Cluster(int n_nodes) {
  ClusterSnapshot report;
  report.cluster.set_cluster("home");
  for (int i = 0; i < n_nodes; ++i) {
    NodeReport& node = report.nodes.emplace_back();
    node.seen.mutable_record()->set_node_id(absl::StrCat("id of ", i));
    node.seen.mutable_record()->set_name(absl::StrCat("node-", i));
    node.seen.set_state("alive");
    for (const char* name : {"CPU", "CUDA0"}) {
      wire::DeviceInfo* device = node.info.add_devices();
      device->set_name(name);
      device->set_memory_total(8ull << 30);
      device->set_memory_free(2ull << 30);
      device->mutable_speed()->set_memory_bytes_per_s(19.1e9);
    }
    AddStage(&node, static_cast<uint32_t>(i), wire::StageStatus::SERVING)
        ->set_n_stages(static_cast<uint32_t>(n_nodes));
    for (const NodeReport& other : report.nodes) {
      wire::ClusterNode* seen = node.sees.add_nodes();
      seen->mutable_record()->set_node_id(other.id());
      seen->mutable_link()->set_round_trip_p50_us(310);
      seen->mutable_link()->set_round_trip_p99_us(900);
      seen->mutable_link()->set_bytes_per_s(117'000'000);
    }
  }
  if (n_nodes > 0) {
    report.cluster.set_asked("id of 0");
    report.cluster.set_coordinator("id of 0");
  }
  return report;
}

// A cluster with all kinds of problems, in which every name is too long.
ClusterSnapshot Trouble() {
  ClusterSnapshot report = Cluster(4);
  report.cluster.clear_coordinator();
  report.cluster.set_cluster(kLongName);
  report.nodes[0].seen.mutable_record()->set_name(kLongName);
  report.nodes[1].seen.mutable_record()->set_name(kWideName);
  report.nodes[1].info.mutable_devices(0)->clear_speed();
  report.nodes[1].info.mutable_devices(0)->set_problem("the driver says \x1b[2Jno");
  wire::StageStatus* failed = report.nodes[0].info.mutable_stages(0);
  failed->set_state(wire::StageStatus::FAILED);
  failed->mutable_status()->set_code(10);
  std::string message = "the worker aborted while serving (signal 6, Aborted): ";
  for (int i = 0; i < 100; ++i) message += "GGML_ASSERT(a->ne[0]==b->ne[0]) failed ";
  failed->mutable_status()->set_message(message);
  wire::StageStatus* loading = report.nodes[1].info.mutable_stages(0);
  loading->set_state(wire::StageStatus::LOADING);
  loading->mutable_progress()->set_bytes_done(30'000'000'000);
  loading->mutable_progress()->set_bytes_total(100'000'000'000);
  report.nodes[2].seen.set_state("gone");
  report.nodes[2].seen.set_last_heard_ms(12'000);
  report.nodes[2].status = absl::UnavailableError("it is gone");
  report.nodes[2].info.Clear();
  report.nodes[3].seen.set_state("other version");
  report.nodes[3].info.Clear();
  return report;
}

std::string Text(const ftxui::Screen& screen) {
  std::string text;
  for (int y = 0; y < screen.dimy(); ++y) {
    for (int x = 0; x < screen.dimx(); ++x) text += screen.PixelAt(x, y).character;
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text += '\n';
  }
  return text;
}

struct Rendered {
  std::string text;
  StatusScreen screen;
};
Rendered RenderView(const StatusView& view, ftxui::Dimensions size) {
  Rendered rendered{.text = "", .screen = DrawStatus(view, size)};
  ftxui::Screen screen(size.dimx, size.dimy);
  ftxui::Render(screen, rendered.screen.element);
  // Nothing is outside of the screen.
  EXPECT_LE(rendered.screen.element->requirement().min_x, size.dimx);
  EXPECT_LE(rendered.screen.element->requirement().min_y, size.dimy);
  rendered.text = Text(screen);
  EXPECT_THAT(rendered.text, Not(HasSubstr("\x1b")));
  return rendered;
}

StatusView ViewOf(const ClusterSnapshot& report, const ClusterSnapshot* before = nullptr) {
  StatusView view;
  view.report = &report;
  view.models = ModelsOf(report, before);
  view.address = "10.0.0.2:7400";
  view.age_ms = 300;
  return view;
}

// All lines, as scrolling shows them one page after the other.
std::string AllPages(StatusView view, ftxui::Dimensions size) {
  std::string all;
  for (view.first_line = 0;;) {
    const Rendered rendered = RenderView(view, size);
    all += rendered.text;
    const size_t next = view.first_line + std::max<size_t>(1, rendered.screen.page_lines);
    view.first_line = next;
    if (RenderView(view, size).screen.first_line != next) {
      view.first_line = SIZE_MAX;
      return all + RenderView(view, size).text;
    }
  }
}

TEST(StatusView, NothingIsWiderOrHigherThanTheScreen) {
  std::vector<ClusterSnapshot> reports;
  for (const int n_nodes : {0, 1, 4, 30}) reports.push_back(Cluster(n_nodes));
  reports.push_back(Trouble());
  for (const ClusterSnapshot& report : reports) {
    for (const ftxui::Dimensions size : Sizes()) {
      SCOPED_TRACE(absl::StrCat(report.nodes.size(), " nodes, ", size.dimx, "x", size.dimy));
      RenderView(ViewOf(report), size);
      for (const ftxui::Element& line : StatusLines(report, ModelsOf(report, nullptr), size.dimx)) {
        line->ComputeRequirement();
        EXPECT_LE(line->requirement().min_x, size.dimx);
        EXPECT_EQ(line->requirement().min_y, 1);
      }
    }
  }
}

TEST(StatusView, OneScreenOf80ColumnsHasAllOfASmallCluster) {
  ClusterSnapshot before = Cluster(2), now = Cluster(2);
  for (ClusterSnapshot* report : {&before, &now}) {
    for (NodeReport& node : report->nodes) {
      wire::StageStatus* stage = node.info.mutable_stages(0);
      stage->set_told_ms(report == &before ? 1'000 : 2'000);
      if (report == &now) stage->set_steps_done(stage->steps_done() + 12);
    }
  }
  const std::string text = RenderView(ViewOf(now, &before), {.dimx = 80, .dimy = 24}).text;
  EXPECT_THAT(text,
              AllOf(HasSubstr("Cluster home, node-0 coordinates"), HasSubstr("2 nodes, 1 model"),
                    HasSubstr("report of 10.0.0.2:7400, 0.3 s ago"),
                    ContainsRegex("node-0 +alive +CPU +██████░░ +2.0 GiB +8.0 GiB +19.1 GB/s"),
                    ContainsRegex("  CUDA0 +██████░░")));
  EXPECT_THAT(text, AllOf(HasSubstr("Model qwen3-235b-a22b-instruct-q4_k_m: 20 layers, epoch 3, "
                                    "12.0 steps/s"),
                          ContainsRegex("0 +0-9 +node-0 +CPU +12.0 steps/s +123468 +7.0 GiB"),
                          ContainsRegex("1 +10-19 +node-1"),
                          ContainsRegex("node-0 +node-1 +0.31 ms +0.90 ms +936 Mbit/s"),
                          HasSubstr("q quits\n")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("!")), Not(HasSubstr("PgUp"))));
}

TEST(StatusView, ANodeThatDoesNotMeasureShowsItsMemory) {
  ClusterSnapshot report = Cluster(1);
  report.nodes[0].info.clear_devices();
  report.nodes[0].info.set_memory_total(4ull << 30);
  report.nodes[0].info.set_memory_free(3ull << 30);
  EXPECT_THAT(RenderView(ViewOf(report), {.dimx = 80, .dimy = 24}).text,
              ContainsRegex("node-0 +alive +- +██░░░░░░ +3.0 GiB +4.0 GiB"));
}

TEST(StatusView, ShowsProblemsFirst) {
  const ClusterSnapshot report = Trouble();
  const Rendered rendered = RenderView(ViewOf(report), {.dimx = 80, .dimy = 50});
  EXPECT_THAT(rendered.text,
              AllOf(HasSubstr("no node coordinates"), HasSubstr("2 of 4 nodes"),
                    HasSubstr("! no node coordinates at present"),
                    HasSubstr("/CPU is not used: the driver says \\u001b[2Jno"),
                    HasSubstr("the worker aborted while serving (signal 6, Aborted)"),
                    HasSubstr("! node-2: it is gone"), HasSubstr("node-3 uses protocol 0")));
  EXPECT_THAT(rendered.text,
              AllOf(ContainsRegex("node-2 +gone, 12 s"), ContainsRegex("node-3 +other version"),
                    ContainsRegex("0-9 .* failed"), ContainsRegex("10-19 .* loading, 30 % of"),
                    ContainsRegex("2-3 +on no node that answers"), HasSubstr("not usable")));
}

TEST(StatusView, ANarrowScreenKeepsTheImportantColumns) {
  const std::string text = AllPages(ViewOf(Cluster(4)), {.dimx = 40, .dimy = 10});
  EXPECT_THAT(text, AllOf(HasSubstr("Cluster home, node-0 coordinates"),
                          ContainsRegex("node-3 +alive +CPU +2.0 GiB"),
                          ContainsRegex("30-39 +node-3 +.*idle"),
                          ContainsRegex("node-2 +node-3 .*936 Mbit/s")));
}

TEST(StatusView, ScrollingShowsManyNodes) {
  const ClusterSnapshot report = Cluster(30);
  for (const ftxui::Dimensions size : Sizes()) {
    if (size.dimy < 10) continue;
    const std::string text = AllPages(ViewOf(report), size);
    for (const NodeReport& node : report.nodes) {
      EXPECT_THAT(text, ContainsRegex(absl::StrCat(node.name(), " +alive")));
    }
    EXPECT_THAT(text, HasSubstr("395 more"));
    EXPECT_THAT(text, HasSubstr("lines 1-"));
  }
}

TEST(StatusView, ScrollingEndsAtTheLastLine) {
  const ClusterSnapshot report = Cluster(30);
  StatusView view = ViewOf(report);
  view.first_line = SIZE_MAX;
  const Rendered rendered = RenderView(view, {.dimx = 80, .dimy = 24});
  EXPECT_EQ(rendered.screen.page_lines, 20u);
  EXPECT_GT(rendered.screen.first_line, 0u);
  EXPECT_LT(rendered.screen.first_line, 1'000u);
  EXPECT_THAT(rendered.text, HasSubstr("395 more"));
  // Lines that fit need no scrolling.
  const ClusterSnapshot small = Cluster(1);
  view = ViewOf(small);
  view.first_line = 7;
  EXPECT_EQ(RenderView(view, {.dimx = 80, .dimy = 24}).screen.first_line, 0u);
}

TEST(StatusView, ShowsThatTheReportIsOldWhenNoNodeAnswers) {
  const ClusterSnapshot report = Cluster(2);
  StatusView view = ViewOf(report);
  view.age_ms = 12'400;
  view.problem = "no node answers at 10.0.0.2:7400";
  for (const ftxui::Dimensions size : Sizes()) {
    if (size.dimx < 80) continue;
    EXPECT_THAT(RenderView(view, size).text,
                AllOf(HasSubstr("! 12 s old: no node answers at 10.0.0.2:7400; trying again"),
                      ContainsRegex("node-1 +alive")));
  }
}

TEST(StatusView, ShowsThatTheReportIsOfAnotherNode) {
  const ClusterSnapshot report = Cluster(2);
  StatusView view = ViewOf(report);
  view.gone_address = "10.0.0.1:7400";
  EXPECT_THAT(RenderView(view, {.dimx = 80, .dimy = 24}).text,
              HasSubstr("report of 10.0.0.2:7400, 0.3 s ago; 10.0.0.1:7400 does not answer\n"));
}

TEST(StatusView, ShowsTheCalledNodeBeforeTheFirstAnswer) {
  StatusView view;
  view.address = "10.0.0.2:7400";
  EXPECT_THAT(RenderView(view, {.dimx = 80, .dimy = 24}).text,
              HasSubstr("waiting for 10.0.0.2:7400 …"));
  view.problem = "no node answers at 10.0.0.2:7400";
  EXPECT_THAT(RenderView(view, {.dimx = 80, .dimy = 24}).text,
              HasSubstr("\nno node answers at 10.0.0.2:7400; trying again"));
}

}  // namespace
}  // namespace strata
