"""What is computed again when a client sends a conversation back: only what is new, in every dialect."""

import json
import os
import shutil
import tempfile

from harness import *  # noqa: F403

TEXT = open("examples/needle-60.txt").read()
ASK = "How warm is it?"
CALL = "<|tool_call>call:f{b:{},a:34}<tool_call|><|tool_response>"
THOUGHT = "<|channel>thought\nhm.<channel|>"
GIVEN, REORDERED, EDITED = {"b": {}, "a": 34}, {"a": 34, "b": {}}, {"b": {}, "a": 35}
SCHEMA = {"type": "object", "properties": {"b": {"type": "object"}, "a": {"type": "integer"}}}
RESULT = '<|tool_response>response:f{value:<|"|>21<|"|>}<tool_response|>'
folder = tempfile.mkdtemp(prefix="kakeya-conversations-")


class Answer:
    def __init__(self, text, calls, prompt, cached, generated):
        self.text, self.calls, self.prompt, self.cached, self.generated = text, calls, prompt, cached, generated

    @property
    def computed(self):
        """Rows of its timeline: all but that of the last token, which nothing has followed."""
        return self.prompt + self.generated - 1


class Chat:
    name = "chat completions"
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]

    def offer(self, s, more):
        """Models that call are offered what they call: without, no call can be chosen."""
        return {"tools": self.tools, **more} if getattr(s, "calls", False) else more

    def begin(self, text):
        return [{"role": "user", "content": text}]

    def ask(self, s, items, max_tokens=24, thinking=False, **more):
        if thinking:
            more["reasoning_effort"] = "high"
        reply = s.post("/v1/chat/completions",
                       {"model": "demo", "messages": items, "temperature": 0, "max_tokens": max_tokens, **self.offer(s, more)})
        equal(reply.status, 200, reply.body)
        r, usage = reply.json, reply.json["usage"]
        equal(r["timings"]["prompt_n"], usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
        message = r["choices"][0]["message"]
        calls = [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
        return Answer(message["content"], calls, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
                      usage["completion_tokens"])

    def said(self, text, calls):
        tools = [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, n, a in calls]
        return [{"role": "assistant", "content": text, **({"tool_calls": tools} if tools else {})}]

    def result(self, i, text):
        return [{"role": "tool", "tool_call_id": i, "content": text}]


class Responses(Chat):
    name = "responses"
    tools = [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}]

    def ask(self, s, items, max_tokens=24, thinking=False, **more):
        if thinking:
            more["reasoning"] = {"effort": "high"}
        reply = s.post("/v1/responses",
                       {"model": "demo", "input": items, "temperature": 0, "max_output_tokens": max_tokens, "store": False,
                        **self.offer(s, more)})
        equal(reply.status, 200, reply.body)
        r, usage = reply.json, reply.json["usage"]
        text = "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])
        calls = [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in r["output"] if i["type"] == "function_call"]
        return Answer(text or None, calls, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])

    def said(self, text, calls):
        message = [{"role": "assistant", "content": [{"type": "output_text", "text": text}]}] if text else []
        return message + [{"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)} for i, n, a in calls]

    def result(self, i, text):
        return [{"type": "function_call_output", "call_id": i, "output": text}]


class Messages(Chat):
    name = "messages"
    tools = [{"name": "f", "input_schema": SCHEMA}]

    def ask(self, s, items, max_tokens=24, thinking=False, **more):
        if thinking:
            more["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        reply = s.post("/v1/messages", {"model": "demo", "messages": items, "temperature": 0, "max_tokens": max_tokens,
                                          **self.offer(s, more)})
        equal(reply.status, 200, reply.body)
        r, usage = reply.json, reply.json["usage"]
        text = "".join(b["text"] for b in r["content"] if b["type"] == "text")
        calls = [(b["id"], b["name"], b["input"]) for b in r["content"] if b["type"] == "tool_use"]
        return Answer(text or None, calls, usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"],
                      usage["output_tokens"])

    def said(self, text, calls):
        blocks = [{"type": "text", "text": text}] if text else []
        return [{"role": "assistant", "content": blocks + [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls]}]

    def result(self, i, text):
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": text}]}]


DIALECTS = [Chat(), Responses(), Messages()]


def scripted(*script, options=()):
    s = Server("--name", "demo", *options, model=scripted_model(*script))
    s.calls = CALL in script[0]
    return s


def tokens(s, text):
    return s.post("/tokenize", {"content": text}).json["count"]


def call_loop(s, d, arguments, thinking=False, ask=ASK):
    """A question, the call that answers it, and the answer to its result: the client drops the reasoning."""
    items = d.begin(ask)
    first = d.ask(s, items, thinking=thinking, max_tokens=64)
    equal([c[1:] for c in first.calls], [("f", GIVEN)], d.name)
    i, name, _ = first.calls[0]
    items = items + d.said(None, [(i, name, arguments)]) + d.result(i, "21")
    return first, items, d.ask(s, items, thinking=thinking, max_tokens=64)


@test("25: a tool loop computes the result alone; 26: also where the client has re-ordered the arguments")
def _():
    s = scripted(CALL, "Warm.")
    for d in DIALECTS:
        for arguments in (GIVEN, REORDERED):
            first, _, second = call_loop(s, d, arguments)
            equal(second.cached, first.computed, f"{d.name}: the whole first timeline")
            equal(second.prompt - second.cached, tokens(s, RESULT), f"{d.name}: the result alone")
            equal(second.text, "Warm.", d.name)
    s.stop()
    s = scripted(THOUGHT + CALL)
    for d in DIALECTS:
        for arguments in (GIVEN, REORDERED):
            first, _, second = call_loop(s, d, arguments, thinking=True)
            equal(second.cached, first.computed, f"{d.name}: the whole first timeline, with its thought")
            equal(second.prompt - second.cached, tokens(s, RESULT + "<|channel>thought\n"), f"{d.name}: the result alone")
    s.stop()


@test("25: the answer to a tool's result is known when it comes back")
def _():
    answer = "Q-Q"  # the second Q is a byte: the text does not become these tokens again
    for options in ((), ("--exact-replay", "off")):
        s = scripted(CALL, answer, options=options)
        for d in DIALECTS:
            _, items, second = call_loop(s, d, GIVEN)
            equal(second.text, answer, d.name)
            third = d.ask(s, items + d.said(second.text, []) + d.begin("And now?"))
            if options:
                holds(third.cached < second.computed, f"{d.name}: {third.cached} of {second.computed} cached")
            else:
                equal(third.cached, second.computed, d.name)
        s.stop()


@test("26: edited arguments are rendered: less is found, and the answer is that of a server that remembers nothing")
def _():
    s, forgetful = scripted(CALL, "Warm."), scripted(CALL, "Warm.", options=("--exact-replay", "off"))
    for d in DIALECTS:
        first, items, second = call_loop(s, d, EDITED)
        holds(first.prompt - 1 <= second.cached < first.computed, f"{d.name}: {second.cached} of {first.computed} cached")
        plain = d.ask(forgetful, items, max_tokens=64)
        equal((second.text, second.prompt, second.generated), (plain.text, plain.prompt, plain.generated), d.name)
    # without the memory the calls of this script are spelled anew: it does make a difference
    first, _, second = call_loop(forgetful, Chat(), GIVEN)
    holds(second.cached < first.computed, f"{second.cached} of {first.computed} cached")
    s.stop()
    forgetful.stop()


def saved(name, options=()):
    path = os.path.join(folder, name)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return ("--session-dir", path, *options)


@test("25, 26: the same behind a restart, on a server that shares the directory, and not after --exact-replay off")
def _():
    long = TEXT[:1600]
    options = saved("loops")
    s = scripted(CALL, "Warm.", options=options)
    asked = {}
    for d in DIALECTS:
        first = d.ask(s, d.begin(d.name + long), max_tokens=64)
        i = first.calls[0][0]
        asked[d.name] = first, d.begin(d.name + long) + d.said(None, [(i, "f", REORDERED)]) + d.result(i, "21")
    shared = scripted(CALL, "Warm.", options=options)  # it was there before anything was saved
    equal(s.stop(), 0)
    s = scripted(CALL, "Warm.", options=options)
    for server in (s, shared):
        for d in DIALECTS:
            first, items = asked[d.name]
            second = d.ask(server, items, max_tokens=64)
            equal((second.text, second.cached), ("Warm.", first.computed), d.name)
        server.stop()
    s = scripted(CALL, "Warm.", options=(*options, "--exact-replay", "off"))
    for d in DIALECTS:
        first, items = asked[d.name]
        second = d.ask(s, items, max_tokens=64)
        holds(second.cached < first.computed and second.text == "Warm.", f"{d.name}: {second.cached} of {first.computed} cached")
    s.stop()


@test("55: the second turn of a chat computes the new message alone")
def _():
    s = Server("--name", "demo")
    for d in DIALECTS:
        for text in (d.name, d.name + TEXT):  # no dialect finds what another one has left
            first = d.ask(s, d.begin(text), max_tokens=8)
            equal(first.generated, 8, "the answer is cut, so its last token is no stop token")
            second = d.ask(s, d.begin(text) + d.said(first.text, []) + d.begin("Say it again."))
            equal(second.cached, first.computed, d.name)
            new = 1 + tokens(s, "<turn|>\n<|turn>user\nSay it again.<turn|>\n<|turn>model\n")  # 1: the answer's last token
            equal(second.prompt - second.cached, new, d.name)
    s.stop()


@test("55: where the template opens turns with an empty thought, the last answer and the new message")
def _():
    model = os.path.join(folder, "empty-thought")
    os.mkdir(model)
    for name in os.listdir(f"{MODELS}/demo"):
        os.symlink(f"{MODELS}/demo/{name}", os.path.join(model, name))
    template = os.path.join(model, "chat_template.jinja")
    if os.path.lexists(template):
        os.remove(template)
    with open(template, "w") as f:  # what the server looks for in a template: the turns, and the empty thought
        f.write("{{ '<|turn>' + role + '\\n' }}<turn|>\\n{{ '<|turn>model\\n' }}{{ '<|channel>thought\\n<channel|>' }}")
    s = Server("--name", "demo", model=model)
    with open(template) as f:
        equal(s.get("/props").json["chat_template"], f.read())
    for d in DIALECTS:
        for text in ("def fibonacci(n):", TEXT):
            first = d.ask(s, d.begin(text))
            second = d.ask(s, d.begin(text) + d.said(first.text, []) + d.begin("Say it again."))
            opening = tokens(s, "<|turn>model\n")
            new = tokens(s, "<turn|>\n<|turn>user\nSay it again.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>")
            holds(second.prompt - second.cached <= opening + first.generated + new,
                  f"{d.name}: {second.prompt - second.cached} computed of {second.prompt}, {first.generated} in the answer")
    s.stop()


@test("56: two conversations with one long system prompt: the second computes its own part")
def _():
    s = Server("--name", "demo")
    system = {"role": "system", "content": TEXT}
    turn = tokens(s, "<bos><|turn>system\n" + TEXT.strip() + "<turn|>\n")
    holds(turn > 1000, f"{turn} tokens")
    d = Chat()
    d.ask(s, [system, *d.begin("One.")])
    second = d.ask(s, [system, *d.begin("Other.")])
    holds(second.cached >= turn, f"{second.cached} of {turn} cached")
    d = Responses()
    third = d.ask(s, d.begin("Third."), instructions=TEXT)
    holds(third.cached >= turn, f"{third.cached} of {turn} cached")
    d = Messages()
    fourth = d.ask(s, d.begin("Fourth."), system=TEXT)
    holds(fourth.cached >= turn, f"{fourth.cached} of {turn} cached")
    s.stop()


def retrieved(i, words=350):
    """What a client puts into one message and does not keep."""
    return f"Note {i}: " + " ".join(f"w{(i * 7919 + k * 104729) % 9973}" for k in range(words))


@test("text that a client puts into the last message alone: a request computes the last two turns, whatever the policy")
def _():
    for options in ((), ("--attention", "restored"), ("--attention", "sink-window")):
        s = Server("--name", "demo", *options)
        for d in DIALECTS if not options else DIALECTS[:1]:
            history, starts = [], []
            for turn in range(4):
                asked = f"{d.name}, question {turn}: " + retrieved(turn + 100, 80)
                reply = d.ask(s, history + d.begin(retrieved(turn, 80) + "\n" + asked), max_tokens=12)
                if turn > 1:  # the turn before began there; what it held then is not what it holds now
                    holds(reply.cached >= starts[-1] - 8, f"{options} {d.name}, turn {turn}: {reply.cached} found, {starts} are the starts")
                starts.append(reply.prompt - tokens(s, f"<|turn>user\n{retrieved(turn, 80)}\n{asked}<turn|>\n<|turn>model\n"))
                history = history + d.begin(asked) + d.said(reply.text, [])
            holds(starts[-1] > 900, starts)
        s.stop()


@test("--reuse any: a request that goes back into an answer goes on as if the answer had ended there, whatever the policy")
def _():
    length, whole = 150, 24

    def complete(s, ids, tokens):
        reply = s.post("/v1/completions", {"model": "demo", "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                                           "return_token_ids": True, "logprobs": 0}).json
        choice, known = reply["choices"][0], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"], known

    for options in (("sink-window",), ("restored",), ("restored", "--restore-layers", "all"), ("native",)):
        cut, ended = (Server("--name", "demo", "--attention", *options, "--reuse", "any") for _ in range(2))
        for i in range(5 if SHORT else 40 if WHOLE else 10):
            for keep in (whole - 1, 17, 10):
                ids = [2] + [300 + (37 * i + 11 * k * k + keep) % 900 for k in range(length - 1)]
                said = complete(cut, ids, whole)[0][:keep]
                equal(complete(ended, ids, keep)[0], said, (options, i, keep))
                again, expected = (complete(s, ids + said, 10) for s in (cut, ended))
                equal(again[:2], expected[:2], (options, i, keep))
                equal(again[2], length + keep - 1, "it was cut, not computed anew")
        cut.stop()
        ended.stop()


@test("a long history that comes at once has places at its turns")
def _():
    s = Server("--name", "demo", "--attention", "restored")
    d = Chat()
    history = []
    for turn in range(9):
        history += d.begin(f"{turn}: " + retrieved(turn, 160)) + d.said(f"Answer {turn}.", [])
    whole = d.ask(s, history + d.begin("Now?"), max_tokens=1)
    holds(whole.prompt > 3000, f"{whole.prompt} tokens")
    turns = [d.ask(s, history[:2 * i] + d.begin("x"), max_tokens=1, cache_prompt=False).prompt for i in range(1, 9)]
    # the client goes on from an earlier turn: what is found begins a turn, so that nothing of that turn is lost
    found = d.ask(s, history[:16] + d.begin("Another way."), max_tokens=1)
    starts = [t - (turns[0] - d.ask(s, history[:2], max_tokens=1, cache_prompt=False).prompt) for t in turns]
    holds(any(abs(found.cached - t) <= 16 for t in starts), f"{found.cached} cached, turns begin near {starts}")
    holds(found.cached >= whole.prompt // 2, f"{found.cached} of {found.prompt}")
    s.stop()


def progress_of(s, messages):
    reply = s.post("/v1/chat/completions", {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 2, "stream": True,
                                            "return_progress": True, "stream_options": {"include_usage": True}})
    equal(reply.status, 200, reply.body)
    chunks = [json.loads(x[6:]) for x in reply.body.decode().split("\n\n") if x.startswith("data: {")]
    return [c["prompt_progress"] for c in chunks if "prompt_progress" in c], chunks[-1]["usage"]


@test("a chat is one pass; its progress counts from the beginning of the prompt to its end, once")
def _():
    s = Server("--name", "demo")
    words = {"role": "user", "content": retrieved(1, 80)}
    progress, usage = progress_of(s, [words])
    total = usage["prompt_tokens"]
    holds(300 < total < 500, f"{total} tokens: less than a chunk")
    equal([(p["processed"], p["total"], p["cache"]) for p in progress], [(total, total, 0)])
    # the copy of its end is there all the same
    more = [words, {"role": "assistant", "content": "Other than the answer."}, {"role": "user", "content": retrieved(2, 1200)}]
    progress, usage = progress_of(s, more)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    holds(total - 8 <= cached <= total, f"{cached} of {total} cached")
    processed = [p["processed"] for p in progress]
    holds(len(processed) > 1 and processed == sorted(set(processed)) and processed[0] > cached, processed)
    equal((processed[-1], {p["total"] for p in progress}), (usage["prompt_tokens"], {usage["prompt_tokens"]}))
    equal({p["cache"] for p in progress}, {cached})
    s.stop()


@test("each of several choices is known when it comes back; what a stop string has cut is not")
def _():
    s = Server("--name", "demo")
    d = Chat()
    items = d.begin("def fibonacci(n):")
    body = {"model": "demo", "messages": items, "temperature": 1, "seed": 7, "n": 3, "max_tokens": 20, "return_token_ids": True}
    first = s.post("/v1/chat/completions", body).json
    texts = [c["message"]["content"] for c in first["choices"]]
    equal(len(set(texts)), 3, "different choices")
    for c in first["choices"]:
        ids = first["prompt_token_ids"] + c["token_ids"]
        again = s.post("/v1/chat/completions", {**body, "n": 1, "max_tokens": 1, "messages":
                                                items + d.said(c["message"]["content"], []) + d.begin("Go on.")}).json
        equal(again["prompt_token_ids"][:len(ids)], ids, "the tokens that were sampled")
    for stop in ({"stop": texts[0][4:7]}, {"ignore_eos": True, "max_tokens": 40}):
        cut = s.post("/v1/chat/completions", {**body, "n": 1, "seed": 7, **stop}).json
        back = items + d.said(cut["choices"][0]["message"]["content"], []) + d.begin("Go on.")
        plain = s.post("/apply-template", {"messages": back}).json
        again = s.post("/v1/chat/completions", {**body, "n": 1, "max_tokens": 1, "messages": back}).json
        equal(again["prompt_token_ids"], s.post("/tokenize", {"content": plain["prompt"]}).json["tokens"], "as the template writes it")
    s.stop()


@test("continue_final_message: the answer goes on with the last message; what both say together is known when it comes back")
def _():
    s = Server("--name", "demo", "--thinking", "on")
    ask = [{"role": "user", "content": "def fibonacci(n):"}]
    begun = "if n < 2: # <turn|> "
    last = [{"role": "assistant", "content": [{"type": "text", "text": begun[:5]}, {"type": "text", "text": begun[5:]}]}]

    def post(messages, **more):
        return s.post("/v1/chat/completions", {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 8,
                                               "return_token_ids": True, **more})

    opened = post(ask, think=False).json["prompt_token_ids"]
    text = s.post("/tokenize", {"content": begun, "parse_special": False}).json["tokens"]
    answer = post(ask + last, continue_final_message=True).json
    ids, said = answer["prompt_token_ids"], answer["choices"][0]
    equal(ids, opened + text)
    raw = s.post("/v1/completions", {"model": "demo", "prompt": ids, "temperature": 0, "max_tokens": 8}).json["choices"][0]
    equal(said["message"]["content"], raw["text"])
    equal(post(ask + last, continue_final_message=True, add_generation_prompt=False).json["prompt_token_ids"], ids)
    counted = s.post("/v1/chat/completions/input_tokens", {"messages": ask + last, "continue_final_message": True}).json
    equal(counted["input_tokens"], len(ids))
    # the client keeps one message
    whole = begun + said["message"]["content"]
    again = post([*ask, {"role": "assistant", "content": whole}, {"role": "user", "content": "Go on."}], think=False).json
    equal(again["prompt_token_ids"][:len(ids) + 8], ids + said["token_ids"])
    equal(again["usage"]["prompt_tokens_details"]["cached_tokens"], len(ids) + 7)
    for param, messages, more in (("continue_final_message", last, {"add_generation_prompt": True}),
                                  ("continue_final_message", last, {"think": True}),
                                  ("continue_final_message", last, {"response_format": {"type": "json_object"}}),
                                  ("messages[0]", [], {}),
                                  ("messages[1]", [{"role": "assistant", "tool_calls": [
                                      {"id": "1", "function": {"name": "f", "arguments": "{}"}}]}], {})):
        reply = post(ask + messages, continue_final_message=True, **more)
        equal((reply.status, reply.error["param"]), (400, param), reply.body)
    s.stop()


try:
    run_tests()
finally:
    shutil.rmtree(folder, ignore_errors=True)
