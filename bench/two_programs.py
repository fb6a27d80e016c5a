"""Two programs of kakeya side by side: the speed of answers over HTTP, the second one's against the first one's. The programs take turns,
answer by answer, on the demo model and one thread; processors' time is compared, and time. Prints medians of pairs.

    python3 bench/two_programs.py OLD NEW [pairs]
"""

import glob
import os
import statistics
import sys
import time

sys.path.insert(0, "tests/serve")
from harness import MODELS, Server, in_threads  # noqa: E402

TEXTS = ["def fibonacci(n):", "Tell me a story", "import os\n", "class Stack:", "What is 2+2?", "List three colours.", "while True:"]


def processors(server):
    """Seconds that its threads have had."""
    return sum(int(open(path).read().split()[0]) for path in glob.glob(f"/proc/{server.process.pid}/task/*/schedstat")) / 1e9


def answer(server, number, tokens):
    body = {"model": "demo", "messages": [{"role": "user", "content": f"{TEXTS[number % len(TEXTS)]} {number}"}], "temperature": 0,
            "max_tokens": tokens, "ignore_eos": True}
    return server.post("/v1/chat/completions", body, timeout=600).json["choices"][0]["message"]["content"]


def together(server, number):
    return in_threads([lambda i=i: answer(server, 64 * number + i, 24) for i in range(64)])


def compare(name, ask, servers, pairs):
    ratios = []
    for i in range(-1, pairs):
        taken, said = {}, {}
        for which in ((0, 1), (1, 0))[i % 2]:
            before, begun = processors(servers[which]), time.perf_counter()
            said[which] = ask(servers[which], i + 1)
            taken[which] = processors(servers[which]) - before, time.perf_counter() - begun
        assert said[0] == said[1], "the programs say different things"
        if i >= 0:
            ratios.append([taken[0][k] / taken[1][k] for k in range(2)])
    print(name, *(f"{what} {statistics.median(r[k] for r in ratios):.3f}" for k, what in enumerate(("processors", "time"))), flush=True)


servers = [Server("--model", os.path.join(MODELS, "demo"), "--name", "demo", "--cache-ram", "0", program=program)
           for program in sys.argv[1:3]]
pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
compare("64 answers in step:", together, servers, pairs)
compare("one answer, with drafts:", lambda server, number: answer(server, number, 120), servers, 16 * pairs)
Server.stop_all()
