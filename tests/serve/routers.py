"""Two replicas behind the routers that exist: vllm-router by K/V events, sglang-router by prefixes, and at random beside them."""

import http.client
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from harness import WAIT, Server, equal, eventually, holds, in_threads, metrics, run_tests, test, text_of
from kv_harness import publishing_server
from pictures import picture, png, text, user

CONVERSATIONS, TURNS, AT_A_TIME = 40, 5, 2
WORDS = """the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were when
we there can an your which their said if do will each about how up out them then she many some so these would other into has""".split()


def free_port():
    """One that nothing listens at, of those that the system gives to no connection on its own."""
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Router:
    """A router in front of replicas, with what it says."""

    def __init__(self, module, policy, replicas, *options):
        self.port, self.metrics_port = free_port(), free_port()
        self.log_file = tempfile.TemporaryFile()
        self.sequences, self.read = {}, 0
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(self.port), "--policy", policy,
                   "--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.metrics_port), "--log-level", "debug",
                   *options, "--worker-urls", *[r.url for r in replicas]]
        self.process = subprocess.Popen(command, stdout=self.log_file, stderr=self.log_file, stdin=subprocess.DEVNULL)
        try:
            eventually(self.is_up, f"{module} answers")
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.log()[-2000:]}") from None
        if module.startswith("sglang"):  # it answers first and learns of the replicas then, forgetting prefixes with each
            eventually(lambda: all(self.has_added(r) for r in replicas), "it knows the replicas")

    def has_added(self, replica):
        return f"Completed job: type=AddWorker, worker={replica.url}," in self.log()

    def is_up(self):
        holds(self.process.poll() is None, "the router ended")
        try:
            return self.get("/health") == 200
        except OSError:
            return False

    def get(self, path, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request(method, path)
        status = connection.getresponse().status
        connection.close()
        return status

    def log(self):
        return re.sub(r"\x1b\[[0-9;]*m", "", text_of(self.log_file))

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=WAIT)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def sequence(self, replica):
        """The number of the newest event of the replica that the router has taken."""
        found = re.findall(rf"live sequence advanced source={re.escape(replica.url)} rank=0 seq=(\d+)", self.log())
        return int(found[-1]) if found else -1

    def subscribe(self, replicas):
        """Waits until it hears the replicas: each says something new until the router has it."""
        for replica in replicas:
            draw = random.Random(replica.port)

            def heard(replica=replica, draw=draw):
                prompt = [draw.randrange(200, 330) for _ in range(40)]  # which every model here has
                replica.post("/v1/completions", {"model": "demo", "prompt": prompt, "max_tokens": 1})
                return self.catch_up([replica], 1)

            eventually(heard, f"the router hears {replica.url}")

    def catch_up(self, replicas, seconds=None):
        """Waits until it has taken every event that was published before now."""
        for replica in replicas:
            due = published(replica) - 1
            end = time.monotonic() + (seconds or WAIT)
            while self.sequence(replica) < due:
                if time.monotonic() > end:
                    holds(seconds, f"{replica.url}: event {due} is not taken, only {self.sequence(replica)}")
                    return False
                time.sleep(0.02)
        return True

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def published(replica):
    values = metrics(replica.get("/metrics").body.decode())
    return int(sum(v for k, v in values.items() if k.startswith("kakeya_kv_events_total")))


def kv_router(replicas, policy="kv_aware"):
    options = ["--kv-event-model", "demo", "--kv-event-block-size", "16"] if policy == "kv_aware" else []
    for r in replicas if policy == "kv_aware" else ():
        options += ["--kv-event-source", f"{r.url}={r.addresses['kv_events']}",
                    "--kv-event-replay-source", f"{r.url}={r.addresses['kv_events_replay']}"]
    router = Router("vllm_router.launch_router", policy, replicas, *options)
    if policy == "kv_aware":
        router.subscribe(replicas)
    return router


