#!/usr/bin/env python3
"""kakeya beside llama.cpp on one GGUF file, in turns.

    bench/llama_compare.py FILE.gguf [--kakeya build/kakeya] [--llama FOLDER] [--threads 2] [--turns 5]
        [--only speed,text,likelihood] [--vectors tests/data/real/vectors.json.gz] [--under COMMAND]

FOLDER is what tools/llama_cpp.sh makes (default: it is asked). Every measurement is a process of its own, and the two
programs take turns, so that whatever else the machine does meets both; the ratio is the median of the turns' ratios.

speed: from nothing to the first token (of llama.cpp: from the loading of its library on, without Python's start; of
kakeya: the whole process), prompts of 512 and 4,096 tokens, decoding 64 tokens after each, and the largest
resident memory of a process after both (of llama.cpp with Python's, 15 MB). llama.cpp has its defaults but for the
number of threads and a K/V cache of sliding layers that holds the window alone, as kakeya's does.
text: greedy continuations; where they part, by how much llama.cpp prefers its own token.
likelihood: mean KL divergence of kakeya from llama.cpp over 2,304 tokens, three texts or their beginnings and two pieces
from the middle, at its own precision and at f32.

--under COMMAND is put before both programs (`nice -n -10`), where others use the machine: threads that wait for each
other lose more by that than a ratio can say.
"""
import argparse
import array
import ctypes
import gzip
import json
import os
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import types
import typing

TEXT, PROMPTS, DECODED = 500, (512, 4096), 64
FIRST = [2, 818, 5279, 529, 7001, 563]  # "<bos>The capital of France is"


# ------------------------------------------------------------------------------------------------------- llama.cpp

