"""OpenAI's Python client against the server: chat completions, completions, models, tokens; what is refused."""

import json
import math
import re
import subprocess
import tempfile

import openai

from harness import KAKEYA, WAIT, Server, equal, holds, in_threads, run_tests, test
from openai_harness import ai, ASK, body_text, chat, client, input_tokens, refusal, run, scripted, server, stream_text, text, tool


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


def choice_seed(seed, choice):
    """As documented in docs/reference/server.md."""
    if choice == 0:
        return seed
    bits = (1 << 64) - 1
    x = (seed + choice * 0x9E3779B97F4A7C15) & bits
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
    return x ^ (x >> 31)


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

    def biased(bias):
        return server.post("/v1/chat/completions", {
            "model": "demo", "messages": ASK, "max_tokens": 8, "temperature": 0, "return_token_ids": True,
            "logit_bias": bias}).json["choices"][0]["token_ids"]

    def with_bias(token, bias):
        return biased({str(token): bias})
    holds(ids[0] not in with_bias(ids[0], -100))
    equal(with_bias(500, 100), [500] * 8)
    piece = server.post("/detokenize", {"tokens": [500]}).json["content"]
    forced = [500] * 8
    equal(biased({piece: 100}), forced, f"keyed by the text {piece!r}")
    equal(biased([[500, 100]]), forced, "a list of pairs")
    equal(biased([[piece, 100], ["501", -3]]), forced, "pairs with texts and digits")
    equal(biased({str(ids[0]): False}), with_bias(ids[0], -100), "false bans")
    for bad in ({"no single token": 1}, {"": 1}, {"5": 101}, {"99999999": 1}, {"99999999999999999999": 1}, [[5]], [5], [[1.5, 1]],
                [[-1, 1]], {"5": True}, {"5": "1"}):
        refusal("invalid_value", "logit_bias", logit_bias=bad)
    refusal("invalid_type", "logit_bias", logit_bias="5")


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
    refusal("unsupported_parameter", "functions", functions=[{"name": "f"}])
    refusal("unsupported_parameter", "function_call", functions=[], function_call={"name": "f"})
    refusal("invalid_type", "tools[1].function.description",
            tools=[tool(), {"type": "function", "function": {"name": "g", "description": 5}}])
    refusal("unsupported_parameter", "audio", audio={})
    refusal("invalid_value", "metadata", metadata={str(i): "x" for i in range(17)})
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    refusal("unsupported_content", "messages[0].content[0]", messages=image)
    refusal("unsupported_value", "messages[0].role", messages=[{"role": "function", "content": "x", "name": "f"}])
    call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}  # it would not be in the prompt
    refusal("invalid_prompt", "messages[1].role", messages=[{"role": "user", "content": "x"}, result])
    refusal("invalid_prompt", "messages[2].role", messages=[call, {"role": "user", "content": "x"}, result])
    refusal("unsupported_value", "tools[0]", tools=[{"type": "web_search"}])
    refusal("invalid_value", "tool_choice", tools=[tool()], tool_choice={"type": "function", "function": {"name": "g"}})
    refusal("missing_required_parameter", "messages", messages=...)
    refusal("missing_required_parameter", "model", model=...)
    refusal("invalid_value", "temperature", temperature=2.5)
    refusal("invalid_type", "temperature", temperature="hot")
    refusal("invalid_value", "n", n=129)


