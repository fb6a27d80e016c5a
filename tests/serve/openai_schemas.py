"""OpenAI's Python client: schemas. The twenty of tests/unit/test_grammar_answers.c: all that docs/reference/grammar.md lists."""

import json
import re

import jsonschema

from harness import SHORT, WHOLE, Server, equal, holds, in_threads, run_tests, test
from openai_harness import ASK, body_text, chat, client, refusal, scripted, server, stream_text

SCHEMAS = [json.loads(s) for s in [
    r'''{"type":"object","properties":{"name":{"type":"string","maxLength":20},"age":{"type":"integer","minimum":0,"maximum":120}},'''
    r'''"required":["name","age"],"additionalProperties":false}''',
    r'''{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}''',
    r'''{"enum":["red","green","blue",null,42]}''',
    r'''{"type":"array","items":{"type":"integer","minimum":1,"maximum":99},"minItems":1,"maxItems":5}''',
    r'''{"type":"array","prefixItems":[{"type":"boolean"},{"enum":["x","y"]}],"items":false,"minItems":2}''',
    r'''{"anyOf":[{"type":"boolean"},{"type":"null"},{"type":"integer","exclusiveMinimum":5,"exclusiveMaximum":8}]}''',
    r'''{"type":"object","properties":{"kind":{"const":"circle"},"radius":{"type":"number","exclusiveMinimum":0,"maximum":10}},'''
    r'''"required":["kind","radius"]}''',
    r'''{"oneOf":[{"type":"object","properties":{"t":{"const":1},"a":{"type":"boolean"}},"required":["t","a"]},{"type":"object",'''
    r'''"properties":{"t":{"const":2},"b":{"type":"null"}},"required":["t","b"]}]}''',
    r'''{"type":"string","pattern":"^[A-Z]{2}-[0-9]{3}$"}''',
    r'''{"type":"string","minLength":3,"maxLength":8}''',
    r'''{"type":"string","pattern":"^(yes|no)$"}''',
    r'''{"type":"object","properties":{"value":{"type":"integer","minimum":0,"maximum":9},"next":{"anyOf":[{"$ref":"#"},'''
    r'''{"type":"null"}]}},"required":["value","next"]}''',
    r'''{"$defs":{"p":{"type":"object","properties":{"x":{"type":"number","minimum":-1,"maximum":1},"y":{"type":"number","minimum":-1,'''
    r'''"maximum":1}},"required":["x","y"]}},"type":"array","items":{"$ref":"#/$defs/p"},"maxItems":2}''',
    r'''{"allOf":[{"type":"object","properties":{"id":{"type":"integer","minimum":1}},"required":["id"]},'''
    r'''{"properties":{"id":{"maximum":12},"tag":{"enum":["a","b"]}},"required":["tag"]}]}''',
    r'''{"type":["null","boolean"]}''',
    r'''{"type":"object","additionalProperties":{"type":"boolean"},"maxProperties":1}''',
    r'''{"type":"object","properties":{"a b":{"type":"null"},"c\"d":{"type":"null"}},"required":["c\"d"]}''',
    r'''{"type":"array","items":{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2},"minItems":2,"maxItems":2}''',
    r'''{"type":"object","properties":{"when":{"type":"string","format":"date-time"},"id":{"type":"string","format":"uuid"}},'''
    r'''"required":["when","id"]}''',
    r'''{"type":"object","properties":{"reasoning":{"type":"string","maxLength":40},"answer":{"type":"string","nullable":true,'''
    r'''"maxLength":10},"confidence":{"type":"number","minimum":0,"maximum":1}},"required":["reasoning","answer","confidence"]}''',
]]


