"""OpenAI's Python client against the Responses API of the server."""

import json
import math
import os
import re
import signal
import tempfile
import threading
from typing import Literal

import openai
import pydantic

from harness import APPLY_PATCH, WAIT, Server, equal, eventually, holds, run_tests, scripted_model, test

server = Server("--name", "demo", "--vision", "off")
ASK = "def fibonacci(n):"
CALL = "<|tool_call>call:f{a:12}<tool_call|>"
THOUGHT = "<|channel>thought\nso it is<channel|>Done."


def client(s=server, **options):
    return openai.OpenAI(base_url=s.url + "/v1", api_key=options.pop("api_key", "none"), timeout=WAIT, max_retries=0, **options)


ai = client()


def create(input=ASK, s=None, **options):
    options = {"model": "demo", "input": input, "temperature": 0, "max_output_tokens": 16, **options}
    return (client(s) if s else ai).responses.create(**options)


def post(body, s=server, **more):
    return s.post("/v1/responses", {"model": "demo", "input": ASK, "temperature": 0, "max_output_tokens": 16, **body}, **more)


def refusal(code, param, s=server, status=400, **body):
    body = {k: v for k, v in {"model": "demo", "input": ASK, "max_output_tokens": 4, **body}.items() if v is not ...}
    reply = s.post("/v1/responses", body)
    equal((reply.status, reply.error["code"], reply.error["param"]), (status, code, param), reply.error["message"])
    return reply.error["message"]


def chat_text(messages, s=None, **options):
    answer = (client(s) if s else ai).chat.completions.create(
        model="demo", messages=messages, temperature=0, **{"max_tokens": 16, **options})
    return answer.choices[0].message.content


def input_tokens(s=server, **body):
    reply = s.post("/v1/responses/input_tokens", body)
    equal(reply.status, 200, reply.body)
    equal(reply.json["object"], "response.input_tokens")
    return reply.json["input_tokens"]


def chat_tokens(messages, s=server, **body):
    body = {"model": "demo", "messages": messages, **body}
    return s.post("/v1/chat/completions/input_tokens", body).json["input_tokens"]


def scripted(script, *options):
    return Server("--name", "demo", *options, model=scripted_model(script))


def function(name="f", **properties):
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": properties}, "strict": False}


def user(text):
    return {"role": "user", "content": text}


def events_of(body):
    """Events of a stream, read by hand: names equal types, numbers are dense."""
    events = []
    for block in body.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        equal(name, "event: " + event["type"])
        equal(event["sequence_number"], len(events), "sequence numbers are dense")
        events.append(event)
    return events


def short(events):
    """Event types without repetitions of deltas."""
    types = [e["type"].removeprefix("response.") for e in events]
    return [t for i, t in enumerate(types) if not (t.endswith("delta") and i and types[i - 1] == t)]


def check_stream(events):
    """What holds of every stream: the final object is made of what the events told."""
    first, last = events[0]["response"], events[-1]["response"]
    equal([e["type"] for e in events[:2]], ["response.created", "response.in_progress"])
    equal((first["status"], first["output"], first["usage"]), ("in_progress", [], None))
    equal(events[1]["response"], first)
    equal(last["id"], first["id"])
    done = [e for e in events if e["type"] == "response.output_item.done"]
    equal([e["item"] for e in done], last["output"])
    equal([e["output_index"] for e in done], list(range(len(done))))
    added = [e for e in events if e["type"] == "response.output_item.added"]
    equal([e["item"]["id"] for e in added], [e["item"]["id"] for e in done])
    holds(all(e["item"]["status"] == "in_progress" for e in added))
    for e in events:
        if "item_id" in e:
            equal(e["item_id"], last["output"][e["output_index"]]["id"])
    for kind, field in (("output_text", "text"), ("reasoning_text", "text"), ("reasoning_summary_text", "text"),
                        ("function_call_arguments", "arguments")):
        for end in [e for e in events if e["type"] == f"response.{kind}.done"]:
            deltas = [e["delta"] for e in events if e["type"] == f"response.{kind}.delta" and e["output_index"] == end["output_index"]]
            equal("".join(deltas), end[field])
            holds(all(deltas), "no empty delta")
    holds(last["usage"]["total_tokens"] == last["usage"]["input_tokens"] + last["usage"]["output_tokens"] > 0)
    return last


MESSAGE = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
REASONING = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
             "output_item.done"]
SUMMARY = ["output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done",
           "reasoning_summary_part.done", "output_item.done"]
FUNCTION = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


@test("35: responses.create gives the text that chat completions give, with every field of the object")
def _():
    answer = create()
    equal(answer.output_text, chat_text([user(ASK)]))
    equal((answer.object, answer.status, answer.model), ("response", "incomplete", "demo"))
    equal(answer.incomplete_details.reason, "max_output_tokens")
    equal((answer.usage.input_tokens, answer.usage.output_tokens), (chat_tokens([user(ASK)]), 16))
    holds(re.fullmatch(r"resp_[0-9A-Za-z]{24}", answer.id), answer.id)
    holds(re.fullmatch(r"msg_[0-9A-Za-z]{24}", answer.output[0].id), answer.output[0].id)
    equal([i.type for i in answer.output], ["message"])
    raw = post({"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u", "top_p": 0.5, "reasoning": {"effort": "none"}}).json
    fields = """id object created_at completed_at status error incomplete_details instructions max_output_tokens max_tool_calls model output
        parallel_tool_calls previous_response_id reasoning store temperature text tool_choice tools top_logprobs top_p truncation usage user
        metadata background"""
    equal(set(raw), set(fields.split()))
    echoed = {k: raw[k] for k in ("instructions", "metadata", "user", "top_p", "temperature", "max_output_tokens", "store", "tools",
                                  "tool_choice", "text", "truncation", "previous_response_id", "parallel_tool_calls")}
    equal(echoed, {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u", "top_p": 0.5, "temperature": 0,
                   "max_output_tokens": 16, "store": True, "tools": [], "tool_choice": "auto", "text": {"format": {"type": "text"}},
                   "truncation": "disabled", "previous_response_id": None, "parallel_tool_calls": True})
    equal(raw["usage"]["input_tokens_details"]["cache_write_tokens"], 0)
    s = scripted("Fine.")
    done = create(s=s)
    equal((done.status, done.output_text, done.incomplete_details), ("completed", "Fine.", None))
    holds(done.completed_at >= done.created_at)
    s.stop()


