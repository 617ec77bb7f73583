"""What moves of layers cost the texts that are being written: pauses, and the time until all is done.

Called by scripts/bench-moves, inside the place where Strata builds; needs nothing but Python. Nodes with one thread
each stand behind a switch. drain: two of three have half of the model's layers each, and one's move to the third.
join: one has all layers, and the half that was assigned to another one moves to it when it comes.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from machines import Network, fail, first_line, say

NAMES = ["node-a", "node-b", "node-c"]


class Cluster:
    """Machines, and a node on some, with one thread each."""

    def __init__(self, options, n_machines):
        self.options, self.nodes, self.folder = options, [], tempfile.mkdtemp()
        self.network = Network(options, n_machines)

    def load(self, *where):
        self.strata("load", self.options.model, *where, "--ctx", str(self.options.context), "--seqs",
                    str(self.options.texts))

    def start(self, number, name):
        log = open(f"{self.folder}/{name}.log", "w")
        command = [self.options.bin + "/strata", "node", "--listen", self.network.host(number) + ":7400", "--name",
                   name, "--threads", "1", "--no-mdns", "--open", "--http", "0", "--data-dir",
                   f"{self.folder}/{name}", "--stop-with-parent"]
        if number:
            command += ["--peer", self.network.host(0) + ":7400"]
        node = subprocess.Popen(self.network.inside(number, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=log, text=True)
        self.nodes.append((node, first_line(node, f"{name} ({log.name})")["node"], log.name))

    def strata(self, *args):
        command = [self.options.bin + "/strata", *args, "--open", "--node", self.network.host(0) + ":7400"]
        run = subprocess.run(self.network.inside(0, command), capture_output=True, text=True)
        if run.returncode:
            fail(f"strata {' '.join(args)}: {run.stderr}")
        return run.stdout

    def halves(self):
        half = self.options.layers // 2
        return f"{NAMES[0]}=0-{half - 1},{NAMES[1]}={half}-{self.options.layers - 1}"

    # What its nodes say of moves.
    def moves(self):
        logs = "".join(open(log).read() for _, _, log in self.nodes)
        return re.findall(r"\] (.* has moved: .*)", logs)

    def close(self):
        for node, _, _ in self.nodes:
            node.stdin.close()
        for node, _, _ in self.nodes:
            node.wait()
        self.network.close()
        shutil.rmtree(self.folder)


class Texts:
    """Streams of the HTTP API, begun with the same prompt but for its last token."""

    def __init__(self, options, url):
        self.options, self.url = options, url
        self.base = [(i * 7919) % 30000 + 100 for i in range(options.prompt - 1)]
        self.times = [[] for _ in range(options.texts)]

    def post(self, last, tokens, stream):
        with urllib.request.urlopen(self.url + "/models") as models:
            model = json.load(models)["data"][0]["id"]
        body = {"model": model, "prompt": self.base + [last], "max_tokens": tokens, "ignore_eos": True,
                "temperature": 0, "stream": stream}
        return urllib.request.urlopen(urllib.request.Request(
            self.url + "/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=3600)

    def write(self, number):
        for line in self.post(10 + number, self.options.tokens, True):
            if line.startswith(b"data: {"):
                self.times[number].append(time.time())

    def run(self):
        self.post(5, 1, False).read()  # all of them have its prefix
        threads = [threading.Thread(target=self.write, args=(n,)) for n in range(self.options.texts)]
        for thread in threads:
            thread.start()
        while not all(self.times):
            time.sleep(0.1)
        time.sleep(5)
        print(json.dumps({"writing": time.time()}), flush=True)
        for thread in threads:
            thread.join()
        print(json.dumps({"times": self.times}), flush=True)


def longest_gap(times, begin, end):
    return max((b - a for each in times for a, b in zip(each, each[1:]) if b > begin and a < end), default=0)


class Drain:
    machines = 3

    def prepare(self, cluster):
        for number, name in enumerate(NAMES):
            cluster.start(number, name)
        cluster.load("--assign", cluster.halves())

    def change(self, cluster):
        cluster.strata("drain", NAMES[1])


class Join:
    machines = 2

    def prepare(self, cluster):
        for number, name in enumerate(NAMES[:2]):
            cluster.start(number, name)
        cluster.load("--assign", cluster.halves())
        # Processes of one computer share it, so the planner gives a node that is new nothing for being faster; one that
        # had been given layers by hand gets them back. Until then they are one stage of the first node.
        self.stop(cluster)
        self.wait(cluster, 1)

    def stop(self, cluster):
        node, _, _ = cluster.nodes.pop()
        node.kill()
        node.wait()
        shutil.rmtree(f"{cluster.folder}/{NAMES[1]}")  # with the weights that it had

    def wait(self, cluster, moves):
        limit = time.time() + 120
        while len(cluster.moves()) < moves:
            if time.time() > limit:
                fail(f"nothing has moved: {open(cluster.nodes[0][2]).read()}")
            time.sleep(0.1)

    def change(self, cluster):
        cluster.start(1, NAMES[1])
        self.wait(cluster, 2)


CHANGES = {"drain": Drain, "join": Join}


def measure(options):
    change = CHANGES[options.change]()
    cluster = Cluster(options, change.machines)
    try:
        change.prepare(cluster)
        driver = subprocess.Popen(
            cluster.network.inside(0, [sys.executable, __file__, options.change, "--drive", cluster.nodes[0][1]["http"],
                                       "--texts", str(options.texts), "--prompt", str(options.prompt), "--tokens",
                                       str(options.tokens)]),
            stdout=subprocess.PIPE, text=True)
        begin = json.loads(driver.stdout.readline())["writing"]
        say(f"{options.texts} texts are being written; {options.change}")
        change.change(cluster)
        end = time.time()
        said = cluster.moves()[-1:]  # others may follow
        times = json.loads(driver.stdout.readline())["times"]
        driver.wait()
        written = [len(each) for each in times]
        if min(written) < options.tokens:
            fail(f"texts are not whole: {written} of {options.tokens} tokens")
        if min(each[-1] for each in times) < end:
            fail(f"a text ended before the {options.change}: give more --tokens")
        before = [[t for t in each if t < begin] for each in times]
        return {f"{options.change}_s": round(end - begin, 1),
                "longest_gap_before_s": round(longest_gap(before, 0, begin), 2),
                "longest_gap_s": round(longest_gap(times, begin, end), 2), "said": said}
    finally:
        cluster.close()


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-moves")
    parser.add_argument("change", choices=CHANGES, nargs="?", default="drain")
    parser.add_argument("--bin", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=16, help="of the model")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--context", type=int, default=4096, help="tokens of each text")
    parser.add_argument("--prompt", type=int, default=3501, help="tokens")
    parser.add_argument("--tokens", type=int, default=400, help="that each text writes")
    parser.add_argument("--mbit", type=int, default=1000, help="of each machine's link")
    parser.add_argument("--delay-us", type=int, default=100, help="one way")
    options = parser.parse_args()
    if options.drive:
        return Texts(options, options.drive + "/v1").run()
    where = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, {time.strftime('%Y-%m-%d')}"
    print(json.dumps({"machine": where, "texts": options.texts, "prompt": options.prompt, "mbit": options.mbit,
                      **measure(options)}, indent=1))


main()
