// Machines on one network, each with a node as a person starts it: with a key that it made or was
// given, or none.
#pragma once

#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/net/network.h"
#include "tests/support/temp_folder.h"

namespace strata {

// The line with which a node says that it listens.
inline constexpr char kListens[] = "{\"node\":";

// A machine on the network with a node that has no key, and a data dir of its own.
class Machine {
 public:
  // `measures`: the node measures its devices, which takes the cores for seconds.
  Machine(Switch* lan, const std::string& name, int last, bool measures)
      : host_(name), name_(name), measures_(measures) {
    lan->Plug(host_, "eth0", {absl::StrCat("10.80.0.", last, "/24")});
  }
  // Does not wait: the node may listen only once it was admitted.
  void Start(const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"/usr/bin/env",
                                     testing::kNoTestKey,
                                     STRATA_PROGRAM,
                                     "node",
                                     "--name",
                                     name_,
                                     "--data-dir",
                                     folder_,
                                     "--threads",
                                     "1",
                                     "--stop-with-parent",
                                     "--listen",
                                     "[::]:7400"};
    if (!measures_) args.push_back("--no-measure");
    args.insert(args.end(), more.begin(), more.end());
    ChildProcess::Options options;
    options.program = "/usr/bin/nsenter";
    options.args = host_.Inside(std::move(args));
    options.on_stdout_line = [lines = lines_](absl::string_view line) { lines->Add(line); };
    options.on_stderr_line = [lines = lines_](absl::string_view line) { lines->Add(line); };
    auto started = ChildProcess::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status();
    process_ = *std::move(started);
  }
  void Stop() { process_.reset(); }

  // All output of its node.
  std::string log() const { return lines_->All(); }
  bool Says(const std::string& words) const {
    return Eventually([&] { return log().find(words) != std::string::npos; });
  }
  // Runs a verb on this machine, with `input` on its stdin. Whether its status is 0; `out` is its
  // output.
  bool Run(const std::string& verb, std::string* out, const std::string& input = "") const {
    return host_.TryShell(absl::StrCat("echo '", input, "' | ", testing::kNoTestKey, " ",
                                       STRATA_PROGRAM, " ", verb, " --data-dir ", folder_, " 2>&1"),
                          out);
  }
  std::string Output(const std::string& verb, const std::string& input = "") const {
    std::string out;
    Run(verb, &out, input);
    return out;
  }
  // Number of alive nodes in this machine's `strata nodes`.
  size_t Alive() const {
    const auto json = nlohmann::json::parse(Output("nodes --json"), nullptr, false);
    size_t alive = 0;
    if (json.is_object()) {
      for (const auto& node : json["nodes"]) alive += node["state"] == "alive" ? 1 : 0;
    }
    return alive;
  }
  bool HasKey() const { return std::filesystem::exists(KeyPath()); }
  std::string KeyPath() const { return folder_ + "/cluster_key"; }
  const std::string& folder() const { return folder_; }
  const std::string& name() const { return name_; }
  pid_t pid() const { return process_->pid(); }

 private:
  struct Lines {
    void Add(absl::string_view line) {
      absl::MutexLock lock(mu);
      lines.emplace_back(line);
    }
    std::string All() {
      absl::MutexLock lock(mu);
      return absl::StrJoin(lines, "\n");
    }
    absl::Mutex mu;
    std::vector<std::string> lines ABSL_GUARDED_BY(mu);
  };

  const Host host_;
  const std::string name_;
  const bool measures_;
  const std::string folder_ = testing::MakeTestFolder();
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();  // shared with the callbacks
  std::unique_ptr<ChildProcess> process_;
};

class Machines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
    lan_ = std::make_unique<Switch>("lan");
  }
  std::unique_ptr<Machine> Add(const std::string& name) {
    return std::make_unique<Machine>(lan_.get(), name, ++last_, measure_);
  }
  // Founds a cluster.
  std::unique_ptr<Machine> AddFounder(const std::string& name,
                                      const std::vector<std::string>& options = {}) {
    auto machine = Add(name);
    machine->Start(options);
    EXPECT_TRUE(machine->Says(kListens)) << machine->log();
    return machine;
  }
  // Becomes a member of the founder's cluster.
  std::unique_ptr<Machine> AddMember(const Machine& founder, const std::string& name) {
    auto machine = Add(name);
    machine->Start();
    Admit(founder, *machine);
    return machine;
  }
  static void Admit(const Machine& founder, const Machine& machine) {
    std::string said;
    EXPECT_TRUE(Eventually([&] {
      return founder.Run(absl::StrCat("approve ", machine.name()), &said, "y");
    })) << said
        << machine.log();
    EXPECT_TRUE(machine.Says(kListens)) << machine.log();
  }

  std::unique_ptr<Switch> lan_;
  bool measure_ = false;  // of machines added from now on
  int last_ = 0;
};

}  // namespace strata