@test("35: a stream of text: the order of events, the same items, and what the client makes of it")
def _():
    events = events_of(post({"stream": True}).body)
    last = check_stream(events)
    equal(short(events), ["created", "in_progress", *MESSAGE, "incomplete"])
    equal(last["output"][0]["content"][0]["text"], create().output_text)
    with ai.responses.stream(model="demo", input=ASK, temperature=0, max_output_tokens=16) as stream:
        seen = [e.type for e in stream]
    equal(seen[-1], "response.incomplete")
    s = scripted("Fine.")
    with client(s).responses.stream(model="demo", input=ASK, temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    equal((text, final.output_text, final.status), ("Fine.", "Fine.", "completed"))
    s.stop()


@test("35: reasoning, as text and as a summary, then the answer")
def _():
    s = scripted(THOUGHT)
    events = events_of(post({"stream": True, "reasoning": {"effort": "high"}}, s=s).body)
    last = check_stream(events)
    equal(short(events), ["created", "in_progress", *REASONING, *MESSAGE, "completed"])
    thought, message = last["output"]
    equal((thought["content"], thought["summary"]), ([{"type": "reasoning_text", "text": "so it is"}], []))
    equal(thought["encrypted_content"], None)
    equal(message["content"][0]["text"], "Done.")
    holds(last["usage"]["output_tokens_details"]["reasoning_tokens"] > 0)
    events = events_of(post({"stream": True, "reasoning": {"effort": "high", "summary": "auto"}}, s=s).body)
    equal(short(events), ["created", "in_progress", *SUMMARY, *MESSAGE, "completed"])
    thought = check_stream(events)["output"][0]
    equal((thought["content"], thought["summary"]), ([], [{"type": "summary_text", "text": "so it is"}]))
    answer = create(s=s)
    equal([i.type for i in answer.output], ["message"], "no reasoning where none was asked for")
    equal(answer.output_text, "Done.")
    s.stop()


@test("35: a call, streamed and whole: no empty message beside it")
def _():
    s = scripted(CALL)
    tools = [function(a={"type": "integer"})]
    events = events_of(post({"stream": True, "tools": tools}, s=s).body)
    last = check_stream(events)
    equal(short(events), ["created", "in_progress", *FUNCTION, "completed"])
    whole = create(s=s, tools=tools)
    for item in (last["output"][0], whole.output[0].to_dict()):
        equal((item["type"], item["name"], json.loads(item["arguments"]), item["status"]), ("function_call", "f", {"a": 12}, "completed"))
        holds(re.fullmatch(r"fc_[0-9A-Za-z]{24}", item["id"]) and item["call_id"].startswith("call_"))
    equal(len(whole.output), 1)
    equal(whole.tools[0].name, "f")
    end = next(e for e in events if e["type"] == "response.function_call_arguments.done")
    equal((end["name"], json.loads(end["arguments"])), ("f", {"a": 12}))
    s.stop()


@test("35: text in front of a call is an item of its own; a call that max_output_tokens cuts is incomplete")
def _():
    s = scripted("Look! " + CALL)
    events = events_of(post({"stream": True, "tools": [function()]}, s=s).body)
    tokens = check_stream(events)["usage"]["output_tokens"]
    equal(short(events), ["created", "in_progress", *MESSAGE, *FUNCTION, "completed"])
    cut = post({"stream": True, "tools": [function()], "max_output_tokens": tokens - 3}, s=s)  # without "}", its end, the stop token
    last = check_stream(events_of(cut.body))
    equal((last["status"], last["output"][-1]["type"], last["output"][-1]["status"]), ("incomplete", "function_call", "incomplete"))
    more = scripted(CALL + "and more text")
    equal([i.type for i in create(s=more, tools=[function()]).output], ["function_call", "message"])
    limited = create(s=more, tools=[function()], max_tool_calls=1)
    equal(([i.type for i in limited.output], limited.status), (["function_call"], "completed"))
    more.stop()
    s.stop()


@test("items become the messages of chat completions: roles, parts, calls and their outputs")
def _():
    def same(items, messages, tools=None, **chat):
        extra = {"tools": [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in tools]} if tools else {}
        equal(input_tokens(model="demo", input=items, **({"tools": tools} if tools else {})), chat_tokens(messages, **extra))
        got = post({"input": items, **({"tools": tools} if tools else {})})
        equal(got.status, 200, got.body)
        texts = [c["text"] for i in got.json["output"] if i["type"] == "message" for c in i["content"]]
        body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 16, **extra}
        reply = server.post("/v1/chat/completions", body).json
        equal("".join(texts), reply["choices"][0]["message"]["content"] or "")

    same("Hello there", [user("Hello there")])
    same([{"role": "developer", "content": "Be brief."},
          {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
         [{"role": "system", "content": "Be brief."}, user("Hi")])
    same([user("a"), {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}, user("c")],
         [user("a"), {"role": "assistant", "content": "b"}, user("c")])
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    same([user("a"), {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'},
          {"type": "function_call_output", "call_id": "call_1", "output": "7"}],
         [user("a"), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "7"}], [function()])
    big = 12345678901234567891 # which no double is
    spelled = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": big})}}
    same([user("a"), {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": {"a": big}},
          {"type": "function_call_output", "call_id": "call_1", "output": "7"}],
         [user("a"), {"role": "assistant", "tool_calls": [spelled]}, {"role": "tool", "tool_call_id": "call_1", "content": "7"}],
         [function()])
    other = {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    same([user("a"), {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}], "content": None},
          {"role": "assistant", "content": "Look:"},
          {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'},
          {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": ""},
          {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "7"}]},
          {"type": "function_call_output", "call_id": "call_2", "output": "8"}],
         [user("a"), {"role": "assistant", "reasoning_content": "why", "content": "Look:", "tool_calls": [call, other]},
          {"role": "tool", "tool_call_id": "call_1", "content": "7"}, {"role": "tool", "tool_call_id": "call_2", "content": "8"}],
         [function()])
    shell = {"id": "c9", "type": "function", "function": {"name": "local_shell", "arguments": '{"action":{"type":"exec"}}'}}
    same([user("a"), {"type": "local_shell_call", "call_id": "c9", "status": "completed", "action": {"type": "exec"}},
          {"type": "local_shell_call_output", "call_id": "c9", "output": "ok"}],
         [user("a"), {"role": "assistant", "tool_calls": [shell]}, {"role": "tool", "tool_call_id": "c9", "content": "ok"}])
    search = {"id": "ws_1", "type": "function", "function": {"name": "web_search", "arguments": '{"action":{"query":"q"}}'}}
    same([user("a"), {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}},
          {"role": "assistant", "content": "Found."}, user("b")],
         [user("a"), {"role": "assistant", "tool_calls": [search]}, {"role": "tool", "tool_call_id": "ws_1", "content": "completed"},
          {"role": "assistant", "content": "Found."}, user("b")])
    custom = {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": '{"input":"diff"}'}}
    same([user("a"), {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "diff"},
          {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}],
         [user("a"), {"role": "assistant", "tool_calls": [custom]}, {"role": "tool", "tool_call_id": "c1", "content": "done"}])
    equal(input_tokens(input=[user("Hi")], instructions="Be brief."),
          chat_tokens([{"role": "system", "content": "Be brief."}, user("Hi")]))


@test("items that mean nothing are refused by name")
def _():
    image = [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "x"}]}]
    refusal("unsupported_content", "input[0].content[1]", input=image)
    refusal("unsupported_content", "input[0]", input=[{"type": "input_image", "image_url": "x"}])
    orphan = {"type": "function_call_output", "call_id": "call_x", "output": "7"}
    refusal("invalid_prompt", "input[1].call_id", input=[user("a"), orphan])
    later = [user("a"), orphan, {"type": "function_call", "call_id": "call_x", "name": "f", "arguments": "{}"}]
    refusal("invalid_prompt", "input[1].call_id", input=later)
    refusal("invalid_value", "input[0].role", input=[{"role": "function", "content": "x"}])
    refusal("invalid_type", "input[0].content", input=[{"role": "user", "content": 5}])
    refusal("invalid_type", "input[0].type", input=[{"content": "x"}])
    refusal("invalid_type", "input[0]", input=["x"])
    refusal("invalid_type", "input", input=5)
    equal(input_tokens(input=[]), input_tokens(input=""), "an empty list is an empty text")
    equal(post({"input": []}).status, 200)
    refusal("missing_required_parameter", "input", input=...)
    refusal("missing_required_parameter", "model", model=...)
    refusal("model_not_found", "model", status=404, model="gpt-4")
    refusal("invalid_value", "input[0]", input=[{"type": "item_reference", "id": "msg_none"}])
    refusal("invalid_value", "max_output_tokens", max_output_tokens=0)
    refusal("invalid_value", "top_logprobs", top_logprobs=21)
    refusal("invalid_value", "truncation", truncation="some")
    refusal("invalid_value", "reasoning.effort", reasoning={"effort": "extreme"})
    refusal("invalid_type", "metadata", metadata={"a": 1})
    refusal("unsupported_parameter", "n", n=2)
    for name, value in (("background", True), ("conversation", "conv_1"), ("prompt", {"id": "p"}), ("context_management", [])):
        refusal("unsupported_parameter", name, **{name: value})
    equal(post({"background": False, "conversation": None}).status, 200)
    foreign = {"type": "mcp_list_tools", "id": "m", "tools": []}
    ignored = post({"input": [user("a"), foreign], "foo": 1, "include": ["file_search_call.results"]})
    equal((ignored.status, ignored.headers["x-kakeya-ignored"]),
          (200, "input[1].mcp_list_tools, include[0](file_search_call.results), foo"))


