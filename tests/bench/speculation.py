"""Drafts that are verified in a pipeline, beside the same pipeline without them and one core that holds the whole model.

Called by scripts/bench-speculation, inside the place where Strata builds; needs nothing but Python. The model is
heavy_model.py's, so drafts are accepted as the demo model accepts them. Nodes with one thread each stand behind a switch
with slow links. In each round a request runs with drafts, without, and on one node that has the whole model, in this
order: no drafter has read the answer before. Rounds have prompts of their own for the same reason.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request

from compare import machine
from heavy_model import Gguf, N_LAYERS, Reader
from machines import Network, fail, first_line, say
from serving import figure

# The greedy text behind each of these repeats itself within LEAD tokens.
REPEATING = ["The people of the village", "I am", "He had been", "My dear", "The soldiers"]
PROSE = ["It was a cold morning, and", "In the evening the old man", "The king", "The road to the north", "She said that",
         "A large dog", "When the war was over", "The old captain"]
LEAD = 128
STREAMS = 8
QUOTA_US, PERIOD_US = 1000, 4000
NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET
LINKS = {"fast": (1000, 500), "slow": (100, 10000)}  # Mbit/s, µs one way
WORKLOADS = {"repeats": "text that repeats itself", "prose": "prose, temperature 0.8", "wrong": "always wrong drafts",
             "streams": f"{STREAMS} streams of prose"}


class Quota:
    """A control group with a quarter of a core, ahead of all programs outside."""

    def __init__(self):
        second = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        self.folder = tempfile.mkdtemp(prefix="strata-bench-", dir="/sys/fs/cgroup/" + ("" if second else "cpu"))
        if second:
            self.set("cpu.max", f"{QUOTA_US} {PERIOD_US}")
            self.set("cpu.weight", 10000)
        else:
            self.set("cpu.cfs_period_us", PERIOD_US)
            self.set("cpu.cfs_quota_us", QUOTA_US)
            self.set("cpu.shares", 1 << 18)

    def set(self, name, value):
        with open(f"{self.folder}/{name}", "w") as f:
            f.write(str(value))

    def inside(self, command):
        return ["sh", "-c", f'echo $$ >{self.folder}/cgroup.procs && exec "$@"', "sh", *command]

    def close(self):
        for _ in range(100):  # a worker may leave a moment later
            try:
                return os.rmdir(self.folder)
            except OSError:
                time.sleep(0.05)


class Cluster:
    """Nodes that share a model's layers equally; all is asked of the first. Without `link` they are on loopback."""

    def __init__(self, options, cores, link=None, quarters=False, model=None):
        self.options, self.nodes, self.quotas = options, [], []
        self.folder, self.n = tempfile.mkdtemp(), len(cores)
        self.what = (f"{self.n} stage{'s' if self.n > 1 else ''}, {'a quarter of ' if quarters else ''}a core each"
                     + (f", {link[0]} Mbit/s and {link[1] / 1000:g} ms" if link else ""))
        mbit, delay_us = link or (0, 0)
        self.network = Network(types.SimpleNamespace(bin=options.bin, mbit=mbit, delay_us=delay_us), self.n if link else 0)
        try:
            for number, core in enumerate(cores):
                if quarters:
                    self.quotas.append(Quota())
                self.start(number, core)
            self.model = self.load(model or options.model)
        except BaseException:
            for name in sorted(os.listdir(self.folder)):
                if name.endswith(".log"):
                    with open(f"{self.folder}/{name}") as log:
                        say(f"{name}: {log.read()[-1000:]}")
            self.close()
            raise

    def start(self, number, core):
        name = f"node-{number + 1}"
        command = ["taskset", "-c", str(core), self.options.bin + "/strata", "node", "--listen",
                   self.network.host(number) + ":0", "--name", name, "--threads", "1", "--device", "CPU", "--no-mdns",
                   "--open", "--http", "0", "--data-dir", f"{self.folder}/{name}", "--stop-with-parent"]
        if number:
            command += ["--peer", self.nodes[0][1]["address"], "--cache-dir",
                        f"{self.options.weights}/{number + 1}-of-{self.n}"]
        if self.quotas:
            command = self.quotas[number].inside(command)
        node = subprocess.Popen(self.network.inside(number, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=open(f"{self.folder}/{name}.log", "w"), text=True)
        self.nodes.append((node, first_line(node, name)["node"]))

    def load(self, model):
        """Returns its name."""
        command = [self.options.bin + "/strata", "load", model, "--ctx", "1024", "--seqs", str(STREAMS), "--open",
                   "--node", self.nodes[0][1]["address"], "--json"]
        if self.n > 1:
            each = N_LAYERS // self.n
            command += ["--assign", ",".join(f"node-{i + 1}={i * each}-{(i + 1) * each - 1}" for i in range(self.n))]
        if self.options.speculates:
            command += ["--speculate", self.options.mode]
        if self.options.draft and self.n > 1:
            command += ["--draft", self.options.draft]
        began = time.time()
        run = subprocess.run(self.network.inside(0, command), capture_output=True, text=True)
        if run.returncode:
            fail(f"{self.what}: {run.stderr}")
        say(f"{self.what}: loaded in {time.time() - began:.0f} s")
        return json.loads(run.stdout)["model"]

    def each(self, work, items, number=0):
        """Runs work(item) for all items at a time, in the network of a node. Returns what they return, in order."""
        found = [None] * len(items)

        def run(i):
            if self.network.machines:
                with open(f"/proc/{self.network.machines[number]}/ns/net") as f:
                    os.setns(f.fileno(), NETWORK_NAMESPACE)
            found[i] = work(items[i])
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(items))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if None in found:
            fail(f"{self.what}: a request failed")
        return found

    def get(self, number, path):
        url = self.nodes[number][1]["http"] + path
        return self.each(lambda u: urllib.request.urlopen(u, timeout=60).read().decode(), [url], number)[0]

    def ask(self, requests, speculate):
        """Streams of all requests at a time: a list of Answer."""
        body = {"model": self.model, "speculate": speculate}
        return self.each(lambda r: Answer(self.nodes[0][1]["http"], {**body, **r}), requests)

    def busy(self):
        """(seconds that it computed and sampled, steps) of each stage so far, in order, as the coordinator's page has it."""
        for number in range(self.n):
            stages = {}
            for line in self.get(number, "/metrics").splitlines():
                name = line.split("{")[0].removeprefix("strata_stage_")
                of_model = f'model="{self.model}"' in line  # not of its draft model
                if of_model and name in ("compute_seconds_total", "sample_seconds_total", "steps_total"):
                    stage = stages.setdefault(int(line.split('stage="')[1].split('"')[0]), {})
                    stage[name] = float(line.split()[-1])
            if stages:
                return [(s["compute_seconds_total"] + s["sample_seconds_total"], s["steps_total"])
                        for _, s in sorted(stages.items())]
        fail(f"{self.what}: /metrics of no node has its stages")

    def close(self):
        for node, _ in self.nodes:
            node.stdin.close()
        for node, _ in self.nodes:
            node.wait()
        for quota in self.quotas:
            quota.close()
        self.network.close()
        shutil.rmtree(self.folder)


