"""A drafter of the demo model from nothing, DFlash or (--kind mtp) an MTP assistant: prompts out of code files, runs of
`kakeya train drafter`, and what the drafters are worth on the public prompts (docs/laboratory/benchmarks.md, "Training of drafters").

usage: python3 bench/drafter_from_nothing.py --work DIR [--backend cuda] [--pieces 59637] [--prompts 30000] [--steps 11809] [--keep 62G]
                                             [--other-prompts 26000] [--other-steps 11063] [--last-prompts 1000] [--last-steps 700]
                                             [--batch 16] [--kind dflash] [--drafter DIR]... FOLDER...
environment: KAKEYA (build/kakeya)

Pieces of 900 to 1,450 characters begin at random lines of the Python, C and C++ files below the FOLDERs, each piece becomes a file in
DIR/pieces. Files with the name of a public prompt's source are left out, and files that have some of its text. Pieces that are there are
taken as they are, so the figures of a run can be had again from its pieces; with --pieces 0 they are a condition.

The first run begins with random weights and sees many short answers; the second goes on from it with answers to other pieces; the third
goes on from there with longer texts, of which three of ten are needles. DIR/first, DIR/second and DIR/third get the drafters; one that is
there is not trained again. The public prompts are those of
tests/data/golden/demo_golden.json.gz with spec_accept_lengths: 64 tokens are answered to each piece of code, 24 at most to each needle.
--drafter measures another drafter, too; with --steps 0 nothing is trained.

An assistant of less than 1 MB has two runs: chains of five drafts, three of four in prompts, then chains of seven with more needles, in
longer texts. --other-prompts and --other-steps are not its.

A small case:
--backend cpu --pieces 40 --prompts 8 --steps 1 --other-prompts 8 --other-steps 1 --last-prompts 4 --last-steps 1 --batch 2 --keep 1G
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
KAKEYA = os.environ.get("KAKEYA", "build/kakeya")
MODEL = os.path.join(ROOT, "models/demo")
MARK = 60  # characters of a public prompt that no file may have


def public_prompts():
    with gzip.open(os.path.join(ROOT, "tests/data/golden/demo_golden.json.gz")) as file:
        rows = json.load(file)["rows"]
    return rows, [row for row in rows if "spec_accept_lengths" in row]


def code_files(folders, names):
    python, c = [], []
    for top in folders:
        for folder, _, files in os.walk(top):
            for name in sorted(files):
                path = os.path.join(folder, name)
                if name in names or os.path.islink(path):
                    continue
                if name.endswith(".py"):
                    python.append(path)
                elif name.endswith((".c", ".h", ".cpp", ".hpp", ".cuh")):
                    c.append(path)
    random.shuffle(python)
    random.shuffle(c)
    return python + c[: max(300, len(python) // 8)]


def texts_of(paths, marks):
    for path in paths:
        try:
            if not 1500 < os.path.getsize(path) < 400000:
                continue
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            continue
        if not any(mark in text for mark in marks):
            yield text


def make_pieces(folder, wanted, tops):
    rows, public = public_prompts()
    names = {os.path.basename(row["source"]) for row in rows if row["kind"] == "code"}
    code = [row["prompt"] for row in public if row["kind"] == "code"]
    marks = {text[at : at + MARK] for text in code for at in range(200, len(text) - MARK, 100)}
    random.seed(5)
    texts, size = [], 0
    for text in texts_of(code_files(tops, names), marks):
        texts.append(text)
        size += len(text)
    places = []
    for text in texts:
        lines = [0] + [i + 1 for i, character in enumerate(text) if character == "\n"]
        lines = [line for line in lines if line + 900 < len(text)]
        share = int(1.15 * wanted * len(text) / size + random.random())
        share = max(1, min(share, len(text) // 700, len(lines)))
        places += [(text, line) for line in random.sample(lines, min(share, len(lines)))]
    random.shuffle(places)
    os.makedirs(folder)
    seen = set()
    for text, line in places:
        piece = text[line : line + random.randint(900, 1450)]
        if len(seen) == wanted or piece in seen or len(set(piece)) < 20:
            continue
        with open(os.path.join(folder, "%06d" % len(seen)), "w", encoding="utf-8") as file:
            file.write(piece)
        seen.add(piece)
    print("%d pieces of %d files" % (len(seen), len(texts)), flush=True)


def train(out, pieces, options):
    if os.path.exists(os.path.join(out, "config.json")):
        return
    begun = time.time()
    command = [KAKEYA, "train", "drafter", "--model", MODEL, "--backend", wanted.backend, "--batch", str(wanted.batch),
               "--answer", "128" if wanted.kind == "dflash" else "64", "--blocks", "32" if wanted.kind == "dflash" else "96",
               "--out", out] + options
    print(" ".join(command), "PIECE...", flush=True)
    subprocess.run(command + pieces, check=True)
    print("%.0f s" % (time.time() - begun), flush=True)


def measure(drafter):
    sums = {}
    with tempfile.TemporaryDirectory() as scratch:
        ids = os.path.join(scratch, "ids.json")
        for row in public_prompts()[1]:
            with open(ids, "w", encoding="utf-8") as file:
                json.dump(row["input_ids"], file)
            most = ["--max-tokens", "64", "--ignore-eos"] if row["kind"] == "code" else ["--max-tokens", "24"]
            command = [KAKEYA, "run", "--model", MODEL, "--backend", wanted.backend, "--drafter", drafter, "--ids-file", ids,
                       "--mode", "speculative", "--json"] + most
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            stats = json.loads(answer.stdout)["stats"]
            of = sums.setdefault(row["kind"], [0, 0])
            of[0] += stats["verifier_forwards"]
            of[1] += round(stats["verifier_forwards"] * stats["tokens_per_forward"])
    for kind, (forwards, tokens) in sums.items():
        print("%-24s public %s: %d forwards, %.2f tokens per forward" % (drafter, kind, forwards, tokens / forwards), flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--work", required=True)
parser.add_argument("--backend", default="cuda")
parser.add_argument("--pieces", type=int, default=59637)
parser.add_argument("--prompts", type=int, default=30000)
parser.add_argument("--steps", type=int, default=11809)
parser.add_argument("--keep", default="62G")
parser.add_argument("--other-prompts", type=int, default=26000)
parser.add_argument("--other-steps", type=int, default=11063)
parser.add_argument("--last-prompts", type=int, default=1000)
parser.add_argument("--last-steps", type=int, default=700)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--kind", choices=["dflash", "mtp"], default="dflash")
parser.add_argument("--drafter", action="append", default=[])
parser.add_argument("folders", nargs="*")
wanted = parser.parse_args()
place = os.path.join(wanted.work, "pieces")
if not os.path.isdir(place):
    if not wanted.folders:
        sys.exit("%s: no pieces are there, and no FOLDER to make them from" % place)
    make_pieces(place, wanted.pieces, wanted.folders)
# relative to here: a command has room for about 2 MB of names
every = [os.path.relpath(os.path.join(place, name)) for name in sorted(os.listdir(place))]
made = []
if wanted.steps and wanted.kind == "mtp":
    first, last = (os.path.join(wanted.work, name) for name in ("assistant-first", "assistant"))
    train(first, every[: wanted.prompts + wanted.prompts // 50 + 40],
          ["--kind", "mtp", "--layers", "3", "--hidden", "40", "--mlp", "128", "--block", "6", "--sequence", "560",
           "--held-out", str(min(32, wanted.prompts // 8 + 1)), "--prompts", str(wanted.prompts), "--needles", "0.1",
           "--keep", wanted.keep, "--prompt-blocks", "72", "--steps", str(wanted.steps), "--warm-up", str(min(40, wanted.steps // 4)),
           "--rate", "0.004"])
    train(last, every[-(wanted.last_prompts + 40):],
          ["--init-from", first, "--block", "8", "--sequence", "1200",
           "--held-out", str(min(16, wanted.last_prompts // 8 + 1)), "--prompts", str(wanted.last_prompts), "--needles", "0.3",
           "--keep", wanted.keep, "--prompt-blocks", "32", "--steps", str(wanted.last_steps),
           "--warm-up", str(min(20, wanted.last_steps // 4)), "--rate", "0.0015"])
    made = [first, last]
elif wanted.steps:
    first, second, third = (os.path.join(wanted.work, name) for name in ("first", "second", "third"))

    def many(prompts, steps, warm_up):
        return ["--sequence", "640", "--held-out", str(min(32, prompts // 8 + 1)), "--prompts", str(prompts), "--keep", wanted.keep,
                "--prompt-blocks", "12", "--steps", str(steps), "--warm-up", str(min(warm_up, steps // 4))]

    def more(prompts):  # some are held out
        return prompts + prompts // 50 + 40

    train(first, every[: more(wanted.prompts)],
          ["--drafter", "none", "--layers", "3", "--block", "8", "--taps", "3", "--needles", "0.1", "--rate", "0.002"]
          + many(wanted.prompts, wanted.steps, 200))
    train(second, every[-more(wanted.other_prompts):],
          ["--init-from", first, "--needles", "0.15", "--rate", "0.0014", "--seed", "11"]
          + many(wanted.other_prompts, wanted.other_steps, 100))
    train(third, every[: wanted.last_prompts + 40],
          ["--init-from", second, "--sequence", "1700",
           "--held-out", str(min(16, wanted.last_prompts // 8 + 1)), "--prompts", str(wanted.last_prompts),
           "--needles", "0.3", "--keep", "20G" if wanted.keep == "62G" else wanted.keep,
           "--steps", str(wanted.last_steps), "--warm-up", str(min(20, wanted.last_steps // 4)), "--rate", "0.0003"])
    made = [first, second, third]
for each in made + wanted.drafter + [os.path.join(ROOT, "models/demo-dflash")]:
    measure(each)
