"""The Python package: what its users' programs see, with the demo model that it brings."""

import doctest
import importlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy
from harness import equal, eventually, holds, run_tests, test

import kakeya
from kakeya import Engine, Grammar, InvalidArgumentError, Tokenizer

PROMPT = "def fibonacci(n):"
HERE = os.path.dirname(os.path.abspath(kakeya.__file__))
engine = Engine(threads=1)


def raises(kind, function, word=""):
    try:
        function()
    except kind as error:
        holds(isinstance(error, kakeya.KakeyaError) and word in str(error), f"{type(error).__name__}: {error}")
        return
    raise AssertionError(f"no {kind.__name__}")


def program(*arguments, **more):
    return subprocess.run([os.path.join(os.path.dirname(sys.executable), "kakeya"), *arguments], capture_output=True, text=True,
                          check=True, **more).stdout


@test("what pip has installed: module, types, library, program, and a model")
def installed():
    holds(not HERE.startswith(os.path.abspath("python")), HERE)
    for name in ("py.typed", "lib/libkakeya.so", "bin/kakeya", "share/kakeya/models/demo/config.json", "v1/runtime_pb2.py"):
        holds(os.path.exists(os.path.join(HERE, name)), name)
    holds(all(hasattr(kakeya, name) for name in kakeya.__all__))
    holds(kakeya.version() in program("--version"), "the program's version")


@test("every public class and method has a docstring with an example that runs, where it computes something")
def examples():
    for name in ("kakeya", "kakeya.engine", "kakeya.session", "kakeya.text"):
        result = doctest.testmod(importlib.import_module(name))
        holds(result.attempted > 0 and result.failed == 0, f"{name}: {result}")
    for kind in (Engine, kakeya.Session, Tokenizer, Grammar, kakeya.Answer):
        for name, member in vars(kind).items():
            holds(name.startswith("_") or member.__doc__, f"{kind.__name__}.{name}")


@test("tokens are those of the program, in every mode")
def same_tokens():
    text = program("run", "--raw", "--max-tokens", "24", "--threads", "1", PROMPT)
    for mode in ("auto", "ar", "speculative", "ngram"):
        with engine.session() as session:
            answer = session.generate(PROMPT, max_tokens=24, mode=mode)
            tokens = list(answer)
            equal("".join(token.text for token in tokens).strip(), text.strip(), mode)
            equal([token.id for token in tokens], session.tokens[-len(tokens):], "the timeline")
            equal([token.position for token in tokens], list(range(len(session.tokens) - len(tokens), len(session.tokens))))
            equal((answer.stats.completion_tokens, answer.stats.finish), (len(tokens), "length"))


@test("sessions that answer at the same time say what each says alone")
def together():
    prompts = [f"def function_{i}(x):" for i in range(5)]

    def alone(prompt):
        with engine.session() as session:
            return session.generate(prompt, max_tokens=12, temperature=1.0, seed=5).text

    expected = [alone(prompt) for prompt in prompts]
    sessions = [engine.session() for _ in prompts]
    answers = [s.generate(p, max_tokens=12, temperature=1.0, seed=5) for s, p in zip(sessions, prompts)]
    equal([answer.text for answer in reversed(answers)], expected[::-1])
    for session in sessions:
        session.close()


@test("a fork, a saved session and a truncated one go on with the same tokens")
def persistence():
    with engine.session() as session, tempfile.TemporaryDirectory() as folder:
        session.sync(PROMPT)
        n = len(session.tokens)
        path = os.path.join(folder, "session")
        session.save(path)
        fork = session.fork()
        expected = session.generate(max_tokens=10).text
        equal(fork.generate(max_tokens=10).text, expected, "fork")
        with engine.session() as other:
            other.load(path)
            equal(other.generate(max_tokens=10).text, expected, "loaded")
        session.truncate(n)
        session.park()
        equal(session.generate(max_tokens=10).text, expected, "truncated and parked")
        fork.close()
        with open(path, "r+b") as file:
            file.truncate(1000)
        with engine.session() as other:
            raises(kakeya.FormatError, lambda: other.load(path))
            equal(other.tokens, [])


@test("grammars: a choice, a schema, an expression and rules; what cannot be followed is refused")
def grammars():
    tokenizer = engine.tokenizer
    for grammar, allowed in (
        (Grammar(tokenizer, choice=["yes", "no"]), lambda text: text in ("yes", "no")),
        (Grammar(tokenizer, json_schema={"enum": [1, "two"]}), lambda text: text in ("1", '"two"')),
        (Grammar(tokenizer, regex="a{3}"), lambda text: text == "aaa"),
        (Grammar(tokenizer, rules='root ::= "x" "y"'), lambda text: text == "xy"),
    ):
        with engine.session() as session:
            text = session.generate(PROMPT, max_tokens=20, grammar=grammar).text
            holds(allowed(text), text)
            holds(grammar.nbytes > 0 and grammar.ignored == [])
    raises(InvalidArgumentError, lambda: Grammar(tokenizer, choice=["a"], regex="a"), "one of")
    raises(kakeya.KakeyaError, lambda: Grammar(tokenizer, json_schema={"extends": {}}), "extends")