class Server:
    """llama-server with the whole model in one process, which computes drafts and the tokens they follow in one batch."""

    def __init__(self, options, cores, words):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url, self.errors = f"http://127.0.0.1:{port}", tempfile.TemporaryFile(mode="w+", errors="replace")
        self.process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), "llama-server", "-m", options.model, "-t", str(len(cores)), "-c",
             "1024", "-np", "1", "--host", "127.0.0.1", "--port", str(port), *words],
            stdout=subprocess.DEVNULL, stderr=self.errors)
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=60).close()
                return
            except OSError:
                time.sleep(0.2)
        self.errors.seek(0)
        fail(f"llama-server {' '.join(words)}: {self.errors.read()[-2000:]}")

    def ask(self, request):
        """Tokens per second, and the drafts accepted."""
        body = {**request, "n_predict": request["max_tokens"], "ignore_eos": True, "cache_prompt": True}
        with urllib.request.urlopen(urllib.request.Request(self.url + "/completion", json.dumps(body).encode(), {
                "Content-Type": "application/json"}), timeout=3600) as answer:
            timings = json.load(answer)["timings"]
        return timings["predicted_per_second"], timings.get("draft_n_accepted", 0)

    def close(self):
        self.process.kill()
        self.process.wait()


class Answer:
    """A streamed completion: its tokens, their log-probabilities, when they came, and the drafts it accepted."""

    def __init__(self, url, request):
        body = {"ignore_eos": True, "return_token_ids": True, "stream": True,
                "stream_options": {"include_usage": True}, **request}
        self.prompt, self.tokens, self.logprobs, self.times, usage = [], [], [], [], {}
        with urllib.request.urlopen(urllib.request.Request(
                url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}),
                timeout=3600) as stream:
            for line in stream:
                if not line.startswith(b"data: {"):
                    continue
                piece = json.loads(line[6:])
                if "error" in piece:
                    fail(piece["error"]["message"])
                usage = piece.get("usage") or usage
                for choice in piece["choices"]:
                    self.prompt += choice.get("prompt_token_ids") or []
                    new = choice.get("token_ids") or []
                    self.tokens += new
                    self.times += [time.monotonic()] * len(new)
                    self.logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
        details = usage.get("completion_tokens_details", {})
        self.accepted = details.get("accepted_prediction_tokens", 0)
        self.rejected = details.get("rejected_prediction_tokens", 0)


