"""/metrics: what moves, by how much, under which names."""

import http.client
import math
import re
import shutil
import tempfile

from harness import *  # noqa: F403
from harness import metrics as read_metrics

TEXT = open("examples/needle-60.txt").read()
folder = tempfile.mkdtemp(prefix="kakeya-metrics-")


def chat(text, **more):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24, **more}


def ask(server, body, path="/v1/chat/completions"):
    reply = server.post(path, body)
    equal(reply.status, 200, reply.body[:300])
    return reply.json


def text_of(server):
    return server.get("/metrics").body.decode()


def now(server):
    return read_metrics(text_of(server))


def moved(server, before):
    return {k: v - before.get(k, 0) for k, v in now(server).items()}


def total(values, name):
    return sum(v for k, v in values.items() if k == name or k.startswith(name + "|"))


@test("every family is whole, described once, and listed in docs/reference/server.md; and everything that is listed there exists")
def _():
    s = Server("--metrics-names", "both", "--weights-limit", "auto")
    ask(s, chat("Hello."))
    text = text_of(s)
    seen, family = [], None
    for line in text.splitlines():
        name = re.match(r"(?:# (?:HELP|TYPE) )?([a-z_:0-9]+)", line).group(1)
        if line.startswith("# HELP "):
            family = name
            seen.append(name)
        holds(name == family or (name.startswith(family + "_") and name[len(family):] in ("_bucket", "_sum", "_count")), line)
    equal(len(seen), len(set(seen)))
    section = open("docs/reference/server.md").read().split("\n## Metrics\n")[1].split("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("| "))
    listed = {n for cell in table.split("|") for n in re.findall(r"\b[a-z0-9_]+(?=[,{ ]|$)", re.sub(r"\{[^}]*\}", "", cell))}
    own = {n[len("kakeya_"):] for n in seen if n.startswith("kakeya_")}
    equal(sorted(own - listed), [], "not in docs/reference/server.md")
    words = {"name", "type", "gauge", "counter", "histogram", "summary"}
    equal(sorted(n for n in listed - own - words), [], "in docs/reference/server.md alone")
    s.stop()


@test("forwards: positions of prompts and answers, drafts, tokens by forward")
def _():
    s = Server()
    before = now(s)
    for i in range(4):
        ask(s, chat(TEXT[: 800 * (i + 1)], max_tokens=60, ignore_eos=True))
    m = moved(s, before)
    computed = m["kakeya_prompt_tokens_total"] - total(m, "kakeya_prompt_tokens_cached_total")
    equal(m["kakeya_iteration_tokens_sum|kind=prompt"], computed)
    equal(m["kakeya_iteration_tokens_sum|kind=decode"], m["kakeya_forwards_total"] + m["kakeya_draft_tokens_total"])
    holds(m["kakeya_drafts_total"] > 0, "the demo model drafts")
    equal(m["kakeya_drafts_total"], m["kakeya_draft_tokens_at_total|position=0"])
    equal(m["kakeya_draft_tokens_total"], total(m, "kakeya_draft_tokens_at_total"))
    equal(m["kakeya_draft_tokens_accepted_total"], total(m, "kakeya_draft_tokens_accepted_at_total"))
    equal(m["kakeya_generation_tokens_total"], 240)
    all_ = now(s)
    each = all_["kakeya_generation_tokens_total"] / all_["kakeya_forwards_total"]
    holds(math.isclose(all_["kakeya_tokens_per_forward"], each, rel_tol=1e-8), all_["kakeya_tokens_per_forward"])
    # alone, every forward has positions of one kind
    forwards = m["kakeya_iteration_tokens_count|kind=prompt"] + m["kakeya_iteration_tokens_count|kind=decode"]
    equal(m["kakeya_iteration_seconds_count"], forwards)
    equal(m["kakeya_iteration_tokens_count|kind=decode"], m["kakeya_forwards_total"])
    holds(m["kakeya_iteration_seconds_sum"] > 0, "it took time")
    s.stop()


@test("K/V memory: the room under a limit, the part in use, and /slots says what the allocator says")
def _():
    s = Server("--memory-limit", "120M", "--cache-ram", "0", "--context", "8000")
    m = now(s)
    holds(0 < m["kakeya_kv_room_bytes"] < 120 << 20, m["kakeya_kv_room_bytes"])
    equal((total(m, "kakeya_kv_bytes"), m["kakeya_kv_used_ratio"]), (0, 0))
    body = json.dumps(chat("Hello.", stream=True, max_tokens=7000, ignore_eos=True, logprobs=True, top_logprobs=20)).encode()
    c = s.connect()  # reads nothing: the answer stalls, and its memory stays as it is
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    eventually(lambda: [x["state"] for x in s.get("/slots").json] == ["stalled"] and
               s.metric("kakeya_sessions", state="stalled") == 1, "it stalls")
    # the step in which it stalled may still be on its way: its rows have pages until it ends
    eventually(lambda: s.get("/slots").json[0]["kv_bytes"] == total(now(s), "kakeya_kv_bytes"), "both count the same")
    m, bytes_ = now(s), s.get("/slots").json[0]["kv_bytes"]
    equal(bytes_, total(m, "kakeya_kv_bytes"))
    holds(bytes_ > 1 << 20, bytes_)
    holds(math.isclose(m["kakeya_kv_used_ratio"], bytes_ / m["kakeya_kv_room_bytes"], rel_tol=1e-8), m["kakeya_kv_used_ratio"])
    c.close()
    eventually(lambda: s.get("/slots").json == [], "it has ended")
    s.stop()


@test("sessions by what they do; what is dropped for room")
def _():
    s = Server("--cache-ram", "0")
    equal(total(now(s), "kakeya_sessions"), 0)
    for i in range(10):
        ask(s, chat(f"{i} is a number. " + TEXT[:2500]))  # none of them can go on where another has ended
    m = now(s)
    equal((m["kakeya_sessions|state=idle"], m["kakeya_store_entries|kind=live"]), (8, 8))
    equal([m["kakeya_sessions_evicted_total|reason=" + r] for r in ("ttl", "lru", "close")], [0, 2, 0])
    connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT)
    connection.request("POST", "/v1/chat/completions", json.dumps(chat("Hello.", stream=True, n=3, temperature=1, max_tokens=7000,
                                                                       ignore_eos=True)), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    eventually(lambda: s.metric("kakeya_sessions", state="decode") == 3, "three of them answer")
    reply.close()
    connection.close()
    eventually(lambda: s.metric("kakeya_sessions", state="decode") == 0, "none of them answers")
    s.stop()


@test("files: how many, their bytes, writing, reading, damage, a full disk")
def _():
    path = os.path.join(folder, "files")
    s = Server("--session-dir", path)
    ask(s, chat(TEXT))
    s.stop()
    files = [os.path.join(path, f) for f in os.listdir(path) if f.endswith(".kkc")]
    holds(files, "there are files")
    s = Server("--session-dir", path)
    m = now(s)
    equal((m["kakeya_store_files"], m["kakeya_store_bytes|tier=disk"]), (len(files), sum(os.path.getsize(f) for f in files)))
    equal((m["kakeya_store_load_seconds_count"], m["kakeya_store_save_seconds_count"]), (0, 0))
    usage = ask(s, chat(TEXT))["usage"]
    m = now(s)
    equal(m["kakeya_prompt_tokens_cached_total|source=disk"], usage["prompt_tokens_details"]["cached_tokens"])
    equal(m["kakeya_store_load_seconds_count"], 1)
    holds(m["kakeya_store_load_seconds_sum"] > 0, "it took time")
    ask(s, chat("Something else. " + TEXT))
    eventually(lambda: s.metric("kakeya_store_files") > len(files), "a checkpoint is saved two seconds later")
    m = now(s)
    equal(m["kakeya_store_save_seconds_count"], m["kakeya_store_files"] - len(files))
    holds(m["kakeya_store_save_seconds_sum"] > 0, "it took time")
    s.stop()
    shutil.rmtree(path)
    s = Server("--session-dir", path)
    ask(s, chat(TEXT))
    s.stop()
    for f in os.listdir(path):
        if f.endswith(".kkc"):
            with open(os.path.join(path, f), "r+b") as damaged:
                damaged.seek(-200, 2)
                byte = damaged.read(1)
                damaged.seek(-1, 1)
                damaged.write(bytes([byte[0] ^ 1]))
    s = Server("--session-dir", path)
    ask(s, chat(TEXT))
    bad = [f for f in os.listdir(path) if f.endswith(".bad")]
    holds(bad, "a damaged file is set aside")
    equal([s.metric("kakeya_store_errors_total", kind=k) for k in ("corrupt", "full", "io")], [len(bad), 0, 0])
    s.stop()
    s = Server("--session-dir", os.path.join(folder, "full"), wrapper=["sh", "-c", 'ulimit -f 200; exec "$@"', "sh"])
    ask(s, chat(TEXT))
    eventually(lambda: s.metric("kakeya_store_errors_total", kind="full") + s.metric("kakeya_store_errors_total", kind="io") > 0,
               "the file does not fit")
    equal(s.metric("kakeya_store_files"), 0)
    s.stop()


@test("ignored fields by name, from a list that does not grow; repairs by kind")
def _():
    s = Server()
    before = now(s)
    ask(s, chat("Hello.", max_tokens=1, foo=1, bar={"options": 1}, keep_alive=3, options={"x": 1}))
    ask(s, {"model": "demo", "max_tokens": 1, "container": "x", "messages": [{"role": "user", "content": "Hello."}],
            "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "/v1/messages")
    m = moved(s, before)
    equal({k.split("field=")[1]: v for k, v in m.items() if "fields_ignored" in k and v},
          {"other": 2, "keep_alive": 1, "options": 1, "container": 1, "tools": 1})
    s.stop()
    # calls are mended where no grammar holds them; every call of an answer here has one
    for script, kinds in (("Well.", (0, 0)), ("We<|tool>ll<tool|>.", (2, 0))):
        s = Server("--name", "demo", model=scripted_model(script))
        before = now(s)
        ask(s, chat("Hello."))
        m = moved(s, before)
        equal((script, m["kakeya_parser_repairs_total|kind=token"], m["kakeya_parser_repairs_total|kind=call"]), (script, *kinds))
        s.stop()


@test("the same schema again is not compiled again; grammars go with the model that sleeps")
def _():
    s = Server("--idle-unload", "1")
    def json_of(name):
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {name: {"type": "boolean"}}, "required": [name], "additionalProperties": False}}}
    first = [ask(s, chat("Hello.", max_tokens=50, response_format=json_of(n)))["choices"] for n in ("a", "b")]
    again = [ask(s, chat("Hello.", max_tokens=50, response_format=json_of(n)))["choices"] for n in ("a", "b", "a")]
    equal(again, [first[0], first[1], first[0]])
    wrong = chat("Hello.", guided_regex="(")
    refusals = [s.post("/v1/chat/completions", wrong) for _ in range(3)]
    equal([(r.status, r.body) for r in refusals], [(400, refusals[0].body)] * 3)
    m = now(s)
    if not s.log().count("sleeping: "):  # a machine that stands still for a second may let it sleep
        equal([m["kakeya_grammars_compiled_total"], m["kakeya_grammars_reused_total"], m["kakeya_grammars"],
               m["kakeya_grammars_refused_total"]], [2, 5, 3, 1])
        holds(m["kakeya_grammar_bytes"] > 500, m["kakeya_grammar_bytes"])
    eventually(lambda: s.log().count("sleeping: ") > s.log().count("awake after"), "it sleeps")
    equal((s.metric("kakeya_grammars"), s.metric("kakeya_grammar_bytes")), (0, 0))
    equal(ask(s, chat("Hello.", max_tokens=50, response_format=json_of("a")))["choices"], first[0])
    s.stop()


