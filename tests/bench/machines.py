"""What the benchmarks in Python have in common: machines behind delay_switch, and words to who waits."""

import json
import pathlib
import subprocess
import sys

ADDRESS = "10.79.0.{}"  # of the machines behind delay_switch, from 1 on


def say(words):
    print(f"bench-{pathlib.Path(sys.argv[0]).stem}: {words}", file=sys.stderr, flush=True)


def fail(words):
    say(words)
    sys.exit(1)


def first_line(process, what):
    line = process.stdout.readline()
    if not line:
        fail(f"{what} ended: status {process.wait()}")
    return json.loads(line)


class Network:
    """So many machines behind a slow switch; none: all runs here, on loopback."""

    def __init__(self, options, n_machines):
        self.switch, self.machines = None, []
        if n_machines:
            self.switch = subprocess.Popen(
                [options.bin + "/delay_switch", str(n_machines), str(options.mbit), str(options.delay_us)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.machines = first_line(self.switch, "the switch")["machines"]

    def host(self, number):
        return ADDRESS.format(number + 1) if self.machines else "127.0.0.1"

    def inside(self, number, command):
        if not self.machines:
            return command
        return ["nsenter", f"--net=/proc/{self.machines[number]}/ns/net", "--"] + command

    def close(self):
        if self.switch:
            self.switch.stdin.close()
            self.switch.wait()
