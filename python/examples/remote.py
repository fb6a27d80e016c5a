"""Continues tokens that are given on the command line.

    kakeya tokenize --json <<<'The capital of France is' | jq -r '.ids[]' | xargs python examples/remote.py
"""

from __future__ import annotations

import sys

from kakeya.remote import Client, StopReason


def main() -> None:
    prompt = [int(argument) for argument in sys.argv[1:]]
    with Client() as client, client.create_session(client_label="example") as session:
        print("history:", session.append(prompt))
        for token in session.generate(max_tokens=32, temperature=0.8, seed=7):
            print(token, end=" ", flush=True)
        reason = StopReason(session.last_stop_reason or 0)
        print(f"\n{reason.name} after {session.last_generated_token_count} tokens")


if __name__ == "__main__":
    main()
