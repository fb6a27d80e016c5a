#!/usr/bin/env python3
"""What answers under a schema cost: tokens per second of the demo's server with a schema for each client against none.

    bench/grammar_speed.py KAKEYA [--clients 1,64] [--tokens 96] [--rounds 5] [--backend cpu]

Each client has a schema of its own, a list of objects that does not end within the tokens. With and without take turns; the first
round, in which schemas are compiled, is not counted. Prints medians, lowest and highest, and the ratios of the rounds."""
import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time


def schema(client):
    names = {f"name_{client}": {"type": "string", "maxLength": 40}, f"count_{client}": {"type": "integer", "minimum": 0},
             f"kind_{client}": {"enum": ["alpha", "beta", "gamma"]}, f"tags_{client}": {"type": "array", "items": {"type": "string"}}}
    item = {"type": "object", "properties": names, "required": list(names), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 1000}


def ask(port, client, tokens, constrained, counts):
    body = {"model": "demo", "messages": [{"role": "user", "content": f"def add_{client}(numbers):"}], "max_tokens": tokens,
            "temperature": 0, "ignore_eos": not constrained}
    if constrained:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema(client)}}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        print(f"status {reply.status}: {text[:300]}", file=sys.stderr, flush=True)
        os._exit(1)  # on a thread of its own
    counts.append(json.loads(text)["usage"]["completion_tokens"])


def speed(port, clients, tokens, constrained):
    counts = []
    threads = [threading.Thread(target=ask, args=(port, i, tokens, constrained, counts)) for i in range(clients)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begun)


def is_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/readyz")
    return connection.getresponse().status == 200


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kakeya")
    parser.add_argument("--clients", default="1,64")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    server = subprocess.Popen([options.kakeya, "serve", "--port", "0", "--grpc", "off", "--backend", options.backend, "--max-batch", "64",
                               "--context", "2048"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                break
        threading.Thread(target=server.stdout.read, daemon=True).start()
        port = int(found.group(1))
        while not is_ready(port):
            time.sleep(0.05)
        for clients in map(int, options.clients.split(",")):
            speed(port, clients, options.tokens, True)
            speed(port, clients, options.tokens, False)
            pairs = [(speed(port, clients, options.tokens, True), speed(port, clients, options.tokens, False))
                     for _ in range(options.rounds)]
            columns = {"schema": [a for a, _ in pairs], "none": [b for _, b in pairs], "ratio": [a / b for a, b in pairs]}
            for what, values in columns.items():
                middle = statistics.median(values)
                print(f"{clients:3} clients  {what:6}  {middle:8.2f} ({min(values):.2f} to {max(values):.2f})", flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
