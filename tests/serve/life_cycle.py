"""The life of a server: what it says before it starts, sleep, limits of time, clocks that jump, what it leaves."""

import json
import os
import shutil
import subprocess
import tempfile

from harness import *  # noqa: F403

TEXT = open("examples/needle-60.txt").read()
folder = tempfile.mkdtemp(prefix="kakeya-life-")


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


@test("58: no room for a session: exit 1 with the numbers")
def _():
    for more in ([], ["--dry-run"]):
        made = kakeya("serve", *more, "--port", "0", "--grpc", "off", "--context", "8000", "--memory-limit", "33M")
        equal((made.returncode, made.stdout), (1, ""))
        equal(made.stderr.count("\n"), 1)
        for part in ("no session of 8,000 tokens fits", " MB", "of 34.6 MB that --memory-limit allows", "--context "):
            holds(part in made.stderr, f"{part}: {made.stderr}")
    # the context that it names is one that fits
    context = made.stderr.split("--context ")[1].split()[0]
    equal(kakeya("serve", "--dry-run", "--context", context, "--memory-limit", "33M").returncode, 0)
    # nobody has asked for long sessions: shorter ones will do
    made = kakeya("serve", "--dry-run", "--memory-limit", "36M")
    equal(made.returncode, 0)
    holds(", 0 of 8,192" in made.stdout and "the longest session that fits has " in made.stdout, made.stdout)


@test("with --log-json the room is a JSON object of the log")
def _():
    s = Server("--log-json", "--context", "4096")
    s.stop()
    first = json.loads(s.log().splitlines()[0])
    equal((first["capacity"]["context"], first["capacity"]["max_batch"]), (4096, 64))


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


@test("a limit on the size of files costs what would have been saved, and nothing else")
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
