"""`kakeya serve` with less K/V memory than its requests want together. The model is a scripted one of a single layer, at temperature 1: its
answers are long and cost next to nothing, and each is its seed's own."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile

from harness import KAKEYA, WAIT, Server, dechunk, equal, eventually, holds, in_threads, read_all, run_tests, scripted_model, test

MODEL = scripted_model("The quick brown fox jumps over it.")
PROMPT = "Say something long."
STRING = {"type": "object", "properties": {"text": {"type": "string", "minLength": 6000}}, "required": ["text"]}


BYTES_PER_TOKEN = 2 * 2 * 16 * 4 + 8  # keys and values of the model's one layer, and what a session keeps beside them


GRAMMAR = 5 << 19  # what the first answer under a schema takes beside K/V


def room_for(tokens, beside=0):
    """Options of a server whose sessions may have so many tokens together, and so many bytes beside."""
    limit = WORKSPACE + tokens * BYTES_PER_TOKEN + beside
    return ["--memory-limit", f"{limit // 1024}K", "--cache-ram", "0", "--threads", "1"]


def body(seed, tokens, **more):
    return {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "temperature": 1, "seed": seed, "max_tokens": tokens,
            "ignore_eos": True, **more}


def ask(s, request):
    reply = s.post("/v1/chat/completions", request)
    equal(reply.status, 200, reply.body[:300])
    return reply.json


plain = Server("--name", "m", "--threads", "1", model=MODEL)
WORKSPACE = int(float(plain.said(r"([\d.]+) MB for workspace").group(1)) * 1e6 + 1e6)  # and what sampling takes later


def alone(requests):
    return [ask(plain, r)["choices"] for r in requests]


@test("54: room for two sessions, five requests: all finish with the tokens that they have alone, and preemptions are counted")
def _():
    requests = [body(i, 1600, **more) for i, more in enumerate(
        [{}, {"presence_penalty": 1.0}, {"json_schema": STRING, "ignore_eos": False}, {"n": 2, "max_tokens": 1200}, {"top_k": 5}])]
    expected = alone(requests)
    s = Server("--name", "m", *room_for(2 * 1600, GRAMMAR), model=MODEL)
    for _ in range(20):  # until they have met: where threads stand still they come one after the other
        for answer, wanted in zip(in_threads([lambda r=r: ask(s, r) for r in requests]), expected):
            equal(answer["choices"], wanted)
        if s.metric("kakeya_preemptions_total") > 0:
            break
    holds(s.metric("kakeya_preemptions_total") > 0, "nobody gave way")
    s.stop()


@test("54: several choices that do not fit together come one after the other")
def _():
    request = body(3, 1500, n=4)
    expected = alone([request])[0]
    s = Server("--name", "m", *room_for(2200), model=MODEL)
    equal(ask(s, request)["choices"], expected)
    s.stop()


def open_files(pid):
    """A connection may end between the list and its names."""
    files = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            files.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return files


@test("54: a client that reads nothing gives its memory to others; when it reads, its answer goes on with the same tokens")
def _():
    slow = body(1, 3000, stream=True, logprobs=True, top_logprobs=20)  # 6 MB of events, of which kernels take 4
    large = body(2, 3900)
    expected = alone([body(1, 3000), large])
    directory = tempfile.TemporaryDirectory()
    s = Server("--name", "m", "--spill-dir", directory.name, *room_for(4200), model=MODEL)
    equal(s.metric("kakeya_spill_bytes"), 0)
    data = json.dumps(slow).encode()
    with directory, socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.settimeout(WAIT)
        c.connect(("127.0.0.1", s.port))
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        # With what it holds then, the other one does not fit. It also stalls for moments before that, where threads stand still.
        eventually(lambda: any(x["state"] == "stalled" and x["n_tokens"] >= 600 for x in s.get("/slots").json), "it stalls")
        equal(ask(s, large)["choices"], expected[1])
        holds(s.metric("kakeya_preemptions_total") > 0, "nobody gave way")
        holds(s.metric("kakeya_spill_bytes") >= 600 * 16 * 4, "the file is counted")
        files = open_files(s.process.pid)
        holds(any(f.startswith(os.path.realpath(directory.name) + "/") and f.endswith(" (deleted)") for f in files), files)
        equal(os.listdir(directory.name), [], "it has no name")
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        received = read_all(c)
    text = ""
    for event in dechunk(received).split(b"\n\n"):
        if event.startswith(b"data: {"):
            for choice in json.loads(event[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    equal(text, expected[0][0]["message"]["content"])
    equal(s.metric("kakeya_spill_bytes"), 0)
    s.stop()


@test("--spill-dir: what cannot be used is said at the start")
def _():
    done = subprocess.run([KAKEYA, "serve", "--port", "0", "--grpc", "off", "--model", MODEL, "--spill-dir", "/nonexistent/spill"],
                          capture_output=True, text=True, timeout=WAIT)
    equal(done.returncode, 1)
    holds("/nonexistent/spill: No such file" in done.stderr, done.stderr)


run_tests()
