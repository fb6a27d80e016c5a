"""Anthropic's Python client against the Messages API of the server."""

import json
import re
import threading
from typing import Literal

import anthropic
import pydantic

from harness import WAIT, Server, dechunk, equal, eventually, holds, read_all, run_tests, scripted_model, test

server = Server("--name", "demo", "--vision", "off")
ASK = "def fibonacci(n):"
CALL = "<|tool_call>call:f{a:12}<tool_call|>"
THOUGHT = "<|channel>thought\nso it is<channel|>Done."
ON = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def client(s=server, **options):
    return anthropic.Anthropic(base_url=s.url, api_key=options.pop("api_key", "none"), timeout=WAIT,
                               max_retries=options.pop("max_retries", 0), **options)


ai = client()


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def said(text):
    return {"type": "text", "text": text}


def tool(name="f", **properties):
    return {"name": name, "description": "A tool.", "input_schema": {"type": "object", "properties": properties}}


def call(id="toolu_1", name="f", **input):
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(content=None, id="toolu_1", **more):
    return {"type": "tool_result", "tool_use_id": id, **({} if content is None else {"content": content}), **more}


def complete(body):
    body = {"model": "demo", "messages": [user(ASK)], "temperature": 0, "max_tokens": 16, **body}
    return {k: v for k, v in body.items() if v is not ...}


def create(s=None, **options):
    """By the client; its types have no fields for sampling any more, so they travel beside."""
    body = complete(options)
    extra = {k: body.pop(k) for k in list(body) if k in ("temperature", "top_p", "top_k", "seed", "ignore_eos", "min_tokens")}
    return (client(s) if s else ai).messages.create(**body, extra_body=extra)


def post(body, s=server, path="/v1/messages", **more):
    return s.post(path, complete(body), **more)


def count(s=server, **body):
    reply = s.post("/v1/messages/count_tokens", {"model": "demo", **body})
    equal(reply.status, 200, reply.body)
    equal(list(reply.json), ["input_tokens"])
    return reply.json["input_tokens"]


def chat_tokens(messages, s=server, **body):
    return s.post("/v1/chat/completions/input_tokens", {"model": "demo", "messages": messages, **body}).json["input_tokens"]


def refusal(where, type="invalid_request_error", s=server, status=400, path="/v1/messages", **body):
    reply = post(body, s, path)
    equal((reply.status, reply.json["type"], reply.error["type"]), (status, "error", type), reply.body)
    equal(reply.json["request_id"], reply.headers["request-id"])
    holds(reply.error["message"].startswith(where), reply.error["message"])
    return reply.error["message"]


def scripted(script, *options):
    return Server("--name", "demo", *options, model=scripted_model(script))


def events_of(body):
    """Events of a stream, read by hand: names equal types."""
    events = []
    for block in body.decode().split("\n\n"):
        if not block:
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        equal(name, "event: " + event["type"])
        events.append(event)
    return events


def check_stream(events):
    """What holds of every stream; the message that its events make."""
    equal([e["type"] for e in events[:2]], ["message_start", "ping"])
    equal([e["type"] for e in events[-2:]], ["message_delta", "message_stop"])
    message = events[0]["message"]
    equal((message["content"], message["stop_reason"], message["stop_sequence"]), ([], None, None))
    equal(message["usage"]["output_tokens"], 0)
    texts, open_block = [], None
    for e in events[2:-2]:
        kind = e["type"]
        if kind == "ping":
            continue
        equal(e["index"], len(message["content"]) - (kind != "content_block_start"), "blocks come one behind the other")
        if kind == "content_block_start":
            holds(open_block is None, "one block is open at a time")
            open_block = e["content_block"]
            message["content"].append(open_block)
            texts.append("")
        elif kind == "content_block_delta":
            delta = e["delta"]
            holds(open_block is not None, "a delta belongs to an open block")
            holds(not open_block.get("signature"), "the signature is the last delta")
            member = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature",
                      "input_json_delta": "partial_json"}[delta["type"]]
            holds(delta[member], "no empty delta")
            if member == "partial_json":
                texts[-1] += delta[member]
            else:
                open_block[member] += delta[member]
        else:
            equal(kind, "content_block_stop")
            open_block = None
    holds(open_block is None, "every block ends")
    for block, text in zip(message["content"], texts):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    message.update(events[-2]["delta"])
    first, last = message["usage"], events[-2]["usage"]
    for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        equal(first[key], last[key], key)
    message["usage"] = last
    return message


def stream(body=None, s=server):
    reply = post({"stream": True, **(body or {})}, s)
    equal((reply.status, reply.headers["content-type"]), (200, "text/event-stream; charset=utf-8"), reply.body)
    return check_stream(events_of(reply.body))


def steady(message):
    """A message without what is another one in every request."""
    message = json.loads(json.dumps(message))
    message.pop("id")
    usage = message["usage"]
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    for block in message["content"]:
        block.pop("id", None)
    return message


@test("1: models.list and retrieve by Anthropic's client; a foreign name is its NotFoundError")
def _():
    models = ai.models.list()
    equal(([m.id for m in models], models.data[0].type, models.has_more), (["demo"], "model", False))
    holds(models.data[0].display_name and models.data[0].created_at and models.data[0].max_input_tokens > 1000)
    equal(ai.models.retrieve("demo").to_dict(), models.data[0].to_dict())
    try:
        ai.models.retrieve("claude-sonnet-4-5")
        holds(False, "a foreign model was found")
    except anthropic.NotFoundError as e:
        equal((e.body["type"], e.body["error"]["type"]), ("error", "not_found_error"))
        equal(e.request_id, e.body["request_id"])
    holds("code" in server.get("/v1/models/other").error, "clients that are not Anthropic's get the other shape")


