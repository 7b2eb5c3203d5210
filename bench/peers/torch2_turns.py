"""evenkeel's step and PyTorch 2's in turns, in f32 and bf16: what `run --torch 2` starts.

For each shape every form of PyTorch 2's step (torch2_peer.py) runs alone first: two steps of warm-up, some measured. The fastest of
a precision is the peer; it stays, waiting without work, and the others end. Then rounds: evenkeel (a process of its own), the
peer, evenkeel, the peer, f32 and bf16, in the opposite order every second round. A ratio is taken within a round, so that a
drift of the machine's speed cancels. A form that fails or takes longer than its time is named and not counted at all.
"""

import argparse
import datetime
import json
import os
import platform
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import compare

PLACE = os.path.dirname(os.path.abspath(__file__))

# As PyTorch's allocator on the CPU is fastest: memory that was freed is kept, and never fresh pages again.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "536870912",
}

SHAPES = {  # and the measured steps of a turn
    "S": (dict(layers=4, width=256, heads=4, seq=128, vocab=8192, batch=16), 6),
    "M": (dict(layers=12, width=768, heads=12, seq=128, vocab=50257, batch=4), 2),
    "T1024": (dict(layers=4, width=256, heads=4, seq=1024, vocab=8192, batch=4), 3),
    "lm-40k": (dict(layers=2, width=64, heads=4, seq=250, vocab=40000, batch=32), 3),
    "llama-15m": (dict(layers=6, width=288, hidden=768, heads=6, seq=256, vocab=32000, batch=8), 4),
    "llama-160m": (dict(layers=12, width=768, hidden=3072, heads=12, seq=256, vocab=32000, batch=2), 2),
    "llama-160m-gqa": (
        dict([("kv-heads", 4)], layers=12, width=768, hidden=3072, heads=12, seq=256, vocab=32000, batch=2), 2),
    "tiny": (dict(layers=1, width=16, heads=2, seq=8, vocab=300, batch=4), 2),
}
DEFAULT_SHAPES = ["S", "T1024", "lm-40k", "M"]
LEAST_LIMIT = 60  # seconds that a turn may take, or more where a form may take more to be ready
FORMS_OF_LLAMA = ["compiled", "eager"]
FORMS = {"f32": ["compiled", "eager", "replicas", "lean"], "bf16": ["compiled", "eager"]}


class Compiled:
    """What torch.compile keeps for one shape and precision: a folder that is whole, or is removed.

    A compiler that is ended on its way leaves half a library, on which every later run would fail.
    """

    def __init__(self, name):
        base = os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.path.join(PLACE, "..", "..", "build", "peers", "inductor"))
        self.folder = os.path.join(os.path.abspath(base), name)
        self.mark = os.path.join(self.folder, "whole")
        if not os.path.exists(self.mark):
            self.remove()

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def keep(self):
        os.makedirs(self.folder, exist_ok=True)
        with open(self.mark, "w"):
            pass


