#!/usr/bin/env python3
"""kakeya on CUDA beside Hugging Face transformers in bf16: the same weights, the same tokens, one run.

    bench/transformers_compare.py KAKEYA demo [DIRECTORY]            the bundled model
    bench/transformers_compare.py KAKEYA 26b-a4b [LAYERS] [--keep DIRECTORY]
                                                                     random weights in the shape of 26B-A4B (6 layers)
    bench/transformers_compare.py KAKEYA demo [DIRECTORY] --save FILE [--save-dtype bfloat16]
                                                                     transformers' logits alone, for `kakeya verify --logits`
    options: --json FILE, --compile, --experts NAME (transformers' experts_implementation; its own choice by default)

Accuracy: both are compared with transformers in float32 over 256 tokens, of which kakeya computes the first 192 as a prompt
and the others as decode rows: root mean square of the logits' differences, and how often the best token is the same. Then
both continue the tokens greedily, and the float32 model says how far below its own best logit each chosen token is.
The run fails if kakeya's error is above 1.1 times that of transformers in bf16, or its chosen tokens are worse by more than
the noise (0.02 in the mean).

Speed: a prompt of 512 tokens, and decoding behind it, one token at a time. transformers runs as `model(...)` with a dynamic
cache; with --compile also as `generate` with a static cache, which compiles decoding (torch.compile, CUDA graphs). kakeya's
figures are those of `kakeya bench`.

--save compares nothing: it writes the ids and the logits that transformers computes for them, in float32 or the dtype that is
named, of the checkpoint in DIRECTORY. It needs no CUDA device, but memory for the checkpoint. Who has neither the memory nor the
packages compares with the file: `kakeya verify --model DIRECTORY --logits FILE`.

All else needs a CUDA device and the packages of tools/requirements.txt, and accelerate."""
import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

ROWS, PROMPT_ROWS, GREEDY = 256, 192, 32
PROMPT, DECODE, REPEATS = 512, 32, 5
ERROR_FACTOR, REGRET_MARGIN = 1.1, 0.02

ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}
SHAPE = {  # the published configuration
    "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "dtype": "bfloat16", "vocab_size": 262144,
    "hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
    "num_global_key_value_heads": 2, "attention_k_eq_v": True, "intermediate_size": 2112, "sliding_window": 1024,
    "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
    "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "max_position_embeddings": 262144,
    "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": [1, 106, 50], "rope_parameters": ROPE,
}


def say(text):
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------ random weights


def random_tensor(name, shape, generator):
    """Values that make every tensor matter: no norm of ones, scores that neither vanish nor saturate."""
    def uniform(low, high):
        return torch.rand(shape, generator=generator, device="cuda") * (high - low) + low

    if name.endswith("layer_scalar"):
        values = uniform(0.7, 1.1)
    elif "q_norm" in name:
        values = uniform(0.5, 1.5) * 1.5 / shape[0] ** 0.5  # scores of deviation 1.5
    elif name.endswith("router.scale"):
        values = uniform(0.5, 1.5) * shape[0] ** 0.5
    elif "norm" in name or "per_expert_scale" in name:
        values = uniform(0.5, 1.5)
    else:
        values = torch.randn(shape, generator=generator, device="cuda") * shape[-1] ** -0.5
    return values.to(torch.bfloat16).cpu()


def write_checkpoint(directory, layers):
    """One shard per layer and one for the rest."""
    types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)]
    config = {**SHAPE, "num_hidden_layers": layers, "layer_types": types}
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    with torch.device("meta"):
        model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**config))
    generator = torch.Generator(device="cuda").manual_seed(1)
    shards, index = {}, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        parts = name.split(".")
        shards.setdefault(parts[2] if parts[1] == "layers" else "rest", []).append((name, tuple(tensor.shape)))
    for shard, names in shards.items():
        file = f"model-{shard}.safetensors"
        save_file({name: random_tensor(name, shape, generator) for name, shape in names}, os.path.join(directory, file),
                  metadata={"format": "pt"})
        index.update(dict.fromkeys((name for name, _ in names), file))
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": index}, file)


# -------------------------------------------------------------------------------------------------- transformers


def load(directory, dtype, experts, device="cuda"):
    options = {"experts_implementation": experts} if experts else {}
    if device != "cpu":
        options["device_map"] = device
    model = transformers.Gemma4ForCausalLM.from_pretrained(directory, dtype=dtype, **options).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return model


def free():
    gc.collect()
    torch.cuda.empty_cache()


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0].float()