@test("39: messages.create gives the text that chat completions give, with every field of the object")
def _():
    message = create()
    chat = server.post("/v1/chat/completions", {"model": "demo", "messages": [user(ASK)], "temperature": 0, "max_tokens": 16}).json
    equal(message.content[0].text, chat["choices"][0]["message"]["content"])
    holds(re.fullmatch(r"msg_[0-9A-Za-z]{24}", message.id), message.id)
    equal((message.type, message.role, message.model), ("message", "assistant", "demo"))
    equal((message.stop_reason, message.stop_sequence, message.usage.output_tokens), ("max_tokens", None, 16))
    total = message.usage.input_tokens + message.usage.cache_creation_input_tokens + message.usage.cache_read_input_tokens
    equal((total, total), (chat["usage"]["prompt_tokens"], ai.messages.count_tokens(model="demo", messages=[user(ASK)]).input_tokens))
    holds(re.fullmatch(r"req_[0-9A-Za-z]{24}", message._request_id), message._request_id)
    equal(list(post({}).json), ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"])
    named = post({}, headers={"x-request-id": "mine-1"})
    equal((named.headers["request-id"], named.headers["x-request-id"]), ("mine-1", "mine-1"))


@test("39: a stream, by the client and by hand, makes the message that a whole answer is")
def _():
    whole = post({}).json
    equal(steady(stream()), steady(whole))
    with ai.messages.stream(model="demo", max_tokens=16, messages=[user(ASK)], extra_body={"temperature": 0}) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    equal((text, final.content[0].text), (whole["content"][0]["text"],) * 2)
    equal((final.stop_reason, final.usage.output_tokens), ("max_tokens", 16))
    raw = list(create(stream=True))
    equal([e.type for e in raw][:2] + [e.type for e in raw][-3:],
          ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"])


GOLDEN = """event: message_start
data: {"type":"message_start","message":{"id":"msg_*","type":"message","role":"assistant","model":"demo","content":[],\
"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":*,"cache_creation_input_tokens":0,"cache_read_input_tokens":*,\
"output_tokens":0}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"so"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"*"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"This"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_*","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"*"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":*,\
"cache_creation_input_tokens":0,"cache_read_input_tokens":*,"output_tokens":*,"output_tokens_details":{"thinking_tokens":*}}}

event: message_stop
data: {"type":"message_stop"}

"""


def masked(text):
    """Ids, numbers of tokens and the cuts between deltas stand for any others."""
    text = re.sub(r'(msg_|toolu_)[0-9A-Za-z]{24}', r'\1*', text)
    text = re.sub(r'"signature":"[A-Za-z0-9+/=]{44}"', '"signature":"*"', text)
    text = re.sub(r'("\w*tokens":)(?!0[,}])\d+', r'\1*', text)
    text = re.sub(r'("(?:cache_read_input|input|output|thinking)_tokens":)0(?=,"(?:output_tokens"|cache_creation))', r'\1*', text)
    text = re.sub(r'("partial_json":)"(?:[^"\\]|\\.)*"', r'\1"*"', text)
    pieces, kept = text.split("\n\n"), []
    for piece in pieces:  # deltas of arguments in a row count as one
        if not (kept and "partial_json" in piece and piece == kept[-1]):
            kept.append(piece)
    return "\n\n".join(kept)


@test("39: thinking, text and a call in one answer: the golden stream, the whole message, the client's objects")
def _():
    s = scripted("<|channel>thought\nso<channel|>This" + CALL)
    options = {"tools": [tool(a={"type": "integer"})], **ON, "max_tokens": 2000}
    reply = post({**options, "stream": True}, s)
    for line, expected in zip(masked(reply.body.decode()).splitlines(), GOLDEN.splitlines()):
        equal(line, expected)
    equal(masked(reply.body.decode()), GOLDEN)
    streamed, whole = check_stream(events_of(reply.body)), post(options, s).json
    equal(steady(streamed), steady(whole))
    equal([b["type"] for b in whole["content"]], ["thinking", "text", "tool_use"])
    thought, text, use = whole["content"]
    equal((thought["thinking"], text["text"], use["name"], use["input"]), ("so", "This", "f", {"a": 12}))
    holds(re.fullmatch(r"[A-Za-z0-9+/]{43}=", thought["signature"]) and re.fullmatch(r"toolu_[0-9A-Za-z]{24}", use["id"]))
    holds(use["id"] != streamed["content"][2]["id"], "ids are new ones")
    holds(whole["usage"]["output_tokens"] > whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0)
    with client(s).messages.stream(model="demo", messages=[user(ASK)], extra_body={"temperature": 0}, **options) as events:
        kinds = [e.type for e in events]
        final = events.get_final_message()
    for kind in ("thinking", "signature", "text", "input_json"):
        holds(kind in kinds, kind)
    for message in (final, create(s, **options)):
        equal([b.type for b in message.content], ["thinking", "text", "tool_use"])
        equal((message.content[0].thinking, message.content[2].input, message.stop_reason), ("so", {"a": 12}, "tool_use"))
    s.stop()


@test("39: a tool loop by the client: the answer goes back as it came, only the result is new; count_tokens agrees")
def _():
    s = scripted(CALL)
    tools, messages = [tool(a={"type": "integer"})], [user("What is the answer? " * 20)]
    first = create(s, messages=messages, tools=tools)
    messages += [first.to_param() if hasattr(first, "to_param") else assistant(first.content),
                 user([result("42", first.content[0].id)])]
    second = create(s, messages=messages, tools=tools)
    usage = second.usage
    total = client(s).messages.count_tokens(model="demo", messages=messages, tools=tools).input_tokens
    equal(usage.input_tokens + usage.cache_read_input_tokens, total)
    before = first.usage.input_tokens + first.usage.cache_read_input_tokens
    holds(usage.cache_read_input_tokens >= before - 8, f"{usage} after {before} tokens")
    again = create(s, messages=messages, tools=tools)
    equal(again.content[0].to_dict() | {"id": 0}, second.content[0].to_dict() | {"id": 0})
    holds(again.usage.input_tokens <= 1, again.usage)
    s.stop()


@test("thinking: off, adaptive, omitted and by default; a budget ends it; signatures bring omitted thoughts back")
def _():
    s = scripted(THOUGHT)
    kinds = lambda m: [b["type"] for b in m["content"]]
    for body in ({}, {"thinking": {"type": "disabled"}}, {"thinking": None}):
        plain = post(body, s).json
        equal((kinds(plain), plain["content"][0]["text"]), (["text"], "Done."))
    for body in ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, ON):
        equal(kinds(post(body, s).json), ["thinking", "text"], str(body))
    for body in ({"thinking": {"type": "disabled"}}, {}):
        equal(kinds(post({**body, "output_config": {"effort": "high"}}, s).json), ["text"], "effort asks for no thought")
    omit = {"thinking": {"type": "adaptive", "display": "omitted"}}
    whole, streamed = post(omit, s).json, stream(omit, s)
    for message in (whole, streamed):
        equal((message["content"][0]["thinking"], message["content"][1]["text"]), ("", "Done."))
        holds(message["content"][0]["signature"].startswith("kk1."))
    thought = whole["content"][0]
    turn = lambda *blocks: [user("a"), assistant([*blocks, call()]), user([result("7")])]
    bare = count(s, messages=turn(), tools=[tool()], **ON)
    shown = count(s, messages=turn({"type": "thinking", "thinking": "so it is", "signature": "any"}), tools=[tool()], **ON)
    holds(shown > bare)
    equal(count(s, messages=turn(thought), tools=[tool()], **ON), shown, "the signature holds the thought")
    changed = post({"messages": turn({**thought, "signature": thought["signature"] + "A"}), "tools": [tool()]}, s)
    equal((changed.status, changed.headers["x-kakeya-ignored"]), (200, "messages[1].content[0]"))
    redacted = post({"messages": turn({"type": "redacted_thinking", "data": "x"}), "tools": [tool()]}, s)
    equal((redacted.status, redacted.headers["x-kakeya-ignored"]), (200, "messages[1].content[0](redacted_thinking)"))
    short = post({"thinking": {"type": "enabled", "budget_tokens": 6}}, s).json
    holds(0 < len(short["content"][0]["thinking"]) < len("so it is"), short)
    on = scripted(THOUGHT, "--thinking", "on")
    equal(kinds(post({}, on).json), ["thinking", "text"])
    equal(kinds(post({"thinking": {"type": "disabled"}}, on).json), ["text"])
    on.stop()
    for thinking in ({"type": "between"}, {}, {"type": "enabled", "display": "all"}, {"type": "enabled", "budget_tokens": 0}, "on", 5):
        refusal("thinking", thinking=thinking)
    refusal("output_config.effort", output_config={"effort": "extreme"})
    s.stop()


CLAUDE_CODE = {
    "stream": True, "max_tokens": 16, "temperature": 1, "metadata": {"user_id": "user_1_account__session_2"},
    "tools": [{**tool("Bash", command={"type": "string"}), "cache_control": {"type": "ephemeral"}},
              {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}, "context_management": {"edits": []},
}


@test("40: requests as Claude Code makes them: whatever changes in its billing header, system and history are found again")
def _():
    def ask(turn, messages):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{turn}; cch={turn * 7919:05x};"},
                  {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
                  {"type": "text", "text": "You are an interactive agent. " * 20, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
                   "x-api-key": "any", "x-app": "cli", "user-agent": "claude-cli/2.1 (external, cli)"}
        reply = server.post("/v1/messages?beta=true", {"model": "demo", **CLAUDE_CODE, "seed": 1, "system": system, "messages": messages},
                            headers=headers)
        equal(reply.status, 200, reply.body)
        equal(reply.headers["x-kakeya-ignored"],
              "system[0](x-anthropic-billing-header), tools[1](web_search_20250305), cache_control, context_management")
        return check_stream(events_of(reply.body))

    reminder = "<system-reminder>The date is 2026-11-22.</system-reminder>"
    messages = [user([said(reminder), {**said("List the files, please."), "cache_control": {"type": "ephemeral"}}])]
    first = ask(1, messages)
    equal(count(messages=messages, **{k: CLAUDE_CODE[k] for k in ("tools", "thinking", "output_config")},
                system=[said("You are Claude Code."), said("You are an interactive agent. " * 20)]),
          first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"])
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    messages += [assistant([thought, said("I look."), call("toolu_9", "Bash", command="ls")]),
                 {"role": "system", "content": [said("Be careful.")]},
                 user([{**result([said("a.c")], "toolu_9"), "cache_control": {"type": "ephemeral"}}, said(reminder)])]
    second = ask(2, messages)
    before = sum(first["usage"][k] for k in ("input_tokens", "cache_read_input_tokens"))
    holds(second["usage"]["cache_read_input_tokens"] >= before - 8, f"{second['usage']} after {before} tokens")
    third = ask(3, messages)
    holds(third["usage"]["input_tokens"] <= 1, third["usage"])


@test("40: a tool loop as Claude Code 2.1.330 sends it, with and without thinking: a result costs what is new in it")
def _():
    # What was seen on the wire, with texts of our own: a system message behind the question, effort in every request, tools with
    # keywords of a newer draft and defer_loading, a probe that needs no route.
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": False,
              "properties": {"q": {"type": "string", "minLength": 1, "maxLength": 80, "pattern": "^[a-z]+$"},
                             "n": {"type": "number", "exclusiveMinimum": 0, "default": 1}}}
    tools = [{"name": "ListAgents", "description": "Lists them.", "input_schema": schema},
             {"name": "ToolSearch", "description": "Finds tools.", "input_schema": schema, "defer_loading": True}]
    s = Server("--name", "demo", model=scripted_model("<|tool_call>call:ListAgents{}<tool_call|>", "Done."))
    equal(s.request("HEAD", "/api/hello").status, 404)
    headers = {"accept": "application/json", "authorization": "Bearer none", "x-app": "cli", "anthropic-version": "2023-06-01",
               "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,effort-2025-11-24",
               "anthropic-dangerous-direct-browser-access": "true", "x-stainless-lang": "js", "x-claude-code-session-id": "4bcdcad4"}

    def ask(turn, messages, thinking):
        body = {"model": "demo", "temperature": 0, "max_tokens": 3000, "stream": True,
                "metadata": {"user_id": '{"device_id":"f5","session_id":"4b"}'},
                "system": [said(f"x-anthropic-billing-header: cc_version=2.1.330.{turn}; cc_entrypoint=sdk-cli;"),
                           {**said("You are an agent."), "cache_control": {"type": "ephemeral"}},
                           {**said("\nYou work with the user. " * 30), "cache_control": {"type": "ephemeral"}}],
                "messages": messages, "tools": tools, "output_config": {"effort": "high"}}
        if thinking:
            body.update(thinking={"type": "adaptive", "display": "omitted"},
                        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
        reply = s.post("/v1/messages?beta=true", body, headers=headers)
        equal(reply.status, 200, reply.body)
        holds("system[0](x-anthropic-billing-header)" in reply.headers["x-kakeya-ignored"], reply.headers)
        return check_stream(events_of(reply.body))

    for thinking in (False, True):
        messages = [user([said("<system-reminder>\nNo commits.\n</system-reminder>"), said("Who is there?")]),
                    {"role": "system", "content": "# Environment\n - Platform: linux"}]
        first = ask(1, messages, thinking)
        calls = [b for b in first["content"] if b["type"] == "tool_use"]
        equal([c["name"] for c in calls], ["ListAgents"])
        messages += [assistant(first["content"]),
                     user([{"tool_use_id": calls[0]["id"], "type": "tool_result", "content": "Nobody.",
                            "cache_control": {"type": "ephemeral"}}])]
        second = ask(2, messages, thinking)
        before = sum(first["usage"][k] for k in ("input_tokens", "cache_read_input_tokens", "output_tokens"))
        holds(second["usage"]["cache_read_input_tokens"] >= before - 8, f"{second['usage']} behind {before} tokens")
        if not thinking:
            equal([b.get("text") for b in second["content"]], ["Done."])
    s.stop()


@test("41: errors as Anthropic's client raises them: no max_tokens, a bad role, 401, 404, 405, 429, with request-id")
def _():
    def raised(kind, error_type, act):
        try:
            act()
        except kind as e:
            equal((e.body["type"], e.body["error"]["type"]), ("error", error_type))
            holds(e.request_id and e.request_id == e.body["request_id"])
            return e.body["error"]["message"]
        raise AssertionError(f"no {kind.__name__}")

    bad = anthropic.BadRequestError
    message = raised(bad, "invalid_request_error", lambda: ai.messages.create(model="demo", max_tokens=None, messages=[user("a")]))
    equal(message, "max_tokens is missing")
    message = raised(bad, "invalid_request_error", lambda: create(messages=[{"role": "tool", "content": "x"}]))
    equal(message, "messages[0].role is not user, assistant or system")
    raised(anthropic.NotFoundError, "not_found_error", lambda: create(model="claude-opus-4-1"))
    s = Server("--name", "demo", "--api-key", "secret", "--max-batch", "1", "--max-queue", "1")
    plain = complete({"temperature": ...})
    raised(anthropic.AuthenticationError, "authentication_error", lambda: client(s, api_key="wrong").messages.create(**plain))
    equal(s.post("/v1/messages", {}).headers["www-authenticate"], 'Bearer realm="kakeya"')
    mine = client(s, api_key="secret")
    equal(mine.messages.create(**plain).usage.output_tokens, 16)
    raised(anthropic.NotFoundError, "not_found_error", lambda: mine.messages.batches.list())
    stop = threading.Event()

    def hold():
        with mine.messages.create(**{**plain, "max_tokens": 8000}, stream=True, extra_body={"ignore_eos": True}) as events:
            for _ in events:
                if stop.is_set():
                    return

    holding = [threading.Thread(target=hold) for _ in range(2)]
    for i, thread in enumerate(holding):
        thread.start()
        eventually(lambda: s.metric("kakeya_requests_running") + s.metric("kakeya_requests_waiting") == i + 1, "it holds a place")
    raised(anthropic.RateLimitError, "rate_limit_error", lambda: mine.messages.create(**plain))
    full = s.post("/v1/messages", complete({}), headers={"x-api-key": "secret"})
    holds(full.status == 429 and 1 <= int(full.headers["retry-after"]) <= 60)
    threading.Timer(0.5, stop.set).start()
    equal(client(s, api_key="secret", max_retries=8).messages.create(**plain).type, "message")
    for thread in holding:
        thread.join()
    s.stop()
    wrong = server.get("/v1/messages")
    equal((wrong.status, wrong.error["type"], wrong.headers["allow"]), (405, "invalid_request_error", "POST, OPTIONS"))
    equal(server.get("/v1/messages/unknown").error["type"], "not_found_error")
    equal(server.post("/v1/messages", b"{}", headers={"Content-Type": "text/plain"}).error["type"], "invalid_request_error")
    for body in (b"{", b"[]", b'{"a":1,"a":2}', b'"\xff"'):
        equal(server.post("/v1/messages", body).error["type"], "invalid_request_error", body)


CHAT_TOOLS = [{"type": "function", "function": {"name": "f", "description": "A tool.", "parameters": tool()["input_schema"]}}]


def same(messages, chat, tools=None, system=None, **more):
    """A conversation of this API means that one of chat completions."""
    mine = {"messages": messages, **({"tools": [tool()]} if tools else {}), **({"system": system} if system else {}), **more}
    theirs = {"messages": chat, **({"tools": CHAT_TOOLS} if tools else {})}
    equal(count(**mine), chat_tokens(**theirs), str(messages))
    got = post(mine)
    equal(got.status, 200, got.body)
    reply = server.post("/v1/chat/completions", {"model": "demo", "temperature": 0, "max_tokens": 16, **theirs}).json
    equal("".join(b["text"] for b in got.json["content"] if b["type"] == "text"), reply["choices"][0]["message"]["content"] or "")


def chat_call(id="toolu_1", arguments="{}"):
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


@test("blocks become the messages of chat completions: joined texts, calls, results in front of texts, systems in their place")
def _():
    same([user("Hello there")], [user("Hello there")])
    same([user([said("Hello"), said("there")])], [user("Hello\nthere")])
    same([user([said("Hello "), said("there")])], [user("Hello there")])
    same([user("a"), user([said("b")])], [user("a\nb")])
    same([user("a")], [{"role": "system", "content": "Be brief.\nBe kind."}, user("a")], system=[said("Be brief."), said("Be kind.")])
    same([user("a")], [{"role": "system", "content": "Be brief."}, user("a")], system="Be brief.")
    same([user("a")], [user("a")], system=[said("x-anthropic-billing-header: cch=1;")])
    same([user("a"), assistant([said("b"), said("c")]), assistant("d"), user("e")], [user("a"), assistant("bcd"), user("e")])
    same([user("a"), {"role": "system", "content": "Now brief."}, user("b")],
         [user("a"), {"role": "system", "content": "Now brief."}, user("b")])
    done = [user("a"), {"role": "assistant", "tool_calls": [chat_call(arguments='{"a":1}')]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "7"}]
    same([user("a"), assistant([call(a=1)]), user([result("7")])], done, True)
    same([user("a"), assistant([call(a=1)]), user([result([said("7")])])], done, True)
    same([user("a"), assistant([call(a=1)]), user([said("Well?"), result("7")])], [*done, user("Well?")], True)
    same([user("a"), assistant([call(a=1)]), user([result("7")]), user("Well?")], [*done, user("Well?")], True)
    same([user("a"), assistant([call(a=1)]), {"role": "system", "content": "s"}, user([result("7")])],
         [*done, {"role": "system", "content": "s"}], True)
    same([user("a"), assistant([call(a=1)]), user([result("7", is_error=True)])],
         [*done[:2], {**done[2], "content": "Error: 7"}], True)
    same([user("a"), assistant([call(a=1)]), user([result()])], [*done[:2], {**done[2], "content": ""}], True)
    two = [user("a"), {"role": "assistant", "content": "Look:", "tool_calls": [chat_call("x"), chat_call("y")]},
           {"role": "tool", "tool_call_id": "y", "content": "8"}, {"role": "tool", "tool_call_id": "x", "content": "9"}]
    same([user("a"), assistant([said("Look:"), call("x"), call("y")]), user([result("8", "y"), result("9", "x")])], two, True)
    same([user("a"), assistant([said("Look:"), call("x")]), assistant([call("y")]), user([result("8", "y")]), user([result("9", "x")])],
         two, True)
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "url": "u"}]}
    search = {**call("s"), "type": "server_tool_use"}
    same([user("a"), assistant([said("I look."), search, found, said("Found.")]), user("b")],
         [user("a"), {"role": "assistant", "content": "I look.", "tool_calls": [chat_call("s")]},
          {"role": "tool", "tool_call_id": "s", "content": '[{"type":"web_search_result","url":"u"}]'}, assistant("Found."), user("b")])
    lost = post({"messages": [user("a"), assistant([said("b"), {**found, "tool_use_id": "x"}, said("c")]), user("d")]})
    equal((lost.status, lost.headers["x-kakeya-ignored"]), (200, "messages[1].content[1]"))
    long_number = '{"n":12345678901234567890,"x":1.50,"e":1E3}'
    body = json.dumps(complete({"messages": [user("a"), assistant([call()]), user([result("7")])], "tools": [tool()]}))
    body = body.replace('"input": {}', '"input": ' + long_number)
    ours = server.post("/v1/messages", body.encode()).json["usage"]
    equal(ours["input_tokens"] + ours["cache_read_input_tokens"],
          chat_tokens([user("a"), {"role": "assistant", "tool_calls": [chat_call(arguments=long_number)]}, done[2]], tools=CHAT_TOOLS),
          "numbers keep their spelling")


@test("the answer continues a last message of the assistant's")
def _():
    whole = post({"max_tokens": 12}).json["content"][0]["text"]
    half = whole[:len(whole) // 2].rstrip()
    for content in (half + " \n", [said(half)], [said(half[:3]), said(half[3:])]):
        rest = post({"messages": [user(ASK), assistant(content)], "max_tokens": 12})
        equal(rest.status, 200, rest.body)
        streamed = stream({"messages": [user(ASK), assistant(content)], "max_tokens": 12})
        equal(streamed["content"], rest.json["content"])
    usage = rest.json["usage"]
    tokens = server.post("/tokenize", {"content": half}).json["count"]
    equal(usage["input_tokens"] + usage["cache_read_input_tokens"], count(messages=[user(ASK)]) + tokens)
    equal(count(messages=[user(ASK), assistant(half)]), count(messages=[user(ASK)]) + tokens)
    for nothing in ("", "  \n", []):
        equal(count(messages=[user(ASK), assistant(nothing)]), count(messages=[user(ASK)]))
    refusal("thinking", messages=[user(ASK), assistant("So")], **ON)
    refusal("output_config.format", messages=[user(ASK), assistant("So")],
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        refusal("tool_choice", messages=[user(ASK), assistant("So")], tools=[tool()], tool_choice=choice)
    refusal("messages: the last one calls a tool", messages=[user(ASK), assistant([call()])], tools=[tool()])
    refusal("messages: there is nothing", messages=[assistant("So")])
    s = scripted(THOUGHT, "--thinking", "on")
    equal(post({"messages": [user(ASK), assistant("So")]}, s).status, 200, "thinking by default gives way")
    s.stop()


@test("stop sequences; limits; the end of the context; a prompt that is too long is refused before a stream begins")
def _():
    s = scripted("One, two; three.")
    got = post({"stop_sequences": ["never", "; "]}, s).json
    equal((got["content"][0]["text"], got["stop_reason"], got["stop_sequence"]), ("One, two", "stop_sequence", "; "))
    equal(steady(stream({"stop_sequences": ["never", "; "]}, s)), steady(got))
    got = post({"max_tokens": 100}, s).json
    equal((got["content"][0]["text"], got["stop_reason"], got["stop_sequence"]), ("One, two; three.", "end_turn", None))
    got = post({"stop_sequences": ["One"]}, s).json
    equal((got["content"], got["stop_reason"]), ([{"type": "text", "text": ""}], "stop_sequence"))
    equal(stream({"stop_sequences": ["One"]}, s)["content"], got["content"], "one empty block")
    s.stop()
    s = Server("--name", "demo", "--context", "128")
    got = post({"max_tokens": 4000, "ignore_eos": True}, s).json
    equal(got["stop_reason"], "model_context_window_exceeded")
    usage = got["usage"]
    holds(usage["output_tokens"] < 4000 and usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] >= 127, usage)
    for flag in (False, True):
        message = refusal("prompt is too long: ", s=s, messages=[user("word " * 400)], stream=flag)
        equal(re.sub(r"\d+", "N", message, count=1), "prompt is too long: N tokens > 127 maximum")
    s.stop()


@test("tool_choice: any, a tool, none, one at a time; tools of other kinds are dropped")
def _():
    tools = [tool("f", a={"type": "integer"}), tool("g", b={"type": "boolean"})]
    for choice, names in (({"type": "any"}, {"f", "g"}), ({"type": "tool", "name": "g"}, {"g"})):
        body = {"tools": tools, "tool_choice": {**choice, "disable_parallel_tool_use": True}, "max_tokens": 300}
        message = stream(body)
        equal(([b["type"] for b in message["content"]], message["stop_reason"]), (["tool_use"], "tool_use"), str(choice))
        holds(message["content"][0]["name"] in names and isinstance(message["content"][0]["input"], dict))
        whole = post(body).json["content"][0]
        equal((whole["name"], whole["input"]), (message["content"][0]["name"], message["content"][0]["input"]))
    s = scripted(CALL + "and more text")
    both = post({"tools": [tool()]}, s).json
    equal([b["type"] for b in both["content"]], ["tool_use", "text"])
    one = post({"tools": [tool()], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, s).json
    equal(([b["type"] for b in one["content"]], one["stop_reason"]), (["tool_use"], "tool_use"))
    none = post({"tools": [tool()], "tool_choice": {"type": "none"}}, s).json
    equal([b["type"] for b in none["content"]], ["text"])
    equal(sum(none["usage"][k] for k in ("input_tokens", "cache_read_input_tokens")),
          sum(one["usage"][k] for k in ("input_tokens", "cache_read_input_tokens")), "tools are rendered all the same")
    for kind in ({}, {"type": "custom"}, {"type": None}):
        equal(post({"tools": [{**tool(), **kind}]}, s).json["content"][0]["type"], "tool_use", str(kind))
    dropped = post({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "auto"}}, s)
    equal((dropped.status, dropped.headers["x-kakeya-ignored"]), (200, "tools[0](bash_20250124)"))
    s.stop()
    for choice in ({"type": "tool", "name": "h"}, {"type": "tool"}, {"type": "some"}, {}, "any", {"type": "any", "name": 5}):
        refusal("tool_choice", tools=tools, tool_choice=choice)
    refusal("tool_choice", tool_choice={"type": "any"})
    bash = {"type": "bash_20250124", "name": "bash"}
    refusal("tool_choice", tools=[bash], tool_choice={"type": "tool", "name": "bash"})
    refusal("tools[2]: there is another tool", tools=[tool(), bash, tool()])
    odd = {**tool(), "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                                      "unevaluatedProperties": {"if": {}, "then": {"type": "string"}}}}
    loosened = post({"tools": [odd], "tool_choice": {"type": "any"}, "max_tokens": 60})
    equal(loosened.status, 200, loosened.body)
    equal(loosened.json["content"][0]["type"], "tool_use")
    for bad in (5, {"name": "a b", "input_schema": {}}, {"input_schema": {}}, {"name": "f", "input_schema": []}, {"name": "f", "type": 3}):
        refusal("tools[0]", tools=[bad])


@test("21: two calls of one function: blocks of their own, distinct ids, stop_reason tool_use")
def _():
    s = Server("--name", "demo", "--max-tool-calls", "2")
    only = {**tool("f", a={"enum": [1]})}
    only["input_schema"] |= {"required": ["a"], "additionalProperties": False}
    body = {"tools": [only], "tool_choice": {"type": "any"}, "min_tokens": 200, "max_tokens": 400}
    for message in (stream(body, s), post(body, s).json):
        equal([(b["type"], b["name"], b["input"]) for b in message["content"]], [("tool_use", "f", {"a": 1})] * 2)
        equal((len({b["id"] for b in message["content"]}), message["stop_reason"]), (2, "tool_use"))
    s.stop()


@test("a call that max_tokens cuts: what is complete of its input, whole and streamed")
def _():
    s = scripted("<|tool_call>call:f{a:[12,34,56]}<tool_call|>")
    tools = [tool(a={"type": "array", "items": {"type": "integer"}})]
    tokens = post({"tools": tools, "max_tokens": 100}, s).json["usage"]["output_tokens"]
    seen = set()
    for most in range(2, tokens):
        body = {"tools": tools, "max_tokens": most}
        whole = post(body, s).json
        equal(whole["stop_reason"], "max_tokens", str(most))
        with client(s).messages.stream(**complete({**body, "temperature": ...}), extra_body={"temperature": 0}) as events:
            final = events.get_final_message()
        equal([b.type for b in final.content], [b["type"] for b in whole["content"]])
        for ours, theirs in zip(whole["content"], final.content):
            if ours["type"] == "tool_use":
                equal(ours["input"], theirs.input, str(most))
                seen.add(json.dumps(ours["input"]))
    holds({"{}", '{"a": [12]}', '{"a": [12, 34]}'} <= seen, seen)
    s.stop()


class Point(pydantic.BaseModel):
    name: Literal["a", "b"]
    x: int
    flag: bool


@test("output_config.format: the client's parse gives an object; schemas that cannot be followed are refused")
def _():
    for temperature in (0, 1):
        parsed = ai.messages.parse(model="demo", max_tokens=200, messages=[user("Where?")], output_format=Point,
                                   extra_body={"temperature": temperature})
        equal(type(parsed.parsed_output), Point)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    format = {"type": "json_schema", "schema": schema}
    for body in ({"output_config": {"format": format}}, {"output_format": format}):
        message = stream({**body, "max_tokens": 50})
        holds(json.loads(message["content"][0]["text"])["n"] in (1, 2), message)
    refusal("output_config.format", output_config={"format": {"type": "json_object"}})
    refusal("output_config.format", output_config={"format": {"type": "json_schema"}})
    refusal("output_config.format", output_config={"format": {**format, "schema": {"type": "object", "not": {}}}})
    both = post({"output_config": {"format": format}, "tools": [tool()], "tool_choice": {"type": "any"}, "max_tokens": 60})
    equal((both.status, both.json["content"][0]["type"]), (200, "tool_use"), "a forced call has no content that a format could be of")


@test("names of tools have up to 128 characters")
def _():
    for n, status in ((64, 200), (65, 200), (128, 200), (129, 400)):
        name = "mcp__plugin_" + "x" * (n - 12)
        reply = post({"tools": [tool(name)], "tool_choice": {"type": "tool", "name": name}, "max_tokens": 300})
        equal(reply.status, status, f"{n}: {reply.body[:200]}")
        if status == 200:
            block = reply.json["content"][0]
            equal((block["type"], block["name"]), ("tool_use", name))
            back = [user("a"), assistant([block]), user([{"type": "tool_result", "tool_use_id": block["id"], "content": "7"}])]
            equal(post({"messages": back, "tools": [tool(name)]}).status, 200)


@test("results of tools that are no text: what is written in them is read, a line stands for the rest, and the header names it")
def _():
    where = "messages[2].content[0].content"
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    pdf = {"type": "document", "title": "paper", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    refer = lambda name: {"type": "tool_reference", "tool_name": name}
    for content, line, ignored in (
            ([image], "[image]", f"{where}[0](image)"),
            ([said("x"), image], "x\n[image]", f"{where}[1](image)"),
            ([pdf], "[document: paper]", f"{where}[0](document)"),
            ([refer("f")], "f", f"{where}[0](tool_reference)"),
            ([refer("f"), refer("g")], "f\ng", f"{where}[0](tool_reference), {where}[1](tool_reference)"),
            ([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "read me"}}], "read me", None),
            ([{"type": "search_result", "title": "T", "source": "s", "content": [said("found")]}], "[search_result: T]\nfound", None),
            ([{"type": "something_new"}], "[something_new]", f"{where}[0](something_new)")):
        messages = [user("a"), assistant([call()]), user([result(content)]), assistant("I saw."), user("go on")]
        reply = post({"messages": messages, "tools": [tool()], "max_tokens": 2})
        equal((reply.status, reply.headers.get("x-kakeya-ignored")), (200, ignored), reply.body)
        chat = [user("a"), {"role": "assistant", "tool_calls": [chat_call()]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": line}, assistant("I saw."), user("go on")]
        equal(count(messages=messages, tools=[tool()]), chat_tokens(chat, tools=CHAT_TOOLS), str(content))
    refusal("messages[0].content[0] is a part of type \"image\"; images are not read here: vision is off (--vision off)",
            messages=[user([image])])


@test("what is refused is named: blocks that are no text, values of the wrong type or range, results without calls")
def _():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    refusal("messages[0].content[1] is a part of type \"image\"; images are not read here: vision is off (--vision off)",
            messages=[user([said("x"), image])])
    refusal("messages[0].content[0] is a block of type document", messages=[user([{"type": "document", "source": {}}])])
    refusal("messages[1].content[0] is a block of type image", messages=[user("a"), assistant([image]), user("b")])
    refusal("system[0] is a block of type image", system=[image])
    orphan = "messages[0].content[0].tool_use_id: the assistant's message before it has no tool_use"
    refusal(orphan, messages=[user([result("7")])])
    refusal("messages[2].content[0].tool_use_id", messages=[user("a"), assistant([call()]), user([result("7", "other")])])
    many = [{**call(), "id": f"toolu_{i}"} for i in range(300)]
    found = [result("7", f"toolu_{i}") for i in reversed(range(300))]
    refusal("messages[2].content[300].tool_use_id", tools=[tool()],
            messages=[user("a"), assistant(many), user([*found, result("7", "toolu_300")])])
    refusal("messages[4].content[0].tool_use_id", tools=[tool()],  # those of the message before are not those of this one
            messages=[user("a"), assistant(many), user(found), assistant([call()]), user([result("7", "toolu_7")])])
    refusal("messages[4].content[0].tool_use_id",
            messages=[user("a"), assistant([call()]), user("b"), assistant("c"), user([result("7")])])
    for bad in ({}, {"role": "user"}, {"role": "user", "content": None}, {"role": "user", "content": 5}, user([5]), user([{}]),
                user([{"type": "text"}]), user([call()]), user([{"type": "thinking", "thinking": "x"}]), "x", None,
                {"role": None, "content": "x"}, user([result("7", 5)])):
        refusal("messages[0]", messages=[bad])
    for block in ({"type": "tool_use", "name": "f", "input": {}}, {"type": "tool_use", "id": "x", "input": {}}, {**call(), "input": [1]},
                  {"type": "thinking"}, result("7"), {"type": "text", "text": 5}):
        refusal("messages[1].content[0]", messages=[user("a"), assistant([block]), user("b")])
    refusal("messages[2].content[0].content", messages=[user("a"), assistant([call()]), user([result(5)])])
    refusal("messages[2].content[0].is_error", messages=[user("a"), assistant([call()]), user([result("7", is_error="no")])])
    for name, values in {"messages": (..., [], "x", {}), "max_tokens": (..., 0, -1, "5", 1.5, True), "model": (..., 5), "system": (5, {}),
                         "temperature": (3, "1"), "top_p": (-1, 2), "top_k": (-2,), "stop_sequences": ([""], [5], 5, ["x"] * 17),
                         "stream": ("yes",), "metadata": (5, {"user_id": 5}), "n": (2,), "tools": ({}, 5)}.items():
        for value in values:
            refusal(name, **{name: value})
    refusal("model: there is no model", type="not_found_error", status=404, model="claude")
    for name in ("system", "stop_sequences", "temperature", "tools", "tool_choice", "thinking", "metadata", "output_config"):
        equal(post({name: None}).status, 200, f"{name}: null is absent")


@test("many calls, results and messages are read in a moment, and more than 10,000 are refused")
def _():
    ask = {"role": "user", "content": "a"}
    calls = assistant([call(f"t{i}") for i in range(3000)])
    results = user([result("x", f"t{i}") for i in range(3000)])
    systems = [{"role": "system", "content": "s"}] * 3000
    straight, between = [ask, calls, results, *systems], [ask, calls, *systems, results]
    equal(count(messages=straight), count(messages=between), "results stand in front of what came between")
    one = {**call(), "id": "t"}
    refusal("messages: more than 10000 calls", messages=[ask, assistant([one] * 10001)])
    refusal("messages: more than 10000 messages", messages=[ask, {"role": "system", "content": "s"}] * 5001)
    refusal("messages: more than 10000 messages", messages=[ask, assistant([one]), user([result("x", "t")] * 10000)])
    equal(count(messages=[ask] * 20000), chat_tokens([user("\n".join(["a"] * 20000))]))


@test("what is ignored is named in x-kakeya-ignored, and refused with --strict where it is not known")
def _():
    body = {"service_tier": "auto", "inference_geo": "us", "container": "c", "mcp_servers": [], "speed": "fast", "foo": 1,
            "metadata": {"user_id": "u", "other": 1}, "cache_control": {"type": "ephemeral"}}
    reply = post(body)
    equal((reply.status, reply.headers["x-kakeya-ignored"]),
          (200, "metadata.other, cache_control, service_tier, inference_geo, container, mcp_servers, speed, foo"))
    equal(post({}).headers.get("x-kakeya-ignored"), None)
    counted = post({**body, "max_tokens": ...}, path="/v1/messages/count_tokens")
    equal((counted.status, counted.headers["x-kakeya-ignored"]), (200, reply.headers["x-kakeya-ignored"]))
    s = Server("--name", "demo", "--strict")
    refusal("service_tier", s=s, service_tier="auto")
    refusal("metadata.other", s=s, metadata={"other": 1})
    mark = {"cache_control": {"type": "ephemeral"}}
    equal(post({**mark, "messages": [user([{**said("a"), **mark}])]}, s).status, 200)
    s.stop()


@test("count_tokens computes nothing: it answers beside a full queue")
def _():
    s = Server("--name", "demo", "--max-batch", "1", "--max-queue", "1")
    with create(s, max_tokens=8000, ignore_eos=True, stream=True) as events:
        next(events)
        before = s.metric("kakeya_prompt_tokens_total")
        equal(count(s, messages=[user(ASK)]), count(messages=[user(ASK)]))
        equal(s.metric("kakeya_prompt_tokens_total"), before)
    s.stop()


@test("a failure in mid-stream is an error event, which the client raises; pings while nothing is to be told")
def _():
    s, told = Server("--name", "demo", "--drain", "0"), False
    try:
        for event in client(s).messages.create(**complete({"temperature": ..., "max_tokens": 8000}), stream=True,
                                               extra_body={"ignore_eos": True}):
            if event.type == "content_block_delta" and not told:
                s.signal(15)  # once: a second one ends the server at once
                told = True
        raise AssertionError("the stream ended well")
    except anthropic.APIStatusError as e:
        equal((e.body["type"], e.body["error"]["type"]), ("error", "overloaded_error"))
        holds(e.body["request_id"].startswith("req_"), e.body)
    equal(s.wait(), 0)
    s = Server("--name", "demo", "--sse-ping", "0.5", "--max-batch", "1", "--threads", "1")
    body = complete({"stream": True, "max_tokens": 8000, "ignore_eos": True, "messages": [user("word " * 7000)]})
    with s.connect() as connection:
        data = json.dumps(body).encode()
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                           % len(data) + data)
        received = b""
        while b"event: content_block_delta\n" not in received and received.count(b"event: ping\n") < 3:
            piece = connection.recv(65536)
            holds(piece, "the stream goes on")
            received += piece
        # of the prompt, by the server's clock; one ping comes with the message, the others while it is computed
        took = s.metric("kakeya_time_to_first_token_seconds_sum")
        holds(received.count(b"event: ping\n") >= (2 if took > 1.5 else 1), f"{received} in {took} s")
    eventually(lambda: s.metric("kakeya_requests_running") == 0, "a client that leaves stops the answer")
    s.stop()


run_tests()
