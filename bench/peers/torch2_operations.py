#!/usr/bin/env python3
"""torch2_operations.py LIBRARY [CASES]: single operations in bf16, evenkeel's and PyTorch's, against float64.

Calls the shared library LIBRARY through ctypes, with random sizes and numbers. An error is the relative L2
distance to what float64 makes of the same operands of bf16. Prints a table in Markdown: the mean of each
side's errors over CASES random cases (default: 30), and the largest ratio of ours to PyTorch's in any case.
"""

import ctypes
import math
import random
import sys

import torch
import torch.nn.functional as F

CODES = {torch.float32: 1, torch.float64: 2, torch.bfloat16: 3, torch.int32: 5}
GELU, COMPUTE, WORKSPACE = 1, 0, 9  # of the enums


class Tensor(ctypes.Structure):  # ek_tensor
    _fields_ = [("data", ctypes.c_void_p), ("memory", ctypes.c_void_p), ("device", ctypes.c_void_p),
                ("type", ctypes.c_int), ("rank", ctypes.c_int), ("shape", ctypes.c_int64 * 8)]


class CrossEntropyTerms(ctypes.Structure):
    _fields_ = [("ignore_index", ctypes.c_int32), ("smoothing", ctypes.c_double),
                ("class_weights", ctypes.c_void_p), ("classes", ctypes.c_int64)]


class AttendOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("heads", ctypes.c_int), ("kv_heads", ctypes.c_int),
                ("causal", ctypes.c_bool), ("k", ctypes.c_void_p), ("v", ctypes.c_void_p),
                ("dk", ctypes.c_void_p), ("dv", ctypes.c_void_p), ("q_column", ctypes.c_int64), ("k_column", ctypes.c_int64),
                ("v_column", ctypes.c_int64), ("ranges", ctypes.POINTER(Tensor)),
                ("dropout", ctypes.c_double), ("seed", ctypes.c_uint64), ("step", ctypes.c_uint32),
                ("stream", ctypes.c_uint32), ("first_sample", ctypes.c_int64)]


class AdamwTerms(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("rate", "beta1", "beta2", "epsilon", "decay")]
    _fields_ += [("decoupled", ctypes.c_bool), ("step", ctypes.c_int64)]


class UpdateScale(ctypes.Structure):
    _fields_ = [("totals", ctypes.c_void_p), ("square_norm", ctypes.c_void_p), ("clip", ctypes.c_double),
                ("copy", ctypes.POINTER(Tensor))]