PAIRS = {"requests_running": "num_requests_running", "requests_waiting": "num_requests_waiting",
         "prompt_tokens_total": "prompt_tokens_total", "generation_tokens_total": "generation_tokens_total",
         "drafts_total": "spec_decode_num_drafts_total", "draft_tokens_total": "spec_decode_num_draft_tokens_total",
         "draft_tokens_accepted_total": "spec_decode_num_accepted_tokens_total",
         "draft_tokens_accepted_at_total": "spec_decode_num_accepted_tokens_per_pos_total",
         "preemptions_total": "num_preemptions_total", "kv_used_ratio": "kv_cache_usage_perc",
         **{n: n for n in ("time_to_first_token_seconds_sum", "inter_token_latency_seconds_count", "e2e_request_latency_seconds_bucket",
                           "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum",
                           "request_decode_time_seconds_sum", "request_prompt_tokens_sum", "request_generation_tokens_sum")}}


@test("--metrics-names: vLLM's names have the same values; with both there are both, by default the project's alone")
def _():
    values = {}
    for names in ("kakeya", "vllm", "both"):
        s = Server(*(["--metrics-names", names] if names != "kakeya" else []))
        for _ in range(2):
            ask(s, chat(TEXT[:500], ignore_eos=True))
        text = text_of(s)
        values[names] = read_metrics(re.sub(r'model_name="[^"]*"', 'model="x"', re.sub(r'model="[^"]*"', 'model="x"', text)))
        equal("vllm:" in text, names != "kakeya")
        s.stop()
    both = values["both"]
    for own, vllm in PAIRS.items():
        mine = {k: v for k, v in both.items() if k.split("|")[0] == "kakeya_" + own}
        holds(mine, own)
        for key, value in mine.items():
            equal(both[key.replace("kakeya_" + own, "vllm:" + vllm)], value, key)
        holds(not [k for k in values["vllm"] if k.split("|")[0] == "kakeya_" + own], own)
        holds([k for k in values["vllm"] if k.split("|")[0] == "vllm:" + vllm], vllm)
    equal(both["vllm:request_success_total|finished_reason=length"], 2)
    equal(both["vllm:prefix_cache_queries_total"], both["kakeya_prompt_tokens_total"])
    equal(both["vllm:prefix_cache_hits_total"], total(both, "kakeya_prompt_tokens_cached_total"))
    equal(both["vllm:iteration_tokens_total_sum"], total(both, "kakeya_iteration_tokens_sum"))
    equal(both["vllm:iteration_tokens_total_count"], both["kakeya_iteration_seconds_count"])
    holds("kakeya_sessions|state=idle" in values["vllm"], "what vLLM has no name for keeps its own")
    made = subprocess.run([KAKEYA, "serve", "--metrics-names", "prometheus"], capture_output=True, text=True, timeout=WAIT)
    equal(made.returncode, 2)
    holds("metrics-names" in made.stderr and "prometheus" in made.stderr, made.stderr)


try:
    run_tests()
finally:
    shutil.rmtree(folder, ignore_errors=True)