class Llama:
    """A model and one context, by the functions of llama.h."""

    def __init__(self, folder, path, threads, context):
        package = types.ModuleType("llama_cpp")  # without its own, which wants NumPy
        package.__path__ = [os.path.join(folder, "llama_cpp")]
        sys.modules["llama_cpp"] = package
        extensions = types.ModuleType("typing_extensions")
        extensions.TypeAlias = typing.TypeAlias
        sys.modules.setdefault("typing_extensions", extensions)
        os.environ["LLAMA_CPP_LIB_PATH"] = os.path.join(folder, "cmake", "bin")
        import llama_cpp.llama_cpp as api  # pylint: disable=import-outside-toplevel
        self.api = api
        self.silence = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self.silence, None)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        options = api.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = context, threads, threads
        options.swa_full = False
        self.context = api.llama_init_from_model(self.model, options)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.sampler = api.llama_sampler_init_greedy()
        self.at = 0

    def forget(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        self.at = 0

    def forward(self, ids, every=False):
        """Logits of the last token, or of every one."""
        for begin in range(0, len(ids), 512):
            piece = ids[begin:begin + 512]
            batch = self.api.llama_batch_init(len(piece), 0, 1)
            batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                batch.token[i], batch.pos[i] = token, self.at + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = every or begin + i + 1 == len(ids)
            if self.api.llama_decode(self.context, batch):
                raise SystemExit("llama_decode fails")
            self.api.llama_synchronize(self.context)
            self.api.llama_batch_free(batch)
            self.at += len(piece)

    def choose(self):
        return self.api.llama_sampler_sample(self.sampler, self.context, -1)

    def logits(self, row=-1):
        found = self.api.llama_get_logits_ith(self.context, row)
        return (ctypes.c_float * self.vocabulary).from_address(ctypes.addressof(found.contents))


def llama_first(o):
    begin = time.monotonic()
    llama = Llama(o.llama, o.file, o.threads, 2048)
    llama.forward(FIRST)
    llama.choose()
    return {"seconds": time.monotonic() - begin}


def llama_speed(o, ids):
    llama = Llama(o.llama, o.file, o.threads, len(ids) + DECODED + 16)
    begin = time.monotonic()
    llama.forward(ids)
    token = llama.choose()
    found = {"prompt": len(ids) / (time.monotonic() - begin)}
    begin = time.monotonic()
    for _ in range(DECODED):
        llama.forward([token])
        token = llama.choose()
    return found | {"decode": DECODED / (time.monotonic() - begin)}


def llama_text(o, prompts, n):
    """Continuations of n tokens."""
    llama = Llama(o.llama, o.file, o.threads, 1024)
    found = []
    for ids in prompts:
        llama.forget()
        llama.forward(ids)
        chosen = [llama.choose()]
        while len(chosen) < n:
            llama.forward(chosen[-1:])
            chosen.append(llama.choose())
        found.append(chosen)
    return found


def llama_preference(o, ids, own, other):
    """By how much one token's logit is larger than another's after these ids."""
    llama = Llama(o.llama, o.file, o.threads, 1024)
    llama.forward(ids)
    logits = llama.logits()
    return logits[own] - logits[other]


def llama_likelihood(o, ids, path):
    """Logits of all rows, as `kakeya score --against` reads them."""
    llama = Llama(o.llama, o.file, o.threads, 512)
    llama.forward(ids, every=True)
    rows = len(ids)
    size = 4 * rows * llama.vocabulary
    numbers = array.array("q", ids).tobytes()
    header = json.dumps({"logits": {"dtype": "F32", "shape": [rows, llama.vocabulary], "data_offsets": [0, size]},
                         "ids": {"dtype": "I64", "shape": [rows], "data_offsets": [size, size + len(numbers)]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for row in range(rows):
            file.write(llama.logits(row))
        file.write(numbers)
    return {}


CALLS = {call.__name__: call for call in (llama_first, llama_speed, llama_text, llama_preference, llama_likelihood)}


# ---------------------------------------------------------------------------------------------------- measuring

def process(command, given=None):
    """What a process prints, its seconds and its largest resident memory in MB."""
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as out:
        text.write(given or b"")
        text.seek(0)
        begin = time.monotonic()
        child = subprocess.Popen(command, stdin=text, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = status
        seconds = time.monotonic() - begin
        if status:
            raise SystemExit(f"{' '.join(command)}: status {status}")
        out.seek(0)
        return json.loads(out.read()), seconds, usage.ru_maxrss * 1024 / 1e6


def ask_llama(o, call, *arguments):
    command = o.under + [sys.executable, os.path.abspath(__file__), o.file, "--llama", o.llama, "--threads", str(o.threads), "--call", call]
    return process(command, json.dumps(arguments).encode())


def ask_kakeya(o, verb, ids, *more):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids, file)
        file.flush()
        return process(o.under + [o.kakeya, verb, "--model", o.file, "--threads", str(o.threads), "--ids-file", file.name, "--json", *more])


def continued(o, ids, n, context):
    return ask_kakeya(o, "run", ids, "--max-tokens", str(n), "--ignore-eos", "--mode", "ar", "--context", str(context))


def speed(o, ids):
    """By what is measured, pairs of kakeya's and llama.cpp's figure."""
    pairs = {}
    for turn in range(o.turns):
        found = {}
        for ours in (True, False) if turn % 2 == 0 else (False, True):
            if ours:
                _, seconds, _ = continued(o, FIRST, 1, 2048)
            else:
                seconds = ask_llama(o, "llama_first")[0]["seconds"]
            found.setdefault("first token, ms", {})[ours] = 1000 * seconds
        for n in PROMPTS:
            memory = f"resident after {n:,} tokens, MB"
            for ours in (True, False) if turn % 2 == 0 else (False, True):
                if ours:
                    result, _, resident = continued(o, ids[:n], DECODED + 1, n + DECODED + 16)
                    stats = result["stats"]
                    result = {"prompt": stats["prefill_tokens_per_second"], "decode": stats["decode_tokens_per_second"]}
                else:
                    result, _, resident = ask_llama(o, "llama_speed", ids[:n])
                found.setdefault(f"prompt of {n:,}, tokens/s", {})[ours] = result["prompt"]
                found.setdefault(f"decoding after {n:,}, tokens/s", {})[ours] = result["decode"]
                found.setdefault(memory, {})[ours] = resident
        for what, both in found.items():
            pairs.setdefault(what, []).append((both[True], both[False]))
        print(f"turn {turn + 1} of {o.turns}: " +
              "; ".join(f"{what} {values[-1][0]:.0f} / {values[-1][1]:.0f}" for what, values in pairs.items()),
              file=sys.stderr, flush=True)
    print("| | kakeya | llama.cpp | kakeya / llama.cpp (lowest to highest) |\n|---|---|---|---|")
    for what, values in pairs.items():
        ours, theirs, ratio = (statistics.median(v) for v in
                               ([a for a, _ in values], [b for _, b in values], [a / b for a, b in values]))
        print(f"| {what} | {ours:,.0f} | {theirs:,.0f} | {ratio:.2f} ({min(a / b for a, b in values):.2f} to "
              f"{max(a / b for a, b in values):.2f}) |", flush=True)


def text(o, prompts):
    n = 48
    theirs = ask_llama(o, "llama_text", prompts, n)[0]
    same, parted = 0, []
    for ids, expected in zip(prompts, theirs):
        ours = continued(o, ids, n, 1024)[0]["token_ids"]
        at = next((i for i in range(n) if ours[i] != expected[i]), n)
        same += at == n
        if at < n:
            parted.append((at, ask_llama(o, "llama_preference", ids + expected[:at], expected[at], ours[at])[0]))
    print(f"greedy: {same} of {len(prompts)} continuations of {n} tokens are equal" +
          "".join(f"; one parts at token {at}, whose logit llama.cpp has {margin:.3f} above the other's" for at, margin in parted))


def likelihood(o, texts):
    sums = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "logits.safetensors")
        for ids in texts:
            ask_llama(o, "llama_likelihood", ids, path)
            for precision in ("auto", "f32"):
                found = ask_kakeya(o, "score", ids, "--against", path, "--precision", precision)[0]
                sums.setdefault(precision, []).append((len(ids), found["kl"], found["top1"]))
    for precision, rows in sums.items():
        n = sum(row[0] for row in rows)
        print(f"{n} tokens, kakeya at precision {precision}: KL {sum(c * kl for c, kl, _ in rows) / n:.5f} from llama.cpp, the same token "
              f"likeliest in {100 * sum(c * top for c, _, top in rows) / n:.2f} % of the rows")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file")
    options.add_argument("--kakeya", default="build/kakeya")
    options.add_argument("--llama")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--under", type=shlex.split, default=[])
    options.add_argument("--only", default="speed,text,likelihood")
    options.add_argument("--vectors", default="tests/data/real/vectors.json.gz")
    options.add_argument("--call", help=argparse.SUPPRESS)
    o = options.parse_args()
    if o.call:
        print(json.dumps(CALLS[o.call](o, *json.load(sys.stdin))))
        return
    if not o.llama:
        o.llama = subprocess.run(["tools/llama_cpp.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
    with gzip.open(o.vectors) as file:
        vectors = json.load(file)
    texts = [item["ids"] for item in vectors["scores"]]
    long = max(texts, key=len)
    if "speed" in o.only:
        speed(o, (long * (1 + max(PROMPTS) // len(long)))[:max(PROMPTS)])
    if "text" in o.only:
        text(o, [item["prompt_ids"] for item in vectors["greedy"]])
    if "likelihood" in o.only:
        pieces = [ids[at:at + TEXT] for ids in texts for at in range(0, len(ids) - 300, TEXT)]
        likelihood(o, pieces[:5])


if __name__ == "__main__":
    main()