@test("36: a chain of three: the context is kept, nothing of it is computed again")
def _():
    words = ["def fibonacci(n):", "And now backwards.", "Shorter."]
    messages, previous, cached = [], None, []
    for word in words:
        messages.append(user(word))
        answer = create(word, **({"previous_response_id": previous} if previous else {}))
        equal(answer.output_text, chat_text(messages))
        equal(answer.usage.input_tokens, chat_tokens(messages))
        equal(answer.previous_response_id, previous)
        cached.append(answer.usage.input_tokens_details.cached_tokens)
        messages.append({"role": "assistant", "content": answer.output_text})
        previous = answer.id
    holds(cached[1] > 0 and cached[2] > cached[1], cached)
    once = create("x", instructions="Be brief.")
    equal(create("y", previous_response_id=once.id).usage.input_tokens,
          chat_tokens([user("x"), {"role": "assistant", "content": once.output_text}, user("y")]), "instructions are not inherited")
    holds(input_tokens(input="y", previous_response_id=once.id) > 0)


@test("36: calls and outputs over a chain; items by reference")
def _():
    s = scripted(CALL)
    first = create(s=s, tools=[function()])
    call = first.output[0]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    second = create([output], s=s, previous_response_id=first.id, tools=[function()])
    arguments = {"id": call.call_id, "type": "function", "function": {"name": "f", "arguments": call.arguments}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}}]
    messages = [user(ASK), {"role": "assistant", "tool_calls": [arguments]}, {"role": "tool", "tool_call_id": call.call_id, "content": "7"}]
    equal(second.usage.input_tokens, chat_tokens(messages, s=s, tools=tools))
    given = [user(ASK), {"type": "item_reference", "id": call.id}, output]
    equal(input_tokens(s=s, input=given, tools=[function()]), second.usage.input_tokens)
    equal(input_tokens(s=s, input=[user(ASK), {"id": call.id}, output], tools=[function()]), second.usage.input_tokens)
    s.stop()


@test("36: retrieve, input_items and delete; a deleted, unstored or unknown id continues nothing")
def _():
    answer = create([user("a"), {"role": "assistant", "content": "b", "id": "msg_mine"}, user("c")])
    equal(ai.responses.retrieve(answer.id).to_dict(), answer.to_dict())
    items = ai.responses.input_items.list(answer.id)
    equal([(i.role, i.content[0].text) for i in items], [("user", "c"), ("assistant", "b"), ("user", "a")])
    raw = server.get(f"/v1/responses/{answer.id}/input_items?order=asc").json
    equal((raw["object"], raw["has_more"], raw["first_id"], raw["last_id"], raw["data"][1]["id"]),
          ("list", False, raw["data"][0]["id"], raw["data"][2]["id"], "msg_mine"))
    equal(server.request("DELETE", f"/v1/responses/{answer.id}").json, {"id": answer.id, "object": "response.deleted", "deleted": True})
    for id in (answer.id, create(store=False).id, "resp_unknown", "r" * 300):
        equal(server.get(f"/v1/responses/{id}").status, 404)
        equal(server.get(f"/v1/responses/{id}/input_items").status, 404)
        equal(server.request("DELETE", f"/v1/responses/{id}").status, 404)
        refusal("previous_response_not_found", "previous_response_id", previous_response_id=id)
    ai.responses.delete(create().id)
    stored = create()
    equal(server.post(f"/v1/responses/{stored.id}/cancel", {}).status, 400)
    equal(server.get(f"/v1/responses/{stored.id}/cancel").status, 405)
    equal(server.get(f"/v1/responses/{stored.id}/other").status, 404)
    equal(server.request("DELETE", f"/v1/responses/{stored.id}/input_items").status, 405)
    equal(server.get("/v1/responses").status, 405)


