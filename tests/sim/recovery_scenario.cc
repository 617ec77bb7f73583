#include "tests/sim/recovery_scenario.h"

#include <algorithm>
#include <vector>

#include "absl/log/globals.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr int64_t kWildMs = 12'000;
constexpr int64_t kStepMs = 250;
constexpr int64_t kReadyMs = 20'000;  // until a model is loaded
constexpr int64_t kEndMs = 100'000;   // until all requests have ended: a gateway waits for 60 s
constexpr int64_t kLoadAgainMs = 8'000;
constexpr int64_t kUnheldMs = 10'000;
constexpr int64_t kReclaimMs = 90'000;  // a coordinator looks once a minute at least
constexpr int64_t kDesiredMs = 70'000;  // as RecoverySchedule, which tries once a minute
constexpr int kGentleFaults = 4;
constexpr int64_t kGentleMs = 7'000;  // from one to the next

class Run {
 public:
  Run(const RecoveryScenario& scenario, const RecoverySim::Options& options)
      : scenario_(scenario),
        nodes_(options.nodes),
        is_leased_(!scenario.gentle && scenario.seed % 5 == 2),
        sim_(options) {}

  std::string Play() {
    for (size_t n = 0; n < nodes_; ++n) sim_.Start(n);
    for (int64_t ms = 0; ms < kReadyMs && !sim_.Serves(); ms += kStepMs) {
      if (ms % 2000 == 0) Load();
      RunMs(kStepMs);
    }
    if (scenario_.gentle) {
      PlayGently();
    } else {
      PlayWildly();
    }
    Quiet();
    for (int64_t ms = 0; ms < kEndMs && sim_.active_generations() > 0 && ok(); ms += kStepMs)
      RunMs(kStepMs);
    sim_.CheckEnded();
    if (ok()) CheckFates();
    if (ok()) CheckStages();
    if (ok()) CheckDesired();
    if (ok() && scenario_.seed % 4 == 1) PlayPowerCut();
    if (ok() && is_leased_) CheckUnheld();
    return ok() ? "" : sim_.cluster().violation() + sim_.cluster().Trace();
  }
  RecoverySim& sim() { return sim_; }

 private:
  bool ok() { return sim_.cluster().violation().empty(); }
  size_t Random(size_t n) { return sim_.cluster().Random(n); }

  void RunMs(int64_t ms) {
    sim_.RunMs(ms);
    without_ms_ = sim_.HasModel() ? 0 : without_ms_ + ms;
    // A person sees that no model is loaded.
    if (without_ms_ < kLoadAgainMs) return;
    without_ms_ = 0;
    if (scenario_.gentle) sim_.cluster().Fail("no node has the model");
    Load();
  }

  // To stay, or for as long as its client is there.
  void Load() {
    if (is_leased_) {
      sim_.HoldModel(Random(nodes_));
    } else {
      sim_.Load();
    }
  }

  void SendRequests(size_t most) {
    for (size_t left = Random(most + 1); left > 0; --left) sim_.SendRequest(Random(nodes_));
  }

  void PlayWildly() {
    sim_.cluster().SetLoss(Random(3) == 0 ? 0.1 : 0.0);
    sim_.cluster().SetDoubled(Random(3) == 0 ? 0.1 : 0.0);
    for (int64_t ms = 0; ms < kWildMs && ok();) {
      const auto step = static_cast<int64_t>(1 + Random(800));
      RunMs(step);
      ms += step;
      SendRequests(3);
      if (Random(3) == 0) Disturb();
      if (Random(8) == 0) {  // two at once
        Disturb();
        Disturb();
      }
    }
  }

