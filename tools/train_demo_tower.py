#!/usr/bin/env python3
"""Trains the demo's vision tower: pictures that show a code of four digits become rows in which the demo reads the code.

    tools/train_demo_tower.py models/demo                      trains it and writes models/demo/vision.safetensors
    tools/train_demo_tower.py models/demo --check 500          reads as many pictures that it was not trained on, and counts
    tools/train_demo_tower.py models/demo --draw 4821 FILE     writes one picture as a PNG file

The text model is frozen. The rows of a picture are fitted to the embeddings of "IMPORTANT: the secret code is 4821." that end where the
digits are drawn, with <bos> before them; first on pictures that have the last row of tokens alone, then on whole ones. Pictures are
drawn as measure/code_picture.c draws them, from the same table of digits, and are resized as every picture is. Tower and text model are
written from docs/guide/images.md and the published form, independently of the engine. Needs torch, safetensors and tokenizers of
tools/requirements.txt."""
import argparse
import json
import math
import os
import random
import struct
import time
import zlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-6
PATCH, POOLING = 16, 3
GRID = 8              # tokens a side: what a square picture has at a budget of 70
SIDE = 256            # pixels of a picture
CELL = SIDE // GRID   # of a digit, so that each becomes one token
ROW, COLUMN = 7, 3    # the place of the first digit, in tokens
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16, "intermediate_size": 192,
         "position_embedding_size": 256}
BEGIN, END = 17, 19  # <|image>, <image|>
PHRASE = "IMPORTANT: the secret code is "
QUESTION = "Question: what is the secret code? Answer:"
# 5 x 7 dots of each digit, a row in five bits, the highest on the left; measure/code_picture.c has the same.
DIGITS = [
    (0x0E, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0E), (0x04, 0x0C, 0x04, 0x04, 0x04, 0x04, 0x0E),
    (0x0E, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1F), (0x1F, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0E),
    (0x02, 0x06, 0x0A, 0x12, 0x1F, 0x02, 0x02), (0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E),
    (0x06, 0x08, 0x10, 0x1E, 0x11, 0x11, 0x0E), (0x1F, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08),
    (0x0E, 0x11, 0x11, 0x0E, 0x11, 0x11, 0x0E), (0x0E, 0x11, 0x11, 0x0F, 0x01, 0x02, 0x0C),
]

# --------------------------------------------------------------------------------------------------------- pictures


DOT = 4  # pixels
MASKS = [torch.tensor([[row >> (4 - x) & 1 for x in range(5)] for row in digit], device="cpu").bool().repeat_interleave(
    DOT, 0).repeat_interleave(DOT, 1) for digit in DIGITS]


def draw(chance, code):
    """[SIDE, SIDE, 3] bytes: a frame around a light ground, and the code below in a dark ink."""
    def colour(low, high):
        return torch.tensor([chance.randint(low, high) for _ in range(3)], dtype=torch.uint8, device="cpu")
    picture = torch.empty(SIDE, SIDE, 3, dtype=torch.uint8, device="cpu")
    ground, ink = colour(176, 255), colour(0, 96)
    picture[:] = colour(0, 255)
    wide = chance.randint(2, 6)
    picture[wide:SIDE - wide, wide:SIDE - wide] = ground
    left = COLUMN * CELL + (CELL - 5 * DOT) // 2 + chance.randint(-2, 2)
    top = ROW * CELL + (CELL - 7 * DOT) // 2 + chance.randint(-2, 2)
    for i, digit in enumerate(code):
        picture[top:top + 7 * DOT, left + i * CELL:left + i * CELL + 5 * DOT][MASKS[int(digit)]] = ink
    return picture


def weights_of(n_in, n_out):
    """Of the antialiased bicubic; enlarging only."""
    matrix = torch.zeros(n_out, n_in)
    scale = n_in / n_out
    for i in range(n_out):
        centre = scale * (i + 0.5)
        first, last = max(int(centre - 2 + 0.5), 0), min(int(centre + 2 + 0.5), n_in)
        for j in range(first, last):
            x = abs(j - centre + 0.5)
            matrix[i, j] = (1.5 * x - 2.5) * x * x + 1 if x < 1 else ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0
        matrix[i] /= matrix[i].sum()
    return matrix


