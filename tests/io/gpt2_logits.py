"""gpt2_logits.py PROGRAM: a GPT-2 of the Python package transformers gives the same logits in
gpt2_logits.c, and gpt2_logits.c's file gives transformers the same model again, bit for bit.
Exits with 77 (skipped) where transformers or torch is not installed."""
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

config = GPT2Config(vocab_size=101, n_positions=32, n_embd=48, n_layer=3, n_head=4, resid_pdrop=0,
                    embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
torch.manual_seed(1)
model = GPT2LMHeadModel(config).eval()
for parameter in model.parameters():
    parameter.data.mul_(3)  # logits of some size
tokens = torch.randint(0, 101, (5, 32))
with torch.no_grad():
    wanted = model(tokens).logits
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "tokens").write_bytes(tokens.to(torch.int32).numpy().tobytes())
    done = subprocess.run([sys.argv[1], folder])
    if done.returncode != 0:
        sys.exit(done.returncode)
    got = torch.from_numpy(numpy.fromfile(folder / "logits", dtype=numpy.float32).reshape(5, 32, 101))
    back = load_file(folder / "back.safetensors")
again = GPT2LMHeadModel(config).eval()
missing = again.load_state_dict(back, strict=False)
assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys, missing
again.tie_weights()
start = tokens[:1, :8]
with torch.no_grad():
    assert torch.equal(again(tokens).logits, wanted)
    text = [m.generate(start, max_new_tokens=20, do_sample=False, pad_token_id=0) for m in (model, again)]
assert torch.equal(*text)
error, largest = (got - wanted).abs().max().item(), wanted.abs().max().item()
assert error <= 1e-5 * max(1.0, largest), (error, largest)
print(f"logits up to {largest:.2f} differ by at most {error:.1e}; the way back is exact")