@test("log-probabilities of answers are those of scores")
def scores():
    with engine.session() as session:
        tokens = list(session.generate(PROMPT, max_tokens=6, top_log_probabilities=2))
        score = session.score(session.tokens, logits=True, hidden_states=True)
        n = len(session.tokens)
        equal((score.nll.shape, score.logits.shape, score.hidden_states.shape),
              ((n - 1,), (n, engine.vocab_size), (engine.layers + 1, n, engine.hidden_size)))
        shifted = score.logits - score.logits.max(axis=1, keepdims=True)
        rows = shifted - numpy.log(numpy.exp(shifted.astype(numpy.float64)).sum(axis=1, keepdims=True))
        holds(numpy.abs(rows[numpy.arange(n - 1), session.tokens[1:]] + score.nll).max() < 1e-4, "nll")
        for token in tokens:
            holds(abs(token.log_probability + score.nll[token.position - 1]) < 1e-3, str(token))
            holds(token.id in token.top and max(token.top.values()) == token.top[token.id], "greedy takes the likeliest")
        holds(math.isnan(next(session.generate(max_tokens=1)).log_probability))
        raises(InvalidArgumentError, lambda: session.score([]))


@test("conversations, stop strings, biases")
def texts():
    tokenizer = engine.tokenizer
    ids = tokenizer.chat([{"role": "user", "content": "Say <bos> twice"}])
    equal(ids.count(2), 1, "text never becomes a control token")
    with engine.session() as session:
        whole = session.generate(ids, max_tokens=30).text
        stop = whole[5:8]
        holds(len(stop) == 3, whole)
        cut = session.generate(ids, max_tokens=30, stop=[stop]).text
        equal(cut, whole[:whole.index(stop)])
        first = next(session.generate(ids, max_tokens=1)).id
        holds(next(session.generate(ids, max_tokens=1, logit_bias={first: -math.inf})).id != first)
    standalone = Tokenizer()
    equal((standalone.encode("x y"), standalone.vocab_size), (tokenizer.encode("x y"), engine.vocab_size))


@test("misuse is an exception with a reason, and harms nothing")
def misuse():
    raises(InvalidArgumentError, lambda: engine.session(attention="none"), "native")
    raises(kakeya.FileError, lambda: Engine("/nowhere/at/all"), "/nowhere/at/all")
    raises(kakeya.ContextFullError, lambda: engine.session(context_tokens=8).sync(list(range(100, 120))))
    session = engine.session()
    running = session.generate(PROMPT, ignore_stop_tokens=True, temperature=2.0)
    next(running)
    for call in (session.fork, session.park, lambda: session.sync(PROMPT), lambda: session.tokens, session.generate):
        raises(InvalidArgumentError, call, "close it")
    running.close()
    equal(list(running), [], "a closed answer has no more tokens")
    equal(running.stats.finish, "cancelled")
    holds(session.generate(PROMPT, max_tokens=2).text is not None)
    session.generate(PROMPT)  # forgotten while it runs
    equal(len(list(session.generate(PROMPT, max_tokens=1))), 1)
    last = session.generate(PROMPT)
    session.close()
    list(last)  # what had been computed before
    equal(list(last), [], "an answer of a closed session ends")
    session.close()
    raises(InvalidArgumentError, lambda: session.sync(PROMPT), "closed")


@test("other threads run while the engine computes")
def threads():
    counted = [0]
    stop = threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    with engine.session() as session:
        before = counted[0]
        session.sync(list(range(100, 700)))
        holds(counted[0] > before, "none ran")
    stop.set()
    thread.join()


@test("Ctrl-C ends an answer, a prompt and a score, and the session goes on")
def interrupted():
    script = """
import sys
from kakeya import Engine
with Engine(threads=1) as engine, engine.session() as session:
    for work in (lambda: sum(1 for token in session.generate("x", ignore_stop_tokens=True, temperature=2.0, mode="ar")),
                 lambda: session.sync(list(range(100, 8000))), lambda: session.score(list(range(100, 8000)))):
        print("begins", flush=True)
        try:
            work()
            print("ended", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        assert len(list(session.generate([2, 100], max_tokens=2, ignore_stop_tokens=True))) == 2
print("done", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    for _ in range(3):
        equal(child.stdout.readline(), "begins\n")
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        equal(child.stdout.readline(), "interrupted\n")
    equal((child.stdout.readline(), child.wait()), ("done\n", 0))


@test("a program that ends in the middle of an answer ends")
def left_open():
    for end in ("", "sys.exit(3)", "raise RuntimeError"):
        script = ("import sys\nfrom kakeya import Engine\nengine = Engine(threads=1)\n"
                  "answer = engine.session().generate('x', ignore_stop_tokens=True, temperature=2.0)\nnext(answer)\n" + end)
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
        holds(result.returncode in (0, 1, 3), f"{end}: {result.returncode} {result.stderr}")


@test("memory is given back")
def memory():
    held = engine.memory
    sessions = [engine.session() for _ in range(3)]
    for session in sessions:
        session.sync(PROMPT)
    holds(engine.memory["kv.full"] > held["kv.full"], str(engine.memory))
    holds(sessions[0].memory["kv.full"] > 0)
    del session, sessions
    eventually(lambda: engine.memory["kv.full"] == held["kv.full"], "sessions that nobody holds are closed")


run_tests()
