"""Prefill apart from decode: one server computes prompts, another one generates, and a directory is all that they share. With --figures:
seconds to the first token of a long prompt."""

import http.client
import json
import os
import shutil
import statistics
import tempfile

import sidecar
from harness import *  # noqa: F403
from pictures import picture, png, text

TEXT = open("examples/needle-60.txt").read()
folder = tempfile.mkdtemp(prefix="kakeya-apart-")
LONG = (TEXT * 5)[:21000]  # about 7,000 tokens
SMALL_STEP = 16            # positions: what a checkpoint may lack of a prompt, and no more


def user(text):
    return {"role": "user", "content": text}


def body(text, **more):
    return {"model": "demo", "messages": [user(text)], "temperature": 0, "max_tokens": 12, **more}


def post(port, path, body, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    reply = connection.getresponse()
    text = reply.read()
    equal(reply.status, 200, text[:300])
    return json.loads(text)


def chat(s, **request):
    return post(s.port, "/v1/chat/completions", request)


def said(answer):
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def finish(answer):
    return [c["finish_reason"] for c in answer["choices"]]


def directory(name):
    path = os.path.join(folder, name)
    os.mkdir(path, 0o700)
    return path


def files(path):
    return sorted(f for f in os.listdir(path) if f.endswith(".kkc") and not f.startswith("."))


def prompt_rows(s):
    """Positions of prompts that the server has computed, the forwards that had some, and those with few."""
    text = metrics(s.get("/metrics").body.decode())
    kind = "|kind=prompt"
    return [int(text[f"kakeya_iteration_tokens_{what}"]) for what in
            (f"sum{kind}", f"count{kind}", f"bucket{kind}|le={SMALL_STEP}")]


def moved(s, before):
    return [b - a for a, b in zip(before, prompt_rows(s))]


class Stream:
    """An answer that goes on until it is closed."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        endless = body("Hello.", stream=True, max_tokens=-1, ignore_eos=True)
        self.connection.request("POST", "/v1/chat/completions", json.dumps(endless), {"Content-Type": "application/json"})
        self.reply = self.connection.getresponse()
        equal(self.reply.status, 200)
        while b'"content":"' not in (line := self.reply.readline()) or b'"content":""' in line:  # its own prompt is computed
            holds(line, "the stream goes on")

    def close(self):
        self.reply.close()
        self.connection.close()


@test("cache_hit_threshold: below it nothing is computed, and the answer says so; also where every place is taken")
def _():
    s = Server("--name", "demo", "--max-batch", "1")
    asked = body(TEXT)
    whole = chat(s, **asked)
    stream = Stream(s.port)
    before = prompt_rows(s)
    other = body("Something else. " + TEXT)
    declined = chat(s, **other, cache_hit_threshold=0.5)
    equal((finish(declined), said(declined), cached(declined)), (["cache_threshold"], "", 0))
    equal((declined["usage"]["completion_tokens"], declined["usage"]["prompt_tokens"] > 1000), (0, True))
    equal(finish(chat(s, **{**other, "cache_hit_threshold": 0.5, "n": 3, "temperature": 1})), ["cache_threshold"] * 3)
    reply = post(s.port, "/v1/responses", {"model": "demo", "input": other["messages"][0]["content"], "cache_hit_threshold": 0.5})
    equal((reply["status"], reply["incomplete_details"], reply["output"]), ("incomplete", {"reason": "cache_threshold"}, []))
    raw = {"model": "demo", "messages": other["messages"], "max_tokens": 9, "cache_hit_threshold": 0.5}
    reply = post(s.port, "/v1/messages", raw)
    equal((reply["stop_reason"], "".join(block["text"] for block in reply["content"])), ("cache_threshold", ""))
    raw = {"model": "demo", "prompt": "Something else. " + TEXT, "cache_hit_threshold": 1}
    equal(finish(post(s.port, "/v1/completions", raw)), ["cache_threshold"])
    reply = s.post("/v1/chat/completions", {**other, "cache_hit_threshold": 0.5, "stream": True, "stream_options": {"include_usage": True}})
    chunks = [json.loads(x[6:]) for x in reply.body.decode().split("\n\n") if x.startswith("data: {")]
    equal([[c["finish_reason"] for c in x["choices"]] for x in chunks], [["cache_threshold"], []], "in the first chunk")
    equal(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
    raw = s.post("/v1/completions", {**raw, "stream": True}).body.decode()
    equal(json.loads(raw.split("\n\n")[0][6:])["choices"][0]["finish_reason"], "cache_threshold")
    equal(moved(s, before), [0, 0, 0])
    equal(s.metric("kakeya_requests_finished_total", reason="cache_threshold"), 7)
    stream.close()
    again = chat(s, **asked, cache_hit_threshold=0.9)
    equal((finish(again), said(again)), (finish(whole), said(whole)), "most of it is known")
    holds(cached(again) >= 0.9 * again["usage"]["prompt_tokens"], again["usage"])
    for wrong in (-0.1, 1.5, "x"):
        reply = s.post("/v1/chat/completions", {**asked, "cache_hit_threshold": wrong})
        equal((reply.status, reply.error["param"]), (400, "cache_hit_threshold"))
    s.stop()


@test("what is declined costs a conversation nothing of what is known of it")
def _():
    found = []
    for asks_between in (True, False):
        s = Server("--name", "demo")
        talk = [user(TEXT)]
        first = chat(s, **body("", messages=talk, max_tokens=200, min_tokens=200))
        longer = [*talk, {"role": "assistant", "content": said(first)}, user("Go on.")]
        if asks_between:
            equal(finish(chat(s, **body("", messages=[user(TEXT[:2500] + "?")], cache_hit_threshold=0.99))), ["cache_threshold"])
        found.append(cached(chat(s, **body("", messages=longer))))
        s.stop()
    equal(found[0], found[1])
    holds(found[0] > first["usage"]["prompt_tokens"] + 150, f"{found} of {first['usage']}")


@test("a request for one token has its prompt in a file before it is answered; short prompts have none")
def _():
    path = directory("written")
    s = Server("--name", "demo", "--session-dir", path)
    chat(s, **body("Hello.", max_tokens=1))
    equal(files(path), [])
    answer = chat(s, **body(TEXT, max_tokens=1, max_completion_tokens=1, cache_hit_threshold=0))
    equal(len(files(path)), 1)
    chat(s, **body(TEXT, max_tokens=1))
    equal(len(files(path)), 1, "it is there already")
    other = Server("--name", "demo", "--session-dir", path)
    taken = chat(other, **body(TEXT, cache_hit_threshold=0.9))
    holds(answer["usage"]["prompt_tokens"] - cached(taken) <= SMALL_STEP, taken["usage"])
    ids = chat(s, **body(TEXT, max_tokens=1, return_token_ids=True))["prompt_token_ids"][:1000]
    raw = {"model": "demo", "prompt": ids, "temperature": 0}
    post(s.port, "/v1/completions", {**raw, "max_tokens": 1})
    taken = post(other.port, "/v1/completions", {**raw, "max_tokens": 8, "cache_hit_threshold": 0.9})
    equal((cached(taken), finish(taken)), (999, ["length"]), "ids that end nowhere in particular")
    for server in (s, other):
        equal(server.stop(), 0)


@test("a prefiller, a decoder and a sidecar: the same tokens, and the decoder computes no prompt beside its answers")
def _():
    path = directory("apart")
    alone = Server("--name", "demo", "--session-dir", directory("alone"))
    prefiller = Server("--name", "demo", "--session-dir", path)
    decoder = Server("--name", "demo", "--session-dir", path)
    proxy = sidecar.start(f"127.0.0.1:{decoder.port}")
    routed = {"x-prefiller-host-port": f"127.0.0.1:{prefiller.port}"}
    stream = Stream(decoder.port)
    before = prompt_rows(decoder)
    for more in ({}, {"temperature": 1, "seed": 7}):
        asked = body(f"{more} {LONG}", **more)
        answer = post(proxy.server_port, "/v1/chat/completions", asked, routed)
        equal(said(answer), said(chat(alone, **asked)), f"{more}")
        holds(answer["usage"]["prompt_tokens"] > 6500, answer["usage"])
        holds(answer["usage"]["prompt_tokens"] - cached(answer) <= SMALL_STEP, answer["usage"])
    rows, forwards, small = moved(decoder, before)
    holds(rows <= 2 * SMALL_STEP and forwards == small, f"{rows} rows in {forwards} forwards, {small} of them short")
    holds(prompt_rows(prefiller)[0] > 13000, "the prefiller has computed them")
    equal(decoder.metric("kakeya_requests_finished_total", reason="cache_threshold"), 2)
    # the decoder knows it now: nobody is asked
    asked["messages"] += [{"role": "assistant", "content": said(answer)}, user("Again.")]
    at_prefiller = prompt_rows(prefiller)
    answer = post(proxy.server_port, "/v1/chat/completions", asked, routed)
    equal(moved(prefiller, at_prefiller), [0, 0, 0])
    equal(said(answer), said(chat(alone, **asked)))
    # without the sidecar the same server stops for a prompt again and again
    before = prompt_rows(decoder)
    chat(decoder, **body("Straight. " + LONG))
    rows, forwards, small = moved(decoder, before)
    holds(rows > 6500 and small < forwards, f"{rows} rows in {forwards} forwards, {small} of them short")
    reply = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=WAIT)
    reply.request("POST", "/v1/chat/completions", json.dumps(body("Streamed. " + TEXT, stream=True)),
                  {"Content-Type": "application/json", **routed})
    text = reply.getresponse().read().decode()
    parts = [json.loads(x[6:])["choices"][0] for x in text.split("\n\n") if x.startswith("data: {")]
    equal("".join(p["delta"].get("content", "") for p in parts), said(chat(alone, **body("Streamed. " + TEXT))))
    stream.close()
    # a prefiller that is gone costs time, not the answer
    prefiller.process.kill()
    prefiller.process.wait()
    asked = body("Alone now. " + TEXT)
    equal(said(post(proxy.server_port, "/v1/chat/completions", asked, routed)), said(chat(alone, **asked)))
    proxy.shutdown()
    prefiller.stop()
    for server in (alone, decoder):
        equal(server.stop(), 0)


@test("pictures: the decoder reads their rows from the file, and its tower computes nothing")
def _():
    path = directory("pictures")
    options = ("--name", "demo", "--backend", "cpu", "--precision", "f32", "--image-budget", "70", "--session-dir", path)
    prefiller, decoder = (Server(*options, model="tests/data/vision/tiny-tower") for _ in range(2))
    for parts in ([text("What is it? " * 60), picture(png(160, 120)), text("What is this? " * 20)],
                  [text("What is it? " * 90), picture(png(90, 200))]):
        asked = body("", messages=[{"role": "user", "content": parts}], ignore_eos=True)
        equal(finish(chat(decoder, **asked, cache_hit_threshold=0.8)), ["cache_threshold"])
        chat(prefiller, **{**asked, "max_tokens": 1})
        answer = chat(decoder, **asked, cache_hit_threshold=0.8)
        holds(answer["usage"]["prompt_tokens"] - cached(answer) <= SMALL_STEP, answer["usage"])
        equal(said(answer), said(chat(prefiller, **asked, cache_prompt=False)))
    equal(decoder.metric("kakeya_images_computed_total"), 0)
    for server in (prefiller, decoder):
        equal(server.stop(), 0)


@test("bounded attention: the same, each policy with files of its own")
def _():
    path = directory("bounded")
    policies = {"native": (), "sink-window": ("--attention", "sink-window", "--window", "256")}
    servers = {name: [Server("--name", "demo", "--session-dir", path, *options) for _ in range(2)] for name, options in policies.items()}
    for name, (prefiller, decoder) in servers.items():
        asked = body(f"Policy {name}. " + TEXT)
        chat(prefiller, **{**asked, "max_tokens": 1})
        answer = chat(decoder, **asked, cache_hit_threshold=0.5)
        equal(finish(answer), ["length"] if answer["usage"]["completion_tokens"] == 12 else ["stop"], name)
        equal(said(answer), said(chat(prefiller, **asked, cache_prompt=False)), name)
    equal(finish(chat(servers["native"][1], **body("Policy sink-window. " + TEXT), cache_hit_threshold=0.5)), ["cache_threshold"])
    for server in sum(servers.values(), []):
        equal(server.stop(), 0)


@test("a file of another instruction set is a miss, not another answer")
def _():
    path = directory("sets")
    scalar = Server("--name", "demo", "--session-dir", path, "--isa", "scalar")
    best = Server("--name", "demo", "--session-dir", path)
    if best.get("/props").json["kakeya"]["backend"].startswith("cpu/scalar"):
        raise Skip("there is but one here")
    asked = body(TEXT[:2400])
    first = chat(scalar, **{**asked, "max_tokens": 1})
    holds(first["usage"]["prompt_tokens"] > 600 and files(path), "it has a file")
    equal(finish(chat(best, **asked, cache_hit_threshold=0.01)), ["cache_threshold"])
    answer = chat(best, **asked)
    equal(cached(answer), 0)
    equal(said(answer), said(chat(best, **asked, cache_prompt=False)))
    for server in (scalar, best):
        equal(server.stop(), 0)


def first_token(port, text):
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    connection.request("POST", "/v1/chat/completions", json.dumps(body(text, stream=True)),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    while True:
        line = reply.readline()
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            seconds = time.monotonic() - begin
            reply.read()
            return seconds


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def figures():
    path = directory("figures")
    prefiller = Server("--name", "demo", "--session-dir", path)
    computing, loading = [], []
    for i in range(5):
        text = f"Round {i}. {LONG}"
        computing.append(first_token(prefiller.port, f"Alone. {text}"))
        chat(prefiller, **body(text, max_tokens=1))
        decoder = Server("--name", "demo", "--session-dir", path)
        loading.append(first_token(decoder.port, text))
        decoder.stop()
    prefiller.stop()
    print(f"first token of about 7,000 tokens, s: computed {spread(computing, 2)}, from the directory {spread(loading, 2)}")


try:
    if sys.argv[1:] == ["--figures"]:
        figures()
    else:
        run_tests()
finally:
    Server.stop_all()
    shutil.rmtree(folder, ignore_errors=True)
