// Examines this machine for `strata doctor`: interfaces and multicast on them, memory, devices, the
// data folder, firewalls. Any thread but the loop: blocks while it listens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/doctor.pb.h"

namespace strata {

struct ExamineOptions {
  std::string data_dir;             // empty: none
  std::string program;              // strata, to list the devices; empty: does not list them
  std::function<bool()> cancelled;  // called often; may be null
};
wire::MachineFacts ExamineMachine(const ExamineOptions& options);

// The makers of graphics cards, from the kernel alone: ggml does not list a card whose plug-in or
// driver is missing. `root` is the folder of /dev and /sys.
std::vector<std::string> FindCards(const std::string& root);

}  // namespace strata