class Evenkeel:
    """Operations on one CPU device, whose memory is the host's."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name in ("ek_group_device", "ek_device_stream"):
            getattr(self.library, name).restype = ctypes.c_void_p
        self.library.ek_error_message.restype = ctypes.c_char_p
        group = ctypes.c_void_p()
        self.check(self.library.ek_group_open(ctypes.byref(group), b"cpu:1", None))
        self.device = ctypes.c_void_p(self.library.ek_group_device(group, ctypes.c_size_t(0)))
        self.stream = ctypes.c_void_p(self.library.ek_device_stream(self.device, COMPUTE))

    def check(self, status):
        if status != 0:
            sys.exit(f"torch2_operations: {self.library.ek_error_message().decode()}")

    def put(self, value):
        value = value.detach().contiguous()
        tensor, shape = Tensor(), (ctypes.c_int64 * 8)(*value.shape)
        self.check(self.library.ek_tensor_create(ctypes.byref(tensor), self.device, WORKSPACE,
                                                 CODES[value.dtype], value.dim(), shape))
        ctypes.memmove(tensor.data, value.data_ptr(), value.numel() * value.element_size())
        return tensor

    def __call__(self, name, written, *operands):
        """ek_op_NAME with torch tensors as they are and other arguments given as ctypes; gives the
        tensors of the places in `written` as they are afterwards."""
        made = {i: self.put(o) for i, o in enumerate(operands) if isinstance(o, torch.Tensor)}
        given = [ctypes.byref(made[i]) if i in made else o for i, o in enumerate(operands)]
        self.check(getattr(self.library, "ek_op_" + name)(self.stream, *given))
        results = []
        for i in written:
            results.append(torch.empty_like(operands[i]))
            ctypes.memmove(results[-1].data_ptr(), made[i].data,
                           results[-1].numel() * results[-1].element_size())
        for tensor in made.values():
            self.library.ek_tensor_free(ctypes.byref(tensor))
        return results


def number(low, high):
    """A random size, as often small as large."""
    return round(math.exp(random.uniform(math.log(low), math.log(high))))


def normal(*shape):
    return torch.randn(*shape).bfloat16()


def both(function, *operands):
    """What torch makes of the operands in their type, and in float64: the result and its gradients."""
    sides = []
    for kind in (None, torch.float64):
        leaves = [(o if kind is None else o.to(kind)).clone().requires_grad_() for o in operands]
        y = function(*leaves)
        dy = torch.ones_like(y) if y.dim() == 0 else normal(*y.shape) if not sides else sides[0][0].to(kind)
        sides.append([dy, y.detach()] + list(torch.autograd.grad(y, leaves, dy.to(y.dtype))))
    return sides[0][0], sides[0][1:], sides[1][1:]


def linear(ek):
    rows, k, n = number(1, 300), number(4, 800), number(4, 800)
    x, w, b = normal(rows, k), normal(n, k) / k**0.5, normal(n)
    dy, torchs, want = both(F.linear, x, w, b)
    (y,) = ek("linear", [0], torch.empty(rows, n, dtype=x.dtype), x, w, b)
    (dx,) = ek("matmul", [0], torch.empty_like(x), dy, ctypes.c_bool(False), w, ctypes.c_bool(False),
               ctypes.c_double(0))
    dw, db = ek("linear_gradients", [0, 1], torch.empty(n, k), torch.empty(n), dy, x, ctypes.c_double(0),
                ctypes.c_double(0))
    return ("linear", "linear, dx", "linear, dw", "linear, dbias"), (y, dx, dw, db), torchs, want


def layer_norm(ek):
    rows, n = number(1, 300), number(8, 1500)
    x, gamma, beta = normal(rows, n) + normal(rows, 1), 1 + normal(n) / 8, normal(n) / 8
    dy, torchs, want = both(lambda x, g, b: F.layer_norm(x, (n,), g, b), x, gamma, beta)
    y, mean, rstd = ek("layer_norm_forward", [0, 1, 2], torch.empty_like(x), torch.empty(rows),
                       torch.empty(rows), x, gamma, beta, ctypes.c_double(1e-5))
    dx, dgamma, dbeta = ek("layer_norm_backward", [0, 1, 2], torch.empty_like(x), torch.empty(n),
                           torch.empty(n), dy, x, mean, rstd, gamma, None, ctypes.c_double(0),
                           ctypes.c_double(0))
    names = ("layer norm", "layer norm, dx", "layer norm, dgamma", "layer norm, dbeta")
    return names, (y, dx, dgamma, dbeta), torchs, want


def gelu(ek):
    x = 2 * normal(number(1, 300), number(8, 1500))
    dy, torchs, want = both(lambda x: F.gelu(x, approximate="tanh"), x)
    (y,) = ek("activation_forward", [0], torch.empty_like(x), x, None, GELU)
    (dx,) = ek("activation_backward", [0], torch.empty_like(x), dy, x, GELU)
    return ("GELU", "GELU, dx"), (y, dx), torchs, want


def attention(ek):
    """Causal or not, with shared keys, rows of one document or several."""
    samples, tokens, width = number(1, 4), number(2, 300), 8 * number(2, 12)
    kv_heads, causal = number(1, 4), random.random() < 0.5
    heads = kv_heads * number(1, 4)
    qkv = normal(samples, tokens, (heads + 2 * kv_heads) * width)
    segments = (torch.rand(samples, tokens) < random.choice((0, 0.02, 0.2))).cumsum(1).int()
    seen = segments[:, None, :, None] == segments[:, None, None, :]
    if causal:
        seen = seen & torch.ones(tokens, tokens, dtype=torch.bool).tril()

    def attend(qkv):
        q, k, v = (t.unflatten(-1, (-1, width)).transpose(1, 2)
                   for t in qkv.split([heads * width, kv_heads * width, kv_heads * width], dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return out.transpose(1, 2).reshape(samples, tokens, heads * width)

    dout, torchs, want = both(attend, qkv)
    ranges = ek.put(torch.empty(samples, tokens, 2, dtype=torch.int32))
    ek("document_ranges", [], ctypes.byref(ranges), None, segments)
    options = AttendOptions(ctypes.sizeof(AttendOptions), heads, kv_heads, causal,
                            ranges=ctypes.pointer(ranges))
    how = ctypes.byref(options)
    out, lse = ek("attention_forward", [0, 1], torch.empty_like(dout),
                  torch.empty(samples, heads, tokens), qkv, how)
    (dqkv,) = ek("attention_backward", [0], torch.empty_like(qkv), dout, qkv, out, lse, how)
    ek.library.ek_tensor_free(ctypes.byref(ranges))
    return ("attention", "attention, dqkv"), (out, dqkv), torchs, want


def cross_entropy(ek):
    """PyTorch's in f32, as autocast has it."""
    rows, n = number(1, 300), number(8, 3000)
    logits, targets = 3 * normal(rows, n), torch.randint(n, (rows,), dtype=torch.int32)

    def mean(x):
        return F.cross_entropy(x.float() if x.dtype == torch.bfloat16 else x, targets.long())

    _, torchs, want = both(mean, logits)
    terms = CrossEntropyTerms(-100, 0, None, 0)
    gradient, totals = ek("cross_entropy_gradient", [0, 3], torch.empty_like(logits), torch.empty(rows),
                          torch.empty(rows, 2), torch.empty(2, dtype=torch.float64), logits, targets,
                          ctypes.c_double(1 / rows), ctypes.byref(terms))
    return ("cross-entropy", "cross-entropy, dlogits"), (totals[0] / totals[1], gradient), torchs, want


