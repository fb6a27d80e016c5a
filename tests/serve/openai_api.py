"""OpenAI's Python client against the server: chat completions, completions, models, tokens, metrics."""

import json
import math
import os
import re
import socket
import subprocess
import tempfile
import threading
import time

import openai

from harness import KAKEYA, WAIT, Server, dechunk, equal, eventually, holds, in_threads, run_tests, scripted_model, test
from harness import metrics as read_metrics

server = Server("--name", "demo", "--name", "gemma")
ASK = [{"role": "user", "content": "def fibonacci(n):"}]


def client(s=server, **options):
    return openai.OpenAI(base_url=s.url + "/v1", api_key=options.pop("api_key", "none"), timeout=WAIT,
                         max_retries=options.pop("max_retries", 0), **options)


ai = client()


def chat(messages=None, s=None, **options):
    options = {"model": "demo", "messages": messages or ASK, "temperature": 0, "max_tokens": 24, **options}
    return (client(s) if s else ai).chat.completions.create(**options)


def text(answer, i=0):
    return answer.choices[i].message.content


def refusal(code=None, param=None, status=400, s=server, **body):
    body = {"model": "demo", "messages": ASK, **body}
    body = {k: v for k, v in body.items() if v is not ...}
    reply = s.post("/v1/chat/completions", body)
    equal(reply.status, status, f"{reply.body[:300]}")
    equal((reply.error["code"], reply.error["param"]), (code, param), reply.error["message"])
    return reply.error["message"]


def run(*arguments, model=None):
    command = [KAKEYA, "run", "--json", "--attention", "native", *arguments]
    if model:
        command += ["--model", model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    equal(done.returncode, 0, done.stderr)
    return json.loads(done.stdout)


def scripted(script, *options):
    return Server("--name", "demo", *options, model=scripted_model(script))


def tool(name="f", **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def stream_text(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@test("1: models.list and retrieve: the served name and its alias; a foreign name is not found")
def _():
    listed = ai.models.list()
    equal([m.id for m in listed.data], ["demo", "gemma"])
    equal(ai.models.retrieve("demo").id, "demo")
    equal(ai.models.retrieve("gemma").owned_by, "kakeya")
    holds(ai.models.retrieve("demo").max_model_len > 1000)
    try:
        ai.models.retrieve("gpt-4")
        holds(False, "a foreign name was found")
    except openai.NotFoundError as e:
        equal(e.code, "model_not_found")


@test("2: chat at temperature 0 is what kakeya run says, with the same counts")
def _():
    said = run("def fibonacci(n):", "--max-tokens", "24")
    answer = chat()
    equal(text(answer), said["text"])
    equal(answer.usage.completion_tokens, said["completion_tokens"])
    equal(answer.usage.prompt_tokens, said["prompt_tokens"])
    equal(answer.usage.prompt_tokens, input_tokens(ASK))
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
    equal((answer.object, answer.model, answer.choices[0].finish_reason), ("chat.completion", "demo", "length"))
    holds(re.fullmatch(r"chatcmpl-[0-9A-Za-z]{24}", answer.id), answer.id)
    equal(chat(model="gemma").model, "gemma", "the name as requested")


def input_tokens(messages):
    return server.post("/v1/chat/completions/input_tokens", {"model": "demo", "messages": messages}).json["input_tokens"]


@test("3: a stream, joined, is the answer; role first, finish_reason last, [DONE]")
def _():
    chunks = list(chat(stream=True))
    equal(stream_text(chunks), text(chat()))
    equal((chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content), ("assistant", ""))
    equal([c.choices[0].finish_reason for c in chunks], [None] * (len(chunks) - 1) + ["length"])
    equal(len({c.id for c in chunks}), 1)
    holds(all(c.choices[0].delta.content for c in chunks[1:-1]), "no empty delta")
    raw = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 3, "stream": True})
    holds(raw.body.endswith(b"data: [DONE]\n\n") and raw.headers["content-type"] == "text/event-stream; charset=utf-8")
    holds(all(re.fullmatch(rb"data: [^\n]+", e) for e in raw.body.split(b"\n\n")[:-1]))
    stop = text(chat())[12:15]
    with ai.chat.completions.stream(model="demo", messages=ASK, temperature=0, max_tokens=24, stop=stop) as s:
        for _ in s:
            pass
        equal(s.get_final_completion().choices[0].message.content, text(chat(stop=stop)))


@test("4: include_usage: one chunk without choices before the end, null before it")
def _():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    equal([c.choices == [] for c in chunks], [False] * (len(chunks) - 1) + [True])
    equal([c.usage is None for c in chunks], [True] * (len(chunks) - 1) + [False])
    equal(chunks[-1].usage.completion_tokens, 24)


@test("5: max_completion_tokens 1, 0, -1, '5', 1.5")
def _():
    one = chat(max_tokens=None, max_completion_tokens=1)
    equal((one.usage.completion_tokens, one.choices[0].finish_reason), (1, "length"))
    refusal("invalid_value", "max_completion_tokens", max_completion_tokens=0)
    refusal("invalid_type", "max_completion_tokens", max_completion_tokens="5")
    refusal("invalid_type", "max_completion_tokens", max_completion_tokens=1.5)
    refusal("invalid_type", "max_completion_tokens", max_completion_tokens=True)
    equal(chat(max_tokens=2, max_completion_tokens=3).usage.completion_tokens, 3)
    s = Server("--name", "demo", "--context", "300")
    unlimited = client(s).chat.completions.create(model="demo", messages=ASK, temperature=0, max_completion_tokens=-1)
    equal(unlimited.choices[0].finish_reason, "length")
    holds(unlimited.usage.total_tokens in (300, 301), unlimited.usage.total_tokens)
    s.stop()


@test("6: stop strings: one, several, over tokens, inside characters; nothing of them is streamed")
def _():
    whole = text(chat(max_tokens=40))
    for start in range(2, len(whole) - 4, 1 if len(whole) < 40 else 9):
        stop = whole[start:start + 4]
        at = whole.index(stop)
        for stops in (stop, [stop, "never in it"]):
            got = chat(max_tokens=40, stop=stops)
            equal((text(got), got.choices[0].finish_reason), (whole[:at], "stop"), repr(stop))
            equal(got.choices[0].stop_reason, stop)
        equal(stream_text(chat(max_tokens=40, stop=stop, stream=True)), whole[:at])
    s = scripted("abß漢end")  # characters of two and three byte tokens
    for stop, left in (("ß", "ab"), ("漢e", "abß"), ("bß漢en", "a")):
        equal(text(chat(s=s, stop=stop)), left)
    s.stop()
    refusal("invalid_value", "stop", stop=["a"] * 17)
    refusal("invalid_value", "stop", stop="")
    refusal("invalid_type", "stop", stop=5)


@test("7: a stop string that occurs only in the reasoning does nothing")
def _():
    s = scripted("<|channel>thought\nwe halt<channel|>fine.")
    answer = chat(s=s, stop="halt", reasoning_effort="high")
    equal((text(answer), answer.choices[0].message.reasoning_content, answer.choices[0].finish_reason), ("fine.", "we halt", "stop"))
    s.stop()


def choice_seed(seed, choice):
    """As documented in docs/server.md."""
    if choice == 0:
        return seed
    bits = (1 << 64) - 1
    x = (seed + choice * 0x9E3779B97F4A7C15) & bits
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
    return x ^ (x >> 31)


def body_text(**options):
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 24, **options})
    equal(reply.status, 200, reply.body)
    return [c["message"]["content"] for c in reply.json["choices"]]


