#!/usr/bin/env python3
"""How long a large GGUF file takes to open, and how much memory that needs.

Makes a file in the exact shape of the 26B-A4B, matrices in Q4_0 and a head in Q8_0 (14.4 GB), with a vocabulary of its size:
262,144 tokens and 514,906 merges. The weights are a hole in the file, so it takes no room on the disk, and all of them are zero:
opening reads none of them. Then runs `kakeya tokenize` (opens the vocabulary), `kakeya info` (all tensors), and, where tiles
were made, `kakeya run` up to its first token, and prints medians of the times and the largest resident memory.

    python3 bench/open_gguf.py [--kakeya build/kakeya] [--folder /tmp] [--tiles]

--tiles makes FILE.gguf.tiles as well, whose 14.4 GB are written out, and needs that much disk.
"""
import argparse
import itertools
import multiprocessing
import os
import resource
import statistics
import struct
import subprocess
import time

HIDDEN, LAYERS, HEADS, EXPERTS, VOCAB, MERGES = 2816, 30, 16, 128, 262144, 514906
INTERMEDIATE, EXPERT_INTERMEDIATE = 2112, 704
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
Q4_0, Q8_0, PLAIN = 2, 8, 0
SIZES = {PLAIN: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34)}  # values and bytes of a block
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
           "<tool_response|>", "<|\"|>", "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>", "\u2581", "\n"]
LETTERS = "abcdefghijklmnopqrstuv"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    head = text(name) + struct.pack("<I", kind)
    return head + (text(value) if kind == STRING else struct.pack({U32: "<I", F32: "<f", BOOL: "<?"}[kind], value))


def array(name, kind, values):
    letter = {I32: "i", F32: "f", BOOL: "?"}.get(kind)
    packed = struct.pack(f"<{len(values)}{letter}", *values) if letter else b"".join(map(text, values))
    return text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + packed


def vocabulary():
    """Tokens of one to four letters; a longer one is merged from any two parts of it."""
    words = ["".join(w) for n in range(1, 5) for w in itertools.product(LETTERS, repeat=n)]
    tokens = SPECIAL + [f"<0x{i:02X}>" for i in range(256)] + words
    tokens += [f"<unused{i}>" for i in range(VOCAB - len(tokens))]
    merges = [f"{w[:cut]} {w[cut:]}" for cut in (1, 2, 3) for w in words if len(w) > cut]
    merges.sort(key=len)
    kinds = [3] * len(SPECIAL) + [6] * 256 + [1] * len(words)
    return tokens, merges[:MERGES], kinds + [5] * (VOCAB - len(kinds))


def tensors():
    yield "rope_freqs.weight", (256,), PLAIN
    yield "token_embd.weight", (HIDDEN, VOCAB), Q8_0
    for i in range(LAYERS):
        full = i % 6 == 5
        dim, kv = (512, 2) if full else (256, 8)
        name = f"blk.{i}."
        yield name + "attn_q.weight", (HIDDEN, HEADS * dim), Q4_0
        yield name + "attn_q_norm.weight", (dim,), PLAIN
        yield name + "attn_k.weight", (HIDDEN, kv * dim), Q4_0
        if not full:
            yield name + "attn_v.weight", (HIDDEN, kv * dim), Q4_0
        yield name + "attn_k_norm.weight", (dim,), PLAIN
        yield name + "attn_output.weight", (HEADS * dim, HIDDEN), Q4_0
        yield name + "ffn_gate.weight", (HIDDEN, INTERMEDIATE), Q4_0
        yield name + "ffn_up.weight", (HIDDEN, INTERMEDIATE), Q4_0
        yield name + "ffn_down.weight", (INTERMEDIATE, HIDDEN), Q4_0
        yield name + "ffn_gate_inp.weight", (HIDDEN, EXPERTS), PLAIN
        yield name + "ffn_gate_inp.scale", (HIDDEN,), PLAIN
        yield name + "ffn_down_exps.scale", (EXPERTS,), PLAIN
        yield name + "ffn_gate_up_exps.weight", (HIDDEN, 2 * EXPERT_INTERMEDIATE, EXPERTS), Q4_0
        yield name + "ffn_down_exps.weight", (EXPERT_INTERMEDIATE, HIDDEN, EXPERTS), Q4_0
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_ffw_norm_1", "pre_ffw_norm_2",
                     "post_ffw_norm_2"):
            yield f"{name}{norm}.weight", (HIDDEN,), PLAIN
        yield name + "layer_output_scale.weight", (1,), PLAIN
    yield "output_norm.weight", (HIDDEN,), PLAIN