class Conversation:
    def __init__(self, number, words=290):
        self.number, self.draw = number, random.Random(number)
        self.messages = [{"role": "user", "content": f"{number}: " + " ".join(self.draw.choices(WORDS, k=words))}]
        self.turns = []  # (request's id, tokens of the prompt, cached, of the answer, seconds to the first token)

    def ask(self, router, tokens=6):
        """One turn, as a stream; None where the router has nobody to answer."""
        body = {"model": "demo", "messages": self.messages, "max_tokens": tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=WAIT)
        begin = time.monotonic()
        name = f"talk-{self.number}-{len(self.turns)}"
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "x-request-id": name})
        reply = connection.getresponse()
        if reply.status != 200:
            connection.close()
            return None
        text, first, usage, lines = "", None, None, []
        for line in reply:
            lines.append(line)
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    first = first or time.monotonic() - begin
                    text += choice["delta"]["content"]
        connection.close()
        holds(usage, f"the stream is cut: {b''.join(lines)[-300:]}; the router: {router.log()[-2000:]}")
        self.turns.append((name, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
                           usage["completion_tokens"], first or time.monotonic() - begin))
        self.messages += [{"role": "assistant", "content": text},
                          {"role": "user", "content": " ".join(self.draw.choices(WORDS, k=12))}]
        return text

    def again(self):
        """Tokens that were computed although a replica had computed them; all tokens of the prompts."""
        lost = sum(max(0, a[1] + a[3] - 1 - b[2]) for a, b in zip(self.turns, self.turns[1:]))
        return lost, sum(t[1] for t in self.turns)


