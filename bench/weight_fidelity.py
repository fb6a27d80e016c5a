#!/usr/bin/env python3
"""Fidelity of quantised weights: the demo in every form that `kakeya convert` makes, against its bf16 weights.

The reference multiplies the weights of the checkpoint in float32. Every other line is compared with its logits, row by
row: KL is the mean divergence of the line's distribution from the reference's, top-1 the share of rows that hold the
same token likeliest. `int8` lines are what a file is run with; `f32` lines multiply the same weights without rounding
the activations, and `int8 | f32` is the divergence of the two from each other.

    python3 bench/weight_fidelity.py build/kakeya examples/code/*
    python3 bench/weight_fidelity.py build/kakeya sequences.json    (as `kakeya eval fidelity --ids-json` takes it)
"""
import argparse
import json
import math
import pathlib
import subprocess
import tempfile

FORMS = ["q8_0", "q6_k", "q5_k", "q4_k_m", "q4_k", "q4_0", "affine8", "affine4"]


def kakeya(arguments, *more):
    done = subprocess.run([arguments.kakeya, *more], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"kakeya {' '.join(more)}: {done.stderr.strip()}")
    return done.stdout


def sequences(arguments, folder):
    """Files of token ids, and how long the prompt of each is."""
    files = []
    for name in arguments.inputs:
        if name.endswith(".json"):
            data = json.loads(pathlib.Path(name).read_text())
            lists = [s["input_ids"] if isinstance(s, dict) else s for s in data["sequences"]]
            prompt = data.get("prompt_length", 0)
        else:
            ids = json.loads(kakeya(arguments, "tokenize", "--model", arguments.model, "--text-file", name, "--json"))
            ids, prompt = (ids["ids"] if isinstance(ids, dict) else ids), 0
            lists = [ids[at : at + arguments.tokens] for at in range(0, len(ids) - 1, arguments.tokens)]
        for ids in lists:
            path = folder / f"ids-{len(files)}.json"
            path.write_text(json.dumps(ids))
            files.append((path, prompt))
    return files


def score(arguments, model, files, precision, *more):
    """Sums over all files, and the logits of each where `more` names them."""
    total = {"tokens": 0, "nll": 0.0, "kl": 0.0, "top1": 0.0}
    for index, (path, prompt) in enumerate(files):
        options = [option.format(index) for option in more]
        line = ["score", "--model", str(model), "--drafter", "none", "--f-theta", "none", "--ids-file", str(path)]
        line += ["--prompt-length", str(prompt), "--precision", precision, "--kv-format", "f32", "--json"]
        found = json.loads(kakeya(arguments, *line, *options))
        total["tokens"] += found["tokens"]
        total["nll"] += found["nll"]
        for name in ("kl", "top1"):
            total[name] += found.get(name, 0) * found["tokens"]
    return {name: value / total["tokens"] for name, value in total.items() if name != "tokens"} | {
        "tokens": total["tokens"]
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kakeya")
    parser.add_argument("inputs", nargs="+", metavar="FILE")
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--tokens", type=int, default=512, help="of a sequence cut from a text (512)")
    parser.add_argument("--forms", default=",".join(FORMS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = sequences(arguments, folder)
        exact = str(folder / "exact-{}.safetensors")
        reference = score(arguments, arguments.model, files, "f32", "--out", exact)
        own = score(arguments, arguments.model, files, "bf16", "--against", exact)
        print(f"{reference['tokens']} tokens of {len(files)} sequences, perplexity {math.exp(reference['nll']):.4f}")
        print("| weights | bits per weight | KL, f32 | KL, int8 | int8 from f32 | top-1, int8 | perplexity, int8 |")
        print("|---|---|---|---|---|---|---|")
        print(f"| bf16, activations too | 16 | {own['kl']:.5f} | | | {100 * own['top1']:.2f} % | "
              f"{math.exp(own['nll']):.4f} |")
        original = sum(path.stat().st_size for path in pathlib.Path(arguments.model).glob("*.safetensors"))
        for form in arguments.forms.split(","):
            model = folder / (form if form.startswith("affine") else form + ".gguf")
            kakeya(arguments, "convert", arguments.model, str(model), "--to", form)
            stored = model.stat().st_size if model.is_file() else sum(
                path.stat().st_size for path in model.glob("*.safetensors"))
            plain = str(folder / "plain-{}.safetensors")
            f32 = score(arguments, model, files, "f32", "--against", exact, "--out", plain)
            bits = 16 * stored / original
            int8 = score(arguments, model, files, "int8", "--against", exact)
            between = score(arguments, model, files, "int8", "--against", plain)
            print(f"| {form} | {bits:.2f} | {f32['kl']:.5f} | {int8['kl']:.5f} | {between['kl']:.5f} | "
                  f"{100 * int8['top1']:.2f} % | {math.exp(int8['nll']):.4f} |", flush=True)


if __name__ == "__main__":
    main()
