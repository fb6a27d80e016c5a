"""Every API of the server, its most telling case, on one server: what `make check` runs of tests/serve.

The suites beside it check the same APIs whole, by the clients that users have; `make test` runs those, too."""

import json
import os
import re
import signal
import socket
import struct
import subprocess

from harness import BUILD, KAKEYA, WAIT, Server, Skip, dechunk, equal, holds, in_threads, read_all, run_tests, test
from harness import metrics as read_metrics

HAS_GRPC = os.path.exists(f"{BUILD}/tools/grpc_server")
server = Server("--name", "demo", *(["--grpc", "127.0.0.1:0"] if HAS_GRPC else []), threads=None)
ASK = "def fibonacci(n):"
GREEDY = {"model": "demo", "temperature": 0}
CHAT = {**GREEDY, "messages": [{"role": "user", "content": ASK}], "max_tokens": 12}


def post(path, body, status=200):
    reply = server.post(path, body)
    equal(reply.status, status, reply.body[:300])
    return reply.json


def chat(**more):
    return post("/v1/chat/completions", {**CHAT, **more})


def content(answer, i=0):
    return answer["choices"][i]["message"]["content"]


def events(path, body):
    """The JSON of a stream's events, the mark at the end left out."""
    reply = server.post(path, {**body, "stream": True})
    equal((reply.status, reply.headers["content-type"]), (200, "text/event-stream; charset=utf-8"))
    return [json.loads(data) for data in re.findall(r"^data: (\{.*\})$", reply.body.decode(), re.M)]


def refused(path, body, status, code, param):
    error = post(path, body, status)["error"]
    equal((error["code"], error["param"]), (code, param), error["message"])


@test("chat completions: the text and the counts of kakeya run, whole and streamed, alone and beside others")
def _():
    command = [KAKEYA, "run", "--json", "--attention", "native", ASK, "--max-tokens", "12"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=WAIT).stdout)
    answer = chat()
    equal(content(answer), said["text"])
    equal([answer["usage"][k] for k in ("prompt_tokens", "completion_tokens")],
          [said["prompt_tokens"], said["completion_tokens"]])
    chunks = events("/v1/chat/completions", CHAT)
    equal("".join(c["choices"][0]["delta"].get("content") or "" for c in chunks), said["text"])
    equal(chunks[-1]["choices"][0]["finish_reason"], "length")
    for other in in_threads([chat] * 4):
        equal(content(other), said["text"], "beside others")


@test("a second question finds the first one's memory")
def _():
    talk = CHAT["messages"] + [{"role": "assistant", "content": content(chat())}, {"role": "user", "content": "and then?"}]
    holds(chat(messages=talk)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "cached tokens")


