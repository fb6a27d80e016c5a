"""A server under mixed load by clients that do what comes to their minds: streams and whole answers of every API, tools, formats, several
choices, cancels, clients that leave or read slowly, bodies that are none, gRPC where its Python package is.

usage: soak.py [--minutes N | --seconds N] [--clients N] [--seed N]
environment: KAKEYA (the program, of whatever build), SOAK_WRAPPER (what it is run by), SERVE_TEST_WAIT

Some requests have answers that must not change: they are asked once alone, and again and again among the others. From ten minutes on the
resident memory must be flat, too, unless the program is built with a sanitizer (SOAK_SANITIZED)."""

import argparse
import json
import os
import random
import re
import socket
import struct
import sys
import tempfile
import threading
import time

import harness
from harness import Server, Skip, dechunk, equal, eventually, holds, run_tests, test

parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float)
parser.add_argument("--seconds", type=float, default=3.0 if harness.SHORT else 6.0)
parser.add_argument("--clients", type=int, default=8)
parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
wanted = parser.parse_args()
sys.argv[1:] = []
SECONDS = wanted.minutes * 60 if wanted.minutes else wanted.seconds
SANITIZED = bool(os.environ.get("SOAK_SANITIZED"))

try:
    from grpc_harness import grpc, pb, runtime_pb2_grpc
except ImportError:
    grpc = None

directory = tempfile.TemporaryDirectory()
wrapper = os.environ.get("SOAK_WRAPPER", "").split()
server = Server("--name", "m", "--context", "1024", "--max-batch", "8", "--threads", "1", "--cache-ram", "32M", "--cache-disk", "64M",
                "--session-dir", directory.name, "--max-queue", "64", *(["--grpc", "127.0.0.1:0"] if grpc else []), wrapper=wrapper)
