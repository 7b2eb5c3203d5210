"""One GPT-2 training step in PyTorch, timed: the peer that evenkeel's bench is held against.

The model is the pre-norm GPT-2 block stack with a head tied to the token embedding, and AdamW in f32. Everything
here is PyTorch's own operators called from Python, arranged the quickest way that was found; README.md says what was
tried. Start it through `run --torch-only`, which sets the environment that the libraries read when they load.
On a GPU (`--device cuda`) there is the stock form, and the same compiled by torch.compile, with what PyTorch has for
it: fused attention where there is scaled_dot_product_attention, fused AdamW, TF32 or autocast to bf16 if asked for.
Prints one line of JSON.
"""

import argparse
import concurrent.futures
import copy
import inspect
import json
import math
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F

CONFIGURATIONS = {
    "S": dict(layers=4, width=256, heads=4, seq=128, vocab=8192, batch=16),
    "M": dict(layers=12, width=768, heads=12, seq=128, vocab=50257, batch=4),
    "gpt2": dict(layers=12, width=768, heads=12, seq=1024, vocab=50257, batch=8),
}

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01

FUSED_ATTENTION = hasattr(F, "scaled_dot_product_attention")  # PyTorch 2


class Block(torch.nn.Module):
    """Layer norm, attention, residual; layer norm, GELU pair, residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.projection = torch.nn.Linear(width, width)
        self.norm_feed = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x, mask):
        # add_ may overwrite a linear's output: no backward reads it.
        x = self.projection(self.attend(self.norm_attention(x), mask)).add_(x)
        feed = F.gelu(self.up(self.norm_feed(x)), approximate="tanh")
        return self.down(feed).add_(x)

    def attend(self, x, mask):
        batch, seq, width = x.shape
        depth = width // self.heads
        qkv = self.qkv(x).view(batch, seq, 3, self.heads, depth).permute(2, 0, 3, 1, 4)
        if FUSED_ATTENTION:
            y = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
            return y.transpose(1, 2).reshape(batch, seq, width)
        q, k, v = qkv.reshape(3, batch * self.heads, seq, depth).unbind(0)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=1.0 / math.sqrt(depth))
        y = torch.bmm(torch.softmax(scores, -1), v).view(batch, self.heads, seq, depth)
        return y.transpose(1, 2).reshape(batch, seq, width)


class Gpt(torch.nn.Module):
    """GPT-2 up to the final layer norm; the head is the token table and is applied with the loss."""

    def __init__(self, shape):
        super().__init__()
        width = shape["width"]
        self.tokens = torch.nn.Parameter(torch.empty(shape["vocab"], width))
        self.positions = torch.nn.Parameter(torch.empty(shape["seq"], width))
        self.blocks = torch.nn.ModuleList(Block(width, shape["heads"]) for _ in range(shape["layers"]))
        self.norm = torch.nn.LayerNorm(width)
        mask = torch.full((shape["seq"], shape["seq"]), float("-inf")).triu(1)
        self.register_buffer("mask", mask)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)

    def forward(self, embedded):
        x = embedded + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        return self.norm(x)


class StockForm:
    """The step the way every tutorial writes it, with torch.optim.AdamW."""

    def __init__(self, model, inputs, targets, threads, device, bf16):
        torch.set_num_threads(threads)
        self.bf16 = bf16
        self.model, self.inputs, self.targets, self.device = model.to(device), inputs, targets, device
        fused = {}
        if device != "cpu" and "fused" in inspect.signature(torch.optim.AdamW).parameters:
            fused = {"fused": True}
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, **fused)

    def gradients(self):
        """The loss stays on the device: whoever reads it waits."""
        inputs, targets = self.inputs.to(self.device), self.targets.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16, enabled=self.bf16):
            hidden = self.model(F.embedding(inputs, self.model.tokens))
            logits = F.linear(hidden, self.model.tokens)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        loss.backward()
        return loss.detach()

    def update(self):
        self.optimizer.step()


class CompiledForm(StockForm):
    """The same step with forward, loss and backward compiled by torch.compile."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        model = self.model

        def loss_of(inputs, targets):
            logits = F.linear(model(F.embedding(inputs, model.tokens)), model.tokens)
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

        self.loss_of = torch.compile(loss_of)

    def gradients(self):
        inputs, targets = self.inputs.to(self.device), self.targets.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.loss_of(inputs, targets)
        loss.backward()
        return loss.detach()


