"""Strata beside llama-bench: tokens per second of whole models and of 1, 2, 3 stages, one core each.

Called by scripts/bench, inside the place where Strata builds; needs nothing but Python. One round runs
every contestant once, so that a slow moment of the machine hits all of them; the table has medians.
Only the table goes to stdout.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time

CAN_PIN = hasattr(os, "sched_setaffinity")


def say(words):
    print(f"bench: {words}", file=sys.stderr, flush=True)


def children(pid):
    """Child processes of `pid`: {pid: command line}."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
            if parent == pid:
                with open(f"/proc/{entry}/cmdline") as f:
                    found[int(entry)] = f.read().split("\0")
        except OSError:
            pass  # gone meanwhile
    return found


def pin(pid, core):
    for _ in range(2):  # a thread that one not yet pinned has started meanwhile
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {core})
        except OSError:
            pass


def pin_nodes(demo, cores, nodes):
    """Gives each node of a running demo its core before it starts its worker, which inherits it."""
    pinned = set()
    while demo.poll() is None and len(pinned) < nodes:
        for pid, words in children(demo.pid).items():
            if pid not in pinned and "--name" in words:
                number = int(words[words.index("--name") + 1].rpartition("-")[2])
                pin(pid, cores[(number - 1) % len(cores)])
                pinned.add(pid)
        time.sleep(0.003)


def run(command, cores=None, nodes=0):
    """The command's stdout, as JSON. `cores`: where it may run; with `nodes`, one core for each node."""
    def start():
        if CAN_PIN and cores:
            os.sched_setaffinity(0, {cores[0]})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=start)
    if CAN_PIN and nodes > 1:
        threading.Thread(target=pin_nodes, args=(process, cores, nodes), daemon=True).start()
    out, err = process.communicate()
    if process.returncode != 0:
        say(f"failed with status {process.returncode}: {' '.join(command)}\n{err.strip()}")
        sys.exit(1)
    return json.loads(out), err


class Contest:
    """All contestants on one model."""

    def __init__(self, options, model):
        self.options = options
        self.model = model
        self.samples = {}  # contestant: [(prefill, decode, details)]
        self.name = os.path.basename(model)
        self.backend = ""
        self.text, self.n_prompt = self.make_prompt()

    def demo(self, nodes, text, tokens, ctx):
        command = [self.options.strata, "demo", "--json", "--model", self.model, "--nodes",
                   str(nodes), "--threads", "1", "--ctx", str(ctx), "--prompt", text,
                   "--max-tokens", str(tokens), "--temperature", "0", "--ignore-eos"]
        return run(command, self.options.cores, nodes)[0]

    def make_prompt(self):
        """A text of about as many tokens as asked for, and how many it has."""
        word, probe, wanted = "village ", 32, self.options.prompt
        tokens = len(self.demo(1, word * probe, 1, 1024)["prompt"]["tokens"])
        text = word * max(1, round(wanted * probe / tokens))
        out = self.demo(1, text, 1, 2 * wanted + 64)
        self.name = f"{out['model']['name']}, {out['model']['layers']} layers"
        return text, len(out["prompt"]["tokens"])

    def add(self, who, prefill, decode, details=None):
        self.samples.setdefault(who, []).append((prefill, decode, details))
        say(f"{self.name}: {who}: prefill {prefill:.1f}, decode {decode:.1f} tok/s")

    def whole(self):
        """Decoding starts behind the prompt, as it does in a demo."""
        command = ["llama-bench", "-m", self.model, "-t", "1", "-ngl", "0", "-r", "1", "-o", "json"]
        prefill, err = run(command + ["-p", str(self.n_prompt), "-n", "0"], self.options.cores[:1])
        decode, _ = run(command + ["-p", "0", "-n", str(self.options.tokens), "-d",
                                   str(self.n_prompt)], self.options.cores[:1])
        loaded = re.search(r"loaded CPU backend from .*/lib(ggml-cpu[^/]*?)\.", err)
        self.backend = loaded.group(1) if loaded else "ggml-cpu"
        self.add("llama-bench", prefill[0]["avg_ts"], decode[0]["avg_ts"])

    def stages(self, nodes):
        out = self.demo(nodes, self.text, self.options.tokens,
                        self.n_prompt + self.options.tokens + 8)
        steps = len(out["tokens"]) - 1
        stages = [stage["decode"] for stage in out["stages"]]
        details = {
            "compute": [stage["compute_ms_per_step"] for stage in stages],
            "sample": sum(stage["sample_ms_per_step"] for stage in stages),
            "queue": sum(stage["queue_ms_per_step"] for stage in stages),
            "wall": out["decode_ms"] / steps,
        }
        self.add(f"{nodes} stage{'s' if nodes > 1 else ''}", out["prompt_tokens_per_second"],
                 out["decode_tokens_per_second"], details)

    def round(self):
        self.whole()
        for nodes in self.options.nodes:
            self.stages(nodes)

    def table(self):
        def figure(values):
            digits = 0 if statistics.median(values) >= 1000 else 1
            return (f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–"
                    f"{max(values):.{digits}f})")

        rows = [f"### {self.name}", "",
                f"{self.n_prompt} prompt tokens, {self.options.tokens} decoded, tokens per second: "
                f"median of {self.options.repeats} (least–most)", "",
                "| | cores | prefill | of llama-bench | decode | of llama-bench |",
                "| --- | --- | --- | --- | --- | --- |"]
        base = [statistics.median(s[i] for s in self.samples["llama-bench"]) for i in (0, 1)]
        for who, samples in self.samples.items():
            nodes = 1 if who == "llama-bench" else int(who.split()[0])
            used = min(nodes, len(self.options.cores))
            cores = f"{used}" + (", shared" if used < nodes else "")
            cells = [who + (" `-t 1`" if who == "llama-bench" else ""), cores]
            for i in (0, 1):
                values = [s[i] for s in samples]
                cells += [figure(values), f"{statistics.median(values) / base[i]:.2f}"]
            rows.append("| " + " | ".join(cells) + " |")
        rows += ["", "One decoded token, ms (medians):", "",
                 "| | wall | compute by stage | sampling | waiting in inboxes | all else: links, coordinator |",
                 "| --- | --- | --- | --- | --- | --- |"]
        for who, samples in self.samples.items():
            details = [s[2] for s in samples if s[2]]
            if not details:
                continue
            compute = [statistics.median(c) for c in zip(*(d["compute"] for d in details))]
            median = {k: statistics.median(d[k] for d in details)
                      for k in ("wall", "sample", "queue")}
            rest = statistics.median(d["wall"] - sum(d["compute"]) - d["sample"] - d["queue"]
                                     for d in details)
            rows.append(f"| {who} | {median['wall']:.3f} | "
                        f"{' + '.join(f'{c:.3f}' for c in compute)} | {median['sample']:.3f} | "
                        f"{median['queue']:.3f} | {rest:.3f} |")
        return "\n".join(rows)