@test("8: n 3: equal when greedy; with a seed each is the request with its derived seed")
def _():
    greedy = chat(n=3)
    equal([c.index for c in greedy.choices], [0, 1, 2])
    equal({text(greedy, i) for i in range(3)}, {text(chat())})
    equal(greedy.usage.completion_tokens, 72)
    three = body_text(n=3, seed=7, temperature=1)
    equal(len(set(three)), 3)
    equal(three, [body_text(seed=choice_seed(7, i), temperature=1)[0] for i in range(3)])
    streamed = ["", "", ""]
    for chunk in chat(n=3, seed=7, temperature=1, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    equal(streamed, three)


@test("9: one seed gives one answer, also beside 16 other requests; another seed another answer")
def _():
    first = body_text(seed=7, temperature=1)
    equal(body_text(seed=7, temperature=1), first)
    holds(body_text(seed=8, temperature=1) != first)
    others = [lambda i=i: body_text(seed=i, temperature=1, messages=[{"role": "user", "content": f"question {i}"}]) for i in range(16)]
    equal(in_threads([lambda: body_text(seed=7, temperature=1), *others])[0], first)
    big = (1 << 63) - 25
    holds(body_text(seed=big, temperature=1) != body_text(seed=big - 1, temperature=1), "seeds keep all their bits")


@test("10: logit_bias -100 bans, 100 forces")
def _():
    ids = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 8, "temperature": 0,
                                                 "return_token_ids": True}).json["choices"][0]["token_ids"]
    def with_bias(token, bias):
        return server.post("/v1/chat/completions", {
            "model": "demo", "messages": ASK, "max_tokens": 8, "temperature": 0, "return_token_ids": True,
            "logit_bias": {str(token): bias}}).json["choices"][0]["token_ids"]
    holds(ids[0] not in with_bias(ids[0], -100))
    equal(with_bias(500, 100), [500] * 8)
    refusal("invalid_value", "logit_bias", logit_bias={"x": 1})
    refusal("invalid_value", "logit_bias", logit_bias={"5": 101})
    refusal("invalid_value", "logit_bias", logit_bias={"99999999": 1})


@test("11: logprobs: one entry a content token, the model's own, as kakeya score has them; streamed the same")
def _():
    body = {"model": "demo", "messages": ASK, "max_tokens": 12, "temperature": 0.7, "seed": 3, "logprobs": True, "top_logprobs": 5,
            "return_token_ids": True, "frequency_penalty": 0.5}
    reply = server.post("/v1/chat/completions", body).json
    choice = reply["choices"][0]
    entries = choice["logprobs"]["content"]
    equal(len(entries), len(choice["token_ids"]))
    equal(b"".join(bytes(e["bytes"]) for e in entries).decode(), choice["message"]["content"])
    ids = reply["prompt_token_ids"] + choice["token_ids"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(ids, f)
        f.flush()
        scored = subprocess.run([KAKEYA, "score", "--json", "--ids-file", f.name], capture_output=True, text=True, timeout=WAIT)
    nll = json.loads(scored.stdout)["token_nll"][len(reply["prompt_token_ids"]) - 1:]
    for entry, expected in zip(entries, nll):
        holds(abs(entry["logprob"] + expected) < 1e-4, f"{entry['logprob']} {-expected}")
        top = [t["logprob"] for t in entry["top_logprobs"]]
        equal(top, sorted(top, reverse=True))
        holds(len(top) == 5 and sum(map(math.exp, top)) <= 1 + 1e-6)
    streamed = []
    for line in server.post("/v1/chat/completions", {**body, "stream": True}).body.split(b"\n\n"):
        if line.startswith(b"data: {"):
            c = json.loads(line[6:])["choices"][0]
            if c["logprobs"]:
                equal(b"".join(bytes(e["bytes"]) for e in c["logprobs"]["content"]).decode(), c["delta"]["content"])
                streamed += c["logprobs"]["content"]
    equal(streamed, entries)


@test("12: top_logprobs 21; top_logprobs without logprobs")
def _():
    refusal("invalid_value", "top_logprobs", logprobs=True, top_logprobs=21)
    refusal("invalid_value", "top_logprobs", top_logprobs=2)


@test("13: an unknown field is named in a header, and refused with --strict")
def _():
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 1, "foo": 1, "bar": [2]})
    equal((reply.status, reply.headers["x-kakeya-ignored"]), (200, "foo, bar"))
    known = {"user": "u", "metadata": {}, "store": False, "n": 1, "service_tier": "auto", "logprobs": None, "foo": None}
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 1, **known})
    equal(reply.headers.get("x-kakeya-ignored"), "foo", "fields without effect are no ignored fields")
    s = Server("--strict", "--name", "demo")
    refusal("unsupported_parameter", "foo", s=s, foo=1)
    s.stop()