def ngram(text, most=8, least=2):
    """What came behind the longest and latest earlier place with the text's last tokens; null: there is none."""
    for n in range(min(most, len(text) - 1), least - 1, -1):
        for at in range(len(text) - n - 1, -1, -1):
            if text[at:at + n] == text[-n:]:
                return text[at + n]
    return None


def predicted(answer):
    """(tokens that an n-gram of the text before predicts, how many of these are right)"""
    text, n, right = list(answer.prompt), 0, 0
    for token in answer.tokens:
        draft = ngram(text)
        n, right = n + (draft is not None), right + (draft == token)
        text.append(token)
    return n, right


class Prompts:
    """What each round asks: {workload: requests of one moment}."""

    def __init__(self, options, whole):
        self.options, self.whole, self.made = options, whole, {}
        reader = Reader(Gguf(options.demo_model).values[b"tokenizer.ggml.tokens"][1])
        reader.number("I")
        self.vocabulary = {reader.string().decode(): i for i in range(reader.number("Q"))}

    def of(self, workload, number):
        if (workload, number) not in self.made:
            self.made[workload, number] = self.make(workload, number)
        return self.made[workload, number]

    def make(self, workload, number):
        n, drawn = self.options.tokens, {"temperature": 0.8, "top_k": 0, "top_p": 1}
        if workload == "repeats":
            prompt = REPEATING[number % len(REPEATING)]
            lead, = self.whole.ask([{"prompt": prompt, "max_tokens": LEAD, "temperature": 0}], "off")
            return [{"prompt": lead.prompt + lead.tokens, "max_tokens": n, "temperature": 0}]
        if workload == "wrong":
            return [self.wrong(number)]
        prompts = PROSE[:STREAMS] if workload == "streams" else [PROSE[number % len(PROSE)]]
        return [{"prompt": prompt, "max_tokens": n, "seed": 100 * number + i, **drawn} for i, prompt in enumerate(prompts)]

    def wrong(self, number):
        """An answer whose tokens are given, behind a prompt in which something else follows any few of them."""
        letters = [c for c in string.ascii_letters + string.digits + string.punctuation
                   if c in self.vocabulary and c not in '"\\']
        random.Random(number).shuffle(letters)
        text = self.spelled("", letters, min(self.options.tokens, 64))
        tokens = [self.vocabulary[c] for c in text]
        prompt = [0]
        for i in reversed(range(len(tokens) - 1)):
            prompt += tokens[max(0, i - 2):i + 1] + [self.vocabulary["Ġthe"]]
        return {"prompt": prompt, "max_tokens": len(tokens), "guided_choice": [text], "temperature": 0}

    def spelled(self, text, letters, n):
        """So many different letters in an order in which no token has two of them."""
        if len(text) == n:
            return text
        for c in letters:
            longer = text + c
            if not any(longer[-k:] in self.vocabulary for k in range(2, len(longer) + 1)):
                rest = self.spelled(longer, [other for other in letters if other != c], n)
                if rest:
                    return rest
        return None


def speed(answers):
    """Tokens per second from the first token on. Several streams begin one after the other: a step takes long."""
    begin = min(a.times[0] for a in answers)
    return sum(t > begin for a in answers for t in a.times) / (max(a.times[-1] for a in answers) - begin)


def slowest(before, after):
    """Seconds of a step in the slowest stage."""
    return max((b[0] - a[0]) / (b[1] - a[1]) for a, b in zip(before, after))


