#!/usr/bin/env python3
"""What answers under a schema cost: tokens per second of the demo's server with a schema for each client against none.

    bench/grammar_speed.py KAKEYA [--clients 1,64] [--tokens 96] [--rounds 5] [--backend cpu]

Each client has a schema of its own, a list of objects that does not end within the tokens. With and without take turns; the first
round, in which schemas are compiled, is not counted. Prints medians, lowest and highest, and the ratios of the rounds. Both texts
differ, and with them how many drafts are right: tokens a forward are those that an answer has of a forward on average. What is left
of the ratio without them is what a forward costs more under a grammar."""
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


def request(client, tokens, constrained):
    """A request as it is sent. Writing it is the client's work, and is done before the time begins."""
    body = {"model": "demo", "messages": [{"role": "user", "content": f"def add_{client}(numbers):"}], "max_tokens": tokens,
            "temperature": 0, "ignore_eos": not constrained}
    if constrained:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema(client)}}
    return json.dumps(body).encode()


def ask(port, body, counts):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        print(f"status {reply.status}: {text[:300]}", file=sys.stderr, flush=True)
        os._exit(1)  # on a thread of its own
    counts.append(json.loads(text)["usage"]["completion_tokens"])


def speed(port, clients, tokens, constrained):
    counts = []
    threads = [threading.Thread(target=ask, args=(port, request(i, tokens, constrained), counts)) for i in range(clients)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begun)


def forwards(port):
    """Rows' forwards of all answers so far."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return sum(float(value) for value in re.findall(r"^kakeya_forwards_total\S* (\S+)", text, re.MULTILINE))


def measure(port, clients, tokens, constrained):
    """Tokens per second, and per forward."""
    before = forwards(port)
    tokens_per_second = speed(port, clients, tokens, constrained)
    return tokens_per_second, clients * tokens / (forwards(port) - before)


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
            pairs = [(measure(port, clients, options.tokens, True), measure(port, clients, options.tokens, False))
                     for _ in range(options.rounds)]
            columns = {"schema": [a for a, _ in pairs], "none": [b for _, b in pairs]}
            for what, values in columns.items():
                rates, each = zip(*values)
                print(f"{clients:3} clients  {what:6}  {statistics.median(rates):8.2f} ({min(rates):.2f} to {max(rates):.2f})  "
                      f"{statistics.median(each):.2f} tokens a forward", flush=True)
            alone = statistics.median(a[0] / b[0] * b[1] / a[1] for a, b in pairs)
            ratios = [a[0] / b[0] for a, b in pairs]
            print(f"{clients:3} clients  ratio   {statistics.median(ratios):8.2f} ({min(ratios):.2f} to {max(ratios):.2f})  "
                  f"{alone:.2f} of forwards", flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
