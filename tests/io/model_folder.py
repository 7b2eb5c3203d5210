"""model_folder.py PROGRAM: small models of the Python package transformers, saved as it saves them,
are the same models in model_folder.c: logits, gradients, and the losses of ten steps. A folder that
it writes gives transformers the same model again, bit for bit, with no key missing and none too
many. Exits with 77 (skipped) where transformers or torch is not installed."""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig,
                              Qwen2Config, Qwen3Config)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

program = sys.argv[1]
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
text = torch.randint(0, 101, (5, 33), generator=torch.Generator().manual_seed(2))
tokens, targets = text[:, :-1], text[:, 1:]
version = int(transformers.__version__.split(".")[0])


def gpt2(**changes):
    return GPT2Config(**{**dict(
        vocab_size=101, n_positions=32, n_embd=48, n_layer=3, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0), **changes})


def llama(kind=LlamaConfig, **changes):
    values = {**dict(
        vocab_size=101, max_position_embeddings=32, hidden_size=48, intermediate_size=88,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, bos_token_id=0,
        eos_token_id=0), **changes}
    rope = values.pop("rope", None)
    if rope is not None:  # version 5 has theta and scaling in one object
        if version >= 5:
            values["rope_parameters"] = rope
        else:
            values["rope_theta"] = rope.pop("rope_theta")
            values["rope_scaling"] = rope
    return kind(**values)


LLAMA3 = dict(rope_theta=500000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)
models = {
    "GPT-2": gpt2(),
    "GPT-2, untied": gpt2(tie_word_embeddings=False),
    "Llama 1": llama(num_key_value_heads=4),
    "Llama 2, GQA": llama(rms_norm_eps=1e-5),
    "Llama 3, GQA, tied": llama(tie_word_embeddings=True, rope=LLAMA3),
    "Llama, linear scaling": llama(rope=dict(rope_theta=10000.0, rope_type="linear", factor=2.0)),
    "Mistral-like": llama(MistralConfig, sliding_window=None),
    "Qwen2-like": llama(Qwen2Config, use_sliding_window=False, num_key_value_heads=1,
                        rope=dict(rope_theta=1e6, rope_type="default")),
    "Qwen3-like": llama(Qwen3Config, use_sliding_window=False, head_dim=12),
    "Qwen3-like, wide heads, tied": llama(Qwen3Config, use_sliding_window=False, head_dim=16,
                                          tie_word_embeddings=True,
                                          rope=dict(rope_theta=1e6, rope_type="default")),
}


def make(config):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    for name, parameter in model.named_parameters():
        # Logits of some size. Of a norm of queries and keys it would be scores of 30 and more, whose
        # softmax is one token: then ten steps of PyTorch alone in f32 and f64 are 3e-3 apart.
        parameter.data.mul_(1 if "q_norm" in name or "k_norm" in name else 3)
        if parameter.dim() == 1:  # biases that are not 0
            parameter.data.add_(torch.randn(parameter.shape) * 0.1)
    return model


def logits_of(model):
    with torch.no_grad():
        return model(tokens).logits


def loss_of(model):
    return torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())