class Peer:
    """A process of torch2_peer.py, and those that it starts: a group of their own, which ends together."""

    def __init__(self, command, name, seconds):
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        compiled = Compiled(name)
        environment.update(ALLOCATOR, TORCHINDUCTOR_CACHE_DIR=compiled.folder)
        self.waiting = b""
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, start_new_session=True)
        try:
            self.ready = self.answer(seconds)
        except BaseException:
            self.end()
            compiled.remove()
            raise
        compiled.keep()

    def answer(self, seconds):
        """The next line that it prints, within that time."""
        until = time.monotonic() + seconds
        output = self.process.stdout.fileno()
        while b"\n" not in self.waiting:
            if not select.select([output], [], [], max(0.0, until - time.monotonic()))[0]:
                raise compare.PeerError(f"no answer within {seconds:.0f} s")
            part = os.read(output, 1 << 16)
            if not part:
                raise compare.PeerError(f"exit status {self.process.wait()}: {self.message()}")
            self.waiting += part
        line, self.waiting = self.waiting.split(b"\n", 1)
        return json.loads(line)

    def message(self):
        """Its last line that names an error, or its last line: advice follows the error."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failed)\w*: ", line)]
        return (named or lines or ["no message"])[-1]

    def steps(self, count, seconds):
        self.process.stdin.write(b"%d\n" % count)
        self.process.stdin.flush()
        return self.answer(seconds)

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


def say(text):
    print(text, file=sys.stderr, flush=True)


def gibibytes(count):
    return "?" if count is None else f"{count / 2**30:.2f} GiB"


def flags_of(shape):
    return [word for key, value in shape.items() for word in ("--" + key, str(value))]


class Shape:
    """What one shape's processes have measured."""

    def __init__(self, name, arguments, until):
        self.name, self.arguments, self.until = name, arguments, until
        self.shape, steps = SHAPES[name]
        self.count = arguments.steps or steps
        self.trials, self.left_out, self.best, self.rounds = {}, {}, {}, []

    def seconds_left(self):
        return self.until - time.monotonic()

    def try_forms(self):
        """The fastest form of each precision stays in self.best."""
        for precision in self.arguments.precisions:
            for form in self.arguments.forms or FORMS[precision]:
                if form in FORMS[precision] and ("hidden" not in self.shape or form in FORMS_OF_LLAMA):
                    self.try_form(precision, form)

    def try_form(self, precision, form):
        name = f"{form} {precision}"
        command = [self.arguments.python, self.arguments.peer, "--form", form, "--precision", precision,
                   *flags_of(self.shape), "--threads", str(self.arguments.threads), "--trial", str(self.count)]
        limit = min(self.arguments.form_seconds, self.seconds_left() / 2)
        begin = time.monotonic()
        try:
            peer = Peer(command, f"{self.name}-{form}-{precision}", limit)
        except (compare.PeerError, OSError, ValueError) as error:
            self.left_out[name] = str(error)
            say(f"{self.name}: PyTorch {name} left out: {error}")
            return
        seconds = statistics.median(peer.ready["seconds"])
        self.trials[name] = {"seconds": seconds, "peak_bytes": peer.ready["peak_bytes"], "loss": peer.ready["loss"]}
        say(f"{self.name}: PyTorch {name} {seconds:.3f} s a step, {gibibytes(peer.ready['peak_bytes'])} "
            f"({time.monotonic() - begin:.0f} s in all)")
        best = self.best.get(precision)
        if best is None or seconds < self.trials[best[0]]["seconds"]:
            self.best[precision] = (name, peer)
            peer = best[1] if best else None
        if peer is not None:
            peer.end()

    def turn_of_evenkeel(self, precision):
        a = self.arguments
        command = [a.evenkeel, "memory", "--devices", f"cpu:{a.threads}", "--modes", a.mode, *flags_of(self.shape),
                   "--steps", str(self.count), "--warmup", "1", "--optimizer", "adamw", "--precision", precision,
                   "-o", "json"]
        document, resident = compare.child(command, {}, max(a.form_seconds, LEAST_LIMIT))
        run = document["runs"][0]
        if run["mode"] != a.mode or run["precision"] != precision or run["step_seconds"]["median"] is None:
            raise compare.PeerError(f"not the run that was asked for: {run}")
        return {"seconds": run["step_seconds"]["median"], "peak_bytes": resident}

    def turn_of_torch(self, precision):
        name, peer = self.best[precision]
        told = peer.steps(self.count, max(self.arguments.form_seconds, LEAST_LIMIT))
        return {"seconds": statistics.median(told["seconds"]), "peak_bytes": peer.ready["peak_bytes"],
                "steps_peak_bytes": told["steps_peak_bytes"], "form": name}

    def take_turn(self, who, precision):
        """None where it failed: it is named, and takes no turn any more."""
        try:
            return (self.turn_of_evenkeel if who == "evenkeel" else self.turn_of_torch)(precision)
        except (compare.PeerError, OSError, KeyError, ValueError) as error:
            self.left_out[f"{who} {precision}, in turns"] = str(error)
            say(f"{self.name}: {who} {precision} left out: {error}")
            return None

    def take_turns(self):
        turns = []
        for precision in self.arguments.precisions:
            turns.append(("evenkeel", precision))
            if precision in self.best:
                turns.append(("torch", precision))
        longest = 0.0
        while len(self.rounds) < self.arguments.rounds and (not self.rounds or longest < self.seconds_left()):
            begin = time.monotonic()
            done = {}
            for turn in turns if len(self.rounds) % 2 == 0 else turns[::-1]:
                figures = self.take_turn(*turn)
                if figures is not None:
                    done[" ".join(turn)] = figures
            turns = [turn for turn in turns if " ".join(turn) in done]
            if not turns:
                break
            self.rounds.append(done)
            longest = max(longest, time.monotonic() - begin)
            say(f"{self.name} round {len(self.rounds)}: " + ", ".join(
                f"{key} {done[key]['seconds']:.3f} s" for key in done))

    def measure(self):
        try:
            self.try_forms()
            self.take_turns()
        finally:
            for _, peer in self.best.values():
                peer.end()
        return self.result()

    def result(self):
        figures = {}
        for key in sorted({key for done in self.rounds for key in done}):
            turns = [done[key] for done in self.rounds if key in done]
            figures[key] = dict(turns[-1], seconds=compare.spread([turn["seconds"] for turn in turns]),
                                peak_bytes=max(turn["peak_bytes"] for turn in turns))
        ratios = {}
        for ours, other in (("evenkeel f32", "torch f32"), ("evenkeel bf16", "torch bf16"),
                            ("evenkeel bf16", "evenkeel f32")):
            both = [done[ours]["seconds"] / done[other]["seconds"] for done in self.rounds
                    if ours in done and other in done]
            if both:
                ratios[f"{ours} / {other}"] = compare.spread(both)
        return {"shape": dict(self.shape, name=self.name), "trials": self.trials, "left_out": self.left_out,
                "steps": self.count, "rounds": self.rounds, "figures": figures, "ratios": ratios}


