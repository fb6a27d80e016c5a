#!/usr/bin/env python3
"""kakeya beside ik_llama.cpp on one GGUF file, in turns.

Makes a file in the shape of the 26B-A4B with fewer layers, random matrices in Q4_0 and a head in Q8_0, and runs both
programs on it, one after the other and --turns times: ik_llama.cpp's llama-bench with `-rtr 1` (rows repacked), and
`kakeya bench`. Prints tokens per second, medians of the turns, and the lowest and the highest. A pass of n rows is
llama-bench's prompt of n tokens, whose head computes one row, and kakeya's verification of n rows, whose head computes
all of them; 128 and 512 rows are prompts in both. Then how long reading the file takes, and kakeya's first token with all
weights repacked, both from the disk, and the latter also with the file in the page cache. A virtual machine may get its
memory from the host page by page, slower than a disk is read, so memory is touched and freed before each of these.

    python3 bench/ik_compare.py LLAMA_BENCH [--kakeya build/kakeya] [--layers 6] [--threads 2] [--turns 3] [--under COMMAND]
        [--body q4_k]

--body q4_k: matrices in Q4_K, in Q5_0 where rows are no multiple of 256, as in a K file.

--under COMMAND is put before both programs (`nice -n -10`, `taskset -c 0,1`).
"""
import argparse
import array
import json
import mmap
import os
import random
import shlex
import statistics
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import open_gguf

FEW, PROMPTS = (4, 8, 16), (128, 512)
Q5_0, Q4_K = 6, 12
# Values and bytes of a block, where its float16 scales lie (with their factors), and the variance of its codes.
BLOCKS = {open_gguf.Q4_0: (32, 18, {0: 1}, 21.25), open_gguf.Q8_0: (32, 34, {0: 1}, 5461.25), Q5_0: (32, 22, {0: 1}, 85.25),
          Q4_K: (256, 144, {0: 1, 2: 7.5}, 66700)}


def blocks(source, kind, n, deviation):
    """n random blocks whose values have this standard deviation. Codes are no mean of zero, so scales have random signs:
    else every product would be the sum of its inputs before all, and rows alike."""
    _, size, scales, variance = BLOCKS[kind]
    data = bytearray(source.randbytes(n * size))
    for at, factor in scales.items():
        scale = struct.pack("<e", factor * deviation / variance ** 0.5)
        data[at::size] = scale[:1] * n
        data[at + 1 :: size] = bytes(scale[1] | (sign & 128) for sign in source.randbytes(n))
    return data


def as_body(tensors, body, head):
    """The tensors with other formats in place of Q4_0, and in that of the head."""
    for name, shape, kind in tensors:
        if kind == open_gguf.Q8_0:
            kind = head
        elif kind == open_gguf.Q4_0 and body == "q4_k":
            kind = Q5_0 if shape[0] % 256 else Q4_K
        yield name, shape, kind


def write(path, layers, body, head=open_gguf.Q8_0):
    """The file of open_gguf.py with numbers of the statistics that kakeya's synthetic models have, so that rows spread
    over the experts. Matrices begin at random places of the same numbers: equal ones in all layers would make all rows
    alike."""
    open_gguf.LAYERS = layers
    plain = open_gguf.tensors
    open_gguf.tensors = lambda: as_body(plain(), body, head)
    open_gguf.SIZES.update({kind: BLOCKS[kind][:2] for kind in BLOCKS})
    open_gguf.write(path)
    source = random.Random(1)
    hidden = open_gguf.HIDDEN
    pieces = {kind: blocks(source, kind, 99991, deviation)
              for kind, deviation in ((open_gguf.Q4_0, 0.02), (Q5_0, 0.02), (Q4_K, 0.02),
                                      (open_gguf.Q8_0, 0.25 / hidden ** 0.5))}
    sizes, at = [], 0
    for name, shape, kind in open_gguf.tensors():
        count = 1
        for n in shape:
            count *= n
        values, block = open_gguf.SIZES[kind]
        size = count // values * block
        sizes.append((name, shape, kind, block, count, size, at))
        at += (size + 31) // 32 * 32
    start = os.path.getsize(path) - at
    with open(path, "r+b") as file:
        for name, shape, kind, block, count, size, offset in sizes:
            file.seek(start + offset)
            if name == "rope_freqs.weight":
                continue
            if kind == open_gguf.PLAIN:
                if name.endswith("ffn_gate_inp.weight"):
                    values = [source.gauss(0, 0.02) for _ in range(count)]
                else:
                    one = (shape[0] ** -0.5 if "attn_q_norm" in name else
                           hidden ** 0.5 if "ffn_gate_inp.scale" in name else 1.0)
                    values = [one] * count
                file.write(array.array("f", values).tobytes())
                continue
            at = source.randrange(len(pieces[kind]) // block) * block
            piece = pieces[kind][at:] + pieces[kind][:at]
            while size > 0:
                file.write(piece[:size])
                size -= len(piece)


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout)