class Replica:
    """The stock step's mathematics on some rows of the batch, with fewer passes over the large tensors.

    The logits become log-probabilities and then their own gradient in place, and the embedding's gradient is added
    into the head's instead of being built as a second table of zeros.
    """

    def __init__(self, model, inputs, targets, positions):
        self.model = model
        self.inputs, self.targets = inputs, targets.reshape(-1, 1)
        self.scale = 1.0 / positions

    def gradients(self):
        """Leave the rows' share of the gradients in the model, return their share of the mean loss."""
        for parameter in self.model.parameters():
            parameter.grad = None
        tokens = self.model.tokens
        width = tokens.shape[1]
        embedded = F.embedding(self.inputs, tokens.detach()).requires_grad_()
        hidden = self.model(embedded)
        with torch.no_grad():
            rows = hidden.view(-1, width)
            scores = F.linear(rows, tokens)
            torch._log_softmax(scores, 1, False, out=scores)
            loss = -scores.gather(1, self.targets).sum().item() * self.scale
            scores.exp_().scatter_add_(1, self.targets, scores.new_full((1, 1), -1.0).expand_as(self.targets))
            tokens.grad = scores.t().mm(rows * self.scale)
            hidden_gradient = scores.mm(tokens).mul_(self.scale)
            del scores
        hidden.backward(hidden_gradient.view_as(hidden))
        with torch.no_grad():
            tokens.grad.index_add_(0, self.inputs.view(-1), embedded.grad.view(-1, width))
        return loss


