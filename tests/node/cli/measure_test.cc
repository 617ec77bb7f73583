#include "node/cli/measure.h"

#include <signal.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string IdOf(char c) { return std::string(16, c); }

// "kitchen", "attic" and another "attic".
wire::GetClusterResponse Cluster() {
  wire::GetClusterResponse cluster;
  cluster.set_cluster("home");
  for (const auto& [name, c] : {std::pair("kitchen", 'k'), {"attic", 'a'}, {"attic", 'b'}}) {
    wire::ClusterNode* node = cluster.add_nodes();
    node->mutable_record()->set_node_id(IdOf(c));
    node->mutable_record()->set_name(name);
  }
  return cluster;
}

TEST(FindNodes, ByNameOrId) {
  EXPECT_THAT(FindNodes(Cluster(), {"kitchen"}), IsOkAndHolds(ElementsAre(0)));
  EXPECT_THAT(FindNodes(Cluster(), {"62626262", "kitchen", "6b6b6b6b6b"}),
              IsOkAndHolds(ElementsAre(0, 2)));
  EXPECT_THAT(FindNodes(Cluster(), {}), IsOkAndHolds(IsEmpty()));
}

TEST(FindNodes, AnErrorNamesTheNodes) {
  EXPECT_THAT(FindNodes(Cluster(), {"cellar"}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("cellar"), HasSubstr("kitchen, attic, attic"))));
  // Too few digits for an id.
  EXPECT_THAT(FindNodes(Cluster(), {"62"}), StatusIs(absl::StatusCode::kNotFound));
}

TEST(FindNodes, AsksForAnIdIfSeveralHaveTheName) {
  EXPECT_THAT(FindNodes(Cluster(), {"attic"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("61616161"), HasSubstr("62626262"))));
}

wire::DeviceInfo Device(const std::string& name, double bytes_per_s) {
  wire::DeviceInfo device;
  device.set_name(name);
  if (bytes_per_s > 0) device.mutable_speed()->set_memory_bytes_per_s(bytes_per_s);
  return device;
}

TEST(MeasuringText, NamesThePendingMeasurements) {
  wire::GetInfoResponse info;
  EXPECT_EQ(MeasuringText(info), "");
  info.set_measuring(true);
  EXPECT_EQ(MeasuringText(info), "looking for devices");
  *info.add_devices() = Device("CPU", 1e9);
  *info.add_devices() = Device("CUDA0", 0);
  EXPECT_EQ(MeasuringText(info), "measuring CUDA0");
  info.set_measuring(false);
  info.set_links_to_measure(1);
  EXPECT_EQ(MeasuringText(info), "measuring 1 link");
  info.set_links_to_measure(3);
  EXPECT_EQ(MeasuringText(info), "measuring 3 links");
}

struct LinkInput {
  char to;
  std::string name;
  uint64_t measurement;
  uint32_t us;
};

