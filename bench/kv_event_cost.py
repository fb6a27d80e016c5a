"""What K/V events cost a busy server: two servers of the demo model, one of which publishes to a subscriber, answer the same load in turn:
64 streams at a time, conversations of three turns (a prompt of 300 tokens, answers of 100), without a drafter: how many tokens one proposes
depends on measured times, and so does the work.

usage: build/serve-python-routers/bin/python bench/kv_event_cost.py [--pairs 9] [--streams 64] [--threads 2] [--together] [-- OPTION...]
environment: KAKEYA (build/kakeya). `sh tests/serve/test_kv_events.sh` makes the interpreter, which has pyzmq.

Prints of each server tokens per second, by the clock and of its own processor time, as medians with the smallest and the largest; of
the pairs what the publishing server lost, in per cent (below 0: it was faster); and what the parts of it that events alone need took of
its processor time, which other programs on the machine disturb least. Every pair has new servers; which of them comes first alternates.
--together: both at the same time, so that what else the machine does is the same to both; tokens by the clock then say little. OPTIONs are
the servers'."""

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/serve"))
os.environ.setdefault("SERVE_TEST_WAIT", "600")
split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
parser = argparse.ArgumentParser()
parser.add_argument("--pairs", type=int, default=9)
parser.add_argument("--streams", type=int, default=64)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--together", action="store_true")
wanted, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
sys.argv[1:] = []
from harness import WAIT, Server, in_threads  # noqa: E402
from kv_harness import Consumer, publishing_server  # noqa: E402

TURNS, PROMPT, ANSWER = 3, 300, 100


def converse(server, seed):
    draw = random.Random(seed)
    ids = [2, *(draw.randrange(200, 3000) for _ in range(PROMPT - 1))]
    tokens = 0
    for _ in range(TURNS):
        body = {"model": "demo", "prompt": ids, "max_tokens": ANSWER, "temperature": 1, "seed": draw.randrange(1 << 30),
                "ignore_eos": True, "stream": True, "return_token_ids": True}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        if reply.status != 200:
            sys.exit(f"status {reply.status}: {text[:300]}")
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith(b"data: {")]
        said = [token for event in events for token in event["choices"][0]["token_ids"]]
        tokens += len(said)
        ids = ids + said + [draw.randrange(200, 3000) for _ in range(10)]
    return tokens


def zmq_seconds(server):
    """Processor time of ZeroMQ's own threads."""
    seconds = 0
    for task in os.listdir(f"/proc/{server.process.pid}/task"):
        folder = f"/proc/{server.process.pid}/task/{task}"
        with open(f"{folder}/comm") as name, open(f"{folder}/schedstat") as f:
            seconds += int(f.read().split()[0]) / 1e9 if name.read().startswith("ZMQ") else 0
    return seconds


def load(server, seed):
    """Tokens per second, by the clock and of the server's processor time; what events took of that, per cent: finding them, as the
    server says, and sending them, by ZeroMQ's threads."""
    names = ("kakeya_process_cpu_seconds_total", "kakeya_kv_events_seconds_total")
    before, sent = [server.metric(name) for name in names], zmq_seconds(server)
    begin = time.monotonic()
    tokens = sum(in_threads([lambda i=i: converse(server, f"{seed} {i}") for i in range(wanted.streams)]))
    seconds = time.monotonic() - begin
    processor, events = (server.metric(name) - was for name, was in zip(names, before))
    if tokens != wanted.streams * TURNS * ANSWER:
        sys.exit(f"{tokens} tokens")
    return tokens / seconds, tokens / processor, 100 * events / processor, 100 * (zmq_seconds(server) - sent) / processor


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    common = ("--max-batch", str(wanted.streams), "--drafter", "none", *options)
    found, heard = {"without events": [], "with events": []}, 0
    plain, publishing = found.values()
    for pair in range(wanted.pairs):
        servers = [Server("--name", "demo", *common, threads=wanted.threads), publishing_server(*common, threads=wanted.threads)]
        consumer, ended = Consumer(servers[1]), threading.Event()

        def listen(consumer=consumer, ended=ended):
            while not ended.is_set():
                consumer.receive(0.2)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        if wanted.together:
            results = in_threads([lambda s=s: load(s, pair) for s in servers])
        else:
            results = [load(s, pair) for s in servers[::1 if pair % 2 else -1]][::1 if pair % 2 else -1]
        plain.append(results[0])
        publishing.append(results[1])
        ended.set()
        listener.join()
        heard += consumer.next
        consumer.close()
        Server.stop_all()
    for name, results in found.items():
        clock, processor = zip(*(f[:2] for f in results))
        print(f"{name}: {spread(clock, 0)} tokens/s, {spread(processor, 0)} tokens per second of processor time")
    for i, what in enumerate(("tokens/s", "tokens per second of processor time")):
        lost = [100 * (1 - b[i] / a[i]) for a, b in zip(plain, publishing)]
        print(f"lost with events, of {what}, per cent: {spread(lost, 2)}, {wanted.pairs} pairs")
    print(f"of the processor time, per cent: finding events {spread([f[2] for f in publishing], 3)}, sending them "
          f"{spread([f[3] for f in publishing], 3)}; {heard} messages heard")


main()
