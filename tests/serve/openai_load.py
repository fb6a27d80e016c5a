"""OpenAI's Python client: many at once, clients that leave or do not read, full queues, draining; what is counted and logged."""

import json
import math
import os
import re
import socket
import threading
import time

import openai

from harness import SHORT, WAIT, Server, Skip, dechunk, equal, eventually, holds, in_threads, read_all, run_tests, scripted_model, test
from harness import metrics as read_metrics
from openai_harness import ASK, body_text, chat, client, stream_text, text


@test("44: metrics move by exact amounts; histograms are consistent")
def _():
    s = Server("--name", "demo")
    def now():
        reply = s.get("/metrics")
        equal(reply.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        return read_metrics(reply.body.decode())
    before, prompt, generated, cached = now(), 0, 0, 0
    for i in range(10):
        answer = chat([{"role": "user", "content": f"count {i % 4}"}], s=s, max_tokens=3 + i)
        prompt += answer.usage.prompt_tokens
        generated += answer.usage.completion_tokens
        cached += answer.usage.prompt_tokens_details.cached_tokens
    s.post("/v1/chat/completions", {})
    after = now()
    moved = {k: after[k] - before.get(k, 0) for k in after}
    equal(moved["kakeya_prompt_tokens_total"], prompt)
    equal(moved["kakeya_generation_tokens_total"], generated)
    equal(sum(v for k, v in moved.items() if k.startswith("kakeya_prompt_tokens_cached_total")), cached)
    holds(cached > 0)
    route = "kakeya_request_total|route=/v1/chat/completions|status="
    equal((moved[route + "200"], moved[route + "400"]), (10, 1))
    equal(moved["kakeya_requests_finished_total|reason=length"], 10)
    for name, count in (("time_to_first_token_seconds", 10), ("inter_token_latency_seconds", generated - 10),
                        ("e2e_request_latency_seconds", 10), ("request_prompt_tokens", 10), ("request_generation_tokens", 10),
                        ("request_queue_time_seconds", 10)):
        name = "kakeya_" + name
        equal(moved[name + "_count"], count, name)
        buckets = [(float(k.split("le=")[1]), v) for k, v in after.items() if k.startswith(name + "_bucket")]
        buckets.sort()
        equal(buckets[-1], (math.inf, after[name + "_count"]), name)
        equal([v for _, v in buckets], sorted(v for _, v in buckets), name)
    equal(moved["kakeya_request_prompt_tokens_sum"], prompt)
    equal((after["kakeya_requests_running"], after["kakeya_requests_waiting"]), (0, 0))
    holds(after["kakeya_kv_bytes|kind=full"] > 0 and after["kakeya_process_open_fds"] > 3)
    s.stop()
    secret = Server("--api-key", "k", "--metrics-key")
    equal((secret.get("/metrics").status, secret.get("/metrics", headers={"Authorization": "Bearer k"}).status), (401, 200))
    secret.stop()


def leave_during(s, stream, prompt="x", until=None):
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": prompt}], "stream": stream, "temperature": 2,
                       "ignore_eos": True}).encode()  # hardly a draft holds: many seconds
    c = s.connect()
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    if until:
        until(c)
    c.close()


@test("52: a client that leaves, during the prompt, during the answer, without stream: computing stops, the retry finds the prefix")
def _():
    s = Server("--name", "demo")
    seen = []
    states = lambda: {x["state"] for x in s.get("/slots").json} & {"prompt", "decode"}  # noqa: E731
    state = lambda *wanted: lambda _: seen.append(eventually(lambda: states() & set(wanted), wanted))  # noqa: E731
    words = "some words to read and to remember, one after the other; "
    while seen[-1:] != [{"prompt"}]:  # who stands still does not see the prompt of the first, and has another one
        long = f"{len(seen)} times " + words * 200
        leave_during(s, True, long, state("prompt", "decode"))
        eventually(lambda: s.metric("kakeya_requests_running") == 0, "the prompt stops")
    for stream in (True, False):
        leave_during(s, stream, "Tell me more.", state("decode"))
        eventually(lambda: s.metric("kakeya_requests_running") == 0, "the answer stops")
    equal(s.metric("kakeya_requests_finished_total", reason="cancelled"), len(seen))
    equal(s.metric("kakeya_http_disconnects_total"), len(seen))
    again = chat([{"role": "user", "content": "Tell me more."}], s=s)
    holds(again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 1, again.usage)
    again = chat([{"role": "user", "content": long}], s=s, max_tokens=1)
    holds(again.usage.prompt_tokens_details.cached_tokens > 0, again.usage)
    s.stop()