@test("14: functions, audio, image parts, the role function, forced calls and formats are refused by name")
def _():
    refusal("unsupported_parameter", "functions", functions=[])
    refusal("unsupported_parameter", "audio", audio={})
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    refusal("unsupported_content", "messages[0].content[0]", messages=image)
    refusal("unsupported_value", "messages[0].role", messages=[{"role": "function", "content": "x", "name": "f"}])
    refusal("unsupported_value", "tools[0]", tools=[{"type": "web_search"}])
    refusal("invalid_value", "tool_choice", tools=[tool()], tool_choice={"type": "function", "function": {"name": "g"}})
    refusal("unsupported_parameter", "grammar", grammar="x")
    refusal("missing_required_parameter", "messages", messages=...)
    refusal("missing_required_parameter", "model", model=...)
    refusal("invalid_value", "temperature", temperature=2.5)
    refusal("invalid_type", "temperature", temperature="hot")
    refusal("invalid_value", "n", n=17)


@test("15: an unknown model is not found")
def _():
    try:
        chat(model="gpt-4")
        holds(False)
    except openai.NotFoundError as e:
        equal((e.code, e.status_code), ("model_not_found", 404))


@test("16: a prompt that is longer than the context is refused on every route, before a stream begins, with both numbers; 63 of 64 fit")
def _():
    s = Server("--name", "demo", "--context", "64")
    long = [{"role": "user", "content": "word " * 200}]
    n = s.post("/v1/chat/completions/input_tokens", {"messages": long}).json["input_tokens"]
    ids = [2] + [300] * 63
    refused = [("/v1/chat/completions", {"messages": long}, "messages", n), ("/v1/responses", {"input": long}, "input", n),
               ("/v1/completions", {"prompt": ids}, "prompt", 64), ("/v1/completions", {"prompt": [[2, 300], ids]}, "prompt", 64),
               ("/v1/completions", {"prompt": ids + [300], "echo": True, "max_tokens": 0, "logprobs": 1}, "prompt", 65)]
    if s.post("/v1/messages", {}).status != 404:
        refused.append(("/v1/messages", {"messages": long, "max_tokens": 5}, None, n))
    for path, body, param, tokens in refused:
        for stream in (False, True) if "echo" not in body else (False,):
            reply = s.post(path, {"model": "demo", "stream": stream, **body})
            equal((reply.status, reply.headers["content-type"]), (400, "application/json"), f"{path}: {reply.body[:200]}")
            if param:
                equal((reply.error["code"], reply.error["param"]), ("context_length_exceeded", param), path)
            numbers = re.findall(r"\d+", reply.error["message"])
            equal(numbers, [str(tokens), "64"], f"{path}: {reply.error['message']}")
    for stream in (False, True):
        reply = s.post("/v1/completions", {"model": "demo", "prompt": ids[:63], "max_tokens": 10, "stream": stream})
        equal(reply.status, 200)
        equal((reply.body.count(b'"finish_reason":"length"'), reply.body.count(b"event")), (1, 0))
    one = s.post("/v1/completions", {"model": "demo", "prompt": ids[:63]}).json
    equal(one["usage"]["completion_tokens"], 1, "to the end of the context")
    s.stop()


@test("17: bodies that are no JSON objects in UTF-8; the connection stays usable")
def _():
    good = b'{"model":"demo","messages":[{"role":"user","content":"x"}],"max_tokens":1'
    cases = [(b"{", "invalid_json"), (good + b"} x", "invalid_json"), (good + b',"model":"demo"}', "invalid_json"),
             (b"[]", "invalid_json"), (b"", "invalid_json"), (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "invalid_json"),
             (good + b',"user":"\\u0000"}', "invalid_json"), (good + b',"user":"a\0b"}', "invalid_json"),
             (good + b',"user":"\xff"}', "invalid_utf8"), (good + b',"user":"\\ud800"}', "invalid_utf8"),
             (good + b',"user":"\\udc00\\ud800"}', "invalid_utf8"), (good + b',"temperature":01}', "invalid_json")]
    with server.connect() as s:
        stream = s.makefile("rb")
        for body, code in cases:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            equal(stream.readline()[:12], b"HTTP/1.1 400", body)
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length"):
                    length = int(line.split(b":")[1])
            equal(json.loads(stream.read(length))["error"]["code"], code, body)
    equal(server.post("/v1/chat/completions", good + b',"user":"\\ud83d\\ude00"}').status, 200, "a pair is fine")


