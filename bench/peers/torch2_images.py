"""Image models beside torchvision's, on the same weights and batch.

    python bench/peers/torch2_images.py build/release/bench/evenkeel-images exact [MODEL ...]
    python bench/peers/torch2_images.py build/release/bench/evenkeel-images time [ROUNDS [MODEL ...]]
    python bench/peers/torch2_images.py build/release/bench/evenkeel-images memory [MODEL ...]
    python bench/peers/torch2_images.py build/release/bench/evenkeel-images norms [ROUNDS [MODEL ...]]
    python bench/peers/torch2_images.py build/gpu/bench/evenkeel-bench gpu [BATCH [MODEL ...]]

`exact`: steps of SGD with momentum, 3 in f64 and 10 in f32 on one device and on uneven ones. Prints how far the losses are,
relatively, from those of PyTorch in f64, and the parameters and buffers after the steps (the difference over the largest change
of the tensor); and the same of PyTorch in f32.
`time`: f32, in turns, evenkeel on cpu:2 with batch norm over both devices and on cpu:1 with two threads, PyTorch with
channels_last on two threads, eager and compiled; the median of the steps after two, and the ratios inside a round, of seconds
and of processor time.
`memory`: the peak resident size of a process of 3 steps in f32: of PyTorch eager with channels_last on two threads, also without
the pages of files (libraries), and of evenkeel on one device with two threads and on cpu:2, in several modes and with
recomputation.
`norms`: what batch norm over both devices costs: its step on cpu:2 over that of batch norm over each device's own samples, in
turns, a process of 10 steps each; the median of the steps after the first, of all rounds and the ratios inside a round.
`gpu`: ResNets of 224 x 224 pictures on cuda:0, in bf16 and TF32, both sides with SGD and momentum: evenkeel-bench beside PyTorch
with channels_last, eager and compiled, each in a process of its own; the median of 20 steps after 5.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import safetensors.torch
import torch
import torchvision

# batch, size, classes: to compare, and to time
SHAPES = {"resnet18-small": ((14, 32, 10), (128, 32, 10)), "resnet18": ((14, 64, 7), (16, 224, 1000)),
          "resnet50": ((14, 64, 7), (16, 224, 1000)), "fcn50": ((3, 64, 5), (2, 160, 21))}
STEPS, SLOW_STEPS, RATE, MOMENTUM = 10, 3, 0.001, 0.9


def model_of(name, classes):
    if name == "fcn50":
        model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=classes,
                                                             aux_loss=True)
        model.classifier[3].p = model.aux_classifier[3].p = 0
        return model
    model = getattr(torchvision.models, name.split("-")[0])(num_classes=classes)
    if name.endswith("small"):
        model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = torch.nn.Identity()
    return model


def loss_of(name, output, targets):
    entropy = torch.nn.functional.cross_entropy
    if name != "fcn50":
        return entropy(output, targets)
    return entropy(output["out"], targets) + 0.5 * entropy(output["aux"], targets)


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def weights_of(model):
    return {name: value.detach().clone().float() for name, value in model.state_dict().items()}


class Task:
    def __init__(self, name, shape, folder):
        self.name, self.shape, self.folder = name, shape, folder
        batch, size, classes = shape
        torch.manual_seed(7)
        self.model = model_of(name, classes).train()
        self.pictures = torch.randn(batch, 3, size, size)
        self.compiled = None  # for timing: compiling takes minutes, so it is kept from round to round
        self.targets = torch.randint(classes, (batch, size, size) if name == "fcn50" else (batch,))
        safetensors.torch.save_file(weights_of(self.model), self.path("weights"))
        numpy.ascontiguousarray(self.pictures.permute(0, 2, 3, 1).numpy()).tofile(self.path("pictures"))
        self.targets.numpy().astype("<i4").tofile(self.path("targets"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, program, steps, precision, devices):
        return [program, self.name, self.path("weights"), self.path("pictures"), self.path("targets"),
                ",".join(map(str, self.shape)), str(steps), precision, devices, self.path("out")]

    def own(self, program, steps, precision, devices, *more):
        """Losses, seconds, and weights after the steps."""
        command = self.command(program, steps, precision, devices) + list(more)
        text = output_of(command)
        rows = [line.split() for line in text.splitlines()]
        return [float(row[3]) for row in rows], [(float(row[5]), float(row[7])) for row in rows], self.path("out")

    def peer(self, steps, precision, last=False, compiled=False):
        model = model_of(self.name, self.shape[2]).train()
        model.load_state_dict(self.model.state_dict())
        run = model
        pictures = self.pictures
        if precision == "f64":
            model, pictures = model.double(), pictures.double()
        if last:
            model = model.to(memory_format=torch.channels_last)
            pictures = pictures.to(memory_format=torch.channels_last)
        if compiled:
            self.compiled = self.compiled or (model, torch.compile(model))
            model, run = self.compiled
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        losses, seconds = [], []
        for _ in range(steps):
            begin, used = time.perf_counter(), time.process_time()
            optimizer.zero_grad()
            loss = loss_of(self.name, run(pictures), self.targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seconds.append((time.perf_counter() - begin, time.process_time() - used))
        return losses, seconds, model.state_dict()


def difference(before, theirs, ours):
    """The largest difference of a tensor, over the largest change of that tensor in the steps."""
    largest, where = 0.0, ""
    for name, value in theirs.items():
        value, own, first = value.double(), ours[name].double().reshape(value.shape), before[name].double()
        change = (value - first).abs().max().item()
        apart = (value - own).abs().max().item() / change if change > 0 else (value - own).abs().max().item()
        if apart > largest:
            largest, where = apart, name
    return largest, where


def report(what, losses, state, wanted, state_wanted, before):
    first = abs(losses[0] - wanted[0]) / abs(wanted[0])
    largest = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted))
    apart, where = difference(before, state_wanted, state)
    print(f"{what}: first loss {first:.2g}, all losses {largest:.2g}, state {apart:.2g} ({where})", flush=True)


def exact(program, names):
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            task = Task(name, SHAPES[name][0], folder)
            before = weights_of(task.model)
            for steps, precisions in ((SLOW_STEPS, ("f64",)), (STEPS, ("f32",))):
                wanted, _, state = task.peer(steps, "f64")
                for precision in precisions:
                    for devices in ("cpu:2",) if precision == "f64" else ("cpu:1", "cpu:4"):
                        losses, _, path = task.own(program, steps, precision, devices)
                        report(f"{name} evenkeel {precision} {devices}", losses, safetensors.torch.load_file(path), wanted, state,
                               before)
            losses, _, single = task.peer(STEPS, "f32")
            report(f"{name} PyTorch f32", losses, single, wanted, state, before)


def times(program, rounds, names):
    torch.set_num_threads(2)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            task = Task(name, SHAPES[name][1], folder)
            got = {"cpu:2": [], "cpu:1": [], "eager": [], "compiled": []}
            for number in range(rounds):
                for who in list(got)[:: 1 if number % 2 == 0 else -1]:
                    seconds = (task.own(program, 6, "f32", who) if who.startswith("cpu") else
                               task.peer(6, "f32", True, who == "compiled"))[1]
                    got[who].append([statistics.median(kind) for kind in zip(*seconds[2:])])
            for kind, title in enumerate(("seconds", "processor")):
                times_of = {who: [pair[kind] for pair in pairs] for who, pairs in got.items()}
                for own in ("cpu:2", "cpu:1"):
                    print(f"{name} {SHAPES[name][1]} {title}: {own} {1e3 * statistics.median(times_of[own]):.0f} ms", end="")
                    for who in ("eager", "compiled"):
                        ratios = [a / b for a, b in zip(times_of[own], times_of[who])]
                        print(f"; {who} {1e3 * statistics.median(times_of[who]):.0f} ms, ratio {statistics.median(ratios):.3f} "
                              f"({min(ratios):.3f} to {max(ratios):.3f})", end="")
                    print(f"; load {os.getloadavg()[0]:.1f}", flush=True)


# By a process that is small itself: the peak of a process counts what its parent had when it was made.
MEASURE = """
import os, sys
_, status, usage = os.wait4(os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0)
print(usage.ru_maxrss / 1024)
sys.exit(status != 0)
"""


def peak_of(command):
    """MiB of the largest resident size of a process, and what it prints."""
    text = output_of([sys.executable, "-c", MEASURE, *command])
    lines = text.splitlines()
    return float(lines[-1]), "\n".join(lines[:-1])


def memory(program, names):
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            task = Task(name, SHAPES[name][1], folder)
            peak, text = peak_of([sys.executable, __file__, program, "peer", name])
            alone = peak - float(text)
            print(f"{name} PyTorch: {peak:.0f} MiB, {alone:.0f} without files", flush=True)
            for devices, recompute, mode in (("cpu:1", "none", "replicated"), ("cpu:1", "cheap", "replicated"),
                                             ("cpu:2", "none", "replicated"), ("cpu:2", "cheap", "replicated"),
                                             ("cpu:2", "none", "fully-sharded"), ("cpu:2", "cheap", "fully-sharded")):
                own, _ = peak_of(task.command(program, 3, "f32", devices) + [recompute, mode])
                print(f"{name} {devices} {mode} {recompute}: {own:.0f} MiB, ratio {own / peak:.3f}, "
                      f"without files {own / alone:.3f}", flush=True)


def peer_alone(name):
    """Three steps, as the process whose size is taken; prints the MiB of files in it."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        task = Task(name, SHAPES[name][1], folder)
        model = task.model.to(memory_format=torch.channels_last)
        pictures = task.pictures.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(name, model(pictures), task.targets).backward()
            optimizer.step()
    with open("/proc/self/status", encoding="ascii") as status:
        print(sum(int(line.split()[1]) for line in status if line.startswith(("RssFile", "RssShmem"))) / 1024)