def of(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def in_order(schema, value):
    """The keys of objects come in the order of their schema's properties."""
    if isinstance(value, dict) and "properties" in schema:
        known = [k for k in value if k in schema["properties"]]
        equal(known, [k for k in schema["properties"] if k in value], value)
        for k in known:
            in_order(schema["properties"][k], value[k])


def nullable(schema):
    """`nullable` of OpenAPI as JSON Schema has it."""
    if isinstance(schema, list):
        return [nullable(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {k: nullable(v) for k, v in schema.items() if k != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


@test("31: twenty schemas at temperature 0 and 1: every complete answer validates, keys in the order of the schema, streamed the same")
def _():
    complete = answers = 0
    for i, schema in enumerate(SCHEMAS):
        for temperature in ((0, 1) if WHOLE else (i % 2,)):
            options = {"response_format": of(schema), "temperature": temperature, "seed": i, "max_tokens": 160}
            choice = chat(**options).choices[0]
            answers += 1
            holds(not re.search(r"\n\s*\n|\s{22}", choice.message.content), choice.message.content)
            if (i + temperature) % 4 == 0:
                equal(stream_text(chat(stream=True, **options)), choice.message.content, i)
            if choice.finish_reason != "stop":
                equal(choice.finish_reason, "length")
                continue
            value = json.loads(choice.message.content)
            jsonschema.Draft202012Validator(nullable(schema)).validate(value)
            in_order(schema, value)
            complete += 1
    holds(complete > answers // 2, f"{complete} of {answers} are complete")


UNSUPPORTED = {
    "extends": {"type": "string"}, "disallow": "string", "multipleOf": 123456.789,
    "$ref": "https://example.com/x.json", "pattern": "(a)\\1", "not": {"prefixItems": [{"type": "string"}]}}


@test("33: each keyword that is not supported is refused with its pointer")
def _():
    kinds = {"multipleOf": "integer", "pattern": "string", "not": "array"}
    for keyword, value in UNSUPPORTED.items():
        inner = {keyword: value} if keyword == "$ref" else {"type": kinds.get(keyword, "object"), keyword: value}
        deep = {"type": "object", "properties": {"deep": {"type": "array", "items": inner}}}
        message = refusal("invalid_json_schema", "response_format", response_format=of(inner if keyword == "not" else deep))
        holds("/properties/deep/items" in message or keyword == "not" and "#/not/prefixItems" in message, f"{keyword}: {message}")


@test("33: formats that no standard defines are annotations: followed by all that stands around them, and named")
def _():
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 1, "response_format": of(
        {"type": "object", "properties": {"a": {"type": "string", "format": "password"}}})})
    equal((reply.status, reply.headers["x-kakeya-ignored"]), (200, "schema#/properties/a/format"))


@test("rules in GBNF and in Lark's syntax make the answer, in every field that brings them")
def _():
    gbnf, lark = 'root ::= "a" [0-9]{2} tail\ntail ::= "(" tail? ")"', 'start: "a" /[0-9]{2}/ tail\ntail: "(" tail? ")"\n'
    for body in ({"grammar": gbnf}, {"guided_grammar": lark}, {"structured_outputs": {"grammar": lark}}):
        reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 80, "temperature": 0, **body})
        equal(reply.status, 200, reply.body)
        holds(re.fullmatch(r"a[0-9]{2}\(+\)*", reply.json["choices"][0]["message"]["content"]), reply.body)
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "grammar": "root ::= x"})
    equal((reply.status, reply.json["error"]["param"]), (400, "grammar"))
    holds("line 1: there is no rule x" in reply.json["error"]["message"], reply.body)


