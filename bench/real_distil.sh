#!/bin/sh
# What restoring is worth on a public model, Gemma 3 270M, by rank: trains f_thetas on texts of Debian packages, by closed form and
# distilled from there, and measures dropping and all of them on unseen sequences of four kinds: 24 after prompts of 600 to 1,500 tokens,
# and 25 after 600. For a machine with a GPU.
# usage: bench/real_distil.sh OUT [kakeya]
# environment: BACKEND (cuda), RANKS (512 256 128; the first is twice the second, and so on), SHARES (0; of segments that restore all
# layers: "0 0.5" trains each rank twice), STEPS (1600), TOKENS (12000000), CLOSED_TOKENS (1000000), KAKEYA_CACHE (the model's folder)
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
precision=
[ "$backend" = cuda ] || precision="--precision f32"

fidelity() { # report, tokens of the prompt, policies, f_theta, texts...
    report=$1 prompt=$2 policies=$3 f_theta=$4
    shift 4
    for text; do set -- "$@" --text "$text" && shift; done
    # shellcheck disable=SC2086
    "$kakeya" eval fidelity --model "$model" --backend "$backend" $precision --drafter none --prompt-length "$prompt" --score-tokens 64 \
        --policies "$policies" --f-theta "$f_theta" --report "$report" "$@" >"${report%.json}.txt"
}

table() { # title, reports...: a line of the table for each policy, all kinds and each of them
    title=$1
    shift
    jq -rs --arg title "$title" '
        def of(kind): map(select(kind == "all" or (.sample | contains(kind))));
        def kl: (map(.kl_from_native) | add) / (map(.scored_tokens) | add);
        [.[].rows[]] | group_by(.policy)[] | (map(.scored_tokens) | add) as $tokens |
        [$title, .[0].policy, length, ((map(.nll) | add) / $tokens | exp), (map(.top1_agreements) | add) / $tokens, kl,
         (("prose", "jargon", "german", "code") as $kind | of($kind) | kl)] | @tsv' "$@"
}

measure() { # name, policies, f_theta
    name=$1
    fidelity "$out/$name-600.json" 600 "$2" "$3" "$out"/texts/pieces/*.txt
    table "$name, prompts of 600" "$out/$name-600.json"
    for prompt in 600 780 960 1140 1320 1500; do
        fidelity "$out/$name-longer-$prompt.json" "$prompt" "$2" "$3" "$out/texts/longer/$prompt"/*.txt
    done
    table "$name, prompts of 600 to 1,500" "$out/$name"-longer-*.json
}

train() { # options...
    "$kakeya" train f-theta --model "$model" --backend "$backend" --sequence 1536 --held-out 1 --even-if-worse "$@" "$out"/texts/train/*.txt
}

echo "name	policy	sequences	perplexity	top-1	KL	prose	articles	german	code"
measure dropped native,sink-window none
first=${ranks%% *}
[ -e "$out/closed/f_theta_config.json" ] ||
    train --closed-form --rank "$first" --ranks "$(echo "$ranks" | wc -w)" --tokens "${CLOSED_TOKENS:-1000000}" --metric-tokens 16000 \
        --out "$out/closed"
steps=${STEPS:-1600}
for rank in $ranks; do
    start=$out/closed/rank-$rank rate=0.0003
    [ "$rank" != "$first" ] || start=$out/closed
    [ "$rank" -lt 512 ] || rate=0.0002
    measure "closed-$rank" native,restored,restored-all "$start"
    for share in ${SHARES:-0}; do
        f_theta=$out/rank-$rank-all-layers-$share
        [ -e "$f_theta/f_theta_config.json" ] ||
            train --distill --init-from "$start" --batch 4 --segments 9 --rows 128 --loss kl_hidden --needles 0 --all-layers "$share" \
                --tokens "${TOKENS:-12000000}" --steps "$steps" --warm-up "$((steps / 10))" --rate $rate --out "$f_theta"
        measure "${f_theta##*/}" native,restored,restored-all "$f_theta"
    done
done
