"""Requests, claims and results between two ends: what is run, what is refused, what is believed."""

import json
import os
import shutil
import signal
import subprocess
import time

from remote_ends import *  # noqa: F403
from remote_ends import MODEL, PROGRAM, SHORT, World, equal, eventually, finish, holds, kill, make_key, read, sha256, sign, stop
from remote_ends import race, test, whole, write


@test("a request is run by the worker's own program, and its result is verified and kept")
def _():
    w = World()
    nonce = w.alice.ask("env")
    equal(w.refs(), [nonce])
    w.alice.fails("no result yet", "fetch", nonce)
    holds("requested" in w.alice.ok("status", nonce))
    equal(json.loads(w.alice.ok("status", nonce, "--json")), {"nonce": nonce, "state": "requested"})
    listed = {"nonce": nonce, "state": "requested", "own": True, "preset": "env", "cancelled": False}
    equal(json.loads(w.alice.ok("list", "--json")), {"requests": [listed]})
    log = w.mini.serve()
    holds("runs env for alice" in log and "answered: done" in log, log)
    equal((w.refs("claims"), w.refs("results")), ([], [nonce]))
    result = w.result(nonce)
    equal((result["outcome"], result["exit_status"], result["worker"], result["attempt"]), ("done", 0, "mini", 1))
    equal(result["argv"], ["kakeya", "info", "--json", "--model", "models/demo"])
    equal(result["request_sha256"], sha256(w.get("requests", nonce, "request.json")))
    out = w.alice.ok("fetch")
    holds(f"{nonce}: done by mini" in out, out)
    folder = os.path.join(w.alice.state, "results", nonce)
    holds(json.loads(read(os.path.join(folder, "output.json")))["architecture"]["family"] == "gemma4")
    holds(w.folder not in w.git("grep", "-e", ".", f"refs/heads/kakeya/results/{nonce}").decode(), "no path of the worker's machine")
    holds(f"{nonce}  env" in w.alice.ok("list") and "done" in w.alice.ok("list"))
    told = json.loads(w.alice.ok("fetch", "--json"))
    equal({k: told[k] for k in ("nonce", "outcome", "worker", "preset", "exit_status", "attempt", "gate_there", "gate_codes")},
          {"nonce": nonce, "outcome": "done", "worker": "mini", "preset": "env", "exit_status": 0, "attempt": 1, "gate_there": "none",
           "gate_codes": []})
    holds(os.path.join(folder, "output.json") in told["files"] and all(os.path.isfile(f) for f in told["files"]), told)
    equal(json.loads(w.alice.ok("list", "--json"))["requests"], [{**listed, "state": "answered", "outcome": "done"}])
    equal(json.loads(w.alice.ok("status", "--json"))["state"], "answered")
    equal(os.listdir(os.path.join(w.mini.state, "runs")), [])
    w.mini.serve()
    equal([line.split()[3] for line in read(os.path.join(w.mini.state, "served.log")).splitlines()], ["start", "end"])


@test("a program that cannot start, or that says what it is called, names no path in what is signed")
def _():
    w = World()
    missing = os.path.join(w.mini.tools, "no-such-program")
    w.mini.change(program=missing)
    nonce = w.alice.ask("env")
    log = w.mini.serve()
    holds(missing in log, "the worker's own log does")
    equal((w.result(nonce)["outcome"], w.result(nonce)["reason"]), ("failed", "its program did not start, or was lost"))
    caller = os.path.join(w.mini.tools, "caller")
    built = subprocess.run(["cc", "-x", "c", "-", "-o", caller], text=True, capture_output=True, input="""
        #include <stdio.h>
        int main(int n, char **words) { return fprintf(stderr, "%s: %d words\\n", words[0], n) > 0; }""")
    nonces = [nonce]
    if built.returncode == 0:  # not where there is no compiler
        w.mini.change(program=caller)
        nonces.append(w.alice.ask("env"))
        w.mini.serve()
        holds("kakeya: " in w.get("results", nonces[1], "log.txt"))
    for nonce in nonces:
        holds(w.folder not in w.git("grep", "-e", ".", f"refs/heads/kakeya/results/{nonce}").decode(), "no path of the worker's machine")


