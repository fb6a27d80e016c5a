"""--idle-unload: the model leaves memory while nobody asks, and comes back with the same tokens."""

import os
import shutil
import signal
import tempfile
import time

from harness import *  # noqa: F403

TEXT = open("examples/needle-60.txt").read()
folder = tempfile.mkdtemp(prefix="kakeya-sleep-")
POLLED = "/health", "/livez", "/metrics", "/props", "/slots", "/v1/models", "/v1/models/demo"


def chat(text, **more):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24, **more}


def ask(server, body):
    reply = server.post("/v1/chat/completions", body)
    equal(reply.status, 200, reply.body[:300])
    return reply.json


def status(server):
    return server.get("/health").json["status"]


def asleep(server):
    """The model is closed, not only about to be."""
    closed = server.log().count("sleeping: ") > server.log().count("awake after ")
    return closed and status(server) == "sleeping"


def resident(server, most=False):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(f.read().split("VmHWM:" if most else "VmRSS:")[1].split()[0]) << 10


def wakes_and_sleeps(server):
    """How often it was woken, and how often it slept before; a server that is woken once each time has the same numbers."""
    log = server.log()
    return log.count("awake after"), log.rpartition("awake after")[0].count("sleeping: ")


def is_sanitized():
    return b"__asan_init" in open(KAKEYA, "rb").read() or b"__tsan_init" in open(KAKEYA, "rb").read()


