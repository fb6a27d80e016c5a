#!/usr/bin/env python3
"""What the costliest schemas, rules, expressions and tools of 100 kB take to be compiled, or refused: processor time and memory.

    bench/grammar_limits.py [--build build] [--megabytes 64] [--every N] [NAME]...

Needs `ninja -C build grammar_texts`. Each has a process of its own; memory is what its peak rises by. Exits 1 where one takes more than
--megabytes, or gets no answer in --seconds of processor time, which are many."""
import argparse
import json
import resource
import subprocess
import sys

SIZE = 100_000


def spell(given):
    return given if isinstance(given, str) else json.dumps(given)


def fill(make, size=SIZE):
    """As many parts as fit: make(n) -> schema, or text."""
    low, high = 1, 1
    while len(spell(make(high))) < size:
        low, high = high, 2 * high
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        if len(spell(make(middle))) < size:
            low = middle
        else:
            high = middle
    return make(low)


def nested(n, wrap, inner):
    schema = inner
    for _ in range(n):
        schema = wrap(schema)
    return schema


def members(n, value):
    return {f"member{i}": value(i) for i in range(n)}


def closed(i, more=None):
    return {"type": "object", "properties": {"kind": {"const": f"k{i}"}, **(more or {})}, "required": ["kind"]}


def text(n, seed=7):
    """Letters without a pattern in them."""
    out = []
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) % 2**31
        out.append("abcdefghijklmnopqrstuvwxyz"[seed >> 16 & 0xFFFF and (seed >> 16) % 26])
    return "".join(out)


