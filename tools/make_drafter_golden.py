#!/usr/bin/env python3
"""A random DFlash drafter with sliding layers, and what it drafts, in float64.

    tools/make_drafter_golden.py VERIFIER DIRECTORY     (tests/data/golden/gemma4-tiny-dense tests/data/golden/dflash-sliding)

Written from the published description of the block drafter, independently of the engine. golden.safetensors holds aux
[C, targets * hidden], block_ids [B] (bonus, then masks), and per rule inside the block of a sliding layer, causal or
bidirectional: hidden_RULE [B, hidden] and logits_RULE [B, vocab], before soft-capping. A window counts the query itself.
Needs the packages of tools/requirements.txt."""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file

CONTEXT, BLOCK = 37, 8
CONFIG = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "head_dim": 20, "intermediate_size": 45, "rms_norm_eps": 1e-5, "rope_theta": 12345.5,
    "max_position_embeddings": 4096, "hidden_act": "silu", "attention_bias": False, "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "final_logit_softcapping": 30.0, "dtype": "bfloat16", "block_size": 16,
    "dflash_config": {"target_layer_ids": [0, 2, 5], "mask_token_id": 7, "block_size": BLOCK},
}


def make_weights(config, generator):
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    width = config["intermediate_size"]
    shapes = {"fc": (hidden, len(config["dflash_config"]["target_layer_ids"]) * hidden), "hidden_norm": (hidden,),
              "norm": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        for name, shape in {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
                            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
                            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
                            "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,), "mlp.gate_proj": (width, hidden),
                            "mlp.up_proj": (width, hidden), "mlp.down_proj": (hidden, width)}.items():
            shapes[f"layers.{i}.{name}"] = shape
    weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            values = torch.rand(shape, generator=generator) + 0.5
        else:
            values = torch.randn(shape, generator=generator) * shape[1] ** -0.5
        weights[name + ".weight"] = values.to(torch.bfloat16)
    return weights


class Drafter:
    def __init__(self, config, weights):
        self.config = config
        self.weights = {name.removesuffix(".weight"): tensor.double() for name, tensor in weights.items()}

    def norm(self, x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt() * self.weights[name]

    def heads(self, x, name):  # [T, heads, head_dim]
        return (x @ self.weights[name].T).unflatten(-1, (-1, self.config["head_dim"]))

    def rope(self, x, positions):
        half = self.config["head_dim"] // 2
        angle = positions.double()[:, None, None] * self.config["rope_theta"] ** -(torch.arange(half).double() / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    def keys(self, x, layer, positions):
        return self.rope(self.norm(self.heads(x, f"{layer}.self_attn.k_proj"), f"{layer}.self_attn.k_norm"), positions)

    def attention(self, h, context, positions, i, bidirectional):
        layer, dim = f"layers.{i}", self.config["head_dim"]
        past = torch.arange(len(context))
        q = self.norm(self.heads(h, f"{layer}.self_attn.q_proj"), f"{layer}.self_attn.q_norm")
        q = self.rope(q, positions)
        k = torch.cat((self.keys(context, layer, past), self.keys(h, layer, positions)))
        v = torch.cat((self.heads(context, f"{layer}.self_attn.v_proj"), self.heads(h, f"{layer}.self_attn.v_proj")))
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * dim ** -0.5
        if self.config["layer_types"][i] == "sliding_attention":
            distance = positions[:, None] - torch.cat((past, positions))[None]
            window = self.config["sliding_window"]
            visible = distance.abs() < window if bidirectional else (distance >= 0) & (distance < window)
            scores = scores.masked_fill(~visible, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1) @ self.weights[f"{layer}.self_attn.o_proj"].T

    def block(self, aux, embedded, bidirectional):
        context = self.norm(aux @ self.weights["fc"].T, "hidden_norm")
        positions = len(aux) + torch.arange(len(embedded))
        h = embedded
        for i in range(self.config["num_hidden_layers"]):
            h = h + self.attention(self.norm(h, f"layers.{i}.input_layernorm"), context, positions, i, bidirectional)
            y = self.norm(h, f"layers.{i}.post_attention_layernorm")
            gate, up = y @ self.weights[f"layers.{i}.mlp.gate_proj"].T, y @ self.weights[f"layers.{i}.mlp.up_proj"].T
            h = h + (torch.nn.functional.silu(gate) * up) @ self.weights[f"layers.{i}.mlp.down_proj"].T
        return self.norm(h, "norm")


def main(verifier, directory):
    with open(os.path.join(verifier, "config.json")) as file:
        target = json.load(file)
    config = {**CONFIG, "hidden_size": target["hidden_size"], "vocab_size": target["vocab_size"],
              "num_target_layers": target["num_hidden_layers"]}
    generator = torch.Generator().manual_seed(11)
    weights = make_weights(config, generator)
    embedding = load_file(os.path.join(verifier, "model.safetensors"))["model.embed_tokens.weight"].double()
    aux = torch.randn(CONTEXT, weights["fc.weight"].shape[1], generator=generator)
    ids = torch.tensor([23] + [config["dflash_config"]["mask_token_id"]] * (BLOCK - 1), dtype=torch.int32)

    vectors = {"aux": aux, "block_ids": ids}
    for rule in ("causal", "bidirectional"):
        hidden = Drafter(config, weights).block(aux.double(), embedding[ids.long()], rule == "bidirectional")
        vectors[f"hidden_{rule}"] = hidden.float()
        vectors[f"logits_{rule}"] = (hidden @ embedding.T).float()
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    save_file(weights, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    save_file(vectors, os.path.join(directory, "golden.safetensors"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