void AddLink(const LinkInput& link, wire::GetClusterResponse* sees) {
  wire::ClusterNode* node = sees->add_nodes();
  node->mutable_record()->set_node_id(IdOf(link.to));
  node->mutable_record()->set_name(link.name);
  node->mutable_link()->set_measurement(link.measurement);
  node->mutable_link()->set_round_trip_p50_us(link.us);
  node->mutable_link()->set_round_trip_p99_us(2 * link.us);
  node->mutable_link()->set_bytes_per_s(uint64_t{100'000} * link.us);
}

std::vector<MeasuredNode> Nodes() {
  std::vector<MeasuredNode> nodes(2);
  nodes[0].id = IdOf('k');
  nodes[0].name = "kitchen";
  *nodes[0].info_before.add_devices() = Device("CPU", 20e9);
  *nodes[0].info_after.add_devices() = Device("CPU", 25e9);
  *nodes[0].info_after.add_devices() = Device("CUDA0", 0);
  nodes[0].info_after.mutable_devices(1)->set_problem("the driver is too old");
  AddLink({'a', "attic", 1, 500}, &nodes[0].sees_before);
  AddLink({'a', "attic", 3, 250}, &nodes[0].sees_after);
  AddLink({'c', "cellar", 2, 700}, &nodes[0].sees_before);
  AddLink({'c', "cellar", 2, 700}, &nodes[0].sees_after);
  nodes[1].id = IdOf('a');
  nodes[1].name = "attic";
  nodes[1].status = absl::FailedPreconditionError("it computes");
  return nodes;
}

TEST(MeasurementsText, ShowsBeforeAndAfter) {
  const std::string text = MeasurementsText(Nodes());
  EXPECT_THAT(text, AllOf(HasSubstr("20.0 GB/s"), HasSubstr("25.0 GB/s"), HasSubstr("+25 %"),
                          HasSubstr("0.50 ms"), HasSubstr("0.25 ms"), HasSubstr("-50 %"),
                          HasSubstr("! kitchen/CUDA0: the driver is too old"),
                          HasSubstr("! attic: it computes")));
  EXPECT_THAT(text, HasSubstr("as before"));  // the link to the cellar was not measured
}

TEST(MeasurementsJson, HasAllFields) {
  const auto json = nlohmann::json::parse(MeasurementsJson(Nodes()), nullptr, false);
  ASSERT_TRUE(json.is_object());
  const auto& kitchen = json["nodes"][0];
  EXPECT_EQ(kitchen["devices"][0]["before"]["memory_bytes_per_s"], 20e9);
  EXPECT_EQ(kitchen["devices"][0]["after"]["memory_bytes_per_s"], 25e9);
  EXPECT_TRUE(kitchen["devices"][1]["after"].is_null());
  EXPECT_EQ(kitchen["links"][0]["after"]["round_trip_p50_us"], 250);
  EXPECT_EQ(kitchen["links"][0]["measured"], true);
  EXPECT_EQ(kitchen["links"][1]["measured"], false);
  EXPECT_EQ(json["nodes"][1]["measured"], false);
  EXPECT_EQ(json["nodes"][1]["problem"], "it computes");
}

// A node as a person starts it, and its address.
class StartedNode {
 public:
  explicit StartedNode(std::vector<std::string> more) : program_(Args(std::move(more))) {
    const auto ready = nlohmann::json::parse(program_.FirstLine(), nullptr, false);
    if (ready.is_object()) address_ = ready["node"]["address"];
  }
  ~StartedNode() { kill(program_->pid(), SIGTERM); }
  const std::string& address() const { return address_; }

 private:
  static std::vector<std::string> Args(std::vector<std::string> more) {
    std::vector<std::string> args = {"node",        "--no-http",  "--no-mdns",
                                     "--name",      "kitchen",    "--listen",
                                     "127.0.0.1:0", "--data-dir", testing::MakeTestFolder()};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  Program program_;
  std::string address_;
};

TEST(StrataMeasure, WaitsUntilTheNodeHasMeasured) {
  StartedNode node({"--threads", "1"});
  Program program({"measure", "kitchen", "--json", "--node", node.address()});
  EXPECT_EQ(program.ExitStatus(), 0) << program.err();
  const auto json = nlohmann::json::parse(program.out(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << program.out();
  ASSERT_GE(json["nodes"][0]["devices"].size(), 1u);
  EXPECT_GT(json["nodes"][0]["devices"][0]["after"]["memory_bytes_per_s"].get<double>(), 0);
  EXPECT_THAT(program.err(), HasSubstr("kitchen: "));
}

TEST(StrataMeasure, NamesTheNodeThatDoesNotMeasure) {
  StartedNode node({"--no-measure"});
  Program refused({"measure", "--node", node.address()});
  EXPECT_EQ(refused.ExitStatus(), 1);
  EXPECT_THAT(refused.err(), AllOf(HasSubstr("kitchen"), HasSubstr("--no-measure")));
  Program unknown({"measure", "cellar", "--node", node.address()});
  EXPECT_EQ(unknown.ExitStatus(), 1);
  EXPECT_THAT(unknown.err(), AllOf(HasSubstr("cellar"), HasSubstr("there are kitchen")));
  Program nobody({"measure", "--node", "127.0.0.1:1"});
  EXPECT_EQ(nobody.ExitStatus(), 5);
}

}  // namespace
}  // namespace strata