@test("18: a missing key raises AuthenticationError; 19: content types of APIs")
def _():
    s = Server("--name", "demo", "--api-key", "secret")
    try:
        client(s, api_key="wrong").models.list()
        holds(False)
    except openai.AuthenticationError as e:
        equal(e.code, "invalid_api_key")
    equal(client(s, api_key="secret").models.list().data[0].id, "demo")
    s.stop()
    for kind, code in (("text/plain", 415), ("application/json; charset=latin-1", 415), ("application/jsonx", 415)):
        equal(server.post("/v1/chat/completions", b"{}", headers={"Content-Type": kind}).status, code, kind)
    for kind in ("application/json", "application/json; charset=UTF-8", "Application/JSON;charset=\"utf-8\""):
        equal(server.post("/v1/chat/completions", b"{}", headers={"Content-Type": kind}).status, 400, kind)


CALL = "<|tool_call>call:f{a:12}<tool_call|>"


def check_call(message, reason):
    equal((message.content or None, reason), (None, "tool_calls"))
    equal([(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls], [("f", {"a": 12})])


@test("20: a tool call, whole and streamed: the first delta has id, type and name")
def _():
    s = scripted(CALL)
    tools = [tool(a={"type": "integer"})]
    answer = chat(s=s, tools=tools).choices[0]
    check_call(answer.message, answer.finish_reason)
    holds(re.fullmatch(r"call_[0-9A-Za-z]{24}", answer.message.tool_calls[0].id))
    chunks = list(chat(s=s, tools=tools, stream=True))
    deltas = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    first = deltas[0]
    holds(first.id and first.type == "function" and first.function.name == "f" and first.function.arguments == "")
    holds(all(d.index == 0 and d.id is None and d.function.name is None for d in deltas[1:]))
    equal(json.loads("".join(d.function.arguments for d in deltas)), {"a": 12})
    equal(chunks[-1].choices[0].finish_reason, "tool_calls")
    with client(s).chat.completions.stream(model="demo", messages=ASK, temperature=0, tools=tools) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    check_call(final.message, final.finish_reason)
    s.stop()


def call_deltas(body):
    """What a stream says of calls, joined by index; and how often it says it."""
    calls, count = {}, 0
    for line in body.decode().split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for d in choice["delta"].get("tool_calls", []):
                count += 1
                if d["index"] in calls:
                    equal(set(d) | set(d["function"]), {"index", "function", "arguments"}, "only the first delta names the call")
                    calls[d["index"]]["arguments"] += d["function"]["arguments"]
                else:
                    holds(d["id"] and d["type"] == "function" and d["function"]["name"], d)
                    calls[d["index"]] = {**d["function"]}
    return calls, count


@test("20: a call that blocks of drafted tokens bring, and token by token: the same deltas, joined")
def _():
    script = "<|tool_call>f{b:12,a:34}<tool_call|>"
    seen, accepted = [], {}
    for name in ("drafts", "token by token"):
        s = scripted(script)
        # the second time the conversation itself foretells what the model says
        first = s.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "temperature": 0, "max_tokens": 40}).json
        call = first["choices"][0]["message"]["tool_calls"][0]
        talk = [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": "1"}, *ASK]
        body = {"model": "demo", "messages": talk, "temperature": 0, "max_tokens": 40, "stream": True,
                "stream_options": {"include_usage": True}}
        if name != "drafts":  # what is foretold depends on what the whole text has seen: here nothing of the kind
            body["messages"] = [{"role": "user", "content": "x"}]
        reply = s.post("/v1/chat/completions", body)
        calls, _ = call_deltas(reply.body)
        seen.append(calls)
        timings = [json.loads(x[6:])["timings"] for x in reply.body.decode().split("\n\n") if '"timings"' in x][-1]
        accepted[name] = timings["draft_n_accepted"], timings["predicted_n"] / timings["verifier_forwards"]
        s.stop()
    equal(seen[0], {0: {"name": "f", "arguments": '{"b":12,"a":34}'}})
    equal(seen[1], seen[0])
    print(f"# accepted draft tokens, tokens per forward: {accepted}")  # how many there are is a matter of speed


@test("21: two calls of one function: indices 0 and 1, distinct ids, finish_reason tool_calls, whole and streamed")
def _():
    s = Server("--name", "demo", "--max-tool-calls", "2")
    only = tool(a={"enum": [1]})
    only["function"]["parameters"] |= {"required": ["a"], "additionalProperties": False}
    twice = {"tools": [only], "tool_choice": "required", "max_tokens": 400, "extra_body": {"min_tokens": 200}}
    whole = chat(s=s, **twice).choices[0]
    equal([(c.function.name, json.loads(c.function.arguments)) for c in whole.message.tool_calls], [("f", {"a": 1})] * 2)
    equal((len({c.id for c in whole.message.tool_calls}), whole.finish_reason), (2, "tool_calls"))
    chunks = list(chat(s=s, stream=True, **twice))
    deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
    equal(sorted({d.index for d in deltas}), [0, 1])
    ids = [d.id for d in deltas if d.id]
    equal((len(ids), len(set(ids)), chunks[-1].choices[0].finish_reason), (2, 2, "tool_calls"))
    for i in (0, 1):
        mine = [d for d in deltas if d.index == i]
        equal((mine[0].function.name, json.loads("".join(d.function.arguments for d in mine))), ("f", {"a": 1}))
    s.stop()


@test("22: parallel_tool_calls false ends the answer behind the first call")
def _():
    s = scripted("<|tool_call>call:f{a:1}<tool_call|>and more text")
    tools = [tool(a={"type": "integer"})]
    both = chat(s=s, tools=tools)
    equal(both.choices[0].message.content, "and more text")
    one = chat(s=s, tools=tools, parallel_tool_calls=False)
    equal((one.choices[0].message.content, one.choices[0].finish_reason, len(one.choices[0].message.tool_calls)), (None, "tool_calls", 1))
    holds(one.usage.completion_tokens < both.usage.completion_tokens)
    limited = scripted("<|tool_call>call:f{a:1}<tool_call|>and more text", "--max-tool-calls", "1")
    equal(chat(s=limited, tools=tools).choices[0].finish_reason, "tool_calls")
    s.stop()
    limited.stop()


@test("23: tool_choice none: the token that begins a call is never sampled, and the prompt is that of auto")
def _():
    s = scripted(CALL)
    tools = [tool()]
    auto = chat(s=s, tools=tools)
    none = chat(s=s, tools=tools, tool_choice="none")
    equal(none.choices[0].message.tool_calls, None)
    equal(none.usage.prompt_tokens, auto.usage.prompt_tokens, "tools are rendered all the same")
    s.stop()


def weather_tools():
    return [tool("get_weather", city={"type": "string", "maxLength": 12}, days={"type": "integer", "minimum": 1, "maximum": 9}),
            tool("stop_it", why={"enum": ["done", "tired"]})]


@test("24: tool_choice required and named: a model that knows no tools calls an allowed one, says nothing else, ends")
def _():
    tools = weather_tools()
    named = {"type": "function", "function": {"name": "stop_it"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for temperature in (0, 1):
        for choice, names in (("required", {"get_weather", "stop_it"}), (named, {"stop_it"}), (allowed, {"stop_it"})):
            for seed in range(3):
                answer = chat(tools=tools, tool_choice=choice, temperature=temperature, seed=seed, max_tokens=300,
                              parallel_tool_calls=False).choices[0]
                equal((answer.message.content, answer.finish_reason, len(answer.message.tool_calls)), (None, "tool_calls", 1))
                function = answer.message.tool_calls[0].function
                holds(function.name in names, function.name)
                arguments = json.loads(function.arguments)
                holds(set(arguments) <= ({"city", "days"} if function.name == "get_weather" else {"why"}), arguments)
                holds(arguments.get("why", "done") in ("done", "tired") and 1 <= arguments.get("days", 1) <= 9, arguments)
    refusal("invalid_value", "tool_choice", tools=tools, tool_choice={"type": "function", "function": {"name": "other"}})
    refusal("invalid_value", "tool_choice", tool_choice="required")


@test("31: response_format: every complete answer validates, keys in the order of the schema, streamed the same")
def _():
    schema = {"type": "object", "additionalProperties": False, "required": ["reason", "count", "tags", "kind"], "properties": {
        "reason": {"type": "string", "maxLength": 20}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, "kind": {"enum": ["a", "b", None]}}}
    formats = [{"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
               {"type": "json_schema", "schema": schema}, {"type": "json_object", "schema": schema}]
    for temperature in (0, 1):
        for seed, response_format in enumerate(formats):
            options = {"response_format": response_format, "temperature": temperature, "seed": seed, "max_tokens": 300}
            value = json.loads(body_text(**options)[0])
            equal(list(value), ["reason", "count", "tags", "kind"])
            holds(len(value["reason"]) <= 20 and 0 <= value["count"] <= 99 and len(value["tags"]) <= 3, value)
            holds(value["kind"] in ("a", "b", None) and all(isinstance(t, bool) for t in value["tags"]), value)
            if seed == 0:
                equal(stream_text(chat(stream=True, **options)), text(chat(**options)))
    holds(body_text(extra=1, structured_outputs={"choice": ["yes", "no"]}, temperature=1)[0] in ("yes", "no"))
    holds(re.fullmatch(r"[a-c]{2}-\d", body_text(guided_regex=r"[a-c]{2}-\d", temperature=1)[0]))
    holds(isinstance(json.loads(body_text(guided_json={"type": "integer", "maximum": 9, "minimum": 0})[0]), int))
    cut = chat(response_format={"type": "json_object"}, max_tokens=3).choices[0]
    holds(cut.finish_reason in ("length", "stop"))
    holds(chat(response_format=formats[0], max_tokens=300, reasoning_effort=None).choices[0].finish_reason == "stop")


@test("32: chat.completions.parse with a pydantic model")
def _():
    import pydantic

    class Verdict(pydantic.BaseModel):
        good: bool
        score: int = pydantic.Field(ge=0, le=9)

    answer = ai.chat.completions.parse(model="demo", messages=ASK, temperature=1, seed=2, max_tokens=100, response_format=Verdict)
    holds(isinstance(answer.choices[0].message.parsed, Verdict), answer)


@test("33: schemas that are not understood are refused with a pointer; false; recursion works")
def _():
    def of(schema):
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    message = refusal("invalid_json_schema", "response_format", response_format=of(
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}))
    holds("/properties/a" in message, message)
    refusal("invalid_json_schema", "response_format", response_format=of(False))
    refusal("missing_required_parameter", "response_format.type", response_format={})
    refusal("unsupported_value", "response_format.type", response_format={"type": "xml"})
    node = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "additionalProperties": False, "required": ["n"],
                                                         "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9},
                                                                        "next": {"$ref": "#/$defs/node"}}}}}
    holds(re.match(r'\{\s*"n"\s*:\s*\d', body_text(response_format=of(node), temperature=0)[0]))


