"""How much of a step two processes wait for a link that is slow.

    python bench/peers/slow_link.py build/release/bench/evenkeel-bench [ROUNDS [NAME=VALUE ...]]

Takes root, iproute2 and a kernel with network namespaces, veth and tbf. Two processes of one thread each train
shape S in mode `replicated`, f32. NAME=VALUE is a flag of evenkeel-bench that changes it, such as vocab=512, or, with
preset=resnet18, that preset: in S the gradient of the tied table is 40 % of all and complete when backward ends, in
these the last gradient is small. A round has, in turns,

    alone   both processes at the same time, each a world of its own with half of the batch: no communication
    slow    both in one world, each in a network namespace; a veth pair between them sends as many bytes in a second
            as makes the sum over the gradients last half of the backward of `alone`

Exposed communication is (slow - alone) / slow, of the medians of a round. Namespaces are removed at the end.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

import torch2_ddp

WARMUP, STEPS = 2, 8
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
    for process, name in enumerate(NAMES):
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", f"slow{process}", "root", "tbf",
                        "rate", f"{int(8 * bytes_per_second)}bit", "burst", "256kb", "latency", "400ms"], check=True)


def command(program, name, device, shape, batch=None):
    flags = dict(shape) if batch is None else dict(shape, batch=batch)
    return [program, name, f"--devices={device}:1", "--threads=1", "--modes=replicated",
            *(f"--{key}={value}" for key, value in flags.items()), f"--warmup={WARMUP}", f"--steps={STEPS}",
            "-o", "json"]


def result(commands):
    run = json.loads(torch2_ddp.start(commands)[0])["runs"][0]
    return run["step_seconds"]["median"], run["split_seconds"]["backward"]


def alone(program, shape):
    half = command(program, "step", "cpu", shape, shape["batch"] // 2)
    return result([(half, dict(os.environ)) for _ in NAMES])


def slow(program, shape):
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for process, name in enumerate(NAMES):
            environment = dict(os.environ, EVENKEEL_WORLD_FILE=os.path.join(folder, "world"),
                               EVENKEEL_WORLD_PROCESS=str(process), EVENKEEL_WORLD_PROCESSES=str(len(NAMES)),
                               EVENKEEL_WORLD_ADDRESS=ADDRESSES[process])
            commands.append((["ip", "netns", "exec", name, *command(program, "step", "cpu", shape)], environment))
        return result(commands)


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
    exposed = []
    with link():
        for _ in range(rounds):
            free, backward = alone(program, shape)
            rate = gradients / (backward / 2)
            limit(rate)
            seconds, _ = slow(program, shape)
            exposed.append((seconds - free) / seconds)
            print(f"alone {free * 1e3:.0f} ms (backward {backward * 1e3:.0f} ms), at {rate / 1e6:.0f} MB/s "
                  f"{seconds * 1e3:.0f} ms: exposed {exposed[-1]:.3f}, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"exposed {statistics.median(exposed):.3f} ({min(exposed):.3f} to {max(exposed):.3f})")


if __name__ == "__main__":
    main()
