#!/usr/bin/env python3
"""Draws docs/guide/budgets.png: what each budget leaves of a page of text.

    tools/budget_pictures.py docs/guide/budgets.png

A page of A4 at 150 dots an inch in letters of 11 points, resized as every picture is (docs/guide/images.md): the largest sides, multiples
of 48 pixels, that the budget allows, by the antialiased bicubic. The same piece of the page is shown for each budget, its pixels enlarged.
Needs Pillow and the DejaVu fonts (Debian: fonts-dejavu-core)."""
import math
import sys
import textwrap

from PIL import Image, ImageDraw, ImageFont

DPI, WIDTH, HEIGHT = 150, 1240, 1754
SERIF, SANS = "DejaVuSerif.ttf", "DejaVuSans.ttf"
BUDGETS = (70, 140, 280, 560, 1120)
SIDE = 48  # pixels of a token
PIECE = (100, 190, 730, 310)  # of the page: left, top, right, bottom
LABEL = 24
TEXT = """A vision tower reads a picture as a grid of tokens. The budget says how many of them a picture may have, and with them how many
pixels are left: each token is a square of 48 by 48. A photograph of a face survives a small budget, a page of print does not. Whoever asks
for the number of an invoice, the name on a label or a cell of a table wants the budget at which a person could still read the letters, and
pays for it with the time that the tower takes and with rows in the memory of keys and values."""


def target(height, width, budget):
    """Sides in pixels; no page is so narrow that one of them is 0."""
    factor = math.sqrt(budget * SIDE * SIDE / (height * width))
    return math.floor(factor * height / SIDE) * SIDE, math.floor(factor * width / SIDE) * SIDE


def page():
    picture = Image.new("L", (WIDTH, HEIGHT), 255)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.truetype(SERIF, round(11 / 72 * DPI))
    heading = ImageFont.truetype(SERIF, round(16 / 72 * DPI))
    draw.text((110, 110), "On budgets", fill=0, font=heading)
    lines = textwrap.wrap(" ".join(TEXT.split()), 82)
    for i in range(45):
        draw.text((110, 200 + 33 * i), lines[i % len(lines)], fill=0, font=font)
    return picture


def main():
    whole, label = page(), ImageFont.truetype(SANS, 15)
    wide, high = PIECE[2] - PIECE[0], PIECE[3] - PIECE[1]
    out = Image.new("L", (wide, len(BUDGETS) * (high + LABEL)), 255)
    draw = ImageDraw.Draw(out)
    for i, budget in enumerate(BUDGETS):
        height, width = target(HEIGHT, WIDTH, budget)
        seen = whole.resize((width, height), Image.Resampling.BICUBIC)
        piece = seen.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST).crop(PIECE)
        top = i * (high + LABEL)
        tokens = height // SIDE * (width // SIDE)
        draw.text((4, top + 3), f"budget {budget}: {width} x {height} pixels, {tokens} tokens", fill=0, font=label)
        out.paste(piece, (0, top + LABEL))
    out.quantize(16).save(sys.argv[1], optimize=True)


main()