def read_late(choices, tokens):
    """A client that reads nothing, and then all."""
    said = "The quick brown fox jumps over it."
    s = Server("--name", "demo", model=scripted_model(said))  # whose tokens cost next to nothing
    # 12 MB of events, of which kernels take 4
    body = {"model": "demo", "messages": ASK, "stream": True, "seed": 5, "temperature": 1, "ignore_eos": True, "logprobs": True,
            "top_logprobs": 20, "max_tokens": tokens, "n": choices}
    data = json.dumps(body).encode()
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.settimeout(WAIT)
    c.connect(("127.0.0.1", s.port))
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    eventually(lambda: any(x["state"] == "stalled" for x in s.get("/slots").json), "the answer stalls")
    count = lambda: [x["n_tokens"] for x in s.get("/slots").json]  # noqa: E731

    def rests():
        """Once what was under way has ended, nothing is computed for it while another is answered."""
        tokens = count()
        equal(text(chat(s=s)), said, "others are served")
        return tokens if count() == tokens else None

    holds(eventually(rests, "nothing is computed for it")[0] < choices * tokens)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    received = read_all(c)
    c.close()
    def content(raw):
        parts = re.findall(rb"data: (\{.*\})\n\n", raw)
        texts = [""] * choices
        for choice in (json.loads(p)["choices"][0] for p in parts):
            texts[choice["index"]] += choice["delta"].get("content", "")
        return texts
    body["logprobs"], body["top_logprobs"] = False, None  # which change no token
    equal(content(dechunk(received)), content(s.post("/v1/chat/completions", body).body))
    s.stop()


@test("53: a client that reads nothing stalls alone, and goes on with the same tokens when it reads")
def _():
    read_late(4, 1500)


@test("53: the same where each token is all of a forward, which its thread writes to the client as long as that takes it")
def _():
    read_late(1, 3500)


@test("51: a full queue: 429 with Retry-After; the client retries and succeeds")
def _():
    s = Server("--name", "demo", "--max-batch", "1", "--max-queue", "1")
    holding = [threading.Thread(target=leave_during, args=(s, True, f"hold {i}", lambda c: stop.wait())) for i in range(2)]
    stop = threading.Event()
    holding[0].start()
    eventually(lambda: s.metric("kakeya_requests_running") == 1, "one runs")
    holding[1].start()
    eventually(lambda: s.metric("kakeya_requests_waiting") == 1, "one waits")
    full = s.post("/v1/chat/completions", {"model": "demo", "messages": ASK})
    equal((full.status, full.error["code"], full.error["type"]), (429, "queue_full", "rate_limit_error"))
    holds(1 <= int(full.headers["retry-after"]) <= 60)
    equal([s.get("/slots" + q).status for q in ("", "?fail_on_no_slot=0", "?fail_on_no_slot=1")], [200, 200, 503])
    threading.Timer(0.5, stop.set).start()
    holds(text(client(s, max_retries=8).chat.completions.create(model="demo", messages=ASK, max_tokens=3)))
    for t in holding:
        t.join()
    s.stop()