@whole("a gated preset: the gate judges there and here, and a report that it refuses fails the run")
def _():
    w = World()
    server = w.mini.start("serve", "--poll", "1")
    report = os.path.join(w.folder, "r.json")
    # One sample is too few for the gate; everything else is quick.
    done = w.alice.call("run", "niah", "--param", "lines=12", "--param", "samples=1", "--param", "attention=native", "--param",
                        "max-tokens=4", "--wait", "--poll", "1", "--report", report)
    equal(done.returncode, 1, done.out + done.err)
    holds("failed by mini" in done.out and "the gate refuses the report" in done.out and "gate there: refused" in done.out, done.out)
    holds("claimed by mini" in done.err or "answered" in done.err, done.err)
    checked = subprocess.run([PROGRAM, "gate", report], capture_output=True, text=True)
    holds(checked.returncode == 1 and "SAMPLE_COUNT" in checked.stdout, checked.stdout)
    nonce = done.out.split()[0]
    holds("SAMPLE_COUNT" in w.result(nonce)["gate"]["codes"])
    holds(w.folder not in read(report) and MODEL not in read(report), "no path of the worker's machine")
    holds("models/demo" in json.loads(read(report))["command"])
    if not SHORT:
        # Whose gate has no rule of speed: this machine may be busy with other tests.
        out = w.alice.ok("run", "lossless-batch", "--param", "compositions=3", "--param", "sessions=3", "--param", "max-tokens=8",
                         "--param", "seed=1", "--wait", "--poll", "1", "--report", report)
        holds("gate there: passed\ngate here: passed" in out, out)
        equal(subprocess.run([PROGRAM, "gate", report], capture_output=True).returncode, 0)
    stop(server)
    equal(server.returncode, 128 + signal.SIGTERM)


@test("two workers race: each request runs exactly once")
def _():
    race(2 if SHORT else 10)


@test("what a request may not be is refused, with the reason carried back; nothing is run")
def _():
    w = World()
    w.mini.program()
    mallory = make_key(os.path.join(w.folder, "mallory"))
    bob = make_key(os.path.join(w.folder, "bob"))
    w.mini.ok("allow", "requester", "bob", bob + ".pub", "--preset", "niah", "--minutes", "5")
    cases = []

    number = 0

    def refused(reason, key=None, namespace=None, text=None, change=None, by="alice", **fields):
        nonlocal number
        number += 1
        if SHORT and number % 5 != 1:
            return
        nonce, body = w.request(requested_by=by, **fields)
        body = text(body) if text else body
        signature = sign(key or w.alice.key, body, namespace or "kakeya-remote@v1")
        w.put("requests", nonce, {"request.json": change(body) if change else body, "request.json.sig": signature})
        cases.append((nonce, reason))

    refused("signature", change=lambda body: body.replace("env", "niah"))  # a changed byte
    refused("signature", change=lambda body: body + " ")
    refused("signature", key=mallory)  # a key that is not listed
    refused("signature", namespace="git")  # another namespace
    refused("signature", namespace="file")
    refused("bob has signed", key=bob)  # alice's name under another listed key
    refused("made for another bus", bus="0" * 64)
    refused("it has expired", shift=-7200)
    refused("s from now: one of the two clocks is wrong", shift=1200)
    refused("between 1 and 86400", expires="2126-01-01T00:00:00Z")
    refused("there is no preset 'sh'", preset="sh")
    refused("lines: '2001' is not", preset="niah", params={"lines": "2001"})
    refused("niah has no parameter 'model'", preset="niah", params={"model": "x"})
    refused("'command' is not known", command="sh")
    refused("request.json", text=lambda body: body[:-1])
    refused("request.json", text=lambda body: body.replace('"env"', '"e\\u006ev"'))
    refused("mini has no model 'other'", model="other")
    refused("bob may not ask mini for 'env'", key=bob, by="bob")
    refused("inputs: x is missing", preset="score", params={"ids-file": "x"}, inputs={"x": "0" * 64})
    refused("score needs the parameter", preset="score")
    nonce, body = w.request()  # a good request under another nonce
    other = nonce[:-1] + ("0" if nonce[-1] != "0" else "1")
    w.forge(body, other)
    cases.append((other, f"the ref is {other}, the request {nonce}"))
    nonce, body = w.request(preset="score", params={"ids-file": "x"}, inputs={"x": sha256("[1]")})
    w.forge(body, nonce, **{"inputs/x": "[2]"})
    cases.append((nonce, "x is another file than the one signed"))
    w.mini.serve()
    for nonce, reason in cases:
        result = w.result(nonce)
        equal(result["outcome"], "rejected", reason)
        holds(reason in result["reason"], f"{reason!r} is not in {result['reason']!r}")
        equal((result["argv"], result["files"]), ([], {}))
    equal(w.mini.ran(), [])
    equal(w.refs("claims"), [])
    # A good one behind all of these is run.
    nonce = w.alice.ask()
    w.mini.serve()
    equal((w.mini.ran(), w.result(nonce)["outcome"]), ([nonce], "done"))


