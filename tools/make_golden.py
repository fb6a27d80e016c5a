#!/usr/bin/env python3
"""Random Gemma 4 and Gemma 3 text models and what Hugging Face transformers computes for them, in float32.

    tools/make_golden.py vectors tests/data/golden/forms [FORM]   writes the bundled forms, or one, anew (then gzip -9n)
    tools/make_golden.py write DIRECTORY SEED              one checkpoint with golden.safetensors beside it
    tools/make_golden.py check KAKEYA FIRST LAST           compares the command with the reference on seeds FIRST..LAST
    tools/make_golden.py check3 KAKEYA FIRST LAST          the same of Gemma 3

A seed decides the shape (head dimensions, K/V heads, layer pattern, experts, per-layer embeddings, shared K/V, RoPE,
windows), the configuration's dialect, prefixes, dtypes and shards, and the prompt. golden.safetensors holds input_ids [T],
logits [T, vocab], hidden_states [layers + 1, T, hidden], greedy [n] and, per greedy step, gap [n]: the distance between the
two best logits. Needs the packages of tools/requirements.txt."""
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
GREEDY = 12
GAP = 1e-3  # below it, two float32 computations may rank the two best tokens differently


S, F = "sliding_attention", "full_attention"

# The bundled forms: what differs from the choices of their seed.
FORMS = {
    # layers 2 and 3 are shared by the last three; with layers of their own K/V behind the sliding one
    "shared-kv": {
        "seed": 1, "nested": True, "dtype": "bfloat16", "extras": True, "shards": 1, "dialect": "published", "length": 33,
        "text": {"num_hidden_layers": 7, "layer_types": [S, F, S, F, S, S, F], "num_kv_shared_layers": 3,
                 "hidden_size": 40, "intermediate_size": 33, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "head_dim": 12, "global_head_dim": 24, "num_global_key_value_heads": None, "attention_k_eq_v": False,
                 "hidden_size_per_layer_input": 12, "use_double_wide_mlp": True, "sliding_window": 7,
                 "enable_moe_block": False, "tie_word_embeddings": True, "vocab_size": 101},
    },
    "shared-k-eq-v": {
        "seed": 2, "nested": False, "dtype": "float16", "extras": False, "shards": 1, "dialect": "resaved", "length": 33,
        "text": {"num_hidden_layers": 6, "layer_types": [S, F, S, F, S, F], "num_kv_shared_layers": 2,
                 "hidden_size": 33, "intermediate_size": 17, "num_attention_heads": 6, "num_key_value_heads": 3,
                 "head_dim": 16, "global_head_dim": 20, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                 "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False, "sliding_window": 11,
                 "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 9,
                 "tie_word_embeddings": True, "vocab_size": 131},
    },
    "experts": {
        "seed": 3, "nested": True, "dtype": "mixed", "extras": False, "shards": 4, "dialect": "resaved", "length": 36,
        "text": {"num_hidden_layers": 3, "layer_types": [S, S, F], "num_kv_shared_layers": 0, "hidden_size": 40,
                 "intermediate_size": 25, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 18,
                 "global_head_dim": 28, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                 "hidden_size_per_layer_input": 0, "sliding_window": 9, "enable_moe_block": True, "num_experts": 13,
                 "top_k_experts": 4, "moe_intermediate_size": 7, "tie_word_embeddings": True, "vocab_size": 97},
    },
    "untied": {
        "seed": 4, "nested": False, "dtype": "float32", "extras": False, "shards": 2, "dialect": "published", "length": 45,
        "text": {"num_hidden_layers": 4, "layer_types": [F, S, F, S], "num_kv_shared_layers": 0, "hidden_size": 24,
                 "intermediate_size": 5, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 20,
                 "global_head_dim": 32, "num_global_key_value_heads": None, "attention_k_eq_v": False,
                 "hidden_size_per_layer_input": 0, "sliding_window": 3, "enable_moe_block": False,
                 "tie_word_embeddings": False, "final_logit_softcapping": None, "rms_norm_eps": 1e-3, "vocab_size": 61,
                 "rope_parameters": {S: {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.3},
                                     F: {"rope_type": "proportional", "rope_theta": 12345.5, "factor": 8.0,
                                         "partial_rotary_factor": 0.75}}},
    },
    "window-of-one": {
        "seed": 5, "nested": False, "dtype": "bfloat16", "extras": True, "shards": 1, "dialect": "published", "length": 90,
        "text": {"num_hidden_layers": 5, "layer_types": [S, S, F, S, F], "num_kv_shared_layers": 1, "hidden_size": 24,
                 "intermediate_size": 77, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 10,
                 "global_head_dim": 72, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                 "hidden_size_per_layer_input": 8, "sliding_window": 1, "enable_moe_block": False,
                 "tie_word_embeddings": True, "eos_token_id": [1, 106, 50], "vocab_size": 37,
                 "rope_parameters": {S: {"rope_type": "default", "rope_theta": 1e6},
                                     F: {"rope_type": "default", "rope_theta": 100.0}}},
    },
    "one-token": {
        "seed": 6, "nested": True, "dtype": "float16", "extras": False, "shards": 1, "dialect": "resaved", "length": 1,
        "text": {"num_hidden_layers": 1, "layer_types": [F], "num_kv_shared_layers": 0, "hidden_size": 8,
                 "intermediate_size": 24, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
                 "global_head_dim": 8, "num_global_key_value_heads": None, "attention_k_eq_v": False,
                 "hidden_size_per_layer_input": 17, "sliding_window": 2, "enable_moe_block": False,
                 "tie_word_embeddings": True, "vocab_size": 128},
    },
    # RoPE parameters under the older names, tensors that no layer uses
    "respelt": {
        "seed": 7, "nested": True, "dtype": "float32", "extras": True, "shards": 1, "dialect": "published", "length": 40,
        "respell": ["type", "factor", "rope_scaling"],
        "text": {"num_hidden_layers": 3, "layer_types": [S, F, F], "num_kv_shared_layers": 0, "hidden_size": 24,
                 "intermediate_size": 17, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12,
                 "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                 "hidden_size_per_layer_input": 0, "sliding_window": 9, "enable_moe_block": False,
                 "tie_word_embeddings": True, "vocab_size": 61,
                 "rope_parameters": {S: {"rope_type": "proportional", "rope_theta": 100.0},
                                     F: {"rope_type": "proportional", "rope_theta": 1000.0, "factor": 2.0,
                                         "partial_rotary_factor": 0.5}}},
    },
    # Gemma 3: the older dialect, a scale that is not the head dimension's, a last layer that slides
    "gemma3-flat": {
        "generation": 3, "seed": 8, "nested": False, "dtype": "bfloat16", "extras": False, "shards": 1, "dialect": "older",
        "length": 60,
        "text": {"num_hidden_layers": 5, "hidden_size": 44, "intermediate_size": 33, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 11, "sliding_window_pattern": 2,
                 "sliding_window": 9, "vocab_size": 101, "rope_theta": 1e4, "rope_local_base_freq": 100.0,
                 "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    },
    # the text part of a multimodal checkpoint, in float32 and as published files name it
    "gemma3-nested": {
        "generation": 3, "seed": 9, "nested": True, "dtype": "float32", "extras": True, "shards": 2, "dialect": "newer",
        "length": 40,
        "text": {"num_hidden_layers": 4, "hidden_size": 24, "intermediate_size": 17, "num_attention_heads": 3,
                 "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 7,
                 "vocab_size": 61, "layer_types": [S, F, F, S], "final_logit_softcapping": 5.0,
                 "rope_parameters": {S: {"rope_type": "default", "rope_theta": 100.0},
                                     F: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}}},
    },
}

# --------------------------------------------------------------------------------------------------- shapes


def choose(seed):
    """What a seed decides. `text` holds the published keys."""
    rng = random.Random(seed)
    layers = rng.choice([1, 2, 3, 4, 5, 6, 7, 8])
    heads = rng.choice([1, 2, 3, 4, 6, 8])
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    head_dim = rng.choice([8, 10, 12, 16, 20, 24, 32, 36, 48, 64])
    global_head_dim = rng.choice([8, 12, 16, 24, 32, 40, 64, 72, 96, 128, head_dim])
    vocab = rng.choice([37, 61, 97, 101, 128, 131, 199, 257, 300])
    pattern = rng.choice([None, None, "random", "random", "full", "sliding"])
    types = None
    if pattern == "random":
        types = [rng.choice([S, F]) for _ in range(layers)]
    elif pattern == "full":
        types = [F] * layers
    elif pattern == "sliding":
        types = [S] * (layers - 1) + [F]
    kept = types or [S if (i + 1) % 6 else F for i in range(layers)]
    kept = kept[:-1] + [F]
    moe = rng.random() < 0.4
    k_eq_v = rng.random() < 0.5
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": layers,
        "hidden_size": rng.choice([8, 24, 33, 40, 48, 56, 64, 72, 90, 96, 100, 128, 136]),
        "intermediate_size": rng.choice([5, 17, 24, 33, 50, 64, 77, 96, 130, 192]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice(divisors),
        "head_dim": head_dim,
        "global_head_dim": global_head_dim,
        "num_global_key_value_heads": rng.choice([None] + divisors),
        "attention_k_eq_v": k_eq_v,
        "vocab_size": vocab,
        "sliding_window": rng.choice([1, 2, 3, 5, 7, 11, 15, 16, 17, 23, 31, 33, 40]),
        "max_position_embeddings": rng.choice([256, 300, 512, 1024]),
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3, 1e-8]),
        "final_logit_softcapping": rng.choice([None, 30.0, 30.0, 5.0, 50.0]),
        "hidden_size_per_layer_input": rng.choice([0, 0, 0, 8, 12, 17, 32]),
        "vocab_size_per_layer_input": vocab + rng.choice([0, 0, 7]),
        "tie_word_embeddings": rng.random() < 0.8,
        "use_double_wide_mlp": rng.random() < 0.5,
        "enable_moe_block": moe,
        "bos_token_id": 2, "pad_token_id": 0,
        "eos_token_id": rng.choice([1, [1, 5], [1, 106, 50], [3]]),
        "hidden_activation": "gelu_pytorch_tanh",
    }
    if types:
        text["layer_types"] = types
    if moe:
        text["num_experts"] = rng.choice([4, 5, 7, 8, 12, 16, 20])
        text["top_k_experts"] = rng.randrange(1, 5)
        text["moe_intermediate_size"] = rng.choice([4, 9, 16, 23, 32, 40])
    shared = rng.randrange(0, layers) if rng.random() < 0.5 else 0
    while shared and any(t not in kept[:layers - shared] for t in kept[layers - shared:]):
        shared -= 1
    text["num_kv_shared_layers"] = shared
    if rng.random() < 0.7:
        text["rope_parameters"] = {name: rope(rng, name) for name in (S, F)}
    return {
        "seed": seed,
        "text": text,
        "dialect": rng.choice(["published", "published", "resaved"]),
        "nested": rng.random() < 0.5,
        "dtype": rng.choice(["float32", "float32", "bfloat16", "float16", "mixed"]),
        "shards": rng.choice([1, 1, 2, 4]),
        "extras": rng.random() < 0.3,  # unknown keys; vision tensors, rotary buffers and projections that no layer uses
        "length": rng.choice([1, 2, text["sliding_window"], text["sliding_window"] + 1, rng.randrange(1, 60),
                              rng.randrange(1, 200), 60, 97]),
        "respell": [way for way in ("type", "factor", "rope_scaling") if rng.random() < 0.25],
    }


