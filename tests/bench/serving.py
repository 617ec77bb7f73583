"""Many texts at a time through two one-core stages, beside libllama alone and beside llama.cpp's RPC.

Called by scripts/bench-serving, inside the place where Strata builds; needs nothing but Python. A round runs
every contestant once, so that a slow moment of the machine hits all of them; the table has medians.
"""

import argparse
import json
import math
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from machines import Network, fail, first_line, say

RPC_SERVER = "/usr/libexec/x86_64-linux-gnu/llama/bin/ggml-rpc-server"

ONE, TWO, RPC = "libllama, 1 core", "libllama, 2 cores", "llama.cpp RPC, 2 × 1 core"
BOTH = "libllama, two at once on a core each"
STAGE1, STAGES2, SHAPED = "Strata, 1 stage", "Strata, 2 stages", "Strata, 2 stages, shaped links"
ROWS = ["prefill 512", "prefill 2048", "decode 1", "decode 4", "decode 8", "decode 16"]
KEPT_TOKENS = 256  # of a stream beside kept prefixes: long enough to tell 3 %


class Nodes:
    """One node for each core, with one thread and nothing else to do."""

    def __init__(self, options, cores, network):
        self.network, self.processes, self.addresses = network, [], []
        for number, core in enumerate(cores):
            command = ["taskset", "-c", str(core), options.bin + "/strata", "node", "--listen",
                       network.host(number + 1) + ":0", "--name", f"node-{number + 1}", "--threads", "1",
                       "--no-mdns", "--no-measure", "--no-http", "--ephemeral", "--open", "--stop-with-parent"]
            self.processes.append(subprocess.Popen(network.inside(number + 1, command), text=True,
                                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for process in self.processes:
            self.addresses.append(first_line(process, "a node")["node"]["address"])

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


class Contest:
    def __init__(self, options):
        self.options = options
        self.samples = {}  # contestant: {row: [tokens per second]}
        self.beside = []   # lines of serving_bench
        self.details = []  # likewise
        self.kept = []     # {"slots", row: speed with empty caches, row + " kept": beside kept prefixes}
        self.depth = {}    # {contestant: {"STREAMS behind DEPTH": [tokens per second]}}

    def add(self, who, row, speed):
        self.samples.setdefault(who, {}).setdefault(row, []).append(speed)
        say(f"{who}: {row}: {speed:.1f} tok/s")

    # libllama by itself, and behind RPC servers.

    def batched(self, who, threads, cores, extra=()):
        o = self.options
        is_rpc = who == RPC
        base = ["taskset", "-c", ",".join(map(str, cores)), "llama-batched-bench", "-m", o.model, "-t",
                str(threads), "-c", "4096", "-b", "2048", "-ub", "512", "--output-format", "jsonl", *extra]
        prompts = "512" if is_rpc else "512,2048"
        runs = [(base + ["-npp", prompts, "-ntg", "1", "-npl", "1"], True),
                (base + ["-npp", "8" if is_rpc else "32", "-ntg", str(o.tokens // 2 if is_rpc else o.tokens),
                         "-npl", "1,4,8,16"], False)]
        for command, is_prefill in runs:
            out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if is_rpc and "RPC not supported" in out.stderr:
                say("llama.cpp RPC is not measured: ggml's RPC back end is not installed (libggml0-backend-rpc)")
                return
            if out.returncode != 0:
                fail(f"{' '.join(command)} failed: {out.stderr[-2000:]}")
            for line in out.stdout.splitlines():
                if not line.startswith("{"):
                    continue
                figures = json.loads(line)
                if is_prefill:
                    self.add(who, f"prefill {figures['pp']}", figures["speed_pp"])
                else:
                    self.add(who, f"decode {figures['pl']}", figures["speed_tg"])

    def rpc(self):
        servers, ports = [], []
        try:
            for core in self.options.cores[:2]:
                with socket.socket() as s:
                    s.bind(("127.0.0.1", 0))
                    ports.append(s.getsockname()[1])
                servers.append(subprocess.Popen(
                    ["taskset", "-c", str(core), RPC_SERVER, "-t", "1", "-p", str(ports[-1])],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            for port in ports:
                for _ in range(200):
                    try:
                        socket.create_connection(("127.0.0.1", port), 1).close()
                        break
                    except OSError:
                        time.sleep(0.05)
            devices = ",".join(f"127.0.0.1:{port}" for port in ports)
            self.batched(RPC, 1, self.options.cores[:2], ["--rpc", devices, "-ngl", "99", "-ts", "1,1"])
        finally:
            for server in servers:
                server.kill()
                server.wait()

    # Strata.

    def serve(self, cores, is_shaped, runs, model=None, tokens=None):
        """Lines of serving_bench; `runs` are its words for one load of the model each."""
        network = Network(self.options, 3 if is_shaped else 0)  # who asks, and one for each stage
        nodes = Nodes(self.options, cores, network)
        lines = []
        try:
            for words in runs:
                command = [self.options.bin + "/serving_bench", "--model", model or self.options.model, "--listen",
                           network.host(0), "--tokens", str(tokens or self.options.tokens)]
                for address in nodes.addresses:
                    command += ["--node", address]
                out = subprocess.run(network.inside(0, command + words), stdout=subprocess.PIPE, text=True)
                if out.returncode != 0:
                    fail(f"{' '.join(command + words)} failed")
                lines += [json.loads(line) for line in out.stdout.splitlines()]
        finally:
            nodes.close()
            network.close()
        return lines

    def strata(self, who, n_stages, is_shaped=False, rows=tuple(ROWS)):
        many = ["--ctx", "256", "--slots", "16"]
        long = ["--ctx", "2304", "--slots", "2"]
        runs = [many + [row.replace(" ", ":") for row in rows if row.startswith("decode")],
                long + [row.replace(" ", ":") for row in rows if row.startswith("prefill")]]
        for line in self.serve(self.options.cores[:n_stages], is_shaped, runs):
            self.add(who, line["what"], line["tokens_per_s"])
            self.details.append({"who": who, **line})

    def mix(self, wait_ms, is_shaped=False):
        runs = [["--ctx", "4096", "--slots", "2", "--wait-ms", str(wait_ms), "beside:2048"]]
        for line in self.serve(self.options.cores[:2], is_shaped, runs):
            self.beside.append({"shaped": is_shaped, **line})
            say(f"limit {wait_ms} ms{', shaped links' if is_shaped else ''}: decode {line['decode_alone']:.1f} "
                f"→ {line['decode']:.1f}, prefill {line['prefill_alone']:.1f} → {line['prefill']:.1f} tok/s")

    def beside_kept(self):
        """One stream of the demo model while all other slots have kept prefixes, beside empty caches."""
        for slots in self.options.kept_slots:
            words = ["--ctx", "1152", "--slots", str(slots), "decode:1", "prefill:900", f"keep:{2 * slots}",
                     "decode:1", "prefill:900"]
            lines = self.serve(self.options.cores[:2], False, [words], self.options.demo_model, KEPT_TOKENS)
            found = {"slots": slots}
            for line in lines:
                row = line["what"]
                found[row + " kept" if row in found else row] = line["tokens_per_s"]
            self.kept.append(found)
            say(f"{slots} slots: " + ", ".join(f"{row} {found[row]:.0f} → {found[row + ' kept']:.0f} tok/s"
                                               for row in ("decode 1", "prefill 900")))

    def behind_prompts(self):
        """Many streams behind long prompts: libllama with a stream of the cache for each, one stage, two."""
        o = self.options

        def add(who, row, speed):
            self.depth.setdefault(who, {}).setdefault(row, []).append(speed)
            say(f"{who}: {row}: {speed:.1f} tok/s")
        for depth in o.depths:
            context = (depth + 64 + 255) // 256 * 256
            for who, cores, streams in ((ONE, o.cores[:1], o.streams), (BOTH, o.cores[:2], o.streams[:-1])):
                errors = tempfile.TemporaryFile(mode="w+", errors="replace")
                benches = [subprocess.Popen(
                    ["taskset", "-c", str(core), "llama-batched-bench", "-m", o.small_model, "-t", "1", "-c",
                     str(context * streams[-1]), "-b", "512", "-ub", "512", "-npp", str(depth), "-ntg", str(o.tokens),
                     "-npl", ",".join(map(str, streams)), "--output-format", "jsonl"],
                    stdout=subprocess.PIPE, stderr=errors, text=True) for core in cores]
                speeds = {}
                for bench in benches:
                    for line in bench.communicate()[0].splitlines():
                        if line.startswith("{"):
                            figures = json.loads(line)
                            speeds[figures["pl"]] = speeds.get(figures["pl"], 0) + figures["speed_tg"]
                    if bench.returncode != 0:
                        errors.seek(0)
                        fail(f"llama-batched-bench failed: {errors.read()[-2000:]}")
                for n, speed in speeds.items():
                    add(who, f"{n} behind {depth}", speed)
            words = ["--ctx", str(context), "--slots", str(o.streams[-1]), "--prompt", str(depth),
                     *(f"decode:{n}" for n in o.streams[1:])]
            for who, n_stages in ((STAGE1, 1), (STAGES2, 2)):
                for line in self.serve(o.cores[:n_stages], False, [words], o.small_model):
                    row = f"{line['what'].split()[1]} behind {depth}"
                    add(who, row, line["tokens_per_s"])
                    # Steps follow each other in the slowest stage, which has no more rows than a step.
                    slowest = max(stage["compute_ms"] + stage["sample_ms"] for stage in line["stages"])
                    add(who + ", allowed", row, 1e3 * line["rows_per_step"] * line["steps"] / slowest)

    def run(self):
        parts, cores = self.options.parts, self.options.cores
        for number in range(self.options.rounds):
            say(f"round {number + 1} of {self.options.rounds}")
            if "strata" in parts:
                self.strata(STAGES2, 2)
            if "whole" in parts:
                self.batched(ONE, 1, cores[:1])
            if "shaped" in parts:
                self.strata(SHAPED, 2, is_shaped=True)
            if "stage" in parts:
                self.strata(STAGE1, 1, rows=("prefill 512", "decode 1", "decode 4", "decode 8", "decode 16"))
            if "whole2" in parts:
                self.batched(TWO, 2, cores[:2])
            if "rpc" in parts:
                self.rpc()
            if "beside" in parts:
                self.mix(100)
                if "shaped" in parts:
                    self.mix(100, is_shaped=True)
            if "kept" in parts:
                self.beside_kept()
            if "depth" in parts:
                self.behind_prompts()
        if "limits" in parts:
            for wait_ms in self.options.limits:
                self.mix(wait_ms)


def median(values):
    return statistics.median(values) if values else None


def figure(values, digits=1):
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def ratio(before, after):
    """The geometric mean of the pairs' ratios, and its 95 % interval where there are 15 of them."""
    logs = [math.log(b / a) for a, b in zip(before, after)]
    mean = statistics.mean(logs)
    if len(logs) < 15:
        return f"{math.exp(mean):.2f}"
    half = 2.2 * statistics.stdev(logs) / math.sqrt(len(logs))  # Student's t of 15 pairs
    return f"{math.exp(mean):.3f} ({math.exp(mean - half):.3f}–{math.exp(mean + half):.3f})"


class Report:
    def __init__(self, contest, options):
        self.samples, self.beside, self.details = contest.samples, contest.beside, contest.details
        self.kept, self.depth = contest.kept, contest.depth
        self.depths_measured = sorted({int(row.split()[-1]) for row in self.depth.get(STAGES2, {})})
        self.options = options

    def of(self, who, row):
        return self.samples.get(who, {}).get(row, [])

    def speeds(self):
        rows = [f"| tokens per second | {' | '.join(ROWS)} |", "| --- |" + " --- |" * len(ROWS)]
        for who in (ONE, TWO, RPC, STAGE1, STAGES2, SHAPED):
            if who in self.samples:
                rows.append(f"| {who} | {' | '.join(figure(self.of(who, row)) for row in ROWS)} |")
        return "\n".join(rows)

    def ratio(self, who, row, base, base_row):
        values, others = self.of(who, row), self.of(base, base_row)
        return median(values) / median(others) if values and others else None

    def targets(self):
        wanted = [("prefill 2048", ONE, "prefill 2048", 1.85), ("decode 1", ONE, "decode 1", 1.0),
                  ("decode 8", ONE, "decode 8", 1.25), ("decode 16", ONE, "decode 8", 1.8),
                  ("prefill 512", RPC, "prefill 512", 5), ("decode 1", RPC, "decode 1", 1.7),
                  ("decode 8", RPC, "decode 8", 5)]
        lines = ["| two one-core stages | beside | wanted | measured | shaped links | of loopback, wanted 0.9 |",
                 "| --- | --- | --- | --- | --- | --- |"]

        def text(value):
            return "–" if value is None else f"{value:.2f}"
        for row, base, base_row, at_least in wanted:
            if base == ONE or self.of(RPC, base_row):
                beside = base + ("" if row == base_row else f", {base_row}")
                lines.append(f"| {row} | {beside} | ≥ {at_least} | {text(self.ratio(STAGES2, row, base, base_row))} | "
                             f"{text(self.ratio(SHAPED, row, base, base_row))} | "
                             f"{text(self.ratio(SHAPED, row, STAGES2, row))} |")
        return "\n".join(lines)

    def mixes(self):
        """{(shaped, limit): {what: median}}"""
        found = {}
        for line in self.beside:
            found.setdefault((line["shaped"], line["wait_ms"]), []).append(line)
        table = {}
        for key, lines in sorted(found.items()):
            gaps = [line["gap_ms"] for line in lines if "gap_ms" in line]
            table[key] = {
                "decode": median([line["decode"] for line in lines]),
                "prefill": median([line["prefill"] for line in lines]),
                "decode kept": median([line["decode"] / line["decode_alone"] for line in lines]),
                "prefill kept": median([line["prefill"] / line["prefill_alone"] for line in lines]),
                "alone": median([1000 / line["decode_alone"] for line in lines]),
                "rows": median([line["rows_per_step"] for line in lines]),
                "n": len(lines),
                **{name: median([gap[name] for gap in gaps]) for name in ("median", "p95", "max")}}
        return table

    def trade(self):
        lines = ["| limit, ms | decode, tok/s | kept | prefill, tok/s | kept | token after token alone, ms | "
                 "beside: median | p95 | most | rows a step |",
                 "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        for (is_shaped, wait_ms), m in self.mixes().items():
            lines.append(f"| {wait_ms}{', shaped links' if is_shaped else ''} | {m['decode']:.1f} | "
                         f"{m['decode kept']:.0%} | {m['prefill']:.1f} | {m['prefill kept']:.0%} | "
                         f"{m['alone']:.0f} | {m['median']:.0f} | {m['p95']:.0f} | {m['max']:.0f} | "
                         f"{m['rows']:.1f} |")
        return "\n".join(lines).replace("%", " %")

    def where(self):
        """What the stages were doing, of two stages on loopback."""
        lines = ["| 2 stages | rows a step | steps | a step, ms | computing in stage 1 + 2 | sampling | "
                 "idle 1, 2 |", "| --- | --- | --- | --- | --- | --- | --- |"]
        for row in ROWS:
            some = [d for d in self.details if d["who"] == STAGES2 and d["what"] == row]
            if not some:
                continue
            d = sorted(some, key=lambda d: d["wall_ms"] / d["steps"])[len(some) // 2]
            busy = [s["compute_ms"] + s["sample_ms"] for s in d["stages"]]
            idle = [f"{max(0, 1 - b / d['wall_ms']):.0%}".replace("%", " %") for b in busy]
            lines.append(
                f"| {row} | {d['rows_per_step']:.1f} | {d['steps']} | {d['wall_ms'] / d['steps']:.2f} | "
                f"{' + '.join(format(s['compute_ms'] / d['steps'], '.2f') for s in d['stages'])} | "
                f"{d['stages'][-1]['sample_ms'] / d['steps']:.2f} | {', '.join(idle)} |")
        return "\n".join(lines)

    def kept_prefixes(self):
        lines = ["| two stages, demo model | pairs | caches empty | other slots full of kept prefixes | "
                 "ratio of pairs, wanted 0.97 |", "| --- | --- | --- | --- | --- |"]
        for slots in sorted({found["slots"] for found in self.kept}):
            some = [found for found in self.kept if found["slots"] == slots]
            for row in ("decode 1", "prefill 900"):
                empty, full = ([found[name] for found in some] for name in (row, row + " kept"))
                lines.append(f"| {slots} slots, {row} | {len(some)} | {figure(empty)} | {figure(full)} | "
                             f"{ratio(empty, full)} |")
        return "\n".join(lines)

    def streams_measured(self, depth):
        rows = [row.split() for row in self.depth.get(STAGES2, {})]
        return sorted(int(row[0]) for row in rows if int(row[-1]) == depth)

    def depths(self):
        """`allowed`: what the slowest stage's measured time in steps of that depth allows. Two libllama at once with
        half of the streams each are what two cores compute with all weights on each of them."""
        lines = ["| streams, 0.1B | libllama, 1 core | Strata, 1 stage | ratio, wanted 0.95 | 2 stages | allowed | "
                 "ratio, wanted 0.9 | two libllama at once, half of the streams each | ratio |",
                 "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        for depth in self.depths_measured:
            for n in self.streams_measured(depth):
                row, half = f"{n} behind {depth}", f"{n // 2} behind {depth}"
                one, stage, stages, allowed = (self.depth.get(who, {}).get(row, [])
                                               for who in (ONE, STAGE1, STAGES2, STAGES2 + ", allowed"))
                both = self.depth.get(BOTH, {}).get(half, [])
                if not (one and stage and stages and allowed and both):
                    continue
                lines.append(f"| {row} | {figure(one)} | {figure(stage)} | {median(stage) / median(one):.2f} | "
                             f"{figure(stages)} | {figure(allowed)} | {median(stages) / median(allowed):.2f} | "
                             f"{figure(both)} | {median(stages) / median(both):.2f} |")
        return "\n".join(lines)

    def text(self):
        parts = [machine(self.options)]
        if self.samples:
            parts.append(self.speeds())
            if RPC not in self.samples:
                parts.append("llama.cpp RPC was not measured.")
            parts += [self.targets(), self.where()]
        if self.beside:
            parts.append(self.trade())
        if self.kept:
            parts.append(self.kept_prefixes())
        if self.depth:
            parts.append(self.depths())
        return "\n\n".join(parts) + "\n"


def machine(options):
    name = platform.processor() or platform.machine()
    try:
        out = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        name = re.search(r"Model name: *(.*)", out).group(1)
        l2, l3 = (re.search(rf"{level} cache: *(.*)", out) for level in ("L2", "L3"))
        name += "".join(f", {level} {found.group(1)}" for level, found in (("L2", l2), ("L3", l3)) if found)
    except (OSError, subprocess.CalledProcessError, AttributeError):
        pass
    versions = subprocess.run([options.bin + "/strata", "--version"], capture_output=True, text=True).stdout
    return (f"- {name}; {os.cpu_count()} cores; {platform.system()} {platform.release()}\n"
            f"- {', '.join(line for line in versions.splitlines() if line)}\n"
            f"- each stage, RPC server and one-core libllama pinned to a core ({options.cores[0]}, "
            f"{options.cores[1]}); what drives them, and the switch of the shaped links, on either")


class Svg:
    """Two panels: speeds as bars, and what decode and prefill keep beside each other."""

    WIDTH, HEIGHT, TOP, BOTTOM = 980, 380, 48, 64
    COLOURS = {ONE: "#9aa5b1", TWO: "#c7ced6", RPC: "#d98880", STAGES2: "#2471a3", SHAPED: "#7fb3d5"}

    def __init__(self, report):
        self.report, self.parts = report, []

    def words(self, x, y, text, anchor="middle", size=11, colour="#222", more=""):
        text = str(text).replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
                          f'fill="{colour}"{more}>{text}</text>')

    def line(self, x1, y1, x2, y2, colour="#ddd", more=""):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{colour}"{more}/>')

    def bars(self, left, right):
        who_all = [who for who in self.COLOURS if who in self.report.samples]
        base, height = self.HEIGHT - self.BOTTOM, self.HEIGHT - self.TOP - self.BOTTOM
        most = max((median(v) for who in who_all for v in self.report.samples[who].values()), default=1)
        step = next(s for s in (5, 10, 20, 25, 50, 100, 200, 500) if most / s <= 8 or s == 500)
        top = step * (int(most / step) + 1)
        for tick in range(0, top + 1, step):
            y = base - height * tick / top
            self.line(left, y, right, y)
            self.words(left - 6, y + 4, tick, "end", 10, "#666")
        group = (right - left) / len(ROWS)
        width = group * 0.84 / max(1, len(who_all))
        for i, row in enumerate(ROWS):
            self.words(left + group * (i + 0.5), base + 16, row)
            for k, who in enumerate(who_all):
                values = self.report.of(who, row)
                if not values:
                    continue
                x = left + group * (i + 0.08) + width * k
                y = base - height * median(values) / top
                self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{base - y:.1f}" '
                                  f'fill="{self.COLOURS[who]}"/>')
                if len(values) > 1:
                    x += (width - 1) / 2
                    self.line(x, base - height * min(values) / top, x, base - height * max(values) / top, "#333")
        self.words((left + right) / 2, 20, "Tokens per second (line: least to most)", size=13)
        x = left
        for who in who_all:
            self.parts.append(f'<rect x="{x:.1f}" y="{self.HEIGHT - 28}" width="10" height="10" '
                              f'fill="{self.COLOURS[who]}"/>')
            self.words(x + 14, self.HEIGHT - 19, who, "start", 10)
            x += 28 + 5.2 * len(who)

    def trade(self, left, right):
        mixes = {limit: m for (is_shaped, limit), m in self.report.mixes().items() if not is_shaped}
        if not mixes:
            return
        base, height = self.HEIGHT - self.BOTTOM, self.HEIGHT - self.TOP - self.BOTTOM
        limits = sorted(mixes)
        for tick in range(0, 101, 20):
            y = base - height * tick / 100
            self.line(left, y, right, y)
            self.words(left - 6, y + 4, f"{tick} %", "end", 10, "#666")
        at = {limit: left + (right - left) * (i + 0.5) / len(limits) for i, limit in enumerate(limits)}
        for limit in limits:
            self.words(at[limit], base + 16, limit)
        self.words((left + right) / 2, base + 34, "longest wait behind a prompt that is allowed, ms")
        for what, colour in (("decode kept", "#2471a3"), ("prefill kept", "#ca6f1e")):
            points = [(at[limit], base - height * min(1, mixes[limit][what])) for limit in limits]
            self.parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                              + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
            for x, y in points:
                self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
            self.words(points[-1][0], points[-1][1] - 8, what.split()[0], "middle", 11, colour)
        self.words((left + right) / 2, 20, "One stream beside a prompt of 2048: what each keeps", size=13)

    def text(self):
        self.bars(50, 600)
        self.trade(680, 960)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" '
                'font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/>'
                + "".join(self.parts) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-serving", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--demo-model", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--small-model", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for serving.md, .svg and .json")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default 3)")
    parser.add_argument("--tokens", type=int, default=32, metavar="N",
                        help="tokens that each stream decodes (default 32)")
    parser.add_argument("--cores", default="0,1", metavar="C,C", help="(default 0,1)")
    parser.add_argument("--mbit", type=int, default=1000, metavar="N", help="of shaped links (default 1000)")
    parser.add_argument("--delay-us", type=int, default=500, metavar="N",
                        help="of shaped links, one way (default 500)")
    parser.add_argument("--limits", default="25,50,200,400", metavar="MS,MS,…",
                        help="waits behind prompts to try beside 100 (default 25,50,200,400)")
    parser.add_argument("--kept-slots", default="4,16,64", metavar="N,N,…",
                        help="slots beside which one stream runs (default 4,16,64)")
    parser.add_argument("--depths", default="1000,4000", metavar="N,N,…",
                        help="tokens behind which many streams run (default 1000,4000)")
    parser.add_argument("--streams", default="4,8,16", metavar="N,N,…",
                        help="how many; each is compared with half of it, so the first is only a half (default 4,8,16)")
    parser.add_argument("--parts", default="strata,whole,shaped,stage,whole2,rpc,beside,kept,depth,limits",
                        metavar="PART,…", help="what to measure (default %(default)s)")
    parser.add_argument("--append", action="store_true", help="go on with what --out has already")
    options = parser.parse_args()
    options.cores = [int(core) for core in options.cores.split(",")]
    for name in ("limits", "kept_slots", "depths", "streams"):
        setattr(options, name, [int(word) for word in getattr(options, name).split(",") if word])
    options.parts = options.parts.split(",")
    os.makedirs(options.out, exist_ok=True)
    stem = os.path.join(options.out, "serving")
    if os.getloadavg()[0] > 0.5:
        say(f"the machine is busy (load average {os.getloadavg()[0]:.2f}): the figures will be, too")

    contest = Contest(options)
    if options.append and os.path.exists(stem + ".json"):
        with open(stem + ".json") as f:
            kept = json.load(f)
        contest.samples, contest.beside, contest.details = kept["samples"], kept["beside"], kept["details"]
        contest.kept, contest.depth = kept.get("kept", []), kept.get("depth", {})
    try:
        contest.run()
    finally:
        # What was measured until something failed is kept.
        with open(stem + ".json", "w") as f:
            json.dump({"samples": contest.samples, "beside": contest.beside, "details": contest.details,
                       "kept": contest.kept, "depth": contest.depth}, f, indent=1)
    report = Report(contest, options)
    with open(stem + ".md", "w") as f:
        f.write(report.text())
    with open(stem + ".svg", "w") as f:
        f.write(Svg(report).text())
    print(report.text())


if __name__ == "__main__":
    main()
