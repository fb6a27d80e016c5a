#!/usr/bin/env python3
"""What a limit on weights costs: a table, and a plot of tokens a second by limit.

Makes a file of the 26B-A4B's shape in Q4_0 with random numbers (14.2 GB, unless it is there), so that routing is uniform, and has
`kakeya bench` measure it under each limit. The plot has the measured medians with the lowest and the highest beside the bound: the
slowest of the bytes that were missed at the disk's rate, of weights at memory's, of the kernels, and of the step without its waits
for reads.

With --rows, requests are sent to `kakeya serve` under the first limit, one at a time and then so many together, and what they read is
taken from /metrics.

    python3 bench/weights_limit.py [--file /tmp/26b.gguf] [--limits 3G,4G,8G] [--svg docs/guide/larger-than-memory.svg]
        [--prompt-tokens 32] [--decode-tokens 12] [--repeats 5] [--rows 8] [--kakeya build/kakeya] [--threads 2]
"""
import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ik_compare
import open_gguf

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 70, 60, 30, 20
ANSWER = 12  # tokens of each request with --rows


def table(o):
    command = [o.kakeya, "bench", "--model", o.file, "--weights-limit", o.limits, "--repeats", o.repeats, "--prompt-tokens",
               o.prompt_tokens, "--decode-tokens", o.decode_tokens, "--context-frontiers", "0", "--threads", o.threads, "--json"]
    run = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
    rows = json.loads(run.stdout)["weights_limits"]
    print("| limit | experts in memory | hit rate | read per token | tokens/s | bound | share of it | disk, GB/s | prompt, tokens/s | "
          "read for it | share of its bound |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for limit, r in zip(o.limits.split(","), rows):
        d, p = r["decode"], r["prompt"]
        rate, prompt = 1 / d["seconds"]["median"], o.prompt_tokens / p["seconds"]["median"]
        print(f"| {limit} | {r['slots']:,} of {r['experts']:,} | {100 * d['hit_rate']:.0f} % | {d['bytes_read'] / 1e6:.0f} MB | {rate:.2f} "
              f"({1 / d['seconds']['high']:.2f} to {1 / d['seconds']['low']:.2f}) | {1 / d['bound_seconds']:.2f}, {d['bound']} | "
              f"{100 * d['share_of_bound']['median']:.0f} % | {r['disk_bytes_per_second']['median'] / 1e9:.2f} | {prompt:.1f} "
              f"({o.prompt_tokens / p['seconds']['high']:.1f} to {o.prompt_tokens / p['seconds']['low']:.1f}) | "
              f"{p['bytes_read'] / 1e9:.2f} GB | {100 * p['share_of_bound']['median']:.0f} %, {p['bound']} |", flush=True)
    return rows


def plot(rows, path):
    """Tokens a second by limit: medians with the spread, and the bound."""
    points = [(r["limit_bytes"] / 2**30, r["decode"]) for r in rows]
    last = max(x for x, _ in points) * 1.1
    most = max(max(1 / d["seconds"]["low"], 1 / d["bound_seconds"]) for _, d in points) * 1.15

    def place(x, y):
        return LEFT + x / last * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / most * (HEIGHT - BOTTOM - TOP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']

    def text(x, y, words, anchor="middle", color="#333333"):
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>')

    step = 2 if last > 5 else 1
    for x in range(0, int(last) + 1, step):
        at, _ = place(x, 0)
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        text(at, HEIGHT - BOTTOM + 20, x)
    steps = next(s for s in (0.25, 0.5, 1, 2, 5, 10, 50) if most / s < 9)
    for i in range(int(most / steps) + 1):
        _, at = place(0, i * steps)
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#e4e4e4"/>')
        text(LEFT - 10, at + 4, f"{i * steps:g}", "end")
    text((LEFT + WIDTH) / 2, HEIGHT - 15, "limit on weights, GiB")
    text(LEFT, TOP - 10, "tokens a second", "start")
    for name, color, dash, value in (("bound", "#b04a00", ' stroke-dasharray="6 4"', lambda d: 1 / d["bound_seconds"]),
                                     ("measured", "#1f5fa8", "", lambda d: 1 / d["seconds"]["median"])):
        line = " ".join("{:.1f},{:.1f}".format(*place(x, value(d))) for x, d in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        at = place(points[-1][0], value(points[-1][1]))
        text(at[0], at[1] + (20 if name == "bound" else -12), name, "end", color)
    for x, d in points:
        (at, low), (_, high) = place(x, 1 / d["seconds"]["high"]), place(x, 1 / d["seconds"]["low"])
        out.append(f'<line x1="{at:.1f}" y1="{low:.1f}" x2="{at:.1f}" y2="{high:.1f}" stroke="#1f5fa8"/>')
        out.append('<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="#1f5fa8"/>'.format(*place(x, 1 / d["seconds"]["median"])))
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*out, "</svg>"]) + "\n")


def counts(base):
    with urllib.request.urlopen(f"{base}/metrics") as reply:
        lines = [line.split() for line in reply.read().decode().splitlines() if not line.startswith("#")]
    found = {line[0].split("{")[0]: float(line[1]) for line in lines}
    return [found[f"kakeya_{name}"] for name in ("experts_wanted_total", "expert_read_bytes_total")]


def ask(base, source):
    body = {"model": "m", "prompt": [source.randrange(5, 260000) for _ in range(4)], "max_tokens": ANSWER, "ignore_eos": True,
            "temperature": 2, "seed": source.randrange(1 << 30)}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        json.load(reply)


def rows_together(o):
    """Experts and bytes for each token of answers, prompts of four tokens among them."""
    port = 20000 + os.getpid() % 20000
    base = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([o.kakeya, "serve", "--model", o.file, "--name", "m", "--weights-limit", o.limits.split(",")[0], "--port",
                               str(port), "--context", "256", "--cache-ram", "0", "--threads", str(o.threads)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            try:
                counts(base)
                break
            except (OSError, KeyError):  # it is not there yet, or still loads
                time.sleep(0.1)
        source = random.Random(1)
        with concurrent.futures.ThreadPoolExecutor(o.rows) as pool:
            list(pool.map(lambda s: ask(base, s), [random.Random(i) for i in range(o.rows)]))  # until every slot is filled
            print("| requests together | experts that a token wants | bytes that it reads |\n|---|---|---|")
            for together in (1, o.rows):
                before = counts(base)
                seeds = [random.Random(source.randrange(1 << 30)) for _ in range(o.rows)]
                for i in range(0, o.rows, together):
                    list(pool.map(lambda s: ask(base, s), seeds[i : i + together]))
                wanted, read = (b - a for a, b in zip(before, counts(base)))
                tokens = o.rows * ANSWER
                print(f"| {together} | {wanted / tokens:.0f} | {read / tokens / 1e6:.0f} MB |", flush=True)
    finally:
        server.terminate()
        server.wait()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kakeya", default="build/kakeya")
    options.add_argument("--file", default="/tmp/26b.gguf")
    options.add_argument("--limits", default="3G,4G,8G")
    options.add_argument("--prompt-tokens", type=int, default=32)
    options.add_argument("--decode-tokens", type=int, default=12)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rows", type=int, default=0)
    options.add_argument("--svg")
    o = options.parse_args()
    if not os.path.exists(o.file):
        ik_compare.write(o.file, 30, "q4_0", open_gguf.Q4_0)
    if o.rows:
        rows_together(o)
        return
    rows = table(o)
    if o.svg:
        plot(rows, o.svg)


if __name__ == "__main__":
    main()
