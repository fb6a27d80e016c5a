"""Random texts of compiled schemas, judged by Python's jsonschema: each is valid, none has a key twice, nothing leads nowhere."""

import copy
import json
import os
import random
import re
import subprocess

import jsonschema

from harness import BUILD, MODELS, SHORT, WHOLE, holds, run_tests, test

STRINGS = ["", "a", "ab", "b c", "x-1", "é", "\"", "2024-02-29"]
NUMBERS = [0, 1, 2, 3, 5, 7, 10, 100, -1, -5, 0.5, 2.5, -0.25]
PATTERNS = ["^a", "b$", "^[a-z]{2,4}$", "^(ab|c)+$", "x", "^.{1,300}$", "^(?!a)[a-c]*$", "\\d", "^[^\"]*$", "\\bb\\b", "^(?:(?!ab)[a-c])*$",
            "a(?=b|$)", "(?<!a)b", "(?i:^[a-c\u00e9]+$)", "(?i:\u00e9a?)", "(?s:^a.b?$)"]
# without relative-json-pointer, of which jsonschema refuses numbers with a zero inside, and uri-template, of which its library knows
# neither names with %XX nor prefixes of four digits
FORMATS = ["date-time", "date", "time", "duration", "uuid", "email", "ipv4", "ipv6", "uri", "hostname", "uri-reference", "json-pointer",
           "regex", "iri", "password"]
KEYS = ["a", "b", "ab", "x-1", "é"]