def print_result(result):
    shape, figures = result["shape"], result["figures"]
    print(f"\n### {shape['name']}\n\n{shape['layers']} layers, width {shape['width']}, {shape['heads']} heads, sequence "
          f"{shape['seq']}, vocabulary {shape['vocab']}, batch {shape['batch']}; {len(result['rounds'])} rounds of "
          f"{result['steps']} steps\n")
    print("| | step, median of rounds (least to most) | peak resident | of it in steps |\n|---|--:|--:|--:|")
    for key, told in figures.items():
        seconds = told["seconds"]
        name = f"PyTorch {told['form']}" if "form" in told else key
        print(f"| {name} | {seconds['median'] * 1e3:.0f} ms ({seconds['min'] * 1e3:.0f} to {seconds['max'] * 1e3:.0f}) "
              f"| {gibibytes(told['peak_bytes'])} | {gibibytes(told['steps_peak_bytes']) if 'form' in told else ''} |")
    for name, told in result["ratios"].items():
        ours, other = (figures[key]["peak_bytes"] for key in name.split(" / "))
        print(f"\n{name}: time {told['median']:.3f} ({told['min']:.3f} to {told['max']:.3f}), "
              f"peak resident {ours / other:.2f}")
    print("\nForms of PyTorch, each alone: " + (", ".join(
        f"{name} {told['seconds'] * 1e3:.0f} ms, {gibibytes(told['peak_bytes'])}"
        for name, told in result["trials"].items()) or "none") + ".")
    for name, why in result["left_out"].items():
        print(f"\nLeft out: {name}: {why}")
    sys.stdout.flush()