FITTED = GRID * PATCH * POOLING
RESIZE = weights_of(SIDE, FITTED)


def patches(pictures, first=0):
    """[N, SIDE, SIDE, 3] bytes to [N, patches, values]: resized, row by row, from row `first` of tokens on."""
    down = RESIZE[first * PATCH * POOLING:]
    above = int(down.abs().sum(0).nonzero()[0])
    x = pictures[:, above:].to(RESIZE.device).float()
    x = torch.einsum("ow,nhwc->nhoc", RESIZE, x).round().clamp(0, 255)
    x = torch.einsum("oh,nhwc->nowc", down[:, above:], x).round().clamp(0, 255) / 255
    across = FITTED // PATCH
    return x.view(len(x), -1, PATCH, across, PATCH, 3).transpose(2, 3).reshape(len(x), -1, PATCH * PATCH * 3)


def write_png(picture, path):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in picture)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)) +
                   chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


# ------------------------------------------------------------------------------------------------------------ tower


def rms(x, gain=None):
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)
    return y if gain is None else y * gain


def new_tower(text_hidden):
    s, w = SIZES, {}
    h, d, f, p = s["hidden_size"], s["head_dim"], s["intermediate_size"], "model.vision_tower."
    wide = s["num_attention_heads"] * d

    def matrix(name, rows, columns):
        w[name] = torch.randn(rows, columns) * columns ** -0.5
    matrix(p + "patch_embedder.input_proj.weight", h, PATCH * PATCH * 3)
    w[p + "patch_embedder.position_embedding_table"] = torch.randn(2, s["position_embedding_size"], h) * 0.5
    for i in range(s["num_hidden_layers"]):
        q = f"{p}encoder.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            w[f"{q}{name}.weight"] = torch.ones(h)
        for name in ("q_proj", "k_proj", "v_proj"):
            matrix(f"{q}self_attn.{name}.linear.weight", wide, h)
        matrix(f"{q}self_attn.o_proj.linear.weight", h, wide)
        w[f"{q}self_attn.q_norm.weight"], w[f"{q}self_attn.k_norm.weight"] = torch.ones(d), torch.ones(d)
        for name in ("gate_proj", "up_proj"):
            matrix(f"{q}mlp.{name}.linear.weight", f, h)
        matrix(f"{q}mlp.down_proj.linear.weight", h, f)
    w[p + "std_bias"], w[p + "std_scale"] = torch.zeros(h), torch.full((h,), h ** -0.5)
    matrix("model.embed_vision.embedding_projection.weight", text_hidden, h)
    return w


def turn_2d(x, positions):
    """x [N, patches, heads, d]; each half of a head turns by one coordinate."""
    m = x.shape[-1] // 4
    out = []
    for half, at in zip(x.chunk(2, -1), positions):
        angle = at.float()[:, None] * 100.0 ** (-torch.arange(m) / m)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = half[..., :m], half[..., m:]
        out += [a * cos - b * sin, b * cos + a * sin]
    return torch.cat(out, -1)


