"""Run evenkeel's step and PyTorch's in turns, each in a process of its own, and report the ratio.

Both do the same work: forward, backward and AdamW on the same shape, with the same numbers of warm-up and measured
steps. A round is one process of each, and its ratio is taken within the round, so that a drift of the machine's speed
cancels; the order changes from round to round.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading

PLACE = os.path.dirname(os.path.abspath(__file__))

SHAPES = {
    "S": dict(layers=4, width=256, heads=4, seq=128, vocab=8192, batch=16),
    "M": dict(layers=12, width=768, heads=12, seq=128, vocab=50257, batch=4),
    "gpt2": dict(layers=12, width=768, heads=12, seq=1024, vocab=50257, batch=8),
}


class PeerError(Exception):
    """A peer failed, or what it printed is not what was asked for."""


def processor_flags():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("flags"):
                return set(line.split(":")[1].split())
    return set()


def torch_settings():
    """The environment PyTorch gets and evenkeel does not need; README.md gives the reason for each."""
    settings = {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_ARENA_MAX": "1",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    flags = processor_flags()
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        settings.update(OPENBLAS_CORETYPE="SkylakeX", ATEN_CPU_CAPABILITY="avx512")
    elif {"avx2", "fma"} <= flags:
        settings.update(OPENBLAS_CORETYPE="Haswell", ATEN_CPU_CAPABILITY="avx2")
    return settings


def child(command, settings, timeout):
    """Run the command; return the JSON it printed and its peak resident size in bytes, as the kernel counted it."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment.update(settings)
    line = " ".join(command)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors)
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)  # and not wait(): only this gives the child's own peak
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            if process.returncode is None:
                process.kill()
        output.seek(0)
        errors.seek(0)
        text = errors.read().decode(errors="replace")[-2000:]
        if process.returncode:
            raise PeerError(f"exit status {process.returncode} (the limit is {timeout} s): {line}\n{text}")
        try:
            return json.loads(output.read()), usage.ru_maxrss * 1024
        except ValueError:
            raise PeerError(f"did not print JSON: {line}\n{text}") from None


def shape_flags(name):
    return [word for key, value in SHAPES[name].items() for word in ("--" + key, str(value))]


def measured(name, seconds, resident, raw):
    """One process's figures, refused if they cannot be those of a step on this shape."""
    shape = SHAPES[name]
    tokens = raw["tokens_per_second"] * seconds["median"]
    expected = shape["batch"] * shape["seq"]
    if not 0.67 < tokens / expected < 1.5:
        raise PeerError(f"a step of {name} has {expected} tokens, but the figures say {tokens:.0f}: {raw}")
    return {"step_seconds": seconds, "peak_resident_bytes": resident, "output": raw}


def run_evenkeel(name, arguments):
    command = [
        arguments.evenkeel, "step", "--devices", arguments.devices, "--modes", arguments.mode,
        *shape_flags(name), "--steps", str(arguments.steps), "--warmup", str(arguments.warmup),
        "--optimizer", "adamw", "-o", "json"]
    if arguments.tf32 or arguments.bf16:
        command += ["--precision", "tf32" if arguments.tf32 else "bf16"]
    document, resident = child(command, {}, arguments.timeout)
    if document.get("schema") != 1 or len(document.get("runs", [])) != 1:
        raise PeerError(f"expected schema 1 with one run: {document}")
    run = document["runs"][0]
    if run["mode"] != arguments.mode or run["devices"] != (1 if on_gpu(arguments) else arguments.threads):
        raise PeerError(f"not the run that was asked for: {run}")
    return measured(name, run["step_seconds"], resident, run)


def run_torch(name, arguments):
    command = [
        sys.executable, os.path.join(PLACE, "torch_step.py"), "--config", name, *shape_flags(name),
        "--threads", str(arguments.threads), "--form", arguments.form,
        "--steps", str(arguments.steps), "--warmup", str(arguments.warmup)]
    settings = torch_settings()
    if on_gpu(arguments):
        command += ["--device", arguments.devices]
        settings = {}
    if arguments.tf32 or arguments.bf16:
        command.append("--tf32" if arguments.tf32 else "--bf16")
    document, resident = child(command, settings, arguments.timeout)
    return measured(name, document["step_seconds"], resident, document)


def on_gpu(arguments):
    return arguments.devices.startswith("cuda")


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(name, arguments):
    """All rounds of one configuration."""
    peers = {"evenkeel": run_evenkeel, "torch": run_torch}
    if arguments.torch_only:
        del peers["evenkeel"]
    rounds = []
    for number in range(arguments.rounds):
        order = list(peers)
        if number % 2:
            order.reverse()
        rounds.append({peer: peers[peer](name, arguments) for peer in order})
        told = ", ".join(f"{peer} {rounds[-1][peer]['step_seconds']['median']:.3f} s" for peer in order)
        print(f"{name} round {number + 1} of {arguments.rounds}: {told}", file=sys.stderr, flush=True)
    result = {"config": dict(name=name, **SHAPES[name]), "rounds": rounds, "peers": {}}
    tokens = SHAPES[name]["batch"] * SHAPES[name]["seq"]
    for peer in peers:
        seconds = spread([one[peer]["step_seconds"]["median"] for one in rounds])
        result["peers"][peer] = {
            "step_seconds": seconds,
            "tokens_per_second": tokens / seconds["median"],
            "peak_resident_bytes": max(one[peer]["peak_resident_bytes"] for one in rounds),
        }
    if len(peers) == 2:
        result["ratio"] = spread([
            one["evenkeel"]["step_seconds"]["median"] / one["torch"]["step_seconds"]["median"] for one in rounds])
    return result


