#!/usr/bin/env python3
"""Writes tests/data/text/tokenizer_vectors.json.gz: what Hugging Face tokenizers makes of strings and of ids.

    tools/make_tokenizer_vectors.py models/demo/tokenizer.json tests/data/text/tokenizer_vectors.json.gz

Texts are hexadecimal UTF-8, because JSON readers in C end a string at NUL. `ids` is encode(add_special_tokens=False);
`literal`, where it differs, the same with special tokens read as ordinary text. `decoded` and `decoded_skip` are hexadecimal
too. Needs the packages of tools/requirements.txt."""
import gzip
import json
import random
import sys

import tokenizers

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    "ab \n",
    " \t\n\r\v\f\u00a0\u2003\u2581",
    "éàüßñçøæœđłžőćīṭ",
    "漢字仮名交じり文한국어中文字符",
    "🙂😀👩\u200d💻🏳\ufe0f\u200d🌈👍🏽🇩🇪",
    "абвгдежзийκλμνξοпعربيةעבריתहिन्दी",
    "\x00\x01\x02\x1b\x7f\u0080\u009f\ufeff\ufffd\U0010ffff\ue000",
    "(){}[]<>|;:,.!?+-*/=_\"'`~@#$%^&\\",
    "e\u0301a\u0308o\u0302n\u0303\u0345",
]
WORDS = ["def ", "return", "self.", "int main(void)", "    ", "        ", "\n\n", "IMPORTANT: the secret code is ", "the ",
         "<0x41>", "<0x", "▁▁", "<unused3>", "#include <", "</s>", "http://", "0x7fff", "...", "----", "=====", "\t\t"]


def texts(rng, special):
    yield ""
    for alphabet in ALPHABETS:
        for length in (1, 2, 3, 7, 20, 60):
            yield "".join(rng.choice(alphabet) for _ in range(length))
    for character in (" ", "\n", "a", "=", "-", "▁", "é", "🙂", "\t", "<"):
        for length in (2, 3, 5, 8, 17, 31, 64, 100):
            yield character * length
    for _ in range(160):
        parts = []
        for _ in range(rng.randrange(1, 8)):
            if rng.random() < 0.5:
                parts.append(rng.choice(WORDS))
            else:
                alphabet = rng.choice(ALPHABETS)
                parts.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 12))))
        yield "".join(parts)
    for _ in range(80):
        parts = []
        for _ in range(rng.randrange(1, 6)):
            token = rng.choice(special)
            parts.append(rng.choice([token, token[:-1], token[1:], token * 2, " " + token, token + "\n",
                                     rng.choice(WORDS), "<" + token + ">"]))
        yield "".join(parts)


def id_lists(rng, size, byte_ids, special_ids):
    for _ in range(60):
        yield [rng.randrange(size) for _ in range(rng.randrange(0, 24))]
    for _ in range(60):  # byte runs, mostly invalid
        yield [rng.choice(byte_ids) for _ in range(rng.randrange(1, 12))]
    for _ in range(80):  # valid characters as bytes, cut, joined, interrupted
        ids = []
        for _ in range(rng.randrange(1, 6)):
            encoded = rng.choice("aé漢🙂\u0301").encode()
            if rng.random() < 0.25:
                encoded = encoded[rng.randrange(len(encoded)):]
            ids += [byte_ids[b] for b in encoded]
            if rng.random() < 0.4:
                ids.append(rng.choice([rng.choice(special_ids), rng.randrange(size)]))
        yield ids


def main():
    source, target = sys.argv[1:]
    rng = random.Random(4)
    tokenizer = tokenizers.Tokenizer.from_file(source)
    size = tokenizer.get_vocab_size()
    added = tokenizer.get_added_tokens_decoder()
    special_ids = [i for i, token in added.items() if token.special]
    special = [added[i].content for i in special_ids]
    byte_ids = [tokenizer.token_to_id(f"<0x{b:02X}>") for b in range(256)]

    encode = []
    for text in texts(rng, special):
        tokenizer.encode_special_tokens = False
        case = {"text": text.encode().hex(), "ids": tokenizer.encode(text, add_special_tokens=False).ids}
        tokenizer.encode_special_tokens = True
        literal = tokenizer.encode(text, add_special_tokens=False).ids
        if literal != case["ids"]:
            case["literal"] = literal
        encode.append(case)
    tokenizer.encode_special_tokens = False
    decode = []
    for ids in id_lists(rng, size, byte_ids, special_ids):
        decode.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False).encode().hex(),
                       "decoded_skip": tokenizer.decode(ids, skip_special_tokens=True).encode().hex()})
    with gzip.open(target, "wt", encoding="utf-8") as file:
        file.write('{"source": "tokenizers %s",\n "encode": [\n' % tokenizers.__version__)
        file.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in encode))
        file.write('\n ],\n "decode": [\n')
        file.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in decode))
        file.write("\n ]}\n")


main()