def parse_arguments():
    positive = compare.positive
    parser = argparse.ArgumentParser(
        prog="run --torch 2", description="Hold evenkeel's training step against PyTorch 2's, in turns, on this processor.")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)} (default {' '.join(DEFAULT_SHAPES)})")
    parser.add_argument("--rounds", type=positive, default=3, help="at most (default 3)")
    parser.add_argument("--steps", type=positive, help="measured steps a turn (default by shape)")
    parser.add_argument("--seconds", type=positive, default=560,
                        help="for everything (default 560): a shape gets its part of what is left, and at least one round")
    parser.add_argument("--form-seconds", type=positive, default=75, help="a form may take to be ready (default 75)")
    parser.add_argument("--precision", dest="precisions", default="f32,bf16", metavar="LIST", help="of f32, bf16 (default both)")
    parser.add_argument("--forms", metavar="LIST", help="of compiled, eager, replicas, lean (default: all that a precision has)")
    parser.add_argument("--prepare", action="store_true",
                        help="try each form once with ten minutes for each, so that what torch.compile makes is there, and end")
    parser.add_argument("--threads", type=positive, default=2, help="PyTorch threads = evenkeel devices (default 2)")
    parser.add_argument("--mode", default="sharded", help="evenkeel's mode (default sharded)")
    parser.add_argument("--export-json", metavar="FILE", help="write everything that was measured to FILE")
    parser.add_argument("--losses", action="store_true",
                        help="losses of 300 steps beside PyTorch's autocast instead (--losses --help has its options)")
    parser.add_argument("--evenkeel", default="-", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--python", default=sys.executable, help=argparse.SUPPRESS)
    parser.add_argument("--peer", default=os.path.join(PLACE, "torch2_peer.py"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.shapes = arguments.shapes or DEFAULT_SHAPES
    for name in arguments.shapes:
        if name not in SHAPES:
            parser.error(f"no shape {name}: there are {', '.join(SHAPES)}")
    arguments.precisions = arguments.precisions.split(",")
    if not set(arguments.precisions) <= set(FORMS):
        parser.error("--precision is a list of f32 and bf16, with commas")
    if arguments.forms is not None:
        arguments.forms = arguments.forms.split(",")
        if not set(arguments.forms) <= set(FORMS["f32"]):
            parser.error(f"--forms is a list of {', '.join(FORMS['f32'])}, with commas")
    if arguments.prepare:
        arguments.form_seconds, arguments.seconds, arguments.rounds, arguments.steps = 600, 1 << 20, 0, 1
    return arguments


def machine():
    flags = compare.processor_flags()
    have = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return {"processor": compare.processor(), "usable_cores": len(os.sched_getaffinity(0)),
            "instructions": have, "kernel": platform.release(), "load_average": os.getloadavg()[0],
            "time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def main():
    arguments = parse_arguments()
    if arguments.check:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run: ended by SIGTERM"))  # and not without ending the processes
    about = machine()
    print(f"{about['processor']}, {about['usable_cores']} cores, {' '.join(about['instructions'])}; {about['time']}, load "
          f"{about['load_average']:.1f} at the beginning; evenkeel {arguments.mode} on cpu:{arguments.threads}, PyTorch with "
          f"{arguments.threads} threads.")
    until, results = time.monotonic() + arguments.seconds, []
    for number, name in enumerate(arguments.shapes):
        now = time.monotonic()
        part = (until - now) / (len(arguments.shapes) - number)
        results.append(Shape(name, arguments, now + part).measure())
        print_result(results[-1])
    if arguments.export_json:
        with open(arguments.export_json, "w") as file:
            json.dump({"schema": 1, "torch": 2, "machine": about, "load_average_at_the_end": os.getloadavg()[0],
                       "allocator": ALLOCATOR, "arguments": vars(arguments), "results": results}, file, indent=1)
            file.write("\n")
    if not arguments.prepare and not all(result["ratios"] for result in results):
        sys.exit("run: a shape has nothing to compare")


if __name__ == "__main__":
    main()
