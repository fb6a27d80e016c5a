#!/usr/bin/env python3
"""Tokens per second of Session.generate against `kakeya run`, in turns, with the package that is installed:

    pip install build/wheels/kakeya-*.whl && bench/python_speed.py

Both answer the same prompt with the demo model and one thread; the ratio of each pair, then median, smallest and largest."""
import json
import os
import statistics
import subprocess
import sys

import kakeya
from kakeya import Engine

PROMPT, TOKENS, PAIRS = "def fibonacci(n):", 400, 7
program = os.environ.get("KAKEYA") or os.path.join(os.path.dirname(sys.executable), "kakeya")

with Engine(threads=1) as engine:
    ratios = []
    for _ in range(PAIRS):
        said = subprocess.run([program, "run", "--raw", "--json", "--threads", "1", "--max-tokens", str(TOKENS), PROMPT],
                              capture_output=True, text=True, check=True).stdout
        alone = json.loads(said)["stats"]["decode_tokens_per_second"]
        with engine.session() as session:
            answer = session.generate(PROMPT, max_tokens=TOKENS)
            for token in answer:
                pass
            ratios.append(answer.stats.tokens_per_second / alone)
            print(f"{alone:.0f} {answer.stats.tokens_per_second:.0f} {ratios[-1]:.3f}", flush=True)
    print(f"kakeya {kakeya.version()}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