@test("14c: what a history holds that is no text ends no conversation: it is left out, or a line stands for it; the header says so")
def _():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    word = {"type": "text", "text": "I see."}

    def check(message, plain, ignored):
        """A message in the middle of a conversation is read as the plain one is, and the answer comes, streamed or not."""
        begin = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
        if message["role"] == "assistant":
            begin, end = [*ASK], [{"role": "user", "content": "And?"}]
        else:
            end = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        messages = [*begin, message, *end]
        equal(input_tokens(messages), input_tokens([*begin, plain, *end]), str(message))
        expected = ", ".join(f"messages[{len(begin)}].{name}" for name in ignored)
        for more in ({}, {"stream": True}, {"tools": [tool()]}):
            reply = server.post("/v1/chat/completions", {"model": "demo", "messages": messages, "max_tokens": 2, **more})
            equal((reply.status, reply.headers.get("x-kakeya-ignored")), (200, expected), reply.body)
        equal(server.post("/apply-template", {"messages": messages}).json, server.post("/apply-template", {
            "messages": [*begin, plain, *end]}).json)

    says = {"role": "assistant", "content": "I see."}
    for field in ("reasoning", "reasoning_content"):
        for value in ({"effort": "high", "summary": "so"}, {}, [], [{"type": "thinking", "thinking": "so"}], 7, True):
            check({**says, field: value}, says, [field])
    for part in ({"type": "thinking", "thinking": "so", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
                 {"type": "reasoning", "text": "so"}, image, {"type": "something_new"}):
        check({**says, "content": [part, word]}, says, [f"content[0]({part['type']})"])
        check({**says, "content": [word, part]}, says, [f"content[1]({part['type']})"])
    check({**says, "content": [word, image], "reasoning": {"a": 1}}, says, ["reasoning", "content[1](image_url)"])
    brings = lambda content: {"role": "tool", "tool_call_id": "c", "content": content}  # noqa: E731
    for part, line in ((image, "[image]"), ({"type": "input_image", "image_url": "x"}, "[image]"),
                       ({"type": "file", "file": {"filename": "a.pdf", "file_data": "x"}}, "[file: a.pdf]"),
                       ({"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}, "[audio]"),
                       ({"type": "tool_reference", "tool_name": "g"}, "g"), ({"type": "something_new"}, "[something_new]")):
        check(brings([part]), brings(line), [f"content[0]({part['type']})"])
        check(brings([word, part]), brings([word, {"type": "text", "text": line}]), [f"content[1]({part['type']})"])
    for part in (image, {"type": "thinking", "thinking": "so"}, {"type": "input_audio", "input_audio": {}}):
        refusal("unsupported_content", "messages[0].content[0]", messages=[{"role": "user", "content": [part]}])
        refusal("unsupported_content", "messages[2].content[1]", messages=[*ASK, says, {"role": "user", "content": [word, part]}])
        refusal("unsupported_content", "messages[0].content[0]", messages=[{"role": "system", "content": [part]}, *ASK])


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
            most = "64" if param else "63"  # /v1/messages names the longest prompt, which leaves room for a token
            equal(numbers, [str(tokens), most], f"{path}: {reply.error['message']}")
    # What is far too long is not read to its end: the first number is then one that it has at least.
    far = "All work and no play.\n" * 400000
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": far}]}), ("/v1/completions", {"prompt": far}),
                       ("/v1/responses", {"input": far}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 8000000}]}),
                       ("/v1/messages", {"messages": [{"role": "user", "content": far}], "max_tokens": 5})):
        reply = s.post(path, {"model": "demo", **body})
        equal(reply.status, 400, path)
        least, most = re.findall(r"\d+", reply.error["message"])
        holds(64 < int(least) and most in ("63", "64"), reply.error["message"])
    equal(s.post("/v1/chat/completions/input_tokens", {"messages": long * 20}).json["input_tokens"] > 4 * 64, True, "counts are exact")
    for stream in (False, True):
        reply = s.post("/v1/completions", {"model": "demo", "prompt": ids[:63], "max_tokens": 10, "stream": stream})
        equal(reply.status, 200)
        equal((reply.body.count(b'"finish_reason":"length"'), reply.body.count(b"event")), (1, 0))
    one = s.post("/v1/completions", {"model": "demo", "prompt": ids[:63]}).json
    equal(one["usage"]["completion_tokens"], 1, "to the end of the context")
    s.stop()


@test("16b: what is too long is told in the words by which clients know it, with both numbers as fields")
def _():
    s = Server("--name", "demo", "--context", "64")
    long = [{"role": "user", "content": "word " * 200}]
    n = s.post("/v1/chat/completions/input_tokens", {"messages": long}).json["input_tokens"]
    for path, body, tokens in (("/v1/chat/completions", {"messages": long}, n), ("/v1/responses", {"input": long}, n),
                               ("/v1/completions", {"prompt": [300] * 64}, 64), ("/v1/messages", {"messages": long, "max_tokens": 5}, n),
                               ("/v1/completions", {"prompt": [300] * 65, "echo": True, "max_tokens": 0, "logprobs": 1}, 65)):
        error = s.post(path, {"model": "demo", **body}).error
        equal((error["n_prompt_tokens"], error["n_ctx"]), (tokens, 64), path)
        if path != "/v1/messages":  # as LiteLLM and aider look for it
            holds("this model's maximum context length is 64 tokens" in error["message"].lower(), error["message"])
    far = s.post("/v1/completions", {"model": "demo", "prompt": "All work and no play.\n" * 400000}).error
    holds(far["n_prompt_tokens"] > 64 and far["n_ctx"] == 64 and "maximum context length is 64 tokens" in far["message"], far)
    holds("n_ctx" not in s.post("/v1/completions", {"model": "demo"}).error, "of other errors nothing is said")
    s.stop()


