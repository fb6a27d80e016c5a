"""--weights-limit of a server: the process holds what the ledger, /metrics and --dry-run say; a file that is cut while it serves ends
the answer with one error, and the server stays."""

import json
import os
import random
import shutil
import struct
import subprocess
import tempfile

from harness import KAKEYA, MODELS, Server, Skip, equal, holds, metrics, run_tests, series, test

HIDDEN, LAYERS, WIDTH, VOCABULARY = 256, 6, 1024, 1024
PROMPT = [2, *[(i * 7919 + 13) % 1000 for i in range(1, 400)]]
M = 1 << 20


def mixture(path, experts=64):
    """A GGUF file in Q4_0 with random weights: 442 kB for each expert of each layer, and little else."""
    rnd = random.Random(1)
    # codes are no mean of zero, so scales have random signs: else all rows would be alike
    blocks = b"".join(struct.pack("<e", rnd.choice((-0.01, 0.01))) + rnd.randbytes(16) for _ in range(4096))
    noise = struct.pack("<65536f", *[rnd.gauss(0, 0.1) for _ in range(65536)])
    tensors = []

    def add(name, *dims, kind="q4_0"):
        tensors.append((name, dims, kind))

    add("rope_freqs.weight", 32, kind="rope")
    add("token_embd.weight", HIDDEN, VOCABULARY)
    for i in range(LAYERS):
        full = (i + 1) % 6 == 0
        layer, head = f"blk.{i}.", 64
        add(layer + "attn_q.weight", HIDDEN, 4 * head)
        add(layer + "attn_k.weight", HIDDEN, 2 * head)
        if not full:
            add(layer + "attn_v.weight", HIDDEN, 2 * head)
        add(layer + "attn_output.weight", 4 * head, HIDDEN)
        add(layer + "ffn_gate.weight", HIDDEN, 256)
        add(layer + "ffn_up.weight", HIDDEN, 256)
        add(layer + "ffn_down.weight", 256, HIDDEN)
        add(layer + "ffn_gate_inp.weight", HIDDEN, experts, kind="noise")
        add(layer + "ffn_gate_up_exps.weight", HIDDEN, 2 * WIDTH, experts)
        add(layer + "ffn_down_exps.weight", WIDTH, HIDDEN, experts)
        for name, size in (("attn_q_norm.weight", head), ("attn_k_norm.weight", head), ("ffn_gate_inp.scale", HIDDEN),
                           ("ffn_down_exps.scale", experts), ("layer_output_scale.weight", 1)):
            add(layer + name, size, kind="ones")
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_ffw_norm_1", "pre_ffw_norm_2",
                     "post_ffw_norm_2"):
            add(f"{layer}{name}.weight", HIDDEN, kind="ones")
    add("output_norm.weight", HIDDEN, kind="ones")

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    keys = [("block_count", LAYERS), ("context_length", 2048), ("embedding_length", HIDDEN), ("feed_forward_length", 256),
            ("attention.head_count", 4), ("attention.head_count_kv", 2), ("attention.key_length", 64), ("attention.value_length", 64),
            ("attention.key_length_swa", 64), ("attention.value_length_swa", 64), ("attention.sliding_window", 256),
            ("attention.shared_kv_layers", 0), ("embedding_length_per_layer_input", 0), ("expert_count", experts),
            ("expert_used_count", 4), ("expert_feed_forward_length", WIDTH)]
    head = [text("general.architecture") + struct.pack("<I", 8) + text("gemma4"),
            text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("none"),
            text("tokenizer.ggml.eos_token_id") + struct.pack("<II", 4, 1)]
    head += [text("gemma4." + key) + struct.pack("<II", 4, value) for key, value in keys]
    head += [text("gemma4." + key) + struct.pack("<If", 6, value)
             for key, value in (("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e6), ("rope.freq_base_swa", 1e4),
                                ("final_logit_softcapping", 30.0))]
    head.append(text("gemma4.attention.sliding_window_pattern") + struct.pack("<IIQ", 9, 7, LAYERS) +
                bytes((i + 1) % 6 != 0 for i in range(LAYERS)))
    listed, sizes, offset = [], [], 0
    for name, dims, kind in tensors:
        count = 1
        for n in dims:
            count *= n
        sizes.append(count // 32 * 18 if kind == "q4_0" else 4 * count)
        listed.append(text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", n) for n in dims) +
                      struct.pack("<IQ", 2 if kind == "q4_0" else 0, offset))
        offset += (sizes[-1] + 31) // 32 * 32
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(head)) + b"".join(head) + b"".join(listed)
    with open(path, "wb") as out:
        out.write(start + bytes(-len(start) % 32))
        for (_, dims, kind), size in zip(tensors, sizes):
            piece = {"q4_0": blocks, "noise": noise, "ones": struct.pack("<f", 1) * 64,
                     "rope": b"".join(struct.pack("<f", 1.0 if i < 8 else 1e30) for i in range(32))}[kind]
            shift = rnd.randrange(1024) * 18 if kind == "q4_0" else 0
            out.write((piece[shift:] + piece * (size // len(piece) + 1))[:size] + bytes(-size % 32))


def ask(server, prompt, tokens=8):
    return server.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                                           "return_token_ids": True})


def found(server):
    return metrics(server.get("/metrics").body.decode())


def held(server):
    m = found(server)
    counted = sum(v for k, v in m.items() if k.startswith(("kakeya_memory_bytes|", "kakeya_kv_bytes|")))
    return m["kakeya_process_resident_memory_bytes"], counted, m[series("kakeya_memory_bytes", {"kind": "weights"})]


@test("the process holds what the ledger, /metrics and --dry-run say, and answers are the same")
def _():
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/mixture.gguf"
        mixture(path)
        options = ["--model", path, "--name", "m", "--context", "1024", "--cache-ram", "0"]
        whole = Server(*options)
        answer = ask(whole, PROMPT).json["choices"][0]["token_ids"]
        whole.stop()
        measured = {}
        for limit in (40 * M, 64 * M):
            bounded = [*options, "--weights-limit", str(limit)]
            run = subprocess.run([KAKEYA, "serve", "--dry-run", "--json", *bounded], capture_output=True, check=True)
            said = json.loads(run.stdout)["ledger"]["weights_bytes"]
            s = Server(*bounded)
            equal(ask(s, PROMPT).json["choices"][0]["token_ids"], answer, f"limit {limit}")
            for i in range(3):  # until every slot has been filled
                equal(ask(s, PROMPT[i + 1:]).status, 200)
            resident, counted, weights = measured[limit] = held(s)
            holds(weights <= limit and weights >= 0.98 * limit, f"{weights} of weights, limit {limit}")
            holds(abs(said - weights) <= 0.02 * weights, f"--dry-run says {said} of weights, held are {weights}")
            equal(s.metric("kakeya_weights_limit_bytes"), limit)
            holds(s.metric("kakeya_experts_wanted_total") > s.metric("kakeya_experts_found_total") > 0, "experts are counted")
            holds(s.metric("kakeya_expert_slots") < s.metric("kakeya_experts"), "not all fit")
            holds(resident < counted + 48 * M, f"{resident} resident, {counted} counted: the program itself is small")
            s.stop()
        small, large = measured[40 * M], measured[64 * M]
        grown, counted = large[0] - small[0], large[1] - small[1]
        holds(abs(grown - counted) <= 0.02 * counted + 2 * M, f"the process grows by {grown}, the ledger by {counted}")


def memory_group(limit):
    """A new cgroup with this limit on memory, swap included where that is counted; None: none can be had."""
    for root, names in (("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
                        ("/sys/fs/cgroup", ("memory.max", "memory.swap.max"))):
        folder = f"{root}/kakeya-test-{os.getpid()}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        if os.path.exists(f"{folder}/{names[0]}"):
            for name, value in zip(names, (limit, 0 if names[1].endswith("swap.max") else limit)):
                if os.path.exists(f"{folder}/{name}"):
                    with open(f"{folder}/{name}", "w") as out:
                        out.write(str(value))
            return folder
        os.rmdir(folder)
    return None


@test("a process that may have 15 % more than limit and K/V together is not killed, and answers the same")
def _():
    limit = 480 * M
    with tempfile.TemporaryDirectory() as directory:
        path, ids = f"{directory}/mixture.gguf", f"{directory}/ids"
        mixture(path, 256)
        with open(ids, "w") as out:
            json.dump(PROMPT, out)
        command = [KAKEYA, "run", "--model", path, "--ids-file", ids, "--mode", "ar", "--max-tokens", "150", "--ignore-eos",
                   "--temperature", "3", "--seed", "5", "--json"]
        whole = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        command += ["--weights-limit", str(limit)]
        info = subprocess.run([KAKEYA, "info", path, "--context", "512", "--json"], capture_output=True, check=True)
        kv = json.loads(info.stdout)["sessions"][0]["kv_bytes"]["total"]
        group = memory_group(int(1.15 * (limit + kv)))
        if not group:
            raise Skip("no cgroup with a limit on memory can be made here")
        try:
            inside = subprocess.run(["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', group, *command], capture_output=True,
                                    check=False)
        finally:
            os.rmdir(group)
        equal(inside.returncode, 0, inside.stderr)
        answer = json.loads(inside.stdout)
        equal(answer["token_ids"], whole["token_ids"])
        weights = answer["stats"]["weights"]
        holds(weights["slots"] < weights["experts"] and weights["bytes_read"] > limit, f"experts made room: {weights}")


@test("a file that is cut while it serves ends answers with one error, the server stays, and answers when the file is back")
def _():
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/demo"
        shutil.copytree(f"{MODELS}/demo", path)
        refused = subprocess.run([KAKEYA, "run", "--model", path, "--weights-limit", "1K", "x"], capture_output=True, text=True)
        equal(refused.returncode, 1)
        limit = refused.stderr.split("not enough: ")[1].split()[0]
        s = Server("--model", path, "--name", "m", "--weights-limit", limit, "--cache-ram", "0")
        answer = ask(s, PROMPT).json["choices"][0]["token_ids"]
        holds("weights" not in s.get("/health").json, "all is well")
        files = [f"{path}/{name}" for name in os.listdir(path) if name.endswith(".safetensors")]
        times = {}
        for file in files:
            times[file] = os.stat(file).st_mtime_ns
            shutil.copyfile(file, f"{file}.whole")
            os.truncate(file, os.path.getsize(file) // 2)
        for _ in range(2):
            reply = ask(s, PROMPT[5:])
            equal(reply.status, 500, reply.body)
            holds(".safetensors: " in s.log(), "the log names the file")
            health = s.get("/health")
            equal((health.status, health.json["status"], health.json.get("weights")), (200, "ok", "unreadable"))
        holds(s.metric("kakeya_expert_read_failures_total") >= 2, "failures are counted")
        for file in files:
            shutil.copyfile(f"{file}.whole", file)
            os.utime(file, ns=(times[file], times[file]))
        equal(ask(s, PROMPT).json["choices"][0]["token_ids"], answer, "the file is back")
        holds("weights" not in s.get("/health").json, "all is well again")
        equal(s.stop(), 0)


run_tests()
