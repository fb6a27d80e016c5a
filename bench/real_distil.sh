#!/bin/sh
# What restoring is worth on a public model, Gemma 3 270M, by rank: trains an f_theta of each rank on texts of Debian packages, by closed
# form and distilled, and measures dropping and all of them on 24 unseen sequences of four kinds. For a machine with a GPU. It has not been
# run: a CPU takes hours for it.
# usage: bench/real_distil.sh OUT [kakeya]
# environment: BACKEND (cuda), RANKS (128 256 512), STEPS (1000), TOKENS (1200000), KAKEYA_CACHE (the model's folder)
set -eu

out=${1:?usage: bench/real_distil.sh OUT [kakeya]}
kakeya=${2:-build/kakeya}
backend=${BACKEND:-cuda}
cd "$(dirname "$0")/.."
mkdir -p "$out"
out=$(cd "$out" && pwd)
model=$(tools/real_model.sh quiet)
tools/study_texts.py "$out/texts"
set --
for piece in "$out"/texts/pieces/*.txt; do set -- "$@" --text "$piece"; done

measure() { # name, policies, options...: one line of the table
    name=$1
    policies=$2
    shift 2
    "$kakeya" eval fidelity --model "$model" --backend "$backend" --precision f32 --prompt-length 600 --score-tokens 64 \
        --policies "$policies" --report "$out/$name.json" "$@" >"$out/$name.txt"
    jq -r --arg name "$name" '.summary.arms[] | [$name, .policy, .perplexity, .kl_from_native, .top1_agreement] | @tsv' "$out/$name.json"
}

measure dropped native,sink-window "$@"
for rank in ${RANKS:-128 256 512}; do
    [ -e "$out/rank-$rank/f_theta_config.json" ] ||
        "$kakeya" train f-theta --model "$model" --backend "$backend" --distill --rank "$rank" --tokens "${TOKENS:-1200000}" \
            --steps "${STEPS:-1000}" --rate 0.0003 --needles 0 --even-if-worse --out "$out/rank-$rank" "$out"/texts/train/*.txt
    measure "closed-$rank" native,sink-window,restored,restored-all --f-theta "$out/rank-$rank/start" "$@"
    measure "distilled-$rank" native,sink-window,restored,restored-all --f-theta "$out/rank-$rank" "$@"
done