def adamw(ek):
    """Five steps; PyTorch's fused rule in f32, and what autocast makes of the parameters for the next step."""
    n, names = number(8, 30000), ("AdamW, parameters", "AdamW, their copies")
    start, gradients = torch.randn(n) / 8, [torch.randn(n) for _ in range(5)]
    sides = []
    for kind, fused in ((torch.float32, True), (torch.float64, False)):
        p = start.to(kind).clone().requires_grad_()
        rule = torch.optim.AdamW([p], lr=1e-3, weight_decay=0.1, fused=fused)
        for g in gradients:
            p.grad = g.to(kind)
            rule.step()
        sides.append(p.detach())
    p, m, v, copy = start, torch.empty(n), torch.empty(n), torch.empty(n, dtype=torch.bfloat16)
    for step, g in enumerate(gradients):
        terms, made = AdamwTerms(1e-3, 0.9, 0.999, 1e-8, 0.1, True, step + 1), ek.put(copy)
        scale = UpdateScale(None, None, 0, ctypes.pointer(made))
        p, m, v = ek("adamw", [0, 1, 2], p, m, v, g, ctypes.byref(terms), ctypes.byref(scale))
        ctypes.memmove(copy.data_ptr(), made.data, 2 * n)
        ek.library.ek_tensor_free(ctypes.byref(made))
    return names, (p, copy), (sides[0], sides[0].bfloat16()), (sides[1], sides[1])


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.splitlines()[0])
    ek = Evenkeel(sys.argv[1])
    errors = {}
    for case in range(int(sys.argv[2]) if len(sys.argv) > 2 else 30):
        random.seed(case)
        torch.manual_seed(case)
        for operation in (linear, layer_norm, gelu, attention, cross_entropy, adamw):
            for name, ours, theirs, want in zip(*operation(ek)):
                pair = [((x.double() - want).norm() / want.norm()).item() for x in (ours, theirs)]
                errors.setdefault(name, []).append(pair)
    print(f"| bf16 | evenkeel | PyTorch {torch.__version__} | largest ratio in a case |")
    print("|---|---|---|---|")
    for name, pairs in errors.items():
        means = [sum(side) / len(pairs) for side in zip(*pairs)]
        worst = max(ours / max(theirs, 1e-300) for ours, theirs in pairs)
        print(f"| {name} | {means[0]:.2e} | {means[1]:.2e} | {worst:.2f} |")


if __name__ == "__main__":
    main()