def machine(options):
    """One line for each thing that makes figures differ."""
    name, cores = platform.processor() or platform.machine(), os.cpu_count()
    try:
        out = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        name = re.search(r"Model name: *(.*)", out).group(1)
        l2 = re.search(r"L2 cache: *(.*)", out)
        name += f", L2 {l2.group(1)}" if l2 else ""
    except (OSError, subprocess.CalledProcessError, AttributeError):
        pass
    memory = ""
    try:
        with open("/proc/meminfo") as f:
            memory = f", {int(f.readline().split()[1]) / 2**20:.0f} GiB of memory"
    except OSError:
        pass
    versions = subprocess.run([options.strata, "--version"], capture_output=True, text=True,
                              check=True).stdout.split("\n")
    return "\n".join([
        f"- {name}; {cores} cores{memory}; {platform.system()} {platform.release()}",
        f"- {', '.join(v for v in versions if v)}; back end {options.backend}",
        f"- cores used: {', '.join(str(c) for c in options.cores)}"
        + ("" if CAN_PIN else " (not pinned: this system cannot)")
        + f"; load average before: {options.load:.2f}",
    ])


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strata", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", action="append", default=[], metavar="FILE",
                        help="a GGUF; may be repeated (default: the demo's and a random 1.1B)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--prompt", type=int, default=512, metavar="N",
                        help="prompt tokens, about (default 512)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N",
                        help="tokens to decode (default 64)")
    parser.add_argument("--nodes", default="1,2,3", metavar="N,N,…",
                        help="how many stages (default 1,2,3)")
    parser.add_argument("--cores", default="", metavar="C,C,…",
                        help="cores to use, one for each stage in turn (default: all)")
    options = parser.parse_args()
    options.nodes = [int(n) for n in options.nodes.split(",")]
    if options.cores:
        options.cores = [int(c) for c in options.cores.split(",")]
    else:
        options.cores = sorted(os.sched_getaffinity(0)) if CAN_PIN else list(range(os.cpu_count()))
    options.load = os.getloadavg()[0]
    if options.load > 0.5:
        say(f"the machine is busy (load average {options.load:.2f}): the figures will be, too")

    contests = [Contest(options, model) for model in options.model]
    for number in range(options.repeats):
        say(f"round {number + 1} of {options.repeats}")
        for contest in contests:
            contest.round()
    options.backend = contests[0].backend
    print(machine(options))
    for contest in contests:
        print("\n" + contest.table())


if __name__ == "__main__":
    main()