@test("51b: a request that waits for a place has no thread of its own, on any route; those that give up are passed over")
def _():
    if not os.path.isdir("/proc/self/task"):
        raise Skip("there is no /proc")
    waiting = 64 if SHORT else 400
    s = Server("--name", "demo", "--max-batch", "1", "--max-queue", str(waiting))
    threads = lambda: len(os.listdir(f"/proc/{s.process.pid}/task"))  # noqa: E731
    stop = threading.Event()
    holding = threading.Thread(target=leave_during, args=(s, True, "hold", lambda c: stop.wait()))
    holding.start()
    eventually(lambda: s.metric("kakeya_requests_running") == 1, "one runs")
    before, short = threads(), {"model": "demo", "max_tokens": 2}
    requests = [("/v1/chat/completions", {**short, "messages": ASK}), ("/v1/chat/completions", {**short, "messages": ASK, "stream": True}),
                ("/v1/completions", {**short, "prompt": "a"}), ("/v1/responses", {"model": "demo", "input": "a", "max_output_tokens": 16}),
                ("/v1/messages", {**short, "messages": ASK})]
    connections = []
    for i in range(waiting):
        path, body = requests[i % len(requests)]
        data = json.dumps(body).encode()
        connections.append(s.connect())
        connections[-1].sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                                b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    eventually(lambda: s.metric("kakeya_requests_waiting") == waiting, "all wait")
    holds(threads() <= before + 16, (before, threads()))  # the pool, and what begins late
    equal(s.post("/v1/chat/completions", {**short, "messages": ASK}).status, 429, "the queue is full")
    for c in connections[::3]:
        c.close()
    stays = [c for i, c in enumerate(connections) if i % 3]
    eventually(lambda: s.metric("kakeya_requests_waiting") == len(stays), "who has left does not wait")
    several = []  # a request of several prompts waits for each
    asker = threading.Thread(target=lambda: several.append(s.post("/v1/completions", {**short, "prompt": ["a", "b", "c"]})))
    asker.start()
    eventually(lambda: s.metric("kakeya_requests_waiting") == len(stays) + 1, "it waits, too")
    stop.set()
    for c in stays:
        holds(read_all(c).startswith(b"HTTP/1.1 200 "))
    asker.join()
    equal([c["text"] != "" for c in several[0].json["choices"]], [True] * 3, several[0].body)
    holding.join()
    equal((s.metric("kakeya_requests_running"), s.metric("kakeya_requests_waiting")), (0, 0))
    holds(threads() <= before + 16, (before, threads()))
    s.stop()


@test("57: SIGTERM with streams and waiting requests: the waiting get 503, the streams end, status 0")
def _():
    s = Server("--name", "demo", "--max-batch", "3")
    results, met = [], False

    def ask(i):
        try:
            chunks = list(chat([{"role": "user", "content": f"number {i}"}], s=s, stream=True, max_tokens=400, temperature=2,
                               extra_body={"ignore_eos": True}))
            results.append(chunks[-1].choices[0].finish_reason)
        except openai.APIStatusError as e:
            results.append(e.status_code)

    while not met:  # where threads stand still they come one after the other
        results.clear()
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        while not met and any(t.is_alive() for t in threads):
            now = read_metrics(s.get("/metrics").body.decode())
            met = (now["kakeya_requests_running"], now["kakeya_requests_waiting"]) == (3, 5)
    s.signal(15)
    for t in threads:
        t.join()
    equal(s.wait(), 0)
    equal(sorted(map(str, results)), ["503"] * 5 + ["length"] * 3)
    s.stop()


@test("57: what runs when the drain is over gets an error event")
def _():
    s = Server("--name", "demo", "--drain", "0.2")
    stream = chat(s=s, stream=True, max_tokens=None, temperature=2, extra_body={"ignore_eos": True})
    next(iter(stream))
    s.signal(15)
    try:
        list(stream)
        holds(False, "the stream ended as if it were complete")
    except openai.APIError as e:
        equal(e.code, "draining")
    equal(s.wait(), 0)
    s.stop()