@test("28: thoughts: shown when asked for, counted and hidden otherwise; stray and missing ends")
def _():
    s = scripted("<|channel>thought\nso it is<channel|>Done.")
    on = chat(s=s, reasoning_effort="low")
    equal((text(on), on.choices[0].message.reasoning_content), ("Done.", "so it is"))
    holds(on.usage.completion_tokens_details.reasoning_tokens > 3)
    off = chat(s=s)
    equal((text(off), getattr(off.choices[0].message, "reasoning_content", None)), ("Done.", None))
    equal(off.usage.completion_tokens_details.reasoning_tokens, on.usage.completion_tokens_details.reasoning_tokens)
    hidden = chat(s=s, reasoning_effort="low", extra_body={"include_reasoning": False})
    holds("reasoning_content" not in hidden.choices[0].message.model_extra)
    for ask in ({"chat_template_kwargs": {"enable_thinking": True}}, {"thinking": {"type": "enabled"}}, {"think": True}):
        equal(chat(s=s, extra_body=ask).choices[0].message.reasoning_content, "so it is", ask)
    chunks = list(chat(s=s, reasoning_effort="low", stream=True))
    equal("".join(c.choices[0].delta.model_extra.get("reasoning_content", "") for c in chunks), "so it is")
    holds(not any(c.choices[0].delta.content and "reasoning_content" in c.choices[0].delta.model_extra for c in chunks))
    s.stop()
    for script, content in (("It<channel|> is", "It is"), ("<|channel>thought\nlost in it", "")):
        s = scripted(script)
        equal(text(chat(s=s)), content, script)
        s.stop()


