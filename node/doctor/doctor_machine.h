// What a machine finds out about itself for `strata doctor`: interfaces and whether multicast works
// on them, memory, devices, the data folder, firewalls. Any thread but the loop: blocks while it
// listens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/doctor.pb.h"

namespace strata {

struct ExamineOptions {
  std::string data_dir;             // empty: none
  std::string program;              // strata, to list the devices; empty: they are not
  std::function<bool()> cancelled;  // asked often; may be null
};
wire::MachineFacts ExamineMachine(const ExamineOptions& options);

// The makers of graphics cards, from the kernel alone: a card whose plug-in or driver is missing is
// in no list of ggml's. `root` is where /dev and /sys are.
std::vector<std::string> FindCards(const std::string& root);

}  // namespace strata
