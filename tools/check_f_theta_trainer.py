#!/usr/bin/env python3
"""Gradients of distillation against PyTorch's, in float64.

    KAKEYA_F_THETA_TRAINER_CASES=DIRECTORY build/tests/test_f_theta_trainer      (writes its cases there)
    tools/check_f_theta_trainer.py DIRECTORY tests/data/golden           (prints one line for each, exit status 1 where one differs)

With --roundings behind them it also says how far the gradient moves where all the model's weights are off by so much, at random.

Teacher, student and loss are written from docs/design/restoration.md and backend/backend_train.h, independently of the engine; autograd
does the rest. A case is CASE.json and CASE.f32: the weights of f_theta, then the gradient, in the order of backend/restoration_layout.h.
Without PyTorch it says so and ends with status 0."""
import glob
import json
import math
import os
import sys

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(0)

EPS, CAP, FULL_SHARE = 1e-6, 30.0, 0.3
# What float32 may leave. With experts the gradient hangs on roundings: computed in float64 with all weights of the model changed at random
# by half of float32's last place (6e-8), it differs by 0.7e-3 and 1.4e-3 (two draws) from the one with the weights as they are; with 6e-10
# by 3e-6. The engine, which rounds at every operation, differs by 1.9e-3 to 3.1e-3.
TOLERANCE = {"gemma4-tiny-dense": 2e-4, "gemma4-tiny-moe": 5e-3}


def rms(x, gain=None):
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)
    return y if gain is None else y * gain


class Model:
    def __init__(self, directory):
        config = json.load(open(os.path.join(directory, "config.json")))
        self.config = c = config.get("text_config", config)
        self.w = {}
        for name, value in load_file(os.path.join(directory, "model.safetensors")).items():
            self.w[name.replace("model.language_model.", "").replace("model.", "")] = value.double()
        self.layers, self.hidden, self.heads = c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"]

    def full(self, i):
        return self.config["layer_types"][i] == "full_attention"

    def shape(self, i):
        c = self.config
        if self.full(i):
            return c.get("num_global_key_value_heads") or c["num_key_value_heads"], c["global_head_dim"]
        return c["num_key_value_heads"], c["head_dim"]

    def turn(self, i, x, positions):
        """x [T, heads, d]"""
        kind = self.config["rope_parameters"][self.config["layer_types"][i]]
        d = x.shape[-1]
        half, pairs = d // 2, int(kind.get("partial_rotary_factor", 1.0) * d) // 2
        j = torch.arange(pairs, dtype=torch.float64)
        angle = positions.double()[:, None] * kind["rope_theta"] ** (-2 * j / d)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :pairs], x[..., half:half + pairs]
        return torch.cat([a * cos - b * sin, x[..., pairs:half], b * cos + a * sin, x[..., half + pairs:]], -1)

    def kv(self, i, raw_k, raw_v, positions):
        heads, d = self.shape(i)
        k = rms(raw_k.view(-1, heads, d), self.w[f"layers.{i}.self_attn.k_norm.weight"])
        return self.turn(i, k, positions), rms(raw_v.view(-1, heads, d))

    def layer(self, i, h, positions, attend):
        """attend(q, own keys, own values) -> [rows, heads, d]. Returns the output and what attention adds."""
        p, w = f"layers.{i}.", self.w
        heads, d = self.shape(i)
        x = rms(h, w[p + "input_layernorm.weight"])
        q = rms((x @ w[p + "self_attn.q_proj.weight"].T).view(-1, self.heads, d), w[p + "self_attn.q_norm.weight"])
        raw_k = x @ w[p + "self_attn.k_proj.weight"].T
        has_v = p + "self_attn.v_proj.weight" in w
        raw_v = x @ w[p + "self_attn.v_proj.weight"].T if has_v else raw_k
        o = attend(self.turn(i, q, positions), *self.kv(i, raw_k, raw_v, positions))
        added = rms(o.reshape(len(h), -1) @ w[p + "self_attn.o_proj.weight"].T, w[p + "post_attention_layernorm.weight"])
        h1 = h + added
        x = rms(h1, w[p + "pre_feedforward_layernorm.weight"])
        up = F.gelu(x @ w[p + "mlp.gate_proj.weight"].T, approximate="tanh") * (x @ w[p + "mlp.up_proj.weight"].T)
        both = up @ w[p + "mlp.down_proj.weight"].T
        if p + "router.proj.weight" in w:
            both = rms(both, w[p + "post_feedforward_layernorm_1.weight"]) + rms(
                self.experts(p, h1), w[p + "post_feedforward_layernorm_2.weight"])
        h2 = h1 + rms(both, w[p + "post_feedforward_layernorm.weight"])
        return h2 * w[p + "layer_scalar"], added

    def experts(self, p, h):
        w, k = self.w, self.config["top_k_experts"]
        z = (rms(h) * w[p + "router.scale"] / math.sqrt(self.hidden)) @ w[p + "router.proj.weight"].T
        top, chosen = z.topk(k, -1)
        share = top.softmax(-1) * w[p + "router.per_expert_scale"][chosen]
        x = rms(h, w[p + "pre_feedforward_layernorm_2.weight"])
        out = torch.zeros_like(h)
        for slot in range(k):
            gate, up = torch.einsum("th,toh->to", x, w[p + "experts.gate_up_proj"][chosen[:, slot]]).chunk(2, -1)
            y = torch.einsum("tw,thw->th", F.gelu(gate, approximate="tanh") * up,
                             w[p + "experts.down_proj"][chosen[:, slot]])
            out = out + share[:, slot, None] * y
        return out

    def logits(self, h):
        y = rms(h, self.w["norm.weight"]) @ self.w["embed_tokens.weight"].T
        cap = self.config.get("final_logit_softcapping")
        return cap * torch.tanh(y / cap) if cap else y