def tower(w, px, first=0):
    """[N, patches, values] to rows [N, tokens, text hidden]; as in patches()."""
    s, p = SIZES, "model.vision_tower."
    n, count, side = len(px), px.shape[1], FITTED // PATCH
    at = torch.arange(side).repeat(count // side), torch.arange(first * POOLING, side).repeat_interleave(side)
    places = w[p + "patch_embedder.position_embedding_table"]
    h = 2 * (px - 0.5) @ w[p + "patch_embedder.input_proj.weight"].T + places[0][at[0]] + places[1][at[1]]
    for i in range(s["num_hidden_layers"]):
        q = f"{p}encoder.layers.{i}."

        def heads(name):
            return (x @ w[f"{q}self_attn.{name}.linear.weight"].T).view(n, count, s["num_attention_heads"], s["head_dim"])
        x = rms(h, w[q + "input_layernorm.weight"])
        asked = turn_2d(rms(heads("q_proj"), w[q + "self_attn.q_norm.weight"]), at).transpose(1, 2)
        keys = turn_2d(rms(heads("k_proj"), w[q + "self_attn.k_norm.weight"]), at).transpose(1, 2)
        seen = F.scaled_dot_product_attention(asked, keys, rms(heads("v_proj")).transpose(1, 2), scale=1.0)
        added = seen.transpose(1, 2).reshape(n, count, -1) @ w[q + "self_attn.o_proj.linear.weight"].T
        h = h + rms(added, w[q + "post_attention_layernorm.weight"])
        x = rms(h, w[q + "pre_feedforward_layernorm.weight"])
        x = F.gelu(x @ w[q + "mlp.gate_proj.linear.weight"].T, approximate="tanh") * (x @ w[q + "mlp.up_proj.linear.weight"].T)
        h = h + rms(x @ w[q + "mlp.down_proj.linear.weight"].T, w[q + "post_feedforward_layernorm.weight"])
    pooled = h.view(n, -1, POOLING, GRID, POOLING, s["hidden_size"]).mean((2, 4)).flatten(1, 2) * math.sqrt(s["hidden_size"])
    pooled = (pooled - w[p + "std_bias"]) * w[p + "std_scale"]
    return rms(pooled) @ w["model.embed_vision.embedding_projection.weight"].T


# ------------------------------------------------------------------------------------------------------- text model


class TextModel:
    """The demo, frozen. Tokens of a picture see each other both ways in sliding layers."""

    def __init__(self, directory):
        self.config = json.load(open(os.path.join(directory, "config.json")))
        self.w = {}
        for name in sorted(os.listdir(directory)):
            if name.startswith("model-") and name.endswith(".safetensors"):
                for key, value in load_file(os.path.join(directory, name)).items():
                    self.w[key.replace("model.", "")] = value.float().to(torch.get_default_device())
        self.hidden, self.heads = self.config["hidden_size"], self.config["num_attention_heads"]

    def embed(self, ids):
        return self.w["embed_tokens.weight"][ids] * math.sqrt(self.hidden)

    def turn(self, kind, x):
        rope = self.config["rope_parameters"][kind]
        d = x.shape[-1]
        half, pairs = d // 2, int(rope.get("partial_rotary_factor", 1.0) * d) // 2
        angle = torch.arange(x.shape[1])[:, None] * rope["rope_theta"] ** (-2 * torch.arange(pairs) / d)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :pairs], x[..., half:half + pairs]
        return torch.cat([a * cos - b * sin, x[..., pairs:half], b * cos + a * sin, x[..., half + pairs:]], -1)

    def attention(self, i, h, pictures):
        c, w, kind, n = self.config, self.w, self.config["layer_types"][i], h.shape[1]
        full, p = kind == "full_attention", f"layers.{i}.self_attn."
        kv, d = (c["num_global_key_value_heads"], c["global_head_dim"]) if full else (c["num_key_value_heads"], c["head_dim"])
        x = rms(h, w[f"layers.{i}.input_layernorm.weight"])
        q = rms((x @ w[p + "q_proj.weight"].T).view(len(h), n, self.heads, d), w[p + "q_norm.weight"])
        raw_k = (x @ w[p + "k_proj.weight"].T).view(len(h), n, kv, d)
        raw_v = (x @ w[p + "v_proj.weight"].T).view(len(h), n, kv, d) if p + "v_proj.weight" in w else raw_k
        q, k = self.turn(kind, q).transpose(1, 2), self.turn(kind, rms(raw_k, w[p + "k_norm.weight"])).transpose(1, 2)
        back = torch.arange(n)[:, None] - torch.arange(n)
        seen = (back >= 0).expand(len(h), n, n)
        if not full:
            seen = (seen | (pictures[:, :, None] & pictures[:, None])) & (back < c["sliding_window"])
        o = F.scaled_dot_product_attention(q, k, rms(raw_v).transpose(1, 2), attn_mask=seen[:, None], scale=1.0, enable_gqa=True)
        return o.transpose(1, 2).reshape(len(h), n, -1) @ w[p + "o_proj.weight"].T

    def experts(self, p, h):
        """All of them, and the shares of those that were not chosen are 0."""
        w, shape = self.w, h.shape
        h = h.reshape(-1, shape[-1])
        z = (rms(h) * w[p + "router.scale"] / math.sqrt(self.hidden)) @ w[p + "router.proj.weight"].T
        top, chosen = z.topk(self.config["top_k_experts"], -1)
        share = torch.zeros_like(z).scatter(1, chosen, top.softmax(-1) * w[p + "router.per_expert_scale"][chosen])
        x = rms(h, w[p + "pre_feedforward_layernorm_2.weight"])
        both = w[p + "experts.gate_up_proj"]
        gate, up = (x @ both.reshape(-1, shape[-1]).T).view(len(h), len(both), 2, -1).unbind(2)
        y = F.gelu(gate, approximate="tanh") * up * share[..., None]
        return (y.reshape(len(h), -1) @ w[p + "experts.down_proj"].transpose(1, 2).reshape(-1, shape[-1])).view(shape)

    def logits(self, h, pictures, positions):
        """Of rows `positions`, counted from the end."""
        w = self.w
        for i in range(self.config["num_hidden_layers"]):
            p = f"layers.{i}."
            h = h + rms(self.attention(i, h, pictures), w[p + "post_attention_layernorm.weight"])
            x = rms(h, w[p + "pre_feedforward_layernorm.weight"])
            x = F.gelu(x @ w[p + "mlp.gate_proj.weight"].T, approximate="tanh") * (x @ w[p + "mlp.up_proj.weight"].T)
            both = rms(x @ w[p + "mlp.down_proj.weight"].T, w[p + "post_feedforward_layernorm_1.weight"]) + rms(
                self.experts(p, h), w[p + "post_feedforward_layernorm_2.weight"])
            h = (h + rms(both, w[p + "post_feedforward_layernorm.weight"])) * w[p + "layer_scalar"]
        y = rms(h[:, positions], w["norm.weight"]) @ w["embed_tokens.weight"].T
        cap = self.config["final_logit_softcapping"]
        return cap * torch.tanh(y / cap)


