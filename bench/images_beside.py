"""What pictures do to the answers beside them: the gaps between the answers' events while other requests have pictures read, one after
the other, and while there are none (docs/guide/images.md).

usage: python3 bench/images_beside.py [--backend cpu] [--model DIR | --tower LAYERSxHIDDEN] [--budget 280] [--pictures 4] [--readers 1]
                                      [--answers 8] [--rounds 5] [--threads N] [-- OPTION...]
environment: KAKEYA (build/kakeya)

Prints the gaps in milliseconds: the median, the 99th percentile and the longest, of all answers together (tokens that come within a
millisecond are one event), and a picture's seconds from its request to its first token. Of several rounds the median, with the smallest
and the largest. --tower 27x1152 is the tower of 26B and 31B in its published size with random weights (1.1 GB), beside the text model of
tests/data/vision/tiny-tower: a text model's own step comes on top of what is printed. --readers: requests with pictures at a time. What
stands behind -- are options of the server."""

import argparse
import http.client
import json
import multiprocessing
import os
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "../tests/data/vision/tiny-tower")
sys.path.insert(0, os.path.join(HERE, "../tests/serve"))
os.environ.setdefault("SERVE_TEST_WAIT", "900")
split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="cpu")
parser.add_argument("--model", default=TINY)
parser.add_argument("--tower")
parser.add_argument("--budget", type=int, default=280)
parser.add_argument("--pictures", type=int, default=4)
parser.add_argument("--readers", type=int, default=1)
parser.add_argument("--answers", type=int, default=8)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", type=int, default=2)
wanted, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
sys.argv[1:] = []
from harness import WAIT, Server  # noqa: E402
from pictures import picture, png, text, user  # noqa: E402

QUIET = 0.5  # seconds before the first picture, and of a round without any
ONE_STEP = 0.001  # seconds: tokens that come together are of one step
SIDE = {70: 400, 140: 560, 280: 800, 560: 1140, 1120: 1600}  # pixels: what the budget holds


# ------------------------------------------------------------------------------------------------------------ a tower

def random_bf16(draw, n, ones):
    """Values from 2^-7 to 2^-5 of both signs, or ones."""
    if ones:
        return struct.pack("<H", 0x3F80) * n
    mask = int.from_bytes(struct.pack("<H", 0x80FF) * n, "little")
    base = int.from_bytes(struct.pack("<H", 0x3C00) * n, "little")
    return ((int.from_bytes(draw.randbytes(2 * n), "little") & mask) | base).to_bytes(2 * n, "little")


