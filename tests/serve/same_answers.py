"""38: one request has one answer, byte for byte: alone, among 31 others, behind a cache hit, read back from disk, in each mode."""

import json
import os
import shutil
import subprocess
import tempfile

from harness import *  # noqa: F403

PROMPTS = 2 if SHORT else 20 if WHOLE else 8  # under native attention
OTHERS = 3 if SHORT else 31
FEWER = OTHERS if WHOLE else min(OTHERS, 4)  # beside all prompts but the first
POLICIES = ["native"] if SHORT else ["native", "sink-window", "restored"]
MODES = ["ar"] if SHORT else ["ar", "ngram", "speculative", "auto"]
LEAST_CACHED = 512  # tokens: every prompt is long enough to be kept in a file
TEXT = open("examples/needle-60.txt").read()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
# What can be asked of an answer, in turn.
KINDS = [{"temperature": 0}, {"temperature": 1, "seed": 7, "top_p": 0.95, "top_k": 40},
         {"temperature": 0, "logprobs": True, "top_logprobs": 3},
         {"temperature": 1, "seed": 8, "logprobs": True, "presence_penalty": 0.5, "top_p": 0.9, "n": 2},
         {"temperature": 1, "seed": 9, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
         {"temperature": 1, "seed": 10, "think": True, "thinking_token_budget": 8, "logit_bias": {"300": 2}},
         {"temperature": 1, "seed": 11, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40},
         {"temperature": 0.7, "seed": 12, "top_k": 20, "min_p": 0.01, "stop": [" the"]}]
folder = tempfile.mkdtemp(prefix="kakeya-same-")


def prompt(i):
    return TEXT[41 * i:41 * i + 1750 + 13 * i] + f"\n\nQuestion {i}?"


def body(i, **more):
    return {"model": "demo", "messages": [{"role": "user", "content": prompt(i)}], "max_tokens": 16, "return_token_ids": True,
            **KINDS[i % len(KINDS)], **more}


def answer(s, request):
    """All that may not change, as text; and how much of the prompt was known."""
    reply = s.post("/v1/chat/completions", request, timeout=4 * WAIT)
    equal(reply.status, 200, reply.body)
    choices = reply.json["choices"]
    for c in choices:
        for call in c["message"].get("tool_calls", []):
            call["id"] = "of its own"
    return json.dumps(choices, sort_keys=True), reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def other(i):
    """Neighbours of all kinds and lengths."""
    request = body(i, max_tokens=4 + i % 11)
    if i % 8:
        request["messages"] = [{"role": "user", "content": TEXT[7 * i:7 * i + 20 * (i % 9)] + str(i)}]
    return request


def streamed(s, request):
    """The contents of a stream, joined by choice."""
    texts = {}
    for line in s.post("/v1/chat/completions", {**request, "stream": True}, timeout=4 * WAIT).body.decode().split("\n\n"):
        for c in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
            texts[c["index"]] = texts.get(c["index"], "") + (c["delta"].get("content") or "")
    return texts


def one_answer(policy, prompts):
    """`prompts`: their numbers. What each of them is answered alone."""
    options = ("--name", "demo", "--attention", policy, "--session-dir", os.path.join(folder, policy))
    s = Server(*options, threads=None)
    alone = [answer(s, body(i, cache_prompt=False)) for i in prompts]
    equal([cached for _, cached in alone], [0] * len(prompts), "nothing is known to a request that asks for that")
    alone = dict(zip(prompts, (text for text, _ in alone)))
    files = Server(*options)  # of one thread; a server of its own fills the directory, so that nothing in memory shortens its prompts
    for i in prompts:
        equal(answer(files, body(i))[0], alone[i], f"{policy}, {KINDS[i % len(KINDS)]}: on another server")
    equal(files.stop(), 0)
    for i in prompts:
        others = OTHERS if i == prompts[0] else FEWER
        among, *_ = in_threads([lambda: answer(s, body(i, cache_prompt=False)),
                                *[lambda k=k: answer(s, other(PROMPTS + 31 * i + k)) for k in range(others)]])
        equal(among, (alone[i], 0), f"{policy}, {KINDS[i % len(KINDS)]}: among {others} others")
    for i in prompts:
        answer(s, body(i))
        text, cached = answer(s, body(i))
        holds(cached > LEAST_CACHED, f"{cached} cached")
        equal(text, alone[i], f"{policy}, {KINDS[i % len(KINDS)]}: behind a hit")
        texts = {c["index"]: c["message"]["content"] or "" for c in json.loads(text)}
        equal({**dict.fromkeys(texts, ""), **streamed(s, body(i))}, texts, f"{policy}, {KINDS[i % len(KINDS)]}: streamed")
    equal(s.stop(), 0)
    s = Server(*options)
    for i in prompts:
        text, cached = answer(s, body(i))
        # from the second on a server that has seen the disk slower than its arithmetic computes
        holds(cached > LEAST_CACHED or i != prompts[0], f"{cached} cached")
        equal(text, alone[i], f"{policy}, {KINDS[i % len(KINDS)]}: from disk")
    holds(s.metric("kakeya_prompt_tokens_cached_total", source="disk") > LEAST_CACHED, "files were read")
    s.stop()
    return alone


def by_command(i, policy, mode):
    """What `kakeya run` answers to the same."""
    kind = KINDS[i % len(KINDS)]
    command = [KAKEYA, "run", "--json", "--attention", policy, "--mode", mode, "--max-tokens", "16",
               *[f"--{name.replace('_', '-')}={value}" for name, value in kind.items()], prompt(i)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * WAIT)
    equal(done.returncode, 0, done.stderr)
    said = json.loads(done.stdout)
    return said["token_ids"][:-1] if said["finish_reason"] == "stop" else said["token_ids"]  # without the token that ended it


for policy in POLICIES:
    @test(f"38: {policy}: alone, among others, behind a hit, streamed, from disk, in each mode of kakeya run")
    def _(policy=policy):
        # Native attention has every kind; each of the other policies has half of them, with one that the command can be asked for.
        every = range(PROMPTS) if policy == "native" else range(len(KINDS))
        alone = one_answer(policy, every if WHOLE or policy == "native" else every[POLICIES.index(policy) - 1::2])
        for i in alone:
            if not set(KINDS[i % len(KINDS)]) <= {"temperature", "seed", "top_p", "top_k"}:
                continue  # the command has no options for it
            for mode in MODES:
                equal(by_command(i, policy, mode), json.loads(alone[i])[0]["token_ids"], f"{policy}, prompt {i}, {mode}")


try:
    run_tests()
finally:
    shutil.rmtree(folder, ignore_errors=True)