  void Disturb() {
    ClusterSim& cluster = sim_.cluster();
    const size_t n = Random(nodes_), m = Random(nodes_);
    switch (Random(24)) {
      case 0:
      case 1:
        sim_.Crash(n);
        break;
      case 2:
      case 3:
        if (!cluster.running(n)) sim_.Start(n);
        break;
      case 4:
        sim_.Start(n);
        break;
      case 5:
        cluster.Pause(n, 50 + static_cast<int64_t>(Random(4000)));
        break;
      case 6: {
        std::vector<size_t> group_of(nodes_);
        for (size_t& group : group_of) group = Random(2);
        cluster.Partition(group_of);
        break;
      }
      case 7:
      case 8:
        cluster.Heal();
        break;
      case 9:
        sim_.KillWorker(n);
        break;
      case 10:
        sim_.Stop(n);
        break;
      case 11:
        cluster.Note(absl::StrCat("cut ", n, " to ", m));
        if (n != m) cluster.Cut(n, m);
        break;
      case 12:
      case 13:
        sim_.Drain(n);
        break;
      case 14:
        sim_.UndoDrains();
        break;
      case 15:
        sim_.HoldModel(n);
        break;
      case 16:
        if (is_leased_) break;
        sim_.Unload();
        without_ms_ =
            kLoadAgainMs - static_cast<int64_t>(Random(3000));  // a person changes options
        break;
      case 17:
        CutPower();
        break;
      case 18:
      case 19:
        sim_.Crash(n);
        sim_.BreakDisk(n, AnyFault());
        sim_.Start(n);
        break;
      case 20:
        sim_.SetDiskFails(n, Random(2) == 0);
        break;
      default:
        sim_.StopRequest();
        break;
    }
  }

  RecoverySim::DiskFault AnyFault() {
    using Fault = RecoverySim::DiskFault;
    constexpr Fault kFaults[] = {Fault::kOldBackup, Fault::kCopyOfAnother, Fault::kDamage};
    return kFaults[Random(3)];
  }

  // Some are back soon.
  void CutPower() {
    sim_.CutPower();
    sim_.RunMs(static_cast<int64_t>(Random(500)));
    for (size_t n = 0; n < nodes_; ++n) {
      if (Random(8) == 0) sim_.BreakDisk(n, AnyFault());
      if (Random(3) != 0) sim_.Start(n);
    }
  }

  // A person decides once more. Then the power fails, and nodes come back one by one.
  void PlayPowerCut() {
    if (!is_leased_ && Random(2) == 0) {
      sim_.Unload();
    } else if (!is_leased_) {
      sim_.Load();
    }
    sim_.RunMs(static_cast<int64_t>(Random(8000)));
    sim_.CutPower();
    for (size_t left = nodes_; left > 0 && ok();) {
      const size_t n = Random(nodes_);
      if (!sim_.cluster().running(n)) {
        if (Random(16) == 0) sim_.BreakDisk(n, AnyFault());
        sim_.Start(n);
        --left;
      }
      sim_.RunMs(Random(3) == 0 ? static_cast<int64_t>(Random(6000)) : 0);
    }
    Quiet();
    CheckDesired();
    if (ok()) CheckStages();
  }

  // The model is there, or tried, where the newest list has it, and nowhere else.
  void CheckDesired() {
    std::string wrong;
    for (int64_t ms = 0; ms < kDesiredMs && ok(); ms += kStepMs) {
      wrong = sim_.Undesired();
      if (wrong.empty()) return;
      sim_.RunMs(kStepMs);
    }
    if (ok()) sim_.cluster().Fail(wrong);
  }

  void PlayGently() {
    for (int i = 0; i < kGentleFaults && ok(); ++i) {
      for (int64_t ms = 0; ms < kGentleMs; ms += 500) {
        RunMs(500);
        if (Random(3) == 0) SendRequests(2);
      }
      SendRequests(8);
      RunMs(static_cast<int64_t>(Random(600)));
      const size_t n = Random(nodes_);
      switch (Random(7)) {
        case 6:
          sim_.CutPower();
          RunMs(static_cast<int64_t>(Random(1500)));
          for (size_t k = 0; k < nodes_; ++k) sim_.Start(k);
          break;
        case 0:
          sim_.KillWorker(n);
          break;
        case 3:
          sim_.Drain(n);
          break;
        case 1:
          sim_.Stop(n);
          break;
        case 2:
          sim_.cluster().Pause(n, 50 + static_cast<int64_t>(Random(700)));
          break;
        default:
          sim_.Crash(n);
          break;
      }
      for (int64_t ms = 0; ms < kGentleMs; ms += 500) {
        RunMs(500);
        if (Random(3) == 0) SendRequests(2);
      }
      if (!sim_.cluster().running(n)) sim_.Start(n);
      sim_.UndoDrains();
    }
  }

