#!/usr/bin/env python3
"""Puts known defects into the sources, one at a time, and says which tests find them.

scripts/mutate runs it. A defect is a piece of text that stands once in its file, and what takes its
place. Each is built, then the unit tests of its folder run, then the recovery simulation; the first
that fails has found it. The sources are put back, whatever happens.
"""

import argparse
import pathlib
import re
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent
MODELS = "coordinator/models/"
SCHEDULER = "coordinator/scheduler/"
GATEWAY = "node/gateway/"

# By folder: the programs whose tests run first.
UNIT_TESTS = {
    MODELS: [
        "leader_role", "stage_reclaimer", "reload_queue", "model_table", "model_recovery",
        "load_retries", "rebalancer", "node_drain", "live_migration", "deployment", "model_planner",
        "reusable_stages",
    ],
    SCHEDULER: [
        "scheduler", "scheduler_failure", "scheduler_cache", "scheduler_exact", "generation_engine",
    ],
    GATEWAY: ["resumable_generation", "request_router", "gateway"],
}

# (what is wrong, file, text, what takes its place)
DEFECTS = [
    # Leadership.
    ("acts though another node is about to have the role", MODELS + "leader_role.h",
     "return is_leader_ && is_settled_;", "return is_leader_;"),
    ("does not notice that the role has gone", MODELS + "leader_role.h",
     "return lost;", "return false;"),
    ("a node that stops forgets that others are there", MODELS + "leader_role.h",
     "if (!stops) has_successors_", "has_successors_"),
    ("the epoch of stages is not compared: those that serve are unloaded", MODELS + "stage_reclaimer.cc",
     "return CompareEpochs(epoch, stage.epoch()) == 0;", "return false;"),
    ("models that were held are loaded to stay by the next coordinator", MODELS + "stage_reclaimer.cc",
     "if (origin.hold()) {", "if (false) {"),
    ("the desired state is not read", MODELS + "stage_reclaimer.cc",
     "found.reloads[origin.model_id()] = std::move(origin);\n    }\n  }\n  for",
     "}\n  }\n  for"),
    ("a change during a look at stages is forgotten", MODELS + "stage_reclaimer.cc",
     "due_at_ = std::min(due_at_, now + after_);\n  if (changed_meanwhile) return;",
     "due_at_ = now + after_;\n  if (changed_meanwhile) return;"),
    ("models of before are remembered when the role goes", MODELS + "reload_queue.cc",
     "  entries_.clear();\n", ""),
    # Models: leases and pins.
    ("a lease is not released", MODELS + "model_table.cc",
     "if (!leases.empty()) return nullptr;", "return nullptr;"),
    ("a lease is taken to be the last one", MODELS + "model_table.cc",
     "if (!leases.empty()) return nullptr;\n", ""),
    ("a model that is gone stays pinned", MODELS + "model_table.cc",
     "  pins_.erase(found->first);\n", ""),
    # Recovery.
    ("requests do not wait for a node that may return", MODELS + "model_recovery.cc",
     "return may_return && was_recovering && lost.lost_for() < kPatience;", "return false;"),
    ("recoveries in a row are not counted", MODELS + "model_recovery.cc",
     "decision.in_a_row + (lacks_disk ? 0 : 1);", "decision.in_a_row;"),
    ("what the plan lacked is forgotten", MODELS + "model_recovery.cc",
     "if (limit) decision.limits.push_back(*limit);", ""),
    ("lost models are recovered only when the members change", MODELS + "model_recovery.cc",
     "if (!model->recovering() && !(retry && model->lost_a_stage())) continue;",
     "if (!(retry && model->lost_a_stage())) continue;"),
    ("what lacks room is never tried again", MODELS + "model_recovery.cc",
     "retry_at_ = now + retry_after_;", ""),
    ("a load is planned again with the limits of before", MODELS + "load_retries.h",
     "if (limit) limits_.push_back(*limit);", ""),
    ("requests of a lost model are ended twice", MODELS + "deployment.cc",
     "  has_requests_ = false;\n  return std::exchange(requests_, {});",
     "  return std::exchange(requests_, {});"),
    ("a node that has gone is not noticed where nothing is sent", MODELS + "deployment.cc",
     "if (node.info.node_id() != node_id) continue;", "continue;"),
    # Rebalancer and drain.
    ("a model moves though little is gained", MODELS + "model_planner.cc",
     "if (gain >= kGainMin) return MoveBenefit::kMoving;",
     "if (gain >= kIdleGainMin) return MoveBenefit::kMoving;"),
    ("a model that is busy moves for little", MODELS + "rebalancer.cc",
     "if (looks_again_ || benefit", "if (benefit"),
    ("a drain goes on though the role has gone", MODELS + "node_drain.cc",
     "if (!has_ended() && !may_go_on.ok()) End(may_go_on);", ""),
    ("a model whose drain is given up takes no requests", MODELS + "node_drain.cc",
     "if (step_ == Step::kAwaitRequests) model()->SetMoving(false);", ""),
    ("the next deployment gets no requests", MODELS + "live_migration.cc",
     "next_->TakeRequests(from_->TransferRequests());", "from_->TransferRequests();"),
    ("a node that is kept out does not come back", MODELS + "rebalancer.h",
     "    at_ = std::min(at_, next_back);\n", ""),
    # Scheduler.
    ("a token is counted twice", SCHEDULER + "scheduler.cc",
     "  --r.tokens_left;\n", "  r.tokens_left -= std::min(r.tokens_left, 2u);\n"),
    ("a token is not remembered", SCHEDULER + "scheduler.cc",
     "  r.tokens.push_back(token.token());\n", ""),
    ("a step of an older generation counts", SCHEDULER + "slot_table.cc",
     "if (s.generation == generation) s.confirmed", "s.confirmed"),
    ("what failed is not fed again", SCHEDULER + "scheduler_failure.cc",
     "    FeedAgain(&requests.at(owner));\n", ""),
    ("a request that always fails is tried for ever", SCHEDULER + "scheduler_failure.cc",
     "if (r.failures < kFailuresMax && !is_its_own) return;", "if (!is_its_own) return;"),
    ("a shift does not move the request's positions", SCHEDULER + "scheduler.cc",
     "  r.offset += discard;\n", ""),
    # Gateway.
    ("a request is not resumed where the leadership moved", GATEWAY + "resumable_generation.h",
     "if (IsLeaderChanged(end.status)) return RetryDecision::kResume;\n", ""),
    ("tokens that a client has are generated again", GATEWAY + "resumable_generation.h",
     "    rest.mutable_generated()->Add(tokens_.begin(), tokens_.end());\n", ""),
    ("a broken connection ends a request", GATEWAY + "resumable_generation.h",
     "if (!end.from_source) return end.started ? RetryDecision::kResume : RetryDecision::kRetryLater;",
     "if (!end.from_source) return RetryDecision::kFinish;"),
    ("a request starts twice for its client", GATEWAY + "resumable_generation.h",
     "    if (std::exchange(started_, true)) return;\n", "    started_ = true;\n"),
    ("a token that comes twice is forwarded twice", GATEWAY + "resumable_generation.h",
     "    if (token.position() < next_position()) return;\n", ""),
    ("a source that has ended is listened to", GATEWAY + "request_router.cc",
     "  if (ended == nullptr) return;\n", ""),
    ("a source may leave out tokens", GATEWAY + "request_router.cc",
     "token.position() <= output.next_position()", "true"),
    ("a forwarded request is resumed by both nodes", GATEWAY + "request_router.cc",
     "next != RetryDecision::kFinish && ended->pass_on &&", "next != RetryDecision::kFinish &&"),
    ("a request that had begun does not wait for its model", GATEWAY + "request_router.cc",
     "r.resumed || (leader.may_reload", "(leader.may_reload"),
    ("a request waits for ever", GATEWAY + "request_router.cc",
     "options_.now() < r.until", "true"),
    ("the time at a source counts as waiting", GATEWAY + "request_router.cc",
     "if (run_time > kRequestConnectTime) r.until += run_time;\n", ""),
]


