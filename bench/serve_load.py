"""What the server adds to the model: streams of a scripted model, whose forward pass is next to nothing, by 1, 8, 32 and 64 clients; idle
connections; the first token of a long conversation that is cached, with the demo model.

usage: python3 bench/serve_load.py [--seconds 2] [--repeat 5] [--connections 10000] [--server-cores 0,1 --client-cores 2]
                                   [--demo THREADS]
environment: KAKEYA (build/kakeya), BUILD (build)

The scripted model is written twice: with the characters and bytes of the demo model's vocabulary alone, so that next to nothing is left of
it, and with all 8,192 tokens, whose scores are then most of a step. The clients are bench_sse_clients, on the server's cores unless the
options give them others: figures are medians of the repetitions. --demo measures 64 clients of the demo model alone, which computes with
so many threads.

CPU time is the kernel's (/proc/PID/task/TID/schedstat). "total" is that of the whole process for an event, "added" the same without the
forward passes (kakeya_iteration_seconds, a clock's seconds: they want a core of their own), "others" that of all threads but the one that
computes. "waited" is the time for an event in which threads of the server were ready and had no core: where it is not small beside
"total", the machine was shared, and wall times are the machine's. "late" is how much later than the server had written the clients came
to read; "between" does not hold it. "by_step" is "between" in steps (bench/sse_clients.c). `chrt -r 1` in front gives the measurement the
cores before all other programs."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/serve"))
parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=2)
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("--connections", type=int, default=10000)
parser.add_argument("--server-cores")
parser.add_argument("--client-cores")
parser.add_argument("--demo", type=int)
wanted = parser.parse_args()
sys.argv[1:] = []
from harness import BUILD, MODELS, Server, scripted_model  # noqa: E402

CLIENTS = f"{BUILD}/bench_sse_clients"
if not os.path.exists(f"{BUILD}/tools/scripted_model"):
    sys.exit(f"{BUILD}/tools/scripted_model is not there: `make check` builds it")
if not os.path.exists(CLIENTS):
    sys.exit(f"{CLIENTS} is not there: `ninja -C {BUILD} bench_sse_clients` builds it")

# Without white space: of that the parser holds back what may be the end of a text, and its event comes with the next one.
SCRIPT = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789,.;:(){}[]=+-*/<>?!"


def characters():
    """The demo model's tokenizer without merges: control tokens, bytes and characters, which are its first tokens."""
    with open(f"{MODELS}/demo/tokenizer.json") as f:
        tokenizer = json.load(f)
    vocabulary = tokenizer["model"]["vocab"]
    bytes_or_less = [id for piece, id in vocabulary.items() if piece.startswith("<0x")]
    small = {piece: id for piece, id in vocabulary.items() if id <= max(bytes_or_less) or len(piece) == 1}
    assert sorted(small.values()) == list(range(len(small)))
    tokenizer["model"].update(vocab=small, merges=[])
    directory = tempfile.mkdtemp()
    with open(f"{directory}/tokenizer.json", "w") as f:
        json.dump(tokenizer, f)
    return directory


def threads(server):
    """Seconds that each thread has had a core, and was ready without one."""
    seconds = {}
    for task in os.listdir(f"/proc/{server.process.pid}/task"):
        with open(f"/proc/{server.process.pid}/task/{task}/schedstat") as f:
            seconds[task] = [int(x) / 1e9 for x in f.read().split()[:2]]
    return seconds


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) / 1024


def once(server, clients, choices):
    """Equal choices are computed once: many events for one forward pass."""
    names = ("kakeya_iteration_seconds_sum", "kakeya_iteration_seconds_count")
    before, forwards = threads(server), [server.metric(name) for name in names]
    cores = ["taskset", "-c", wanted.client_cores] if wanted.client_cores else []
    run = json.loads(subprocess.check_output([*cores, CLIENTS, str(server.port), str(clients), str(wanted.seconds), str(choices)]))
    after, forwards = threads(server), [server.metric(name) - was for name, was in zip(names, forwards)]
    us = 1e6 / max(1, run["events"])
    busy, waited = ([(x[i] - before.get(task, (0, 0))[i]) * us for task, x in after.items()] for i in (0, 1))
    return {"requests_per_second": run["requests"] / run["seconds"], "events_per_second": run["events"] / run["seconds"],
            "total_us": sum(busy), "added_us": sum(busy) - forwards[0] * us, "others_us": sum(busy) - max(busy),
            "forwards_us": forwards[0] * us, "waited_us": sum(waited), "client_us": run["client_us_per_event"],
            "forward_ms": forwards[0] / forwards[1] * 1000,
            **{f"{name}_{share}_ms": run[f"{name}_ms"][share] for name in ("first", "between", "late") for share in ("p50", "p99")},
            "between_p99_by_p50": run["between_ms"]["p99"] / run["between_ms"]["p50"] if run["between_ms"]["p50"] else 0,
            "by_step_p99": run["by_step"]["p99"], "by_step_p99.9": run["by_step"]["p99.9"], "merged": run["merged"]}


def streams(server, clients, choices=1):
    rounds = [once(server, clients, choices) for _ in range(wanted.repeat)]
    medians = {name: float(f"{statistics.median(r[name] for r in rounds):.4g}") for name in rounds[0]}
    return {"clients": clients, "choices": choices, **medians}


def idle(server):
    before = resident(server)
    held = [server.connect() for _ in range(wanted.connections)]
    while server.metric("kakeya_http_connections") < wanted.connections:
        time.sleep(0.05)
    after = resident(server)
    for s in held:
        s.close()
    return {"connections": wanted.connections, "resident_mib": round(after - before, 1)}


def conversation():
    """The first token of a turn behind 7,000 tokens that are in memory."""
    server = Server("--name", "m")
    text = " ".join(f"Line {i}: the value is {i * i}." for i in range(420))
    messages = [{"role": "user", "content": text}]
    body = {"model": "m", "temperature": 0, "max_tokens": 4, "messages": messages}
    answer = server.post("/v1/chat/completions", body, timeout=600).json
    messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": "And now?"}]
    begun = time.monotonic()
    usage = server.post("/v1/chat/completions", {**body, "max_tokens": 1}).json["usage"]
    seconds = time.monotonic() - begun
    server.stop()
    return {"prompt_tokens": usage["prompt_tokens"], "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "first_token_ms": round(seconds * 1000, 1)}


def main():
    import resource
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if wanted.server_cores:
        os.sched_setaffinity(0, {int(core) for core in wanted.server_cores.split(",")})  # its programs have them, too
    if wanted.demo:
        server = Server("--name", "m", "--threads", str(wanted.demo), "--max-batch", "64")
        print(json.dumps({"model": "demo", "threads": wanted.demo, **streams(server, 64)}), flush=True)
        server.stop()
        return
    options = ["--name", "m", "--threads", "1", "--sse-ping", "60", "--max-batch", "64"]
    for name, tokenizer in (("all tokens", None), ("characters", characters())):
        server = Server(*options, model=scripted_model(SCRIPT, tokenizer=tokenizer))
        for clients in (1, 8, 32, 64):
            print(json.dumps({"vocabulary": name, **streams(server, clients)}), flush=True)
        if tokenizer:
            print(json.dumps({"vocabulary": name, **streams(server, 8, choices=16)}), flush=True)
        if not tokenizer:
            server.stop()
    if most > wanted.connections + 100:
        print(json.dumps(idle(server)), flush=True)
    server.stop()
    print(json.dumps(conversation()), flush=True)


main()