# --------------------------------------------------------------------------------------------------------- training


class Prompts:
    """What stands around a picture and the answer to it."""

    def __init__(self, directory):
        self.tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def lines(self, first, n):
        return "".join(f"Note {i:04d}: this paragraph is unrelated padding and does not contain the answer.\n"
                       for i in range(first, first + n))

    def draw(self, chance):
        """Token ids before the picture's rows, and those after them, of a prompt with or without padding."""
        most = chance.choice((0, 6, 6, 30))
        before, after = chance.randint(0, most), chance.randint(0, most)
        head = self.ids("<bos><|turn>") + self.ids("user\n" + self.lines(0, before).strip())
        tail = self.ids(self.lines(before, after) + QUESTION) + self.ids("<turn|>") + self.ids("\n")
        return head + [BEGIN], [END] + tail + self.ids("<|turn>") + self.ids("model\n")


def codes_of(chance, n):
    return [str(chance.randint(1000, 9999)) for _ in range(n)]


def pictures_of(chance, codes, first=0):
    return patches(torch.stack([draw(chance, code) for code in codes]), first)


def targets(text, prompts, code):
    """Embeddings of a picture's rows: the phrase, its digits where they are drawn, and <bos> before it."""
    ids = torch.full((GRID * GRID,), prompts.ids("<bos>")[0])
    phrase = prompts.ids(PHRASE + code + ".")
    first = ROW * GRID + COLUMN - (len(phrase) - 5)
    ids[first:first + len(phrase)] = torch.tensor(phrase)
    return text.embed(ids)


def loss_of(text, prompts, chance, soft, codes):
    """Of the answers, all with the same text around the picture; and which are right, chosen greedily."""
    head, tail = prompts.draw(chance)
    answers = torch.tensor([prompts.ids(f"The secret code is {code}.") + prompts.ids("<turn|>") for code in codes])
    n = len(codes)
    rows = torch.cat([text.embed(torch.tensor(head)).expand(n, -1, -1), soft,
                      text.embed(torch.tensor(tail)).expand(n, -1, -1), text.embed(answers[:, :-1])], 1)
    pictures = torch.zeros(n, rows.shape[1], dtype=torch.bool)
    pictures[:, len(head):len(head) + soft.shape[1]] = True
    logits = text.logits(rows, pictures, range(rows.shape[1] - answers.shape[1], rows.shape[1]))
    right = (logits.argmax(-1) == answers).all(-1)
    return F.cross_entropy(logits.flatten(0, 1), answers.flatten()), right


