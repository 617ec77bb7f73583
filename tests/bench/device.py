"""One device: tokens per second beside llama-bench on it, and the memory that was planned beside what is taken.

Called by scripts/bench-device, inside the place where Strata builds; needs nothing but Python. A node that offers
the device alone loads the model in one stage. A round runs both once, in turn, each behind a prompt that is not
counted; the table has medians, and the least and the most.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from machines import fail, first_line, say

MIB = 2**20


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        fail(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Node:
    """Strata's, with the one device."""

    def __init__(self, options):
        self.options, self.folder = options, tempfile.mkdtemp()
        self.process = subprocess.Popen(
            [options.bin + "/strata", "node", "--listen", "127.0.0.1:0", "--device", options.device, "--threads",
             str(options.threads), "--no-mdns", "--open", "--http", "0", "--data-dir", self.folder,
             "--stop-with-parent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = first_line(self.process, "the node")["node"]["address"]
        while self.me()["measuring"] or not self.me()["devices"]:
            time.sleep(0.5)

    def strata(self, *args):
        return run([self.options.bin + "/strata", *args, "--json", "--open", "--node", self.address])

    def me(self):
        return self.strata("status")["nodes"][0]

    def memory(self):
        """Of the device's own memory, bytes: free as its driver tells another process, and all."""
        probe = subprocess.run([self.options.bin + "/strata", "probe"], capture_output=True, text=True)
        listed = [json.loads(line) for line in probe.stdout.splitlines()]
        device = next(d for d in listed if d["name"] == self.options.device)
        return int(device["memoryFree"]), int(device["memoryTotal"])

    def tell(self, model, prompt, tokens):
        return self.strata("run", model, prompt, "--max-tokens", str(tokens), "--temperature", "0", "--ignore-eos")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.folder)


def taken(node, before):
    """Of the device, which nobody else uses, and what its driver takes for each process: a plan counts on what a process finds free."""
    # What a CPU has free is the machine's, and others take of it.
    if node.options.device == "CPU":
        while not (resident := node.me()["stages"][0]["resident_bytes"]):  # told with the next heartbeat
            time.sleep(0.5)
        return resident, 0
    # CUDA tells a process what is free behind its own; Vulkan tells all that it may have.
    free, total = node.memory()
    drivers = total - before if node.options.device.startswith("CUDA") else 0
    return before - free - drivers, drivers


def llama_bench(options, n_prompt):
    on = ["-dev", "none", "-ngl", "0"] if options.device == "CPU" else ["-dev", options.device, "-ngl", "999"]
    command = ["llama-bench", "-m", options.model, "-t", str(options.threads), *on, "-r", "1", "-o", "json"]
    prefill = run(command + ["-p", str(n_prompt), "-n", "0"])
    decode = run(command + ["-p", "0", "-n", str(options.tokens), "-d", str(n_prompt)])
    return prefill[0]["avg_ts"], decode[0]["avg_ts"]


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-device", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", required=True, metavar="FILE", help="a GGUF (default: a random llama 1.1B)")
    parser.add_argument("--device", default="CPU", metavar="NAME",
                        help="as strata status names it: CUDA0, Vulkan0, … (default CPU)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="(default: the cores)")
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="prompt tokens, about (default 512)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens to decode (default 64)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds (default 3)")
    options = parser.parse_args()
    node = Node(options)
    try:
        if options.device not in [d["name"] for d in node.me()["devices"]]:
            fail(f"there is no device {options.device} here: strata doctor says which there are")
        context = options.prompt + options.tokens + 64
        shape = [options.model, "--ctx", str(context), "--seqs", "1"]
        stage = node.strata("plan", *shape)["stages"][0]
        planned = stage["weight_bytes"] + stage["cache_bytes"] + stage["compute_bytes"]
        before, _ = node.memory()
        model = node.strata("load", *shape)["model"]
        words = options.prompt * 8 // len(node.tell(model, "village " * 8, 1)["prompt"]["tokens"])
        # Not counted: the scheduler learns how fast steps of many rows are.
        node.tell(model, "warm " + "village " * words, 1)
        ours, theirs, steps, n_prompt = [], [], [], 0
        for number in range(options.repeats):
            say(f"round {number + 1} of {options.repeats}")
            # llama-bench runs its prompt once before the one it times, too: the first one behind a rest may be slower.
            # Another beginning each time, or the cache would have it.
            node.tell(model, f"idle {number} " + "village " * words, 1)
            out = node.tell(model, f"{number} " + "village " * words, options.tokens)
            n_prompt = len(out["prompt"]["tokens"])
            ours.append((out["prompt_tokens_per_second"], out["decode_tokens_per_second"]))
            steps.append(out["stages"][0]["decode"])
            theirs.append(llama_bench(options, n_prompt))
        mib, drivers = (each / MIB for each in taken(node, before))
    finally:
        node.close()
    print(f"{options.device}, {options.threads} threads, {n_prompt} prompt tokens, {options.tokens} decoded, tokens per "
          f"second: median of {options.repeats}\n")
    print("| | Strata, 1 stage | llama-bench | Strata / llama-bench |\n| --- | --- | --- | --- |")
    for name, i in (("prefill", 0), ("decode", 1)):
        mine, other = ([each[i] for each in all] for all in (ours, theirs))
        cells = " | ".join(f"{statistics.median(all):.1f} ({min(all):.1f}–{max(all):.1f})" for all in (mine, other))
        print(f"| {name} | {cells} | {statistics.median(mine) / statistics.median(other):.2f} |")
    parts = ", ".join(f"{name} {statistics.median(step[name + '_ms_per_step'] for step in steps):.3f}"
                      for name in ("queue", "compute", "sample"))
    print(f"\nOf a decode step, ms: {parts}; the rest is on the way.")
    print(f"\nMemory: planned {planned / MIB:.0f} MiB, taken {mib:.0f} MiB "
          f"({100 * (mib * MIB / planned - 1):+.1f} %), and {drivers:.0f} MiB by the driver for each process.")


if __name__ == "__main__":
    sys.exit(main())