@test("36: with keys a response belongs to the one that made it")
def _():
    s = Server("--name", "demo", "--api-key", "one", "--api-key", "two")
    one, two = client(s, api_key="one"), client(s, api_key="two")
    made = one.responses.create(model="demo", input=ASK, max_output_tokens=2)
    equal(one.responses.retrieve(made.id).id, made.id)
    for ask in (two.responses.retrieve, two.responses.input_items.list, two.responses.delete, two.responses.cancel):
        try:
            ask(made.id)
            holds(False, "another key's response was found")
        except openai.NotFoundError:
            pass
    try:
        two.responses.create(model="demo", input="x", previous_response_id=made.id)
        holds(False, "another key's response was continued")
    except openai.BadRequestError as e:
        equal(e.code, "previous_response_not_found")
    equal(one.responses.create(model="demo", input="x", max_output_tokens=2, previous_response_id=made.id).previous_response_id, made.id)
    s.stop()


@test("36: a running response is retrieved and cancelled; its stream and its object say so")
def _():
    s = Server("--name", "demo")
    for store in (True, False):
        stream = client(s).responses.create(model="demo", input="Count up.", stream=True, store=store,
                                            extra_body={"ignore_eos": True})
        events = [next(stream)]
        id = events[0].response.id
        equal(s.get(f"/v1/responses/{id}").status, 200 if store else 404)
        if store:
            equal(s.get(f"/v1/responses/{id}").json["status"], "in_progress")
            equal(s.request("DELETE", f"/v1/responses/{id}").status, 400)
            refusal("previous_response_not_found", "previous_response_id", s=s, previous_response_id=id)
        cancelled = client(s).responses.cancel(id)
        equal((cancelled.id, cancelled.status), (id, "cancelled"))
        events += list(stream)
        equal((events[-1].type, events[-1].response.status), ("response.incomplete", "cancelled"))
        equal(events[-1].response.to_dict(), cancelled.to_dict())
        holds(events[-1].response.output[0].status == "incomplete")
        equal(s.get(f"/v1/responses/{id}").status, 200 if store else 404)
    s.stop()


@test("37: a request as Codex makes it: functions only, the header names what was dropped")
def _():
    tools = [function("shell", command={"type": "array", "items": {"type": "string"}}),
             {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH}},
             {"type": "web_search", "external_web_access": False},
             {"type": "namespace", "name": "mcp", "tools": []}]
    body = {"model": "demo", "instructions": "You are a coding agent.", "stream": True, "store": False, "tool_choice": "auto",
            "temperature": 0,  # which Codex does not send: what the demo says after the script must end
            "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "prompt_cache_key": "k",
            "include": ["reasoning.encrypted_content"], "client_metadata": {"session": "1"}, "tools": tools,
            "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox."}]},
                      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files."}]},
                      {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
                      {"type": "function_call", "call_id": "call_7", "name": "shell", "arguments": '{"command":["ls"]}'},
                      {"type": "function_call_output", "call_id": "call_7", "output": "a.c"}]}
    s = scripted(THOUGHT)
    reply = s.post("/v1/responses", body)
    equal(reply.status, 200, reply.body)
    equal(reply.headers["x-kakeya-ignored"], "tools[2](web_search)")
    last = events_of(reply.body)[-1]
    equal(last["type"], "response.completed")
    equal([t["name"] for t in last["response"]["tools"]], ["shell", "apply_patch", "mcp"])
    chosen = {"type": "web_search"}
    refusal("invalid_value", "tool_choice", s=s, tools=tools, tool_choice=chosen)
    refusal("invalid_value", "tool_choice", s=s, tools=tools, tool_choice={"type": "function", "name": "missing"})
    equal(post({"tools": tools[2:], "tool_choice": "auto"}, s=s).status, 200, "tools that are all dropped are no tools")
    s.stop()


NAMESPACE = {"type": "namespace", "name": "mcp__notes__", "description": "Notes", "tools": [
    {**function("find", q={"enum": ["x"]}), "strict": False}, {"type": "custom", "name": "patch", "description": "Patch."}]}
NAMESPACE["tools"][0]["parameters"]["required"] = ["q"]


@test("37: functions of a namespace are called, told and read back under both names")
def _():
    choice = {"type": "function", "name": "find", "namespace": "mcp__notes__"}
    body = {"input": "Look it up.", "tools": [function(), NAMESPACE], "tool_choice": choice, "max_output_tokens": 100, "temperature": 0}
    whole = post(body).json
    streamed = check_stream(events_of(post({**body, "stream": True}).body))
    for answer in (whole, streamed):
        call = answer["output"][0]
        equal((call["type"], call["name"], call["namespace"], json.loads(call["arguments"])),
              ("function_call", "find", "mcp__notes__", {"q": "x"}))
        equal([t["type"] for t in answer["tools"]], ["function", "namespace"])
    told = [e for e in events_of(post({**body, "stream": True}).body) if e["type"] == "response.function_call_arguments.done"][0]
    equal((told["name"], told["namespace"]), ("find", "mcp__notes__"))
    known = create("Look it up.", tools=[function(), NAMESPACE], tool_choice=choice, max_output_tokens=100)
    equal((known.output[0].name, known.output[0].namespace), ("find", "mcp__notes__"), "the client's own types")
    # declared and read back as one function of both names
    flat = {"type": "function", "function": {"name": "mcp__notes__find", "description": None, "strict": False,
                                             "parameters": NAMESPACE["tools"][0]["parameters"]}}
    del flat["function"]["description"]
    called = {"id": "c", "type": "function", "function": {"name": "mcp__notes__find", "arguments": '{"q":"x"}'}}
    items = [user("a"), {"type": "function_call", "call_id": "c", "name": "find", "namespace": "mcp__notes__", "arguments": '{"q":"x"}'},
             {"type": "function_call_output", "call_id": "c", "output": "7"}]
    chat = [user("a"), {"role": "assistant", "tool_calls": [called]}, {"role": "tool", "tool_call_id": "c", "content": "7"}]
    only = {**NAMESPACE, "tools": NAMESPACE["tools"][:1]}
    equal(input_tokens(input=items, tools=[only]), chat_tokens(chat, tools=[flat]))
    # a chain carries the namespace, too
    second = post({"input": [{"type": "function_call_output", "call_id": whole["output"][0]["call_id"], "output": "7"}],
                   "previous_response_id": whole["id"], "tools": [function(), NAMESPACE]})
    equal(second.status, 200, second.body)
    other = {"type": "namespace", "name": "web", "tools": [{"type": "web_search"}, function("go")]}
    reply = post({"tools": [other], "tool_choice": "required", "max_output_tokens": 60})
    equal((reply.headers["x-kakeya-ignored"], reply.json["output"][0]["namespace"]), ("tools[0].tools[0](web_search)", "web"))
    equal(reply.json["output"][0]["name"], "go")
    refusal("invalid_type", "tools[0]", tools=[{"type": "namespace", "tools": []}])
    refusal("invalid_value", "tool_choice", tools=[NAMESPACE], tool_choice={"type": "function", "name": "find"})
    refusal("invalid_json_schema", "tools", tools=[function("n__find"), {"type": "namespace", "name": "n", "tools": [function("find")]}])


