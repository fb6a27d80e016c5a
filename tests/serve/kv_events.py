"""K/V events: what is published can be resumed, in time and again; salts; pictures; replays; restarts; directories that are shared."""

import http.client
import json
import random
import subprocess
import tempfile
import time

import zmq

from harness import KAKEYA, WAIT, Server, equal, eventually, holds, run_tests, test
from kv_harness import BLOCK, Blocks, Consumer, publishing_server, replay
from pictures import picture, png, text, user

WORDS = "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were".split()
OTHER = 5  # a token that no text has


def ask(server, ids, salt=None, tokens=4, **more):
    body = {"model": "demo", "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
    if salt:
        body["cache_salt"] = salt
    reply = server.post("/v1/completions", body)
    equal(reply.status, 200, reply.body)
    return reply.json


def chat(server, draw):
    """Which leaves checkpoints: behind one of three system turns that others share, and behind the prompt."""
    words = lambda n, seed: " ".join(random.Random(seed).choices(WORDS, k=n))  # noqa: E731
    messages = [{"role": "system", "content": words(300, draw.randrange(3))},
                {"role": "user", "content": words(draw.randrange(5, 200), draw.random())}]
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0})
    equal(reply.status, 200, reply.body)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def resumes(server, ids, salt, but=0):
    """Nothing of the ids is computed by a request that begins with them, `but` for so many rows at the end."""
    found = cached(ask(server, ids + [OTHER], salt, 1))
    holds(found >= len(ids) - but, f"{len(ids)} tokens are published, {found} are found")


def play(steps, *options, but=0):
    """Random conversations, and requests with what is published; how many of these there were."""
    draw = random.Random(1)
    server = publishing_server("--cache-ram", "20M", *options)
    consumer = Consumer(server)
    talks = []
    checked = {"GPU": 0, "CPU": 0}
    for _ in range(steps):
        if draw.random() < 0.4:
            chat(server, draw)
        if len(talks) < 6 or draw.random() < 0.15:
            begin = draw.choice(talks)[0] if talks and draw.random() < 0.5 else []
            begin = begin[:draw.randrange(len(begin) + 1)]
            new = [draw.randrange(200, 3000) for _ in range(draw.randrange(100, 500))]
            talks.append((begin + new, draw.choice([None, None, "a", "b"])))
        i = draw.randrange(len(talks))
        ids, salt = talks[i]
        answer = ask(server, ids, salt, draw.randrange(1, 20))
        said = answer["choices"][0]["token_ids"]
        talks[i] = (ids + said + [draw.randrange(200, 3000) for _ in range(draw.randrange(1, 60))], salt)
        if len(talks[i][0]) > 900:
            del talks[i]
        consumer.catch_up()
        medium = draw.choice(list(checked))
        ends = consumer.ends(medium)
        if ends and draw.random() < 0.5:
            resumes(server, *draw.choice(ends), but)
            checked[medium] += 1
            consumer.catch_up()
    checked["evictions"] = server.metric("kakeya_sessions_evicted_total", reason="lru")
    blocks = {m: server.metric("kakeya_kv_event_blocks", medium=m.lower()) for m in consumer.known}
    equal(blocks, {m: float(len(known)) for m, known in consumer.known.items()}, "the gauge is what consumers know")
    server.stop()
    consumer.close()
    return checked


@test("every beginning that is published is resumed without computing a row of it, whatever is given up meanwhile")
def _():
    checked = play(40)
    holds(min(checked.values()) > 2, checked)


@test("the same under bounded policies, where rows of prompts alone serve others; with --reuse any an answer's last row is computed again")
def _():
    for reuse in ("exact", "any"):
        checked = play(14, "--attention", "restored", "--reuse", reuse, but=int(reuse == "any"))
        holds(checked["CPU"] > 2, checked)


