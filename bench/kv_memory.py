"""Who waits and who gives way where requests want more K/V memory than there is: the order in which answers begin and end, how long they
wait, and that nothing is lost (docs/reference/sessions.md).

usage: python3 bench/kv_memory.py [--requests 200] [--stalled 10] [--sessions 20] [--tokens 600] [--rounds 3] [-- OPTION...]
environment: KAKEYA (build/kakeya), BUILD (build)

All requests come at once, each over a connection of its own, to a server whose K/V memory holds so many answers of so many tokens. The
first --stalled of them are longer and their clients read nothing until all others have ended. The model is a scripted one of a single
layer, so that what is measured is the server. Prints for every round the seconds until the last answer that is read has ended and until
all have; the median and the 99th percentile of the wait for the first token; how many places an answer is away from its place in the order
of arrival when it begins and when it ends, on average and at most; preemptions; the most threads that the server had. Every text is
compared with what the server says to the same request alone; if one differs, the exit status is 1. What stands behind -- are
options of the server."""

import argparse
import json
import os
import selectors
import socket
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/serve"))
os.environ.setdefault("SERVE_TEST_WAIT", "900")
split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
parser = argparse.ArgumentParser()
parser.add_argument("--requests", type=int, default=200)
parser.add_argument("--stalled", type=int, default=10)
parser.add_argument("--sessions", type=int, default=20)
parser.add_argument("--tokens", type=int, default=600)
parser.add_argument("--rounds", type=int, default=3)
wanted, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
sys.argv[1:] = []
from harness import WAIT, Server, dechunk, scripted_model  # noqa: E402

MODEL = scripted_model("The quick brown fox jumps over it.")
BYTES_PER_TOKEN = 2 * 2 * 16 * 4 + 8  # keys and values of the model's one layer, and what a session keeps beside them
PROMPT_TOKENS = 24
LONG = 2600  # tokens whose events, with log-probabilities, are more than sockets and the server hold


def body(index):
    stalls = index < wanted.stalled
    return {"model": "m", "messages": [{"role": "user", "content": f"Say something long about {index}."}], "temperature": 1,
            "seed": index, "max_tokens": LONG if stalls else wanted.tokens, "ignore_eos": True, "stream": True,
            **({"logprobs": True, "top_logprobs": 20} if stalls else {})}


def head(data):
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data)) + data


class Client:
    def __init__(self, server, index):
        self.index, self.received = index, bytearray()
        self.socket = socket.socket()
        if index < wanted.stalled:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(head(json.dumps(body(index)).encode()))
        self.sent, self.first, self.end = time.monotonic(), None, None

    def read(self):
        """Whether there is more to come."""
        piece = self.socket.recv(1 << 20)
        now = time.monotonic()
        self.received += piece
        if not piece:
            self.end = now
            self.socket.close()
        elif self.first is None and b'"content":"' in self.received.replace(b'"content":""', b""):
            self.first = now
        return bool(piece)

    def text(self):
        """None: the answer was refused, or has no end."""
        said = ""
        if not self.received.endswith(b"\r\n0\r\n\r\n"):
            return None
        for event in dechunk(bytes(self.received)).split(b"\n\n"):
            if event.startswith(b"data: {"):
                for choice in json.loads(event[6:]).get("choices", []):
                    said += choice["delta"].get("content") or ""
        return said


def read_all_of(clients, each=lambda: None):
    with selectors.DefaultSelector() as ready:
        for client in clients:
            ready.register(client.socket, selectors.EVENT_READ, client)
        while ready.get_map():
            events = ready.select(WAIT)
            if not events:
                raise SystemExit(f"{len(ready.get_map())} answers say nothing for {WAIT} s")
            for key, _ in events:
                before = key.fileobj
                number = before.fileno()
                if not key.data.read():
                    ready.unregister(number if number in ready.get_map() else before)
            each()


def displacement(clients, key):
    """From the order of arrival: the average and the largest."""
    order = sorted(clients, key=key)
    moved = [abs(place - at) for place, at in zip(range(len(clients)), (clients.index(c) for c in order))]
    return f"{statistics.mean(moved):.1f} places ({max(moved)} at most)"


def threads_of(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(next(line for line in file if line.startswith("Threads:")).split()[1])


def expected_texts():
    plain = Server("--name", "m", model=MODEL)
    workspace = float(plain.said(r"([\d.]+) MB for workspace").group(1)) * 1e6 + 1e6  # and what sampling takes later
    clients = [Client(plain, i) for i in range(wanted.requests)]
    read_all_of(clients)
    plain.stop()
    return int(workspace), [c.text() for c in clients]


def run(limit, expected):
    server = Server("--name", "m", "--memory-limit", f"{limit // 1024}K", "--cache-ram", "0", "--max-batch", str(wanted.requests),
                    *options, model=MODEL)
    start, most = time.monotonic(), [0]

    def look():
        most[0] = max(most[0], threads_of(server))

    clients = []
    for i in range(wanted.requests):
        clients.append(Client(server, i))
        if i + 1 == wanted.stalled:
            time.sleep(2)  # they fill their sockets
    stalled, readers = clients[:wanted.stalled], clients[wanted.stalled:]
    read_all_of(readers, look)
    middle = time.monotonic()
    for client in stalled:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    read_all_of(stalled, look)
    end = time.monotonic()
    lost = [c.index for c, text in zip(clients, expected) if c.text() != text]
    preemptions = server.metric("kakeya_preemptions_total")
    server.stop()
    if lost:
        broken = clients[lost[0]]
        failures.append(lost)
        print(f"answers {lost} are not what they are alone; {lost[0]} ends with {bytes(broken.received[-300:])!r}", flush=True)
    readers = [c for c in readers if c.first]
    waits = sorted(c.first - c.sent for c in readers)
    ends = sorted(c.end - c.sent for c in readers)
    print(f"readers done after {middle - start:.2f} s, all after {end - start:.2f} s; first token after {statistics.median(waits):.2f} s "
          f"(p99 {waits[len(waits) * 99 // 100]:.2f} s), end after {statistics.median(ends):.2f} s "
          f"(p99 {ends[len(ends) * 99 // 100]:.2f} s); begins {displacement(readers, lambda c: c.first)} from arrival, ends "
          f"{displacement(readers, lambda c: c.end)}; {preemptions:.0f} preemptions; {most[0]} threads; "
          f"{len(clients) - len(lost)} of {len(clients)} texts as alone", flush=True)


failures = []
workspace, texts = expected_texts()
for _ in range(wanted.rounds):
    run(workspace + wanted.sessions * (wanted.tokens + PROMPT_TOKENS) * BYTES_PER_TOKEN, texts)
sys.exit(bool(failures))