@test("59: a server that nobody asks sleeps: its memory falls, polls change nothing, the next request has the same answer")
def _():
    s = Server("--idle-unload", "2")
    body = chat(TEXT, logprobs=True)
    begun = time.monotonic()
    first = ask(s, body)
    eventually(lambda: [s.get(path) for path in POLLED] and asleep(s), "it sleeps although it is polled")
    holds(time.monotonic() - begun >= 2, "not before its time")
    if not is_sanitized():
        holds(resident(s) < resident(s, most=True) / 3, f"{resident(s, most=True)} bytes, asleep {resident(s)}")
    for path in POLLED:
        equal((path, s.get(path).status), (path, 200))
    health = s.get("/health")
    equal((health.status, health.json["model"]), (200, "demo"))
    holds(s.get("/props").json["is_sleeping"], "props say so")
    woken = s.log().count("awake after")  # 0, but where the machine stood still before the first request
    equal((s.metric("kakeya_sleeping"), s.metric("kakeya_wakes_total", result="ok"), s.metric("kakeya_kv_room_bytes")), (1, woken, 0))
    equal([s.metric("kakeya_kv_bytes", kind=k) for k in ("full", "sliding", "latent", "draft")], [0, 0, 0, 0])
    tokens = s.metric("kakeya_prompt_tokens_total")
    holds(asleep(s), "none of these wakes it")
    again = ask(s, body)
    equal(again["choices"], first["choices"])
    equal(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
    equal(s.metric("kakeya_prompt_tokens_total"), 2 * tokens)

    def awake():
        """What it says of itself behind a request; None if it has fallen asleep again meanwhile."""
        ask(s, chat("Hello.", max_tokens=1))
        slept, woken = s.log().count("sleeping: "), s.log().count("awake after")
        says = (status(s), s.get("/props").json["is_sleeping"], s.metric("kakeya_sleeping"), s.metric("kakeya_kv_room_bytes") > 0,
                s.metric("kakeya_wakes_total", result="ok") - woken)
        return says if s.log().count("sleeping: ") == slept else None

    equal(eventually(awake, "it is awake for a moment"), ("ok", False, 0, True, 0))
    eventually(lambda: asleep(s), "and it sleeps again")
    equal(s.stop(), 0)


@test("requests that meet a sleeping model at the same time wake it once and have the answers that they have otherwise")
def _():
    s = Server("--idle-unload", "2")
    bodies = [chat(f"{i}. Hello.", seed=i, temperature=1) for i in range(6)]
    expected = [ask(s, b)["choices"] for b in bodies]
    for _ in range(2):
        eventually(lambda: asleep(s), "it sleeps")
        replies = in_threads([lambda b=b: ask(s, b)["choices"] for b in bodies])
        equal(replies, expected)
        equal(*wakes_and_sleeps(s))
    equal(s.stop(), 0)


@test("tokenize, messages, responses and a stream wake it too; what is stored is read without the model")
def _():
    s = Server("--idle-unload", "0.5")
    stored = s.post("/v1/responses", {"model": "demo", "input": "Hello.", "temperature": 0, "max_output_tokens": 16})
    equal(stored.status, 200, stored.body[:300])
    for path, body in (("/tokenize", {"content": "Hello."}),
                       ("/v1/messages", {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello."}]}),
                       ("/v1/responses", {"model": "demo", "input": "Hello.", "max_output_tokens": 4}),
                       ("/v1/chat/completions", chat("Hello.", stream=True))):
        eventually(lambda: asleep(s), "it sleeps")
        equal(s.get("/v1/responses/" + stored.json["id"]).json["output"], stored.json["output"])
        holds(asleep(s), "a stored response does not wake it")
        reply = s.post(path, body)
        equal((path, reply.status), (path, 200), reply.body[:300])
    holds(reply.body.endswith(b"data: [DONE]\n\n"), reply.body[-100:])
    equal(s.stop(), 0)


@test("an answer that takes longer than --idle-unload keeps it awake")
def _():
    s = Server("--idle-unload", "0.2")
    reply = ask(s, chat("Hello.", max_tokens=1500, ignore_eos=True))
    equal(reply["usage"]["completion_tokens"], 1500)
    log = s.log()
    equal(log.count("awake after"), log.split(" POST ")[0].count("sleeping: "), log)
    equal(s.stop(), 0)


@test("with a directory a conversation goes on where it was, from its file")
def _():
    s = Server("--idle-unload", "0.5", "--session-dir", os.path.join(folder, "sessions"))
    body = chat(TEXT)
    first = ask(s, body)
    eventually(lambda: asleep(s), "it sleeps")
    holds([f for f in os.listdir(os.path.join(folder, "sessions")) if f.endswith(".kkc")], "there is a file")
    saved = s.metric("kakeya_prompt_tokens_cached_total", source="disk")
    again = ask(s, body)
    equal(again["choices"], first["choices"])
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    holds(cached > 512, cached)
    equal(s.metric("kakeya_prompt_tokens_cached_total", source="disk"), saved + cached)
    equal(s.stop(), 0)


@test("a model that has gone, and another one in its place: a line, 503, and the server lives on")
def _():
    path, away = os.path.join(folder, "model"), os.path.join(folder, "away")
    shutil.copytree(os.path.join(MODELS, "demo"), path)
    s = Server("--idle-unload", "0.5", "--name", "demo", model=path)
    expected = ask(s, chat("Hello."))["choices"]
    eventually(lambda: asleep(s), "it sleeps")
    os.rename(path, away)
    replies = in_threads([lambda: s.post("/v1/chat/completions", chat("Hello.")) for _ in range(3)])
    for reply in replies:
        equal((reply.status, reply.error["code"], reply.error["type"]), (503, "waking", "unavailable_error"))
        holds(path in reply.error["message"] and "\n" not in reply.error["message"], reply.error)
        holds(int(reply.headers["retry-after"]) >= 1, reply.headers)
    message = s.post("/v1/messages", {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello."}]})
    equal((message.status, message.error["type"]), (529, "overloaded_error"))
    equal(status(s), "sleeping")
    other = scripted_model("Something else.")
    shutil.copytree(other, path)
    reply = s.post("/v1/chat/completions", chat("Hello."))
    equal((reply.status, reply.error["code"]), (503, "waking"))
    holds("no longer the model" in reply.error["message"], reply.error)
    shutil.rmtree(path)
    os.rename(away, path)
    equal(ask(s, chat("Hello."))["choices"], expected)
    failed = s.log().count("the model cannot be loaded again")
    equal([s.metric("kakeya_wakes_total", result=r) for r in ("ok", "failed")], [s.log().count("awake after"), failed])
    equal(s.stop(), 0)


@test("clients that leave while it wakes, and a server that ends while it wakes")
def _():
    for delay in (0, 0.01, 0.03, 0.06, 0.1)[:2 if SHORT else 5]:
        s = Server("--idle-unload", "0.5")
        eventually(lambda: asleep(s), "it sleeps")
        for _ in range(3):
            with s.connect() as gone:
                body = json.dumps(chat("Hello.")).encode()
                gone.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                             b"content-length: %d\r\n\r\n%s" % (len(body), body))
        with s.connect() as waiting:
            waiting.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
            time.sleep(delay)
            s.signal(signal.SIGTERM)
            reply = read_all(waiting)
        equal(s.wait(), 0, s.log())
        holds(not reply or b" 200 " in reply[:20] or (b" 503 " in reply[:20] and b'"draining"' in reply), reply[:300])
        s.stop()


@test("a server that ends while it falls asleep, or sleeps, exits with 0")
def _():
    for delay in (0.45, 0.5, 0.6, 1.5)[:2 if SHORT else 4]:
        s = Server("--idle-unload", "0.4", "--session-dir", os.path.join(folder, f"end-{delay}"))
        ask(s, chat(TEXT))
        time.sleep(delay)
        equal(s.stop(), 0, s.log())


@test("--idle-unload and --wake-wait outside of their range are refused")
def _():
    for option, value in (("--idle-unload", "-1"), ("--idle-unload", "soon"), ("--wake-wait", "0")):
        made = subprocess.run([KAKEYA, "serve", option, value], capture_output=True, text=True, timeout=WAIT)
        equal((made.returncode, made.stdout), (2, ""))
        holds(option in made.stderr and value in made.stderr, made.stderr)


try:
    run_tests()
finally:
    shutil.rmtree(folder, ignore_errors=True)