SCHEMAS = {
    "deep objects": lambda: nested(250, lambda s: {"type": "object", "properties": {"a": s}}, {"type": "string"}),
    "deep arrays": lambda: nested(2000, lambda s: {"items": s}, {}),
    "deep allOf": lambda: nested(190, lambda s: {"allOf": [s]}, {"type": "string"}),
    "deep not": lambda: nested(190, lambda s: {"not": s}, {"type": "string"}),
    "enum of texts": lambda: fill(lambda n: {"enum": [text(20, i) for i in range(n)]}),
    "enum of numbers": lambda: fill(lambda n: {"enum": list(range(n))}),
    "enum of objects": lambda: fill(lambda n: {"enum": [{"a": i, "b": [i]} for i in range(n)]}),
    "enum beside a pattern": lambda: fill(lambda n: {"enum": [text(20, i) for i in range(n)], "pattern": "^[a-m]*n"}),
    "enum beside an enum": lambda: {"allOf": [fill(lambda n: {"enum": [text(20, i) for i in range(n)]}, SIZE // 2),
                                              fill(lambda n: {"enum": [text(20, 3 * i) for i in range(n)]}, SIZE // 2)]},
    "not an enum of texts": lambda: {"type": "string", "not": fill(lambda n: {"enum": [text(20, i) for i in range(n)]})},
    "not an enum of numbers": lambda: {"type": "integer", "not": fill(lambda n: {"enum": list(range(n))})},
    "patterns of values": lambda: fill(lambda n: {
        "properties": members(n, lambda i: {"pattern": f"^[a-z]{{{i % 50}}}x{i}.*y$"})}),
    "formats": lambda: fill(lambda n: {"properties": members(n, lambda i: {
        "format": ["email", "uri", "date-time", "hostname", "iri"][i % 5], "maxLength": i + 20})}),
    "allOf of patterns": lambda: fill(lambda n: {"allOf": [{"pattern": text(10, i)} for i in range(n)]}),
    "allOf of negated patterns": lambda: fill(lambda n: {
        "type": "string", "allOf": [{"not": {"pattern": text(3, i)}} for i in range(n)]}),
    "one long pattern": lambda: {"pattern": "^(" + "|".join(text(12, i) for i in range(1200)) + ")$"},
    "searched pattern": lambda: {"pattern": ".*".join(text(6, i) for i in range(1800))[:16000]},
    "exponential pattern": lambda: {"pattern": "(a|b)*a" + "(a|b)" * 60},
    "counted pattern": lambda: {"pattern": "^.{1,5000}$"},
    "counted groups": lambda: {"pattern": "^(ab|cd.){1,9000}$"},
    "counts in counts": lambda: {"pattern": "^((([a-z]{1,90}){1,90}){1,90}){1,90}$"},
    "counts of classes": lambda: {"pattern": "^(?:\\S+\\s+){0,2999}\\S+$"},
    "many counted patterns": lambda: fill(lambda n: {
        "properties": members(n, lambda i: {"pattern": f"^(a.|bc){{1,{500 + i}}}$"})}),
    "classes of many ranges": lambda: {"pattern": "^[" + "".join(chr(0x100 + 3 * i) for i in range(2600)) + "]{2,40}$"},
    "many classes": lambda: {"pattern": "^" + "".join(f"[{chr(0x4e00 + i)}{chr(0x8e00 + 7 * i)}]?" for i in range(1500)) + "$"},
    "anyOf of objects": lambda: fill(lambda n: {"anyOf": [closed(i) for i in range(n)]}),
    "oneOf of objects": lambda: fill(lambda n: {"oneOf": [closed(i) for i in range(n)]}),
    "oneOf alike": lambda: fill(lambda n: {
        "oneOf": [{"type": "object", "properties": {f"m{i}": {"type": "integer"}}} for i in range(n)]}),
    "anyOf alike": lambda: fill(lambda n: {"anyOf": [{"required": [f"m{i}"]} for i in range(n)]}),
    "anyOf of texts": lambda: fill(lambda n: {"anyOf": [{"pattern": f"^{text(8, i)}"} for i in range(n)]}),
    "oneOf of texts": lambda: fill(lambda n: {"oneOf": [{"type": "string", "pattern": f"^{text(8, i)}"} for i in range(n)]}),
    "allOf of anyOf": lambda: fill(lambda n: {
        "allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}, {"type": "string"}]} for i in range(n)]}),
    "allOf of if": lambda: fill(lambda n: {"type": "object", "allOf": [
        {"if": {"properties": {"k": {"const": i}}, "required": ["k"]}, "then": {"required": [f"r{i}"]}} for i in range(n)]}),
    "dependentRequired": lambda: fill(lambda n: {"type": "object", "dependentRequired": members(n, lambda i: [f"other{i}"])}),
    "properties": lambda: fill(lambda n: {"properties": members(n, lambda i: {"type": "integer"}), "additionalProperties": False}),
    "required": lambda: fill(lambda n: {"required": [f"member{i}" for i in range(n)]}),
    "allOf of properties": lambda: fill(lambda n: {"allOf": [{"properties": members(20, lambda k: {"minimum": i})} for i in range(n)]}),
    "allOf of closed objects": lambda: fill(lambda n: {"allOf": [
        {"properties": members(20, lambda k: {}), "patternProperties": {text(4, i): {}}, "additionalProperties": False}
        for i in range(n)]}),
    "patternProperties": lambda: fill(lambda n: {"patternProperties": {text(8, i): {"minimum": i} for i in range(n)}}),
    "24 patternProperties": lambda: {"patternProperties": {f"{text(5, i)}.*{text(4, i + 99)}": {"minimum": i} for i in range(24)}},
    "properties and patterns": lambda: fill(lambda n: {
        "properties": members(n, lambda i: {"type": "string"}), "patternProperties": {f"{i}$": {"minLength": i} for i in range(10)}}),
    "propertyNames": lambda: {"propertyNames": fill(lambda n: {"enum": [text(20, i) for i in range(n)]})},
    "references in circles": lambda: fill(lambda n: {"$ref": "#/$defs/d0", "$defs": {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{(i + 1) % n}"}, "b": {"$ref": f"#/$defs/d{i * 7 % n}"}}} for i in range(n)}}),
    "references to references": lambda: fill(lambda n: {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "minLength": 1} for i in range(n)}, f"d{n}": {}}}),
    "allOf that doubles": lambda: fill(lambda n: {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(n)}, f"d{n}": {}}}),
    "anyOf that doubles": lambda: fill(lambda n: {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}", "title": "x"}]} for i in range(n)},
        f"d{n}": {}}}),
    "members that double": lambda: fill(lambda n: {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}", "minProperties": 1}, "b": {"allOf": [
            {"$ref": f"#/$defs/d{i + 1}"}, {"maxProperties": i}]}}} for i in range(n)}, f"d{n}": {}}}),
    "names of parts": lambda: fill(lambda n: {"items": {"$ref": "#a0"}, "$defs": {
        f"d{i}": {"$anchor": f"a{i}", "items": {"$ref": f"#a{(i + 1) % n}"}} for i in range(n)}}),
    "unknown keywords": lambda: {"allOf": [{"anyOf": [{"required": [f"r{i}"]}, {"required": [f"s{i}"]}]} for i in range(11)],
                                 **fill(lambda n: {f"x{i}": i for i in range(n)}, SIZE - 2000)},
    "unevaluatedProperties": lambda: {"unevaluatedProperties": False, **fill(lambda n: {"allOf": [
        {"anyOf": [{"properties": {f"m{i}": {}}}, {"properties": {f"n{i}": {}}}]} for i in range(n)]}, SIZE - 100)},
    "prefixItems": lambda: fill(lambda n: {"prefixItems": [{"minimum": i} for i in range(n)]}),
    "uniqueItems": lambda: {"uniqueItems": True, "items": fill(lambda n: {"enum": [text(20, i) for i in range(n)]})},
    "contains": lambda: fill(lambda n: {"allOf": [{"contains": {"minimum": i}} for i in range(n)]}),
    "multipleOf": lambda: fill(lambda n: {"properties": members(n, lambda i: {"multipleOf": 997 + i})}),
    "bounds of numbers": lambda: fill(lambda n: {"properties": members(n, lambda i: {"minimum": i / 7, "maximum": 10**18 + i / 7})}),
    "bounds of lengths": lambda: fill(lambda n: {
        "properties": members(n, lambda i: {"minLength": i, "maxLength": 10**6, "pattern": "^a|b$"})}),
    "long numbers": lambda: {"minimum": int("1" * 4000), "maximum": int("9" * 4000)},
    "keys alike": lambda: fill(lambda n: {"properties": {"k" * 200 + str(i): {} for i in range(n)}}),
    "patterns without a text": lambda: fill(lambda n: {
        "type": "string", "allOf": [{"not": {"pattern": f"{HARD}$a{i}"}} for i in range(n)]}),
    "oneOf that doubles": lambda: {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": {"oneOf": [
        {"$ref": f"#/$defs/d{i + 1}"}, {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["x"]}]}
        for i in range(500)}, "d500": {"type": "null"}}},
    "oneOf in oneOf": lambda: nested(25, lambda s: {"oneOf": [
        s, {"type": "object", "required": ["b"], "properties": {"b": {}}}, {"allOf": [{"properties": {"a": {}}}]}]}, {"type": "object"}),
    "oneOf of constants": lambda: {"allOf": [{"oneOf": [
        {"type": "object", "properties": {f"p{i}": {"const": k}}, "required": [f"p{i}"]} for k in range(50)]} for i in range(20)]},
    "unevaluated, through references": lambda: fill(lambda n: {"unevaluatedProperties": False, "$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"properties": {f"m{i}": {}}, "anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"properties": {f"n{i}": {}}}]}
           for i in range(n)}, f"d{n}": {}}}),
    "unevaluatedItems": lambda: fill(lambda n: {"unevaluatedItems": False, "allOf": [
        {"anyOf": [{"prefixItems": [{"const": i}] * 5}, {"contains": {"const": i}}]} for i in range(n)]}),
    "sets of sets": lambda: {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"properties": {
        "a": {"allOf": [{"$ref": f"#/$defs/d{(2 * i + 1) % 600}"}, {"$ref": f"#/$defs/d{(3 * i + 2) % 600}"}]},
        "b": {"allOf": [{"$ref": f"#/$defs/d{(i + 1) % 600}"}, {"$ref": f"#/$defs/d{(5 * i + 2) % 600}"}]}}} for i in range(600)}},
    "references to members": lambda: fill(lambda n: {"properties": members(n, lambda i: {"$ref": f"#/properties/member{(i + 1) % n}"})}),
    "unique texts": lambda: fill(lambda n: {"properties": members(n, lambda i: {
        "type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": f"^[a-z]{{{i % 30 + 1}}}{i}$"}})}),
    "enum of lists": lambda: {"enum": [[0] * k for k in range(300)]},
}