class LeanForm:
    """Replicas that share their parameters, one Python thread each, and AdamW in pieces that stay in the cache.

    One replica with all the threads, or one replica a thread: PyTorch's operators release the interpreter lock, so
    replicas run at the same time. Every thread then updates its part of the parameters, adding up the replicas'
    gradients on the way.
    """

    def __init__(self, model, inputs, targets, threads, replicas, chunk):
        replicas = min(replicas, inputs.shape[0])
        models = [model] + [copy.deepcopy(model) for _ in range(replicas - 1)]
        for other in models[1:]:
            for own, shared in zip(other.parameters(), model.parameters()):
                own.data = shared.data
        self.replicas = [
            Replica(*part, targets.numel())
            for part in zip(models, inputs.tensor_split(replicas), targets.tensor_split(replicas))]
        if replicas == 1:
            torch.set_num_threads(threads)
            self.map = map
        else:
            # The inner threads are one each; a pool of OpenMP threads under every Python thread was slower.
            torch.set_num_threads(1)
            self.map = concurrent.futures.ThreadPoolExecutor(
                replicas, initializer=torch.set_num_threads, initargs=(1,)).map
        self.chunk = chunk
        self.steps = 0
        self.parts = self.divide([list(model.parameters()) for model in models])

    def divide(self, parameters):
        """Cut the state into pieces, and the pieces into one part a replica."""
        total = sum(parameter.numel() for parameter in parameters[0])
        parts = [[] for _ in self.replicas]
        before = 0
        for same in zip(*parameters):
            weights = same[0].detach().view(-1)
            moments = torch.zeros_like(weights), torch.zeros_like(weights)
            for index, piece in enumerate(zip(*(flat.split(self.chunk) for flat in (weights, *moments)))):
                parts[before * len(parts) // total].append((same, index * self.chunk, *piece))
                before += piece[0].numel()
        return [(part, torch.empty(self.chunk)) for part in parts]

    def gradients(self):
        return sum(self.map(Replica.gradients, self.replicas))

    def update(self):
        self.steps += 1
        for _ in self.map(self.update_part, self.parts):
            pass

    @torch.no_grad()
    def update_part(self, part):
        pieces, scratch = part
        correction = math.sqrt(1 - BETAS[1] ** self.steps)
        rate = -LEARNING_RATE * correction / (1 - BETAS[0] ** self.steps)
        for same, begin, weight, first, second in pieces:
            count = weight.numel()
            gradient = same[0].grad.view(-1).narrow(0, begin, count)
            for other in same[1:]:
                gradient.add_(other.grad.view(-1).narrow(0, begin, count))
            first.lerp_(gradient, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            root = torch.sqrt(second, out=scratch[:count]).add_(EPSILON * correction)
            weight.mul_(1 - LEARNING_RATE * WEIGHT_DECAY).addcdiv_(first, root, value=rate)


WHOLE = ("stock", "compiled")  # forms with torch.optim.AdamW, on any device


def make_form(arguments, model, inputs, targets):
    if arguments.form in WHOLE:
        form = StockForm if arguments.form == "stock" else CompiledForm
        return form(model, inputs, targets, arguments.threads, arguments.device, arguments.bf16)
    replicas = arguments.threads if arguments.form == "replicas" else 1
    return LeanForm(model, inputs, targets, arguments.threads, replicas, arguments.chunk)


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_arguments():
    parser = argparse.ArgumentParser(description="Time one GPT training step in PyTorch.")
    parser.add_argument("--config", choices=sorted(CONFIGURATIONS), default="S", help="shape (default S)")
    for name in CONFIGURATIONS["S"]:
        parser.add_argument("--" + name, type=positive, help="override the shape's " + name)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--steps", type=positive, default=8, help="measured steps (default 8)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (default 2)")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--text", metavar="FILE", help="take the tokens from this file's bytes, not at random")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--tf32", action="store_true", help="products on cuda in TF32")
    parser.add_argument("--bf16", action="store_true", help="autocast to bf16, in the stock form")
    parser.add_argument("--form", choices=["replicas", "lean", "stock", "compiled"], default=None,
                        help="one replica a thread (default on cpu), one replica with all threads, the tutorial's "
                        "step (default on cuda), or that step compiled by torch.compile")
    parser.add_argument("--json", metavar="FILE", help="write the line of JSON to FILE, too")
    parser.add_argument("--chunk", type=positive, default=1 << 19, help="elements AdamW takes at a time")
    arguments = parser.parse_args()
    shape = dict(CONFIGURATIONS[arguments.config])
    for name in shape:
        if getattr(arguments, name) is not None:
            shape[name] = getattr(arguments, name)
    if shape["width"] % shape["heads"]:
        parser.error("--width must be a multiple of --heads")
    if arguments.form is None:
        arguments.form = "replicas" if arguments.device == "cpu" else "stock"
    if arguments.device != "cpu" and arguments.form not in WHOLE:
        parser.error(f"--form {arguments.form} is for the CPU")
    if arguments.bf16 and arguments.form not in WHOLE:
        parser.error(f"--form {arguments.form} computes in f32")
    if arguments.text and shape["vocab"] < 256:
        parser.error("--text needs --vocab 256 or more")
    return arguments, shape


def make_batch(arguments, shape):
    batch, seq = shape["batch"], shape["seq"]
    generator = torch.Generator().manual_seed(arguments.seed)
    if arguments.text is None:
        rows = torch.randint(shape["vocab"], (batch, seq + 1), generator=generator)
    else:
        with open(arguments.text, "rb") as file:
            content = file.read()
        if len(content) <= seq:
            sys.exit(f"torch_step: {arguments.text} holds fewer than {seq + 1} bytes")
        starts = torch.randint(len(content) - seq, (batch,), generator=generator).tolist()
        rows = torch.tensor([list(content[start:start + seq + 1]) for start in starts])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main():
    arguments, shape = parse_arguments()
    if arguments.device != "cpu" and not torch.cuda.is_available():
        sys.exit(f"torch_step: PyTorch {torch.__version__} sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = arguments.tf32
    torch.manual_seed(arguments.seed)
    inputs, targets = make_batch(arguments, shape)
    model = Gpt(shape)
    form = make_form(arguments, model, inputs, targets)

    seconds, split, losses = [], {"gradients": [], "optimizer": []}, []
    for number in range(arguments.warmup + arguments.steps):
        begin = time.perf_counter()
        loss = form.gradients()
        middle = time.perf_counter()
        form.update()
        losses.append(float(loss))  # on a GPU this waits for all that was queued
        end = time.perf_counter()
        if number >= arguments.warmup:
            seconds.append(end - begin)
            split["gradients"].append(middle - begin)
            split["optimizer"].append(end - middle)

    median = statistics.median(seconds)
    name = arguments.config if shape == CONFIGURATIONS[arguments.config] else "custom"
    line = json.dumps({
        "peer": "torch",
        "version": torch.__version__,
        "config": dict(name=name, **shape),
        "form": arguments.form,
        "device": arguments.device if arguments.device == "cpu" else torch.cuda.get_device_name(arguments.device),
        "tf32": arguments.tf32,
        "bf16": arguments.bf16,
        "fused_attention": FUSED_ATTENTION,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "threads": arguments.threads,
        "warmup": arguments.warmup,
        "steps": arguments.steps,
        "step_seconds": {"median": median, "min": min(seconds), "max": max(seconds)},
        # A GPU works while the host goes on: only the whole step means something there.
        "split_seconds": None if arguments.device != "cpu" else {
            name: statistics.median(values) for name, values in split.items()},
        "tokens_per_second": shape["batch"] * shape["seq"] / median,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "losses": losses,
    })
    print(line)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
