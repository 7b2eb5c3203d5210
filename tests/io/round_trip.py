"""round_trip.py PROGRAM: a file that the Python package safetensors wrote, copied by round_trip.c, is
the same to that package. Exits with 77 (skipped) where the package or numpy is not installed."""
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

random = numpy.random.default_rng(1)
tensors = {
    "f32": random.standard_normal((3, 4, 5)).astype(numpy.float32),
    "f64": random.standard_normal((7,)),
    "f16": random.standard_normal((2, 3)).astype(numpy.float16),
    "i32": random.integers(-9, 9, (4, 1)).astype(numpy.int32),
    "i64": random.integers(-9, 9, (2, 2)),
    "scalar": numpy.array(3.5, dtype=numpy.float32),
    "none": numpy.zeros((0, 4), dtype=numpy.float32),
    'na"me \\ \u00e9\u4e2d': numpy.ones((1,), dtype=numpy.float32),
}
with tempfile.TemporaryDirectory() as folder:
    theirs, ours = pathlib.Path(folder, "theirs"), pathlib.Path(folder, "ours")
    save_file(tensors, theirs, metadata={"who": "round_trip.py"})
    done = subprocess.run([sys.argv[1], theirs, ours])
    if done.returncode != 0:
        sys.exit(done.returncode)
    copies = load_file(ours)
assert copies.keys() == tensors.keys(), copies.keys()
for name, tensor in tensors.items():
    copy = copies[name]
    assert copy.dtype == tensor.dtype and copy.shape == tensor.shape, name
    assert copy.tobytes() == tensor.tobytes(), name
print(f"{len(tensors)} tensors are the same")
