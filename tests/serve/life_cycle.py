"""The life of a server: what it says before it starts, sleep, limits of time, clocks that jump, what it leaves."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from harness import *  # noqa: F403

TEXT = open("examples/needle-60.txt").read()
folder = tempfile.mkdtemp(prefix="kakeya-life-")
# Limits of memory below were chosen for sessions that hold a drafter's context and two latents.
FORMER = ("--f-theta", os.path.abspath("tests/data/golden/demo-f-theta-regression"))


def kakeya(*arguments):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KAKEYA_")}
    return subprocess.run([KAKEYA, *arguments], capture_output=True, text=True, env=clean, timeout=WAIT)


def ask(server, messages, **more):
    reply = server.post("/v1/chat/completions",
                        {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24, **more})
    equal(reply.status, 200, reply.body[:300])
    answer = reply.json
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def user(text):
    return {"role": "user", "content": text}


@test("a model file that is cut while it is mapped: 500, and the model is loaded again, or the server ends and says why")
def _():
    copy, shard = os.path.join(folder, "cut"), "model-00002-of-00003.safetensors"
    shutil.copytree(os.path.join(MODELS, "demo"), copy)
    s = Server("--name", "demo", model=copy)
    body = {"model": "demo", "messages": [user("x")], "temperature": 0, "max_tokens": 8}
    whole = s.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
    path = os.path.join(copy, shard)
    with open(path, "rb") as f:
        data = f.read()
    os.truncate(path, 4096)
    # it comes back before the model is loaded again: another file of this name, not the one that is mapped
    with open(path + ".new", "wb") as f:
        f.write(data)
    os.rename(path + ".new", path)
    reply = s.post("/v1/chat/completions", body)
    equal((reply.status, reply.error["code"]), (500, "backend"), reply.body)
    again = s.post("/v1/chat/completions", body)
    equal((again.status, again.json["choices"][0]["message"]["content"]), (200, whole), again.body)
    os.truncate(path, 4096)
    equal(s.post("/v1/chat/completions", body).status, 500)
    eventually(lambda: s.process.poll() is not None, "what cannot be loaded ends the server")
    equal(s.process.poll(), 1, s.log())
    holds(f"{shard}: bytes are gone" in s.log() and f"{shard}: the file has" in s.log() or "truncated" in s.log(), s.log())


# ------------------------------------------------------------------------------------------------- before the start


@test("58: --dry-run says what fits and ends")
def _():
    made = kakeya("serve", "--dry-run", "--context", "6000")
    equal((made.returncode, made.stderr), (0, ""))
    for line in ("K/V native, bf16: 512 B per token", "for a session of 6,000 tokens", "sessions of 1,000 tokens",
                 "64 answers at a time", "restored, all layers"):
        holds(line in made.stdout, f"{line}: {made.stdout}")


@test("58: the numbers are those of info, and of the server")
def _():
    options = ["--context", "6000", "--attention", "sink-window"]
    told = json.loads(kakeya("serve", "--dry-run", "--json", "--memory-limit", "60M", *options).stdout)
    equal((told["model"], told["context"], told["attention"], told["memory_limited"]), ("demo", 6000, "sink-window", True))
    memory = told["room"]["memory_bytes"]
    equal(memory - told["room"]["weights_bytes"], 60 << 20)
    info = json.loads(kakeya("info", "--json", "--sessions", "--backend", "cpu", "--memory", str(memory), *options).stdout)
    for row in told["room"]["rows"]:
        holds(row in info["room"]["rows"], row)
    own = [r for r in told["room"]["rows"] if r["tokens"] == 6000 and r["attention"] == "sink-window"][0]
    equal((own["kv_bytes"], own["sessions"]), (told["kv_bytes_per_session"], told["sessions"]))
    holds(told["sessions"] > 0, told)
    s = Server(*options)
    props = s.get("/props").json["kakeya"]
    equal(props["kv_bytes_of_a_full_context"], told["kv_bytes_per_session"])
    equal(props["kv_bytes_per_token"], told["kv_bytes_per_token"])
    s.stop()
    holds("K/V sink-window, bf16: " in s.log(), s.log())
    # before the first session there is no table of positions, which takes 0.4 MB for up to 1,024 tokens
    quiet = kakeya("serve", "--dry-run", "--json", "--context", "1000", "--threads", "1")  # as the server
    told = json.loads(quiet.stdout)["workspace_bytes"] / 1e6
    held = float(s.said(r"([\d.]+) MB for workspace").group(1))
    holds(0.99 * (told - 0.4) <= held <= 1.01 * (told - 0.4), f"{held} MB are held, {told} were told")


@test("58: no room for a session: exit 1 with the numbers")
def _():
    small = (*FORMER, "--vision", "off")  # of the 38 MB a picture would take 6
    for more in ([], ["--dry-run"]):
        made = kakeya("serve", *more, "--port", "0", "--grpc", "off", "--context", "8000", "--memory-limit", "38M", *small)
        equal((made.returncode, made.stdout), (1, ""))
        equal(made.stderr.count("\n"), 1)
        for part in ("no session of 8,000 tokens fits", " MB", "of 39.8 MB that --memory-limit allows", "--context "):
            holds(part in made.stderr, f"{part}: {made.stderr}")
    # the context that it names is one that fits
    context = made.stderr.split("--context ")[1].split()[0]
    equal(kakeya("serve", "--dry-run", "--context", context, "--memory-limit", "38M", *small).returncode, 0)
    # nobody has asked for long sessions: shorter ones will do
    made = kakeya("serve", "--dry-run", "--memory-limit", "36M", *small)
    equal(made.returncode, 0)
    holds(", 0 of 8,192" in made.stdout and "the longest session that fits has " in made.stdout, made.stdout)


@test("with --log-json the room is a JSON object of the log")
def _():
    s = Server("--log-json", "--context", "4096")
    s.stop()
    first = json.loads(s.log().splitlines()[0])
    equal((first["capacity"]["context"], first["capacity"]["max_batch"]), (4096, 64))


# ------------------------------------------------------------------------------------------------------ while it runs


def chat(text, **more):
    return {"model": "demo", "messages": [user(text)], "temperature": 0, **more}


LONG = dict(max_tokens=7000, ignore_eos=True, temperature=2)  # hardly a draft holds: many seconds anywhere


def stream(server, body, timeout=None):
    """A stream whose head has come: the reply and its connection. Under a limit of time that may be over before the head comes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout or WAIT)
    connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    equal(reply.status, 200)
    return reply, connection


