"""PyTorch 2's DistributedDataParallel over gloo beside evenkeel's processes, in turns.

    python bench/peers/torch2_ddp.py build/release/bench/evenkeel-bench [ROUNDS [S|T1024]]

Two processes of one thread each on one machine, mode `replicated`, f32, AdamW, with the settings that
torch2_turns.py gives to PyTorch. Each round starts both, in an order that changes, and takes the median
of the measured steps of process 0; the ratio is taken inside a round. The peak of resident memory is that
of the larger process. The bytes of a step are those that the loopback device of Linux has counted for both
processes together, with headers, in a run of more steps without those in a run of fewer: nothing else should
use the loopback device at that time.
"""

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SHAPES = {"S": dict(layers=4, width=256, heads=4, seq=128, vocab=8192, batch=16),
          "T1024": dict(layers=4, width=256, heads=4, seq=1024, vocab=8192, batch=4)}
PROCESSES, WARMUP, STEPS, MORE = 2, 3, 8, 4
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "536870912"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train():
    """One process of DDP."""
    import torch
    import torch.distributed
    import torch2_model
    shape = SHAPES[os.environ["PEER_SHAPE"]]
    torch.manual_seed(1234)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch2_model.Gpt(shape), gradient_as_bucket_view=True)
    step = torch2_model.Step(model, "f32", 3e-4, False)
    rows = torch.randint(shape["vocab"], (shape["batch"], shape["seq"] + 1))
    rows = rows[rank * shape["batch"] // PROCESSES:(rank + 1) * shape["batch"] // PROCESSES]
    batch = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    seconds = []
    for i in range(WARMUP + int(os.environ["PEER_STEPS"])):
        begin = time.perf_counter()
        step.take(*batch).item()
        if i >= WARMUP:
            seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
    torch.distributed.destroy_process_group()


def start(commands):
    """The output of process 0, and the largest peak of all."""
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
                for command, environment in commands]
    first = None
    peak = 0
    for child in children:
        text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            sys.exit(f"a process ended with {status}")
        first = text if first is None else first
        peak = max(peak, usage.ru_maxrss * 1024)
    return first, peak


def loopback_bytes():
    with open("/sys/class/net/lo/statistics/tx_bytes") as counter:
        return int(counter.read())


def bytes_of_step(run):
    counts = [loopback_bytes()]
    for steps in (STEPS, STEPS + MORE):
        run(steps)
        counts.append(loopback_bytes())
    return ((counts[2] - counts[1]) - (counts[1] - counts[0])) / MORE


def ddp(name, steps=STEPS):
    port = free_port()
    commands = []
    for rank in range(PROCESSES):
        environment = dict(os.environ, PEER_SHAPE=name, PEER_STEPS=str(steps), RANK=str(rank), WORLD_SIZE=str(PROCESSES),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", **MALLOC)
        commands.append(([sys.executable, __file__], environment))
    text, peak = start(commands)
    return statistics.median(json.loads(text)["seconds"]), peak


def own(program, name, steps=STEPS):
    flags = [f"--{key}={value}" for key, value in SHAPES[name].items()]
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for process in range(PROCESSES):
            environment = dict(os.environ, EVENKEEL_WORLD_FILE=os.path.join(folder, "world"),
                               EVENKEEL_WORLD_PROCESS=str(process), EVENKEEL_WORLD_PROCESSES=str(PROCESSES),
                               EVENKEEL_WORLD_ADDRESS="127.0.0.1")
            commands.append(([program, "step", "--devices=cpu:1", "--threads=1", "--modes=replicated", *flags,
                              f"--warmup={WARMUP}", f"--steps={steps}", "-o", "json"], environment))
        text, peak = start(commands)
    return json.loads(text)["runs"][0]["step_seconds"]["median"], peak


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    for name in sys.argv[3:] or SHAPES:
        ratios, ours, theirs, loads = [], [], [], []
        for round_number in range(rounds):
            order = (own, ddp) if round_number % 2 == 0 else (ddp, own)
            got = {}
            loads.append(os.getloadavg()[0])  # of the minute before: our own two processes are 2 of it
            for peer in order:
                got[peer] = own(program, name) if peer is own else ddp(name)
            ratios.append(got[own][0] / got[ddp][0])
            ours.append(got[own])
            theirs.append(got[ddp])
        middle = statistics.median
        print(f"{name}: ours / DDP {middle(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
              f"{1e3 * middle(s for s, _ in ours):.0f} and {1e3 * middle(s for s, _ in theirs):.0f} ms; peak "
              f"{middle(p for _, p in ours) / 2**30:.2f} and {middle(p for _, p in theirs) / 2**30:.2f} GiB; loads {min(loads):.1f} to {max(loads):.1f}")
        sent = [bytes_of_step(lambda steps: own(program, name, steps)), bytes_of_step(lambda steps: ddp(name, steps))]
        print(f"{name}: MB over the loopback device in a step, ours {sent[0] / 1e6:.2f}, DDP {sent[1] / 1e6:.2f}")


if __name__ == "__main__":
    train() if "PEER_SHAPE" in os.environ else main()