def save_logits(path, directory, ids, options):
    """Tensors "ids" (I64 [n]) and "logits" (F32 [n, vocab]), row t of token t + 1, after soft-capping."""
    model = load(directory, getattr(torch, options.save_dtype), options.experts, "cuda" if torch.cuda.is_available() else "cpu")
    save_file({"ids": torch.tensor(ids, dtype=torch.int64), "logits": logits_of(model, ids).cpu().contiguous()}, path,
              metadata={"transformers": transformers.__version__, "torch": torch.__version__, "dtype": options.save_dtype})


@torch.no_grad()
def greedy_tokens(model, ids):
    out = model.generate(torch.tensor([ids], device="cuda"), attention_mask=torch.ones(1, len(ids), device="cuda", dtype=torch.long),
                         max_new_tokens=GREEDY, do_sample=False)
    return out[0, len(ids):].tolist()


def timed(function):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


@torch.no_grad()
def speeds(model, ids):
    prompt = torch.tensor([ids[:PROMPT]], device="cuda")
    prefill, decode = [], []
    for repeat in range(REPEATS + 1):  # the first is a warm-up
        seconds, out = timed(lambda: model(input_ids=prompt, use_cache=True, logits_to_keep=1))
        cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)

        def steps(cache=cache, token=token):
            for _ in range(DECODE):
                token = model(input_ids=token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

        step_seconds, _ = timed(steps)
        if repeat:
            prefill.append(seconds)
            decode.append(step_seconds / DECODE)
    return {"prefill_seconds": median(prefill), "decode_seconds": median(decode)}


@torch.no_grad()
def compiled_decode_seconds(model, ids, prefill_seconds):
    """Of one length only: another one would be another static cache and another compilation."""
    prompt = torch.tensor([ids[:PROMPT]], device="cuda")

    def generate():
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=2 * DECODE, do_sample=False,
                              cache_implementation="static")

    for _ in range(3):
        generate()  # compiled, captured
    seconds = median([timed(generate)[0] for _ in range(REPEATS)])
    return (seconds - prefill_seconds) / (2 * DECODE - 1)


# ------------------------------------------------------------------------------------------------------- kakeya


