"""Losses of evenkeel beside PyTorch's autocast, on the same initial weights and batches: `run --torch 2 --losses`.

evenkeel-losses writes its initial weights; this program picks the batches. Then each trains from there, over the same batches in the
same order, with the same AdamW, in f32, bf16 and f16 (PyTorch with its own GradScaler, evenkeel with its own loss scale). Prints how
far apart the curves are, smoothed by the mean over 50 steps. What each step's loss was stays in the folder, a file for each run,
which bench/losses reads too.

With --recipe both train by llm.c's recipe for GPT-2 124M: AdamW with betas 0.9 and 0.95 and decay 0.1, gradients clipped to 1, a
warm-up over a tenth of the steps and a cosine to 0, in f32. PyTorch also trains from --seeds other initial weights, over the same
batches: how far evenkeel's curve is from PyTorch's is said in standard deviations of these.
"""

import argparse
import concurrent.futures
import glob
import importlib.machinery
import importlib.util
import math
import os
import statistics
import subprocess
import sys

PLACE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(PLACE))
PAIRS = [("evenkeel f32", "PyTorch f32"), ("evenkeel bf16", "PyTorch bf16"), ("evenkeel f16", "PyTorch f16"),
         ("evenkeel bf16", "evenkeel f32"), ("PyTorch bf16", "PyTorch f32"),
         ("evenkeel f16", "evenkeel f32"), ("PyTorch f16", "PyTorch f32")]
SHAPE = ("layers", "width", "heads", "seq", "batch")


def bench_losses():
    """bench/losses, for its smoothing."""
    loader = importlib.machinery.SourceFileLoader("losses", os.path.join(ROOT, "bench", "losses"))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("losses", loader))
    loader.exec_module(module)
    return module


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="run --torch 2 --losses", description="Losses of evenkeel beside PyTorch's autocast, from the same weights and batches.")
    parser.add_argument("--losses", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=300, help="default 300")
    parser.add_argument("--shape", default="2,64,4,64,16", metavar="LAYERS,WIDTH,HEADS,SEQUENCE,BATCH",
                        help="of a model over bytes (default 2,64,4,64,16)")
    parser.add_argument("--precision", dest="precisions", default="f32,bf16,f16", metavar="LIST", help="default f32,bf16,f16")
    parser.add_argument("--rate", type=float, help="of AdamW, constant (default 1e-3)")
    parser.add_argument("--text", metavar="FILE", help="bytes to learn (default: this project's pages)")
    parser.add_argument("--seed", type=int, default=1234, help="of the choice of batches (default 1234)")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch threads = evenkeel devices (default 2)")
    parser.add_argument("--window", type=int, default=50, help="steps that the curves are smoothed over (default 50)")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build", "peers", "losses"), help="where files go")
    parser.add_argument("--recipe", action="store_true", help="llm.c's recipe, beside the noise of seeds; --rate is 6e-4 then")
    parser.add_argument("--seeds", type=int, default=5, help="other initial weights for --recipe (default 5)")
    parser.add_argument("--evenkeel", default="-", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.precisions = arguments.precisions.split(",")
    if arguments.rate is None:
        arguments.rate = 6e-4 if arguments.recipe else 1e-3
    if not set(arguments.precisions) <= {"f32", "bf16", "f16"}:
        parser.error("--precision is a list of f32, bf16 and f16, with commas")
    sizes = arguments.shape.split(",")
    if len(sizes) != len(SHAPE) or not all(size.isdigit() for size in sizes):
        parser.error("--shape is five whole numbers with commas")
    if not 1 <= arguments.window <= arguments.steps:
        parser.error("--steps must be at least as many as --window, and that at least 1")
    if arguments.seed < 0:
        parser.error("--seed is 0 or more")
    if arguments.seeds < 2:
        parser.error("--seeds is at least 2")
    arguments.sizes = dict(zip(SHAPE, map(int, sizes)), vocab=256)
    return arguments


def read_text(arguments):
    paths = [arguments.text] if arguments.text else sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))) + [
        os.path.join(ROOT, "README.md"), os.path.join(ROOT, "CONTRIBUTING.md")]
    text = b""
    for path in paths:
        with open(path, "rb") as file:
            text += file.read()
    if len(text) <= arguments.sizes["seq"]:
        sys.exit(f"run: the text has no more than {arguments.sizes['seq']} bytes")
    return text