@test("5b: numbers are refused only where the API refuses them")
def _():
    greedy = body_text(temperature=0)[0]
    equal(body_text(temperature=1, top_p=0)[0], greedy, "top_p 0 leaves the likeliest token")
    for field, values in (("top_k", (0, -1, 2**31 - 1, 2**53)), ("max_tokens", (2**31 - 1,)), ("min_tokens", (0,)),
                          ("max_completion_tokens", (2**31 - 1, 2**63)), ("thinking_budget_tokens", (-1, 0, 2**31 - 1)),
                          ("thinking_token_budget", (-1, 2**40)), ("seed", (-1, -2**63, 2**64 - 1)), ("min_p", (0, 1)),
                          ("presence_penalty", (-2, 2)), ("frequency_penalty", (-2, 2)), ("temperature", (0, 2)), ("top_p", (0, 1)),
                          ("repeat_penalty", (1e-3, 1e3)), ("top_logprobs", (0, 20))):
        for value in values:
            extra = {"logprobs": True} if field == "top_logprobs" else {}
            limits = {} if field.startswith("max_") else {"max_tokens": 2}
            body = {"model": "demo", "messages": ASK, "stop": "e", **limits, **extra, field: value}
            reply = server.post("/v1/chat/completions", body)
            equal(reply.status, 200, f"{field} {value}: {reply.body[:200]}")
    equal(len(chat(n=128, max_tokens=2).choices), 128)
    equal(len(set(c.message.content for c in chat(n=20, max_tokens=6, temperature=2, seed=5).choices)) > 1, True)
    for prompt, usage in (("x", 2), (["x", "y"], 4)):
        none = server.post("/v1/completions", {"model": "demo", "prompt": prompt, "max_tokens": 0}).json
        equal([(c["text"], c["finish_reason"]) for c in none["choices"]], [("", "length")] * len(none["choices"]))
        equal((none["usage"]["prompt_tokens"], none["usage"]["completion_tokens"]), (usage, 0))
    many = server.post("/v1/completions", {"model": "demo", "prompt": ["x"] * 65, "max_tokens": 1, "temperature": 0}).json
    equal([c["index"] for c in many["choices"]], list(range(65)))
    equal(len({c["text"] for c in many["choices"]}), 1)
    reply = server.post("/v1/messages", {"model": "demo", "messages": ASK, "max_tokens": 2**31 - 1, "top_p": 0, "stop_sequences": ["e"]})
    equal(reply.status, 200, reply.body)
    reply = server.post("/v1/responses", {"model": "demo", "input": "x", "max_output_tokens": 2, "top_p": 0, "max_tool_calls": 2**31 - 1})
    equal((reply.status, reply.json["top_p"]), (200, 0), reply.body)


@test("tools: [] and tool_choice: one answer on all routes, nothing is offered and nothing is called")
def _():
    ask = {"model": "demo", "messages": ASK, "max_tokens": 2}
    for more in ({"tools": [], "tool_choice": "auto"}, {"tool_choice": "auto"}, {"tools": []}, {"tools": None, "tool_choice": "auto"},
                 {"tools": [], "tool_choice": "none"}, {"tool_choice": "none"}, {"functions": [], "function_call": "none"},
                 {"functions": [], "function_call": "auto"}, {"functions": []}, {"tools": [], "parallel_tool_calls": True}):
        reply = server.post("/v1/chat/completions", {**ask, **more})
        equal(reply.status, 200, f"{more}: {reply.body[:200]}")
        if "functions" in more:
            continue
        responses = {"model": "demo", "input": "x", "max_output_tokens": 2, **more}
        equal(server.post("/v1/responses", responses).status, 200, f"responses {more}")
        choice = {"tool_choice": {"type": more["tool_choice"]}} if "tool_choice" in more else {}
        messages = {**ask, **{k: v for k, v in more.items() if k == "tools"}, **choice}
        equal(server.post("/v1/messages", messages).status, 200, f"messages {more}")
    refusal("invalid_value", "tool_choice", tools=[], tool_choice="required")