@test("37: the text of a custom tool follows its grammar")
def _():
    for syntax, definition, expected in (("regex", "(ab|cd){2,5}", "(ab|cd){2,5}"), ("lark", 'start: "<" /[0-9]/+ ">"', "<[0-9]+>")):
        patch = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": syntax, "definition": definition}}
        for tools, choice in (([patch], "required"), ([{"type": "namespace", "name": "n", "tools": [patch]}, function("go")],
                                                      {"type": "custom", "name": "patch", "namespace": "n"})):
            ended = 0
            for seed in range(5):
                made = post({"tools": tools, "tool_choice": choice, "max_output_tokens": 80, "temperature": 1, "seed": seed,
                             "parallel_tool_calls": False}).json
                ended += made["status"] == "completed"
                if made["status"] == "completed":
                    holds(re.fullmatch(expected, made["output"][0]["input"]), made["output"])
            holds(ended, (syntax, choice))


@test("37: custom tools get a text: whole, streamed, in a namespace, and in the next request")
def _():
    quote = server.post("/tokenize", {"content": '<|"|>'}).json["tokens"][0]
    patch = {"type": "custom", "name": "patch", "description": "Patch.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
    for space, named in ((None, patch), ("mcp__notes__", NAMESPACE)):
        choice = {"type": "custom", "name": "patch", **({"namespace": space} if space else {})}
        body = {"tools": [named], "tool_choice": choice, "max_output_tokens": 60, "temperature": 1, "logit_bias": {str(quote): 18},
                "parallel_tool_calls": False}
        for seed in range(40):  # a text of some length that comes to its end
            whole = post({**body, "seed": seed}).json
            if whole["status"] == "completed" and len(whole["output"][0]["input"]) > 3:
                break
        events = events_of(post({**body, "seed": seed, "stream": True}).body)
        streamed = check_stream(events)
        equal(short(events)[2:-1], ["output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"])
        item = streamed["output"][0]
        equal((item["type"], item["name"], item.get("namespace"), item["status"]), ("custom_tool_call", "patch", space, "completed"))
        equal(item["input"], whole["output"][0]["input"])
        equal([e.get("delta", e.get("input")) for e in events if "custom_tool_call_input" in e["type"]], [item["input"]] * 2)
        holds(item["id"].startswith("ctc_") and item["call_id"], item)
        items = [user(ASK), item, {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}]
        call = {"id": "c", "type": "function",
                "function": {"name": (space or "") + "patch", "arguments": json.dumps({"input": item["input"]})}}
        chat = [user(ASK), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "done"}]
        equal(input_tokens(input=items), chat_tokens(chat))
    inputs = []
    for most in (6, 8, 12, 16, 20):  # what is complete of a text that was cut
        cut = post({"tools": [patch], "tool_choice": {"type": "custom", "name": "patch"}, "max_output_tokens": most, "temperature": 0}).json
        inputs += [i["input"] for i in cut["output"]]
        equal({(i["type"], i["status"]) for i in cut["output"]}, {("custom_tool_call", "incomplete")})
    holds(all(b.startswith(a) for a, b in zip(inputs, inputs[1:])) and not inputs[0] and len(inputs[-1]) > 3, inputs)


@test("outputs of tools that are no text: a line stands for them, and the header names it")
def _():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    for kind, name in (("function_call", "f"), ("custom_tool_call", "f")):
        own = {"type": kind, "call_id": "c", "name": name, **({"arguments": "{}"} if kind == "function_call" else {"input": "i"})}
        call["function"]["arguments"] = "{}" if kind == "function_call" else '{"input":"i"}'
        for output, line, ignored in (
                ([image], "[image]", "input[2].output[0](input_image)"),
                ([{"type": "input_file", "filename": "a.pdf", "file_data": "JVBERi0="}], "[file: a.pdf]",
                 "input[2].output[0](input_file)")):
            items = [user("a"), own, {"type": kind + "_output", "call_id": "c", "output": output}, user("go on")]
            chat = [user("a"), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": line},
                    user("go on")]
            equal(input_tokens(input=items), chat_tokens(chat), f"{kind} {output}")
            reply = post({"input": items})
            equal((reply.status, reply.headers["x-kakeya-ignored"]), (200, ignored), reply.body)
            again = post({"previous_response_id": reply.json["id"], "input": "and?"})
            equal((again.status, again.headers.get("x-kakeya-ignored")), (200, None), again.body)
            stored = server.get(f"/v1/responses/{reply.json['id']}/input_items?order=asc").json["data"]
            equal(stored[2]["output"], output, "what is stored is what was sent")
    shot = [user("a"), {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}},
            {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "data:" + "A" * 9000}}]
    holds(input_tokens(input=shot) < 200, "a picture is no text of base64")