class Schemas:
    """Schemas of every keyword; most of them have a value."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def value(self, depth=2):
        kind = self.r.randrange(8 if depth else 5)
        if kind < 2:
            return self.r.choice(STRINGS)
        if kind < 4:
            return self.r.choice(NUMBERS)
        if kind == 4:
            return self.r.choice([True, False, None])
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.r.randrange(3))]
        return {k: self.value(depth - 1) for k in self.r.sample(KEYS, self.r.randrange(3))}

    def some(self, share):
        return self.r.random() < share

    def number(self):
        s = {"type": self.r.choice(["integer", "number", "number"])}
        low = self.r.choice(NUMBERS)
        if self.some(.5):
            s[self.r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.some(.4):
            s[self.r.choice(["maximum", "exclusiveMaximum"])] = low + self.r.choice([1, 2, 10, 0.5, 1000])
        if self.some(.3):
            s["multipleOf"] = self.r.choice([1, 2, 3, 5, 7, 10, 0.5, 0.25])
        return s

    def string(self):
        s = {"type": "string"}
        if self.some(.3):
            s["minLength"] = self.r.randrange(4)
        if self.some(.3):
            s["maxLength"] = self.r.choice([3, 6, 20, 300])
        if self.some(.4):
            s["pattern"] = self.r.choice(PATTERNS)
        elif self.some(.5):
            s["format"] = self.r.choice(FORMATS)
        return s

    def array(self, depth):
        s = {"type": "array"}
        if self.some(.7):
            s["items"] = self.schema(depth - 1)
        if self.some(.3):
            s["prefixItems"] = [self.schema(depth - 1) for _ in range(1 + self.r.randrange(2))]
        if self.some(.3):
            s["minItems"] = self.r.randrange(3)
        if self.some(.4):
            s["maxItems"] = self.r.choice([1, 2, 4])
        if "items" not in s and self.some(.3):
            s["unevaluatedItems"] = self.r.choice([False, self.schema(depth - 1)])
        if self.some(.2):
            s["uniqueItems"] = True
            if self.some(.7):
                s["items"] = self.schema(0)
        if self.some(.2):
            s["contains"] = self.schema(depth - 1)
            if self.some(.5):
                s["minContains"] = self.r.randrange(3)
            if self.some(.5):
                s["maxContains"] = self.r.randrange(4)
        return s

    def object(self, depth):
        s = {"type": "object"}
        names = self.r.sample(KEYS, self.r.randrange(4))
        if names:
            s["properties"] = {k: self.schema(depth - 1) for k in names}
        if self.some(.5):
            s["required"] = self.r.sample(KEYS, self.r.randrange(3))
        if self.some(.3):
            s["patternProperties"] = {self.r.choice(PATTERNS): self.schema(depth - 1) for _ in range(1 + self.r.randrange(2))}
        if self.some(.4):
            s[self.r.choice(["additionalProperties", "additionalProperties", "unevaluatedProperties"])] = self.r.choice(
                [False, True, self.schema(depth - 1)])
        if self.some(.2):
            s["propertyNames"] = self.r.choice([{"pattern": self.r.choice(PATTERNS)}, {"enum": KEYS[:3]}, {"maxLength": 3}])
        if self.some(.2):
            s["minProperties"] = self.r.randrange(3)
        if self.some(.2):
            s["maxProperties"] = 1 + self.r.randrange(3)
        if self.some(.2):
            s["dependentRequired"] = {self.r.choice(KEYS): self.r.sample(KEYS, 1)}
        return s

    def plain(self, depth):
        kind = self.r.randrange(10)
        if kind < 2:
            return self.number()
        if kind < 4:
            return self.string()
        if kind == 4:
            return {"type": self.r.sample(["null", "boolean", "integer", "string"], 2)}
        if kind == 5:
            return self.r.choice([{"enum": [self.value() for _ in range(1 + self.r.randrange(5))]}, {"const": self.value()}])
        if depth == 0:
            return self.string()
        return self.array(depth) if kind == 6 else self.object(depth)

    def schema(self, depth):
        s = self.plain(depth)
        if depth == 0 or self.some(.6):
            return self.r.choice([s, s, s, s, {"$ref": "#/$defs/t"}]) if self.some(.4) else s
        kind = self.r.randrange(8)
        if kind == 0:
            s["not"] = self.plain(depth - 1)
        elif kind == 1:
            s["allOf"] = [self.plain(depth - 1) if self.some(.3) else {k: v for k, v in self.plain(depth - 1).items() if k != "type"}]
        elif kind == 2:
            s = {"anyOf": [s, self.schema(depth - 1)]}
        elif kind == 3:
            s = {"oneOf": [s, self.schema(depth - 1)]}
        elif kind == 4:
            s.update({"if": self.plain(depth - 1), "then": self.plain(depth - 1)})
        elif kind == 5:
            s = {"$ref": "#/$defs/t", **({k: v for k, v in s.items() if k != "type"} if self.some(.5) else {})}
        elif kind == 6:
            s["anyOf"] = [{k: v for k, v in self.plain(depth).items() if k != "type"} for _ in range(2)]
        else:
            s["enum"] = [self.value() for _ in range(6)]
        return s

    def document(self):
        s = self.schema(3)
        s["$defs"] = {"t": self.schema(2)}
        s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        return s


def once(pairs):
    keys = [k for k, _ in pairs]
    holds(len(keys) == len(set(keys)), f"a key is there twice: {keys}")
    return dict(pairs)


def pattern_as_python(text):
    return text.replace(r"\b", "(?a:\\b)").replace("$", r"\Z").replace(r"\d", "[0-9]").replace("^.{", "^[^\n\r\u2028\u2029]{")


def as_python(schema):
    """The schema with ECMAScript's patterns as Python means them."""
    if isinstance(schema, list):
        return [as_python(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            out[key] = pattern_as_python(value)
        elif key == "patternProperties":
            out[key] = {pattern_as_python(k): as_python(v) for k, v in value.items()}
        else:
            out[key] = as_python(value)
    return out


CHECKER = copy.copy(jsonschema.Draft202012Validator.FORMAT_CHECKER)
CHECKER.checkers = dict(CHECKER.checkers)
for name in ("time", "date-time"):  # its validator knows no leap seconds: the second before stands for them
    CHECKER.checkers[name] = (lambda value, check=CHECKER.checkers[name][0]: check(
        re.sub(r":60", ":59", value) if isinstance(value, str) else value), CHECKER.checkers[name][1])
for name in ("iri", "iri-reference"):  # its library knows no letters beyond U+FFFF, which RFC 3987 allows: another one stands for them
    CHECKER.checkers[name] = (lambda value, check=CHECKER.checkers[name][0]: check(
        re.sub("[\U00010000-\U0001fffd]", "\u00e9", value) if isinstance(value, str) else value), CHECKER.checkers[name][1])


def judge(schema, text):
    """False: the judge follows a reference that leads to itself without an end."""
    try:
        value = json.loads(text, object_pairs_hook=once)
        validator = jsonschema.Draft202012Validator(as_python(schema), format_checker=CHECKER)
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except RecursionError:
        return False
    except (AssertionError, ValueError) as wrong:
        error = wrong
    holds(error is None, f"{json.dumps(schema)}\naccepts {text}\n{str(error)[:300]}")
    return True


def compare(first, schemas, texts, any_order):
    """Returns how many texts were judged, and of how many schemas."""
    tool = subprocess.Popen([f"{BUILD}/tools/grammar_texts", f"{MODELS}/demo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    judged = compiled = 0
    for seed in range(first, first + schemas):
        schema = Schemas(seed).document()
        line = {"schema": json.dumps(schema), "any_order": any_order, "random": texts, "seed": seed}
        tool.stdin.write(json.dumps(line).encode() + b"\n")
        tool.stdin.flush()
        reply = json.loads(tool.stdout.readline())
        if reply["message"] is not None:
            holds(reply["message"].startswith("schema #"), reply["message"])
            continue
        compiled += 1
        holds(reply["dead"] is None, f"seed {seed}: {json.dumps(schema)}: nothing may follow {reply['dead']}")
        for text in reply["random"]:
            judged += judge(schema, text)
    tool.stdin.close()
    tool.wait()
    return judged, compiled


@test("random texts of random schemas are valid, members in their order and in any")
def _():
    schemas, texts = (60, 8) if SHORT else (400, 12)
    for any_order in (False, True):
        judged, compiled = compare(1, schemas, texts, any_order)
        print(f"# {judged} texts of {compiled} of {schemas} schemas", flush=True)
        holds(compiled > schemas * .7 and judged > compiled * texts * .5, (compiled, judged))


@test("a million of them")
def _():
    if not WHOLE:
        return
    judged, seed, most = 0, 1000, int(os.environ.get("GRAMMAR_TEXTS", "1000000"))
    while judged < most:
        judged += compare(seed, 500, 60, seed // 500 % 2 == 0)[0]
        seed += 500
    print(f"# {judged} texts", flush=True)


run_tests()