def print_table(results, arguments):
    place = arguments.devices if on_gpu(arguments) else f"{arguments.threads} threads"
    precision = "f32, products in TF32" if arguments.tf32 else "bf16 (autocast)" if arguments.bf16 else "f32"
    torch = results[0]["rounds"][0]["torch"]["output"]
    print(f"Training step in {precision}, with AdamW, {place}, {arguments.rounds} rounds of "
          f"{arguments.warmup} + {arguments.steps} steps; PyTorch {torch['version']} as `{arguments.form}`, "
          f"{'fused' if torch['fused_attention'] else 'plain'} attention.\n")
    print("| configuration | peer | step, median of rounds (min to max) "
          "| tokens/s | peak resident | ratio evenkeel/torch |")
    print("|---|---|---|---|---|---|")
    for result in results:
        for peer, figures in result["peers"].items():
            seconds, ratio = figures["step_seconds"], result.get("ratio")
            told = ""
            if ratio and peer == "evenkeel":
                told = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
            print(f"| {result['config']['name']} | {peer} "
                  f"| {seconds['median'] * 1e3:.0f} ms ({seconds['min'] * 1e3:.0f} to {seconds['max'] * 1e3:.0f}) "
                  f"| {figures['tokens_per_second']:.0f} | {figures['peak_resident_bytes'] / 2**30:.2f} GiB | {told} |")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="run", description="Hold evenkeel's training step against PyTorch's, in turns, on this machine.")
    parser.add_argument("configurations", nargs="*", metavar="CONFIGURATION", help="of S, M, gpt2 (default S and M; gpt2 on cuda)")
    parser.add_argument("--rounds", type=positive, default=5, help="processes of each (default 5)")
    parser.add_argument("--steps", type=positive, default=8, help="measured steps a process (default 8)")
    parser.add_argument("--warmup", type=positive, default=2, help="steps before them (default 2)")
    parser.add_argument("--threads", type=positive, default=2, help="PyTorch threads = evenkeel devices on the CPU (default 2)")
    parser.add_argument("--devices", metavar="cuda:N", help="one GPU for both instead of the CPU")
    parser.add_argument("--tf32", action="store_true", help="products in TF32, with --devices cuda:N")
    parser.add_argument("--bf16", action="store_true", help="both in bf16, with --devices cuda:N")
    parser.add_argument("--mode", choices=["gather", "balanced", "replicated", "sharded", "sharded-gradients", "fully-sharded"], default="sharded", help="evenkeel's mode")
    parser.add_argument("--form", choices=["replicas", "lean", "stock", "compiled"],
                        help="how PyTorch does it (default replicas; on cuda stock, or compiled)")
    parser.add_argument("--torch-only", action="store_true", help="leave evenkeel out")
    parser.add_argument("--timeout", type=positive, default=600, help="seconds a process may take (default 600)")
    parser.add_argument("--export-json", metavar="FILE", help="write everything that was measured to FILE")
    parser.add_argument("--evenkeel", required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.devices is not None and not re.fullmatch(r"cuda:\d+", arguments.devices):
        parser.error(f"--devices is one GPU, such as cuda:0, not {arguments.devices}; --threads is for the CPU")
    if arguments.tf32 and arguments.devices is None:
        parser.error("--tf32 is about products on a GPU: --devices cuda:0")
    if arguments.bf16 and (arguments.devices is None or arguments.tf32):
        parser.error("--bf16 is for a GPU, and without --tf32: --devices cuda:0")
    arguments.configurations = arguments.configurations or (["gpt2"] if arguments.devices else ["S", "M"])
    arguments.form = arguments.form or ("stock" if arguments.devices else "replicas")
    if arguments.devices and arguments.form not in ("stock", "compiled"):
        parser.error(f"--form {arguments.form} is for the CPU")
    arguments.devices = arguments.devices or f"cpu:{arguments.threads}"
    for name in arguments.configurations:
        if name not in SHAPES:
            parser.error(f"no configuration {name}: there are {', '.join(SHAPES)}")
    return arguments


def processor():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    arguments = parse_arguments()
    try:
        results = [compare(name, arguments) for name in arguments.configurations]
    except (PeerError, OSError, KeyError) as error:
        sys.exit(f"compare: {type(error).__name__}: {error}")
    print_table(results, arguments)
    if arguments.export_json:
        document = {
            "schema": 1,
            "processor": processor(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "torch_environment": {} if on_gpu(arguments) else torch_settings(),
            "settings": {name: getattr(arguments, name) for name in (
                "rounds", "steps", "warmup", "threads", "devices", "tf32", "bf16", "mode",
                "form")},
            "results": results,
        }
        with open(arguments.export_json, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
