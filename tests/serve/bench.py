"""`kakeya bench --requests --url`: the requests are those that were asked for, and what comes of them is counted or named."""

import http.server
import json
import os
import subprocess
import threading

from harness import *  # noqa: F403

PROMPT, ANSWER = 20, 5


def bench(*arguments, environment=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KAKEYA_")}
    return subprocess.run([KAKEYA, "bench", *arguments], capture_output=True, text=True, timeout=WAIT,
                          env={**clean, **(environment or {})})


def texts(requests, prompt_tokens):
    """The requests' ids as any program makes them."""
    seed = 7

    def draw():
        nonlocal seed
        seed = (seed * 1664525 + 1013904223) % 2**32
        return seed >> 8
    made = []
    for _ in range(requests):
        n = prompt_tokens // 2 + draw() % prompt_tokens
        made.append([5 + draw() % 900 for _ in range(n)])
    return made


def event(text=None, **more):
    return "data: " + json.dumps({"choices": [] if text is None else [{"index": 0, "text": text}], **more}) + "\n\n"


def usage(tokens, cached=0):
    return event(usage={"prompt_tokens": 9, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}})


WHOLE = [*[event("x")] * ANSWER, usage(ANSWER), "data: [DONE]\n\n"]


class Script(http.server.ThreadingHTTPServer):
    """Answers every completion with the same pieces, each a chunk; `together` of them are begun before the first goes on."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, pieces=WHOLE, status=200, key=None, framing="chunked", together=0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.pieces, self.status, self.key, self.framing = pieces, status, key, framing
        self.met = threading.Barrier(together) if together else None
        self.bodies, self.now, self.most, self.lock = [], 0, 0, threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def allowed(self):
        return not self.server.key or self.headers["authorization"] == f"Bearer {self.server.key}"

    def whole(self, body, status):
        data = body.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        known = self.path == "/v1/models"
        self.whole(json.dumps({"data": [{"id": "the model"}]} if known else {}), 200 if known and self.allowed() else 401)

    def do_POST(self):
        s = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with s.lock:
            s.bodies.append(body)
            s.now += 1
            s.most = max(s.most, s.now)
        if s.met:
            s.met.wait(WAIT)
        with s.lock:
            s.now -= 1  # before the client can know that it is over
        if s.status != 200:
            return self.whole("".join(s.pieces), s.status)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        if s.framing == "chunked":
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in s.pieces:
            data = piece.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if s.framing == "chunked" else data)
            self.wfile.flush()
        if s.framing == "chunked" and s.pieces[-1:] == WHOLE[-1:]:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


def measured(server, requests, *more):
    made = bench("--requests", str(requests), "--prompt-tokens", str(PROMPT), "--answer-tokens", str(ANSWER), "--json", "--repeats",
                 "1", "--url", server.url, *more)
    equal((made.returncode, made.stderr), (0, ""))
    return json.loads(made.stdout)


def refused(server, message, *more):
    made = bench("--requests", "3", "--prompt-tokens", str(PROMPT), "--answer-tokens", str(ANSWER), "--url", server.url, *more)
    equal((made.returncode, made.stdout), (1, ""))
    equal(made.stderr.count("\n"), 1, made.stderr)
    holds(message in made.stderr, made.stderr)


@test("every request has a text of its own, the one that other programs make")
def _():
    s = Script()
    report = measured(s, 40)
    expected = texts(40, PROMPT)
    equal(sorted(b["prompt"] for b in s.bodies), sorted(expected))
    holds(all(PROMPT // 2 <= len(p) < PROMPT // 2 + PROMPT for p in expected), "lengths")
    for body in s.bodies:
        equal({k: body[k] for k in ("model", "max_tokens", "stream", "ignore_eos", "temperature")},
              {"model": "the model", "max_tokens": ANSWER, "stream": True, "ignore_eos": True, "temperature": 0})
    equal((report["requests"], report["prompt_tokens"], report["answer_tokens"]), (40, sum(map(len, expected)), 40 * ANSWER))
    holds(0 < report["first_token_seconds"]["p50"] <= report["first_token_seconds"]["longest"] < report["seconds"]["median"], report)
    holds(report["gap_seconds"]["longest"] > 0, report)


@test("a second run has other texts of the same lengths")
def _():
    s = Script()
    measured(s, 6, "--repeats", "3")
    equal(len({tuple(b["prompt"]) for b in s.bodies}), 18)
    equal(sorted(len(b["prompt"]) for b in s.bodies), sorted(3 * [len(p) for p in texts(6, PROMPT)]))


@test("all are sent at once, or as many as may be under way")
def _():
    equal(measured(Script(together=30), 30)["requests"], 30)
    s = Script(together=4)
    measured(s, 12, "--outstanding", "4")
    equal(s.most, 4)


@test("tokens are those that the server counts; without a count, the pieces")
def _():
    equal(measured(Script([event("ab"), event(""), event("c"), usage(9, 7), "data: [DONE]\n\n"]), 3)["answer_tokens"], 27)
    equal(measured(Script([event("ab"), event(""), event("c"), usage(9, 7), "data: [DONE]\n\n"]), 3)["cached_tokens"], 21)
    equal(measured(Script([event("ab"), event(""), event("c"), "data: [DONE]\n\n"]), 3)["answer_tokens"], 6)


@test("where no text comes, no times of tokens are told")
def _():
    silent = [event(""), usage(9), "data: [DONE]\n\n"]
    report = measured(Script(silent), 3)
    equal((report["answer_tokens"], "first_token_seconds" in report, "gap_seconds" in report), (27, False, False))
    said = bench("--requests", "3", "--prompt-tokens", "8", "--answer-tokens", "9", "--repeats", "1", "--url", Script(silent).url)
    holds("first token  unknown" in said.stdout and "gap" not in said.stdout, said.stdout)


@test("events may be cut anywhere, and need no chunks")
def _():
    letters = [*"".join(WHOLE[:-1]), WHOLE[-1]]
    for framing in ("chunked", "close"):
        equal(measured(Script(letters, framing=framing), 2)["answer_tokens"], 2 * ANSWER)


@test("what is no answer is named")
def _():
    refused(Script(['{"error": {"message": "no, not now"}}'], status=429), "got status 429: no, not now")
    refused(Script(["<html>"], status=500), "got status 500: <html>")
    refused(Script([event("x"), 'data: {"error": {"message": "the device is gone"}}\n\n', "data: [DONE]\n\n"]), "the device is gone")
    refused(Script([event("x")]), "the reply is cut off")
    refused(Script([event("x")], framing="close"), "the stream ended before its [DONE]")
    refused(Script(key="right"), "the server requires a key")
    refused(Script(key="right"), "the server requires a key", "--api-key", "wrong")
    equal(measured(Script(key="right"), 2, "--api-key", "right")["requests"], 2)


@test("a running server answers as the library does")
def _():
    s = Server()
    report = measured(s, 5)
    equal((report["prompt_tokens"], report["answer_tokens"], report["cached_tokens"]), (sum(map(len, texts(5, PROMPT))), 5 * ANSWER, 0))
    s.stop()


run_tests()