def mutated(text, old, new):
    """Line ends and indentation may differ: formatting is not part of a defect."""
    if text.count(old) == 1:
        return text.replace(old, new)
    words = old.split()
    pattern = re.compile(r"\s+".join(re.escape(word) for word in words))
    if len(pattern.findall(text)) != 1:
        return None
    return pattern.sub(lambda _: new, text)


def run(command, limit_s):
    try:
        done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as expired:
        return None, str(expired.stdout or "")
    return done.returncode, done.stdout


def find(bin_dir, folder, build, seeds):
    """Which test finds it; None: none does."""
    status, out = run(build, 1800)
    if status != 0:
        sys.exit(f"mutate: this defect does not compile:\n{out[-3000:]}")
    for name in UNIT_TESTS[folder]:
        status, out = run([bin_dir / f"{name}_test", "--gtest_brief=1"], 300)
        if status != 0:
            failed = [line.split("]")[1].split("(")[0].strip()
                      for line in out.splitlines() if line.startswith("[  FAILED  ]")]
            what = failed[0] if failed else "hangs" if status is None else "crashes"
            return f"`{name}_test` {what}"
    status, out = run([bin_dir / "recovery_sim", "--seeds", str(seeds)], 1800)
    if status is None:
        return "`recovery_sim` does not end"
    if status != 0:
        wrong = [line for line in out.splitlines() if line.startswith("seed ")]
        return f"`recovery_sim`, {len(wrong)} of {seeds} seeds" if wrong else "`recovery_sim` crashes"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--build", required=True, help="command that builds the targets behind it")
    parser.add_argument("--seeds", type=int, default=2000, help="of the simulation")
    parser.add_argument("--only", default="", help="defects whose words have this in them")
    flags = parser.parse_args()
    targets = ["recovery_sim"] + [f"{name}_test" for names in UNIT_TESTS.values() for name in names]
    build = flags.build.split() + targets
    found = 0
    chosen = [defect for defect in DEFECTS if flags.only in defect[0]]
    for _, file, old, new in chosen:
        if mutated((REPO / file).read_text(encoding="utf-8"), old, new) is None:
            sys.exit(f"mutate: {file} does not have this once: {old}")
    print("| defect | in | found by |\n| --- | --- | --- |", flush=True)
    for words, file, old, new in chosen:
        path = REPO / file
        text = path.read_text(encoding="utf-8")
        broken = mutated(text, old, new)
        folder = next(folder for folder in UNIT_TESTS if file.startswith(folder))
        try:
            path.write_text(broken, encoding="utf-8")
            by = find(flags.bin, folder, build, flags.seeds)
        finally:
            path.write_text(text, encoding="utf-8")
        found += by is not None
        print(f"| {words} | `{file}` | {by or '**nothing**'} |", flush=True)
    print(f"\n{found} of {len(chosen)} found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