@test("every route answers with /v1 and without")
def _():
    posts = {"/chat/completions": {"messages": ASK, "max_tokens": 1}, "/completions": {"prompt": "x", "max_tokens": 1},
             "/chat/completions/input_tokens": {"messages": ASK}, "/responses": {"input": "x", "max_output_tokens": 1},
             "/responses/input_tokens": {"input": "x"}, "/messages": {"messages": ASK, "max_tokens": 1},
             "/messages/count_tokens": {"messages": ASK}, "/tokenize": {"content": "x"}, "/detokenize": {"tokens": [300]},
             "/apply-template": {"messages": ASK}, "/chat/completions/render": {"messages": ASK}, "/completions/render": {"prompt": "x"},
             "/responses/render": {"input": "x"}, "/messages/render": {"messages": ASK}}
    for path, body in posts.items():
        for prefix in ("", "/v1"):
            equal(server.post(prefix + path, {"model": "demo", **body}).status, 200, prefix + path)
    for path in ("/models", "/models/demo", "/health", "/props", "/slots"):
        for prefix in ("", "/v1"):
            equal(server.get(prefix + path).status, 200, prefix + path)
    id = server.post("/responses", {"model": "demo", "input": "x", "max_output_tokens": 1}).json["id"]
    equal(server.get(f"/responses/{id}").json["id"], id)
    equal(server.get(f"/responses/{id}/input_items").json["object"], "list")
    without = server.post("/messages", {"model": "demo", "messages": []})
    equal((without.status, without.json["type"]), (400, "error"), "errors of the Messages API have its shape")
    for path in ("/v1", "/v1/v1/models", "/v1x/models", "/v1/nothing"):
        equal(server.get(path).status, 404, path)


@test("one stream carries one set of timings at its end, and one token is no speed")
def _():
    def last_timings(**body):
        reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "temperature": 0, "stream": True,
                                                     "stream_options": {"include_usage": True}, **body})
        events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
        return [e["timings"] for e in events if "timings" in e]
    for body in ({"max_tokens": 30}, {"max_tokens": 1}, {"max_tokens": 9, "n": 3, "temperature": 1, "seed": 1}):
        ends = last_timings(**body)
        holds(len(ends) == 1 + body.get("n", 1), ends)
        equal(ends[1:], ends[:-1], str(body))
    one = last_timings(max_tokens=1)[-1]
    equal((one["predicted_n"], one["predicted_per_second"]), (1, 0), "the first token comes with the prompt")
    some = last_timings(max_tokens=30)[-1]
    expected = (some["predicted_n"] - 1) / some["predicted_ms"] * 1000
    holds(abs(some["predicted_per_second"] - expected) < 0.01 * expected, some)
    s = Server("--name", "demo", "--log-json")
    s.post("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": 1})
    line = [json.loads(line) for line in s.log().splitlines() if '"tokens_per_second"' in line][-1]
    equal((line["generated"], line["tokens_per_second"]), (1, 0))
    s.stop()


@test("17: bodies that are no JSON objects in UTF-8; the connection stays usable")
def _():
    good = b'{"model":"demo","messages":[{"role":"user","content":"x"}],"max_tokens":1'
    cases = [(b"{", "invalid_json"), (good + b"} x", "invalid_json"), (good + b',"model":"demo"}', "invalid_json"),
             (b"[]", "invalid_json"), (b"", "invalid_json"), (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "invalid_json"),
             (good + b',"\\u0000":1}', "invalid_json"), (good + b',"user":"a\0b"}', "invalid_json"),
             (good + b',"user":"\xff"}', "invalid_utf8"), (good + b',"\\ud800":1}', "invalid_json"),
             (good + b',"temperature":01}', "invalid_json")]
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
    # a template begins with <bos>; it is not put in front of itself
    equal(server.post("/tokenize", {"prompt": template["prompt"]}).json["tokens"], rendered)
    said = server.post("/v1/completions", {"model": "demo", "prompt": template["prompt"], "max_tokens": 12, "temperature": 0}).json
    equal((said["usage"]["prompt_tokens"], said["choices"][0]["text"]), (counted, text(chat(max_tokens=12))))
    two = server.post("/v1/completions", {"model": "demo", "prompt": "<bos><bos>x", "max_tokens": 1}).json
    one = server.post("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": 1}).json
    equal(two["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"] + 1, "what is written twice counts twice")
    literal = {"model": "demo", "prompt": "<bos>x", "parse_special": False, "max_tokens": 1}
    holds(server.post("/v1/completions", literal).json["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"], "no token, but a text")
    equal(server.post("/detokenize", {"tokens": [-1]}).status, 400)
    equal(server.post("/tokenize", {}).error["code"], "missing_required_parameter")


@test("14b: presence and frequency penalties change what is repeated, and nothing else")
def _():
    plain = body_text(temperature=0, max_tokens=60)[0]
    for field in ("presence_penalty", "frequency_penalty"):
        equal(body_text(temperature=0, max_tokens=60, **{field: 0})[0], plain)
        holds(body_text(temperature=0, max_tokens=60, **{field: 2})[0] != plain, field)
        refusal("invalid_value", field, **{field: 2.1})


run_tests()
