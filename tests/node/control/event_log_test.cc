#include "node/control/event_log.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Models = std::vector<wire::ModelStatus>;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

ClusterSnapshot Nodes(const std::vector<std::string>& names) {
  ClusterSnapshot report;
  for (const std::string& name : names) {
    NodeReport& node = report.nodes.emplace_back();
    node.seen.mutable_record()->set_node_id(absl::StrCat("id of ", name));
    node.seen.mutable_record()->set_name(name);
    node.seen.set_state("alive");
  }
  report.cluster.set_coordinator("id of kitchen");
  return report;
}

Models One(wire::ModelStatus::State state, uint64_t epoch = 1) {
  wire::ModelStatus model;
  model.set_model_id("m");
  model.set_name("tinz");
  model.set_state(state);
  model.mutable_epoch()->set_counter(epoch);
  return {model};
}

TEST(EventLog, TellsWhoJoinedAndWhoWasLost) {
  EventLog log("a");
  EXPECT_THAT(log.Update(Nodes({"kitchen"}), nullptr, kNow), IsEmpty());
  EXPECT_THAT(log.Update(Nodes({"kitchen", "attic"}), nullptr, kNow),
              AllOf(HasSubstr("id: a-1\nevent: event\n"), HasSubstr(R"("kind":"node_joined")"),
                    HasSubstr(R"("node":"attic")"), HasSubstr("1800000000000")));
  ClusterSnapshot gone = Nodes({"kitchen", "attic"});
  gone.nodes[1].seen.set_state("gone");
  EXPECT_THAT(log.Update(gone, nullptr, kNow), HasSubstr(R"("kind":"node_lost")"));
  EXPECT_THAT(log.Update(Nodes({"kitchen"}), nullptr, kNow), IsEmpty());
  gone.cluster.clear_coordinator();
  EXPECT_THAT(log.Update(gone, nullptr, kNow), HasSubstr("no_coordinator"));
}

TEST(EventLog, TellsHowLongARecoveryTook) {
  EventLog log("a");
  const ClusterSnapshot nodes = Nodes({"kitchen"});
  Models models = One(wire::ModelStatus::SERVING);
  EXPECT_THAT(log.Update(nodes, &models, kNow), IsEmpty());
  models = One(wire::ModelStatus::RECOVERING);
  EXPECT_THAT(log.Update(nodes, &models, kNow), HasSubstr("model_recovering"));
  models = One(wire::ModelStatus::LOADING, 2);
  EXPECT_THAT(log.Update(nodes, &models, kNow + absl::Seconds(1)), IsEmpty());
  models = One(wire::ModelStatus::SERVING, 2);
  EXPECT_THAT(log.Update(nodes, &models, kNow + absl::Seconds(3)),
              AllOf(HasSubstr("model_recovered"), HasSubstr(R"("seconds":3.0)")));
  models = One(wire::ModelStatus::SERVING, 3);
  EXPECT_THAT(log.Update(nodes, &models, kNow), HasSubstr("model_moved"));
  models.clear();
  EXPECT_THAT(log.Update(nodes, &models, kNow), HasSubstr("model_unloaded"));
}

TEST(EventLog, KeepsTheNewestForThoseThatComeBack) {
  EventLog log("a");
  const ClusterSnapshot nodes = Nodes({"kitchen"});
  Models models;
  log.Update(nodes, &models, kNow);
  for (size_t i = 0; i < kEventsKeptMax; ++i) {
    models = One(wire::ModelStatus::SERVING);
    log.Update(nodes, &models, kNow);
    models.clear();
    log.Update(nodes, &models, kNow);
  }
  const uint64_t last = 2 * kEventsKeptMax;
  EXPECT_THAT(log.After(absl::StrCat("a-", last)), IsEmpty());
  EXPECT_THAT(log.After(absl::StrCat("a-", last - 1)),
              AllOf(HasSubstr(absl::StrCat("id: a-", last, "\n")),
                    Not(HasSubstr(absl::StrCat("id: a-", last - 1, "\n")))));
  // Of another start of the node, of nobody, or too old.
  for (const char* id : {"b-600", "", "a-1", "a-99999", "a-x"}) {
    EXPECT_THAT(log.After(id), AllOf(HasSubstr(absl::StrCat("id: a-", last - kEventsKeptMax + 1)),
                                     Not(HasSubstr("id: a-256\n"))))
        << id;
  }
}

}  // namespace
}  // namespace strata
