"""What a long prompt does to the answers beside it, and what is left of that where another server computes it (docs/guide/deploy.md,
"Prefill apart"). A server generates, another one computes prompts, and tests/serve/sidecar.py stands before the first. By turns
nothing comes (none), a prompt comes straight to the server that generates (beside), and a prompt comes through the sidecar (apart).

usage: python3 bench/prefill_apart.py [--backend cpu] [--synthetic 26b-a4b | --model DIR] [--prompt-tokens 7000] [--answers 4] [--rounds 5]
                                      [--threads N] [--devices 0,1] [--directory DIR] [--json] [-- OPTION...]
environment: KAKEYA (build/kakeya)

Prints the gaps between the events of the answers while the prompt was computed, in milliseconds: the median, the 99th percentile and the
longest, of all answers together (tokens that come within a millisecond are one event); the prompt's first token, in seconds; and the
tokens per second of all answers. Of several rounds the median, with the smallest and the largest. --devices: CUDA devices of the server
that generates, and of the one that computes prompts; with one of them, or on one CPU, both share it, and the gaps show that too. What
stands behind -- are options of both servers."""

import argparse
import http.client
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/serve"))
os.environ.setdefault("SERVE_TEST_WAIT", "900")
split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="cpu")
parser.add_argument("--synthetic")
parser.add_argument("--model")
parser.add_argument("--prompt-tokens", type=int, default=7000)
parser.add_argument("--answers", type=int, default=4)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--devices", default="")
parser.add_argument("--directory")
parser.add_argument("--json", action="store_true")
wanted, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
sys.argv[1:] = []
import sidecar  # noqa: E402
from harness import WAIT, Server  # noqa: E402

QUIET = 1.0  # seconds without a prompt before one comes
ONE_STEP = 0.001  # seconds: tokens that come together are of one step


