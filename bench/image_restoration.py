#!/usr/bin/env python3
"""What f_theta does to rows of pictures: the tiny models that read pictures get one from texts alone, then score continuations whose
evicted positions are a picture's rows, or text's. usage: image_restoration.py [KAKEYA] [MODEL...]

A sequence is 30 tokens of text, a picture of up to 70 tokens (or as many tokens of text), and 24 tokens that are scored as an answer. With
a sliding window of 40 and --window 12 each of them attends to positions of the middle that are no longer exact. The table has the KL
divergence from native attention over these rows, in nats: with evicted positions dropped (sink-window), and restored."""

import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
from array import array

PICTURES = ("photo.jpg", "gradient.png", "text.png", "exact.png", "noise-small.png", "orientation.png")
BEFORE, ANSWER, SEQUENCES = 30, 24, 30
COMMON = ("--backend", "cpu", "--precision", "f32", "--threads", "2", "--sink", "2", "--window", "12")
TEXTS = ("README.md", "docs/reference/server.md", "docs/laboratory/cuda.md", "docs/reference/cuda.md", "docs/reference/sessions.md")


def kakeya(*words):
    made = subprocess.run([program, *words], capture_output=True, text=True)
    if made.returncode:
        sys.exit(made.stderr)
    return made.stdout


def rows(model, ids, prompt, *more):
    """Logits of the answer's rows."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/ids", "w") as file:
            json.dump(ids, file)
        kakeya("score", *COMMON, "--model", model, "--ids-file", f"{folder}/ids", "--prompt-length", str(prompt), "--out", f"{folder}/out",
               "--json", *more)
        with open(f"{folder}/out", "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))["logits"]
            values = array("f", file.read())
    n, width = header["shape"]
    return [values[i * width:(i + 1) * width] for i in range(prompt, n - 1)]


def log_softmax(row):
    most = max(row)
    total = math.log(sum(math.exp(x - most) for x in row)) + most
    return [x - total for x in row]


def divergence(wanted, got):
    wanted, got = log_softmax(wanted), log_softmax(got)
    return sum(math.exp(a) * (a - b) for a, b in zip(wanted, got))


def measure(model):
    with open(f"{model}/config.json") as file:
        config = json.load(file)
    begin, token, end = (config[key] for key in ("boi_token_id", "image_token_id", "eoi_token_id"))
    text = json.loads(kakeya("tokenize", "--model", model, "--text-file", "docs/guide/images.md", "--json"))["ids"]
    draw = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        kakeya("train", *COMMON, "f-theta", "--model", model, "--data", *TEXTS, "--tokens", "40000", "--sequence", "256", "--even-if-worse",
               "--out", folder)
        restored = ("--attention", "restored", "--f-theta", folder)
        sums = {}
        for i in range(SEQUENCES):
            at = draw.randrange(1, len(text) - 300)
            name = f"tests/data/images/{PICTURES[i % len(PICTURES)]}"
            told = json.loads(kakeya("info", "--image", name, "--json"))["budgets"][0]["tokens"]
            middle = {"text": text[at + 200:at + 202 + told], "picture": [begin] + [token] * told + [end]}
            for kind, ids in middle.items():
                whole = text[:1] + text[at:at + BEFORE] + ids + text[at + BEFORE:at + BEFORE + ANSWER]
                prompt = 1 + BEFORE + len(ids)
                more = ("--image", f"{name},budget=70") if kind == "picture" else ()
                native = rows(model, whole, prompt, *more)
                for policy, words in (("dropped", ("--attention", "sink-window")), ("restored", restored)):
                    found = [divergence(a, b) for a, b in zip(native, rows(model, whole, prompt, *words, *more))]
                    sums.setdefault((kind, policy), []).append(sum(found) / len(found))
    return {key: sum(values) / len(values) for key, values in sums.items()}


program = sys.argv[1] if len(sys.argv) > 1 else "build/kakeya"
models = sys.argv[2:] or [f"tests/data/vision/{name}" for name in ("tiny-tower", "tiny-e", "tiny-unified")]
print("| model | text dropped | text restored | picture dropped | picture restored |\n|---|---|---|---|---|")
for path in models:
    found = measure(path)
    cells = [f"{found[kind, policy]:.3f}" for kind in ("text", "picture") for policy in ("dropped", "restored")]
    print(f"| {os.path.basename(path)} | {' | '.join(cells)} |", flush=True)