@test("raw completions take every form that chat completions take, for each of their prompts, streamed or not")
def _():
    schema = {"type": "object", "properties": {"b": {"enum": [1, 2]}, "a": {"const": "x"}}, "required": ["a", "b"]}
    whole = r'\{\s*"b": ?[12],\s*"a": ?"x"\s*\}'
    forms = [({"response_format": of(schema)}, whole), ({"response_format": {"type": "json_object", "schema": schema}}, whole),
             ({"json_schema": schema}, whole), ({"guided_json": json.dumps(schema)}, whole),
             ({"structured_outputs": {"json": schema}}, whole),
             ({"guided_regex": "[ab]{3}"}, "[ab]{3}"), ({"structured_outputs": {"regex": "x+y"}}, "x+y"),
             ({"guided_choice": ["yes", "no"]}, "yes|no"), ({"structured_outputs": {"choice": ["one"]}}, "one"),
             ({"grammar": 'root ::= "a" [0-9]{2}'}, "a[0-9]{2}"), ({"guided_grammar": 'start: "a" /[0-9]{2}/'}, "a[0-9]{2}"),
             ({"structured_outputs": {"grammar": 'root ::= "<" [a-c] ">"'}}, "<[a-c]>")]
    body = {"model": "demo", "prompt": ["Say:", "Then:"], "max_tokens": 120, "temperature": 1, "seed": 3, "n": 2, "logprobs": 1}
    for form, expected in forms:
        reply = server.post("/v1/completions", {**body, **form})
        equal((reply.status, reply.headers.get("x-kakeya-ignored")), (200, None), reply.body)
        choices = reply.json["choices"]
        equal([c["index"] for c in choices], [0, 1, 2, 3])
        for choice in choices:
            holds(choice["finish_reason"] == "length" or re.fullmatch(expected, choice["text"]), (form, choice["text"]))
    told = {}
    for chunk in client().completions.create(**{**body, "logprobs": None}, stream=True, extra_body=forms[5][0]):
        for choice in chunk.choices:
            told[choice.index] = told.get(choice.index, "") + choice.text
    equal([bool(re.fullmatch("[ab]{3}", told[i])) for i in range(4)], [True] * 4, told)
    refused = [({"grammar": "root ::= x"}, "grammar"), ({"guided_regex": "("}, "guided_regex"), ({"guided_json": 3}, "guided_json"),
               ({"guided_choice": [], "guided_regex": "a"}, "guided_choice"), ({"json_schema": {}, "guided_regex": "a"}, "guided_regex"),
               ({"response_format": of({"extends": {}})}, "response_format")]
    for form, param in refused:
        reply = server.post("/v1/completions", {**body, **form})
        equal((reply.status, reply.json["error"]["param"]), (400, param), reply.body)
    reply = server.post("/v1/completions", {**body, "strict_order": False, "response_format": of(schema)})
    equal(reply.status, 200, reply.body)


@test("strict_order: false allows members in any order, and undeclared ones")
def _():
    s = scripted('{"b":1')  # what follows is the model's own business
    body = {"model": "demo", "messages": ASK, "temperature": 0, "max_tokens": 60, "response_format": of(
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]})}
    for strict, first in ((False, "b"), (True, "a")):
        said = s.post("/v1/chat/completions", {**body, "strict_order": strict}).json["choices"][0]["message"]["content"]
        holds(re.match(r'\{\s*"%s"' % first, said), (strict, said))
    s.stop()


@test("33: schemas without a value")
def _():
    refusal("invalid_json_schema", "response_format", response_format=of(False))


@test("33: as many schemas as there may be, and one more; references that lead back to themselves")
def _():
    def wide(n):  # the object, and its properties
        return of({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(n - 1)}})
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 1, "response_format": wide(5000)})
    equal(reply.status, 200, reply.body[:300])
    message = refusal("invalid_json_schema", "response_format", response_format=wide(5001))
    holds("5000" in message, message)
    node = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "additionalProperties": False, "required": ["n"], "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"$ref": "#/$defs/node"}}}}}
    holds(re.match(r'\{\s*"n"\s*:\s*\d', body_text(response_format=of(node), temperature=0)[0]))
    refusal("invalid_json_schema", "response_format", response_format=of({"$ref": "#"}))
    refusal("invalid_json_schema", "response_format", response_format=of({"$ref": "#/$defs/none"}))


@test("34: constrained, drafted, eight at once: the tokens that each has alone without drafts")
def _():
    bodies = [{"model": "demo", "messages": [{"role": "user", "content": f"# case {i}: give an example as JSON"}],
               "response_format": of(schema), "temperature": i % 2, "seed": i, "max_tokens": 60, "return_token_ids": True}
              for i, schema in enumerate(SCHEMAS)]

    def tokens(s, body):
        return s.post("/v1/chat/completions", body).json["choices"][0]["token_ids"]

    plain, batch = Server("--name", "demo", "--drafter", "none"), Server("--name", "demo", "--max-batch", "8")
    for first in range(0, 8 if SHORT else 16, 8):
        expected = [tokens(plain, b) for b in bodies[first:first + 8]]
        equal(in_threads([lambda b=b: tokens(batch, b) for b in bodies[first:first + 8]]), expected)
    holds(batch.metric("kakeya_draft_tokens_accepted_total") > 0, "drafts were accepted")
    plain.stop()
    batch.stop()


run_tests()