@whole("a refusal is believed and shown where the request was made")
def _():
    w = World()
    nonce = w.alice.ask("niah", "--model", "other")
    w.mini.serve()
    done = w.alice.call("fetch", nonce)
    equal(done.returncode, 1)
    holds("rejected by mini: model: mini has no model 'other'" in done.out, done.out + done.err)
    holds("rejected" in w.alice.ok("list"))


@whole("what is not signed, or holds other files, gets no answer")
def _():
    w = World()
    w.mini.program()
    _, body = w.request()
    signature = sign(w.alice.key, body)
    trees = [{"request.json": body}, {"request.json": body, "request.json.sig": "hello"}, {"request.json.sig": signature},
             {"other": "x"}, {"request.json": body, "request.json.sig": signature, "run.sh": "x"},
             {"request.json": body, "request.json.sig": signature, "inputs/..x": "x"},
             {"request.json": "x" * 65537, "request.json.sig": signature},
             {"request.json": body, "request.json.sig": signature, **{f"inputs/{i}": "x" for i in range(17)}}]
    nonces = []
    for tree in trees:
        nonce, _ = w.request()
        w.put("requests", nonce, tree)
        nonces.append(nonce)
    nonce, body = w.request()  # a link instead of a file, and a program
    for mode in (b"120000", b"100755"):
        script = (b"blob\nmark :1\ndata 4\n/etc\ncommit refs/heads/kakeya/requests/%s\ncommitter x <x@x> 0 +0000\ndata 0\ndeleteall\n"
                  b"M %s :1 request.json\n" % (nonce.encode(), mode))
        w.git("fast-import", "--quiet", "--force", data=script)
        w.mini.serve()
    # Refs that are not ours, and those that are no commits.
    commit = w.git("rev-parse", f"refs/heads/kakeya/requests/{nonce}").decode().strip()
    w.git("update-ref", "refs/heads/kakeya/requests/not-a-nonce", commit)
    blob = w.git("hash-object", "-w", "--stdin", data=b"x").decode().strip()
    nonce, _ = w.request()
    write(os.path.join(w.bus, "refs/heads/kakeya/requests", nonce), blob + "\n")
    log = w.mini.serve()
    equal((w.refs("results"), w.refs("claims"), w.mini.ran()), ([], [], []), log)
    good = w.alice.ask()
    w.mini.serve()
    equal(w.refs("results"), [good])


@whole("replay: an answered nonce stays answered when its result is deleted, its request pushed again")
def _():
    w = World()
    w.mini.program()
    nonce = w.alice.ask()
    w.mini.serve()
    w.git("update-ref", "-d", f"refs/heads/kakeya/results/{nonce}")
    w.mini.serve()
    holds("replay" in w.result(nonce)["reason"], w.result(nonce))
    for _ in range(3):  # whoever goes on deleting gets no more answers
        if w.refs("results"):
            w.git("update-ref", "-d", f"refs/heads/kakeya/results/{nonce}")
        w.mini.serve()
    equal(w.refs("results"), [])
    equal(w.mini.ran(), [nonce])