@test("29: content that spells a call in ordinary characters is content")
def _():
    s = scripted("See call:f{} ok")
    equal(text(chat(s=s, tools=[tool()])), "See call:f{} ok")
    s.stop()


@test("30: a thinking budget of 5 ends the thought at its 6th position, with and without drafts")
def _():
    end = server.post("/tokenize", {"content": "<channel|>"}).json["tokens"][0]
    begin = server.post("/tokenize", {"content": "<|channel>"}).json["tokens"][0]
    seen = set()
    for _ in range(2):
        reply = server.post("/v1/chat/completions", {
            "model": "demo", "messages": ASK, "max_tokens": 30, "temperature": 0, "return_token_ids": True, "think": True,
            "thinking_token_budget": 5, "logit_bias": {str(begin): 100}}).json["choices"][0]["token_ids"]
        at = reply.index(begin)
        equal(reply.index(end), at + 6, reply)
        seen.add(tuple(reply))
    equal(len(seen), 1)


@test("42: completions: the four forms of a prompt, in order; echo with scores; suffix")
def _():
    ids = server.post("/tokenize", {"prompt": "def f(x):"}).json["tokens"]
    other = server.post("/tokenize", {"prompt": "import os"}).json["tokens"]

    def complete(prompt, **more):
        return ai.completions.create(model="demo", prompt=prompt, temperature=0, max_tokens=8, **more)

    one, two = complete("def f(x):"), complete("import os")
    equal(complete(ids).choices[0].text, one.choices[0].text)
    for both in (["def f(x):", "import os"], [ids, other]):
        equal([(c.index, c.text) for c in complete(both).choices], [(0, one.choices[0].text), (1, two.choices[0].text)])
    equal([c.index for c in complete(["a", "b"], n=2).choices], [0, 1, 2, 3])
    streamed = complete("def f(x):", stream=True)
    equal("".join(c.choices[0].text for c in streamed), one.choices[0].text)
    equal(complete("def f(x):", echo=True).choices[0].text, "def f(x):" + one.choices[0].text)
    equal(complete("def f(x):", stop=one.choices[0].text[3:6]).choices[0].finish_reason, "stop")
    equal(ai.completions.create(model="demo", prompt="x", temperature=0).usage.completion_tokens, 16)

    score = ai.completions.create(model="demo", prompt=ids, max_tokens=0, echo=True, logprobs=2)
    lists = score.choices[0].logprobs
    equal(len(lists.tokens), len(ids) - 1, "<bos> is not printed")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(ids, f)
        f.flush()
        scored = subprocess.run([KAKEYA, "score", "--json", "--ids-file", f.name], capture_output=True, text=True, timeout=WAIT)
    for got, nll in zip(lists.token_logprobs, json.loads(scored.stdout)["token_nll"]):
        holds(abs(got + nll) < 1e-4, f"{got} {nll}")
    equal("".join(lists.tokens), "def f(x):")
    equal(lists.text_offset, [sum(len(t) for t in lists.tokens[:i]) for i in range(len(lists.tokens))])
    holds(all(len(t) == 2 for t in lists.top_logprobs))
    for bad in ({"suffix": "x"}, {"best_of": 3}):
        try:
            complete("x", **bad)
            holds(False, bad)
        except openai.BadRequestError as e:
            equal(e.code, "unsupported_parameter")
    both = complete("def f(x):", logprobs=1).choices[0]
    equal("".join(both.logprobs.tokens), both.text)