@test("a stored response is told again as the stream that it was, whole or from a number on")
def _():
    s = scripted(THOUGHT)
    cases = [(s, {"reasoning": {"effort": "high"}}), (s, {"reasoning": {"effort": "high", "summary": "auto"}}),
             (server, {"max_output_tokens": 5}), (server, {"tools": [function()], "tool_choice": "required", "max_output_tokens": 60}),
             (server, {"tools": [NAMESPACE], "max_output_tokens": 40,
                       "tool_choice": {"type": "custom", "name": "patch", "namespace": "mcp__notes__"}}),
             (server, {"include": ["message.output_text.logprobs"], "max_output_tokens": 4})]
    for of, body in cases:
        events = events_of(post({**body, "stream": True, "temperature": 0}, s=of).body)
        id = events[0]["response"]["id"]
        reply = of.get(f"/v1/responses/{id}?stream=true")
        equal(reply.headers["content-type"], "text/event-stream; charset=utf-8")
        again = events_of(reply.body)
        equal(check_stream(again), events[-1]["response"])
        equal(short(again), short(events), str(body))
        told = [e for e in client(of).responses.retrieve(id, stream=True)]
        equal([e.type for e in told], [e["type"] for e in again], "the client's iterator")
        for after in (0, 3, len(again) - 2, len(again) + 5):
            rest = [e.sequence_number for e in client(of).responses.retrieve(id, stream=True, starting_after=after)]
            equal(rest, list(range(after + 1, len(again))))
    equal(server.get("/v1/responses/resp_none?stream=true").status, 404)
    equal(server.get(f"/v1/responses/{id}?stream=true&starting_after=x").status, 400)
    equal(server.get(f"/v1/responses/{id}?stream=false").json["id"], id)
    s.stop()


@test("a response that runs is told when it has ended")
def _():
    s = Server("--name", "demo")
    with client(s).responses.create(model="demo", input=ASK, stream=True, temperature=0, max_output_tokens=300) as stream:
        id = next(iter(stream)).response.id
        told = [e.type for e in client(s).responses.retrieve(id, stream=True)]
    equal(told[0], "response.created")
    holds(told[-1] in ("response.completed", "response.incomplete"), told[-1])
    s.stop()


@test("input_items in pages: limit, order, after, before")
def _():
    texts = [str(i) for i in range(25)]
    id = create([user(t) for t in texts], max_output_tokens=1).id
    page = lambda query: server.get(f"/v1/responses/{id}/input_items?{query}")
    said = lambda query: [i["content"][0]["text"] for i in page(query).json["data"]]
    ids = {i["content"][0]["text"]: i["id"] for i in page("order=asc&limit=100").json["data"]}
    equal(said(""), texts[:4:-1], "the newest first, twenty of them")
    equal(said("limit=3&order=asc"), texts[:3])
    equal(said(f"limit=3&order=asc&after={ids['2']}"), texts[3:6])
    equal(said(f"limit=3&order=desc&after={ids['2']}"), ["1", "0"])
    equal(said(f"limit=3&order=asc&before={ids['9']}"), texts[6:9])
    equal(said(f"order=asc&after={ids['2']}&before={ids['5']}"), ["3", "4"])
    one = page("limit=2").json
    equal((one["first_id"], one["last_id"], one["has_more"]), (ids["24"], ids["23"], True))
    last = page(f"limit=2&order=asc&after={ids['22']}").json
    equal((last["has_more"], last["last_id"]), (False, ids["24"]))
    none = page(f"order=asc&after={ids['24']}").json
    equal((none["data"], none["first_id"], none["last_id"], none["has_more"]), ([], None, None, False))
    equal([i.content[0].text for i in ai.responses.input_items.list(id, limit=4, order="asc")], texts, "the client goes through all pages")
    for bad in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_none"):
        equal(page(bad).status, 400, bad)


@test("37: a tool loop as Codex 0.163.0 sends it: items with ids and states come back, a result costs what is new in it")
def _():
    # What was seen on the wire, with texts of our own.
    part = lambda text, kind="input_text": [{"type": kind, "text": text}]
    message = lambda role, content, **more: {"type": "message", "id": f"msg_{role}", "role": role, "content": content, **more}
    tools = [{**function("get_goal"), "strict": False, "description": "The goal."},
             {**function("exec_command", cmd={"type": "string"}, yield_time_ms={"type": "number"}), "strict": False},
             {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.",
              "tools": [{**function("close_agent"), "strict": False}]},
             {"type": "web_search", "external_web_access": False}]
    s = Server("--name", "demo", model=scripted_model("<|tool_call>call:get_goal{}<tool_call|>", "Done."))
    headers = {"accept": "text/event-stream", "originator": "codex_exec", "x-codex-window-id": "01a2:0", "session-id": "01a2",
               "x-codex-beta-features": "remote_compaction_v2", "x-codex-turn-metadata": '{"request_kind":"turn"}'}

    def ask(items):
        body = {"model": "demo", "temperature": 0, "stream": True, "input": items,
                "tools": tools, "tool_choice": "auto", "parallel_tool_calls": True,
                "reasoning": {"summary": "auto"}, "store": False, "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "01a2", "client_metadata": {"x-codex-window-id": "01a2:0", "session_id": "01a2"}}
        reply = s.post("/v1/responses", body, headers=headers)
        equal(reply.status, 200, reply.body)
        equal(reply.headers["x-kakeya-ignored"], "tools[3](web_search)")
        last = events_of(reply.body)[-1]
        equal(last["type"], "response.completed")
        return last["response"]

    items = [message("developer", part("You are a coding agent. " * 30)),
             message("developer", part("<skills>None.</skills>") + part("<permissions>read-only</permissions>")),
             message("user", part("<environment_context>\n  <shell>bash</shell>\n</environment_context>")),
             message("user", part("Where are we?"))]
    seen = 0
    for question in (None, "And now?"):
        if question:
            items.append(message("user", part(question)))
        first = ask(items)
        call = first["output"][0]
        equal((call["type"], call["name"], call["arguments"]), ("function_call", "get_goal", "{}"))
        holds(first["usage"]["input_tokens_details"]["cached_tokens"] >= seen, first["usage"])
        items += [{k: call[k] for k in ("type", "status", "id", "name", "arguments", "call_id")},
                  {"type": "function_call_output", "id": "fco_1", "call_id": call["call_id"], "output": '{"goal":null}'}]
        second = ask(items)
        before = first["usage"]["total_tokens"]
        holds(second["usage"]["input_tokens_details"]["cached_tokens"] >= before - 8, f"{second['usage']} behind {before} tokens")
        answer = second["output"][0]
        equal((answer["type"], answer["status"], answer["content"][0]["text"]), ("message", "completed", "Done."))
        items.append({k: answer[k] for k in ("type", "status", "id", "role", "content")})
        seen = first["usage"]["input_tokens"] - 8
    s.stop()


@test("encrypted_content: reasoning comes back by it; what was changed, or sealed elsewhere, is named and left out")
def _():
    s = scripted(THOUGHT)
    answer = create(s=s, reasoning={"effort": "high"}, include=["reasoning.encrypted_content"], store=False)
    sealed = answer.output[0].encrypted_content
    holds(re.fullmatch(r"kk1\.[A-Za-z0-9_-]+", sealed), sealed)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}

    def count(**reasoning):
        body = {"model": "demo", "input": [user("a"), {"type": "reasoning", "summary": [], **reasoning}, call, result],
                "tools": [function()], "max_output_tokens": 1}
        reply = s.post("/v1/responses", body)
        equal(reply.status, 200, reply.body)
        return reply.json["usage"]["input_tokens"], reply.headers.get("x-kakeya-ignored")

    plain = count(content=[{"type": "reasoning_text", "text": "so it is"}])
    nothing = count()
    holds(plain[0] > nothing[0])
    equal(count(encrypted_content=sealed), plain)
    equal(count(encrypted_content=sealed, content=None), plain)
    wrong_end = sealed[:-3] + ("AAA" if sealed[-3:] != "AAA" else "BBB")
    for changed in (wrong_end, "kk1.", "kk1.AA", "gAAAAABsomebody-else", sealed + "A", "kk1.!!"):
        equal(count(encrypted_content=changed), (nothing[0], "input[1].encrypted_content"), changed)
    other = Server("--name", "demo")
    reply = other.post("/v1/responses", {"model": "demo", "max_output_tokens": 1, "input": [
        user("a"), {"type": "reasoning", "summary": [], "encrypted_content": sealed}, user("b")]})
    equal((reply.status, reply.headers["x-kakeya-ignored"]), (200, "input[1].encrypted_content"))
    other.stop()
    s.stop()


