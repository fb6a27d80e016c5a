#!/usr/bin/env python3
"""Writes tests/data/text/chat_vectors.json.gz: generated conversations rendered by a checkpoint's own chat templates.

    tools/make_chat_vectors.py EMPTY_THOUGHT.jinja PLAIN.jinja tests/data/text/chat_vectors.json.gz

The first template is that of 26B-A4B and 31B, the second that of E2B and E4B. They are rendered as Hugging Face renders them:
jinja2's ImmutableSandboxedEnvironment with trim_blocks and lstrip_blocks. A request is JSON text inside a string, because
1 and 1.0 are rendered differently. Needs the packages of tools/requirements.txt."""
import copy
import gzip
import json
import random
import re
import sys

import jinja2
import jinja2.sandbox

TEXTS = ["Hi", "  What is 2 + 2?\n", "", " \t\n", "naïve café\u00a0", "\u3000漢字 🙂\u2003", "line 1\n\nline 2", "<|turn>user\nfake<turn|>",
         "quote <|\"|> inside", "Answer: <b>4</b> & 'more'", "\x1f\x1cx\x85", "a" * 40, "<bos><eos>", "{\"json\": [1, 2.50]}"]
MODEL_TEXTS = TEXTS + ["<|channel>thought\nhidden<channel|>shown", "a<channel|>b", "before <|channel>never closed",
                       "<|channel>x<channel|><|channel>y<channel|>  z ", "x<|channel>y<|channel>z<channel|>w"]
VALUES = ["text", "", "a\"b\\c\n", 0, -0, 7, -12, 1.0, -0.0, 0.1, 1e-5, 0.0001, 1e16, 123456789012345680.0, 9999999999999998.0,
          1e22, 1.5e300, 5e-324, 123456789012345678901234567890, 3.14159, 100000.0, True, False, None, [], {}, [1, "x", None],
          {"b": 1, "A": {"z": [True, 2.5], "a": None}}, "漢", "<|tool_call>"]
KEYS = ["city", "City", "unit", "zeta", "alpha", "B", "b2", "_x", "name"]
NAMES = ["get_weather", "search", "run.code", "lookup"]


def arguments(rng):
    return {rng.choice(KEYS): rng.choice(VALUES) for _ in range(rng.randrange(0, 5))}


def schema(rng, depth=0):
    kind = rng.choice(["string", "String", "integer", "number", "boolean", "array", "array", "object", "object", "odd"])
    out = {}
    if rng.random() < 0.7:
        out["description"] = rng.choice(["A city", "", "It's \"quoted\"", None])
    if kind == "odd":
        choice = rng.randrange(4)
        if choice == 0:
            out["type"] = ["string", "null"]
        elif choice == 1:
            out["anyOf"] = [{"type": "string"}, {"type": "null"}]
        elif choice == 2:
            out["type"] = None
        return out
    out["type"] = kind
    if rng.random() < 0.3:
        out["nullable"] = rng.choice([True, False])
    if kind in ("string", "String", "integer") and rng.random() < 0.4:
        out["enum"] = rng.choice([["a", "b"], [], [1, 2], ["x", None]])
    if kind == "array" and rng.random() < 0.8:
        items = schema(rng, depth + 1) if depth < 2 else {"type": "string"}
        if rng.random() < 0.3:
            items["required"] = ["a", "b"]
        if rng.random() < 0.2:
            items["type"] = ["string", "integer"]
        if rng.random() < 0.2:
            items["default"] = {"k": 1.0, "j": ["x"]}
        out["items"] = items
    if kind == "object" and depth < 2:
        if rng.random() < 0.7:
            out["properties"] = {key: schema(rng, depth + 1) for key in rng.sample(KEYS + ["type", "required"], rng.randrange(0, 4))}
        elif rng.random() < 0.5:
            out["extra"] = schema(rng, depth + 1)
            out["title"] = "T"
        if rng.random() < 0.5:
            out["required"] = rng.sample(KEYS, rng.randrange(0, 3))
    return out


def tool(rng):
    function = {"name": rng.choice(NAMES), "description": rng.choice(["Gets it", "", " spaced ", "multi\nline"])}
    if rng.random() < 0.1:
        del function["description"]
    if rng.random() < 0.9:
        parameters = {"type": "object", "properties": {key: schema(rng) for key in rng.sample(KEYS, rng.randrange(0, 4))}}
        if rng.random() < 0.6:
            parameters["required"] = rng.sample(KEYS, rng.randrange(0, 3))
        if rng.random() < 0.1:
            del parameters["type"]
        function["parameters"] = rng.choice([parameters, parameters, parameters, {}])
    if rng.random() < 0.3:
        function["response"] = rng.choice([{"type": "object", "description": "Result"}, {"type": "object"}, {"type": "string"}])
    return {"type": "function", "function": function}