def load(folder):
    """The model of a folder, for which every key was there and none was too many."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[keys], (folder, keys, report)
    return model.eval()


def write(model, folder, form):
    folder.mkdir()
    if form == "many":
        model.save_pretrained(folder, max_shard_size="40KB")
        assert (folder / "model.safetensors.index.json").exists()
    else:
        model.save_pretrained(folder)
    if form == "bare":  # as the first files of GPT-2 are
        weights = folder / "model.safetensors"
        bare = {key.removeprefix("transformer."): t for key, t in load_file(weights).items()}
        save_file(bare, weights, metadata={"format": "pt"})
    for name, ids in (("tokens", tokens), ("targets", targets)):
        (folder / name).write_bytes(ids.to(torch.int32).contiguous().numpy().tobytes())


def run(folder, out, devices, mode):
    return subprocess.run([program, folder, out, devices, mode], stderr=subprocess.PIPE, text=True)


def relative(got, wanted):
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def check(name, config, form, devices, mode):
    model = make(config)
    with tempfile.TemporaryDirectory() as place:
        folder, out = pathlib.Path(place, "in"), pathlib.Path(place)
        write(model, folder, form)
        done = run(folder, out, devices, mode)
        if done.returncode != 0:
            print(name, done.stderr, file=sys.stderr)
            sys.exit(done.returncode)
        logits = torch.from_numpy(numpy.fromfile(out / "logits", dtype=numpy.float32))
        losses = torch.from_numpy(numpy.fromfile(out / "losses", dtype=numpy.float64))
        same, descended, trained = (load(out / part) for part in ("same", "descended", "trained"))
        written = json.loads((out / "same" / "config.json").read_text())
    wanted = logits_of(model)
    assert torch.equal(logits_of(same), wanted), (name, "the way back")
    logits_error = relative(logits.reshape(wanted.shape), wanted)
    assert logits_error <= 1e-4, (name, logits_error)
    loss_of(model).backward()
    gradient_error = 0.0
    for (key, before), after in zip(model.named_parameters(), descended.parameters()):
        # A weight is rounded when the gradient is subtracted: 2^-24 of it, and once more here.
        slack = 2.0 ** -23 * before.abs().max().item()
        error = ((before.data - after.data) - before.grad).abs().max().item() - slack
        largest = before.grad.abs().max().item()
        assert error <= 1e-4 * largest, (name, key, error, largest)
        gradient_error = max(gradient_error, error / largest)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    wanted_losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        wanted_losses.append(loss.item())
    loss_error = relative(losses, torch.tensor(wanted_losses, dtype=torch.float64))
    assert loss_error <= 1e-5, (name, loss_error, losses, wanted_losses)
    assert relative(loss_of(trained), loss_of(model)) <= 1e-5, name
    print(f"{name}, {form}, {devices} {mode}: logits {logits_error:.1e}, gradients "
          f"{max(gradient_error, 0):.1e}, ten losses {loss_error:.1e}; back exact, as "
          f"{written['model_type']}")


# The program exits with 77 after EK_ERR_UNSUPPORTED, whatever is not supported.
def check_refused(word, config, **changes):
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place, "in")
        write(make(config), folder, "one")
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        done = run(folder, pathlib.Path(place), "cpu:1", "replicated")
    assert done.returncode in (1, 77) and word in done.stderr, (changes, done)


ways = [("one", "cpu:3", "sharded"), ("many", "cpu:2", "fully-sharded"), ("one", "cpu:1", "replicated")]
for i, (name, config) in enumerate(models.items()):
    check(name, config, *ways[i % len(ways)])
check("GPT-2", gpt2(), "bare", "cpu:2", "gather")
check_refused("activation_function", gpt2(), activation_function="gelu")
check_refused("layer_norm_epsilon", gpt2(), layer_norm_epsilon=1e-6)
check_refused("n_inner", gpt2(), n_inner=96)
check_refused("scale_attn_by_inverse_layer_idx", gpt2(), scale_attn_by_inverse_layer_idx=True)
check_refused("lm_head", gpt2(), tie_word_embeddings=False)
check_refused("attention_bias", llama(), attention_bias=True)
check_refused("mlp_bias", llama(), mlp_bias=True)
check_refused("hidden_act", llama(), hidden_act="gelu")
check_refused("another shape", llama(), head_dim=24)
check_refused("attention_bias", llama(Qwen3Config, head_dim=12), attention_bias=True)
check_refused("yarn", llama(), rope_scaling={"rope_type": "yarn", "factor": 2.0},
              rope_parameters=None)
check_refused("another shape", llama(), num_key_value_heads=1)
check_refused("use_sliding_window", llama(Qwen2Config), use_sliding_window=True)
check_refused("but the model has no blocks.2", gpt2(), n_layer=2)
check_refused("but the model has no blocks.2", llama(), num_hidden_layers=2)
check_refused("lm_head.weight and transformer.wte.weight differ", gpt2(tie_word_embeddings=False),
              tie_word_embeddings=True)
check_refused("model_type", gpt2(), model_type="bloom")
print(f"transformers {transformers.__version__}, torch {torch.__version__}: {len(models)} models; 17 folders "
      "that say something else are refused")