@whole("only the named worker runs or refuses; what one may not run is left to another")
def _():
    w = World()
    other = w.add_worker("big", reject_after_seconds=0)
    w.mini.program()
    other.program()
    nonce = w.alice.ask("env", "--worker", "big")
    w.mini.serve()
    equal((w.mini.ran(), w.refs("claims")), ([], []))
    other.serve()
    equal((other.ran(), w.result(nonce)["worker"]), ([nonce], "big"))
    # mini waits before it refuses what it has no model for
    w.mini.change(limits={"reject_after_seconds": 1000})
    other.change(models={"large": MODEL})
    nonce = w.alice.ask("env", "--model", "large")
    log = w.mini.serve()
    holds("left to others" in log, log)
    equal(w.refs("results").count(nonce), 0)
    other.serve()
    equal(w.result(nonce)["worker"], "big")


@whole("a request is cancelled before it runs, and while it runs")
def _():
    w = World()
    w.mini.program("echo started >&2; trap '' TERM; sleep 1000")
    nonce = w.alice.ask()
    w.alice.ok("cancel", nonce)
    w.alice.ok("cancel", nonce)  # twice is once
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.mini.ran()), ("cancelled", []))
    holds("answered already" in w.alice.call("cancel", nonce).out)
    nonce = w.alice.ask()
    server = w.mini.start("serve", "--poll", "1")
    eventually(lambda: w.mini.ran() == [nonce], "it runs")
    # Nobody else can stop it: a cancellation by another key.
    mallory = make_key(os.path.join(w.folder, "mallory"))
    files = {name: w.get("requests", nonce, name) for name in ("request.json", "request.json.sig")}
    stop_text = json.dumps({"version": 1, "kind": "cancel", "nonce": nonce, "requested_by": "alice",
                            "bus": sha256(f"refs/heads/kakeya\n{w.bus}")})
    w.put("requests", nonce, {**files, "cancel.json": stop_text, "cancel.json.sig": sign(mallory, stop_text)})
    time.sleep(3)
    equal(w.refs("results").count(nonce), 0)
    w.put("requests", nonce, files)
    w.alice.ok("cancel", nonce)
    done = w.alice.call("status", nonce, "--follow", "--poll", "1")
    holds("answered" in done.out, done.out)
    result = w.result(nonce)
    equal((result["outcome"], result["reason"]), ("cancelled", "cancelled by alice"))
    stop(server)


@whole("limits: processor time, files, logs; a log is cut to its end, and what it holds cannot reach the terminal")
def _():
    w = World(cpu_seconds=1, file_bytes=100000, log_bytes=3000000)
    w.mini.program("while :; do :; done")
    nonce = w.alice.ask()
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["reason"]), ("failed", "signal 9 ended it"))

    w.mini.program("head -c 200000 /dev/zero >large; echo \"status $?\" >&2; exit 3")
    nonce = w.alice.ask()
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["reason"]), ("failed", "exit status 3"))

    w.mini.change(limits={"cpu_seconds": 0, "file_bytes": 1000000000})
    w.mini.program("yes flood >&2")
    nonce = w.alice.ask()
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["reason"]), ("failed", "it wrote more to its log than allowed"))
    holds(len(w.get("results", nonce, "log.txt")) <= 1 << 20)

    w.mini.program("yes '{}'")
    nonce = w.alice.ask()
    w.mini.serve()
    equal(w.result(nonce)["reason"], "it wrote more output than allowed")
    equal(sorted(w.result(nonce)["files"]), ["log.txt"])

    w.mini.change(limits={"renew_seconds": 1})
    w.mini.program("printf 'a\\033[2Jb\\302\\2331mc\\007\\n' >&2; sleep 1000")
    nonce = w.alice.ask()
    server = w.mini.start("serve", "--poll", "1")
    seen = w.alice.start("status", nonce, "--follow", "--poll", "1")
    line = ""
    while "a?[2Jb" not in line and seen.poll() is None:
        line = seen.stderr.readline()
    equal(line, "a?[2Jb?1mc?\n")
    kill(seen)
    claim = json.loads(w.alice.ok("status", nonce, "--json"))["claim"]
    equal((claim["by_a_listed_worker"], claim["worker"], claim["attempt"]), (True, "mini", 1))
    holds("a?[2Jb?1mc?" in claim["log"], claim)
    stop(server)