@test("43: tokenize and detokenize in both dialects, and as kakeya tokenize has it; messages; templates")
def _():
    for sample in ("Hello world", " größer <bos> 漢字\n\n", ""):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write(sample)
            f.flush()
            ours = json.loads(subprocess.run([KAKEYA, "tokenize", "--json", "--text-file", f.name], capture_output=True).stdout)["ids"]
        vllm = server.post("/tokenize", {"prompt": sample}).json
        llama = server.post("/tokenize", {"content": sample}).json
        equal((vllm["tokens"], vllm["count"], llama["tokens"]), (ours, len(ours), ours[1:]))
        back = server.post("/detokenize", {"tokens": llama["tokens"]}).json
        equal((back["content"], back["prompt"], back["text"]), (sample,) * 3)
    pieces = server.post("/tokenize", {"content": "a 漢\x07", "with_pieces": True, "return_token_strs": True}).json
    equal(len(pieces["tokens"]), len(pieces["token_strs"]))
    spelt = [p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces["tokens"]]
    equal(b"".join(spelt), "a 漢\x07".encode())
    counted = server.post("/tokenize", {"messages": ASK}).json["count"]
    equal(counted, chat(max_tokens=1).usage.prompt_tokens)
    template = server.post("/apply-template", {"messages": ASK}).json
    equal(template["tokens_count"], counted)
    rendered = server.post("/tokenize", {"messages": ASK}).json["tokens"]
    equal(server.post("/tokenize", {"content": template["prompt"]}).json["tokens"], rendered)
    equal(server.post("/detokenize", {"tokens": [-1]}).status, 400)
    equal(server.post("/tokenize", {}).error["code"], "missing_required_parameter")


@test("44: metrics move by exact amounts; histograms are consistent")
def _():
    s = Server("--name", "demo")
    def now():
        reply = s.get("/metrics")
        equal(reply.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        return read_metrics(reply.body.decode())
    before, prompt, generated, cached = now(), 0, 0, 0
    for i in range(10):
        answer = chat([{"role": "user", "content": f"count {i % 4}"}], s=s, max_tokens=3 + i)
        prompt += answer.usage.prompt_tokens
        generated += answer.usage.completion_tokens
        cached += answer.usage.prompt_tokens_details.cached_tokens
    s.post("/v1/chat/completions", {})
    after = now()
    moved = {k: after[k] - before.get(k, 0) for k in after}
    equal(moved["kakeya_prompt_tokens_total"], prompt)
    equal(moved["kakeya_generation_tokens_total"], generated)
    equal(sum(v for k, v in moved.items() if k.startswith("kakeya_prompt_tokens_cached_total")), cached)
    holds(cached > 0)
    route = "kakeya_request_total|route=/v1/chat/completions|status="
    equal((moved[route + "200"], moved[route + "400"]), (10, 1))
    equal(moved["kakeya_requests_finished_total|reason=length"], 10)
    for name, count in (("time_to_first_token_seconds", 10), ("inter_token_latency_seconds", generated - 10),
                        ("e2e_request_latency_seconds", 10), ("request_prompt_tokens", 10), ("request_generation_tokens", 10),
                        ("request_queue_time_seconds", 10)):
        name = "kakeya_" + name
        equal(moved[name + "_count"], count, name)
        buckets = [(float(k.split("le=")[1]), v) for k, v in after.items() if k.startswith(name + "_bucket")]
        buckets.sort()
        equal(buckets[-1], (math.inf, after[name + "_count"]), name)
        equal([v for _, v in buckets], sorted(v for _, v in buckets), name)
    equal(moved["kakeya_request_prompt_tokens_sum"], prompt)
    equal((after["kakeya_requests_running"], after["kakeya_requests_waiting"]), (0, 0))
    holds(after["kakeya_kv_bytes|kind=full"] > 0 and after["kakeya_process_open_fds"] > 3)
    s.stop()
    secret = Server("--api-key", "k", "--metrics-key")
    equal((secret.get("/metrics").status, secret.get("/metrics", headers={"Authorization": "Bearer k"}).status), (401, 200))
    secret.stop()


def leave_during(s, stream, prompt="x", until=None):
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": prompt}], "stream": stream, "temperature": 0,
                       "ignore_eos": True}).encode()
    c = s.connect()
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    if until:
        until(c)
    c.close()


@test("52: a client that leaves, during the prompt, during the answer, without stream: computing stops, the retry finds the prefix")
def _():
    s = Server("--name", "demo")
    state = lambda wanted: lambda _: eventually(lambda: any(x["state"] == wanted for x in s.get("/slots").json), wanted)  # noqa: E731
    long = "some words to read and to remember, one after the other; " * 500
    leave_during(s, True, long, state("prompt"))
    eventually(lambda: s.metric("kakeya_requests_running") == 0, "the prompt stops")
    for stream in (True, False):
        leave_during(s, stream, "Tell me more.", state("decode"))
        eventually(lambda: s.metric("kakeya_requests_running") == 0, "the answer stops")
    equal(s.metric("kakeya_requests_finished_total", reason="cancelled"), 3)
    equal(s.metric("kakeya_http_disconnects_total"), 3)
    again = chat([{"role": "user", "content": "Tell me more."}], s=s)
    holds(again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 1, again.usage)
    again = chat([{"role": "user", "content": long}], s=s, max_tokens=1)
    holds(again.usage.prompt_tokens_details.cached_tokens > 0, again.usage)
    s.stop()


@test("53: a client that reads nothing stalls alone, and goes on with the same tokens when it reads")
def _():
    s = Server("--name", "demo")
    body = {"model": "demo", "messages": ASK, "stream": True, "seed": 5, "temperature": 1, "ignore_eos": True, "logprobs": True,
            "top_logprobs": 20, "max_tokens": 900, "n": 4}
    data = json.dumps(body).encode()
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.settimeout(WAIT)
    c.connect(("127.0.0.1", s.port))
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    eventually(lambda: any(x["state"] == "stalled" for x in s.get("/slots").json), "the answer stalls")
    count = lambda: [x["n_tokens"] for x in s.get("/slots").json]  # noqa: E731
    eventually(lambda: count() == (time.sleep(0.3), count())[1], "what was under way has ended")
    tokens = count()
    equal(text(chat(s=s)), text(chat()), "others are served")
    equal(count(), tokens, "nothing is computed for it")
    holds(tokens[0] < 3600)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    received = b""
    while piece := c.recv(1 << 16):
        received += piece
    c.close()
    def content(raw):
        parts = re.findall(rb"data: (\{.*\})\n\n", raw)
        texts = [""] * 4
        for choice in (json.loads(p)["choices"][0] for p in parts):
            texts[choice["index"]] += choice["delta"].get("content", "")
        return texts
    equal(content(dechunk(received)), content(server.post("/v1/chat/completions", body).body))
    s.stop()


