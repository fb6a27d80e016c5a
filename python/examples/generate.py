"""Continues a text, and says how fast.

    python examples/generate.py "def main():"
"""

from __future__ import annotations

import sys

from kakeya import Engine


def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "Once upon a time"
    with Engine() as engine, engine.session() as session:
        answer = session.generate(prompt, max_tokens=64)
        for token in answer:
            print(token.text, end="", flush=True)
        print(f"\n{answer.stats.completion_tokens} tokens, {answer.stats.tokens_per_second:.0f} a second", file=sys.stderr)


if __name__ == "__main__":
    main()
