"""The program `kakeya`, which the package brings."""

from __future__ import annotations

import os
import sys

from kakeya._library import HERE


def main() -> None:
    program = os.path.join(HERE, "bin", "kakeya")
    if not os.path.exists(program):
        raise SystemExit(f"this package was built without the program: {program} is not there")
    os.execv(program, ["kakeya", *sys.argv[1:]])


if __name__ == "__main__":
    main()