def attention(q, k, v, seen):
    """q [N, heads, d], k and v [columns, kv heads, d], seen [N, columns]"""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,chd->hnc", q, k).masked_fill(~seen, -math.inf)
    return torch.einsum("hnc,chd->nhd", scores.softmax(-1), v)


def lost(c, model, weights):
    """The loss of a segment, by f_theta's weights."""
    window = c["sliding_window"]
    tokens = torch.tensor(c["tokens"])
    everywhere = torch.arange(len(tokens))
    h = model.w["embed_tokens.weight"][tokens] * math.sqrt(model.hidden)
    embedded, native, outputs, adds = h, [], [], []
    for i in range(model.layers):
        back = everywhere[:, None] - everywhere
        seen = (back >= 0) & (model.full(i) | (back < window))

        def attend(q, k, v):
            native.append((k, v))
            return attention(q, k, v, seen)
        h, added = model.layer(i, h, everywhere, attend)
        outputs.append(h)
        adds.append(added)
    read = torch.cat([rms(outputs[i]) for i in c["taps"]], -1)
    latent = [read @ weights["encoder", 0, -1].T]
    latent.append(latent[0] if c["shared"] else read @ weights["encoder", 1, -1].T)

    first, rows, sink, kept = c["first"], c["rows"], c["sink"], c["window"]
    here = everywhere[first:first + rows]
    end = first + rows - kept
    slides = max(sink, first - window + 1)
    loss = {"kl": 0, "hidden": 0, "attention": 0, "kv": 0}
    h = embedded[here]
    for i in range(model.layers):
        restored = not model.full(i) or c["all_layers"]
        k_hat, v_hat = model.kv(i, latent[0] @ weights["decoder", 0, i].T, latent[1] @ weights["decoder", 1, i].T,
                                everywhere)
        if restored:
            of = slice(sink if model.full(i) else slides, end)
            for found, target in zip((k_hat, v_hat), native[i]):
                off = ((found[of] - target[of]) ** 2).sum() / (target[of] ** 2).sum()
                loss["kv"] += (FULL_SHARE if model.full(i) else 1) * off / model.layers

        back = here[:, None] - everywhere
        reach = (back >= 0) & (model.full(i) | (back < window))
        exact = torch.full_like(reach, True) if not restored else (everywhere < sink) | (back < kept)

        def attend(q, k, v):
            keys = torch.cat([native[i][0][:first], k_hat, k])
            values = torch.cat([native[i][1][:first], v_hat, v])
            seen = torch.cat([(reach & exact)[:, :first], reach & ~exact, (reach & exact)[:, first:first + rows]], 1)
            return attention(q, keys, values, seen)
        h, added = model.layer(i, h, here, attend)
        for what, x, target in (("hidden", h, outputs[i][here]), ("attention", added, adds[i][here])):
            loss[what] += ((x - target) ** 2).sum() / (target ** 2).sum() / model.layers
    p, q = model.logits(outputs[-1][here]).log_softmax(-1), model.logits(h).log_softmax(-1)
    loss["kl"] = (p.exp() * (p - q)).sum(-1).mean()
    return sum(c["weights"][what] * value for what, value in loss.items())