HARD = "(a|b)*a" + "(a|b)" * 14


def rules(n, rule, head):
    return head + "".join(rule(i) + "\n" for i in range(n))


RULES = {
    "rules that may be empty": lambda: rules(1500, lambda i: f"r{i} ::= r{i + 1} [a-z]*", 'root ::= r0 "x" root | "y"\nr1500 ::= ""\n'),
    "hard expressions": lambda: 'start: (X "(" start ")")*\nX: ' + " | ".join(f"/{HARD}{i}/" for i in range(1000)),
    "hard rules": lambda: fill(lambda n: rules(n, lambda i: f'x{i}: /{HARD}{i}/ | "z" start',
                                               'start: "(" start ")" ' + "".join(f"| x{i} start\n" for i in range(n)) + "\n")),
    "groups in groups": lambda: fill(lambda n: 'root ::= "x" root | ' + "(" * 50 + "[a-z]{1,99} " * n + ")" * 50),
    "rules that double": lambda: rules(1000, lambda i: f'r{i} ::= r{i + 1} r{i + 1} | "(" root ")"', 'root ::= r0\nr1000 ::= "a"\n'),
    "unions of unions": lambda: rules(1900, lambda i: f'r{i} ::= "(" r{i + 1} ")" | r{i + 1} "+" root', 'root ::= r0\nr1900 ::= "a"\n'),
    "ambiguous rules": lambda: fill(lambda n: rules(n, lambda i: f"r{i} ::= " + " | ".join(
        f"r{(i * 7 + k) % n} r{(i * 3 + k) % n}" for k in range(4)) + ' | "a"', "root ::= r0\n")),
    "rules that begin with others": lambda: rules(
        60, lambda i: f"r{i} ::= " + " | ".join(f'r{k} "a{i}"' for k in range(60)) + ' | "a"', "root ::= r0\n"),
    "rules of many rules": lambda: fill(lambda n: rules(n, lambda i: f"r{i} ::= " + " ".join(
        f"r{(i + k) % n}" for k in range(1, 12)) + f' | "a{i}" root', "root ::= r0\n")),
    "counts of counts": lambda: 'root ::= ((([a-z] "b"?){1,999}){1,999}){1,999} | "x" root',
    "counted alternatives": lambda: fill(lambda n: 'root ::= "x" root' + "".join(f' | ([a-z]{{1,{i + 400}}} "{i}")' for i in range(n))),
    "what is ignored": lambda: fill(lambda n: "start: " + " ".join(f'"a{i}" [start]' for i in range(n)) + "\n%ignore /[ab]{1,300}/\n"),
    "templates of templates": lambda: 'start: t{"a"}\nt{x}: "(" x ")" t{t{x}} | "b"\n',
    "templates that double": lambda: 'start: t0{"a", "b"} start | "c"\n' + "".join(
        f"t{i}{{x, y}}: t{i + 1}{{(x y), (y x)}} t{i + 1}{{[x], y}}\n" for i in range(20)) + "t20{x, y}: x | y start\n",
    "arguments in arguments": lambda: 'start: "c" start | ' + "t{" * 60 + f'"{text(80000, 1)}"' + "}" * 60 + " s" * 9000 +
        '\nt{x}: x\ns: "s"\n',
    "schemas in rules": lambda: fill(lambda n: "start: " + " | ".join(
        f'"{i}" %json {{"properties": {{"a{i}": {{"type": "string", "pattern": "^{i}(a|b)*$"}}}}}} start' for i in range(n)) + '| "x"'),
    "long texts": lambda: fill(lambda n: 'root ::= "x" root' + "".join(f' | "{text(3000, i)}"' for i in range(n))),
}
EXPRESSIONS = {
    "look-behinds": lambda: "".join(f"(?<=(a|b)*a(a|b){{12}}{c})" for c in "abcdefgh") + "x",
    "look-aheads": lambda: "".join(f"(?=.*{c}.{{14}}{c})" for c in "abcdefghijkl") + ".*",
    "look-aheads in a repetition": lambda: "(" + "|".join(f"(?={text(6, i)}.*{text(3, i)}).{i % 10}" for i in range(300)) + ")*",
    "classes of Unicode": lambda: "\\p{L}?\\p{Lu}?\\P{N}?" * 600,
    "letters in any case": lambda: "(?i:" + "\\p{L}" * 2700 + ")",
    "sets in any case": lambda: "(?i:" + "".join(f"[^{chr(0x3b1 + i % 20)}]{{0,{i}}}" for i in range(1000)) + ")",
    "stars in stars": lambda: "(.*" * 90 + ")*" * 90,
}