def tower_shapes(layers, hidden, heads, intermediate, positions, patch_values, text_hidden):
    yield "model.embed_vision.embedding_projection.weight", (text_hidden, hidden)
    yield "model.vision_tower.patch_embedder.input_proj.weight", (hidden, patch_values)
    yield "model.vision_tower.patch_embedder.position_embedding_table", (2, positions, hidden)
    yield "model.vision_tower.std_bias", (hidden,)
    yield "model.vision_tower.std_scale", (hidden,)
    for i in range(layers):
        layer = f"model.vision_tower.encoder.layers.{i}."
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{layer}{name}_layernorm.weight", (hidden,)
        for name in "qkvo":
            yield f"{layer}self_attn.{name}_proj.linear.weight", (hidden, hidden)
        for name in "qk":
            yield f"{layer}self_attn.{name}_norm.weight", (hidden // heads,)
        for name, shape in (("gate", (intermediate, hidden)), ("up", (intermediate, hidden)), ("down", (hidden, intermediate))):
            yield f"{layer}mlp.{name}_proj.linear.weight", shape


def make_model(directory, layers, hidden):
    """The tiny model with a tower of a published size: 72 values a head, a feed-forward of 4304 / 1152, patches of 16 pixels."""
    for name in os.listdir(TINY):
        if name not in ("model.safetensors", "golden.safetensors", "config.json"):
            shutil.copy(os.path.join(TINY, name), directory)
    with open(os.path.join(TINY, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    heads, intermediate, positions = hidden // 72, hidden * 4304 // 1152, 10240
    config["vision_config"].update(
        patch_size=16, position_embedding_size=positions, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=72, global_head_dim=72)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(TINY, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    text_tensors = {n: t for n, t in header.items() if n != "__metadata__" and "vision" not in n}
    new = list(tower_shapes(layers, hidden, heads, intermediate, positions, 3 * 16 * 16, config["text_config"]["hidden_size"]))
    table, at = {}, 0
    for name, shape, dtype, size in [(n, t["shape"], t["dtype"], t["data_offsets"][1] - t["data_offsets"][0])
                                     for n, t in text_tensors.items()] + [(n, s, "BF16", 2 * product(s)) for n, s in new]:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    draw = random.Random(1)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for t in text_tensors.values():
            file.write(data[t["data_offsets"][0]:t["data_offsets"][1]])
        for name, shape in new:
            file.write(random_bf16(draw, product(shape), "norm" in name or name.endswith("std_scale")))


def product(shape):
    n = 1
    for size in shape:
        n *= size
    return n


# ------------------------------------------------------------------------------------------------------------ measuring

def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    body = {"model": "m", "ignore_eos": True, "stream": True, "return_token_ids": True, **body}
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        print(f"status {reply.status}: {reply.read()[:500]}", file=sys.stderr)
        sys.exit(1)
    return connection, reply


def has_tokens(line):
    return line.startswith(b"data: {") and any(c.get("token_ids") for c in json.loads(line[6:]).get("choices", []))


def words(server):
    """Tokens of two letters or more, which are told at once: of bytes nothing is said until another token follows them."""
    found = {}
    for token in range(24, 2000):
        reply = server.post("/detokenize", {"model": "m", "tokens": [token]})
        if reply.status != 200 or len(found) == 64:
            break
        said = reply.json.get("content") or reply.json.get("prompt") or ""
        if len(said.strip()) > 1 and said.isascii() and said.isprintable():
            found[str(token)] = 100
    return found


def answer(port, seed, bias, stopped, seen, found):
    """Answers of random words, one after the other, until they are stopped, in a process of their own, which no other client holds up.
    seen counts the events; found receives when the events came, a list for each answer."""
    draw, events = random.Random(seed), []
    while not stopped.is_set():
        prompt = [2, *(draw.randrange(50, 80) for _ in range(16))]
        connection, reply = post(port, "/v1/completions", {"prompt": prompt, "max_tokens": -1, "temperature": 1, "logit_bias": bias})
        events.append([])
        while not stopped.is_set() and (line := reply.readline()):
            came = time.monotonic()
            if has_tokens(line):
                events[-1].append(came)
                seen.value += 1
        reply.close()
        connection.close()
    found.put(events)


def steps_of(events):
    """When steps came: of events that come within ONE_STEP of one that counts none counts."""
    times = events[:1]
    for came in events:
        if came - times[-1] > ONE_STEP:
            times.append(came)
    return times


def read_pictures(port, bias, pictures, begin, seconds):
    """One after the other, in a process of its own. seconds receives those until the first token of each."""
    begin.wait()
    for data in pictures:
        asked = time.monotonic()
        body = {"messages": [user(text("A"), picture(data))], "max_tokens": 2, "temperature": 0, "logit_bias": bias}
        connection, reply = post(port, "/v1/chat/completions", body)
        while not has_tokens(line := reply.readline()):
            if not line:
                sys.exit("the picture has no answer")
        seconds.put(time.monotonic() - asked)
        reply.read()
        connection.close()


def measure(server, bias, pictures):
    """pictures: a list for each reader."""
    processes = multiprocessing.get_context("fork")
    told, seconds = processes.Event(), processes.Queue()
    readers = [processes.Process(target=read_pictures, args=(server.port, bias, list_, told, seconds), daemon=True) for list_ in pictures]
    for r in readers:
        r.start()
    stopped, found = processes.Event(), processes.Queue()
    seen = [processes.Value("q", 0, lock=False) for _ in range(wanted.answers)]
    answers = [processes.Process(target=answer, args=(server.port, i, bias, stopped, n, found), daemon=True) for i, n in enumerate(seen)]
    for a in answers:
        a.start()
    while not all(n.value > 4 for n in seen):
        if any(a.exitcode for a in answers):
            sys.exit(1)
        time.sleep(0.01)
    time.sleep(QUIET)
    begin = time.monotonic()
    told.set()
    for r in readers:
        r.join()
        if r.exitcode:
            sys.exit(1)
    waits = [seconds.get() for list_ in pictures for _ in list_]
    if not pictures:
        time.sleep(QUIET)
    end = time.monotonic()
    time.sleep(0.2)  # whatever gap there is has ended
    stopped.set()
    gaps = []
    for events in (events for _ in answers for events in found.get()):
        times = steps_of(events)
        gaps += [1000 * (y - x) for x, y in zip(times, times[1:]) if y > begin and x < end]
    for a in answers:
        a.join()
    gaps.sort()
    return {"gap_p50_ms": gaps[len(gaps) // 2], "gap_p99_ms": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))], "gap_longest_ms": gaps[-1],
            **({"picture_s": statistics.median(waits)} if waits else {})}


def spread(rounds, name):
    values = [r[name] for r in rounds if name in r]
    return f"{name} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def main():
    made = tempfile.mkdtemp(prefix="kakeya-tower-") if wanted.tower else None
    try:
        if made:
            make_model(made, *map(int, wanted.tower.split("x")))
        server = Server("--name", "m", "--backend", wanted.backend, "--image-budget", str(wanted.budget), "--vision", "on", *options,
                        model=made or wanted.model, threads=wanted.threads)
        bias = words(server)
        found, seed, side = {"none": [], "pictures": []}, 0, SIDE[wanted.budget]
        for number in range(-1, wanted.rounds):  # the first is not counted
            for kind, rounds in found.items():
                pictures = []
                for _ in range(wanted.readers if kind == "pictures" else 0):
                    pictures.append([png(side - 1 - i // 97, side - 1 - i % 97) for i in range(seed, seed + wanted.pictures)])
                    seed += wanted.pictures  # a picture that comes again is known
                result = measure(server, bias, pictures)
                if number >= 0:
                    rounds.append(result)
        computed = server.metric("kakeya_images_computed_total")
    finally:
        Server.stop_all()
        if made:
            shutil.rmtree(made, ignore_errors=True)
    if computed < seed:
        sys.exit(f"{computed:.0f} of {seed} pictures have been computed")
    print(f"{wanted.tower or wanted.model}, {wanted.backend}, pictures of {wanted.budget} tokens beside {wanted.answers} answers, "
          f"{wanted.readers} at a time, medians of {wanted.rounds} (smallest to largest)")
    for kind, rounds in found.items():
        names = ("gap_p50_ms", "gap_p99_ms", "gap_longest_ms", "picture_s")
        print(f"{kind:9}" + ", ".join(filter(None, (spread(rounds, n) for n in names))))


main()