def ik(o, path, found):
    """Medians of llama-bench's repetitions, by rows; 1 is decoding."""
    rows = ",".join(map(str, FEW + PROMPTS))
    for result in run(o.under + [o.llama_bench, "-m", path, "-t", str(o.threads), "-rtr", "1", "-p", rows, "-n", "32",
                                 "-r", str(o.repeats), "-o", "json"]):
        n = result["n_prompt"] or 1
        found.setdefault(n, []).append(statistics.median(result["samples_ts"]))


def kakeya(o, path, found):
    """The same of kakeya bench, and the share of the bound that its own probes give."""
    command = o.under + [o.kakeya, "bench", "--model", path, "--threads", str(o.threads), "--context-frontiers", "0",
                         "--context", "2048", "--repeats", str(o.repeats), "--json"]
    shares = []
    for prompt, verify in ((PROMPTS[0], (1,)), (PROMPTS[1], (1,) + FEW)):
        for row in run(command + ["--prompt-tokens", str(prompt), "--verify-rows", ",".join(map(str, verify))])["rows"]:
            if row["what"] == "verify" and row["rows"] == 1 or row["what"] == "decode" and prompt != PROMPTS[1]:
                continue
            found.setdefault(row["rows"], []).append(row["rows"] / row["seconds"]["median"])
            shares.append(f"{row['rows']}: {100 * row['share_of_bound']['median']:.0f} %")
    print("shares of the bound:", ", ".join(shares), flush=True)


def touch(size):
    """Memory that the next program gets is there."""
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, 4096):
            memory[at] = 1


def repacking(o, path):
    """From nothing to the first token against reading the file, both from the disk, in turns."""
    seconds = {"read": [], "run": [], "cached": []}
    memory = 0
    command = o.under + [o.kakeya, "run", "--model", path, "--threads", str(o.threads), "--context", "2048",
                         "--max-tokens", "1", "--raw", "abcd"]
    for _ in range(o.turns):
        for what in seconds:
            with open(path, "rb", buffering=0) as file:
                if what != "cached":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                touch(2 * os.path.getsize(path))
                begin = time.monotonic()
                buffer = bytearray(8 << 20)
                while what == "read" and file.readinto(buffer):
                    pass
            if what != "read":
                child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                _, status, usage = os.wait4(child.pid, 0)
                if status:
                    raise SystemExit(f"{' '.join(command)}: {status}")
                memory = max(memory, usage.ru_maxrss * 1024 / 1e6)
            seconds[what].append(time.monotonic() - begin)
    print(f"reading {os.path.getsize(path) / 1e9:.2f} GB: {spread(seconds['read'])} s; kakeya's first token, "
          f"all weights repacked: {spread(seconds['run'])} s, {spread(seconds['cached'])} s from the page cache, "
          f"{memory:,.0f} MB resident at most")


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("llama_bench")
    options.add_argument("--kakeya", default="build/kakeya")
    options.add_argument("--folder", default="/tmp")
    options.add_argument("--layers", type=int, default=6)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--body", choices=("q4_0", "q4_k"), default="q4_0")
    options.add_argument("--under", type=shlex.split, default=[])
    options.add_argument("--only-loading", action="store_true", help="nothing but reading and repacking")
    options.add_argument("--keep", action="store_true", help="leave the file, and use it if it is there")
    o = options.parse_args()
    path = os.path.join(o.folder, f"kakeya-ik-{o.layers}-{o.body}.gguf")
    theirs, ours = {}, {}
    try:
        if not os.path.exists(path):
            write(path, o.layers, o.body)
        for _ in range(0 if o.only_loading else o.turns):
            ik(o, path, theirs)
            kakeya(o, path, ours)
            print("so far:", theirs, ours, file=sys.stderr, flush=True)
        repacking(o, path)
    finally:
        if not o.keep and os.path.exists(path):
            os.remove(path)
    print("| rows | ik_llama.cpp -rtr 1, tokens/s | kakeya, tokens/s | kakeya / ik |\n|---|---|---|---|")
    for n in sorted(theirs):
        factor = statistics.median(ours[n]) / statistics.median(theirs[n])
        print(f"| {n} | {spread(theirs[n])} | {spread(ours[n])} | {factor:.2f} |")


if __name__ == "__main__":
    main()
