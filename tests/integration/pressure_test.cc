// Nodes whose machine gives less memory than it reports: a load fails with an error, and the layers
// are placed again.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/processes.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/sanitizer.h"

namespace strata {
namespace {

using ::strata::testing::TwoNodes;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kModel[] = STRATA_DEMO_MODEL;
// The whole model needs 1.6 GB so, of which most are its caches.
const std::vector<std::string> kLarge = {"--ctx",          "60000", "--seqs",         "4",
                                         "--cache-type-k", "f32",   "--cache-type-v", "f32"};

// A process's writable memory, as RLIMIT_DATA counts it.
uint64_t DataBytes(pid_t pid) {
  const std::string status = ReadProc(pid, "status");
  const size_t at = status.find("VmData:");
  if (at == std::string::npos) return 0;
  const std::string figure = status.substr(at + 7, status.find(" kB", at) - at - 7);
  uint64_t kib = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(figure), &kib) ? kib << 10 : 0;
}

class Pressure : public TwoNodes {
 protected:
  void SetUp() override {
    if (testing::kHasAddressSanitizer) GTEST_SKIP() << "it takes address space of its own";
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    // The memory of a worker with next to nothing loaded, which depends on the machine's cores.
    ASSERT_TRUE(LoadOnBoth(/*seqs=*/1, /*n_ctx=*/64).is_object());
    const Json status = Run(0, {"status", "--json"});
    for (const auto& node : status["nodes"]) {
      worker_bytes_ = std::max(worker_bytes_, DataBytes(node["stages"][0]["worker_pid"]));
    }
    ASSERT_GT(worker_bytes_, 0u);
    ASSERT_EQ(Strata(0, {"unload"})->ExitStatus(), 0);
  }
  // Limits workers that the node starts from now on to so much more memory.
  void Limit(size_t node, uint64_t bytes) {
    const rlimit limit = {.rlim_cur = worker_bytes_ + bytes, .rlim_max = worker_bytes_ + bytes};
    ASSERT_EQ(prlimit((*nodes_[node])->pid(), RLIMIT_DATA, &limit, nullptr), 0);
  }
  static std::vector<std::string> Load(const std::vector<std::string>& more) {
    std::vector<std::string> args = {"load", kModel};
    args.insert(args.end(), kLarge.begin(), kLarge.end());
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  uint64_t worker_bytes_ = 0;
};

TEST_F(Pressure, TheLayersArePlacedAgainWithWhatThereIs) {
  for (size_t node : {0, 1}) ASSERT_NO_FATAL_FAILURE(Limit(node, 1230ull << 20));
  const auto load = Strata(0, Load({}));
  EXPECT_EQ(load->ExitStatus(), 0) << load->err();
  EXPECT_THAT(load->err(), AllOf(HasSubstr("not enough memory on CPU: the stage needs"),
                                 HasSubstr("planning again")));
  const Json status = Run(0, {"status", "--json"});
  for (const auto& node : status["nodes"]) {
    // The stage that failed may still be listed for a moment.
    const auto serves = [](const Json& stage) { return stage["state"] == "serving"; };
    EXPECT_EQ(std::count_if(node["stages"].begin(), node["stages"].end(), serves), 1)
        << status.dump(1);
  }
  const auto run = Strata(1, {"run", kModel, "One", "--max-tokens", "8"});
  EXPECT_EQ(run->ExitStatus(), 0) << run->err();
}

TEST_F(Pressure, APlacementByHandFailsWithTheDeviceAndTheBytesAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Limit(1, 260ull << 20));
  const auto load = Strata(0, Load({"--assign", "cellar=0-5"}));
  EXPECT_EQ(load->ExitStatus(), 4) << load->err();
  EXPECT_THAT(load->err(),
              AllOf(HasSubstr("stage 0 (layers 0-5) on cellar: not enough memory on CPU"),
                    HasSubstr("MiB")));
  // All memory is free again: a smaller load has room.
  const auto small = Strata(0, {"load", kModel, "--ctx", "1024", "--assign", "cellar=0-5"});
  EXPECT_EQ(small->ExitStatus(), 0) << small->err();
}

}  // namespace
}  // namespace strata
