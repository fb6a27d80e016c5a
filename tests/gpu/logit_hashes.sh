#!/bin/sh
# Prints one line per reference model and policy with a hash of the logits and hidden states that a program computes. Two
# programs that should give the same bits are compared by their outputs:
#   sh tests/gpu/logit_hashes.sh OLD/kakeya >old.txt; sh tests/gpu/logit_hashes.sh build-gpu/kakeya >new.txt; cmp old.txt new.txt
# usage: sh tests/gpu/logit_hashes.sh KAKEYA [BACKEND] [PRECISION]     from the repository's root; cuda and auto by default
set -eu

kakeya=${1:?usage: sh tests/gpu/logit_hashes.sh KAKEYA [BACKEND] [PRECISION]}
backend=${2:-cuda}
precision=${3:-auto}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

ids() { # COUNT VOCABULARY: tokens in no order
    awk -v n="$1" -v vocab="$2" 'BEGIN {
        printf "["
        for (i = 0; i < n; i++) printf "%s%d", i ? "," : "", (i * i * 31 + i * 7 + 3) % vocab
        print "]"
    }'
}

hash_of() { # MODEL PROMPT_LENGTH OPTION...
    model=$1 prompt=$2 folder=$1
    shift 2
    if ls "$model"/*.gz >/dev/null 2>&1; then
        folder=$scratch/model
        rm -rf "$folder"
        cp -r "$model" "$folder"
        gunzip "$folder"/*.gz
    fi
    if "$kakeya" score --backend "$backend" --precision "$precision" --model "$folder" --ids-file "$scratch/ids" \
        --prompt-length "$prompt" --out "$scratch/out" --hidden-states "$@" >/dev/null 2>"$scratch/error"; then
        hash=$(sha256sum "$scratch/out" | cut -c 1-16)
    else
        hash=$(head -n 1 "$scratch/error")
    fi
    echo "$model $* $hash"
    rm -f "$scratch/out"
}

ids 48 30 >"$scratch/ids"
for config in tests/data/golden/gemma4-*/config.json tests/data/golden/forms/*/config.json; do
    hash_of "${config%/config.json}" 24
done
ids 700 8000 >"$scratch/ids"
for policy in native sink-window restored; do
    hash_of models/demo 600 --attention "$policy"
done
hash_of models/demo 600 --attention restored --restore-layers all