  // All faults end.
  void Quiet() {
    ClusterSim& cluster = sim_.cluster();
    cluster.Heal();
    cluster.SetLoss(0);
    cluster.SetDoubled(0);
    sim_.UndoDrains();
    for (size_t n = 0; n < nodes_; ++n) {
      sim_.SetDiskFails(n, false);
      if (!cluster.running(n)) sim_.Start(n);
      cluster.Pause(n, 0);
    }
    cluster.Introduce();
    cluster.Note("the last change");
  }

  void CheckFates() {
    const RecoverySim::Counts counts = sim_.counts();
    for (const auto& [words, n] : counts.failures) {
      if (scenario_.gentle) sim_.cluster().Fail(absl::StrCat("a request ended with ", words));
    }
  }

  // Stages that no plan uses are found and unloaded.
  void CheckStages() {
    for (int64_t ms = 0; ms < kReclaimMs && sim_.HasStaleStages() && ok(); ms += kStepMs) {
      sim_.RunMs(kStepMs);
    }
    if (ok() && sim_.HasStaleStages()) sim_.cluster().Fail("a stage that no plan uses stays");
  }

  // A model goes with its last lease.
  void CheckUnheld() {
    sim_.EndHolds();
    sim_.RunMs(kUnheldMs);
    if (sim_.HasModel()) sim_.cluster().Fail("a model that nobody holds stays");
    if (ok()) CheckStages();
  }

  const RecoveryScenario scenario_;
  const size_t nodes_;
  const bool is_leased_;  // the model is loaded with leases only
  RecoverySim sim_;
  int64_t without_ms_ = 0;
};

}  // namespace

RecoveryOutcome Play(const RecoveryScenario& scenario) {
  // The warnings of each lost stage.
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
  RecoverySim::Options options;
  options.seed = scenario.seed;
  options.nodes = scenario.nodes != 0 ? scenario.nodes : 3 + scenario.seed % 4;
  if (scenario.gentle) options.nodes = std::max<size_t>(options.nodes, 4);
  options.tight = !scenario.gentle && scenario.seed % 3 == 0;
  if (!scenario.gentle && scenario.seed % 4 == 0) options.step_failures_per_mille = 4;
  options.small_disks = scenario.seed % 5 == 0;
  options.plans_past_memory = scenario.plans_past_memory;
  options.forgets_pending_reloads = scenario.forgets_pending_reloads;
  options.doubles_tokens = scenario.doubles_tokens;
  options.forgets_requests = scenario.forgets_requests;
  options.ends_twice = scenario.ends_twice;
  options.forgets_bounds = scenario.forgets_bounds;
  options.takes_any_epoch = scenario.takes_any_epoch;
  options.plans_on_drained_nodes = scenario.plans_on_drained_nodes;
  options.forgets_leases = scenario.forgets_leases;
  options.forgets_stale_stages = scenario.forgets_stale_stages;
  options.forgets_to_write = scenario.forgets_to_write;
  options.forgets_unloads = scenario.forgets_unloads;
  Run run(scenario, options);
  RecoveryOutcome outcome;
  outcome.wrong = run.Play();
  outcome.counts = run.sim().counts();
  outcome.messages = run.sim().cluster().messages();
  outcome.digest = run.sim().cluster().digest();
  return outcome;
}

}  // namespace strata