def tools(n, parameters):
    return [{"type": "function", "function": {"name": f"f{i}", "parameters": parameters(i)}} for i in range(n)]


TOOLS = {
    "patterns left out": lambda: tools(1, lambda i: fill(lambda n: {
        "type": "object", "properties": members(n, lambda k: {"type": "string", "pattern": f"({k}|b)*a(a|b){{18}}"})})),
    "patterns left out of tools": lambda: fill(lambda n: tools(n, lambda i: {
        "type": "object", "properties": {"a": {"type": "string", "pattern": f"({i}|b)*a(a|b){{18}}"}}})),
    "tools left out": lambda: fill(lambda n: tools(n, lambda i: {
        "allOf": [{"anyOf": [{"required": [f"r{k}"]}, {"required": [f"s{k}"]}]} for k in range(12)]})),
    "multiples left out": lambda: tools(1, lambda i: fill(lambda n: {
        "type": "object", "properties": members(n, lambda k: {"type": "number", "multipleOf": 0.0009973 + k * 1e-5})})),
    "formats left out": lambda: tools(1, lambda i: fill(lambda n: {
        "type": "object", "properties": members(n, lambda k: {"format": f"x{k}"})})),
    "rules of tools": lambda: fill(lambda n: [{"type": "function", "function": {"name": f"f{i}"}, "custom": {
        "syntax": "lark", "definition": f'start: /{HARD}{i}/ | "z" start'}} for i in range(n)]),
}