def command(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def kakeya_results(kakeya, directory, ids, bench_ids, work):
    common = ["--model", directory, "--backend", "cuda", "--drafter", "none", "--json"]
    ids_file, out = os.path.join(work, "ids.json"), os.path.join(work, "logits.safetensors")
    with open(ids_file, "w") as file:
        json.dump(ids, file)
    command([kakeya, "score", *common, "--ids-file", ids_file, "--prompt-length", str(PROMPT_ROWS), "--out", out])
    with safe_open(out, "pt") as file:
        logits = file.get_tensor("logits")
    ran = command([kakeya, "run", *common, "--ids-file", ids_file, "--max-tokens", str(GREEDY), "--ignore-eos", "--mode", "ar",
                   "--temperature", "0"])
    bench = command([kakeya, "bench", *common, "--context-frontiers", f"0,{PROMPT}", "--prompt-tokens", str(PROMPT),
                     "--decode-tokens", str(DECODE), "--verify-rows", "1", "--repeats", str(REPEATS)])
    rows = {(row["what"], row["context"]): row["seconds"]["median"] for row in bench["rows"]}
    return {"logits": logits, "greedy": ran["token_ids"], "backend": ran["stats"]["backend"],
            "prefill_seconds": rows["prefill", 0], "decode_seconds": rows["decode", PROMPT]}


# --------------------------------------------------------------------------------------------------- comparison


def accuracy(logits, reference):
    difference = (logits - reference).double()
    return {"rms": float(difference.pow(2).mean().sqrt()), "worst": float(difference.abs().max()),
            "rms_prompt": float(difference[:PROMPT_ROWS].pow(2).mean().sqrt()),
            "rms_decode": float(difference[PROMPT_ROWS:].pow(2).mean().sqrt()),
            "same_best": float((logits.argmax(-1) == reference.argmax(-1)).double().mean())}


def regret(model, ids, tokens):
    """By how much the float32 model prefers its own best token to the chosen one, on average."""
    logits = logits_of(model, ids + tokens)[len(ids) - 1:-1]
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
    return float((logits.max(-1).values - chosen).mean())


def same_start(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def compare(kakeya, directory, ids, bench_ids, options, work):
    say("kakeya")
    own = kakeya_results(kakeya, directory, ids, bench_ids, work)
    say("transformers, bf16")
    model = load(directory, torch.bfloat16, options.experts)
    theirs = {"logits": logits_of(model, ids).cpu(), "greedy": greedy_tokens(model, ids), **speeds(model, bench_ids),
              "experts": getattr(model.config, "_experts_implementation", None), "attention": model.config._attn_implementation}
    if options.compile:
        say("transformers, bf16, compiled")
        theirs["compiled_decode_seconds"] = compiled_decode_seconds(model, bench_ids, theirs["prefill_seconds"])
    del model
    free()
    say("transformers, float32")
    model = load(directory, torch.float32, "eager")
    reference = logits_of(model, ids)
    result = {"scale": float(reference.double().pow(2).mean().sqrt()), "greedy_equal": same_start(own["greedy"], theirs["greedy"])}
    for name, side in (("kakeya", own), ("transformers", theirs)):
        side.update(accuracy(side.pop("logits").to(reference.device), reference), regret=regret(model, ids, side["greedy"]))
        result[name] = side
    del model, reference
    free()
    return result


def print_result(title, result):
    own, theirs = result["kakeya"], result["transformers"]
    print(f"{title}: {torch.cuda.get_device_name()}, kakeya {own['backend']}, transformers {transformers.__version__} "
          f"(torch {torch.__version__}, experts {theirs['experts']}, attention {theirs['attention']})")
    print(f"{'':44}{'kakeya':>12}{'transformers bf16':>20}")
    rows = [("prompt of 512, tokens/s", PROMPT / own["prefill_seconds"], PROMPT / theirs["prefill_seconds"], ".0f"),
            ("decode behind 512, tokens/s", 1 / own["decode_seconds"], 1 / theirs["decode_seconds"], ".1f"),
            (f"rms from float32 (logits have {result['scale']:.3f})", own["rms"], theirs["rms"], ".5f"),
            ("  prompt rows", own["rms_prompt"], theirs["rms_prompt"], ".5f"),
            ("  decode rows", own["rms_decode"], theirs["rms_decode"], ".5f"),
            ("largest difference from float32", own["worst"], theirs["worst"], ".4f"),
            ("same best token as float32", own["same_best"], theirs["same_best"], ".4f"),
            ("greedy: mean distance below float32's best", own["regret"], theirs["regret"], ".5f")]
    if "compiled_decode_seconds" in theirs:
        rows.insert(2, ("  transformers compiled", 1 / own["decode_seconds"], 1 / theirs["compiled_decode_seconds"], ".1f"))
    for name, a, b, form in rows:
        print(f"{name:44}{a:>12{form}}{b:>20{form}}")
    print(f"greedy: {result['greedy_equal']} of {GREEDY} tokens equal before the first difference")


def failures(result):
    own, theirs = result["kakeya"], result["transformers"]
    found = []
    for key in ("rms", "rms_prompt", "rms_decode"):
        if not own[key] <= ERROR_FACTOR * theirs[key]:
            found.append(f"{key}: kakeya {own[key]:.5f}, transformers {theirs[key]:.5f}")
    if not own["regret"] <= theirs["regret"] + REGRET_MARGIN:
        found.append(f"greedy: kakeya's tokens are {own['regret']:.5f} below the best, transformers' {theirs['regret']:.5f}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kakeya")
    parser.add_argument("case", choices=["demo", "26b-a4b"])
    parser.add_argument("argument", nargs="?", help="demo: the model's directory; 26b-a4b: layers")
    parser.add_argument("--keep", help="directory of the random checkpoint; one that is there is used again")
    parser.add_argument("--json")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--experts")
    parser.add_argument("--save", metavar="FILE", help="write ids and transformers' logits, and compare nothing")
    parser.add_argument("--save-dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as work:
        if options.case == "demo":
            directory = options.argument or os.path.join(os.path.dirname(__file__), "..", "models", "demo")
            text = os.path.join(os.path.dirname(__file__), "..", "examples", "code", "matrix.c")
            bench_ids = command([options.kakeya, "tokenize", "--model", directory, "--text-file", text, "--json"])["ids"]
            title = "the demo model"
        else:
            layers = int(options.argument or 6)
            directory = options.keep or os.path.join(work, "checkpoint")
            os.makedirs(directory, exist_ok=True)
            if not os.path.exists(os.path.join(directory, "model.safetensors.index.json")):
                say("writing the checkpoint")
                write_checkpoint(directory, layers)
            free()
            generator = torch.Generator().manual_seed(2)
            bench_ids = [2] + torch.randint(100, SHAPE["vocab_size"], (PROMPT - 1,), generator=generator).tolist()
            title = f"26B-A4B, {layers} layers, random weights"
        if options.save:
            save_logits(options.save, directory, bench_ids[:ROWS], options)
            return 0
        result = compare(options.kakeya, directory, bench_ids[:ROWS], bench_ids, options, work)
    print_result(title, result)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    found = failures(result)
    for line in found:
        print(f"FAILED {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
