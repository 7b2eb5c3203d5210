"""How much of a step two processes wait for a link that is slow.

    python bench/peers/slow_link.py build/release/bench/evenkeel-bench [ROUNDS [NAME=VALUE ...]]

Takes root, iproute2 and a kernel with network namespaces, veth and tbf. Two processes of one thread each train
shape S in mode `replicated`, f32. NAME=VALUE is a flag of evenkeel-bench that changes it, such as vocab=512, or, with
preset=resnet18, that preset: in S the gradient of the tied table is 40 % of all and complete when backward ends, in
these the last gradient is small. A round has, in turns,

    alone   both processes at the same time, each a world of its own with half of the batch: no communication; the
            time is that of the slower one
    fast    both in one world, each in a network namespace, with a veth pair between them that has no limit
    slow    the same, where the pair sends as many bytes in a second as makes the sum over the gradients last half of
            the backward of `alone`

Exposed communication is the part of a step of `slow` in which the device that waits least stands still in a sum between
processes: 1 - busy_seconds / mean of step_seconds, of one and the same steps. The other device also waits for this one,
where the two are not equally fast; its part is printed too. Beside it (slow - alone) / slow and (slow - fast) / slow, of
the medians of a round: they also contain what sums and sockets take of cores that compute, and what the machine changes
from one run to the next. Namespaces are removed at the end.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

import torch2_ddp

WARMUP, STEPS = 2, 12
NAMES = ["evenkeel-slow-0", "evenkeel-slow-1"]
ADDRESSES = ["10.77.0.1", "10.77.0.2"]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def link():
    """Two namespaces with a veth pair between them."""
    try:
        for name in NAMES:
            ip("netns", "add", name)
        ip("link", "add", "slow0", "netns", NAMES[0], "type", "veth", "peer", "name", "slow1", "netns", NAMES[1])
        for process, name in enumerate(NAMES):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"{ADDRESSES[process]}/24", "dev", f"slow{process}")
            ip("-n", name, "link", "set", f"slow{process}", "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def limit(bytes_per_second):
    """No limit where this is None."""
    for process, name in enumerate(NAMES):
        if bytes_per_second is None:
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "delete", "dev", f"slow{process}", "root"],
                           check=False, stderr=subprocess.DEVNULL)
            continue
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", f"slow{process}", "root", "tbf",
                        "rate", f"{int(8 * bytes_per_second)}bit", "burst", "256kb", "latency", "400ms"], check=True)


def command(program, name, device, shape, batch=None):
    flags = dict(shape) if batch is None else dict(shape, batch=batch)
    return [program, name, f"--devices={device}:1", "--threads=1", "--modes=replicated",
            *(f"--{key}={value}" for key, value in flags.items()), f"--warmup={WARMUP}", f"--steps={STEPS}",
            "-o", "json"]


def results(commands):
    """The median of a step, that of its backward, and the part of the steps in which each device waits for others."""
    children = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
                for words, environment in commands]
    texts = [child.communicate()[0] for child in children]
    if any(child.returncode != 0 for child in children):
        sys.exit("a process has failed")
    runs = [json.loads(text)["runs"][0] for text in texts if text.strip()] # of a world, process 0 prints
    return [(run["step_seconds"]["median"], run["split_seconds"]["backward"],
             sorted(1 - process["busy_seconds"] / run["step_seconds"]["mean"] for process in run.get("processes", [])))
            for run in runs]


def alone(program, shape):
    half = command(program, "step", "cpu", shape, shape["batch"] // 2)
    return max(results([(half, dict(os.environ)) for _ in NAMES]))


def together(program, shape):
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for process, name in enumerate(NAMES):
            environment = dict(os.environ, EVENKEEL_WORLD_FILE=os.path.join(folder, "world"),
                               EVENKEEL_WORLD_PROCESS=str(process), EVENKEEL_WORLD_PROCESSES=str(len(NAMES)),
                               EVENKEEL_WORLD_ADDRESS=ADDRESSES[process])
            commands.append((["ip", "netns", "exec", name, *command(program, "step", "cpu", shape)], environment))
        return results(commands)[0]


def read_shape(program, words):
    """What is trained, with its batch; and the bytes of its gradients."""
    given = dict(word.split("=", 1) for word in words)
    shape = given if "preset" in given else dict(torch2_ddp.SHAPES["S"], **given)
    planned = json.loads(subprocess.run(command(program, "memory", "plan", shape), check=True, capture_output=True,
                                        text=True).stdout)
    gradients = planned["runs"][0]["devices"][0]["categories_at_peak"]["gradients"]
    return dict(shape, batch=planned["config"]["batch"]), gradients


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    shape, gradients = read_shape(program, sys.argv[3:])
    columns = {"exposed": [], "the other": [], "slow to alone": [], "slow to fast": []}
    with link():
        for _ in range(rounds):
            free, backward, _ = alone(program, shape)
            limit(None)
            fast, _, fast_waits = together(program, shape)
            rate = gradients / (backward / 2)
            limit(rate)
            slow, _, waits = together(program, shape)
            for column, value in zip(columns.values(), (*waits, (slow - free) / slow, (slow - fast) / slow)):
                column.append(value)
            print(f"alone {free * 1e3:.0f} ms (backward {backward * 1e3:.0f} ms), fast {fast * 1e3:.0f} ms, of which the two "
                  f"wait {fast_waits[0]:.3f} and {fast_waits[1]:.3f}, at {rate / 1e6:.0f} MB/s {slow * 1e3:.0f} ms, of "
                  f"which they wait {waits[0]:.3f} and {waits[1]:.3f}, load {os.getloadavg()[0]:.1f}", flush=True)
    for name, values in columns.items():
        print(f"{name} {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
