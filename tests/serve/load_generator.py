"""AIPerf, unpatched, against a server: every request is answered, and its numbers are there."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from harness import MODELS, Server, equal, holds, run_tests, test

folder = tempfile.mkdtemp(prefix="kakeya-load-")


@test("AIPerf: streamed chats, two at a time, measured to the first token and between tokens")
def _():
    s = Server("--name", "demo")
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "aiperf"), "profile", "--model", "demo", "--url", s.url, "--endpoint-type", "chat",
         "--streaming", "--tokenizer", f"{MODELS}/demo", "--request-count", "6", "--concurrency", "2",
         "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "8", "--extra-inputs", "ignore_eos:true", "--ui", "none",
         "--artifact-dir", folder],
        capture_output=True, text=True, env=clean, cwd=folder)
    equal(done.returncode, 0, done.stdout[-3000:] + done.stderr[-1000:])
    with open(os.path.join(folder, "profile_export_aiperf.json")) as f:
        found = json.load(f)
    equal((found["request_count"]["avg"], found["error_summary"]), (6, []))
    for name in ("time_to_first_token", "inter_token_latency", "output_token_throughput"):
        holds(found[name]["avg"] > 0, name)
    holds(found["usage_prompt_tokens"]["avg"] >= 64, found["usage_prompt_tokens"])
    s.stop()


try:
    run_tests()
finally:
    Server.stop_all()
    shutil.rmtree(folder, ignore_errors=True)
