#!/bin/sh
# What restoring is worth on a public model, Gemma 3 270M, by rank: trains f_thetas on texts of Debian packages, by closed form and
# distilled from there, and measures dropping and all of them on 24 unseen sequences of four kinds. For a machine with a GPU.
# usage: bench/real_distil.sh OUT [kakeya]
# environment: BACKEND (cuda), RANKS (512 256 128; the first is twice the second, and so on), STEPS (2000), TOKENS (9000000),
# CLOSED_TOKENS (1000000), KAKEYA_CACHE (the model's folder)
set -eu

out=${1:?usage: bench/real_distil.sh OUT [kakeya]}
kakeya=${2:-build/kakeya}
backend=${BACKEND:-cuda}
ranks=${RANKS:-512 256 128}
cd "$(dirname "$0")/.."
mkdir -p "$out"
out=$(cd "$out" && pwd)
model=$(tools/real_model.sh quiet)
tools/study_texts.py "$out/texts"
set --
for piece in "$out"/texts/pieces/*.txt; do set -- "$@" --text "$piece"; done
precision=
[ "$backend" = cuda ] || precision="--precision f32"

measure() { # name, policies, options...: one line of the table
    name=$1
    policies=$2
    shift 2
    # shellcheck disable=SC2086
    "$kakeya" eval fidelity --model "$model" --backend "$backend" $precision --drafter none --prompt-length 600 --score-tokens 64 \
        --policies "$policies" --report "$out/$name.json" "$@" >"$out/$name.txt"
    jq -r --arg name "$name" '.summary.arms[] | [$name, .policy, .perplexity, .kl_from_native, .top1_agreement] | @tsv' "$out/$name.json"
}

train() { # options...
    "$kakeya" train f-theta --model "$model" --backend "$backend" --sequence 1536 --held-out 1 --even-if-worse "$@" "$out"/texts/train/*.txt
}

measure dropped native,sink-window --f-theta none "$@"
first=${ranks%% *}
[ -e "$out/closed/f_theta_config.json" ] ||
    train --closed-form --rank "$first" --ranks "$(echo "$ranks" | wc -w)" --tokens "${CLOSED_TOKENS:-1000000}" --metric-tokens 16000 \
        --out "$out/closed"
for rank in $ranks; do
    start=$out/closed/rank-$rank rate=0.0004
    [ "$rank" != "$first" ] || start=$out/closed
    [ "$rank" -lt 512 ] || rate=0.0002
    measure "closed-$rank" native,sink-window,restored,restored-all --f-theta "$start" "$@"
    [ -e "$out/rank-$rank/f_theta_config.json" ] ||
        train --distill --init-from "$start" --batch 4 --segments 9 --rows 128 --loss kl_hidden --needles 0 \
            --tokens "${TOKENS:-9000000}" --steps "${STEPS:-2000}" --warm-up "$((${STEPS:-2000} / 10))" --rate $rate \
            --out "$out/rank-$rank"
    measure "distilled-$rank" native,sink-window,restored,restored-all --f-theta "$out/rank-$rank" "$@"
done