@test("stop strings, n, a seed, log-probabilities, a schema, a required call")
def _():
    whole = content(chat())
    stop = re.search(r"\w+", whole).group()
    equal(content(chat(stop=stop)), whole[:whole.index(stop)], stop)
    warm = {"n": 2, "seed": 7, "temperature": 1}
    equal([content(chat(**warm), i) for i in range(2)], [content(chat(**warm), i) for i in range(2)])
    entries = chat(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    holds(len(entries) == 12 and all(e["logprob"] == e["top_logprobs"][0]["logprob"] <= 0 for e in entries), entries)
    schema = {"type": "object", "properties": {"a": {"enum": [17]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    equal(json.loads(content(chat(response_format=form, max_tokens=40))), {"a": 17})
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    call = chat(tools=[tool], tool_choice="required", max_tokens=60)["choices"][0]["message"]["tool_calls"][0]["function"]
    equal((call["name"], json.loads(call["arguments"])), ("f", {"a": 17}))


@test("completions, tokens and back")
def _():
    ids = post("/tokenize", {"model": "demo", "prompt": ASK})["tokens"]
    equal(post("/detokenize", {"model": "demo", "tokens": ids})["prompt"].removeprefix("<bos>"), ASK)
    body = {**GREEDY, "max_tokens": 8}
    answer = post("/v1/completions", {**body, "prompt": ids})
    equal((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]), (len(ids), 8))
    equal(post("/v1/completions", {**body, "prompt": ASK})["choices"], answer["choices"])


@test("responses: created, streamed, continued, retrieved, deleted")
def _():
    body = {**GREEDY, "input": ASK, "max_output_tokens": 16}
    first = post("/v1/responses", body)
    said = first["output"][-1]["content"][0]["text"]
    equal(said, content(chat(max_tokens=16)))
    stream = events("/v1/responses", body)
    equal((stream[0]["type"], stream[-1]["type"]), ("response.created", "response.incomplete"))
    equal("".join(e["delta"] for e in stream if e["type"] == "response.output_text.delta"), said)
    second = post("/v1/responses", {**body, "input": "and then?", "previous_response_id": first["id"]})
    holds(second["usage"]["input_tokens_details"]["cached_tokens"] > 0, second["usage"])
    path = "/v1/responses/" + first["id"]
    equal(server.get(path).json["output"], first["output"])
    equal(server.request("DELETE", path).status, 200)
    equal(server.get(path).status, 404)


@test("messages: whole, streamed, counted, continued; a required call; refused in the API's own shape")
def _():
    body = {**CHAT, "messages": [{"role": "user", "content": ASK}], "max_tokens": 16}
    whole = post("/v1/messages", body)
    said = whole["content"][0]["text"]
    equal((said, whole["stop_reason"]), (content(chat(max_tokens=16)), "max_tokens"))
    stream = events("/v1/messages", body)
    equal((stream[0]["type"], stream[-1]["type"]), ("message_start", "message_stop"))
    equal("".join(e["delta"]["text"] for e in stream if e["type"] == "content_block_delta"), said)
    talk = [*body["messages"], {"role": "assistant", "content": whole["content"]}, {"role": "user", "content": "and then?"}]
    usage = post("/v1/messages", {**body, "messages": talk})["usage"]
    holds(usage["cache_read_input_tokens"] > 0, usage)
    counted = post("/v1/messages/count_tokens", {"model": "demo", "messages": talk})
    equal(usage["input_tokens"] + usage["cache_read_input_tokens"], counted["input_tokens"])
    schema = {"type": "object", "properties": {"a": {"enum": [17]}}, "required": ["a"], "additionalProperties": False}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    called = post("/v1/messages", {**body, "max_tokens": 100, "tools": [{"name": "f", "input_schema": schema}], "tool_choice": choice})
    equal((called["content"][0]["input"], called["stop_reason"]), ({"a": 17}, "tool_use"))
    error = post("/v1/messages", {**body, "max_tokens": None}, 400)
    equal((error["type"], error["error"]), ("error", {"type": "invalid_request_error", "message": "max_tokens is missing"}))


@test("refusals name the field: types, ranges, models, content, bodies, paths, methods")
def _():
    path = "/v1/chat/completions"
    refused(path, {**CHAT, "temperature": "hot"}, 400, "invalid_type", "temperature")
    refused(path, {**CHAT, "max_tokens": 0}, 400, "invalid_value", "max_tokens")
    refused(path, {**CHAT, "model": "gpt-4"}, 404, "model_not_found", "model")
    refused("/v1/responses", {**GREEDY}, 400, "missing_required_parameter", "input")
    equal(server.post(path, b"{").status, 400)
    equal(server.get("/v1/nothing").status, 404)
    equal(server.get(path).status, 405)
    holds(server.raw(b"GET /livez HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 "), "no Host")
    foreign = {"Host": "evil.example", "Origin": "http://evil.example"}
    holds(server.get("/v1/models", headers=foreign).status >= 400, "a foreign page is refused")


@test("models, health, properties, slots, the page; metrics count what was asked")
def _():
    equal([m["id"] for m in server.get("/v1/models").json["data"]], ["demo"])
    for path in ("/livez", "/health", "/props", "/slots", "/"):
        equal(server.get(path).status, 200, path)
    before = read_metrics(server.get("/metrics").body.decode())
    used = chat()["usage"]["completion_tokens"]
    after = read_metrics(server.get("/metrics").body.decode())
    counter = "kakeya_generation_tokens_total"
    equal(after[counter] - before[counter], used, counter)


def number(field, value):
    """A field of protobuf: an integer, or bytes."""
    def plain(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + plain(n >> 7)
    if isinstance(value, int):
        return plain(field << 3) + plain(value)
    return plain(field << 3 | 2) + plain(len(value)) + value


def fields(message):
    """A message of protobuf as {field: last value}, of integers and bytes."""
    found, i = {}, 0

    def plain():
        nonlocal i
        n = shift = 0
        while True:
            i += 1
            n |= (message[i - 1] & 127) << shift
            shift += 7
            if message[i - 1] < 128:
                return n
    while i < len(message):
        key = plain()
        if key & 7 == 0:
            found[key >> 3] = plain()
        else:
            length = {1: 8, 5: 4}.get(key & 7) or plain()
            found[key >> 3] = message[i:i + length]
            i += length
    return found


def rpc(method, request=b""):
    """One call of gRPC on a connection of its own, by hand; the messages of its answer."""
    def frame(kind, flags, stream, payload=b""):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def header(name, value):
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
    host, port = server.addresses["grpc"].rsplit(":", 1)
    headers = b"".join(header(*pair) for pair in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", method.encode()), (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers")))
    data = b""
    with socket.create_connection((host, int(port)), timeout=WAIT) as s, s.makefile("rb") as answer:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 4, 1, headers) +
                  frame(0, 1, 1, b"\0" + struct.pack(">I", len(request)) + request))
        while True:
            head = answer.read(9)
            holds(len(head) == 9, f"{method}: the stream ends")
            kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
            payload = answer.read(int.from_bytes(head[:3], "big"))
            if stream == 1 and kind == 0:
                data += payload
            if stream == 1 and flags & 1 and kind in (0, 1):
                break
    messages = []
    while data:
        length = struct.unpack(">I", data[1:5])[0]
        messages.append(fields(data[5:5 + length]))
        data = data[5 + length:]
    return messages