def stream_first_token(server, ids):
    """When the first token came; the rest is read, too."""
    body = {"model": "demo", "prompt": ids, "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    while b'"text"' not in reply.readline():
        pass
    came = time.time()
    reply.read()
    connection.close()
    return came


@test("a row is published before its answer has ended, and its removal before the next answer begins")
def _():
    server = publishing_server()
    consumer = Consumer(server)
    ids = list(range(300, 700))
    delays = []
    for turn in range(5):
        begin = len(consumer.log)
        answer = ask(server, ids)
        ended = time.time()
        consumer.catch_up()
        new = consumer.log[begin:]
        stored = [t for t, e in new if e["type"] == "BlockStored"]
        holds(stored and stored[-1] <= ended, "it is published")
        equal([e["type"] for _, e in new if e.get("medium") == "GPU"],
              ["BlockStored"] if turn == 0 else ["BlockRemoved", "BlockStored"], "what the next turn takes is gone meanwhile")
        held = (len(ids) + len(answer["choices"][0]["token_ids"]) - 1) // BLOCK * BLOCK
        equal([len(e) for e, _ in consumer.ends("GPU")], [held], "all whole blocks that are computed")
        ids += answer["choices"][0]["token_ids"] + [400 + turn] * 30
        delays.append(ended - stored[-1])
    began = time.time()
    first_token = stream_first_token(server, ids)
    consumer.catch_up()
    removed = [t for t, e in consumer.log if e["type"] == "BlockRemoved" and t >= began]
    holds(removed and removed[0] <= first_token, "removed before the first token")
    print(f"# published {1000 * sorted(delays)[2]:.1f} ms before the client has the answer (median of 5)")
    server.stop()
    consumer.close()


@test("cache_salt: a key of the first block, nothing is shared between salts, not with none either")
def _():
    server = publishing_server()
    consumer = Consumer(server)
    ids = list(range(300, 500))
    for salt in (None, "a", "b"):
        equal(cached(ask(server, ids, salt)), 0, salt)
        holds(cached(ask(server, ids, salt)) >= 199, salt)
    consumer.catch_up()
    equal(sorted(salt or "" for _, salt in consumer.ends("GPU")), ["", "a", "b"])
    for path, body in (("/v1/completions", {"prompt": "x", "max_tokens": 1}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
                       ("/v1/responses", {"input": "x", "max_output_tokens": 1})):
        refused = server.post(path, {"model": "demo", "cache_salt": "", **body})
        equal((refused.status, refused.error["param"]), (400, "cache_salt"), path)
        equal(server.post(path, {"model": "demo", "cache_salt": "a", **body}).status, 200, path)
    message = {"model": "demo", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 1}
    refused = server.post("/v1/messages", {**message, "cache_salt": ""})
    holds(refused.status == 400 and "cache_salt" in refused.error["message"], refused.body)
    found = [server.post("/v1/messages", {**message, "cache_salt": salt}).json["usage"]["cache_read_input_tokens"] > 0 for salt in "ccd"]
    equal(found, [False, True, False], "/v1/messages")
    server.stop()
    consumer.close()


LONG = "What is this, and what is it not? " * 20 + "And that?"  # so that there are checkpoints
VISION = ("--backend", "cpu", "--precision", "f32", "--image-budget", "70")


class Pictures:
    """A conversation with pictures, at a server whose events somebody hears."""

    def __init__(self, server, consumer, salt=None):
        self.server, self.consumer, self.salt, self.messages = server, consumer, salt, []
        letters = server.post("/tokenize", {"model": "demo", "prompt": "abcdefgh", "add_special_tokens": False}).json["tokens"]
        self.letters = {str(token): 50 for token in letters}  # what a random model says otherwise is hardly text

    def ask(self, *parts, **more):
        """What a router expects, {medium: (at most, at least)}, what is found, and where the first picture begins."""
        self.messages.append(user(*parts))
        body = {"model": "demo", "messages": self.messages, "max_tokens": 20, "temperature": 0, "logit_bias": self.letters, **more}
        if self.salt:
            body["cache_salt"] = self.salt
        rendered = self.server.post("/v1/chat/completions/render", body)
        equal(rendered.status, 200, rendered.body)
        self.consumer.catch_up()
        credit = {medium: self.consumer.credit(medium, rendered.json, self.salt) for medium in self.consumer.known}
        reply = self.server.post("/v1/chat/completions", body)
        equal(reply.status, 200, reply.body)
        self.messages.append({"role": "assistant", "content": reply.json["choices"][0]["message"]["content"]})
        self.consumer.catch_up()
        places = (rendered.json["features"] or {"mm_placeholders": {"image": [{"offset": 0}]}})["mm_placeholders"]["image"]
        return credit, cached(reply.json), places[0]["offset"]


@test("pictures: their digests, as render tells them, are keys of the blocks that they touch; who compares them finds what is there")
def _():
    first, second = png(160, 120), png(90, 200)
    directory = tempfile.mkdtemp()
    server = publishing_server(*VISION, "--session-dir", directory, model="tests/data/vision/tiny-tower")
    consumer = Consumer(server)
    talks = []
    for salt in (None, "a"):
        talk = Pictures(server, consumer, salt)
        talks.append(talk)
        credit, found, begin = talk.ask(picture(first), text(LONG))
        holds(begin < BLOCK and found == 0 and set(credit.values()) == {(0, 0)}, f"{salt}: {credit}, {found} found, a picture at {begin}")
        for parts in ([text("And what is it not, if it is not this?")], [text("Another one."), picture(second), text(LONG)],
                      [text("Which of them?")]):
            credit, found, _ = talk.ask(*parts)
            most, least = (max(values) for values in zip(*credit.values()))
            holds(max(BLOCK, least) <= found < most + BLOCK, f"{salt}: {credit}, {found} are found")
    for medium in ("GPU", "CPU"):
        keys = [k for _, _, keys in consumer.known[medium].values() for k in keys or ()]
        equal({type(k) for k in keys}, {list, str}, medium)
        equal(len({k[0] for k in keys if isinstance(k, list)}), 2, f"two pictures, {medium}")
    other = Pictures(server, consumer)  # the same ids, but for one pixel
    credit, found, begin = other.ask(picture(png(160, 120, changed=(3, 3))), text(LONG))
    equal((set(credit.values()), found <= begin), ({(0, 0)}, True), "another picture's block is another one")
    server.stop()
    server = publishing_server(*VISION, "--session-dir", directory, model="tests/data/vision/tiny-tower")
    consumer.close()
    consumer = Consumer(server)
    for talk in talks:
        talk.server, talk.consumer = server, consumer
        credit, found, _ = talk.ask(text("Go on."))
        holds(max(BLOCK, credit["DISK"][1]) <= found < credit["DISK"][0] + BLOCK, f"{talk.salt}, from files: {credit}, {found} are found")
    consumer.close()
    server.stop()
    blind = publishing_server(*VISION[:4], "--vision", "off", "--session-dir", directory, model="tests/data/vision/tiny-tower")
    consumer = Consumer(blind)
    consumer.catch_up()
    equal(consumer.known["DISK"], {}, "who reads no pictures has no use for such files")
    consumer.close()
    blind.stop()


@test("conversations with pictures, at random and with too little memory: what is published is found")
def _():
    draw = random.Random(1)
    pictures = [png(160, 120), png(160, 120, changed=(1, 1)), png(90, 200)]
    server = publishing_server(*VISION, "--cache-ram", "3M", model="tests/data/vision/tiny-tower")
    consumer = Consumer(server)
    talks, checked = [], 0

    def parts():
        words = text(" ".join(draw.choices(["what", "is", "this", "and", "it", "not"], k=draw.choice([1, 10, 60, 150]))))
        return draw.choice([[words], [picture(draw.choice(pictures)), words], [words, *map(picture, draw.sample(pictures, 2))]])

    for _ in range(60):
        choice = draw.random()
        if len(talks) < 3 or choice < 0.15:
            talks.append(Pictures(server, consumer, draw.choice([None, None, "a"])))
        elif choice < 0.3:  # an edited history
            like = draw.choice(talks)
            talks.append(Pictures(server, consumer, like.salt))
            talks[-1].messages = like.messages[:2 * draw.randrange(len(like.messages) // 2 + 1)]
        talk = talks[-1] if draw.random() < 0.5 else draw.choice(talks)
        more = {"max_tokens": draw.randrange(1, 30), "temperature": 1, "seed": draw.randrange(99), "n": draw.choice([1, 1, 2])}
        credit, found, _ = talk.ask(*parts(), **more)
        least = max(value[1] for value in credit.values())
        holds(least <= found, f"{credit} of {len(talk.messages)} messages, salt {talk.salt}: {found} are found")
        checked += least > 0
        talks = [t for t in talks if len(t.messages) < 10][-7:]
    holds(checked > 5 and server.metric("kakeya_sessions_evicted_total", reason="lru") > 0, checked)
    server.stop()
    consumer.close()


@test("replays: from any number on, by DEALER and REQ; what they say is what was published")
def _():
    server = publishing_server()
    consumer = Consumer(server)
    for i in range(4):
        ask(server, list(range(300 + i, 500 + i)))
    consumer.catch_up()
    for first in (0, 3, consumer.next - 1):
        equal([n for n, _ in replay(server, first)], list(range(first, consumer.next)))
    late = Blocks()
    for number, payload in replay(server, 0, envelope=()):
        late.take(number, payload)
    equal(late.known, consumer.known, "who comes late knows the same")
    equal(late.log[0][1], {"type": "AllBlocksCleared"}, "a new server begins")
    s = zmq.Context.instance().socket(zmq.REQ)
    s.connect(server.addresses["kv_events_replay"])
    s.send((consumer.next).to_bytes(8, "big"))
    equal(s.recv_multipart(), [b"\xff" * 8, b""], "nothing is there behind the last")
    s.close(0)
    junk = zmq.Context.instance().socket(zmq.DEALER)
    junk.connect(server.addresses["kv_events_replay"])
    for frames in ([b""], [b"", b"1234567"], [b"x" * 300, b"12345678"], [b"", b"", b"", b"", b"", b"12345678"]):
        junk.send_multipart(frames)
    equal(len(replay(server, 0)), consumer.next, "what nobody can answer is passed over")
    equal(junk.poll(100), 0)
    junk.close(0)
    server.stop()
    consumer.close()


@test("files: published from disk behind a restart and by servers that share the directory, gone when they are")
def _():
    directory = tempfile.mkdtemp()
    ids = [200 + i % 2500 for i in range(900)]
    first = publishing_server("--session-dir", directory)
    ask(first, ids)
    ask(first, ids[:600], "secret")
    other = publishing_server("--session-dir", directory)
    theirs = Consumer(other)
    first.stop()  # which saves
    again = publishing_server("--session-dir", directory)
    ours = Consumer(again)
    ours.catch_up()
    expected = sorted([(896, None), (592, "secret")], key=str)
    equal(sorted(((len(e), salt) for e, salt in ours.ends("DISK")), key=str), expected, "the next server knows the files")
    ask(other, [7] * 20)  # who looks sees them
    theirs.catch_up()
    equal(sorted(((len(e), salt) for e, salt in theirs.ends("DISK")), key=str), expected, "so does one that shares the directory")
    for server, consumer in ((again, ours), (other, theirs)):
        for end, salt in consumer.ends("DISK"):
            resumes(server, end, salt)
    equal(subprocess.run(["sh", "-c", f"rm {directory}/*.kkc"]).returncode, 0)
    ask(again, [8] * 20)
    ours.catch_up()
    equal(ours.known["DISK"], {}, "what is removed is published no more")
    again.stop()
    other.stop()
    ours.close()
    theirs.close()


@test("options: a topic, an address that is taken, one that is none, options that need the first")
def _():
    server = publishing_server("--kv-events-topic", "kv@here@demo")
    consumer = Consumer(server, b"kv@here@demo")
    ask(server, list(range(300, 400)))
    eventually(lambda: consumer.receive(0.1) or consumer.next > 1, "the topic")
    taken = server.addresses["kv_events"]
    for address in (taken, "tcp://nowhere", "x"):
        done = subprocess.run([KAKEYA, "serve", "--port", "0", "--grpc", "off", "--kv-events", address], capture_output=True, text=True)
        line = done.stderr.strip().splitlines()[-1]
        equal(done.returncode, 1, address)
        holds("K/V events" in line and address in line, line)
    for option in ("--kv-events-topic", "--kv-events-replay"):
        done = subprocess.run([KAKEYA, "serve", option, "x"], capture_output=True, text=True)
        equal(done.returncode, 2, option)
    server.stop()
    consumer.close()
    plain = Server()
    equal(sorted(plain.addresses), ["grpc", "http"], "who does not publish says nothing of it")
    holds("kv_event" not in plain.get("/metrics").body.decode(), "nor counts it")
    plain.stop()


if __name__ == "__main__":
    run_tests()