def run_evenkeel(arguments, weights, tokens, precision):
    """Losses of a run; with tokens None it writes the initial weights."""
    command = [arguments.evenkeel, arguments.shape, weights]
    if tokens:
        command += [tokens, precision, f"cpu:{arguments.threads}", str(arguments.rate)]
        command += [str(arguments.steps // 10)] if arguments.recipe else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"run: exit code {done.returncode}: {' '.join(command)}")
    return done.stdout


def run_torch(arguments, weights, rows, precision):
    import torch
    import torch2_model

    torch.set_num_threads(arguments.threads)
    model = torch2_model.Gpt(arguments.sizes)
    torch2_model.load_weights(model, weights)
    step = torch2_model.Step(model, precision, arguments.rate, compiled=False)
    lines = []
    for number, row in enumerate(torch.from_numpy(rows).long(), 1):
        loss = float(step.take(row[:, :-1].contiguous(), row[:, 1:].contiguous()))
        lines.append(f"step {number} loss {loss!r}\n")
    return "".join(lines)


def rate_at(arguments, step):
    """Of the recipe: steps count from 0."""
    warmup = arguments.steps // 10
    if step < warmup:
        return arguments.rate * (step + 1) / warmup
    return arguments.rate * (1 + math.cos(math.pi * (step - warmup) / (arguments.steps - warmup))) / 2


def run_torch_recipe(arguments, weights, rows, seed):
    """Losses of PyTorch, from the weights of the file or, with a seed, from others of the same distribution."""
    import torch
    import torch2_model

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0 if seed is None else seed)
    model = torch2_model.Gpt(arguments.sizes)
    if seed is None:
        torch2_model.load_weights(model, weights)
    for name, parameter in model.named_parameters():
        if seed is not None and name.endswith(("projection.weight", "contract.weight")):
            torch.nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * arguments.sizes["layers"]))
    step = torch2_model.Step(model, "f32", arguments.rate, compiled=False, decay=0.1, betas=(0.9, 0.95), clip=1.0)
    losses = []
    for number, row in enumerate(torch.from_numpy(rows).long()):
        step.set_rate(rate_at(arguments, number))
        losses.append(float(step.take(row[:, :-1].contiguous(), row[:, 1:].contiguous())))
    return losses


def compare_recipe(arguments, weights, tokens, rows):
    """All runs at the same time, each in a process."""
    with concurrent.futures.ProcessPoolExecutor(arguments.seeds + 1) as pool:
        runs = [pool.submit(run_torch_recipe, arguments, weights, rows, seed) for seed in [None, *range(1, arguments.seeds + 1)]]
        text = run_evenkeel(arguments, weights, tokens, "f32")
        same, *others = [run.result() for run in runs]
    own = [float(line.split()[3]) for line in text.splitlines() if line.startswith("step ")]
    for name, losses in [("evenkeel", own), ("PyTorch", same), *((f"PyTorch-seed-{i}", o) for i, o in enumerate(others, 1))]:
        if len(losses) != arguments.steps:
            sys.exit(f"run: {name} took {len(losses)} steps and not {arguments.steps}")
        with open(os.path.join(arguments.folder, f"recipe-{name}"), "w", encoding="utf-8") as file:
            file.writelines(f"step {i} loss {loss!r}\n" for i, loss in enumerate(losses, 1))
    noise = [statistics.stdev(losses) for losses in zip(*others)]
    apart = [abs(a - b) for a, b in zip(own, same)]
    ratios = [a / n for a, n in zip(apart, noise)]
    print("| | |\n|---|--:|")
    print(f"| first and last loss, evenkeel | {own[0]:.6f}, {own[-1]:.6f} |")
    print(f"| first and last loss, PyTorch | {same[0]:.6f}, {same[-1]:.6f} |")
    print(f"| last losses of the seeds | {', '.join(f'{o[-1]:.4f}' for o in others)} |")
    print(f"| largest difference, evenkeel from PyTorch | {max(apart):.3g}, at step {apart.index(max(apart)) + 1} |")
    print(f"| standard deviation over seeds: least, median, largest | {min(noise):.3g}, {statistics.median(noise):.3g}, {max(noise):.3g} |")
    print(f"| largest difference in standard deviations of its step | {max(ratios):.3g}, at step {ratios.index(max(ratios)) + 1} |")


def pick_batches(arguments):
    """32-bit integers [steps, batch, seq + 1]: windows of the text at random places, the same in every run of a seed."""
    import numpy

    text = numpy.frombuffer(read_text(arguments), dtype=numpy.uint8)
    seq, batch = arguments.sizes["seq"], arguments.sizes["batch"]
    starts = numpy.random.default_rng(arguments.seed).integers(len(text) - seq, size=(arguments.steps, batch))
    return text[starts[..., None] + numpy.arange(seq + 1)].astype(numpy.int32)


def main():
    arguments = parse_arguments()
    if arguments.check:
        return
    os.makedirs(arguments.folder, exist_ok=True)
    weights, tokens = (os.path.join(arguments.folder, name) for name in ("initial.safetensors", "tokens"))
    rows = pick_batches(arguments)
    rows.tofile(tokens)
    run_evenkeel(arguments, weights, None, None)
    if arguments.recipe:
        compare_recipe(arguments, weights, tokens, rows)
        return
    losses = bench_losses()
    curves = {}
    for precision in arguments.precisions:
        for name, text in ((f"evenkeel {precision}", run_evenkeel(arguments, weights, tokens, precision)),
                           (f"PyTorch {precision}", run_torch(arguments, weights, rows, precision))):
            path = os.path.join(arguments.folder, name.replace(" ", "-"))
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            curves[name] = losses.read(f"{precision}={path}")[precision]
            if len(curves[name]) != arguments.steps:
                sys.exit(f"run: {name} took {len(curves[name])} steps and not {arguments.steps}")
            print(f"{name}: {arguments.steps} steps, first loss {curves[name][0]:.6f}, "
                  f"{text.count('skipped')} said to be skipped", file=sys.stderr)
    print(f"| | last loss (mean of {arguments.window} steps) | | farthest, smoothed |\n|---|--:|---|--:|")
    for one, other in PAIRS:
        if one not in curves or other not in curves:
            continue
        first, second = (losses.smooth(curves[name], arguments.window) for name in (one, other))
        most = max(abs(a / b - 1) for a, b in zip(first, second))
        print(f"| {one} | {first[-1]:.4f} | from {other} | {100 * most:.4f} % |")


if __name__ == "__main__":
    main()