@test("logprobs by include: whole and streamed the same; sums of probabilities hold")
def _():
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    part = post(body).json["output"][0]["content"][0]
    equal(b"".join(bytes(e["bytes"]) for e in part["logprobs"]).decode(), part["text"])
    holds(all(len(e["top_logprobs"]) == 3 and sum(math.exp(t["logprob"]) for t in e["top_logprobs"]) <= 1 + 1e-6 for e in part["logprobs"]))
    events = events_of(post({**body, "stream": True}).body)
    last = check_stream(events)["output"][0]["content"][0]
    equal(last, part)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    equal([entry for e in deltas for entry in e["logprobs"]], part["logprobs"])
    equal(post({}).json["output"][0]["content"][0]["logprobs"], [])


@test("truncation: auto leaves out the oldest turns, disabled refuses before a stream begins")
def _():
    s = Server("--name", "demo", "--context", "200")
    turns = [{"role": "system", "content": "Be brief."}]
    for i in range(12):
        turns += [user(f"Question {i}: tell me about fibonacci numbers."), {"role": "assistant", "content": "They are numbers."}]
    turns.append(user("And now?"))
    for stream in (False, True):
        message = refusal("context_length_exceeded", "input", s=s, input=turns, stream=stream)
        holds("200" in message, message)
    answer = create(turns, s=s, truncation="auto", max_output_tokens=20)
    size = answer.usage.input_tokens
    holds(size <= 180, size)
    sizes = {chat_tokens([turns[0], *turns[1 + 2 * n:]], s=s): n for n in range(1, 13)}
    holds(size in sizes, f"{size} {sizes}")
    more = chat_tokens([turns[0], *turns[1 + 2 * (sizes[size] - 1):]], s=s)
    holds(more > 180, "no turn more than needed was left out")
    equal(create("Hi", s=s, truncation="auto").usage.input_tokens, chat_tokens([user("Hi")], s=s))
    refusal("context_length_exceeded", "input", s=s, input="word " * 400, truncation="auto")
    s.stop()


class Point(pydantic.BaseModel):
    name: Literal["a", "b"]
    x: int
    flag: bool


@test("32: responses.parse with a pydantic model; text.format json_object and json_schema, also streamed")
def _():
    for temperature in (0, 1):
        parsed = ai.responses.parse(model="demo", input="Where?", text_format=Point, temperature=temperature, max_output_tokens=200)
        equal((parsed.status, type(parsed.output_parsed)), ("completed", Point))
    anything = create("Say.", text={"format": {"type": "json_object"}}, max_output_tokens=400)
    if anything.status == "completed":
        holds(isinstance(json.loads(anything.output_text), dict))
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    format = {"type": "json_schema", "name": "pick", "schema": schema, "strict": True}
    events = events_of(post({"stream": True, "text": {"format": format}, "max_output_tokens": 50}).body)
    last = check_stream(events)
    holds(json.loads(last["output"][0]["content"][0]["text"])["n"] in (1, 2))
    equal(last["text"]["format"], format)
    refusal("invalid_json_schema", "text.format", text={"format": {**format, "schema": {"type": "object", "extends": {}}}})
    refusal("unsupported_value", "text.format.type", text={"format": {"type": "yaml"}})


