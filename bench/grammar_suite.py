#!/usr/bin/env python3
"""How a suite of JSON Schemas with valid and invalid instances fares: schemas refused, valid instances rejected, invalid ones accepted,
and what compiling takes.

    bench/grammar_suite.py json-schema-test-suite FOLDER [--draft draft2020-12]...   FOLDER: json-schema-org/JSON-Schema-Test-Suite
    bench/grammar_suite.py maskbench FOLDER          FOLDER: maskbench/data of guidance-ai/jsonschemabench, or any with files of the form
                                                     {"schema", "tests": [{"valid", "data"}]}
    bench/grammar_suite.py formats FILE.rs           parser/tests/test_json_string_format.rs of guidance-ai/llguidance; strings that it says
                                                     its expressions accept although they are invalid are invalid here
    bench/grammar_suite.py schemas FILE.json         a list of {"name", "schema"}: what is compiled, as bench/generated_schemas.py writes it
    bench/grammar_suite.py field FILE.json           a list of {"schema", "text", "right": "yes" or "no"}

    bench/grammar_suite.py maskbench FOLDER --lines | build/bench_grammar --answers MODEL-DIRECTORY
                                                     what masks take in front of each token of the valid instances

Needs `ninja -C build grammar_texts`. --strict-order: members in the order of the schema, as by default in answers. --peer llguidance
judges with the llguidance wheel instead. --list prints every case that went wrong."""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import time


class Kakeya:
    def __init__(self, build, any_order):
        self.any_order = any_order
        self.process = subprocess.Popen([f"{build}/tools/grammar_texts", "models/demo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def judge(self, schema, texts):
        line = {"schema": json.dumps(schema), "any_order": self.any_order, "texts": texts}
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Llguidance:
    def __init__(self):
        import llguidance
        import llguidance.hf  # noqa: F401
        self.module = llguidance
        self.tokenizer = llguidance.LLTokenizer("byte")

    def judge(self, schema, texts):
        begin = time.thread_time()
        grammar = self.module.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": True})
        matcher = self.module.LLMatcher(self.tokenizer, grammar)
        took = (time.thread_time() - begin) * 1e6
        if matcher.is_error():
            return {"message": matcher.get_error().splitlines()[0], "us": took}
        accepted = []
        for text in texts:
            own = self.module.LLMatcher(self.tokenizer, grammar)
            tokens = self.tokenizer.tokenize_str(text)
            accepted.append(own.try_consume_tokens(tokens) == len(tokens) and own.is_accepting())
        return {"message": None, "us": took, "texts": accepted}


def test_suite(folder, drafts):
    for draft in drafts:
        for file in sorted(pathlib.Path(folder, "tests", draft).rglob("*.json")):
            for group in json.loads(file.read_text()):
                tests = [(json.dumps(t["data"], ensure_ascii=False), t["valid"]) for t in group["tests"]]
                yield f"{draft}/{file.stem}: {group['description']}", group["schema"], tests


def maskbench(folder):
    for file in sorted(pathlib.Path(folder).rglob("*.json")):
        case = json.loads(file.read_text())
        if "schema" in case:
            yield file.name, case["schema"], [(json.dumps(t["data"], ensure_ascii=False), t["valid"]) for t in case.get("tests", [])]


def formats(file):
    cases = []
    for line in pathlib.Path(file).read_text().splitlines():
        case = re.match(r'#\[case\("(.*?)"\)\]', line)
        if case:
            cases.append(re.sub(r"\\u\{([0-9a-fA-F]+)\}", lambda found: chr(int(found[1], 16)), case[1]).replace('\\"', '"'))
        function = re.match(r"pub fn (\w+)\(", line)
        if function:
            name = function[1]
        schema = re.search(r'json!\((\{"type":"string".*?\})\)', line)
        if schema and cases:
            yield name, json.loads(schema[1]), [(json.dumps(text), name.startswith("valid_")) for text in cases]
            cases = []


def schemas_alone(file):
    for case in json.loads(pathlib.Path(file).read_text()):
        yield case["name"], case["schema"], []


def field(file):
    for i, case in enumerate(json.loads(pathlib.Path(file).read_text())):
        yield f"{i} {case['kind']}", case["schema"], [(case["text"], case["right"] == "yes")]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["json-schema-test-suite", "maskbench", "formats", "schemas", "field"])
    parser.add_argument("path")
    parser.add_argument("--draft", action="append")
    parser.add_argument("--build", default="build")
    parser.add_argument("--peer", choices=["llguidance"])
    parser.add_argument("--strict-order", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="only every so many schemas")
    parser.add_argument("--lines", action="store_true", help="print schemas and valid instances for bench_grammar")
    options = parser.parse_args()
    judge = None if options.lines else Llguidance() if options.peer else Kakeya(options.build, not options.strict_order)
    cases = {"json-schema-test-suite": lambda: test_suite(options.path, options.draft or ["draft2020-12", "draft7"]),
             "maskbench": lambda: maskbench(options.path), "formats": lambda: formats(options.path),
             "schemas": lambda: schemas_alone(options.path), "field": lambda: field(options.path)}[options.suite]()
    schemas = refused = 0
    rejected, accepted, took, reasons = [], [], [], collections.Counter()
    for number, (name, schema, tests) in enumerate(cases):
        if number % options.every:
            continue
        if options.lines:
            print(json.dumps({"schema": json.dumps(schema), "any_order": not options.strict_order,
                              "texts": [text for text, valid in tests if valid]}))
            continue
        schemas += 1
        result = judge.judge(schema, [text for text, _ in tests])
        took.append(result["us"] / 1000)
        if result["message"] is not None:
            refused += 1
            place, _, what = result["message"].partition(": ")
            reasons[re.sub(r"[0-9]+", "N", place.rsplit("/", 1)[-1] + ": " + what)[:90]] += 1
            if options.list:
                print(f"refused   {name}: {result['message']}")
            continue
        for (text, valid), accepts in zip(tests, result["texts"]):
            if accepts == valid:
                continue
            (rejected if valid else accepted).append(name)
            if options.list:
                print(f"{'rejected' if valid else 'ACCEPTED'}  {name}: {text[:200]}")
    if options.lines:
        return
    print(f"{schemas} schemas: {refused} refused, {len(rejected)} valid instances rejected (of {len(set(rejected))} schemas), "
          f"{len(accepted)} invalid ones accepted")
    print(f"compiling, ms: mean {sum(took) / max(1, len(took)):.2f}, p50 {percentile(took, .5):.2f}, p99 {percentile(took, .99):.2f}, "
          f"slowest {max(took, default=0):.1f}")
    for reason, n in reasons.most_common(25):
        print(f"  {n:5} {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