def resident_kb(process):
    for line in open(f"/proc/{process.pid}/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return 0


def measure(options, kind, given, any_order):
    process = subprocess.Popen([f"{options.build}/tools/grammar_texts", "models/demo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (options.seconds, options.seconds)))

    def ask(line):
        process.stdin.write(json.dumps(line).encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline() or '{"us": 0}')
    ask({"schema": "{\"type\": \"null\"}", "texts": [], "padding": spell(given)})
    before = resident_kb(process)
    result = ask({kind: spell(given), "any_order": any_order, "texts": []})
    after = resident_kb(process)
    process.stdin.close()
    process.wait()
    return result, (after - before) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--build", default="build")
    parser.add_argument("--megabytes", type=float, default=64)
    parser.add_argument("--seconds", type=int, default=100)
    parser.add_argument("--every", type=int, default=1, help="only every so many")
    options = parser.parse_args()
    sys.setrecursionlimit(10000)
    kinds = {"schema": SCHEMAS, "grammar": RULES, "regex": EXPRESSIONS, "tools": TOOLS}
    cases = [(kind, name, make) for kind, group in kinds.items() for name, make in group.items()]
    worst, over = (0, 0), False
    for number, (kind, name, make) in enumerate(cases):
        if number % options.every or (options.names and name not in options.names):
            continue
        given = make()
        for any_order in (False, True) if kind == "schema" else (False,):
            result, megabytes = measure(options, kind, given, any_order)
            seconds = result["us"] / 1e6
            worst = max(worst[0], seconds), max(worst[1], megabytes)
            over = over or megabytes > options.megabytes or "message" not in result
            message = result.get("message", f"NO ANSWER in {options.seconds} s")
            print(f"{seconds:6.3f} s {megabytes:6.1f} MB {len(spell(given)):7} bytes  {name}{', any order' if any_order else ''}: "
                  f"{(message or 'compiled')[:130]}", flush=True)
    print(f"at most {worst[0]:.2f} s, {worst[1]:.0f} MB")
    return over


if __name__ == "__main__":
    sys.exit(main())
