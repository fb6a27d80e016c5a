#!/usr/bin/env python3
"""Draws a terminal in which commands have run, as an SVG file.

    tools/terminal_svg.py docs/first-minute.svg 'make demo' "build/kakeya run 'def fibonacci(n):'"

Runs each command in a shell and draws it with what it prints, lines cut into COLUMNS. Fails where a command does."""
import subprocess
import sys
from xml.sax.saxutils import escape

COLUMNS, CHARACTER, LINE, MARGIN = 108, 7.8, 18, 16  # of a font of 13 pixels
INK, PROMPT, PAPER = "#d8dee9", "#8fbcbb", "#20242c"


def lines_of(command):
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    yield True, command
    for line in done.stdout.rstrip("\n").split("\n"):
        for at in range(0, max(len(line), 1), COLUMNS):
            yield False, line[at:at + COLUMNS]


def main():
    target, commands = sys.argv[1], sys.argv[2:]
    drawn = []
    for command in commands:
        drawn += lines_of(command)
        drawn.append((False, ""))
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, len(drawn) * LINE + MARGIN
    with open(target, "w", encoding="utf-8") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" role="img">\n'
                  f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>\n'
                  f'<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="13" fill="{INK}" xml:space="preserve">\n')
        for number, (is_command, text) in enumerate(drawn):
            prompt = f'<tspan fill="{PROMPT}">$ </tspan>' if is_command else ""
            if text:
                out.write(f'<text x="{MARGIN}" y="{MARGIN + (number + 1) * LINE - 6}">{prompt}{escape(text)}</text>\n')
        out.write("</g>\n</svg>\n")


if __name__ == "__main__":
    main()
