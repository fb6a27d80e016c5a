"""What `serve --dry-run` says of each layer, ring, checkpoint and kind is what /metrics reports of a server that holds it; and a server
warns at one threshold of its memory, refuses at the next, and is well again below."""

import http.client
import json
import re
import subprocess
import threading

from harness import KAKEYA, MODELS, SHORT, WAIT, Server, equal, eventually, holds, metrics, run_tests, scripted_model, series, test

CONTEXT = 320
PROMPT = [2, *[(i * 7919 + 13) % 8000 for i in range(1, 290)]]  # with the answer it fills the pages of the context
ANSWER = 20
POLICIES = {"native": ["--attention", "native"], "sink-window": ["--attention", "sink-window"],
            "restored": ["--attention", "restored"],
            "restored-all": ["--attention", "restored", "--restore-layers", "all"]}
FORMATS = ["bf16", "q8", "q4", "f32"]


def said(options):
    run = subprocess.run([KAKEYA, "serve", "--dry-run", "--json", *options], capture_output=True, check=True)
    return json.loads(run.stdout)["ledger"]


def reported(server):
    return metrics(server.get("/metrics").body.decode())


def check_session(policy, kv_format):
    """One idle session of the whole context, and nothing beside it."""
    options = ["--model", f"{MODELS}/demo", "--context", str(CONTEXT), "--kv-format", kv_format, "--reuse", "any", *POLICIES[policy]]
    ledger = said(options)
    s = Server(*options)
    reply = s.post("/v1/completions", {"model": "demo", "prompt": PROMPT, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True})
    equal(reply.status, 200, reply.body[:300])
    found = eventually(lambda: (m := reported(s)).get(series("kakeya_store_entries", {"kind": "live"})) == 1 and m, "it is kept")
    what = f"{policy}, {kv_format}"
    equal(found.get(series("kakeya_store_entries", {"kind": "checkpoint"}), 0), 0, f"{what}: nothing beside it")
    expected = {(line["kind"], line["layer"]): line["bytes"] for line in ledger["kv_layers"]}
    for (kind, layer), size in expected.items():
        own = found.get(series("kakeya_kv_layer_bytes", {"kind": kind, "layer": str(layer)}), 0)
        equal(own, size, f"{what}: {kind}, layer {layer}")
    for kind in ("full", "sliding", "draft"):
        layers = sum(v for k, v in found.items() if k.startswith("kakeya_kv_layer_bytes|") and f"kind={kind}" in k)
        equal(layers, found[series("kakeya_kv_bytes", {"kind": kind})], f"{what}: the layers of {kind}")
    for kind, size in ledger["kv_bytes"].items():
        equal(found[series("kakeya_kv_bytes", {"kind": kind})], size, f"{what}: {kind}")
    holds((ledger["kv_bytes"]["latent"] > 0) == policy.startswith("restored"), f"{what}: latents")
    held = found[series("kakeya_memory_bytes", {"kind": "workspace"})]
    holds(abs(held - ledger["workspace_bytes"]) < 0.05 * held, f"{what}: {ledger['workspace_bytes']} of workspace, {held} held")
    s.stop()


@test("what --dry-run says per layer is what /metrics reports, under every policy and K/V format")
def _():
    for policy in POLICIES:
        for kv_format in FORMATS[:1] if SHORT and policy != "native" else FORMATS:
            check_session(policy, kv_format)


@test("--dry-run prints the ledger")
def _():
    run = subprocess.run([KAKEYA, "serve", "--dry-run", "--model", f"{MODELS}/demo"], capture_output=True, text=True, check=True)
    holds(re.search(r"^ledger of a session of [\d,]+ tokens$", run.stdout, re.M), run.stdout)
    for kind in ("full", "sliding", "draft", "checkpoint", "other"):
        holds(re.search(rf"^  {kind} +[\d.,]+ ", run.stdout, re.M), f"{kind}: {run.stdout}")


# ------------------------------------------------------------------------------------------------------------------- thresholds

BYTES_PER_TOKEN = 2 * 2 * 16 * 4  # of the scripted model's one layer
TOKENS = 6000
MODEL = scripted_model("The quick brown fox jumps over it.")


def long_answer(server, tokens):
    return server.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Say something long."}],
                                                "temperature": 1, "max_tokens": tokens, "ignore_eos": True})


def limited_server(*options):
    plain = Server("--name", "m", model=MODEL)
    workspace = int(float(plain.said(r"([\d.]+) MB for workspace").group(1)) * 1e6 + 1e6)
    plain.stop()
    limit = workspace + TOKENS * (BYTES_PER_TOKEN + 8)
    return Server("--name", "m", "--cache-ram", "0", "--memory-limit", f"{limit // 1024}K", *options, model=MODEL)