@test("gRPC: health, and a session whose tokens are those of completions")
def _():
    if not HAS_GRPC:
        raise Skip("this build has none")
    equal(rpc("/grpc.health.v1.Health/Check"), [{1: 1}])
    ids = post("/tokenize", {"model": "demo", "prompt": ASK})["tokens"]
    expected = post("/v1/completions", {**GREEDY, "prompt": ids, "max_tokens": 8})["choices"][0]["text"]
    service = "/kakeya.v1.RuntimeService/"
    session = number(1, rpc(service + "CreateSession")[0][1])
    packed = b"".join(number(0, i)[1:] for i in ids)
    equal(len(rpc(service + "AppendTokens", session + number(2, packed))), 1)
    frames = rpc(service + "Generate", session + number(2, 8))
    equal([sorted(f) for f in frames], [[1]] * 8 + [[2]], "eight tokens, then what became of them")
    tokens = [f[1] for f in frames[:-1]]
    equal(post("/detokenize", {"model": "demo", "tokens": tokens})["prompt"], expected)


@test("SIGTERM: a running stream ends whole, then the server does, with status 0")
def _():
    with server.connect() as s:
        body = json.dumps({**CHAT, "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                  b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        reply = s.recv(1)
        server.signal(signal.SIGTERM)
        reply += read_all(s)
    holds(dechunk(reply).endswith(b"data: [DONE]\n\n"), reply[-100:])
    equal(server.wait(), 0, server.log())


run_tests()
