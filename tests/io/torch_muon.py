"""torch_muon.py PROGRAM [SIZES]: torch_muon.c makes the weights and the momentum that
torch.optim.Muon makes of the same weights and gradients.

torch.optim.Muon iterates in bfloat16 whatever its parameters are. So the function that does is
taken from its source with `torch.bfloat16` replaced by the type of the gradient, and
torch.optim.Muon runs with it, in f32 and in f64. The distance to torch as it is is printed, and
not tested. SIZES, such as "768x3072 2304x768", are more matrices. Exits with 77 (skipped) where
torch has no Muon."""
import inspect
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import torch.optim._muon as source
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

program = sys.argv[1]
original = source._zeropower_via_newtonschulz
text = inspect.getsource(original)
assert text.count("torch.bfloat16") == 1
names = {}
exec(text.replace("torch.bfloat16", "grad.dtype"), vars(source), names)
exact = names["_zeropower_via_newtonschulz"]
STEPS = 12


def torch_steps(start, gradients, factor, nesterov, iteration):
    source._zeropower_via_newtonschulz = iteration
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    rule = torch.optim.Muon([p], lr=0.02, nesterov=nesterov,
                            adjust_lr_fn=["original", "match_rms_adamw"][factor])
    for g in gradients:
        p.grad = torch.from_numpy(g.copy())
        rule.step()
    return p.detach().numpy(), rule.state[p]["momentum_buffer"].numpy()


def our_steps(start, gradients, factor, nesterov):
    name = "f64" if start.dtype == numpy.float64 else "f32"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "numbers")
        numpy.concatenate([start[None], gradients]).tofile(path)
        subprocess.run([program, name, *map(str, start.shape), str(len(gradients)), str(factor),
                        str(int(nesterov)), path], check=True)
        got = numpy.fromfile(path, start.dtype).reshape(-1, *start.shape)
    return got[-2], got[-1]


def distance(got, want):
    got, want = got.astype(numpy.float64), want.astype(numpy.float64)
    return numpy.linalg.norm(got - want) / numpy.linalg.norm(want)


failed = 0
sizes = [(48, 48), (144, 48), (48, 192), (1, 7), (96, 256)]
sizes += [tuple(map(int, size.split("x"))) for size in " ".join(sys.argv[2:]).split()]
for number, (rows, columns) in enumerate(sizes):
    factor, nesterov = number % 2, number % 3 != 2
    random = numpy.random.default_rng(number)
    start = random.normal(0, 0.02, (rows, columns))
    # Gradients of a model are nearly of low rank.
    low = random.normal(0, 1, (STEPS, rows, 4)) @ random.normal(0, 1, (STEPS, 4, columns))
    gradients = 1e-3 * (low + 0.05 * random.normal(0, 1, (STEPS, rows, columns)))
    for dtype, bound in ((numpy.float32, 1e-5), (numpy.float64, 1e-13)):
        p0, g = start.astype(dtype), gradients.astype(dtype)
        want = torch_steps(p0, g, factor, nesterov, exact)
        got = our_steps(p0, g, factor, nesterov)
        weights, momentum = distance(got[0], want[0]), distance(got[1], want[1])
        moved = distance(got[0] - p0, want[0] - p0)
        rounded = distance(torch_steps(p0, g, factor, nesterov, original)[0] - p0, want[0] - p0)
        print(f"{rows}x{columns} {dtype.__name__} after {STEPS} steps: weights {weights:.1e}, "
              f"their change {moved:.1e}, momentum {momentum:.1e}; "
              f"change of torch in bf16 {rounded:.1e}")
        failed |= weights > bound or moved > bound or momentum > bound
sys.exit(int(failed))
