"""lm-eval, unpatched, against a server: its log-likelihoods are those of `kakeya score`."""

import glob
import os
import shutil
import tempfile

from harness import *  # noqa: F403

BIN = os.path.dirname(sys.executable)
TEXT = open("examples/needle-60.txt").read()
TASK = """task: continuations
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{continuation}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""
folder = tempfile.mkdtemp(prefix="kakeya-evaluations-")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": os.path.join(folder, "cache")}


def run(*command):
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    done = subprocess.run([os.path.join(BIN, command[0]), *command[1:]], capture_output=True, text=True, env={**clean, **OFFLINE})
    equal(done.returncode, 0, f"{' '.join(command)}: {done.stdout[-1500:]} {done.stderr[-1500:]}")
    return done.stdout


def scores(s, context, continuation):
    """What `kakeya score` says of the continuation's tokens."""
    def ids(text):
        return s.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]

    whole, before = ids(context + continuation), ids(context)
    name = os.path.join(folder, "ids.json")
    with open(name, "w") as f:
        json.dump([2, *whole], f)
    done = subprocess.run([KAKEYA, "score", "--json", "--ids-file", name], capture_output=True, text=True, timeout=WAIT)
    equal(done.returncode, 0, done.stderr)
    return -sum(json.loads(done.stdout)["token_nll"][len(before):])


@test("lm-eval: log-likelihoods of continuations are those of kakeya score")
def _():
    s = Server("--name", "demo")
    pairs = []
    for i in range(8):  # cut before a space: what lm-eval makes of a word that is cut are the tokens of other texts
        end = TEXT.rindex(" ", i * 300, i * 300 + 200)
        pairs.append((TEXT[i * 300:end].rstrip(), TEXT[end:end + 7 * (i + 1)]))
    pairs += [("def fibonacci(n):", "\n    return n"), ("def f(x):\n    return x", "\n<turn|>"), ("The end.", " ")]
    data = os.path.join(folder, "continuations.jsonl")
    with open(data, "w") as f:
        for context, continuation in pairs:
            f.write(json.dumps({"context": context, "continuation": continuation}) + "\n")
    with open(os.path.join(folder, "continuations.yaml"), "w") as f:
        f.write(TASK.format(data=data))
    out = os.path.join(folder, "out")
    run("lm_eval", "--model", "local-completions", "--model_args",
        f"model=demo,base_url={s.url}/v1/completions,tokenized_requests=False,num_concurrent=4", "--tasks", "continuations",
        "--include_path", folder, "--log_samples", "--output_path", out)
    found = {}
    for name in glob.glob(f"{out}/**/samples_*.jsonl", recursive=True):
        with open(name) as f:
            for line in f:
                sample = json.loads(line)
                asked = sample["arguments"]["gen_args_0"]
                found[(asked["arg_0"], asked["arg_1"])] = float(sample["resps"][0][0][0])
    equal(len(found), len(pairs), "every pair has a sample")
    for pair, value in found.items():
        want = scores(s, *pair)
        holds(abs(value - want) < 1e-4, f"{pair[1]!r}: {value}, kakeya score says {want}")
    s.stop()


try:
    run_tests()
finally:
    Server.stop_all()
    shutil.rmtree(folder, ignore_errors=True)