@whole("results are believed from listed workers alone, for what was asked alone, with their own files alone")
def _():
    w = World()
    w.mini.program("echo '{\"answer\": 1}'")
    nonce = w.alice.ask()
    w.mini.serve()
    ref = f"refs/heads/kakeya/results/{nonce}"
    true = w.git("rev-parse", ref).decode().strip()
    names = ["result.json", "result.json.sig", "request.json", "request.json.sig", "output.json", "log.txt"]
    files = {name: w.get("results", nonce, name) for name in names}

    def with_result(key=w.mini.key, more=None, **changes):
        text = json.dumps({**json.loads(files["result.json"]), **changes})
        w.put("results", nonce, {**files, **(more or {}), "result.json": text, "result.json.sig": sign(key, text)})

    w.put("results", nonce, {**files, "output.json": "{}"})
    w.alice.fails("output.json is not the file that the worker has signed", "fetch", nonce)
    w.put("results", nonce, {**files, "result.json": files["result.json"].replace('"done"', '"failed"')})
    w.alice.fails("is not trusted: signature", "fetch", nonce)
    w.put("results", nonce, {name: files[name] for name in names[:1]})
    w.alice.fails("it is not signed", "fetch", nonce)
    w.put("results", nonce, {**files, "x.sh": "x"})
    w.alice.fails("x.sh: no such file is expected", "fetch", nonce)
    with_result(key=make_key(os.path.join(w.folder, "mallory")))
    w.alice.fails("not listed", "fetch", nonce)
    with_result(worker="big")
    w.alice.fails("it says that big made it, but mini has signed", "fetch", nonce)
    with_result(request_sha256="0" * 64)
    w.alice.fails("another request than the one that was sent", "fetch", nonce)
    with_result(nonce="20261121T203012Z-9f3c2ab1")
    w.alice.fails("it is the result of 20261121T203012Z-9f3c2ab1", "fetch", nonce)
    with_result(reason="\x1b[2Jx")
    holds("?[2Jx" in w.alice.ok("fetch", nonce))
    w.git("update-ref", ref, true)
    w.alice.ok("fetch", nonce)
    # From another machine with the same key: the request in the result is one's own.
    shutil.rmtree(os.path.join(w.alice.state, "sent"))
    w.alice.ok("fetch", nonce)
    other = files["request.json"].replace("env", "niah")
    with_result(more={"request.json": other}, request_sha256=sha256(other))
    w.alice.fails("it was not sent from here", "fetch", nonce)


@test("a verdict of the worker is not believed alone: the gate here decides")
def _():
    w = World()
    w.mini.program('echo \'{"kind": "kakeya.eval.niah", "schema_version": 2}\' >report.json')
    nonce = w.alice.ask("niah")
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["gate"]["verdict"]), ("failed", "refused"))
    w.mini.program('echo \'{"kind": "kakeya.eval.niah", "schema_version": 2}\' >report.json')
    lying = os.path.join(w.mini.tools, "evaluation")
    write(lying, read(lying).replace(f'exec "{PROGRAM}" "$@"', "{ echo '{\"passed\": true, \"reports\": []}'; exit 0; }"), 0o755)
    nonce = w.alice.ask("niah")
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["gate"]["verdict"]), ("done", "passed"))
    done = w.alice.call("fetch", nonce)
    holds(done.returncode == 1 and "gate there: passed\ngate here: refused" in done.out, done.out + done.err)


