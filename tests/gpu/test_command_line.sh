# The program with the CUDA backend inside, where there is no device (none is shown to it here): the CPU does the work, and
# nobody hears of it who has not asked for CUDA.
. tests/cli/common.sh

export CUDA_VISIBLE_DEVICES=

works "without a device the CPU answers" run --raw --max-tokens 4 --json 'def f'
json_holds "on its own backend" '.stats.backend | startswith("cpu/")'
check "and says nothing of it" test ! -s "$WORK/err"
works "--backend auto is the same" run --backend auto --raw --max-tokens 4 --json 'def f'
json_holds "the CPU" '.stats.backend | startswith("cpu/")'
for verb in "run x" "score --text-file README.md" bench "eval niah --report $WORK/report.json" "eval kv-format"; do
    # shellcheck disable=SC2086
    fails_with "${verb%% *} --backend cuda says why not" \
        '^kakeya [a-z -]+: backend cuda: no (NVIDIA driver is installed|CUDA device is present)$' \
        $verb --backend cuda
done
works "info needs no device" info --synthetic 26b-a4b --backend cuda --json
works "explain needs no device" explain --backend cuda --rows 2 --read-gb 4000 --gflops 700000 --json
json_holds "it has decode rows' launches" '
    .backend == "cuda" and .rows == 2 and .prompt_rows == 0 and
    .launches == ([.operations[].launch] | max + 1) and
    ([.operations[] | select(.kernel == "norms, router")] | length) == 3 * .layers and
    ([.operations[] | select(.kernel == "dense and experts")] | length) == 4 * .layers'
works "and those of prompts" explain --backend cuda --prompt 300 --read-gb 4000 --gflops 700000 --json
json_holds "whose experts have launches of their own" '
    .prompt_rows == 300 and ([.operations[] | select(.kernel == "prompt attention")] | length) == .layers and
    ([.operations[] | select(.operation == "EXPERT_PRODUCTS" and .kernel == "experts" and (.fused | not))] | length) == 2 * .layers'
fails_with "rates must be given" "give --read-gb and --gflops" explain --backend cuda
fails_with "prompts and decode rows are passes of their own" "explain one at a time" \
    explain --backend cuda --rows 2 --prompt 300 --read-gb 4000 --gflops 700000
fails_with "a backend that this build has not" "available: cpu, cuda" run --backend mlx x
finish
