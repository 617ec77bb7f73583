// The screen of `strata status --watch`: what is drawn of the cluster's newest report, for a
// terminal of any size. Pure; any thread. status_watch.h keeps it on the terminal.
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
  std::string asked;                        // address of the node that told it, or is asked
  std::string gone;                         // of the one before, which went away; may be empty
  std::string problem;                      // why there is nothing newer; empty: all is well
  size_t first_line = 0;                    // of the part that scrolls
};

// What scrolls: a line each, none wider than `cells`.
std::vector<ftxui::Element> StatusLines(const ClusterSnapshot& report,
                                        const std::vector<ModelView>& models, int cells);

struct StatusScreen {
  ftxui::Element element;  // as large as the terminal
  size_t first_line = 0;   // the view's, moved to where there is something
  size_t page_lines = 0;   // that scroll and are seen at once
};
StatusScreen DrawStatus(const StatusView& view, ftxui::Dimensions size);

}  // namespace strata
