"""gpt2_logits.py PROGRAM: a GPT-2 of the Python package transformers, with a tied head and with one
of its own, gives the same logits in gpt2_logits.c, and gpt2_logits.c's file gives transformers the
same model again, bit for bit, with no key missing and none too many. Models whose config.json says
something else are refused. Exits with 77 (skipped) where transformers or torch is not installed."""
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

program = sys.argv[1]
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
tokens = torch.randint(0, 101, (5, 32), generator=torch.Generator().manual_seed(2))


def make(tied=True, **changes):
    values = dict(vocab_size=101, n_positions=32, n_embd=48, n_layer=3, n_head=4, resid_pdrop=0,
                  embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
                  tie_word_embeddings=tied)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(**{**values, **changes})).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)  # logits of some size
    return model


def logits_of(model):
    with torch.no_grad():
        return model(tokens).logits


def run(folder, tied, prefix):
    (folder / "tokens").write_bytes(tokens.to(torch.int32).numpy().tobytes())
    kind = "tied" if tied else "untied"
    return subprocess.run([program, folder, kind, prefix], stderr=subprocess.PIPE, text=True)


def load(folder, tied, prefix):
    """The model of a folder, for which every key was there and none was too many."""
    if not tied and not prefix and int(transformers.__version__.split(".")[0]) < 5:
        # from_pretrained() of version 4 raises ValueError for a head beside names without prefix.
        tensors = load_file(folder / "model.safetensors")
        model = make(tied)
        for parameter in model.parameters():
            parameter.data.zero_()
        model.lm_head.load_state_dict({"weight": tensors.pop("lm_head.weight")})
        model.transformer.load_state_dict(tensors)
        return model
    model, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[keys], (tied, prefix, keys, report)
    return model


def check_travel(tied, prefix):
    model = make(tied)
    wanted = logits_of(model)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model.save_pretrained(folder, safe_serialization=True)
        weights = folder / "model.safetensors"
        if not prefix:
            bare = {key.removeprefix("transformer."): t for key, t in load_file(weights).items()}
            save_file(bare, weights, metadata={"format": "pt"})
        done = run(folder, tied, prefix)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            sys.exit(done.returncode)
        got = torch.from_numpy(numpy.fromfile(folder / "logits", dtype=numpy.float32))
        (folder / "back.safetensors").replace(weights)
        head = "lm_head.weight" in load_file(weights)
        assert head == (not tied), load_file(weights).keys()
        again = load(folder, tied, prefix)
    assert torch.equal(logits_of(again.eval()), wanted), (tied, prefix)
    start = tokens[:1, :8]
    with torch.no_grad():
        text = [m.generate(start, max_new_tokens=20, do_sample=False, pad_token_id=0)
                for m in (model, again)]
    assert torch.equal(*text)
    error = (got.reshape(wanted.shape) - wanted).abs().max().item()
    largest = wanted.abs().max().item()
    assert error <= 1e-5 * max(1.0, largest), (error, largest)
    print(f"{'tied' if tied else 'untied'}, prefix {prefix!r}: logits up to {largest:.2f} differ by at "
          f"most {error:.1e}; the way back is exact")


def check_refused(word, **changes):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make(**changes).save_pretrained(folder, safe_serialization=True)
        done = run(folder, True, "transformer.")
    assert done.returncode == 1 and word in done.stderr, (changes, done)


for tied in (True, False):
    for prefix in ("transformer.", ""):
        check_travel(tied, prefix)
check_refused("activation_function", activation_function="gelu")
check_refused("layer_norm_epsilon", layer_norm_epsilon=1e-6)
check_refused("n_head", n_head=2)
check_refused("scale_attn_weights", scale_attn_weights=False)
check_refused("scale_attn_by_inverse_layer_idx", scale_attn_by_inverse_layer_idx=True)
check_refused("tie_word_embeddings", tied=False)
print(f"transformers {transformers.__version__}, torch {torch.__version__}: six other models are refused")
