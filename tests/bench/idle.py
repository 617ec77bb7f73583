"""What nodes and workers cost that have nothing to do: processor time and wakeups, thread by thread.

Called by scripts/bench-idle, inside the place where Strata builds; needs nothing but Python. Starts nodes on loopback,
which measure as nodes do, loads a model on the first three of them, waits until all is quiet, and then reads /proc for a while.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import tempfile
import time

from machines import fail, first_line, say

TICKS = os.sysconf("SC_CLK_TCK")


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # it has ended
        return ""


def processor_s(pid):
    """Of the process and of its children that have ended."""
    words = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(int(word) for word in words[11:15]) / TICKS if words else 0


def children(pid):
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        found += [int(child) for child in read(f"/proc/{pid}/task/{thread}/children").split()]
    return found


def is_worker(pid):
    return read(f"/proc/{pid}/cmdline").split("\0")[1:2] == ["worker"]


class Look:
    """What the threads of a process have taken until now: {thread: (name, processor ns, wakeups)}."""

    def __init__(self, pid):
        self.threads = {}
        for thread in os.listdir(f"/proc/{pid}/task"):
            folder = f"/proc/{pid}/task/{thread}"
            schedule, status = read(folder + "/schedstat").split(), read(folder + "/status")
            if schedule and status:
                wakeups = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
                self.threads[thread] = (read(folder + "/comm").strip(), int(schedule[0]), wakeups)

    def since(self, before):
        """{name: (percent of a core times seconds, wakeups)}."""
        rows = collections.defaultdict(lambda: (0, 0))
        for thread, (name, ns, wakeups) in self.threads.items():
            _, ns_before, wakeups_before = before.threads.get(thread, (name, 0, 0))
            total = rows[name]
            rows[name] = (total[0] + (ns - ns_before) / 1e7, total[1] + wakeups - wakeups_before)
        return rows


class Cluster:
    def __init__(self, options):
        self.options, self.nodes, self.folder = options, [], tempfile.mkdtemp(prefix="bench-idle")
        self.strata("key", "new", "--data-dir", f"{self.folder}/key", node=False)
        self.key = ["--key-file", f"{self.folder}/key/cluster_key"]

    def strata(self, *args, node=True, may_fail=False):
        command = [self.options.bin + "/strata", *args]
        if node:
            command += [*self.key, "--node", self.nodes[0][1]["address"]]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode and not may_fail:
            fail(f"strata {' '.join(args)}: {run.stderr}")
        return run.stdout

    def start(self, number):
        name = f"n{number}"
        log = open(f"{self.folder}/{name}.log", "w")
        command = [self.options.bin + "/strata", "node", "--listen", "127.0.0.1:0", "--name", name, "--threads", "1",
                   "--no-mdns", "--http", "0", "--data-dir", f"{self.folder}/{name}", "--stop-with-parent", *self.key]
        if not self.options.measure:
            command.append("--no-measure")
        if self.nodes:
            command += ["--peer", self.nodes[0][1]["address"]]
        node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        if not self.nodes:
            self.nodes.append((node, first_line(node, f"{name} ({log.name})")["node"]))
        else:
            self.nodes.append((node, None))

    def members(self):
        report = self.strata("nodes", "--json", may_fail=True)  # a busy node may not answer in time
        report = json.loads(report) if report else {"nodes": []}
        return sum(1 for node in report["nodes"] if node["member"] and node["state"] == "alive")

    def pids(self):
        nodes = [node.pid for node, _ in self.nodes]
        return nodes, [child for pid in nodes for child in children(pid) if is_worker(child)]

    def busy_s(self):
        return sum(processor_s(pid) for pids in self.pids() for pid in pids)

    def wait_until_quiet(self):
        until, before = time.time() + self.options.quiet_limit, self.busy_s()
        while time.time() < until:
            time.sleep(5)
            others = [child for node, _ in self.nodes for child in children(node.pid) if not is_worker(child)]
            now = self.busy_s()
            rate, before = (now - before) / 5 / len(self.nodes), now
            say(f"{100 * rate:.2f} % of a core for each node, {len(others)} processes that measure")
            if not others and rate < self.options.quiet / 100:
                return
        say("it does not become quiet; counted all the same")

    def close(self):
        for node, _ in self.nodes:
            node.stdin.close()
        for node, _ in self.nodes:
            node.wait()
        shutil.rmtree(self.folder)


def measure(pids, seconds):
    before = {pid: Look(pid) for pid in pids}
    begin = time.time()
    time.sleep(seconds)
    taken = time.time() - begin
    rows = {}
    for pid in pids:
        threads = Look(pid).since(before[pid])
        rows[pid] = {name: (work / taken, wakeups / taken) for name, (work, wakeups) in threads.items()}
    return rows


def show(what, rows, threads):
    totals = [(sum(t[0] for t in row.values()), sum(t[1] for t in row.values())) for row in rows]
    if not totals:
        return 0, 0
    print(f"| {what} | {len(totals)} | {sum(t[0] for t in totals) / len(totals):.3f} | {max(t[0] for t in totals):.3f} | "
          f"{sum(t[1] for t in totals) / len(totals):.1f} | {max(t[1] for t in totals):.1f} |")
    if threads:
        names = collections.defaultdict(lambda: [0, 0])
        for row in rows:
            for name, (work, wakeups) in row.items():
                names[name][0] += work / len(rows)
                names[name][1] += wakeups / len(rows)
        for name, (work, wakeups) in sorted(names.items(), key=lambda each: -each[1][1]):
            if wakeups >= 0.05 or work >= 0.001:
                print(f"| … {name} | | {work:.3f} | | {wakeups:.2f} | |")
    return max(t[0] for t in totals), max(t[1] for t in totals)


def main():
    parser = argparse.ArgumentParser(prog="bench-idle", description=__doc__)
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", required=True, help="a GGUF model of at least 6 layers")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="how long is counted")
    parser.add_argument("--alive-limit", type=float, default=300, help="s, for all nodes to be in one group")
    parser.add_argument("--quiet", type=float, default=8, help="%% of a core below which a node is quiet")
    parser.add_argument("--quiet-limit", type=float, default=240, help="s, to wait for that")
    parser.add_argument("--settle", type=float, default=60, help="s, from then until it is counted: links are still measured")
    parser.add_argument("--no-load", dest="load", action="store_false", help="no model, so no workers")
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="nodes measure nothing; no model")
    parser.add_argument("--no-threads", dest="threads", action="store_false", help="no rows for single threads")
    parser.add_argument("--max-node-cpu", type=float, help="%% of a core; more than this fails")
    parser.add_argument("--max-node-wakeups", type=float, help="a second; more than this fails")
    parser.add_argument("--max-worker-cpu", type=float)
    parser.add_argument("--max-worker-wakeups", type=float)
    parser.add_argument("--max-alive", type=float, help="s until all nodes are in one group")
    options = parser.parse_args()

    cluster = Cluster(options)
    try:
        begin = time.time()
        for number in range(options.nodes):
            cluster.start(number)
        while (there := cluster.members()) < options.nodes:
            if time.time() - begin > options.alive_limit:
                say(f"after {options.alive_limit:.0f} s {there} of {options.nodes} nodes are in one group")
                break
            time.sleep(0.5 if options.nodes < 10 else 2)
        alive_s, alive_busy_s = time.time() - begin, cluster.busy_s()
        say(f"{there} nodes alive after {alive_s:.1f} s; {alive_busy_s:.1f} s of processors")
        if options.seconds > 0:
            if options.load and options.measure:
                where = {1: "n0=0-5", 2: "n0=0-2,n1=3-5"}.get(options.nodes, "n0=0-1,n1=2-3,n2=4-5")
                cluster.strata("load", options.model, "--ctx", "512", "--assign", where)
            cluster.wait_until_quiet()
            time.sleep(options.settle)
            nodes, workers = cluster.pids()
            rows = measure(nodes + workers, options.seconds)
    finally:
        cluster.close()

    print(f"{options.nodes} nodes: all alive after {alive_s:.1f} s, for which they took {alive_busy_s:.1f} s of processors\n")
    wrong = []
    if options.max_alive and (alive_s > options.max_alive or there < options.nodes):
        wrong.append("alive too late")
    if options.seconds > 0:
        print("| idle | how many | % of a core | most | wakeups a second | most |\n| --- | --- | --- | --- | --- | --- |")
        for what, pids in (("node", nodes), ("worker", workers)):
            cpu, wakeups = show(what, [rows[pid] for pid in pids], options.threads)
            for name, value in (("cpu", cpu), ("wakeups", wakeups)):
                limit = getattr(options, f"max_{what}_{name}")
                if limit is not None and value > limit:
                    wrong.append(f"a {what}'s {name}: {value:.3f}, wanted {limit}")
    if wrong:
        fail("; ".join(wrong))


if __name__ == "__main__":
    main()