def write(path):
    tokens, merges, kinds = vocabulary()
    sliding = [i % 6 != 5 for i in range(LAYERS)]
    keys = [key("general.architecture", STRING, "gemma4"), key("gemma4.block_count", U32, LAYERS),
            key("gemma4.context_length", U32, 262144), key("gemma4.embedding_length", U32, HIDDEN),
            key("gemma4.feed_forward_length", U32, INTERMEDIATE), key("gemma4.attention.head_count", U32, HEADS),
            array("gemma4.attention.head_count_kv", I32, [8 if s else 2 for s in sliding]),
            key("gemma4.attention.key_length", U32, 512), key("gemma4.attention.value_length", U32, 512),
            key("gemma4.attention.key_length_swa", U32, 256), key("gemma4.attention.value_length_swa", U32, 256),
            key("gemma4.attention.sliding_window", U32, 1024),
            array("gemma4.attention.sliding_window_pattern", BOOL, sliding), key("gemma4.attention.shared_kv_layers", U32, 0),
            key("gemma4.attention.layer_norm_rms_epsilon", F32, 1e-6), key("gemma4.rope.freq_base", F32, 1e6),
            key("gemma4.rope.freq_base_swa", F32, 1e4), key("gemma4.rope.dimension_count", U32, 512),
            key("gemma4.rope.dimension_count_swa", U32, 256), key("gemma4.embedding_length_per_layer_input", U32, 0),
            key("gemma4.final_logit_softcapping", F32, 30.0), key("gemma4.expert_count", U32, EXPERTS),
            key("gemma4.expert_used_count", U32, 8), key("gemma4.expert_feed_forward_length", U32, EXPERT_INTERMEDIATE),
            key("tokenizer.ggml.model", STRING, "gemma4"), array("tokenizer.ggml.tokens", STRING, tokens),
            array("tokenizer.ggml.scores", F32, [-1000.0] * VOCAB), array("tokenizer.ggml.token_type", I32, kinds),
            array("tokenizer.ggml.merges", STRING, merges), key("tokenizer.ggml.bos_token_id", U32, 2),
            key("tokenizer.ggml.eos_token_id", U32, 1), key("tokenizer.ggml.unknown_token_id", U32, 3),
            key("tokenizer.ggml.padding_token_id", U32, 0), key("tokenizer.ggml.add_bos_token", BOOL, True),
            key("tokenizer.ggml.add_space_prefix", BOOL, False)]
    records, at, divisors = [], 0, None
    for name, shape, kind in tensors():
        count = 1
        for n in shape:
            count *= n
        if name == "rope_freqs.weight":
            divisors = at
        records.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at))
        size = count // SIZES[kind][0] * SIZES[kind][1]
        at += (size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(records), len(keys)) + b"".join(keys) + b"".join(records)
    start = (len(head) + 31) // 32 * 32
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(start + at)
        file.seek(start + divisors)
        file.write(struct.pack("<256f", *[1.0] * 64, *[1e30] * 192))


def measure(command, repeats):
    """Median of seconds, and the largest resident memory in MB."""
    seconds, memory = [], []
    for _ in range(repeats):
        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        errors = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        seconds.append(time.monotonic() - begin)
        memory.append(usage.ru_maxrss / 1024)
        if status:
            raise SystemExit(f"{command}: {errors}")
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {max(memory):,.0f} MB"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kakeya", default="build/kakeya")
    options.add_argument("--folder", default="/tmp")
    options.add_argument("--tiles", action="store_true")
    options.add_argument("--repeats", type=int, default=5)
    o = options.parse_args()
    path = os.path.join(o.folder, "kakeya-open.gguf")
    tiles = path + ".tiles"
    try:
        child = multiprocessing.Process(target=write, args=(path,))  # its memory would count as that of programs started later
        child.start()
        child.join()
        print(f"a file of {os.path.getsize(path) / 1e9:.1f} GB")
        print("tokenize:", measure([o.kakeya, "tokenize", "--model", path, "--text-file", __file__], o.repeats))
        print("info:", measure([o.kakeya, "info", "--model", path, "--json"], o.repeats))
        if o.tiles:
            begin = time.monotonic()
            subprocess.run([o.kakeya, "convert", path, tiles, "--to", "tiles"], check=True, stdout=subprocess.DEVNULL)
            print(f"tiles made in {time.monotonic() - begin:.1f} s, {os.path.getsize(tiles) / 1e9:.1f} GB")
            run = [o.kakeya, "run", "--model", path, "--context", "4096", "--max-tokens", "1", "--raw", "abcd"]
            print("run, one token, tiles mapped:", measure(run, o.repeats))
    finally:
        for name in (path, tiles):
            if os.path.exists(name):
                os.remove(name)


if __name__ == "__main__":
    main()
