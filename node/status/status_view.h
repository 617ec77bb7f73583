// The screen of `strata status --watch`: draws the cluster's newest report for a terminal of any
// size. Pure; any thread. status_watch.h shows it on the terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/models/cluster_snapshot.h"
#include "ftxui/dom/elements.hpp"
#include "ftxui/screen/terminal.hpp"
#include "node/status/status_models.h"

namespace strata {

struct StatusView {
  const ClusterSnapshot* report = nullptr;  // null: there is none yet
  std::vector<ModelView> models;            // of the report
  int64_t age_ms = 0;                       // of the report
  std::string address;                      // of the node that gave it, or is called
  std::string gone_address;                 // of the node before, which is gone; may be empty
  std::string problem;                      // why there is no newer report; empty: no problem
  size_t first_line = 0;                    // of the part that scrolls
};

// The lines of the part that scrolls, none wider than `cells`.
std::vector<ftxui::Element> StatusLines(const ClusterSnapshot& report,
                                        const std::vector<ModelView>& models, int cells);

struct StatusScreen {
  ftxui::Element element;  // as large as the terminal
  size_t first_line = 0;   // the view's, moved into the range of lines
  size_t page_lines = 0;   // how many of the scrolling lines are visible
};
StatusScreen DrawStatus(const StatusView& view, ftxui::Dimensions size);

}  // namespace strata
