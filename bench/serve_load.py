"""What the server adds to the model: streams of a scripted model, whose forward pass is next to nothing, by 1, 8, 32 and 64 clients; idle
connections; the first token of a long conversation that is cached, with the demo model.

usage: python3 bench/serve_load.py [--seconds 5] [--connections 10000]
environment: KAKEYA (build/kakeya), BUILD (build)

CPU seconds are the kernel's (/proc/PID/task): "added" are those of all threads but the one that computes, which stand for reading
requests, JSON, events and sockets; "whole" are those of the process without its forward passes (kakeya_iteration_seconds), so they hold
what the computing thread does for an event, too. The latter, and wall times, want a machine that does nothing else: the seconds of a
forward pass are those of a clock. The clients run beside the server."""

import argparse
import json
import os
import re
import selectors
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/serve"))
parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=5)
parser.add_argument("--connections", type=int, default=10000)
wanted = parser.parse_args()
sys.argv[1:] = []
from harness import BUILD, Server, scripted_model  # noqa: E402

if not os.path.exists(f"{BUILD}/tools/scripted_model"):
    sys.exit(f"{BUILD}/tools/scripted_model is not there: `make check` builds it")

SCRIPT = "The quick brown fox jumps over a lazy dog, and nobody knows why it did so: 0123456789 ABCDEFGHIJ."
TICK = os.sysconf("SC_CLK_TCK")


def cpu(server):
    """CPU seconds of the thread that has taken most of them, and of all others."""
    seconds = []
    for task in os.listdir(f"/proc/{server.process.pid}/task"):
        with open(f"/proc/{server.process.pid}/task/{task}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        seconds.append((int(fields[11]) + int(fields[12])) / TICK)
    return max(seconds), sum(seconds) - max(seconds)


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) / 1024


def at(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] * 1000 if values else 0


def streams(server, clients, choices=1):
    """Every client asks for a stream again as soon as it has one. Equal choices are computed once: many events for one forward pass."""
    body = json.dumps({"model": "m", "temperature": 0, "stream": True, "n": choices,
                       "messages": [{"role": "user", "content": "x"}]}).encode()
    request = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               b"Content-Length: %d\r\n\r\n" % len(body)) + body
    chosen = selectors.DefaultSelector()
    first, between, events, requests = [], [], 0, 0
    for _ in range(clients):
        s = server.connect()
        state = {"asked": time.monotonic(), "last": 0.0, "tail": b""}
        chosen.register(s, selectors.EVENT_READ, state)
        s.sendall(request)
    busy, added = cpu(server)
    forwards = server.metric("kakeya_iteration_seconds_sum")
    begun = now = time.monotonic()
    while now < begun + wanted.seconds:
        for key, _ in chosen.select(1):
            s, state = key.fileobj, key.data
            data = s.recv(1 << 16)
            now = time.monotonic()
            n = data.count(b'"delta":{"content"')
            if n:
                if state["last"]:
                    between.append((now - state["last"]))
                else:
                    first.append(now - state["asked"])
                state["last"] = now
            events += n
            state["tail"] = (state["tail"] + data)[-8:]
            if state["tail"].endswith(b"\r\n0\r\n\r\n"):
                requests += 1
                state.update(asked=now, last=0.0, tail=b"")
                s.sendall(request)
    seconds = time.monotonic() - begun
    more_busy, more_added = cpu(server)
    forwards = server.metric("kakeya_iteration_seconds_sum") - forwards
    for key in list(chosen.get_map().values()):
        key.fileobj.close()
    return {"clients": clients, "choices": choices,
            "requests_per_second": round(requests / seconds, 1), "events_per_second": round(events / seconds),
            "first_ms": {"p50": round(at(first, .5), 2), "p99": round(at(first, .99), 2)},
            "between_ms": {"p50": round(at(between, .5), 3), "p99": round(at(between, .99), 3)},
            "added_us_per_event": round((more_added - added) / max(1, events) * 1e6, 2),
            "whole_us_per_event": round((more_added - added + more_busy - busy - forwards) / max(1, events) * 1e6, 2),
            "forwards_us_per_event": round(forwards / max(1, events) * 1e6, 2),
            "computing_us_per_event": round((more_busy - busy) / max(1, events) * 1e6, 2)}


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
    server = Server("--name", "m", "--threads", "1", "--sse-ping", "60", "--max-batch", "64", model=scripted_model(SCRIPT))
    for clients in (1, 8, 32, 64):
        print(json.dumps(streams(server, clients)), flush=True)
    print(json.dumps(streams(server, 8, choices=16)), flush=True)
    if most > wanted.connections + 100:
        print(json.dumps(idle(server)), flush=True)
    server.stop()
    print(json.dumps(conversation()), flush=True)


main()
