"""The time until nodes have loaded a model from a web server, each its own layers, beside the server's link.

Called by scripts/bench-slices, inside the place where Strata builds; needs nothing but Python. The server and the nodes
are machines behind a switch. The server's link has ten times the speed of a node's, which each node has to itself.
"""

import argparse
import http.server
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from machines import Network, fail, first_line, say

PORT = 8080
PIECE = 1 << 20


def serve(path):
    size = os.path.getsize(path)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            begin, end = 0, size
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted:
                begin, end = int(wanted[1]), min(int(wanted[2] or size) + 1, size)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            try:
                with open(path, "rb") as file:
                    while begin < end:
                        begin += os.sendfile(self.connection.fileno(), file.fileno(), begin, min(PIECE, end - begin))
            except ConnectionError:  # a client that wants no more
                self.close_connection = True

    server = http.server.ThreadingHTTPServer(("0.0.0.0", PORT), Handler)
    print(json.dumps({"bytes": size}), flush=True)
    server.serve_forever()


# Of one connection.
def fetch(url):
    begin = time.time()
    with urllib.request.urlopen(url) as file:
        while file.read(PIECE):
            pass
    print(json.dumps({"s": time.time() - begin}), flush=True)


class Cluster:
    """Nodes on the machines from 1 on; they are gone, with the weights that they fetched, at the end."""

    def __init__(self, options, network, n_nodes):
        self.options, self.network, self.nodes = options, network, []
        self.folder = tempfile.mkdtemp()
        for number in range(1, n_nodes + 1):
            self.start(number)
        # Nodes measure their devices before the first plan.
        loaded = json.loads(self.strata("load", options.small_model, "--json"))
        self.strata("unload", loaded["model"])

    def start(self, number):
        name, log = f"node-{number}", open(f"{self.folder}/{number}.log", "w")
        command = [self.options.bin + "/strata", "node", "--listen", self.network.host(number) + ":7400", "--name", name,
                   "--threads", "1", "--no-mdns", "--open", "--http", "0", "--data-dir", f"{self.folder}/{name}",
                   "--stop-with-parent"]
        if self.nodes:
            command += ["--peer", self.network.host(1) + ":7400"]
        node = subprocess.Popen(self.network.inside(number, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=log, text=True)
        self.nodes.append(node)
        first_line(node, f"{name} ({log.name})")

    def strata(self, *args):
        run = subprocess.run(self.network.inside(1, [self.options.bin + "/strata", *args, "--open", "--node",
                                                     self.network.host(1) + ":7400"]), capture_output=True, text=True,
                             env={**os.environ, "XDG_CACHE_HOME": f"{self.folder}/cache"})
        if run.returncode:
            fail(f"strata {' '.join(args)}: {run.stderr}")
        return run.stdout

    # Seconds of a load, in equal parts of layers.
    def load(self, url):
        each = self.options.layers // len(self.nodes)
        parts = [f"node-{i + 1}={i * each}-{(i + 1) * each - 1}" for i in range(len(self.nodes))]
        begin = time.time()
        self.strata("load", url, "--assign", ",".join(parts), "--ctx", "256", "--seqs", "1", "--json")
        return time.time() - begin

    def close(self):
        for node in self.nodes:
            node.stdin.close()
        for node in self.nodes:
            node.wait()
        shutil.rmtree(self.folder)


def measure(options):
    switch = argparse.Namespace(bin=options.bin, delay_us=options.delay_us,
                                mbit=",".join(map(str, [options.mbit * 10, options.mbit, options.mbit])))
    network = Network(switch, 3)
    this = [sys.executable, __file__]
    server = subprocess.Popen(network.inside(0, this + ["--serve", options.model]), stdout=subprocess.PIPE, text=True)
    try:
        size = first_line(server, "the server")["bytes"]
        url = f"http://{network.host(0)}:{PORT}/model.gguf"
        link = json.loads(subprocess.check_output(network.inside(1, this + ["--fetch", url])))["s"]
        say(f"one connection fetches {size / 1e6:.0f} MB in {link:.1f} s")
        loads = {}
        for n_nodes in (1, 2):
            cluster = Cluster(options, network, n_nodes)
            try:
                loads[n_nodes] = cluster.load(url)
                say(f"{n_nodes} nodes load it in {loads[n_nodes]:.1f} s")
            finally:
                cluster.close()
        return {"bytes": size, "link_s": round(link, 2), "one_node_s": round(loads[1], 2),
                "two_nodes_s": round(loads[2], 2), "one_of_link": round(link / loads[1], 2),
                "two_of_one": round(loads[1] / loads[2], 2)}
    finally:
        server.kill()
        server.wait()
        network.close()


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-slices")
    for hidden in ("--bin", "--model", "--small-model", "--serve", "--fetch"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=16, help="of the model")
    parser.add_argument("--mbit", type=int, default=100, help="of each node's link")
    parser.add_argument("--delay-us", type=int, default=5000, help="one way")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    if options.fetch:
        return fetch(options.fetch)
    where = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, {time.strftime('%Y-%m-%d')}"
    print(json.dumps({"machine": where, "mbit": options.mbit, **measure(options)}, indent=1))


main()