@whole("rows of a result are computed again where it was asked for; a worker that lies is found")
def _():
    w = World()
    sequences = [[(7 * t + 31 * s) % 400 + 20 for t in range(30)] for s in range(5)]
    ids = write(os.path.join(w.folder, "ids.json"), json.dumps({"prompt_length": 24, "sequences": sequences}))
    words = ["fidelity", "--input", f"ids={ids}", "--param", "ids=ids", "--param", "windows=16", "--param", "attention=native,sink-window"]
    nonce = w.alice.ask(*words)
    w.mini.serve()
    equal(w.result(nonce)["outcome"], "done", w.result(nonce))
    out = w.alice.ok("fetch", nonce, "--replay", "2")
    holds("gate here: passed\nreplay here: " in out and "computed again, compared bit for bit" in out, out)
    holds("a change is found with probability" in out and "1 in a whole arm" in out, out)
    told = json.loads(w.alice.ok("fetch", nonce, "--replay", "all", "--json"))
    holds(told["gate_here"] == "passed" and told["replay"].startswith("10 rows"), told)
    w.alice.fails("--replay-model needs --replay", "fetch", nonce, "--replay-model", MODEL, status=2)
    # A rule sees nothing wrong in likeliest tokens that all rows of a stream agree about.
    w.mini.program(f'"{PROGRAM}" "$@" >/dev/null && jq -c \'.rows |= map(.top1_ids[0] = 7)\' report.json >x && mv x report.json')
    nonce = w.alice.ask(*words)
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["gate"]["verdict"]), ("done", "passed"), w.result(nonce))
    holds("gate here: passed" in w.alice.ok("fetch", nonce))
    done = w.alice.call("fetch", nonce, "--replay", "0", "--replay-model", MODEL)
    holds(done.returncode == 1 and "gate here: refused [REPLAY_ROW]" in done.out, done.out + done.err)


@whole("an end whose program is replaced while it waits goes on with the new one")
def _():
    w = World()
    copy = os.path.join(w.folder, "kakeya")
    shutil.copy(PROGRAM, copy)
    w.mini.program()
    server = subprocess.Popen([copy, "remote", "serve", "--poll", "1"], env=w.mini.environment(), stdout=subprocess.PIPE, text=True)
    holds("is at work" in server.stdout.readline())
    w.mini.change(program=None)
    os.unlink(copy)
    shutil.copy(PROGRAM, copy)
    nonce = w.alice.ask()
    eventually(lambda: nonce in w.refs("results"), "it is answered")
    server.terminate()
    server.communicate()
    equal(w.result(nonce)["outcome"], "done", w.result(nonce))


@test("inputs travel with the request, under names of the worker's own")
def _():
    w = World()
    ids = write(os.path.join(w.folder, "ids.json"), "[2, 5, 6, 7, 8, 9]")
    nonce = w.alice.ask("score", "--input", f"my.ids={ids}", "--param", "ids-file=my.ids")
    w.mini.serve()
    equal(w.result(nonce)["outcome"], "done", w.result(nonce))
    equal(w.result(nonce)["argv"][3:5], ["--ids-file", "inputs/00"])
    equal(json.loads(w.get("results", nonce, "output.json"))["tokens"], 5)
    w.alice.fails("is not NAME=FILE", "run", "score", "--input", f"../x={ids}", "--param", "ids-file=x")
    w.alice.fails("score needs the parameter", "run", "score")
    write(ids, "x" * 1048577)
    w.alice.fails("more than the 1048576 bytes", "run", "score", "--input", f"x={ids}", "--param", "ids-file=x")


@whole("a budget of minutes a day is kept")
def _():
    w = World()
    w.mini.program()
    w.mini.ok("allow", "requester", "alice", w.alice.key + ".pub", "--minutes", "1")
    day = time.strftime("%Y-%m-%dT00:00:01Z", time.gmtime())
    os.makedirs(w.mini.state, exist_ok=True)
    write(os.path.join(w.mini.state, "served.log"), f"{day} 20261121T203012Z-9f3c2ab1 {'0' * 64} end alice 30.0\n")
    nonce = w.alice.ask()
    log = w.mini.serve()
    holds("at most 30 s" in log or "at most 29 s" in log, log)
    with open(os.path.join(w.mini.state, "served.log"), "a") as f:
        f.write(f"{day} 20261121T203012Z-9f3c2ab2 {'0' * 64} end alice 31.5\n2026-11-2")  # a line that was cut
    nonce = w.alice.ask()
    w.mini.serve()
    holds("budget: alice has used 1 of 1 minutes today" in w.result(nonce)["reason"], w.result(nonce))


