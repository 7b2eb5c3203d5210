"""The GPT and the Llama of evenkeel-bench in PyTorch 2, the forms of its training step, and its weights from a file.

Imported by torch2_peer.py, which times it, and by torch2_train.py, which writes its losses. Model and rule are those of
ek_gpt and ek_adamw: pre-norm blocks, GELU by tanh, a head tied to the table of tokens, no dropout, no weight decay on
biases and norms; or those of ek_llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied. Everything is written as PyTorch's own guides write it today: scaled_dot_product_attention, autocast
around forward and loss, AdamW(fused=True), zero_grad(set_to_none=True), torch.compile of the whole forward.
"""

import contextlib
import json
import struct

import torch
import torch.nn.functional as F

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.projection = torch.nn.Linear(width, width)
        self.ln_2 = torch.nn.LayerNorm(width)
        self.expand = torch.nn.Linear(width, 4 * width)
        self.contract = torch.nn.Linear(4 * width, width)

    def attend(self, x):
        batch, seq, width = x.shape
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(batch, seq, width)

    def forward(self, x):
        x = x + self.projection(self.attend(self.ln_1(x)))
        return x + self.contract(F.gelu(self.expand(self.ln_2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """Tokens and targets to the mean loss."""

    def __init__(self, shape):
        super().__init__()
        width = shape["width"]
        self.tokens = torch.nn.Parameter(torch.empty(shape["vocab"], width))
        self.positions = torch.nn.Parameter(torch.empty(shape["seq"], width))
        self.blocks = torch.nn.ModuleList(Block(width, shape["heads"]) for _ in range(shape["layers"]))
        self.norm = torch.nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = F.embedding(inputs, self.tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class LlamaBlock(torch.nn.Module):
    def __init__(self, width, hidden, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.attention_norm = torch.nn.RMSNorm(width, eps=1e-5)
        self.qkv = torch.nn.Linear(width, (heads + 2 * kv_heads) * self.head, bias=False)
        self.projection = torch.nn.Linear(width, width, bias=False)
        self.feed_forward_norm = torch.nn.RMSNorm(width, eps=1e-5)
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def attend(self, x, cosine, sine):
        batch, seq, width = x.shape
        q, k, v = self.qkv(x).view(batch, seq, -1, self.head).transpose(1, 2).split(
            (self.heads, self.kv_heads, self.kv_heads), 1)
        q, k = turn(q, cosine, sine), turn(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads < self.heads)
        return y.transpose(1, 2).reshape(batch, seq, width)

    def forward(self, x, cosine, sine):
        x = x + self.projection(self.attend(self.attention_norm(x), cosine, sine))
        n = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


def turn(x, cosine, sine):
    """Rotary positions, as the package transformers computes them."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Llama(torch.nn.Module):
    """Tokens and targets to the mean loss."""

    def __init__(self, shape):
        super().__init__()
        width, heads = shape["width"], shape["heads"]
        kv_heads = shape["kv_heads"] or heads
        self.tokens = torch.nn.Parameter(torch.empty(shape["vocab"], width))
        self.blocks = torch.nn.ModuleList(
            LlamaBlock(width, shape["hidden"], heads, kv_heads) for _ in range(shape["layers"]))
        self.norm = torch.nn.RMSNorm(width, eps=1e-5)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)
        head = width // heads
        speeds = 10000.0 ** (-torch.arange(0, head, 2) / head)
        angles = torch.outer(torch.arange(shape["seq"]), speeds).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, inputs, targets):
        x = F.embedding(inputs, self.tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = F.linear(self.norm(x), self.tokens)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Step:
    """One training step, eager or compiled, in one precision; f16 with PyTorch's own dynamic loss scale."""

    def __init__(self, model, precision, rate, compiled, decay=0.01, betas=(0.9, 0.999), clip=None):
        kinds = {True: [], False: []}
        for parameter in model.parameters():
            kinds[parameter.dim() == 2].append(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": kinds[True], "weight_decay": decay}, {"params": kinds[False], "weight_decay": 0.0}],
            lr=rate, betas=betas, eps=1e-8, fused=True)
        self.clip = clip
        self.forward = torch.compile(model, fullgraph=True, dynamic=False) if compiled else model
        self.precision = precision
        self.scaler = torch.amp.GradScaler("cpu") if precision == "f16" else None

    def set_rate(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def take(self, inputs, targets):
        """The loss, as a tensor."""
        context = contextlib.nullcontext()
        if self.precision != "f32":
            context = torch.autocast("cpu", dtype=TYPES[self.precision])
        self.optimizer.zero_grad(set_to_none=True)
        with context:
            loss = self.forward(inputs, targets)
        if self.scaler is None:
            loss.backward()
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"] + self.optimizer.param_groups[1]["params"],
                                               self.clip)
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()


def read_safetensors(path):
    """The tensors of a file in f32: a header in JSON after its length, then the values."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        values = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, not F32")
        begin, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(values[begin:end], dtype=torch.float32).view(entry["shape"])
    return tensors


# Names in files of GPT2LMHeadModel, whose linears are transposed.
LINEARS = {"attn.c_attn": "qkv", "attn.c_proj": "projection", "mlp.c_fc": "expand", "mlp.c_proj": "contract"}


def load_weights(model, path):
    """Every parameter of the model from a file with Hugging Face's names of GPT-2."""
    file = read_safetensors(path)
    found = {"tokens": file["wte.weight"], "positions": file["wpe.weight"],
             "norm.weight": file["ln_f.weight"], "norm.bias": file["ln_f.bias"]}
    for number in range(len(model.blocks)):
        there, here = f"h.{number}.", f"blocks.{number}."
        for norm in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
            found[here + norm] = file[there + norm]
        for name, own in LINEARS.items():
            found[f"{here}{own}.weight"] = file[f"{there}{name}.weight"].t()
            found[f"{here}{own}.bias"] = file[f"{there}{name}.bias"]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.shape != found[name].shape:
                raise ValueError(f"{path}: {name} is {tuple(found[name].shape)}, not {tuple(parameter.shape)}")
            parameter.copy_(found[name])