@test("49: 64 streams and one long prompt: every answer is that of a request alone")
def _():
    count = 16 if os.environ.get("KAKEYA_SHORT_SWEEPS") else 64
    alone = [body_text(seed=i, temperature=1, max_tokens=10, messages=[{"role": "user", "content": f"q {i}"}])[0] for i in range(count)]
    long = [{"role": "user", "content": "many words of a long prompt that is read beside the others; " * 150}]

    def stream(i):
        return stream_text(chat([{"role": "user", "content": f"q {i}"}], stream=True, seed=i, temperature=1, max_tokens=10))

    got = in_threads([lambda: text(chat(long, max_tokens=4)), *[lambda i=i: stream(i) for i in range(count)]])
    equal(got[1:], alone)


def took_some(connection):
    try:
        return connection.recv(4096)
    except ConnectionError:
        return b""


@test("F7: a reply that is silent for longer than connections may be idle: it comes whole, streamed or not")
def _():
    silence = float(os.environ.get("SERVE_TEST_SILENCE", "2"))  # 90: the whole case, with the keep-alive that is the default
    s = Server("--name", "demo", "--max-batch", "1", "--keep-alive", str(silence * 2 / 3), "--sse-ping", str(max(0.5, silence / 9)),
               "--threads", "1")
    whole = text(chat(s=s))
    body = json.dumps({"model": "demo", "messages": ASK, "stream": True, "ignore_eos": True, "logprobs": True,
                       "top_logprobs": 20, "n": 16, "temperature": 1}).encode()

    def silent():
        """Two answers come behind one that is read slowly; whether they waited as long as they were to."""
        streamed, waited = [], False
        with s.connect() as holder:  # has the only place, and takes as little as keeps it
            holder.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
            holds(holder.recv(4096))
            answers = [threading.Thread(target=lambda stream=stream: streamed.append(
                stream_text(chat(s=s, stream=True)) if stream else text(chat(s=s)))) for stream in (True, False)]
            for t in answers:
                t.start()
            eventually(lambda: s.metric("kakeya_requests_waiting") == 2 or len(streamed) == 2, "both wait")
            end = time.monotonic() + silence
            while time.monotonic() < end and took_some(holder):
                time.sleep(silence / 40)
            waited = time.monotonic() >= end and s.metric("kakeya_requests_waiting") == 2
        for t in answers:
            t.join()
        equal(streamed, [whole, whole])
        return waited

    holds(any(silent() for _ in range(10)), "the one that is served is still there")  # a client that stands still is cut
    s.stop()


@test("F7: a long silence is filled with comments that clients ignore")
def _():
    s = Server("--name", "demo", "--sse-ping", "0.5", "--threads", "1")
    for words in (350, 700):  # the first half second of the shorter one may end before its prompt begins, or behind it
        long = [{"role": "user", "content": f"{words} " + "many words of a long prompt; " * words}]
        raw = s.post("/v1/chat/completions", {"model": "demo", "messages": long, "max_tokens": 2, "stream": True})
        equal(raw.status, 200)
        if re.search(rb"\n\n: prompt \d+/\d+\n\n", raw.body):
            break
    else:  # a machine that reads so much in half a second
        holds(float(s.metric("kakeya_time_to_first_token_seconds_sum")) < 2.2, raw.body[:500])
    equal(stream_text(chat(long, s=s, stream=True, max_tokens=2)), text(chat(long, s=s, max_tokens=2)))
    s.stop()


@test("props, slots and log lines hold no text of users; --log-json is JSON")
def _():
    s = Server("--name", "demo", "--log-json")
    chat([{"role": "user", "content": "SECRETWORD"}], s=s)
    props = s.get("/props").json
    holds(props["default_generation_settings"]["n_ctx"] > 1000 and props["kakeya"]["attention"] == "native")
    equal(props["chat_template"], "")  # the demo has none
    equal(s.get("/slots?fail_on_no_slot=1").json, [])
    s.stop()
    log = s.log()
    holds("SECRETWORD" not in log)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    answered = [line for line in lines if line.get("path") == "/v1/chat/completions"]
    equal((answered[0]["status"], answered[0]["generated"], answered[0]["finish"]), (200, 24, "length"))


run_tests()