def events(reply):
    """(comments, JSON objects) of a whole stream that ends as it should."""
    lines = reply.read().decode().split("\n\n")
    equal(lines[-2:], ["data: [DONE]", ""])
    return [x for x in lines if x.startswith(":")], [json.loads(x[6:]) for x in lines[:-2] if x.startswith("data: ")]


def within_limit(function):
    """What a small request brings. Where the machine stands still for longer than --request-timeout, the request is made again."""
    def once():
        try:
            return function()
        except AssertionError as e:
            holds("503" in str(e), str(e))

    return eventually(once, "a small request is answered in time")


@test("--request-timeout ends an answer, whole or streamed, and nothing else")
def _():
    s = Server("--request-timeout", "1", "--threads", "1")
    reply = s.post("/v1/chat/completions", chat("Hello.", **LONG))
    equal((reply.status, reply.error["code"], reply.headers.get("x-should-retry")), (503, "timeout", "false"))
    reply, connection = within_limit(lambda: stream(s, chat("Hello.", **LONG)))
    last = events(reply)[1][-1]
    equal(last["error"]["code"], "timeout")
    connection.close()
    within_limit(lambda: ask(s, [user("Hello.")]))
    over = s.log().count("completions 503 ") + 1  # and the one that was over in mid-stream
    equal(s.metric("kakeya_requests_finished_total", reason="error"), over)
    equal(s.metric("kakeya_requests_finished_total", reason="cancelled"), 0)
    equal(s.get("/slots").json, [])
    s.stop()


@test("--max-wait refuses what would wait longer, and says how long")
def _():
    s = Server("--max-batch", "1", "--max-wait", "0.001")
    first, _ = ask(s, [user(TEXT)])  # from here on the speed is known
    reply, connection = stream(s, chat("Hello.", **LONG))
    reply.read(50)
    refused = s.post("/v1/chat/completions", chat(TEXT + TEXT))
    equal((refused.status, refused.error["code"]), (429, "queue_full"))
    holds(1 <= int(refused.headers["retry-after"]) <= 60, refused.headers)
    reply.close()
    connection.close()
    eventually(lambda: s.get("/slots").json == [], "the place is free")
    equal(ask(s, [user(TEXT)])[0], first)
    s.stop()


