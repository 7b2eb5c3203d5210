"""One form of PyTorch 2's training step as a process that takes turns: torch2_turns.py starts it and tells it when.

It makes the model and takes warm-up steps and a few measured ones, which is its trial, and prints {"ready": ...}. For each line
"N" on standard input it takes one step that is not counted and N that are, and prints them. It ends when the input does.
In between it waits, and uses no processor. Peaks are of this process alone, in bytes: until it was ready, with what the
compiler took, and since then.
"""

import argparse
import json
import resource
import sys
import time
import types

import torch

import torch2_model
import torch_step

SHAPE = ("layers", "width", "heads", "seq", "vocab", "batch")


class OldForm:
    """`lean` and `replicas` of torch_step.py: gradients and AdamW by hand, with fewer passes over memory."""

    def __init__(self, form, shape, inputs, targets, threads):
        arguments = types.SimpleNamespace(form=form, threads=threads, chunk=1 << 19, device="cpu")
        self.form = torch_step.make_form(arguments, torch_step.Gpt(shape), inputs, targets)

    def take(self, _inputs, _targets):
        loss = self.form.gradients()
        self.form.update()
        return loss


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak():
    """From here on the kernel counts the peak anew; False where it will not."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return True
    except OSError:
        return False


def status_peak():
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def timed(step, batch, count):
    seconds, loss = [], None
    for _ in range(count):
        begin = time.perf_counter()
        loss = float(step.take(*batch))
        seconds.append(time.perf_counter() - begin)
    return seconds, loss


def tell(**what):
    print(json.dumps(what), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description="A form of PyTorch 2's step, for torch2_turns.py.")
    parser.add_argument("--form", choices=["eager", "compiled", "lean", "replicas"], required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], required=True)
    for name in SHAPE:
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--hidden", type=int, default=0, help="of a Llama; 0: a GPT-2")
    parser.add_argument("--kv-heads", type=int, default=0)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--trial", type=int, required=True, help="measured steps after two of warm-up")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    shape = {name: getattr(arguments, name) for name in SHAPE}
    torch.manual_seed(1234)
    torch.set_num_threads(arguments.threads)
    rows = torch.randint(shape["vocab"], (shape["batch"], shape["seq"] + 1))
    batch = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    if arguments.form in ("lean", "replicas"):
        step = OldForm(arguments.form, shape, *batch, arguments.threads)
    else:
        shape.update(hidden=arguments.hidden, kv_heads=arguments.kv_heads)
        model = torch2_model.Llama(shape) if arguments.hidden else torch2_model.Gpt(shape)
        step = torch2_model.Step(
            model, arguments.precision, torch_step.LEARNING_RATE, arguments.form == "compiled")
    timed(step, batch, 2)
    seconds, loss = timed(step, batch, arguments.trial)
    started = peak()
    counted_anew = forget_peak()
    tell(ready=True, version=torch.__version__, seconds=seconds, loss=loss, peak_bytes=started)
    for line in sys.stdin:
        timed(step, batch, 1)
        seconds, loss = timed(step, batch, int(line))
        tell(seconds=seconds, loss=loss, steps_peak_bytes=status_peak() if counted_anew else None)


if __name__ == "__main__":
    main()
