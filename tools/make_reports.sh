#!/bin/sh
# Makes the reports in tests/data/reports anew, from real runs on the demo model: after a change of the report format, of what
# evaluations run or of what a session holds. The gate's tests start from these reports. Needs a quiet machine: the gate has to
# pass every one of them. Usage: tools/make_reports.sh [build/kakeya]
set -eu
cd "$(dirname "$0")/.."
kakeya=${1:-build/kakeya}
out=tests/data/reports
mkdir -p "$out"
prompts=$out/prompts.jsonl
i=0
for name in add_all count_words largest reversed_text is_prime; do
    i=$((i + 1))
    printf '{"task_id": "task/%d", "prompt": ' $i
    printf '"def %s(values):\\n    \\"\\"\\" Return the result for the values.\\n    \\"\\"\\"\\n"}\n' "$name"
done >"$prompts"

make_report() { # name, arguments
    name=$1
    shift
    if [ "$name" = batch ]; then set -- lossless --batch "$@"; else set -- "$name" "$@"; fi
    "$kakeya" eval "$@" --report "$out/$name.json" >/dev/null
    "$kakeya" gate "$out/$name.json"
}
make_report niah --lines 12,16,60 --max-tokens 24 --mix-alpha 0.5,1 --policies native,sink-window,restored,restored-all
make_report fidelity examples/code/events.py --prompt-length 100 --score-tokens 24 --max-sequences 5 --windows 32,64 \
    --draft-window 96
make_report code examples/code/events.py examples/code/ring_buffer.c --max-tokens 40 --prompt-tokens 120 --draft-lengths 3,7 \
    --policies native,restored
make_report acceptance "$prompts" --max-tokens 24
make_report lossless --prompts 6 --max-tokens 12 --reference-prompts 1
make_report kv-format examples/code/events.py --formats bf16,q8,affine4,d4-10 --prompt-length 60 --score-tokens 16 --lines 12 \
    --max-tokens 20
make_report batch --compositions 3 --sessions 8 --max-tokens 12
rm "$prompts"
"$kakeya" verify --rounds 2 --max-tokens 8 --report "$out/verify.json" >/dev/null
"$kakeya" gate "$out/verify.json"
gzip -9nf "$out"/*.json