@test("timings_per_token and return_progress")
def _():
    s = Server()
    body = chat(TEXT, max_tokens=8, ignore_eos=True, stream_options={"include_usage": True})
    chunks = events(stream(s, body)[0])[1]
    with_timings = [c for c in chunks if "timings" in c]
    equal([bool(c["choices"]) for c in with_timings], [True, False])  # the finish_reason's, and the usage's
    equal(with_timings[0]["timings"]["predicted_n"], with_timings[1]["timings"]["predicted_n"])
    holds(not [c for c in chunks if "prompt_progress" in c], "not asked for")
    for usage in (False, True):  # text completions likewise
        raw = s.post("/v1/completions", {"model": "demo", "prompt": ["Hello.", "Once"], "max_tokens": 5, "ignore_eos": True, "stream": True,
                                         "stream_options": {"include_usage": usage}}).body.decode()
        chunks = [json.loads(x[6:]) for x in raw.split("\n\n")[:-2]]
        equal([c["timings"]["predicted_n"] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]], [5, 5])
        equal([c["timings"]["predicted_n"] for c in chunks if not c["choices"]], [10] if usage else [])
        holds(not [c for c in chunks if "timings" in c and c["choices"] and not c["choices"][0]["finish_reason"]], "at the ends alone")
    chunks = events(stream(s, chat("Once. " + TEXT + TEXT, max_tokens=8, ignore_eos=True, timings_per_token=True, return_progress=True,
                                   cache_prompt=False, stream_options={"include_usage": True}))[0])[1]
    usage = chunks[-1]["usage"]
    progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
    holds(len(progress) >= 2, f"{len(progress)} of them")
    equal({p["total"] for p in progress}, {usage["prompt_tokens"]})
    equal([p["processed"] for p in progress], sorted(p["processed"] for p in progress))
    holds(all(p["processed"] <= p["total"] and p["cache"] == 0 and p["time_ms"] >= 0 for p in progress), progress)
    spoken = [c for c in chunks if c["choices"] and c["choices"][0]["delta"].get("content")]
    holds(spoken and all("timings" in c for c in spoken), "every chunk of the text has timings")
    numbers = [c["timings"]["predicted_n"] for c in spoken]
    holds(numbers == sorted(numbers) and 1 <= numbers[0] and numbers[-1] <= 8, numbers)
    memory = [c["timings"]["kv_bytes"] for c in chunks if "timings" in c]
    holds(memory[0] > 0 and memory == sorted(memory), f"K/V memory of a session that grows: {memory}")
    holds(all(c["usage"] is None for c in chunks[:-1]), "usage comes last")
    s.stop()


@test("a constrained answer that nobody reads is not computed on, and has the same tokens when it is read")
def _():
    s = Server()
    # 12 MB of events, of which the kernel takes 4 to 8
    body = chat("Hello.", max_tokens=500, n=16, guided_regex="[0-9]{1000}", logprobs=True, top_logprobs=20)
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.settimeout(WAIT)
    c.connect(("127.0.0.1", s.port))
    data = json.dumps({**body, "stream": True}).encode()
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    eventually(lambda: [x["state"] for x in s.get("/slots").json] == ["stalled"], "it stalls")

    def count():
        return s.get("/slots").json[0]["n_tokens"]

    eventually(lambda: count() == (time.sleep(0.3), count())[1], "what was under way has ended")
    computed = count()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    received = dechunk(read_all(c))
    c.close()
    parts = [json.loads(x[6:])["choices"][0] for x in received.decode().split("\n\n")[:-2]]
    whole = s.post("/v1/chat/completions", {**body, "logprobs": False, "top_logprobs": None}).json  # which change no token
    for choice in whole["choices"]:
        own = [p for p in parts if p["index"] == choice["index"]]
        equal("".join(p["delta"].get("content", "") for p in own), choice["message"]["content"])
        equal(own[-1]["finish_reason"], choice["finish_reason"])
    holds(0 < computed < whole["usage"]["completion_tokens"] / 16, f"{computed} of {whole['usage']}")
    s.stop()