@test("tool_choice required, named and allowed_tools: calls of the allowed tools and nothing else")
def _():
    tools = [function("f", a={"type": "integer"}), function("g", b={"type": "boolean"})]
    named = {"type": "function", "name": "g"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for choice, names in (("required", {"f", "g"}), (named, {"g"}), (allowed, {"g"})):
        body = {"tools": tools, "tool_choice": choice, "max_output_tokens": 300, "parallel_tool_calls": False}
        last = check_stream(events_of(post({**body, "stream": True}).body))
        equal([i["type"] for i in last["output"]], ["function_call"], str(choice))
        call = last["output"][0]
        holds(call["name"] in names and isinstance(json.loads(call["arguments"]), dict))
        equal((last["status"], last["tool_choice"]), ("completed", choice))
        whole = post(body).json["output"][0]
        equal((whole["name"], whole["arguments"]), (call["name"], call["arguments"]))
    free = post({"tools": tools, "tool_choice": "none"}).json
    equal([i["type"] for i in free["output"]], ["message"])


@test("21: two calls of one function are two items with ids of their own")
def _():
    s = Server("--name", "demo", "--max-tool-calls", "2")
    only = function("f", a={"enum": [1]})
    only["parameters"] |= {"required": ["a"], "additionalProperties": False}
    body = {"tools": [only], "tool_choice": "required", "min_tokens": 200, "max_output_tokens": 400}
    events = events_of(post({**body, "stream": True}, s=s).body)
    for last in (check_stream(events), post(body, s=s).json):
        equal([(i["type"], i["name"], json.loads(i["arguments"])) for i in last["output"]], [("function_call", "f", {"a": 1})] * 2)
        equal((len({i["call_id"] for i in last["output"]}), len({i["id"] for i in last["output"]}), last["status"]), (2, 2, "completed"))
    equal(short(events), ["created", "in_progress", *FUNCTION, *FUNCTION, "completed"])
    s.stop()


@test("a failure in mid-stream: response.failed with what there is, then the end")
def _():
    s = Server("--name", "demo", "--drain", "0")
    stream = s.connect()
    body = json.dumps({"model": "demo", "input": "Count up.", "stream": True, "temperature": 2, "ignore_eos": True}).encode()
    stream.sendall(b"POST /v1/responses HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    data = b""
    while data.count(b"output_text.delta") < 4:
        data += stream.recv(65536)
    s.signal(signal.SIGTERM)
    while piece := stream.recv(65536):
        data += piece
    events = events_of(data.split(b"\r\n\r\n", 1)[1])
    last = events[-1]
    equal((last["type"], last["response"]["status"], last["response"]["error"]["code"]), ("response.failed", "failed", "server_error"))
    equal(check_stream(events)["output"][0]["status"], "incomplete")
    holds(last["response"]["usage"]["output_tokens"] > 0)
    equal(s.wait(), 0)
    s.stop()


@test("a client that leaves is noticed: nothing is computed for it, and its response says cancelled")
def _():
    s = Server("--name", "demo")
    stream = client(s).responses.create(model="demo", input="Count up.", stream=True, temperature=2, extra_body={"ignore_eos": True})
    id = next(stream).response.id
    stream.close()
    eventually(lambda: s.get(f"/v1/responses/{id}").json["status"] == "cancelled", "the response ends")
    eventually(lambda: s.get("/slots").json == [], "nothing runs")
    s.stop()


@test("many at once: each chain keeps to itself")
def _():
    def chain(i):
        first = create(f"Number {i} please.")
        second = create("Again.", previous_response_id=first.id)
        return first.output_text, second.output_text

    alone = [chain(i) for i in range(6)]
    results = [None] * 6
    threads = [threading.Thread(target=lambda i=i: results.__setitem__(i, chain(i))) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    equal(results, alone)


@test("36: stored responses outlive their server, with a directory: chains, items, deletions, owners; a server that is killed too")
def _():
    with tempfile.TemporaryDirectory() as path:
        options = ("--api-key", "one", "--api-key", "two", "--session-dir", path)
        s = scripted("Fine.", *options)
        one, two = client(s, api_key="one"), client(s, api_key="two")

        def ask(ai, input, **more):
            return ai.responses.create(model="demo", input=input, temperature=0, max_output_tokens=8, **more)

        first = ask(one, "a")
        second = ask(one, "b", previous_response_id=first.id)
        theirs = ask(two, "c")
        hidden = ask(one, "d", store=False)
        deleted = ask(one, "e")
        one.responses.delete(deleted.id)
        items = one.responses.input_items.list(second.id).data
        shared = scripted("Fine.", *options)  # another server on the directory, which was there in time
        eventually(lambda: found(client(shared, api_key="one"), second.id), "the file is there")
        s.process.kill()
        s.stop()
        for s in (shared, scripted("Fine.", *options)):
            one, two = client(s, api_key="one"), client(s, api_key="two")
            equal(one.responses.retrieve(second.id).model_dump(), second.model_dump())
            equal(one.responses.input_items.list(second.id).data, items)
            for who, what in ((two, second), (one, theirs), (one, hidden), (one, deleted)):
                holds(not found(who, what.id), what.id)
                try:
                    ask(who, "x", previous_response_id=what.id)
                    holds(False, "it is not there")
                except openai.BadRequestError as e:
                    equal((e.code, e.param), ("previous_response_not_found", "previous_response_id"))
            third = ask(one, "f", previous_response_id=second.id)
            whole = [user("a"), *first.output, user("b"), *second.output, user("f")]
            equal(third.usage.input_tokens, ask(one, whole).usage.input_tokens, "the whole chain")
            by_id = [user("a"), {"type": "item_reference", "id": first.output[0].id}, user("b")]
            equal(ask(one, by_id).usage.input_tokens, second.usage.input_tokens)
            one.responses.delete(third.id)
        one.responses.delete(second.id)
        holds(not found(client(shared, api_key="one"), second.id), "deleted on the other server")
        s.stop()
        shared.stop()


def found(ai, id):
    try:
        return ai.responses.retrieve(id).status
    except openai.NotFoundError:
        return None


@test("encrypted_content: a directory has one key: reasoning that an earlier server has sealed is read, that of others is not")
def _():
    with tempfile.TemporaryDirectory() as path:
        s = scripted(THOUGHT, "--session-dir", path)
        sealed = create(s=s, reasoning={"effort": "high"}, include=["reasoning.encrypted_content"]).output[0].encrypted_content
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": "1"}

        def count(s, **reasoning):
            body = {"input": [user("a"), {"type": "reasoning", "summary": [], **reasoning}, call, result], "reasoning": {"effort": "high"}}
            reply = s.post("/v1/responses/input_tokens", body)
            return reply.json["input_tokens"], reply.headers.get("x-kakeya-ignored")

        plain = count(s, content=[{"type": "reasoning_text", "text": "so it is"}])
        equal(count(s, encrypted_content=sealed), plain)
        s.stop()
        equal(oct(os.stat(os.path.join(path, "state.db")).st_mode & 0o777), "0o600")
        with open(os.path.join(path, "seal.key"), "wb") as f:
            f.write(b"k" * 32)
        s, other = scripted(THOUGHT, "--session-dir", path), scripted(THOUGHT)
        holds(f"{path}/seal.key is of an earlier version: it is not read, and can be deleted" in s.log(), s.log())
        equal(count(s, encrypted_content=sealed), plain)
        equal(count(other, encrypted_content=sealed)[1], "input[1].encrypted_content")
        s.stop()
        other.stop()


if __name__ == "__main__":
    run_tests()