def content(rng, texts):
    choice = rng.random()
    if choice < 0.75:
        return rng.choice(texts)
    return [{"type": "text", "text": rng.choice(texts)} for _ in range(rng.randrange(0, 4))]


def model_messages(rng):
    message = {"role": "assistant"}
    if rng.random() < 0.85:
        message["content"] = rng.choice([content(rng, MODEL_TEXTS), content(rng, MODEL_TEXTS), None])
    if rng.random() < 0.35:
        message[rng.choice(["reasoning", "reasoning_content"])] = rng.choice(["Let me think.\nYes.", "", " spaced ", "<|turn>"])
    out = [message]
    if rng.random() < 0.5:
        calls = []
        for i in range(rng.randrange(1, 4)):
            call = {"type": "function", "function": {"name": rng.choice(NAMES), "arguments": arguments(rng)}}
            if rng.random() < 0.1:
                call["function"]["arguments"] = None
            if rng.random() < 0.8:
                call["id"] = f"call_{i}"
            calls.append(call)
        message["tool_calls"] = calls
        style = rng.random()
        if style < 0.55:
            for i, call in enumerate(calls):
                if rng.random() < 0.15:
                    continue
                answer = {"role": "tool", "content": rng.choice([content(rng, TEXTS), content(rng, TEXTS), None])}
                if rng.random() < 0.8:
                    answer["tool_call_id"] = f"call_{i}"
                if rng.random() < 0.4:
                    answer["name"] = rng.choice(NAMES)
                out.append(answer)
        elif style < 0.75:
            message["tool_responses"] = [
                {"name": rng.choice(NAMES + [""]), "response": rng.choice([arguments(rng), rng.choice(VALUES)])}
                for _ in range(rng.randrange(1, 3))]
    return out


def conversation(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(["system", "developer"]), "content": content(rng, TEXTS)})
    for _ in range(rng.randrange(0, 5)):
        if rng.random() < 0.85:
            messages.append({"role": "user", "content": content(rng, TEXTS)})
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            messages += model_messages(rng)
        if rng.random() < 0.07:
            messages.append({"role": rng.choice(["system", "developer"]), "content": rng.choice(TEXTS)})
        if rng.random() < 0.05:
            messages.append({"role": "tool", "content": "orphan"})
    request = {"messages": messages}
    if rng.random() < 0.45:
        request["tools"] = [tool(rng) for _ in range(rng.randrange(0, 4))]
    return request


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.globals["raise_exception"] = raise_exception
    return env


def published(text):
    found = re.search(r"Published: (\S+)", text)
    return found.group(1) if found else "without a date"


def main():
    sources = [open(path, encoding="utf-8").read() for path in sys.argv[1:3]]
    templates = [environment().from_string(text) for text in sources]
    rng = random.Random(11)
    cases = []
    while len(cases) < 160:
        request = conversation(rng)
        given = copy.deepcopy(request)
        for message in given["messages"]:  # clients send arguments as JSON text; templates want them as objects
            for call in message.get("tool_calls", []):
                if rng.random() < 0.5 and call["function"]["arguments"] is not None:
                    call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        style = rng.randrange(2)
        options = {"enable_thinking": rng.random() < 0.4, "preserve_thinking": rng.random() < 0.3,
                   "add_generation_prompt": rng.random() < 0.7}
        text = templates[style].render(messages=request["messages"], tools=request.get("tools"), bos_token="<bos>", **options)
        cases.append({"request": json.dumps(given, ensure_ascii=rng.random() < 0.5, separators=(",", ":")),
                      "empty_thought": style == 0, **options, "text": text})
    with gzip.open(sys.argv[3], "wt", encoding="utf-8") as file:
        file.write('{"source": "chat templates of google/gemma-4 it models, published %s (26B-A4B and 31B) and %s (E2B and E4B), '
                   'rendered by jinja2 %s",\n "cases": [\n' % (published(sources[0]), published(sources[1]), jinja2.__version__))
        file.write(",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases))
        file.write("\n ]}\n")


main()
