#!/usr/bin/env python3
"""Writes an f_theta with made-up weights in the shape of the 26B-A4B, to measure memory and speed before one is trained.

Its input are the hidden states of six layers; keys and values share one latent of RANK values, kept as FORMAT (bf16, q8 or q4).

    python3 bench/f_theta_of_shape.py DIR RANK FORMAT
"""
import json
import os
import struct
import sys

LAYERS, HIDDEN, TAPS = 30, 2816, [1, 6, 11, 17, 22, 27]


def main():
    folder, rank, latents = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.makedirs(folder, exist_ok=True)
    full = [i % 6 == 5 for i in range(LAYERS)]
    heads, dims = [2 if f else 8 for f in full], [512 if f else 256 for f in full]
    config = {"input": "aux_hidden", "aux_layers": TAPS, "verifier_hidden_size": HIDDEN, "rank": rank, "latent_format": latents,
              "verifier_num_layers": LAYERS, "verifier_num_kv_heads": 8, "verifier_head_dim": 256,
              "verifier_layer_kv_heads": heads, "verifier_layer_head_dims": dims}
    with open(os.path.join(folder, "f_theta_config.json"), "w") as file:
        json.dump(config, file)
    shapes = {"encoder_k.weight": [rank, len(TAPS) * HIDDEN]}
    for i in range(LAYERS):
        for part in "kv":
            shapes[f"decoders_{part}.{i}.weight"] = [heads[i] * dims[i], rank]
    header, at = {}, 0
    for name, (rows, columns) in shapes.items():
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, at + 2 * rows * columns]}
        at += 2 * rows * columns
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    sign = bytes(0x3C if i < 128 else 0xBC for i in range(256))  # bf16 of about 0.01, of either sign
    with open(os.path.join(folder, "f_theta_weights.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for rows, columns in shapes.values():
            values = bytearray(2 * rows * columns)
            values[0::2] = os.urandom(rows * columns)
            values[1::2] = os.urandom(rows * columns).translate(sign)
            file.write(values)


if __name__ == "__main__":
    main()