TOOL = {"type": "function", "function": {"name": "get", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {
    "type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}}}


def chat(text, **more):
    return "/v1/chat/completions", {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": text}], **more}


def completion(prompt, **more):
    return "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 8, **more}


FIXED = [
    chat("def f(n):", temperature=0),
    chat("def f(n):", temperature=1, seed=7, n=2),
    chat("Which city?", temperature=0, tools=[TOOL], tool_choice="required", max_tokens=40),
    chat("Say x or y", temperature=1, seed=9, response_format=SCHEMA, max_tokens=40),
    completion("import os", temperature=0, logprobs=1),
    completion(["a", "b"], temperature=1, seed=3, echo=True),
]


def answers(path, body):
    """What must be the same every time."""
    reply = server.post(path, body)
    if reply.status == 429:
        return None
    equal(reply.status, 200, reply.body[:300])
    choices = []
    for c in reply.json["choices"]:
        message = c.get("message", {})
        calls = [(t["function"]["name"], t["function"]["arguments"]) for t in message.get("tool_calls", [])]
        choices.append((c.get("text"), message.get("content"), calls, c["finish_reason"]))
    return choices


def resident():
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) / 1024


class Client:
    def __init__(self, number):
        self.random = random.Random(wanted.seed * 1000 + number)
        self.done = {}
        self.stored = []
        self.channel = None

    def text(self):
        words = ["def", "class", "import", "return", "for x in", "<|turn>", "\u00e9\U0001F600", "{", "\"", "\n", "0"]
        return " ".join(self.random.choice(words) for _ in range(self.random.choice([1, 3, 10, 60])))

    def sampling(self):
        r = self.random
        return {"temperature": r.choice([0, 0.7, 1]), "seed": r.randrange(1 << 62), "max_tokens": r.choice([1, 4, 16]),
                **r.choice([{}, {"n": 2}, {"stop": ["e", "zz"]}, {"top_k": 3}, {"logit_bias": {"5": -100}}, {"min_tokens": 2},
                            {"logprobs": True, "top_logprobs": 2}, {"presence_penalty": 1}, {"cache_prompt": False}])}

    def body(self):
        """A path and a body that is right."""
        r = self.random
        kind = r.randrange(6)
        if kind == 0:
            more = self.sampling()
            more.pop("logprobs", None), more.pop("top_logprobs", None)
            return completion(r.choice([self.text(), [self.text(), "b"], [2, 100, 200]]), **more)
        if kind == 1:
            extra = r.choice([{}, {"store": False}, {"text": {"format": {"type": "json_object"}}}])
            if self.stored and r.random() < 0.5:
                extra["previous_response_id"] = r.choice(self.stored)
            return "/v1/responses", {"model": "m", "input": self.text(), "max_output_tokens": r.choice([1, 8]), **extra}
        if kind == 2:
            extra = r.choice([{}, {"system": self.text()}, {"thinking": {"type": "enabled", "budget_tokens": 1024}},
                              {"stop_sequences": ["e"]}, {"tools": [{"name": "get", "input_schema": TOOL["function"]["parameters"]}]}])
            return "/v1/messages", {"model": "m", "max_tokens": r.choice([1, 8]), "messages": [{"role": "user", "content": self.text()}],
                                    **extra}
        extra = r.choice([{}, {}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required", "max_tokens": 30},
                          {"response_format": SCHEMA, "max_tokens": 30}, {"guided_regex": "[ab]{3}"},
                          {"response_format": {"type": "json_object"}}, {"reasoning_effort": "low", "thinking_token_budget": 3}])
        path, body = chat(self.text(), **{**self.sampling(), **extra})
        if r.random() < 0.3:
            body["messages"] += [{"role": "assistant", "content": self.text()}, {"role": "user", "content": self.text()}]
        return path, body

    def raw(self, path, body):
        data = json.dumps(body).encode()
        return (b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(data)) + data

    def fixed(self):
        i = self.random.randrange(len(FIXED))
        said = answers(*FIXED[i])
        if said is not None:
            equal(said, EXPECTED[i], f"request {i} among others")

    def whole(self):
        path, body = self.body()
        reply = server.post(path, body)
        holds(reply.status in (200, 429, 400, 404), f"{path}: {reply.status} {reply.body[:300]}")
        if reply.status == 400:  # a prompt that has outgrown the context, or a response that is forgotten
            known = reply.error.get("code") in ("context_length_exceeded", "previous_response_not_found")
            holds(known or reply.error["message"].startswith("prompt is too long"), reply.body[:300])
        elif reply.status == 200 and path == "/v1/responses" and body.get("store", True):
            self.stored = (self.stored + [reply.json["id"]])[-3:]

    def stream(self):
        path, body = self.body()
        reply = server.post(path, {**body, "stream": True})
        if reply.status != 200:
            holds(reply.status in (429, 400), f"{path}: {reply.status} {reply.body[:300]}")
            return
        end = {"/v1/responses": b"event: response.", "/v1/messages": b"event: message_stop"}.get(path, b"data: [DONE]")
        holds(end in reply.body[-6000:], f"{path}: the end of a stream: {reply.body[-300:]}")
        holds(b'"error":{' not in reply.body, f"{path}: {reply.body[-300:]}")

    def leave(self):
        """Goes in the middle of something, gently or not."""
        path, body = self.body()
        data = self.raw(path, {**body, **self.random.choice([{}, {"stream": True}])})
        with server.connect() as s:
            if self.random.random() < 0.3:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.sendall(data[:self.random.choice([1, 30, len(data) - 1, len(data), len(data), len(data)])])
            for _ in range(self.random.randrange(4)):
                s.settimeout(self.random.choice([0.001, 0.05]))
                try:
                    s.recv(self.random.choice([1, 100, 5000]))
                except OSError:
                    break

    def slow(self):
        """Reads a stream a few bytes at a time, over a small window."""
        path, body = chat(self.text(), temperature=0, max_tokens=12, stream=True)
        with server.connect() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(self.raw(path, body))
            data = b""
            while not (data.endswith(b"0\r\n\r\n") or (b"content-length: " in data and data.endswith(b"}"))):
                piece = s.recv(97)
                holds(piece, f"the stream broke off: {data[-200:]}")
                data += piece
        if b" 200 OK" in data[:20]:
            holds(dechunk(data).rstrip().endswith(b"[DONE]"))

    def small(self):
        r = self.random
        for _ in range(5):
            choice = r.randrange(5)
            if choice == 0:
                ids = server.post("/tokenize", {"content": self.text(), "parse_special": r.random() < 0.5}).json["tokens"]
                equal(server.post("/detokenize", {"tokens": ids}).status, 200)
            elif choice == 1:
                equal(server.get(r.choice(["/health", "/v1/models", "/props", "/slots", "/metrics", "/"])).status, 200)
            elif choice == 2:
                bad = r.choice([b"{", b"[]", b'{"model":"m","messages":7}', b'{"a":1,"a":2}', b"\xff", b'{"model":"x"}', b""])
                status = server.request("POST", r.choice(["/v1/chat/completions", "/v1/responses", "/v1/completions"]), bad).status
                holds(status in (400, 404), f"{bad}: {status}")
            elif choice == 3:
                reply = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5
                                   + b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                equal(reply.count(b'{"status":"ok"}'), 6, "requests behind one another")
            elif self.stored:
                path = f"/v1/responses/{r.choice(self.stored)}"
                holds(server.request(r.choice(["GET", "DELETE"]), path).status in (200, 404))

    def call(self):
        if not grpc:
            return
        if not self.channel:
            self.channel = grpc.insecure_channel(server.addresses["grpc"], options=[("grpc.enable_http_proxy", 0)])
        stub = runtime_pb2_grpc.RuntimeServiceStub(self.channel)
        session = stub.CreateSession(pb.CreateSessionRequest(), timeout=harness.WAIT).session_id
        ids = [2] + [self.random.randrange(300, 4000) for _ in range(self.random.choice([1, 20]))]
        stub.AppendTokens(pb.AppendTokensRequest(session_id=session, token_ids=ids), timeout=harness.WAIT)
        frames = stub.Generate(pb.GenerateRequest(session_id=session, max_tokens=6), timeout=harness.WAIT)
        if self.random.random() < 0.3:
            next(frames)
            frames.cancel()
        else:
            equal(sum(f.WhichOneof("payload") == "token_id" for f in frames), 6)
        # Sessions that stay hold their K/V memory until --session-ttl, and would look like a leak.
        eventually(lambda: self.close_session(stub, session), "a session whose call was cancelled is free")

    @staticmethod
    def close_session(stub, session):
        try:
            stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=harness.WAIT)
            return True
        except grpc.RpcError as e:
            holds(e.code() == grpc.StatusCode.ABORTED, str(e))
            return False

    def run(self, until):
        actions = [self.fixed, self.fixed, self.whole, self.whole, self.stream, self.stream, self.leave, self.leave, self.slow,
                   self.small, self.call]
        while time.monotonic() < until and not broken:
            action = self.random.choice(actions)
            try:
                action()
            except Exception as e:
                broken.append(f"{action.__name__}: {e!r}")
                raise
            self.done[action.__name__] = self.done.get(action.__name__, 0) + 1


EXPECTED, broken, memory = [], [], []


@test("F15: a fixed request has the same answer among all others; streams are whole; nobody gets an error who has made none")
def _():
    EXPECTED.extend(answers(*request) for request in FIXED)
    clients = [Client(i) for i in range(wanted.clients)]
    begun = time.monotonic()
    until = begun + SECONDS
    ended = threading.Event()

    def watch():
        while not ended.wait(max(0.2, SECONDS / 200)):
            memory.append((time.monotonic() - begun, resident()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        harness.in_threads([lambda c=c: c.run(until) for c in clients])
    finally:
        ended.set()
        watcher.join()
        counts = {}
        for c in clients:
            for name, n in c.done.items():
                counts[name] = counts.get(name, 0) + n
        print(f"# seed {wanted.seed}, {time.monotonic() - begun:.0f} s: {counts}")
        if memory:
            print("# resident MiB: " + ", ".join(f"{mb:.0f} at {s:.0f} s" for s, mb in memory[::max(1, len(memory) // 8)]))
    holds(sum(counts.values()) >= wanted.clients, "every client has done something")


@test("F15: once they are gone, nothing runs, waits or is connected")
def _():
    for name in ("requests_running", "requests_waiting"):
        eventually(lambda: server.metric(f"kakeya_{name}") == 0, name)
    eventually(lambda: server.metric("kakeya_http_connections") <= 1, "connections")  # this one
    equal(server.get("/slots").json, [])


@test("F15: resident memory is flat after the first quarter")
def _():
    if SANITIZED or SECONDS < 600:
        raise Skip("a plain build, ten minutes or more")
    quarter = [mb for s, mb in memory if SECONDS * 0.25 <= s <= SECONDS * 0.5]
    last = [mb for s, mb in memory if s >= SECONDS * 0.75]
    early, late = sum(quarter) / len(quarter), sum(last) / len(last)
    holds(late < early * 1.05 + 8, f"{early:.0f} MiB in the second quarter, {late:.0f} MiB in the last")


@test("the server ends with status 0, and no sanitizer has said anything")
def _():
    status = server.stop()
    log = server.log()
    reports = re.findall(r"(?:ERROR: \w+Sanitizer|WARNING: \w+Sanitizer|runtime error|SUMMARY: )[^\n]*", log)
    if reports:
        print("# " + log[log.index(reports[0]):][:6000].replace("\n", "\n# "))
    equal((status, reports), (0, []))


run_tests()
