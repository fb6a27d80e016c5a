#!/usr/bin/env python3
"""Writes the vocabulary of a Gemma 3 GGUF file (262,144 pieces with scores, the pieces of Gemma 4 but for control tokens) as a
tokenizer.json, so that benchmarks measure with the vocabulary of real models:

    bench/gemma3_vocabulary.py FILE.gguf FOLDER         writes FOLDER/tokenizer.json

Merges are all splits of a piece into two pieces, in the order of scores. The first part of a file that was cut in parts is enough, as
long as it holds the keys. Names of Gemma 4's control tokens take the places of unused ones."""
import json
import pathlib
import struct
import sys

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL, USER_DEFINED, BYTE = 3, 4, 6
GEMMA4 = ["<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>",
          "<channel|>", "<|turn>", "<turn|>"]


def read_keys(file):
    def number(kind):
        letter = "<" + NUMBERS[kind]
        return struct.unpack(letter, file.read(struct.calcsize(letter)))[0]

    def value(kind):
        if kind == STRING:
            return file.read(number(10)).decode()
        if kind == ARRAY:
            of, n = number(4), number(10)
            return [value(of) for _ in range(n)]
        return number(kind)

    if file.read(4) != b"GGUF":
        sys.exit("not a GGUF file")
    number(4), number(10)
    keys = number(10)
    return {value(STRING): value(number(4)) for _ in range(keys)}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as file:
        keys = read_keys(file)
    pieces, scores, types = (keys[f"tokenizer.ggml.{name}"] for name in ["tokens", "scores", "token_type"])
    unused = [i for i, piece in enumerate(pieces) if piece.startswith("<unused")]
    for i, name in zip(unused, GEMMA4):
        pieces[i] = name
    spelled = [piece.replace(" ", "\u2581") if kind == USER_DEFINED else piece for piece, kind in zip(pieces, types)]
    normal = {piece: i for i, piece in enumerate(pieces) if types[i] not in (CONTROL, USER_DEFINED, BYTE)}
    merges = []
    for piece in sorted(normal, key=lambda piece: -scores[normal[piece]]):
        for cut in range(1, len(piece)):
            if piece[:cut] in normal and piece[cut:] in normal:
                merges.append([piece[:cut], piece[cut:]])
    added = [{"id": i, "content": spelled[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": types[i] == CONTROL} for i in range(len(pieces)) if types[i] in (CONTROL, USER_DEFINED)]
    plain = {"pattern": {"String": " "}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", **plain, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", **plain, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                    {"SpecialToken": {"id": "<bos>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {piece: i for i, piece in enumerate(spelled)}, "merges": merges}}
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    print(f"{len(pieces)} pieces, {len(merges)} merges")


if __name__ == "__main__":
    main()