def converse(router, replicas, settle, conversations=CONVERSATIONS):
    """All conversations, turn by turn; (share that comes back, share computed again, median seconds to first tokens of later turns)."""
    talks = [Conversation(n) for n in range(conversations)]
    for _ in range(TURNS):
        waiting = list(talks)
        lock = threading.Lock()

        def work():
            while True:
                with lock:
                    if not waiting:
                        return
                    talk = waiting.pop()
                holds(talk.ask(router) is not None, "it is answered")

        in_threads([work] * AT_A_TIME)
        settle()
    logs = [r.log() for r in replicas]
    owner = lambda turn: next(i for i, log in enumerate(logs) if turn[0] + " POST" in log)  # noqa: E731
    owners = [[owner(t) for t in talk.turns] for talk in talks]
    back = sum(a == b for talk in owners for a, b in zip(talk, talk[1:])) / (conversations * (TURNS - 1))
    lost, total = map(sum, zip(*[t.again() for t in talks]))
    first = sorted(t[4] for talk in talks for t in talk.turns[1:])
    used = {o for talk in owners for o in talk}
    return back, lost / total, first[len(first) // 2], used


def figures(name, result):
    back, again, first, used = result
    print(f"# {name}: {100 * back:.1f} % come back, {100 * again:.2f} % of the prompts' tokens computed again, "
          f"first token of a later turn after {1000 * first:.0f} ms (median), {len(used)} replicas used", flush=True)
    return result


@test("vllm-router, kv_aware: conversations come back to what holds them; at random they do not")
def _():
    replicas = [publishing_server("--strict") for _ in range(2)]
    router = kv_router(replicas)
    back, again, _, used = figures("vllm-router kv_aware", converse(router, replicas, lambda: router.catch_up(replicas)))
    lookups = router.metrics()
    hits, misses = (float(re.search(rf'vllm_router_kv_placement_lookups_total{{result="{r}"}} (\d+)', lookups)[1]) for r in ("hit", "miss"))
    credited = [int(n) for n in re.findall(r"KV prefix decision .*credited_prefix_tokens=(\d+)", router.log())]
    router.stop()
    for r in replicas:
        r.stop()
    holds(back >= 0.98 and again < 0.02, (back, again))
    equal(used, {0, 1}, "new conversations are spread")
    holds(sum(n > 0 for n in credited) >= 0.98 * CONVERSATIONS * (TURNS - 1), "the router credits what it was told")
    holds(hits >= CONVERSATIONS * (TURNS - 1), (hits, misses))
    replicas = [publishing_server("--strict") for _ in range(2)]
    router = kv_router(replicas, "random")
    random_back, random_again, _, _ = figures("vllm-router random", converse(router, replicas, lambda: None, CONVERSATIONS // 2))
    router.stop()
    for r in replicas:
        r.stop()
    holds(random_back < 0.8 and random_again > 0.05, (random_back, random_again))


def gets_new_conversations(router, replica):
    """Several at a time, so that the others have something to do."""
    number = 1000

    def reached():
        nonlocal number
        number += 4
        in_threads([lambda n=n: Conversation(n).ask(router) for n in range(number, number + 4)])
        return replica.metric("kakeya_prompt_tokens_total") > 0

    eventually(reached, "it gets one")


@test("sglang-router, cache_aware: conversations come back; a replica that is added gets new ones")
def _():
    replicas = [Server("--name", "demo", "--strict") for _ in range(2)]
    router = Router("sglang_router.launch_router", "cache_aware", replicas)
    back, again, _, used = figures("sglang-router cache_aware", converse(router, replicas, lambda: None))
    holds(back >= 0.98 and again < 0.02, (back, again))
    equal(used, {0, 1}, "new conversations are spread")
    added = Server("--name", "demo", "--strict")
    body = json.dumps({"url": added.url})
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=WAIT)
    connection.request("POST", "/workers", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    holds(reply.status in (200, 201, 202), (reply.status, reply.read()))
    connection.close()
    gets_new_conversations(router, added)
    router.stop()
    for r in [*replicas, added]:
        r.stop()


@test("vllm-router, kv_aware: pictures, of which it wants to know nothing, are answered, and texts beside them come back")
def _():
    options = ("--strict", "--backend", "cpu", "--precision", "f32", "--image-budget", "70")
    replicas = [publishing_server(*options, model="tests/data/vision/tiny-tower") for _ in range(2)]
    router = kv_router(replicas)
    seen, plain = Conversation(1, 60), Conversation(2, 60)
    seen.messages = [user(picture(png(160, 120)), text(seen.messages[0]["content"]))]
    for _ in range(3):
        for talk in (seen, plain):
            holds(talk.ask(router) is not None, "it is answered")
            router.catch_up(replicas)  # which fails where it does not take the events
    holds('reason="multimodal_input"' in router.log(), "it looks nothing up for pictures")
    credited = [int(n) for n in re.findall(r'KV prefix decision outcome="prefix_cost".*credited_prefix_tokens=(\d+)', router.log())]
    holds(len(credited) == 3 and min(credited[1:]) > 0, f"credited: {credited}")
    router.stop()
    for r in replicas:
        r.stop()


def owner_of(talk, replicas):
    return next(r for r in replicas if talk.turns[-1][0] + " POST" in r.log())


def survive(router, replicas, settle):
    """A replica is killed in an answer, and the other goes on; returns both, the dead one first."""
    talk = Conversation(1, 700)
    talk.ask(router)
    owner = owner_of(talk, replicas)
    other = next(r for r in replicas if r is not owner)
    eventually(lambda: owner.metric("kakeya_store_files") >= 1, "the conversation is in a file")
    settle()
    # the rest of the answer does not come
    body = {"model": "demo", "messages": talk.messages, "max_tokens": 2000, "temperature": 0, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=WAIT)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    equal(reply.status, 200)
    holds(reply.readline(), "it has begun")
    holds(owner.metric("kakeya_requests_running") == 1, "where the conversation is known")
    owner.process.kill()
    owner.process.wait()
    connection.close()
    asked = list(talk.messages)
    said = eventually(lambda: talk.ask(router, 12), "the router turns to the other one")
    equal(owner_of(talk, [other]), other)
    holds(talk.turns[-1][2] >= 600, f"{talk.turns[-1][2]} of {talk.turns[-1][1]} tokens are found")
    holds(other.metric("kakeya_prompt_tokens_cached_total", source="disk") >= 600, "in the directory")
    alone = Server("--name", "demo")
    undisturbed = alone.post("/v1/chat/completions", {"model": "demo", "messages": asked, "max_tokens": 12, "temperature": 0}).json
    equal(said, undisturbed["choices"][0]["message"]["content"], "the same tokens as of one that nobody disturbed")
    alone.stop()
    return owner, other


@test("vllm-router, kv_aware: a replica is killed in an answer, the other goes on from the shared directory with the same tokens; "
      "one that comes gets new conversations")
def _():
    directory = tempfile.mkdtemp()
    replicas = [publishing_server("--session-dir", directory) for _ in range(2)]
    router = kv_router(replicas)
    owner, _ = survive(router, replicas, lambda: router.catch_up(replicas))
    # one more comes, where the router expects it
    addresses = [x for name in ("kv-events", "kv-events-replay") for x in (f"--{name}", owner.addresses[name.replace("-", "_")])]
    added = publishing_server("--session-dir", directory, "--port", str(owner.port), *addresses)
    gets_new_conversations(router, added)
    router.stop()
    for r in (*replicas, added):
        r.stop()


@test("sglang-router, cache_aware: a replica is killed in an answer, the other goes on from the shared directory with the same tokens")
def _():
    directory = tempfile.mkdtemp()
    replicas = [Server("--name", "demo", "--session-dir", directory) for _ in range(2)]
    router = Router("sglang_router.launch_router", "cache_aware", replicas)
    survive(router, replicas, lambda: None)
    router.stop()
    for r in replicas:
        r.stop()


if __name__ == "__main__":
    run_tests()