@test("51: a full queue: 429 with Retry-After; the client retries and succeeds")
def _():
    s = Server("--name", "demo", "--max-batch", "1", "--max-queue", "1")
    holding = [threading.Thread(target=leave_during, args=(s, True, f"hold {i}", lambda c: stop.wait())) for i in range(2)]
    stop = threading.Event()
    holding[0].start()
    eventually(lambda: s.metric("kakeya_requests_running") == 1, "one runs")
    holding[1].start()
    eventually(lambda: s.metric("kakeya_requests_waiting") == 1, "one waits")
    full = s.post("/v1/chat/completions", {"model": "demo", "messages": ASK})
    equal((full.status, full.error["code"], full.error["type"]), (429, "queue_full", "rate_limit_error"))
    holds(1 <= int(full.headers["retry-after"]) <= 60)
    threading.Timer(0.5, stop.set).start()
    holds(text(client(s, max_retries=8).chat.completions.create(model="demo", messages=ASK, max_tokens=3)))
    for t in holding:
        t.join()
    s.stop()


@test("57: SIGTERM with streams and waiting requests: the waiting get 503, the streams end, status 0")
def _():
    s = Server("--name", "demo", "--max-batch", "3")
    results = []

    def ask(i):
        try:
            chunks = list(chat([{"role": "user", "content": f"number {i}"}], s=s, stream=True, max_tokens=400,
                               extra_body={"ignore_eos": True}))
            results.append(chunks[-1].choices[0].finish_reason)
        except openai.APIStatusError as e:
            results.append(e.status_code)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    eventually(lambda: s.metric("kakeya_requests_running") == 3 and s.metric("kakeya_requests_waiting") == 5, "3 run, 5 wait")
    s.signal(15)
    for t in threads:
        t.join()
    equal(s.wait(), 0)
    equal(sorted(map(str, results)), ["503"] * 5 + ["length"] * 3)
    s.stop()


@test("57: what runs when the drain is over gets an error event")
def _():
    s = Server("--name", "demo", "--drain", "0.2")
    stream = chat(s=s, stream=True, max_tokens=None, extra_body={"ignore_eos": True})
    next(iter(stream))
    s.signal(15)
    try:
        list(stream)
        holds(False, "the stream ended as if it were complete")
    except openai.APIError as e:
        equal(e.code, "draining")
    equal(s.wait(), 0)
    s.stop()


@test("49: 64 streams and one long prompt: every answer is that of a request alone")
def _():
    count = 16 if os.environ.get("KAKEYA_SHORT_SWEEPS") else 64
    alone = [body_text(seed=i, temperature=1, max_tokens=16, messages=[{"role": "user", "content": f"q {i}"}])[0] for i in range(count)]
    long = [{"role": "user", "content": "many words of a long prompt that is read beside the others; " * 300}]

    def stream(i):
        return stream_text(chat([{"role": "user", "content": f"q {i}"}], stream=True, seed=i, temperature=1, max_tokens=16))

    got = in_threads([lambda: text(chat(long, max_tokens=4)), *[lambda i=i: stream(i) for i in range(count)]])
    equal(got[1:], alone)


@test("F7: a long silence is filled with comments that clients ignore")
def _():
    s = Server("--name", "demo", "--sse-ping", "0.5", "--threads", "1")
    long = [{"role": "user", "content": "many words of a long prompt; " * 700}]
    raw = s.post("/v1/chat/completions", {"model": "demo", "messages": long, "max_tokens": 2, "stream": True})
    equal(raw.status, 200)
    if raw.body.count(b"\n\n: ") == 0:  # a machine that reads so much in half a second
        holds(float(s.metric("kakeya_time_to_first_token_seconds_sum")) < 1.1, "there was time for a comment")
    else:
        holds(re.search(rb"\n\n: prompt \d+/\d+\n\n", raw.body), raw.body[:500])
    equal(stream_text(chat(long, s=s, stream=True, max_tokens=2)), text(chat(long, s=s, max_tokens=2)))
    s.stop()


@test("14b: presence and frequency penalties change what is repeated, and nothing else")
def _():
    plain = body_text(temperature=0, max_tokens=60)[0]
    for field in ("presence_penalty", "frequency_penalty"):
        equal(body_text(temperature=0, max_tokens=60, **{field: 0})[0], plain)
        holds(body_text(temperature=0, max_tokens=60, **{field: 2})[0] != plain, field)
        refusal("invalid_value", field, **{field: 2.1})


@test("props, slots and log lines hold no text of users; --log-json is JSON")
def _():
    s = Server("--name", "demo", "--log-json")
    chat([{"role": "user", "content": "SECRETWORD"}], s=s)
    props = s.get("/props").json
    holds(props["default_generation_settings"]["n_ctx"] > 1000 and props["kakeya"]["attention"] == "native")
    equal(s.get("/slots").json, [])
    s.stop()
    log = s.log()
    holds("SECRETWORD" not in log)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    answered = [line for line in lines if line["path"] == "/v1/chat/completions"]
    equal((answered[0]["status"], answered[0]["generated"], answered[0]["finish"]), (200, 24, "length"))


if __name__ == "__main__":
    run_tests()