def norms(program, rounds, names):
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            task = Task(name, SHAPES[name][1], folder)
            got = {"all": [], "shard": []}
            for number in range(rounds):
                for norm in list(got)[:: 1 if number % 2 == 0 else -1]:
                    seconds = task.own(program, 10, "f32", "cpu:2", "none", "replicated", norm)[1]
                    got[norm].append([pair[0] for pair in seconds[1:]])
            ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(got["all"], got["shard"])]
            middle = {norm: statistics.median(sum(steps, [])) for norm, steps in got.items()}
            print(f"{name} {SHAPES[name][1]}: all {1e3 * middle['all']:.0f} ms, shard {1e3 * middle['shard']:.0f} ms, "
                  f"ratio {middle['all'] / middle['shard']:.3f}; in a round {statistics.median(ratios):.3f} "
                  f"({min(ratios):.3f} to {max(ratios):.3f}), {rounds} rounds; load {os.getloadavg()[0]:.1f}", flush=True)


def gpu_seconds(name, batch, precision, compiled):
    """The median of PyTorch's steps on cuda:0, printed."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    model = model_of(name, 1000).cuda().to(memory_format=torch.channels_last).train()
    run = torch.compile(model) if compiled else model
    pictures = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    targets = torch.randint(1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    seconds = []
    for _ in range(25):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(name, run(pictures), targets)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    print(statistics.median(seconds[5:]), torch.cuda.max_memory_allocated() / 2**30)


def gpu(program, batch, names):
    for name in names:
        for precision in ("bf16", "tf32"):
            command = [program, "step", "--preset=" + name, "--devices=cuda:0", "--modes=replicated", "--optimizer=sgd",
                       f"--precision={precision}", f"--batch={batch}", "--warmup=5", "--steps=20", "-o", "json"]
            text = output_of(command)
            own = json.loads(text)["runs"][0]["step_seconds"]["median"]
            print(f"{name} batch {batch} {precision}: {1e3 * own:.2f} ms", end="", flush=True)
            for form in ("eager", "compiled"):
                command = [sys.executable, __file__, program, "gpu-peer", name, str(batch), precision, form]
                text = output_of(command)
                seconds, peak = map(float, text.split())
                print(f"; {form} {1e3 * seconds:.2f} ms, ratio {own / seconds:.3f}, peak {peak:.2f} GiB", end="", flush=True)
            print(flush=True)


def main():
    program, what, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    if what == "exact":
        exact(program, rest or SHAPES)
    elif what == "memory":
        memory(program, rest or SHAPES)
    elif what == "norms":
        norms(program, int(rest[0]) if rest else 5, rest[1:] or SHAPES)
    elif what == "peer":
        peer_alone(rest[0])
    elif what == "gpu":
        gpu(program, int(rest[0]) if rest else 64, rest[1:] or ["resnet50"])
    elif what == "gpu-peer":
        gpu_seconds(rest[0], int(rest[1]), rest[2], rest[3] == "compiled")
    else:
        times(program, int(rest[0]) if rest else 5, rest[1:] or SHAPES)


if __name__ == "__main__":
    main()