def post(port, body, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    body = {"model": "m", "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True, **body}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    reply = connection.getresponse()
    if reply.status != 200:
        sys.exit(f"status {reply.status}: {reply.read()[:500]}")
    return connection, reply


def tokens_of(line):
    if not line.startswith(b"data: {"):
        return 0
    return sum(len(c.get("token_ids") or ()) for c in json.loads(line[6:]).get("choices", []))


class Answer(threading.Thread):
    """Answers, one after the other to the end of the context, until it is stopped; and when their events came, a list for each."""

    def __init__(self, port, seed):
        super().__init__(daemon=True)
        self.port, self.draw = port, random.Random(seed)
        self.events, self.stopped = [], threading.Event()
        self.start()

    def run(self):
        while not self.stopped.is_set():
            prompt = [2, *(self.draw.randrange(200, 3000) for _ in range(16))]
            connection, reply = post(self.port, {"prompt": prompt, "max_tokens": -1})
            self.events.append([])
            while not self.stopped.is_set() and (line := reply.readline()):
                came = time.monotonic()
                if n := tokens_of(line):
                    self.events[-1].append((came, n))
            reply.close()
            connection.close()

    def stop(self):
        self.stopped.set()
        self.join()


def first_token(port, seed, headers):
    """Seconds until a prompt's first token."""
    draw = random.Random(f"prompt {seed}")
    ids = [2, *(draw.randrange(200, 3000) for _ in range(wanted.prompt_tokens - 1))]
    begin = time.monotonic()
    connection, reply = post(port, {"prompt": ids, "max_tokens": 2}, headers)
    while not tokens_of(line := reply.readline()):
        if not line:
            sys.exit("the prompt has no answer")
    seconds = time.monotonic() - begin
    reply.read()
    connection.close()
    return seconds


def measure(kind, seed, decoder, prefiller, proxy, quiet):
    answers = [Answer(decoder.port, f"{seed} {i}") for i in range(wanted.answers)]
    while not all(a.events and len(a.events[0]) > 4 for a in answers):
        time.sleep(0.01)
    time.sleep(QUIET)
    begin = time.monotonic()
    if kind == "none":
        time.sleep(quiet)
        seconds = None
    elif kind == "beside":
        seconds = first_token(decoder.port, seed, None)
    else:
        seconds = first_token(proxy.server_port, seed, {"x-prefiller-host-port": f"127.0.0.1:{prefiller.port}"})
    end = time.monotonic()
    time.sleep(0.2)  # whatever gap there is has ended
    for a in answers:
        a.stop()
    gaps, tokens = [], 0
    for events in (events for a in answers for events in a.events):
        times = [came for (came, _), (before, _) in zip(events, [(0, 0), *events]) if came - before > ONE_STEP]
        gaps += [1000 * (y - x) for x, y in zip(times, times[1:]) if y > begin and x < end]
        tokens += sum(n for came, n in events if begin < came <= end)
    gaps.sort()
    return {"gap_p50_ms": gaps[len(gaps) // 2], "gap_p99_ms": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))], "gap_longest_ms": gaps[-1],
            "tokens_per_second": tokens / (end - begin), **({"first_token_s": seconds} if seconds else {})}


def spread(rounds, name):
    values = [r[name] for r in rounds if name in r]
    return [statistics.median(values), min(values), max(values)] if values else None


def main():
    directory = tempfile.mkdtemp(prefix="kakeya-apart-", dir=wanted.directory)
    command = ["--name", "m", "--backend", wanted.backend, "--session-dir", directory]
    command += ["--synthetic", wanted.synthetic, "--context", str(wanted.prompt_tokens + 4096)] if wanted.synthetic else []
    command += ["--model", wanted.model] if wanted.model else []
    devices = wanted.devices.split(",") if wanted.devices else []
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):  # numbers count what this process sees
        devices = [visible.split(",")[int(d)] for d in devices]
    where = [{"CUDA_VISIBLE_DEVICES": d} for d in (devices[0], devices[-1])] if devices else [{}, {}]
    servers = [Server(*command, *options, threads=wanted.threads, environment=w) for w in where]
    decoder, prefiller = servers
    proxy = sidecar.start(f"127.0.0.1:{decoder.port}")
    found = {"none": [], "beside": [], "apart": []}
    quiet = 3.0
    try:
        for number in range(-1, wanted.rounds):  # the first is not counted
            for kind in ("beside", "apart", "none"):
                result = measure(kind, f"{number} {kind}", decoder, prefiller, proxy, quiet)
                if kind == "beside":
                    quiet = max(1.0, min(10.0, result["first_token_s"]))
                if number >= 0:
                    found[kind].append(result)
        computed = prefiller.metric("kakeya_prompt_tokens_total") - prefiller.metric("kakeya_prompt_tokens_cached_total", source="disk")
        taken = decoder.metric("kakeya_prompt_tokens_cached_total", source="disk")
    finally:
        proxy.shutdown()
        Server.stop_all()
        shutil.rmtree(directory, ignore_errors=True)
    if computed < (wanted.rounds + 1) * (wanted.prompt_tokens - 1):
        sys.exit(f"the other server has computed {computed:.0f} tokens: not all of {wanted.rounds + 1} prompts")
    if taken < (wanted.rounds + 1) * (wanted.prompt_tokens - 600):  # where computing is thought to be faster, files are left alone
        print(f"the server that generates took {taken:.0f} tokens from files: it has computed prompts itself", file=sys.stderr)
    names = ("gap_p50_ms", "gap_p99_ms", "gap_longest_ms", "first_token_s", "tokens_per_second")
    table = {kind: {name: spread(rounds, name) for name in names if spread(rounds, name)} for kind, rounds in found.items()}
    if wanted.json:
        print(json.dumps({"prompt_tokens": wanted.prompt_tokens, "answers": wanted.answers, "rounds": wanted.rounds, **table}))
        return
    model = wanted.synthetic or wanted.model or "demo"
    print(f"{model}, {wanted.backend}, a prompt of {wanted.prompt_tokens} tokens beside {wanted.answers} answers, "
          f"medians of {wanted.rounds} (smallest to largest)")
    for kind, row in table.items():
        print(f"{kind:8}" + ", ".join(f"{name} {v[0]:.2f} ({v[1]:.2f} to {v[2]:.2f})" for name, v in row.items()))


main()