@whole("nothing outside the state folder is touched, no hook is run, no question asked, whatever the user's git is set to")
def _():
    w = World()
    w.mini.program()
    for end in (w.alice, w.mini):
        end.ok("doctor")  # makes the state folder
        hooks = os.path.join(end.home, "hooks")
        for hook in ("pre-push", "reference-transaction", "post-commit", "pre-commit", "pre-auto-gc", "post-rewrite"):
            write(os.path.join(hooks, hook), f"#!/bin/sh\ntouch {end.home}/hook-ran\n", 0o755)
        write(os.path.join(end.home, ".gitconfig"),
              f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {hooks}/pre-push\n[commit]\n\tgpgSign = true\n"
              "[push]\n\tgpgSign = true\n\tfollowTags = true\n[gc]\n\tauto = 1\n[fetch]\n\tprune = true\n[init]\n"
              f"\ttemplateDir = {hooks}\n[user]\n\tuseConfigOnly = true\n")
    # The bus is a folder here: its own hooks and settings are of whoever can write there.
    for hook in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction", "proc-receive"):
        write(os.path.join(w.bus, "hooks", hook), f"#!/bin/sh\ntouch {w.folder}/bus-hook-ran\n", 0o755)
    program = write(os.path.join(w.bus, "program"), f"#!/bin/sh\ntouch {w.folder}/bus-hook-ran\n", 0o755)
    for name in ("core.hooksPath", "core.fsmonitor", "core.alternateRefsCommand", "uploadpack.packObjectsHook", "core.sshCommand"):
        w.git("config", name, os.path.join(w.bus, "hooks") if name.endswith("Path") else program)
    other = os.path.join(w.folder, "other.git")
    subprocess.run(["git", "init", "-q", "--bare", other], check=True)
    write(os.path.join(w.bus, "objects/info/alternates"), other + "/objects\n")
    before = w.alice.files(), w.mini.files()
    nonce = w.alice.ask()
    w.mini.serve()
    w.alice.ok("fetch", nonce)
    w.alice.ok("list")
    w.alice.ok("status", nonce)
    w.alice.ok("cancel", w.alice.ask())
    w.alice.ok("doctor")
    w.mini.serve()
    equal((w.alice.files(), w.mini.files()), before)
    equal(w.mini.ran(), [nonce])
    holds(not os.path.exists(os.path.join(w.folder, "bus-hook-ran")), "what the bus is set to was run")
    left = [name for name in os.listdir(w.mini.state) + os.listdir(w.alice.state) if name.startswith(("bus-", "signature-"))]
    equal(left, [])
    for end in (w.alice, w.mini):
        equal(sorted(os.listdir(end.folder)), sorted(["home", "tools"] + (["ran"] if end is w.mini else [])))


@test("clean deletes what is old, and nothing else")
def _():
    w = World()
    w.mini.program()
    w.put("requests", "20200101T000000Z-00000000", {"x": "x"})
    w.put("results", "20200101T000000Z-00000001", {"x": "x"})
    w.put("claims", "20200101T000000Z-00000000", {"x": "x"})
    w.git("update-ref", "refs/heads/main", w.git("rev-parse", "refs/heads/kakeya/claims/20200101T000000Z-00000000").decode().strip())
    nonce = w.alice.ask()
    equal(w.alice.ok("clean"), "3 refs deleted\n")
    equal(w.refs(), sorted([nonce, "main"]))


