#include "node/status/status_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/unit_text.h"
#include "node/status/status.h"
#include "node/status/status_table.h"

namespace strata {
namespace {

using ftxui::Color;
using ftxui::Element;

constexpr int kBarCells = 8;
// On narrower screens the title shows only the coordinator.
constexpr int kTitleCells = 60;
constexpr size_t kProblemLinesMax = 4;  // of one problem

// "1 node", "3 nodes".
std::string Count(size_t n, const std::string& what) {
  return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
}

TableCell State(const wire::ClusterNode& node) {
  const std::string& state = node.state();
  if (state == "alive") return {state, Color::Green};
  const bool gone = state == "gone" && node.last_heard_ms() >= 0;
  return {gone ? absl::StrCat(state, ", ", DurationText(node.last_heard_ms())) : state,
          state == "gone" ? Color::Red : Color::Yellow};
}

void AddProblems(const std::vector<std::string>& problems, int cells, std::vector<Element>* lines) {
  for (const std::string& problem : problems) {
    for (const std::string& line :
         WrapText(absl::StrCat("! ", problem),
                  {.cells = cells, .indent = 2, .lines_max = kProblemLinesMax})) {
      lines->push_back(ftxui::text(line) | ftxui::color(Color::Red));
    }
  }
  if (!problems.empty()) lines->push_back(ftxui::text(""));
}

void AddMemory(uint64_t free, uint64_t total, std::vector<TableCell>* row) {
  const double part = static_cast<double>(std::min(free, total)) /
                      static_cast<double>(std::max<uint64_t>(1, total));
  row->push_back({total > 0 ? BarText(1 - part, kBarCells) : ""});
  row->push_back({BytesText(free)});
  row->push_back({BytesText(total)});
}

void AddNodes(const ClusterSnapshot& report, int cells, std::vector<Element>* lines) {
  const std::vector<TableColumn> columns = {
      {.title = "NODE", .cells_min = 12},
      {.title = "STATE", .cells_min = 13},
      {.title = "DEVICE", .cells_min = 6},
      {.title = "IN USE", .drop = 3},
      {.title = "FREE", .align = Align::kRight},
      {.title = "OF", .drop = 2, .align = Align::kRight},
      {.title = "BANDWIDTH", .drop = 1, .align = Align::kRight},
  };
  std::vector<std::vector<TableCell>> rows;
  for (const NodeReport& node : report.nodes) {
    std::vector<TableCell> first = {{node.name()}, State(node.seen)};
    if (node.info.devices().empty()) {
      rows.push_back(first);
      // A node that does not measure still reports its memory.
      if (node.info.memory_total() > 0) {
        rows.back().push_back({"-"});
        AddMemory(node.info.memory_free(), node.info.memory_total(), &rows.back());
      }
    }
    for (const wire::DeviceInfo& device : node.info.devices()) {
      std::vector<TableCell>& row = rows.emplace_back(std::move(first));
      first = {{""}, {""}};
      row.push_back({device.name()});
      AddMemory(device.memory_free(), device.memory_total(), &row);
      row.push_back({BandwidthText(device),
                     device.problem().empty() ? Color(Color::Default) : Color(Color::Red)});
    }
  }
  for (Element& line : TableLines(columns, rows, cells)) lines->push_back(std::move(line));
}

Color ColorOf(const StageView& stage) {
  if (stage.n_missing > 0) return Color::Red;
  switch (stage.status.state()) {
    case wire::StageStatus::FETCHING:
    case wire::StageStatus::WAITING:
    case wire::StageStatus::LOADING:
      return Color::Yellow;
    case wire::StageStatus::FAILED:
      return Color::Red;
    default:
      return stage.status.status().code() == 0 ? Color::Green : Color::Red;
  }
}

void AddModel(const ModelView& model, int cells, std::vector<Element>* lines) {
  std::string title =
      absl::StrCat("Model ", CutText(model.name.empty() ? "without a name" : model.name, cells / 2),
                   ": ", Count(model.n_layers(), "layer"), ", epoch ", model.epoch.counter());
  const StageView& last = model.stages.back();
  if (last.steps_per_s.has_value()) {
    absl::StrAppend(&title, absl::StrFormat(", %.1f steps/s", *last.steps_per_s));
  }
  lines->push_back(ftxui::text(""));
  lines->push_back(ftxui::text(FitText(title, cells)) | ftxui::bold);
  const std::vector<TableColumn> columns = {
      {.title = "STAGE", .drop = 3, .align = Align::kRight},
      {.title = "LAYERS", .align = Align::kRight},
      {.title = "NODE", .cells_min = 14},
      {.title = "DEVICE", .cells_min = 6, .drop = 2},
      {.title = "DOING", .cells_min = 26},
      {.title = "STEPS", .drop = 5, .align = Align::kRight},
      {.title = "TOK/S", .drop = 4, .align = Align::kRight},
      {.title = "IDLE", .drop = 4, .align = Align::kRight},
      {.title = "MEMORY", .drop = 1, .align = Align::kRight},
      {.title = "NEXT BY", .drop = 6},
  };
  std::vector<std::vector<TableCell>> rows;
  for (const StageView& stage : model.stages) {
    const wire::StageStatus& status = stage.status;
    rows.push_back({{StageText(stage)},
                    {LayersText(status.layers())},
                    {stage.node},
                    {status.device()},
                    {DoingText(stage), ColorOf(stage)},
                    {stage.n_missing > 0 ? "" : absl::StrCat(status.steps_done())},
                    {RowsText(stage)},
                    {IdleText(stage)},
                    {status.resident_bytes() == 0 ? "" : BytesText(status.resident_bytes())},
                    {status.link_wire()}});
  }
  for (Element& line : TableLines(columns, rows, cells)) lines->push_back(std::move(line));
}

void AddLinks(const ClusterSnapshot& report, int cells, std::vector<Element>* lines) {
  const std::vector<LinkView> links = LinksOf(report);
  if (links.empty()) return;
  const std::vector<TableColumn> columns = {
      {.title = "LINK", .cells_min = 8},
      {.title = "", .cells_min = 8},
      {.title = "16 KiB ROUND TRIP", .cells_min = 9, .align = Align::kRight},
      {.title = "99 %", .drop = 1, .align = Align::kRight},
      {.title = "THROUGHPUT", .align = Align::kRight},
  };
  std::vector<std::vector<TableCell>> rows;
  for (const LinkView& link : links) {
    if (rows.size() == kLinksShownMax) break;
    rows.push_back({{link.from},
                    {link.to},
                    {absl::StrFormat("%.2f ms", link.speed->round_trip_p50_us() / 1e3)},
                    {absl::StrFormat("%.2f ms", link.speed->round_trip_p99_us() / 1e3)},
                    {LinkRateText(link.speed->bytes_per_s())}});
  }
  lines->push_back(ftxui::text(""));
  for (Element& line : TableLines(columns, rows, cells)) lines->push_back(std::move(line));
  if (links.size() > rows.size()) {
    lines->push_back(ftxui::text(FitText(
        absl::StrCat("and ", links.size() - rows.size(), " more; --json has them all"), cells)));
  }
}

// The cluster, in one line.
Element Title(const StatusView& view, int cells) {
  if (view.report == nullptr) return ftxui::text(FitText("Strata", cells)) | ftxui::bold;
  const std::string coordinator = CoordinatorName(*view.report);
  size_t alive = 0;
  for (const NodeReport& node : view.report->nodes) alive += node.seen.state() == "alive";
  const std::string here =
      cells < kTitleCells
          ? ""
          : absl::StrCat(alive == view.report->nodes.size() ? "" : absl::StrCat(alive, " of "),
                         Count(view.report->nodes.size(), "node"), ", ",
                         Count(view.models.size(), "model"));
  // Long names are cut in favour of the rest.
  const int name_cells = std::max(8, (cells - static_cast<int>(here.size()) - 24) / 2);
  const std::string left =
      FitText(absl::StrCat("Cluster ", CutText(view.report->cluster.cluster(), name_cells), ", ",
                           coordinator.empty() ? "no node" : CutText(coordinator, name_cells),
                           " coordinates"),
              std::max(0, cells - static_cast<int>(here.size()) - 2));
  return ftxui::text(FitText(absl::StrCat(left, "  ", here), cells)) | ftxui::bold;
}

// The age of the report, or the problem.
Element Age(const StatusView& view, int cells) {
  const std::string age = absl::StrFormat("%.1f s ago", static_cast<double>(view.age_ms) / 1e3);
  if (!view.problem.empty()) {
    const std::string shown =
        view.report == nullptr ? "" : absl::StrCat("! ", DurationText(view.age_ms), " old: ");
    return ftxui::text(FitText(absl::StrCat(shown, view.problem, "; trying again"), cells)) |
           ftxui::color(Color::Red);
  }
  if (view.report == nullptr) {
    return ftxui::text(FitText(absl::StrCat("waiting for ", view.address, " …"), cells));
  }
  const std::string gone =
      view.gone_address.empty() ? "" : absl::StrCat("; ", view.gone_address, " does not answer");
  return ftxui::text(FitText(absl::StrCat("report of ", view.address, ", ", age, gone), cells)) |
         ftxui::dim;
}

}  // namespace

std::vector<Element> StatusLines(const ClusterSnapshot& report,
                                 const std::vector<ModelView>& models, int cells) {
  std::vector<Element> lines;
  AddProblems(ProblemsOf(report, models), cells, &lines);
  AddNodes(report, cells, &lines);
  for (const ModelView& model : models) AddModel(model, cells, &lines);
  AddLinks(report, cells, &lines);
  return lines;
}

StatusScreen DrawStatus(const StatusView& view, ftxui::Dimensions size) {
  const int cells = std::max(1, size.dimx);
  std::vector<Element> body;
  if (view.report != nullptr) body = StatusLines(*view.report, view.models, cells);

  // Two lines above, an empty one, the scrolling part, and one below, as far as there is room.
  const int rows = std::max(1, size.dimy);
  const int above = rows >= 12 ? 3 : std::min(2, rows - 1);
  const int below = rows >= 4 ? 1 : 0;
  StatusScreen screen;
  screen.page_lines = static_cast<size_t>(std::max(0, rows - above - below));
  const size_t last_first = body.size() - std::min(body.size(), screen.page_lines);
  screen.first_line = std::min(view.first_line, last_first);

  ftxui::Elements all;
  if (above > 0) all.push_back(Title(view, cells));
  if (above > 1) all.push_back(Age(view, cells));
  if (above > 2) all.push_back(ftxui::text(""));
  for (size_t i = 0; i < screen.page_lines; ++i) {
    const size_t line = screen.first_line + i;
    all.push_back(line < body.size() ? body[line] : ftxui::text(""));
  }
  if (below > 0) {
    std::string keys = "q quits";
    if (last_first > 0) {
      keys = absl::StrCat("lines ", screen.first_line + 1, "-",
                          std::min(body.size(), screen.first_line + screen.page_lines), " of ",
                          body.size(), "; ↑ ↓ PgUp PgDn move, q quits");
    }
    all.push_back(ftxui::text(FitText(keys, cells)) | ftxui::dim);
  }
  screen.element = ftxui::vbox(std::move(all));
  return screen;
}

}  // namespace strata
