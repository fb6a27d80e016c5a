"""`kakeya top`: what it shows is what the server said, no line is too long, and what is wrong is said in one line."""

import fcntl
import http.client
import http.server
import json
import os
import pty
import re
import select
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import termios
import threading
import time

from harness import *  # noqa: F403

folder = tempfile.mkdtemp(prefix="kakeya-top-")


def exposition(**values):
    """Metrics with a label as the server writes them; a value may be {label: number}."""
    text = ""
    for name, value in values.items():
        text += f"# HELP kakeya_{name} x\n# TYPE kakeya_{name} gauge\n"
        for labels, number in (value.items() if isinstance(value, dict) else [("", value)]):
            text += f'kakeya_{name}{{{labels}model="m {{1}} x"}} {number}\n'
    return text


def slot(n, **more):
    return {"id": f"req_{n:024d}", "state": "decode", "is_processing": True, "n_ctx": 8192, "n_tokens": 7 * n,
            "prompt_tokens": 1000 * n, "prompt_done": 999 * n, "cached_tokens": 5, "kv_bytes": 1500000 * n,
            "choices": 1, "client": "00", "seconds": 1.25 * n, "params": {}, **more}


class Script(http.server.ThreadingHTTPServer):
    """Answers each path from a list, one after the other; the last one stays."""

    daemon_threads = True

    def __init__(self, answers, key=None, tls=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.key = answers, key
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass

    def next(self, path):
        given = self.answers.get(path)
        return given if not isinstance(given, list) else given.pop(0) if len(given) > 1 else given[0]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body, status = self.server.next(self.path), 200
        if self.server.key and self.path != "/health" and self.headers["authorization"] != f"Bearer {self.server.key}":
            body, status = {"error": {}}, 401
        elif isinstance(body, tuple):
            body, status = body
        elif body is None:
            body, status = {"error": {}}, 404
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


FIRST = dict(
    requests_running=2, requests_waiting=3,
    requests_finished_total={'reason="stop",': 10, 'reason="length",': 20, 'reason="tool_calls",': 30,
                             'reason="cancelled",': 40, 'reason="error",': 50},
    prompt_tokens_total=4000, prompt_tokens_cached_total={'source="live",': 800, 'source="ram",': 150, 'source="disk",': 50},
    generation_tokens_total=1000, forwards_total=400, draft_tokens_total=1000, draft_tokens_accepted_total=710,
    preemptions_total=6, kv_bytes={'kind="full",': 8100000, 'kind="sliding",': 3200000, 'kind="latent",': 0, 'kind="draft",': 1000000},
    kv_room_bytes=85000000000, store_entries={'kind="live",': 4, 'kind="checkpoint",': 9}, store_bytes={'tier="ram",': 45600000},
    process_resident_memory_bytes=180000000, process_cpu_seconds_total=5, http_connections=12)
SECOND = {**FIRST, "generation_tokens_total": 1250, "forwards_total": 500, "prompt_tokens_total": 5000,
          "process_cpu_seconds_total": 5.5}


def script(slots=None, **more):
    return Script({"/health": {"status": "ok", "model": "demo", "backend": "cpu"},
                   "/props": {"model_path": "demo", "total_slots": 64},
                   "/slots": json.dumps([slot(1), slot(2, state="prompt")] if slots is None else slots),
                   "/metrics": [exposition(**FIRST), exposition(**SECOND)]}, **more)


def top(*arguments, environment=None, **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KAKEYA_")}
    return subprocess.run([KAKEYA, "top", *arguments], capture_output=True, text=True, timeout=WAIT,
                          env={**clean, **(environment or {})}, **more)


@test("a server with vLLM's names for metrics, and one that sleeps")
def _():
    s = Server("--metrics-names", "vllm", "--idle-unload", "0.5")
    equal(s.post("/v1/completions", {"model": "demo", "prompt": "Hello.", "max_tokens": 3, "ignore_eos": True}).status, 200)
    made = top(s.url, "--once", "--interval", "0.1")
    equal((made.returncode, made.stderr), (0, ""))
    holds("in all     3 generated, " in made.stdout, made.stdout)
    eventually(lambda: "sleeping: " in s.log(), "it sleeps")
    made = top(s.url, "--once", "--interval", "0.1")
    equal((made.returncode, made.stderr), (0, ""))
    holds(made.stdout.splitlines()[0].endswith("  sleeping"), made.stdout)
    s.stop()


@test("what the server said is shown, number by number")
def _():
    s = script()
    begun = time.monotonic()
    made = top(s.url, "--once", "--interval", "0.3")
    took = time.monotonic() - begun
    equal((made.returncode, made.stderr), (0, ""))
    lines = made.stdout.splitlines()
    for i, line in {0: f"kakeya top  {s.url}  demo  ready",
                    1: "answers    2 running of 64, 3 waiting",
                    2: "ended      10 stop, 20 length, 30 tool calls, 40 cancelled, 50 error",
                    4: "in all     1,250 generated, 5,000 read, 20 % of these cached",
                    5: "forwards   2.50 tokens each, 2.50 in all; 71 % of the drafts kept; 6 preemptions",
                    6: "K/V        12.3 MB: full 8.10 MB, sliding 3.20 MB, latent 0 B, draft 1.00 MB",
                    7: "prefixes   4 idle sessions and 9 checkpoints, 45.6 MB; K/V has room for 85.0 GB",
                    10: "request                    state      prompt     read   answer      K/V  seconds",
                    11: "req_0000000000000000000000 decode      1,000      999        7  1.50 MB      1.2",
                    12: "req_0000000000000000000000 prompt      2,000    1,998       14  3.00 MB      2.5"}.items():
        equal(lines[i], line, i)
    holds(re.fullmatch(r"process    180 MB resident, \d+ % of a core, open connections 12", lines[8]), lines[8])
    # rates: 250 and 1,000 tokens, and half a second of processor time, between the two looks
    generated, read = map(float, re.fullmatch(r"tokens     ([\d.]+)/s generated, ([\d.]+)/s read", lines[3]).groups())
    seconds = 250 / generated
    holds(0.29 <= seconds <= took, f"{seconds} s of {took}")
    holds(abs(read / generated - 4) < 0.01, lines[3])
    equal(len(lines), 13)


@test("at 80 columns and no terminal no line is longer, whatever the numbers and names")
def _():
    big = {k: 10**14 + 123456789 if not isinstance(v, dict) else {n: 10**14 for n in v} for k, v in FIRST.items()}
    s = script(slots=[slot(1, id="x" * 128, state="\x1b[31mred\u00e9\u4e16"), slot(10**9)])
    s.answers["/metrics"] = [exposition(**big)]
    s.answers["/props"] = {"model_path": "a very long name of a model " * 9, "total_slots": 64}
    made = top(s.url, "--once", "--interval", "0.1")
    equal(made.returncode, 0)
    holds(max(map(len, made.stdout.splitlines())) <= 80, made.stdout)
    holds("\x1b" not in made.stdout, "no escape sequences")
    holds("?[31mred " in made.stdout, made.stdout)


@test("without --once views follow each other, until the reader goes")
def _():
    s = script()
    process = subprocess.Popen([KAKEYA, "top", s.url, "--interval", "0.1"], stdout=subprocess.PIPE, text=True)
    seen = [process.stdout.readline() for _ in range(30)]
    equal(seen.count("answers    2 running of 64, 3 waiting\n"), 3)
    equal(seen[3], "tokens     -/s generated, -/s read\n")
    process.stdout.close()
    equal(process.wait(WAIT), 0)


def read_until(fd, wanted):
    data = b""
    end = time.monotonic() + WAIT
    while wanted not in data:
        holds(time.monotonic() < end, f"{wanted} in {data}")
        if select.select([fd], [], [], 1)[0]:
            data += os.read(fd, 65536)
    return data


@test("on a terminal it draws in place, ends with q, and leaves the terminal as it was")
def _():
    s = script(slots=[slot(i) for i in range(1, 40)])
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(child)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KAKEYA_")}
    process = subprocess.Popen([KAKEYA, "top", s.url, "--interval", "0.2"], stdin=child, stdout=child, stderr=child,
                               env={**clean, "TERM": "xterm"})
    data = read_until(parent, b"/s read")
    data += read_until(parent, b"2.50 tokens each")
    holds(data.startswith(b"\x1b[?1049h\x1b[H"), data[:40])
    os.write(parent, b"xq")
    equal(process.wait(WAIT), 0)
    data += read_until(parent, b"\x1b[?1049l")
    equal(termios.tcgetattr(child)[:4], before[:4])
    views = [v for v in data.split(b"\x1b[H")[1:] if b"more" in v]
    for view in views:
        lines = view.split(b"\x1b[J")[0].replace(b"\x1b[K", b"").split(b"\r\n")[:-1]
        equal(len(lines), 23)
        equal(lines[-1], b"and 28 more")
        holds(max(map(len, lines)) <= 80, lines)
    holds(views, data)
    os.close(parent)
    os.close(child)


@test("a server that goes and comes back is waited for on a terminal")
def _():
    s = script()
    parent, child = pty.openpty()
    process = subprocess.Popen([KAKEYA, "top", s.url, "--interval", "0.1"], stdin=child, stdout=child, stderr=child,
                               env={**os.environ, "TERM": "xterm"})
    read_until(parent, b"answers")
    s.answers["/health"] = ({"status": "loading", "progress": 0.42, "error": {}}, 503)
    read_until(parent, b"loading 42 %")
    s.shutdown()
    s.server_close()
    read_until(parent, b"Connection refused")
    process.send_signal(signal.SIGINT)
    equal(process.wait(WAIT), 0)
    os.close(parent)
    os.close(child)


@test("a server that is loading, draining or asleep")
def _():
    s = script()
    s.answers["/health"] = ({"status": "loading", "progress": 0.42, "error": {}}, 503)
    made = top(s.url, "--once", "--interval", "0.1")
    equal(made.returncode, 0)
    equal(made.stdout.splitlines()[0], f"kakeya top  {s.url}    loading 42 %")
    holds("request  " not in made.stdout, made.stdout)
    s.answers["/health"] = {"status": "sleeping", "model": "demo"}
    equal(top(s.url, "--once", "--interval", "0.1").stdout.splitlines()[0], f"kakeya top  {s.url}  demo  sleeping")


@test("the key is sent; a wrong one is said")
def _():
    s = script(key="secret")
    holds(top(s.url, "--once", "--interval", "0.1", "--api-key", "secret").returncode == 0, "with the key")
    equal(top(s.url, "--once", "--interval", "0.1", environment={"KAKEYA_API_KEYS": "secret,other"}).returncode, 0)
    for key in ([], ["--api-key", "wrong"]):
        made = top(s.url, "--once", *key)
        equal((made.returncode, made.stdout), (1, ""))
        equal(made.stderr, f"kakeya top: {s.url}: the server requires a key, or another one (--api-key)\n")


@test("TLS: a certificate that is trusted, one that is not, one for another name")
def _():
    if not shutil.which("openssl"):
        raise Skip("there is no openssl")
    made = {}
    for name, subject in (("right", "IP:127.0.0.1"), ("foreign", "DNS:other.example")):
        made[name] = [os.path.join(folder, f"{name}.{kind}") for kind in ("crt", "key")]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x", "-addext",
                        f"subjectAltName={subject}", "-out", made[name][0], "-keyout", made[name][1]], check=True, capture_output=True)
    s = script(tls=made["right"])
    again = ["--once", "--interval", "0.1"]
    equal(top(s.url, *again, "--tls-ca", made["right"][0]).stderr, "")
    equal(top(s.url, *again, "--tls-insecure").returncode, 0)
    failed = top(s.url, *again)
    equal(failed.returncode, 1)
    holds(re.fullmatch(f"kakeya top: {s.url}: self[- ]signed certificate \\(--tls-ca\\)\n", failed.stderr), failed.stderr)
    s = script(tls=made["foreign"])
    failed = top(s.url, *again, "--tls-ca", made["foreign"][0])
    equal(failed.returncode, 1)
    holds("mismatch" in failed.stderr, failed.stderr)
    failed = top(s.url, *again, "--tls-ca", "/no/such/file")
    equal(failed.stderr, "kakeya top: /no/such/file: no certificates can be read from it\n")