@test("prediction: drafts from a text that the client expects; the same answer whatever it says")
def _():
    s = Server("--drafter", "none")
    plain = ask(s, [user(TEXT)], max_tokens=120, ignore_eos=True)[0]

    def predicted(content):
        reply = s.post("/v1/chat/completions", chat(TEXT, max_tokens=120, ignore_eos=True,
                                                    prediction={"type": "content", "content": content}))
        equal(reply.status, 200, reply.body[:300])
        equal(reply.json["choices"][0]["message"]["content"], plain)
        holds("prediction" not in reply.headers.get("x-kakeya-ignored", ""), reply.headers)
        details = reply.json["usage"]["completion_tokens_details"]
        return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]

    def streamed():
        chunks = events(stream(s, chat(TEXT, max_tokens=120, ignore_eos=True, prediction={"type": "content", "content": plain},
                                       stream_options={"include_usage": True}))[0])[1]
        return chunks[-1]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]

    # Whether drafts are tried depends on what forwards have taken: where the machine stood still in one, it may be few.
    eventually(lambda: predicted(plain)[0] > 40, "a text")
    eventually(lambda: predicted([{"type": "text", "text": plain[:100]}, {"type": "text", "text": plain[100:]}])[0] > 40, "its parts")
    eventually(lambda: streamed() > 40, "in a stream")
    equal(predicted("Nothing like it. " * 9)[0], 0)
    equal(predicted(""), (0, 0))
    for wrong, param in (("x", "prediction"), ({"type": "content"}, "prediction.content"),
                         ({"type": "content", "content": 3}, "prediction.content"), ({"type": "image", "content": "x"}, "prediction.type"),
                         ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content")):
        reply = s.post("/v1/chat/completions", chat("Hello.", prediction=wrong))
        equal((reply.status, reply.error["param"]), (400, param), wrong)
    s.stop()


@test("405 names the methods of the path")
def _():
    s = Server()
    for method, path, allowed in (("DELETE", "/v1/models", "GET, HEAD, OPTIONS"), ("GET", "/v1/responses", "POST, OPTIONS"),
                                  ("POST", "/v1/responses/resp_x", "GET, HEAD, DELETE, OPTIONS"),
                                  ("GET", "/v1/responses/resp_x/cancel", "POST, OPTIONS"),
                                  ("DELETE", "/v1/responses/resp_x/input_items", "GET, HEAD, OPTIONS")):
        reply = s.request(method, path, {} if method == "POST" else None)
        equal((method, path, reply.status, reply.headers.get("allow")), (method, path, 405, allowed))
    s.stop()


@test("54: K/V memory for fewer sessions than there are requests: all finish with the tokens that they have alone")
def _():
    prompts = [f"{i}. " + TEXT[:1500] for i in range(5)]
    plain = Server(*FORMER)
    expected = [plain.post("/v1/chat/completions", chat(p, max_tokens=120, ignore_eos=True)).json["choices"] for p in prompts]
    plain.stop()
    s = Server("--memory-limit", "44M", "--context", "1000", "--cache-ram", "0", "--threads", "2", *FORMER)
    for again in range(1, 4):
        replies = in_threads([lambda p=p: s.post("/v1/chat/completions", chat(p, max_tokens=120, ignore_eos=True)) for p in prompts])
        for i, reply in enumerate(replies):
            equal(reply.status, 200, reply.body[:200])
            equal(reply.json["choices"], expected[i], i)
        equal(s.metric("kakeya_requests_finished_total", reason="length"), 5 * again)
    held, room = sum(reply.json["timings"]["kv_bytes"] for reply in replies), s.metric("kakeya_kv_room_bytes")
    holds(0 < room < held, f"they fit together: {held} bytes into {room}")
    s.stop()


@test("F7: a prompt that takes longer than connections may be idle: signs of life, and the stream is whole")
def _():
    s = Server("--keep-alive", "0.2", "--sse-ping", "0.5", "--max-stall-ms", "1", "--threads", "1")
    others = [stream(s, chat(f"{i}", **LONG)) for i in range(3)]  # beside them the prompt is computed in small pieces
    reply, connection = stream(s, chat(TEXT * 3, max_tokens=4))
    comments, chunks = events(reply)
    equal(chunks[-1]["choices"][0]["finish_reason"], "length")
    took = next(c["timings"]["prompt_ms"] for c in chunks if "timings" in c) / 1000  # by the server's clock
    if took < 2:
        raise Skip(f"the prompt took {took:.1f} s alone")
    holds([c for c in comments if c.startswith(": prompt ")], f"{comments} in {took} s")
    for other, its in [*others, (reply, connection)]:
        other.close()
        its.close()
    with s.connect() as idle:  # but who asks for nothing is cut
        idle.settimeout(WAIT)
        equal(idle.recv(1), b"")
    s.stop()


SHIFT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long offset(void) {
    long seconds = 0;
    FILE *f = fopen(getenv("SHIFT"), "r");
    if (f) {
        if (fscanf(f, "%ld", &seconds) != 1) seconds = 0;
        fclose(f);
    }
    return seconds;
}
int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, out);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) out->tv_sec += offset();
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@test("F16: a clock that is set back or forward by an hour changes no timer")
def _():
    if not shutil.which("cc") or "asan" in subprocess.run(["ldd", KAKEYA], capture_output=True, text=True).stdout:
        raise Skip("there is no cc, or the build has a sanitizer of its own")
    source, library, clock = (os.path.join(folder, n) for n in ("shift.c", "shift.so", "clock"))
    with open(source, "w") as f:
        f.write(SHIFT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)

    def set_clock(seconds):
        with open(clock + ".new", "w") as f:
            f.write(str(seconds))
        os.replace(clock + ".new", clock)

    set_clock(0)
    path = os.path.join(folder, "clock-sessions")
    s = Server("--request-timeout", "3", "--threads", "1", "--keep-alive", "30", "--drain", "1", "--session-dir", path,
               environment={"LD_PRELOAD": library, "SHIFT": clock})

    def small():
        reply = s.post("/v1/chat/completions", chat("Hello.", max_tokens=2))
        equal(reply.status, 200)
        return reply.json["created"]

    created = within_limit(small)
    idle = s.connect()
    for hour in (-3600, 3600):
        set_clock(0)
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(s.post, "/v1/chat/completions", chat("Hello.", **LONG))
            time.sleep(0.5)
            set_clock(hour)
            now = within_limit(small)
            holds(abs(now - created - hour) < 600, "the server's calendar has changed")
            reply = long.result()
        equal(reply.error["code"], "timeout")
        holds(time.monotonic() - begun >= 3, "not early")
    idle.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    holds(idle.recv(100).startswith(b"HTTP/1.1 200 "), "the idle connection is still there")
    idle.close()
    set_clock(-3600)
    first, _ = within_limit(lambda: ask(s, [user(TEXT)]))
    eventually(lambda: files(path), "a checkpoint is saved two seconds later")
    within_limit(lambda: stream(s, chat("Hello.", **LONG)))
    equal(s.stop(), 0)
    s = Server("--session-dir", path)
    equal(ask(s, [user(TEXT)])[0], first)
    s.stop()


# ---------------------------------------------------------------------------------------------------------- the end


def files(path):
    return sorted(f for f in os.listdir(path) if f.endswith(".kkc") and not f.startswith("."))


@test("--save-seconds 0 saves nothing at the end")
def _():
    kept = {}
    for seconds in ("0", "20"):
        path = os.path.join(folder, f"save-{seconds}")
        s = Server("--session-dir", path, "--save-seconds", seconds)
        ask(s, [user(TEXT)])
        equal(s.stop(), 0)
        kept[seconds] = files(path)
    holds(len(kept["0"]) < len(kept["20"]), kept)


@test("F8: a limit on the size of files costs what would have been saved, and nothing else")
def _():
    path = os.path.join(folder, "limited")
    s = Server("--session-dir", path, wrapper=["sh", "-c", 'ulimit -f 200; exec "$@"', "sh"])
    first, _ = ask(s, [user(TEXT)])
    eventually(lambda: "No space left" in s.log() or "File too large" in s.log(), "the failure is logged")
    equal(ask(s, [user(TEXT)])[0], first)
    equal(s.stop(), 0)
    equal(files(path), [])


try:
    run_tests()
finally:
    shutil.rmtree(folder, ignore_errors=True)