@whole("doctor says what is wrong and how to mend it")
def _():
    w = World()
    w.alice.ok("doctor")
    w.mini.ok("doctor")
    os.rename(w.bus, w.bus + ".away")
    done = w.alice.call("doctor")
    holds(done.returncode == 1 and "git init --bare" in done.out, done.out)
    os.rename(w.bus + ".away", w.bus)
    w.mini.change(models={"gone": "/nowhere"})
    done = w.mini.call("doctor")
    holds(done.returncode == 1 and "model gone: /nowhere has no config.json" in done.out, done.out)
    os.unlink(os.path.join(w.mini.config, "requesters"))
    holds("requester alice has no key" in w.mini.call("doctor").out)
    os.rename(w.alice.key, w.alice.key + ".away")
    done = w.alice.call("doctor")
    holds(done.returncode == 1 and "cannot sign with this key" in done.out, done.out)
    w.put("claims", time.strftime("%Y%m%dT%H%M%SZ-00000000", time.gmtime(time.time() + 4000)), {"x": "x"})
    holds("set the clock" in w.mini.call("doctor").out)


@test("missing and old programs are one line each")
def _():
    w = World()
    w.alice.tool("git", "echo 'git version 2.28.1'")
    w.alice.fails("git is version 2.28: install git 2.29 or later", "run", "env")
    w.alice.tool("git", None)
    w.alice.tool("ssh-keygen", "echo 'unknown option -- Y' >&2; echo 'usage: ssh-keygen [-q]' >&2; exit 1")
    w.alice.fails("this ssh-keygen is too old to sign and verify files (-Y): install OpenSSH 8.2 or later", "run", "env")
    w.mini.fails("ssh-keygen does not run", "serve", "--once", environment={"PATH": w.mini.tools})
    w.alice.tool("ssh-keygen", None)
    for name in ("ssh-keygen", "sh"):
        os.symlink(shutil.which(name), os.path.join(w.alice.tools, name))
    w.alice.fails("git does not run (git: there is no such program): install git 2.29 or later", "run", "env",
                  environment={"PATH": w.alice.tools})


@test("set-up: one worker a state folder, one configuration a folder, names and keys that are some")
def _():
    w = World()
    w.mini.program("sleep 1000")
    w.alice.ask()
    server = w.mini.start("serve", "--poll", "1")
    eventually(w.mini.ran, "it runs")
    w.mini.fails("another worker is at work", "serve", "--once")
    holds("a worker is at work" in w.mini.call("doctor").out)
    stop(server)
    w.alice.fails("already exists", "init", "--bus", w.bus, "--name", "alice")
    w.alice.fails("this end is not a worker", "serve")
    w.alice.fails("this end is not a worker", "allow", "requester", "bob", w.alice.key + ".pub")
    w.mini.fails("'*' is no name", "allow", "requester", "*", w.alice.key + ".pub")
    w.mini.fails("is no public SSH key", "allow", "requester", "bob", "hello")
    w.mini.fails("there is no preset 'sh'", "allow", "requester", "bob", w.alice.key + ".pub", "--preset", "sh")
    w.alice.fails("there is no preset 'sh'", "run", "sh")
    w.alice.fails("lines: '7' is not up to 16 integers from 10 to 2000", "run", "niah", "--param", "lines=7")
    w.alice.fails("is not a nonce", "fetch", "../../etc")
    nobody = World(worker=False)
    nobody.alice.fails("nothing has been sent from here yet", "status")
    nobody.alice.ask()
    holds("no worker is trusted" in nobody.alice.call("doctor").out)


@test("--install writes a unit that starts this worker")
def _():
    w = World()
    out = w.mini.ok("serve", "--install", "--poll", "20")
    unit = read(os.path.join(w.mini.home, ".config/systemd/user/kakeya-remote.service"))
    holds("systemctl --user" in out, out)
    line = [line for line in unit.splitlines() if line.startswith("ExecStart=")][0]
    equal(line, f'ExecStart="{PROGRAM}" "remote" "serve" "--poll" "20" "--config" "{w.mini.config}" "--state" "{w.mini.state}"')
    if shutil.which("systemd-analyze"):
        path = os.path.join(w.mini.home, ".config/systemd/user/kakeya-remote.service")
        checked = subprocess.run(["systemd-analyze", "--user", "verify", path], capture_output=True, text=True)
        holds("kakeya-remote" not in checked.stderr, checked.stderr)


finish()