def choose3(seed):
    """The same of a Gemma 3."""
    rng = random.Random(seed)
    layers, heads = rng.randrange(1, 9), rng.choice([1, 2, 3, 4, 6, 8])
    head_dim = rng.choice([8, 10, 16, 24, 32, 64])
    text = {
        "model_type": "gemma3_text",
        "num_hidden_layers": layers,
        "hidden_size": heads * rng.choice([8, 11, 16, 20]),
        "intermediate_size": rng.choice([5, 17, 33, 64, 130]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "head_dim": head_dim,
        "query_pre_attn_scalar": rng.choice([head_dim, head_dim, 256, 7]),
        "vocab_size": rng.choice([37, 61, 101, 128, 257]),
        "sliding_window": rng.choice([1, 2, 3, 7, 16, 33]),
        "max_position_embeddings": rng.choice([256, 512]),
        "rms_norm_eps": rng.choice([1e-6, 1e-5]),
        "bos_token_id": 2, "pad_token_id": 0, "eos_token_id": rng.choice([1, [1, 106]]),
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    dialect = rng.choice(["older", "newer", "resaved"])
    full = {"rope_type": "linear", "factor": rng.choice([2.0, 8.0])} if rng.random() < 0.6 else None
    if dialect == "older":
        text["rope_theta"] = rng.choice([1e6, 12345.5])
        text["rope_local_base_freq"] = rng.choice([1e4, 100.0])
        text["rope_scaling"] = full
        if rng.random() < 0.7:
            text["sliding_window_pattern"] = rng.choice([1, 2, 3, 6])
    else:
        text["layer_types"] = [rng.choice([S, F]) for _ in range(layers)]
        text["rope_parameters"] = {S: {"rope_type": "default", "rope_theta": rng.choice([1e4, 100.0])},
                                   F: {**(full or {"rope_type": "default"}), "rope_theta": rng.choice([1e6, 1000.0])}}
    return {
        "generation": 3, "seed": seed, "text": text, "dialect": dialect, "nested": rng.random() < 0.4,
        "dtype": rng.choice(["float32", "bfloat16", "float16", "mixed"]), "shards": rng.choice([1, 1, 2]),
        "extras": rng.random() < 0.3, "length": rng.choice([1, 2, 17, 60, 97, rng.randrange(1, 200)]), "respell": [],
    }


def form(name):
    own = FORMS[name]
    if own.get("generation") == 3:
        case = choose3(own["seed"])
        kept = ("model_type", "max_position_embeddings", "rms_norm_eps", "bos_token_id", "pad_token_id", "eos_token_id",
                "hidden_activation", "tie_word_embeddings")
        return {**case, **own, "text": {**{key: case["text"][key] for key in kept}, **own["text"]}}
    case = choose(own["seed"])
    return {**case, "respell": [], **own, "text": {**case["text"], **own["text"], "vocab_size_per_layer_input": own["text"]["vocab_size"]}}


def rope(rng, name):
    kind = rng.choice(["default", "proportional"])
    if rng.random() < 0.6:
        kind = "default" if name == S else "proportional"
    parameters = {"rope_type": kind, "rope_theta": rng.choice([100.0, 1e4, 1e6, 12345.5])}
    if kind == "proportional" and rng.random() < 0.8:
        parameters["partial_rotary_factor"] = rng.choice([0.25, 0.5, 0.75, 1.0, 0.3, 0.1])
    if kind == "proportional" and rng.random() < 0.4:
        parameters["factor"] = rng.choice([1.0, 2.0, 8.0, 0.5])
    return parameters


# -------------------------------------------------------------------------------------------------- weights


def random_weights(model, generator):
    """Values that make every tensor matter: no norm of ones, scores that neither vanish nor saturate."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        shape = tensor.shape
        with torch.no_grad():
            if name.endswith("layer_scalar"):
                values = torch.rand(shape, generator=generator) * 0.8 + 0.4
            elif "q_norm" in name:
                values = (torch.rand(shape, generator=generator) + 0.5) * 1.5 / shape[0] ** 0.25
            elif name.endswith("router.scale"):
                values = (torch.rand(shape, generator=generator) + 0.5) * shape[0] ** 0.5
            elif "norm" in name or "per_expert_scale" in name:
                values = torch.rand(shape, generator=generator) + 0.5
                values *= torch.where(torch.rand(shape, generator=generator) < 0.1, -1.0, 1.0)
            else:
                values = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
            tensor.copy_(values)


def stored_tensors(model, case, generator):
    """The tensors of the files, under the names and in the dtypes that the case asks for."""
    gemma3 = case.get("generation") == 3
    prefix = "model." if not case["nested"] else "model.language_model." if not gemma3 or case["seed"] % 2 == 0 else \
        "language_model.model."
    text = case["text"]
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            if text["tie_word_embeddings"]:
                continue
        else:
            name = prefix + name.removeprefix("model.")
        tensors[name] = tensor
    if case["extras"] and gemma3:
        head = "model." if prefix.startswith("model.") else ""
        tensors[f"{head}vision_tower.vision_model.embeddings.patch_embedding.bias"] = torch.randn(12)
        tensors[f"{head}multi_modal_projector.mm_input_projection_weight"] = torch.randn(7, 3)
        tensors[f"{prefix}layers.0.self_attn.rotary_emb.inv_freq"] = torch.randn(3)
    elif case["extras"]:
        first = text["num_hidden_layers"] - text["num_kv_shared_layers"]
        for i in range(first, text["num_hidden_layers"]):
            for part in ("k_proj", "v_proj"):
                tensors[f"{prefix}layers.{i}.self_attn.{part}.weight"] = torch.randn(16, text["hidden_size"])
        for i in range(first):
            if f"{prefix}layers.{i}.self_attn.v_proj.weight" not in tensors:
                tensors[f"{prefix}layers.{i}.self_attn.v_proj.weight"] = torch.randn(16, text["hidden_size"])
        tensors[f"{prefix}rotary_emb.full_attention_inv_freq"] = torch.randn(5)
        tensors[f"{prefix}layers.0.self_attn.rotary_emb.inv_freq"] = torch.randn(3)
        if case["nested"]:
            tensors["model.vision_tower.patch_embedder.input_proj.weight"] = torch.randn(12, 5)
            tensors["model.embed_vision.embedding_projection.weight"] = torch.randn(7, 3)
    names = list(DTYPES) if case["dtype"] == "mixed" else [case["dtype"]]
    rng = random.Random(case["seed"] + 1)
    return {name: tensor.to(DTYPES[rng.choice(names)]).contiguous() for name, tensor in sorted(tensors.items())}


def respell(text, ways):
    """The same RoPE parameters in the other ways in which transformers reads them."""
    parameters = text.get("rope_parameters")
    if not parameters:
        return
    if "type" in ways:
        for entry in parameters.values():
            entry["type"] = entry.pop("rope_type")
    if "factor" in ways and parameters[F].get("type", parameters[F].get("rope_type")) == "proportional":
        factor = parameters[F].pop("partial_rotary_factor", None)
        if factor is not None:
            text["partial_rotary_factor"] = factor
    if "rope_scaling" in ways:
        text["rope_scaling"] = parameters
        text["rope_parameters"] = {name: {"rope_type": "default", "rope_theta": 7.0} for name in (S, F)}


def write_checkpoint(directory, case):
    os.makedirs(directory, exist_ok=True)
    text = case["text"]
    generator = torch.Generator().manual_seed(case["seed"])
    torch.manual_seed(case["seed"])
    gemma3 = case.get("generation") == 3
    name = "Gemma3" if gemma3 else "Gemma4"
    config = getattr(transformers, f"{name}TextConfig")(**json.loads(json.dumps(text)))
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    random_weights(model, generator)
    tensors = stored_tensors(model, case, generator)

    written = config.to_dict() if case["dialect"] == "resaved" else dict(text)
    dtype = case["dtype"] if case["dtype"] in DTYPES else "float32"
    written["dtype"] = dtype
    written = json.loads(json.dumps(written))
    respell(written, case["respell"])
    if case["nested"]:
        written = {"architectures": [f"{name}ForConditionalGeneration"], "model_type": name.lower(), "text_config": written,
                   "vision_config": None, "audio_config": None, "dtype": dtype,
                   "eos_token_id": text["eos_token_id"],
                   "tie_word_embeddings": text["tie_word_embeddings"]}
    else:
        written["architectures"] = [f"{name}ForCausalLM"]
    if case["extras"]:
        written["a_key_of_tomorrow"] = {"nested": [1, {"deep": None}]}
        written["transformers_version"] = "9.9.9"
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(written, file, indent=2)

    names = list(tensors)
    if case["shards"] == 1:
        save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    else:
        index = {}
        for shard in range(case["shards"]):
            file = f"model-{shard + 1:05d}-of-{case['shards']:05d}.safetensors"
            part = {name: tensors[name] for name in names[shard::case["shards"]]}
            save_file(part, os.path.join(directory, file), metadata={"format": "pt"})
            index.update(dict.fromkeys(part, file))
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {"total_size": total}, "weight_map": index}, file)


# ------------------------------------------------------------------------------------------------ reference


def load_reference(directory, case):
    """As the library reads the files: the configuration's meaning is part of the check. Of a Gemma 3 with pictures the text
    part is read, whose class has no tower to be made up."""
    nested = case["nested"]
    if case.get("generation") == 3:
        with open(os.path.join(directory, "config.json")) as file:
            top = json.load(file)
        config = transformers.Gemma3TextConfig(**(top["text_config"] if nested else top))
        model = transformers.Gemma3ForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32)
        files = [name for name in sorted(os.listdir(directory)) if name.startswith("model") and name.endswith(".safetensors")]
        stored = {name: tensor for file in files for name, tensor in load_file(os.path.join(directory, file)).items()}
        own = {}
        for name, tensor in stored.items():
            name = name.replace("language_model.model.", "model.").replace("model.language_model.", "model.")
            own[name] = tensor.float()
        missing, unexpected = model.load_state_dict(own, strict=False)
        assert set(missing) <= {"lm_head.weight"}, missing
        assert all("vision" in name or "multi_modal" in name or "inv_freq" in name for name in unexpected), unexpected
        model.tie_weights()
        return model.eval()
    kind = transformers.Gemma4ForConditionalGeneration if nested else transformers.Gemma4ForCausalLM
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                experts_implementation="eager").eval()


@torch.no_grad()
def reference(model, ids, greedy):
    out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    sequence, chosen, gaps = list(ids), [], []
    logits = out.logits[0]
    for _ in range(greedy):
        best = torch.topk(logits[-1], 2)
        chosen.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        sequence.append(chosen[-1])
        logits = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
    return {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "logits": out.logits[0].float().contiguous(),
        "hidden_states": torch.stack([state[0] for state in out.hidden_states]).float().contiguous(),
        "greedy": torch.tensor(chosen, dtype=torch.int32),
        "gap": torch.tensor(gaps),
    }


def prompt(case):
    rng = random.Random(case["seed"] + 2)
    return [rng.randrange(case["text"]["vocab_size"]) for _ in range(case["length"])]


def make_case(directory, case):
    write_checkpoint(directory, case)
    return reference(load_reference(directory, case), prompt(case), GREEDY)


def write(directory, case):
    save_file(make_case(directory, case), os.path.join(directory, "golden.safetensors"))


# ---------------------------------------------------------------------------------------------- comparison


def command(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def compare(kakeya, directory, case, expected):
    """Raises AssertionError with the first difference."""
    ids = expected["input_ids"].tolist()
    ids_file, out = os.path.join(directory, "ids.json"), os.path.join(directory, "out.safetensors")
    with open(ids_file, "w") as file:
        json.dump(ids, file)
    rng = random.Random(case["seed"] + 3)
    common = ["--model", directory, "--ids-file", ids_file, "--precision", "f32", "--threads", rng.choice("12"),
              "--isa", rng.choice(supported_kernels()), "--json"]
    scored = command([kakeya, "score", *common, "--out", out, "--hidden-states"])
    found = load_file(out)
    for i, (a, b) in enumerate(zip(found["hidden_states"], expected["hidden_states"])):
        relative = float((a - b).norm() / b.norm())
        assert relative <= 3e-4, f"hidden state {i}: relative difference {relative:.3g}"
    worst = float((found["logits"] - expected["logits"]).abs().max())
    assert worst <= 3e-3, f"logits: difference {worst:.3g}"

    likelihood = torch.log_softmax(expected["logits"].double(), -1)
    nll = -likelihood[torch.arange(len(ids) - 1), torch.tensor(ids[1:], dtype=torch.long)]
    assert scored["tokens"] == len(ids) - 1, f"{scored['tokens']} tokens scored"
    assert abs(scored["nll"] - float(nll.sum())) <= 1e-3 * max(1, len(ids)), f"nll {scored['nll']}, expected {float(nll.sum())}"

    cut = rng.randrange(1, len(ids) + 1)
    again = command([kakeya, "score", *common, "--prompt-length", str(cut)])
    part = scored["token_nll"][cut - 1:]
    assert again["token_nll"] == part, f"--prompt-length {cut} changes the likelihoods"

    n = len(expected["greedy"])
    ran = command([kakeya, "run", *common, "--max-tokens", str(n), "--ignore-eos", "--mode", rng.choice(["ar", "ngram", "auto"])])
    for step, (token, gap) in enumerate(zip(expected["greedy"].tolist(), expected["gap"].tolist())):
        if gap <= GAP:
            break
        assert ran["token_ids"][step] == token, f"greedy step {step}: {ran['token_ids'][step]}, expected {token} (gap {gap:.3g})"


def supported_kernels():
    with open("/proc/cpuinfo") as file:
        flags = file.read().split()
    return ["scalar"] + [name for name, flag in (("avx2", "avx2"), ("avx512", "avx512vl"), ("avx512bf16", "avx512_bf16"))
                         if flag in flags]


def check(kakeya, first, last, chosen=choose):
    failures = 0
    for seed in range(first, last + 1):
        case = chosen(seed)
        with tempfile.TemporaryDirectory() as directory:
            expected = make_case(directory, case)
            try:
                compare(kakeya, directory, case, expected)
            except AssertionError as error:
                failures += 1
                print(f"seed {seed}: {error}\n    {json.dumps(case)}", flush=True)
    print(f"{last - first + 1} models, {failures} failures")
    return 1 if failures else 0


def main(arguments):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if len(arguments) in (2, 3) and arguments[0] == "vectors":
        return [write(os.path.join(arguments[1], name), form(name)) for name in arguments[2:] or FORMS] and 0
    if len(arguments) == 3 and arguments[0] == "write":
        return write(arguments[1], choose(int(arguments[2])))
    if len(arguments) == 4 and arguments[0] in ("check", "check3"):
        return check(arguments[1], int(arguments[2]), int(arguments[3]), choose3 if arguments[0] == "check3" else choose)
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