@test("a server warns at one threshold, refuses at the next, and is well again below")
def _():
    s = limited_server("--memory-warn", "20", "--memory-refuse", "40")
    equal(s.get("/health").json["status"], "ok")
    holds("memory" not in s.get("/health").json, "nothing is said below")
    equal(s.metric("kakeya_memory_pressure"), 0)
    seen, refusals, stop = set(), [], threading.Event()

    def answers():
        while not stop.is_set():
            long_answer(s, 4 * TOKENS // 5)

    thread = threading.Thread(target=answers)
    thread.start()

    def look():
        health = s.get("/health")
        memory = health.json.get("memory")
        if memory == "warning":
            equal((health.status, health.json["status"]), (200, "ok"))
            holds(health.json["memory_used_ratio"] >= 0.2, health.body)
        if memory == "refusing":
            equal((health.status, health.json["status"]), (503, "overloaded"))
            holds(int(health.headers["retry-after"]) >= 1, "when to come again")
            reply = long_answer(s, 1)
            if reply.status == 503:
                equal(reply.error["code"], "overloaded")
                holds("--memory-refuse" in reply.error["message"] and "retry-after" in reply.headers, reply.body)
                refusals.append(reply)
        seen.add(memory)
        return {"warning", "refusing"} <= seen and refusals

    try:
        eventually(look, "it warns, and refuses")
    finally:
        stop.set()
        thread.join()
    eventually(lambda: "memory" not in s.get("/health").json, "it is well again")
    equal(s.get("/health").status, 200)
    equal(long_answer(s, 4).status, 200)
    equal((s.metric("kakeya_memory_pressure"), s.metric("kakeya_memory_refusals_total") >= 1), (0, True))
    for word in ("memory: warning", "memory: refusing", "memory: ok"):
        holds(word in s.log(), f"{word} is in the log")
    s.stop()


ROOM = 24000000  # bytes for sessions: a few


def endless(server):
    """An answer that holds its memory until its connection is closed; None where it is refused."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT)
    body = {"model": "demo", "prompt": PROMPT, "stream": True, "max_tokens": -1, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status == 200:
        reply.read(20)
        return connection
    equal((reply.status, json.loads(reply.read())["error"]["code"]), (503, "overloaded"))
    connection.close()
    return None


def check_thresholds(policy, kv_format):
    what = f"{policy}, {kv_format}"
    options = ["--name", "demo", "--kv-format", kv_format, *POLICIES[policy], "--cache-ram", "0", "--memory-warn", "20", "--memory-refuse",
               "40"]
    plain = Server(*options)
    held = [float(n) for n in plain.said(r"([\d.]+) MB allocated for weights, ([\d.]+) MB for workspace").groups()]
    plain.stop()
    s = Server(*options, "--memory-limit", f"{int(sum(held) * 1000000 + 1000000 + ROOM) // 1024}K")
    seen, answers = [], []
    while len(answers) < 20:
        health = s.get("/health").json
        if not seen or seen[-1] != health.get("memory"):
            seen.append(health.get("memory"))
        answer = endless(s)
        if answer is None:
            break
        answers.append(answer)
    equal(seen[:2], [None, "warning"], f"{what}: it warns first")
    holds(len(answers) < 20, f"{what}: it refuses")
    # what a prompt held beside its session's rings may be free again by now: the log keeps that it was refusing
    holds("memory: refusing" in s.log(), f"{what}: the log says that it refuses")
    holds(s.get("/health").json.get("memory") in ("warning", "refusing"), f"{what}: it warns or refuses")
    bytes_of = sum(v for k, v in reported(s).items() if k.startswith("kakeya_kv_bytes"))
    holds(bytes_of > 0.3 * ROOM, f"{what}: {bytes_of} bytes are held")
    for answer in answers:
        answer.close()
    eventually(lambda: "memory" not in s.get("/health").json, f"{what}: it is well again")
    after = endless(s)
    holds(after is not None, f"{what}: it answers again")
    after.close()
    s.stop()


@test("so it does under every policy and K/V format")
def _():
    for policy in POLICIES:
        for kv_format in FORMATS[:1] if SHORT else FORMATS:
            check_thresholds(policy, kv_format)


@test("without --memory-refuse nobody is refused: answers wait for each other as ever")
def _():
    s = limited_server("--memory-warn", "1")
    equal(long_answer(s, 2000).status, 200)
    equal(s.metric("kakeya_memory_refusals_total"), 0)
    equal(s.get("/health").status, 200)
    s.stop()


@test("a threshold of refusing below that of warning is wrong usage")
def _():
    run = subprocess.run([KAKEYA, "serve", "--memory-warn", "50", "--memory-refuse", "40"], capture_output=True, text=True)
    equal((run.returncode, "--memory-refuse 40 is less than --memory-warn 50" in run.stderr), (2, True), run.stderr)


run_tests()
