"""OpenAI's Python client: answers with a form: tool calls, thoughts, schemas."""

import json
import re

from harness import APPLY_PATCH, Server, equal, holds, run_tests, test
from openai_harness import ai, ASK, body_text, chat, client, input_tokens, refusal, scripted, server, stream_text, text, tool


@test("7: a stop string that occurs only in the reasoning does nothing")
def _():
    s = scripted("<|channel>thought\nwe halt<channel|>fine.")
    answer = chat(s=s, stop="halt", reasoning_effort="high")
    equal((text(answer), answer.choices[0].message.reasoning_content, answer.choices[0].finish_reason), ("fine.", "we halt", "stop"))
    s.stop()


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


def declared(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


NEEDS_A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@test("what cannot be followed of one tool is left out at its place: other tools, and what stands around it, keep their form")
def _():
    odd = {"type": "object", "properties": {"a": {"type": "integer", "extends": {}}, "b": {"type": "null", "disallow": "any"}},
           "required": ["a"]}
    for name, tools in (("f", [declared("f", NEEDS_A), declared("g", odd)]), ("g", [declared("f", NEEDS_A), declared("g", odd)])):
        s = scripted("<|tool_call>call:%s{}<tool_call|>" % name)
        for choice in ("auto", "required", {"type": "function", "function": {"name": name}}):
            before = s.metric("kakeya_grammar_keywords_ignored_total")
            reply = s.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "temperature": 0, "max_tokens": 120, "tools": tools,
                                                    "tool_choice": choice})
            equal(reply.status, 200, reply.body)
            called = reply.json["choices"][0]["message"]["tool_calls"][0]["function"]
            equal((called["name"], type(json.loads(called["arguments"])["a"])), (name, int), choice)
            if choice == {"type": "function", "function": {"name": "f"}}:
                continue
            equal(reply.headers["x-kakeya-ignored"],
                  "tools[1].parameters#/properties/a/extends, tools[1].parameters#/properties/b/disallow")
            equal(s.metric("kakeya_grammar_keywords_ignored_total"), before + 2)
        s.stop()
    for choice in ("auto", "required"):
        refused = refusal("invalid_json_schema", "tools", tools=[declared("g", odd, strict=True)], tool_choice=choice)
        holds("tools[0].parameters #/properties/a/extends" in refused, refused)
    strict = Server("--name", "demo", "--strict")
    refused = strict.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "tools": [declared("g", odd)]})
    equal((refused.status, refused.json["error"]["code"]), (400, "invalid_json_schema"))
    strict.stop()


@test("a tool whose declaration makes no sense takes any object, and is named; the others keep their form")
def _():
    s = scripted("<|tool_call>call:f{}<tool_call|>")
    for parameters in ({"type": "array"}, {"$ref": "#/$defs/none"}, {"type": "object", "required": ["x"], "properties": {"x": False}}):
        reply = s.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "temperature": 0, "max_tokens": 120,
                                                "tools": [declared("f", NEEDS_A), declared("g", parameters)]})
        equal(reply.status, 200, reply.body)
        equal(type(json.loads(reply.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])["a"]), int, parameters)
        holds(reply.headers["x-kakeya-ignored"].startswith("tools[1].parameters#"), reply.headers)
    s.stop()


def custom(syntax=None, definition=None, name="patch"):
    made = {"name": name, "description": "Patches files."}
    if syntax:
        made["format"] = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": made}


PATCH = re.compile(r"\*\*\* Begin Patch\n(\*\*\* (Add File: .+\n(\+.*\n)+|Delete File: .+\n|Update File: .+\n(\*\*\* Move to: .+\n)?"
                   r"((@@( .+)?\n|[-+ ].*\n)+(\*\*\* End of File\n)?)?))+\*\*\* End Patch\n?")