class Row:
    """A workload on a cluster: tokens per second of each round, and what became of drafts."""

    def __init__(self):
        self.drafts, self.plain, self.whole = [], [], []
        self.busy_s, self.plain_s = [], []  # of a step in the slowest stage, with drafts and without
        self.written = self.drafted = self.accepted = self.offered = self.right = self.differing = 0

    def ratio(self):
        return statistics.median(self.drafts) / statistics.median(self.plain)

    def allowed(self, right):
        """How many times plain speed a chain has of whose drafts a part `right` is right: a·s + (1 − a)·L for L."""
        token_s = 1 / statistics.median(self.plain)
        return token_s / (right * statistics.median(self.busy_s or self.plain_s) + (1 - right) * token_s)


class Contest:
    def __init__(self, options):
        self.options, self.rows, self.quarter, self.servers = options, {}, [], {}
        self.whole = Cluster(options, options.cores[:1])
        self.prompts = Prompts(options, self.whole)

    def check_text(self):
        """The heavy model's text is the demo model's, with its log-probabilities."""
        small = Cluster(self.options, self.options.cores[:1], model=self.options.demo_model)
        try:
            for prompt in REPEATING:
                request = [{"prompt": prompt, "max_tokens": 32, "temperature": 0, "logprobs": 1}]
                ours, = small.ask(request, "off")
                heavy, = self.whole.ask(request, "off")
                if (ours.tokens, ours.logprobs) != (heavy.tokens, heavy.logprobs) or len(ours.logprobs) != 32:
                    fail(f"the heavy model does not write the demo's text behind {prompt!r}: "
                         f"{heavy.tokens} {heavy.logprobs}, not {ours.tokens} {ours.logprobs}")
        finally:
            small.close()

    def check_quarter(self):
        """How many times longer a token takes on a quarter of a core, in each round."""
        quarter = Cluster(self.options, self.options.cores[-1:], quarters=True)
        try:
            for number in range(self.options.rounds):
                request = [{"prompt": PROSE[number % len(PROSE)], "max_tokens": 16, "temperature": 0}]
                self.quarter.append(speed(self.whole.ask(request, "off")) / speed(quarter.ask(request, "off")))
        finally:
            quarter.close()

    def round(self, cluster, workload, number):
        o, row = self.options, self.rows.setdefault((cluster.what, workload), Row())
        requests = self.prompts.of(workload, number)
        # The prompts are in caches then: decoding is timed.
        for each in (cluster, self.whole):
            each.ask([{**r, "max_tokens": 1} for r in requests], "off")
        drafts, before = [], cluster.busy()
        if o.speculates:
            drafts = cluster.ask(requests, o.mode)
            row.busy_s.append(slowest(before, cluster.busy()))
            row.drafts.append(speed(drafts))
            row.accepted += sum(a.accepted for a in drafts)
            row.drafted += sum(a.accepted + a.rejected for a in drafts)
        before = cluster.busy()
        plain = cluster.ask(requests, "off")
        row.plain_s.append(slowest(before, cluster.busy()))
        whole = self.whole.ask(requests, "off")
        row.plain.append(speed(plain))
        row.whole.append(speed(whole))
        row.written += sum(len(a.tokens) for a in plain)
        for offered, right in map(predicted, plain):
            row.offered, row.right = row.offered + offered, row.right + right
        if len(requests) == 1:  # of several, rows are computed together and rounded otherwise
            row.differing += sum(a.tokens != b.tokens for a, b in zip(drafts, plain))
        say(f"{cluster.what}: {workload}: {row.plain[-1]:.1f} tok/s"
            + (f", with drafts {row.drafts[-1]:.1f}" if row.drafts else "") + f", one core {row.whole[-1]:.1f}")

    def serve(self):
        """Classic speculation on one core and on two: {(title, workload): [(tokens per second, accepted)]}"""
        o = self.options
        kinds = {"plain": ["--spec-type", "none"], "n-grams": ["--spec-type", "ngram-simple"]}
        if o.draft:
            kinds["draft model"] = ["-md", o.draft, "--spec-type", "draft-simple"]
        for kind, words in kinds.items():
            for cores in (o.cores[:1], o.cores):
                server = Server(o, cores, words)
                try:
                    for number in range(o.rounds):
                        for workload in [w for w in o.workloads if w in ("repeats", "prose")]:
                            request, = self.prompts.of(workload, number)
                            server.ask({**request, "max_tokens": 1})
                            title = f"{kind}, {len(cores)} core{'s' if len(cores) > 1 else ''}"
                            self.servers.setdefault((title, workload), []).append(server.ask(request))
                finally:
                    server.close()

    def run(self):
        o = self.options
        self.check_text()
        if o.servers:
            self.serve()
        if 4 in o.stages:
            self.check_quarter()
        for n in o.stages:
            for link in o.links:
                cores = [o.cores[i % len(o.cores)] for i in range(n)]
                cluster = Cluster(o, cores, LINKS[link], quarters=n > len(o.cores))
                try:
                    for number in range(o.rounds):
                        for workload in o.workloads:
                            self.round(cluster, workload, number)
                finally:
                    cluster.close()

    def report(self):
        o = self.options
        lines = [machine(o), f"- rounds: {o.rounds}, of {o.tokens} tokens; tokens per second: median (least–most); "
                 f"drafts: {o.mode if o.speculates else 'not in this program'}",
                 "- the heavy model wrote the demo model's text, with its log-probabilities"]
        if self.quarter:
            lines.append(f"- on a quarter of a core the whole model takes {figure(self.quarter, 2)} times as long as on one")
        heads = ["", "one core", "plain", "with drafts", "of plain", "allowed by these", "accepted, of drafts, of tokens",
                 "slowest stage, ms: plain, with drafts", "n-grams: right, of drafts, of tokens", "allowed by these",
                 "outputs that differ"]
        for what in dict.fromkeys(what for what, _ in self.rows):
            lines += ["", f"### {what}", "", f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
            lines += [f"| {WORKLOADS[workload]} | {' | '.join(self.cells(row, workload == 'streams'))} |"
                      for (where, workload), row in self.rows.items() if where == what]
        if self.servers:
            lines += ["", "### llama-server, the whole model in one process", "",
                      "| | | tokens per second | accepted of tokens |", "| --- | --- | --- | --- |"]
        for (title, workload), runs in self.servers.items():
            lines.append(f"| {title} | {WORKLOADS[workload]} | {figure([speed for speed, _ in runs])} | "
                         f"{sum(n for _, n in runs)} of {o.tokens * len(runs)} |")
        return "\n".join(lines)

    @staticmethod
    def cells(row, is_several):
        def allowed(right):
            return "–" if is_several else f"{row.allowed(right / row.written):.2f}"
        drafts = ([f"{row.ratio():.2f}", allowed(row.accepted), f"{row.accepted}, {row.drafted}, {row.written}"]
                  if row.drafts else ["–"] * 3)
        stage = ", ".join(f"{1000 * statistics.median(s):.1f}" for s in (row.plain_s, row.busy_s) if s)
        differing = f"{row.differing} of {len(row.drafts)}" if row.drafts and not is_several else "–"
        return [figure(row.whole), figure(row.plain), figure(row.drafts), *drafts, stage,
                f"{row.right}, {row.offered}, {row.written}", allowed(row.right), differing]


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-speculation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bin", "model", "demo-model"):
        parser.add_argument("--" + name, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="of each stream (default 48)")
    parser.add_argument("--stages", default="2,4", metavar="N,N,…",
                        help="more than there are cores get a quarter of one each (default 2,4)")
    parser.add_argument("--links", default="fast,slow", metavar="LINK,…", help="fast: 1 Gbit/s and 0.5 ms one way; "
                        "slow: 100 Mbit/s and 10 ms (default fast,slow)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), metavar="NAME,…", help="default %(default)s")
    parser.add_argument("--mode", default="ngram", help="of strata load --speculate (default ngram)")
    parser.add_argument("--servers", action="store_true", help="measure llama-server, too, on one core and on all")
    parser.add_argument("--draft", metavar="FILE", help="a draft model, for --mode draft and for llama-server")
    parser.add_argument("--cores", default="0,1", metavar="C,C,…", help="cores to use (default 0,1)")
    options = parser.parse_args()
    for name, known in (("links", LINKS), ("workloads", WORKLOADS)):
        words = getattr(options, name).split(",")
        setattr(options, name, words)
        if not set(words) <= set(known):
            fail(f"--{name}: one of these is unknown: {words}; known are {', '.join(known)}")
    options.stages, options.cores = ([int(n) for n in words.split(",")] for words in (options.stages, options.cores))
    program = options.strata = options.bin + "/strata"
    options.backend, options.load = "CPU", os.getloadavg()[0]
    options.speculates = "--speculate" in subprocess.run([program, "load", "--help"], capture_output=True, text=True).stdout
    if not options.speculates:
        say("this program has no drafts: plain pipelines alone are measured")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or control groups would stay
    # Weights that came over a link once are kept for the next cluster.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(options.model)) as options.weights:
        contest = Contest(options)
        try:
            contest.run()
        finally:
            contest.whole.close()
    print(contest.report())


if __name__ == "__main__":
    main()