def gradient(c, model, weights):
    for value in weights.values():
        value.grad = None
    total = lost(c, model, weights)
    total.backward()
    return total.item(), {part: torch.zeros_like(value) if value.grad is None else value.grad.clone()
                          for part, value in weights.items()}


def difference(one, other):
    """The largest relative one, and the matrix that has it."""
    worst, which = 0, None
    for part, value in one.items():
        off = ((value - other[part]).norm() / (value.norm() + 1e-6)).item()
        if not off <= worst:  # what is no number is the largest
            worst, which = off, part
    return worst, which


def tell_roundings(c, model, weights, grad):
    """What roundings of the model's weights do to the gradient, in float64."""
    exact, chance = dict(model.w), torch.Generator().manual_seed(1)
    for share in (6e-8, 6e-8, 6e-10):
        for name, value in exact.items():
            model.w[name] = value * (1 + share * (2 * torch.rand(value.shape, generator=chance, dtype=value.dtype) - 1))
        total, other = gradient(c, model, weights)
        print(f"   weights off by {share}: loss {total:.6f}, largest relative difference {difference(grad, other)[0]:.2g}")
    model.w = exact


def check(case, golden):
    c = json.load(open(case))
    model = Model(os.path.join(golden, c["model"]))
    parts = []
    for half in range(2):
        if half == 0 or not c["shared"]:
            parts.append(("encoder", half, -1, (c["rank"][half], len(c["taps"]) * model.hidden)))
    for i in range(model.layers):
        heads, d = model.shape(i)
        parts += [("decoder", half, i, (heads * d, c["rank"][half])) for half in range(2)]
    numbers = torch.frombuffer(bytearray(open(case[:-5] + ".f32", "rb").read()), dtype=torch.float32).double()
    n = len(numbers) // 2
    weights, wanted, at = {}, {}, 0
    for name, half, i, shape in parts:
        size = shape[0] * shape[1]
        weights[name, half, i] = numbers[at:at + size].view(shape).clone().requires_grad_()
        wanted[name, half, i] = numbers[n + at:n + at + size].view(shape)
        at += size
    assert at == n, (at, n)

    total, grad = gradient(c, model, weights)
    worst, which = difference(grad, wanted)
    loss_off, limit = abs(total - c["loss"]) / abs(total), TOLERANCE[c["model"]]
    if not loss_off <= worst:
        worst, which = loss_off, "the loss"
    print(f"{'ok' if worst <= limit else 'DIFFERS'} {os.path.basename(case)[:-5]}: loss {total:.6f}, "
          f"largest relative difference {worst:.2g} ({which})")
    if "--roundings" in sys.argv:
        tell_roundings(c, model, weights, grad)
    return worst <= limit


def main():
    cases = sorted(glob.glob(os.path.join(sys.argv[1], "*.json")))
    if not cases:
        sys.exit(f"{sys.argv[1]}: no cases")
    with torch.enable_grad():
        results = [check(case, sys.argv[2]) for case in cases]
    sys.exit(0 if all(results) else 1)


main()