def custom_call(tools, choice="required", **options):
    """The same call whole and streamed; returns it, its finish reason and the message."""
    options = {"tools": tools, "tool_choice": choice, "temperature": 1, "parallel_tool_calls": False, "max_tokens": 60, **options}
    answer = chat(**options).choices[0]
    call, = answer.message.tool_calls
    equal((call.type, call.custom.name), ("custom", "patch"))
    chunks = [c.choices[0] for c in chat(stream=True, **options) if c.choices]
    deltas = [d.to_dict() for c in chunks for d in c.delta.tool_calls or []]
    equal({k: v for k, v in deltas[0].items() if k != "id"}, {"index": 0, "type": "custom", "custom": {"name": "patch", "input": ""}})
    holds(deltas[0]["id"].startswith("call_"), deltas)
    equal([set(d) for d in deltas[1:]], [{"index", "custom"}] * (len(deltas) - 1))
    equal("".join(d["custom"]["input"] for d in deltas), call.custom.input)
    equal(chunks[-1].finish_reason, answer.finish_reason)
    return call, answer.finish_reason, answer.message


@test("20e: custom tools: calls of type custom, whose text follows the grammar, whole and streamed, and they come back")
def _():
    digits = 'start: "<" pair+ ">"\npair: /[0-9]/ "-" pair? "+"\n'
    forms = (("regex", "(ab|cd){2,5}e?", re.compile("(ab|cd){2,5}e?")), ("lark", digits, re.compile(r"<(\d-)+[-+\d]*\+>")),
             ("lark", APPLY_PATCH, PATCH), ("regex", "x?", re.compile("x?")))
    ended = dict.fromkeys(range(len(forms)), 0)
    for i, (syntax, definition, expected) in enumerate(forms):
        for seed in range(60):
            if seed >= 6 and ended[i]:  # an answer may be long; which seeds end in time is a matter of rounding
                break
            call, finish, _ = custom_call([custom(syntax, definition)], seed=seed, max_tokens=150)
            ended[i] += finish == "tool_calls"
            if finish == "tool_calls":
                holds(expected.fullmatch(call.custom.input), (definition, seed, call.custom.input))
                equal(call.custom.input.count("-"), call.custom.input.count("+")) if definition == digits else None
    holds(all(ended.values()), ended)
    tools = [tool("other", a={"type": "integer"}), custom("regex", "[a-d]{3,8}")]
    for choice in ({"type": "custom", "custom": {"name": "patch"}}, {"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}}):
        call, finish, message = custom_call(tools, choice, seed=3)
        holds(re.fullmatch("[a-d]{3,8}", call.custom.input), call)
    first = chat(tools=tools, tool_choice=choice, temperature=1, seed=3).usage
    history = [*ASK, message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    again = chat(history, tools=tools, max_tokens=1).usage
    holds(again.prompt_tokens_details.cached_tokens >= first.total_tokens - 1, (first, again))
    plain = {"id": "c", "type": "function", "function": {"name": "patch", "arguments": json.dumps({"input": call.custom.input})}}
    equal(input_tokens(history), input_tokens([*ASK, {"role": "assistant", "content": None, "tool_calls": [plain]},
                                               {**history[-1], "tool_call_id": "c"}]))
    call, finish, _ = custom_call([custom()], seed=1, max_tokens=30)
    equal(finish, "length", "what is there of a text that was cut")
    holds(call.custom.input, call)
    begin = server.post("/tokenize", {"content": "<|tool_call>"}).json["tokens"][-1]
    made = chat(tools=[tool("other"), custom("regex", "[ab]{3}")], logit_bias={begin: 100}, parallel_tool_calls=False,
                max_tokens=200).choices[0]
    equal(made.finish_reason, "tool_calls", "unasked, too")
    holds(made.message.tool_calls[0].type == "function" or re.fullmatch("[ab]{3}", made.message.tool_calls[0].custom.input), made)


@test("20f: a custom tool whose format cannot be followed is refused by name, on both APIs, forced or not")
def _():
    for syntax, definition, said in (("lark", "start: /a", "tools[1].format: grammar, line 1"),
                                     ("lark", "start: other\n", "tools[1].format: grammar, line 1"),
                                     ("lark", 'start: "a" start2\nstart2: start2 "b"\n', "tools[1].format: grammar"),
                                     ("regex", "a(b", "tools[1].format: regular expression"),
                                     ("regex", r"(a)\1", "tools[1].format: regular expression")):
        for more in ({}, {"tool_choice": "required"}):
            message = refusal("invalid_json_schema", "tools", tools=[tool("other"), custom(syntax, definition)], **more)
            holds(message.startswith(said), message)
            flat = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": syntax, "definition": definition}}
            reply = server.post("/v1/responses", {"model": "demo", "input": "Hi", "tools": [
                {"type": "function", "name": "other"}, flat], **more})
            equal((reply.status, reply.error["message"].startswith(said)), (400, True), reply.body)
    for form, code in ((7, "invalid_type"), ({"type": "json"}, "unsupported_value"), ({}, "unsupported_value"),
                       ({"type": "grammar", "grammar": {"syntax": "gbnf", "definition": "x"}}, "unsupported_value"),
                       ({"type": "grammar", "grammar": {"syntax": "lark"}}, "missing_required_parameter")):
        refusal(code, "tools[0].custom.format", tools=[{"type": "custom", "custom": {"name": "f", "format": form}}])
    refusal("invalid_type", "tools[0].custom", tools=[{"type": "custom"}])
    refusal("invalid_type", "tools[0].custom", tools=[{"type": "custom", "custom": {"name": "f", "description": 5}}])
    refusal("invalid_value", "tools[0]", tools=[{"type": "custom", "custom": {"name": "no name"}}])
    refusal("unsupported_value", "tools[0]", tools=[{"type": "custom tool", "custom": {"name": "f"}}])
    refusal("invalid_value", "tool_choice", tools=[custom()], tool_choice={"type": "custom", "custom": {"name": "missing"}})
    refusal("invalid_type", "messages[1].tool_calls[0]", messages=[*ASK, {"role": "assistant", "tool_calls": [
        {"id": "c", "type": "custom", "custom": {"name": "f"}}]}])
    for form in (None, {"type": "text"}):
        equal(server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 1, "tools": [
            {"type": "custom", "custom": {"name": "f", "format": form}}]}).status, 200, form)


@test("20b: without tools, or with tool_choice none, a model that wants to call cannot, in chats alone")
def _():
    s = scripted("So." + CALL)
    begin = s.post("/tokenize", {"content": "<|tool_call>"}).json["tokens"][-1]
    for body in ({}, {"tools": [tool(a={"type": "integer"})], "tool_choice": "none"}, {"temperature": 1, "seed": 3},
                 {"logprobs": True}):
        body = {"model": "demo", "messages": ASK, "max_tokens": 6, "temperature": 0, "return_token_ids": True, **body}
        answer = s.post("/v1/chat/completions", body)
        equal(answer.status, 200, answer.body)
        choice = answer.json["choices"][0]
        equal((choice["message"].get("tool_calls"), begin in choice["token_ids"]), (None, False), choice)
        stream = s.post("/v1/chat/completions", {**body, "stream": True}).body
        holds(b'"tool_calls"' not in stream, stream)
    answer = s.post("/v1/messages", {"model": "demo", "messages": ASK, "max_tokens": 6, "temperature": 0}).json
    equal([block["type"] for block in answer["content"]], ["text"])
    answer = s.post("/v1/responses", {"model": "demo", "input": "Hi", "max_output_tokens": 16, "temperature": 0}).json
    equal([item["type"] for item in answer["output"]], ["message"])
    free = s.post("/v1/completions", {"model": "demo", "prompt": "\n", "max_tokens": 12, "temperature": 0}).json
    holds(free["choices"][0]["text"].startswith("So.call:f"), free)
    called = chat(s=s, tools=[tool(a={"type": "integer"})]).choices[0]
    equal(called.finish_reason, "tool_calls", "with tools it calls them")
    s.stop()


@test("20d: every token of content has its log-probability, whatever ended the channel before it, and no token of a thought has one")
def _():
    more = {"logprobs": True, "reasoning_effort": "high"}
    for script, content in (("<|channel>thought\nHm.<channel|>Yes.", "Yes."), ("<|channel>odd one<|turn>So it goes.", "odd oneSo it goes."),
                            ("Oh.<|channel>plan\nsum up<channel|>Done.", "Oh.Done."), ("<|channel>thou<channel|>Right.", "Right."),
                            ("<|channel>thought\nHm.<|tool_call>call:f{}<tool_call|>Then.", "Then."),
                            ("<|channel>so it<|tool_call>call:f{}<tool_call|>Then.", "so itThen."),
                            ("Oh <|channel>thought\nHm.<channel|>well.", "Oh well."), ("<|channel>thought\nHm.<|turn>model!", "model!")):
        s = scripted(script)
        for tools in ({"tools": [tool(a={"type": "integer"})]},) if "call" in script else ({}, {"tools": [tool(a={"type": "integer"})]}):
            choice = chat(s=s, **more, **tools).choices[0]
            holds(choice.message.content.startswith(content), (script, choice.message.content))
            equal("".join(entry.token for entry in choice.logprobs.content), choice.message.content, script)
            streamed = [c.choices[0] for c in chat(s=s, stream=True, **more, **tools) if c.choices]
            equal("".join(c.delta.content or "" for c in streamed), choice.message.content)
            equal("".join(e.token for c in streamed if c.logprobs for e in c.logprobs.content), choice.message.content, script)
        s.stop()


@test("20c: what lies between the markers of a channel is reasoning, whatever its label, streamed or not, on every route")
def _():
    s = scripted("<|channel>plan\nsum up<channel|>Done.")
    answer = chat(s=s, reasoning_effort="high").choices[0].message
    equal((answer.content, answer.reasoning_content), ("Done.", "sum up"))
    chunks = [c.choices[0].delta for c in chat(s=s, reasoning_effort="high", stream=True) if c.choices]
    equal("".join(d.content or "" for d in chunks), "Done.")
    equal("".join(getattr(d, "reasoning_content", None) or "" for d in chunks), "sum up")
    body = {"model": "demo", "messages": ASK, "max_tokens": 2000, "temperature": 0,
            "thinking": {"type": "enabled", "budget_tokens": 1024}}
    blocks = s.post("/v1/messages", body).json["content"]
    equal([(b["type"], b.get("thinking") or b.get("text")) for b in blocks], [("thinking", "sum up"), ("text", "Done.")])
    body = {"model": "demo", "input": "Hi", "max_output_tokens": 40, "temperature": 0, "reasoning": {"effort": "high"}}
    output = s.post("/v1/responses", body).json["output"]
    equal([item["type"] for item in output], ["reasoning", "message"])
    equal(output[1]["content"][0]["text"], "Done.")
    s.stop()
    s = scripted("<|channel>final\nDone.")
    equal(chat(s=s, reasoning_effort="high").choices[0].message.content, "final\nDone.", "a marker that nothing closes")
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
    script = "<|tool_call>call:f{b:{},a:34}<tool_call|>"
    tools = [tool(b={"type": "object"}, a={"type": "integer"})]
    seen, accepted = [], {}
    for name in ("drafts", "token by token"):
        s = scripted(script)
        # the second time the conversation itself foretells what the model says
        first = s.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "temperature": 0, "max_tokens": 40,
                                                 "tools": tools}).json
        call = first["choices"][0]["message"]["tool_calls"][0]
        talk = [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": "1"}, *ASK]
        body = {"model": "demo", "messages": talk, "temperature": 0, "max_tokens": 40, "stream": True, "tools": tools,
                "stream_options": {"include_usage": True}}
        if name != "drafts":  # what is foretold depends on what the whole text has seen: here nothing of the kind
            body["messages"] = [{"role": "user", "content": "x"}]
        reply = s.post("/v1/chat/completions", body)
        calls, _ = call_deltas(reply.body)
        seen.append(calls)
        timings = [json.loads(x[6:])["timings"] for x in reply.body.decode().split("\n\n") if '"timings"' in x][-1]
        accepted[name] = timings["draft_n_accepted"], timings["predicted_n"] / timings["verifier_forwards"]
        s.stop()
    equal(seen[0], {0: {"name": "f", "arguments": '{"b":{},"a":34}'}})
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


@test("33: response formats that are none are refused")
def _():
    refusal("missing_required_parameter", "response_format.type", response_format={})
    refusal("unsupported_value", "response_format.type", response_format={"type": "xml"})


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


run_tests()