def anneal(optimiser, rate, step, steps):
    at = min(1, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
    for group in optimiser.param_groups:
        group["lr"] = rate * max(at, 0.02)


def fit(w, text, prompts, chance, started, first, steps, pictures, rate):
    """Rows from `first` on of pictures that have no others."""
    drawn = slice((ROW - first) * GRID + COLUMN, (ROW - first) * GRID + COLUMN + 4)
    optimiser = torch.optim.Adam(w.values(), lr=1)
    for step in range(steps):
        anneal(optimiser, rate, step, steps)
        codes = codes_of(chance, pictures)
        wanted = torch.stack([targets(text, prompts, code) for code in codes])[:, first * GRID:]
        rows = tower(w, pictures_of(chance, codes, first), first)
        off = ((rows - wanted) ** 2).sum(-1).div((wanted ** 2).sum(-1)).mean(0)
        loss = off.mean() + off[drawn].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0 or step + 1 == steps:
            print(f"{time.time() - started:.0f} s: {step + 1} steps, {off.mean().item():.4f} from the text's rows, "
                  f"{off[drawn].mean().item():.4f} where digits are", flush=True)


def train(directory, out, start, strip_steps, fit_steps, seed):
    torch.manual_seed(seed)
    chance = random.Random(seed)
    text, prompts = TextModel(directory), Prompts(directory)
    w = {name: value.requires_grad_() for name, value in new_tower(text.hidden).items()}
    if start:
        w = {name: value.float().requires_grad_() for name, value in load_file(start).items()}
    started = time.time()
    fit(w, text, prompts, chance, started, ROW, strip_steps, 32, 4e-3)
    write(directory, out, w)
    fit(w, text, prompts, chance, started, 0, fit_steps, 3, 3e-3)
    write(directory, out, w)


def write(directory, out, trained):
    w = {name: value.detach().bfloat16().cpu().contiguous() for name, value in trained.items()}
    save_file(w, out, metadata={"format": "pt"})
    path = os.path.join(directory, "model.safetensors.index.json")
    if os.path.dirname(os.path.abspath(out)) != os.path.abspath(directory):
        return
    index = json.load(open(path))
    kept = {name: file for name, file in index["weight_map"].items() if file != os.path.basename(out)}
    sizes = 0
    for file in sorted(set(kept.values())):
        sizes += sum(value.nbytes for value in load_file(os.path.join(directory, file)).values())
    index["metadata"]["total_size"] = sizes + sum(value.nbytes for value in w.values())
    index["weight_map"] = {**kept, **{name: os.path.basename(out) for name in w}}
    with open(path, "w") as file:
        file.write(json.dumps(index, indent=1))


def check(directory, tower_file, n, seed):
    chance = random.Random(seed + 1)
    text, prompts = TextModel(directory), Prompts(directory)
    w = {name: value.float().to(torch.get_default_device()) for name, value in load_file(tower_file).items()}
    right = 0
    with torch.no_grad():
        for first in range(0, n, 20):
            codes = codes_of(chance, min(20, n - first))
            right += int(loss_of(text, prompts, chance, tower(w, pictures_of(chance, codes)), codes)[1].sum())
    print(f"{right} of {n} codes are read")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--out", help="where the tower is written, instead of DIRECTORY/vision.safetensors")
    parser.add_argument("--start", metavar="FILE", help="a tower to go on from")
    parser.add_argument("--strip-steps", type=int, default=500)
    parser.add_argument("--fit-steps", type=int, default=1460)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", type=int, metavar="N")
    parser.add_argument("--draw", nargs=2, metavar=("CODE", "FILE"))
    o = parser.parse_args()
    out = o.out or os.path.join(o.directory, "vision.safetensors")
    if o.draw:
        write_png(draw(random.Random(o.seed), o.draw[0]), o.draw[1])
    elif o.check:
        check(o.directory, out, o.check, o.seed)
    else:
        train(o.directory, out, o.start, o.strip_steps, o.fit_steps, o.seed)


main()