def one_reply(data):
    """A server that sends so and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(data)
    threading.Thread(target=run, daemon=True).start()
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


@test("what is no server of ours is said in one line")
def _():
    head = b"HTTP/1.1 200 OK\r\ncontent-length: "
    for data, why in ((b"", "the connection was closed before a reply"),
                      (b"SSH-2.0-x\r\n", "what answers there does not speak HTTP"),
                      (head + b"50\r\n\r\n{}", "the reply is cut off"),
                      (head + b"2\r\n\r\n{}", "the server there is not kakeya serve"),
                      (head + b"5\r\n\r\n<html", "the server there is not kakeya serve"),
                      (b"HTTP/1.1 302 Found\r\n\r\n", "/health returned status 302: this is not kakeya serve")):
        listener, url = one_reply(data)
        made = top(url, "--once")
        equal((made.returncode, made.stdout, made.stderr), (1, "", f"kakeya top: {url}: {why}\n"))
        listener.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    made = top(url)
    equal((made.returncode, made.stderr), (1, f"kakeya top: {url}: Connection refused\n"))
    for url in ("ftp://x", "http://", "127.0.0.1:80", "http://x:99999", "http://[::1", "http://a@b", "http://a/?q"):
        made = top(url)
        equal((made.returncode, made.stderr), (1, f"kakeya top: '{url}' is not http://HOST:PORT or https://HOST:PORT\n"))
    equal(top("a", "b").returncode, 2)


@test("a real server")
def _():
    s = Server("--api-key", "k")
    port = {"KAKEYA_PORT": str(s.port)}
    made = top("--once", "--interval", "0.1", "--api-key", "k", environment=port)
    equal((made.returncode, made.stderr), (0, ""))
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 9, "temperature": 0,
            "ignore_eos": True}
    usage = s.post("/v1/chat/completions", body, headers={"Authorization": "Bearer k"}).json["usage"]
    made = top("--once", "--interval", "0.1", "--api-key", "k", environment=port)
    lines = made.stdout.splitlines()
    equal(lines[1], "answers    0 running of 64, 0 waiting")
    equal(lines[2], "ended      0 stop, 1 length, 0 tool calls, 0 cancelled, 0 error")
    equal(lines[4], f"in all     9 generated, {usage['prompt_tokens']} read, 0 % of these cached")
    forwards = s.metric("kakeya_forwards_total")
    holds(f"- tokens each, {9 / forwards:.2f} in all; " in lines[5], lines[5])


@test("forwards and their tokens are counted while an answer runs")
def _():
    s = Server()
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 6000, "temperature": 2,
            "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    reply.read(100)

    def counted():
        values = metrics(s.get("/metrics").body.decode())
        holds(values["kakeya_requests_running"] == 1, "it runs")
        tokens, forwards = values["kakeya_generation_tokens_total"], values["kakeya_forwards_total"]
        # Every forward makes its own token and those of its drafts that are kept; the prompt's row makes the first, and one may wait.
        return forwards > 3 and abs(tokens - forwards - values["kakeya_draft_tokens_accepted_total"]) <= 1
    eventually(counted, "tokens are those of the forwards")
    slots = s.get("/slots").json
    equal((len(slots), slots[0]["state"], slots[0]["prompt_done"]), (1, "decode", slots[0]["prompt_tokens"]))
    holds(slots[0]["kv_bytes"] > 0, slots)
    reply.close()
    connection.close()


try:
    run_tests()
finally:
    shutil.rmtree(folder, ignore_errors=True)
