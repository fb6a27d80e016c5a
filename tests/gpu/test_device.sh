# The program on a CUDA device: answers, one token stream for every mode at any temperature, its benchmark and its profile.
. tests/cli/common.sh

works "a prompt is answered on the device" run --backend cuda --prompt-file examples/needle-60.txt --json
json_holds "by its backend" '.stats.backend | startswith("cuda/")'
works "which auto chooses" run --raw --max-tokens 4 --json 'def f'
json_holds "where it is" '.stats.backend | startswith("cuda/")'
fails_with "what it does not compute is refused" "precision f32 is not supported by backend cuda" run --backend cuda --precision f32 x
fails_with "so is fp8 where nothing is" "precision fp8 needs" run --backend cuda --precision fp8 x
fails_with "a memory limit is one of the device too" "^kakeya run: out of memory: .* the limit is 1000000$" \
    run --backend cuda --memory-limit 1000000 x
works "a float32 checkpoint runs" score --backend cuda --model tests/data/golden/gemma4-tiny-dense --json --ids-file "$(
    echo '[2,5,7,11,13]' >"$WORK/ids.json"
    echo "$WORK/ids.json"
)"
check "and its rounding is said" grep -q '^kakeya score: note: backend cuda computes in bf16: weights of type F32 are rounded$' "$WORK/err"

works "the bundled model becomes Q4_0" convert models/demo "$WORK/q4_0.gguf" --to q4_0
works "which runs on the device" run --backend cuda --model "$WORK/q4_0.gguf" --drafter none --f-theta none --raw \
    --max-tokens 8 --json 'def f'
json_holds "as codes" '.stats.backend | startswith("cuda/")'
works "and Q4_K" convert models/demo "$WORK/q4_k.gguf" --to q4_k
works "which runs, too" run --backend cuda --model "$WORK/q4_k.gguf" --drafter none --f-theta none --raw --max-tokens 8 \
    'def f'
check "and nothing is rounded" test -z "$(grep rounded "$WORK/err")"

for temperature in 0 0.8; do
    works "autoregression at temperature $temperature" run --backend cuda --mode ar --temperature "$temperature" --seed 7 --max-tokens 64 \
        --raw --json 'static int compare('
    jq -c .token_ids "$WORK/out" >"$WORK/ar.json"
    for mode in speculative ngram auto; do
        works "mode $mode" run --backend cuda --mode "$mode" --temperature "$temperature" --seed 7 --max-tokens 64 --raw --json \
            'static int compare('
        jq -c .token_ids "$WORK/out" >"$WORK/mode.json"
        check "has the same tokens" cmp "$WORK/ar.json" "$WORK/mode.json"
    done
done

# An MTP assistant beside a model drafts, and the answer is the model's own.
for pair in dense ple moe; do
    for from in gemma4-tiny-$pair mtp/$pair; do
        to=$WORK/$pair$(test "$from" = mtp/$pair && echo -assistant || true)
        mkdir -p "$to"
        for file in tests/data/golden/"$from"/*; do
            case $file in
            *.gz) gzip -dc "$file" >"$to/$(basename "$file" .gz)" ;;
            *) cp "$file" "$to/" ;;
            esac
        done
    done
    echo '[2, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 10, 20, 30, 40, 50, 60, 70, 80]' >"$WORK/ids.json"
    for how in '--temperature 0' '--temperature 1 --seed 5 --kv-format q8'; do
        # shellcheck disable=SC2086 # several options
        works "$pair, autoregression" run --backend cuda --model "$WORK/$pair" --ids-file "$WORK/ids.json" --max-tokens 40 --ignore-eos \
            --json --drafter none --mode ar $how
        jq -c .token_ids "$WORK/out" >"$WORK/ar.json"
        for mode in speculative auto; do
            # shellcheck disable=SC2086 # several options
            works "$pair with an assistant, mode $mode" run --backend cuda --model "$WORK/$pair" --ids-file "$WORK/ids.json" \
                --max-tokens 40 --ignore-eos --json --mode $mode $how
            jq -c .token_ids "$WORK/out" >"$WORK/mode.json"
            check "has the same tokens" cmp "$WORK/ar.json" "$WORK/mode.json"
        done
    done
done
works "an assistant of a published shape is measured" bench --backend cuda --synthetic 26b-a4b:layers=6 --drafter synthetic:mtp \
    --context-frontiers 600 --prompt-tokens 64 --decode-tokens 4 --verify-rows 1 --repeats 3 --json
json_holds "as a chain of drafts" '[.rows[] | select(.what == "draft")] | length == 1 and .[0].rows == 7 and .[0].bytes > 0'

works "formats of K/V, as sessions keep them" eval kv-format examples/code/* --backend cuda --report "$WORK/formats.json"
works "whose report passes the gate" gate "$WORK/formats.json"
check "which says who measured" grep -q "note: K/V as sessions of backend cuda/.* keep them" "$WORK/out"
fails_with "what no session keeps is left to the CPU" "sessions of backend cuda store .*; fp8 needs backend cpu" \
    eval kv-format --backend cuda --formats fp8

for attention in native restored; do
    works "bench --profile, $attention" bench --backend cuda --profile --attention "$attention" --context-frontiers 600 --prompt-tokens 64 \
        --decode-tokens 4 --verify-rows 1 --repeats 3 --json
    json_holds "has a profile" '.profiles | length == 1 and .[0].context == 600 and .[0].step_seconds > 0'
    json_holds "with every part of a layer" '[.profiles[0].kernels[].part] | unique |
        contains(["attention, full", "attention, sliding", "down", "gate/up", "head", "o, sliding", "q/k/v, sliding"])'
    json_holds "launched in every layer" '[.profiles[0].kernels[] | select(.part == "gate/up") | .launches] | add == 12'
    json_holds "in some time" '[.profiles[0].kernels[] | .seconds > 0 and .seconds < 0.1 and .kernel != ""] | all'
    json_holds "the head reads its matrix" '[.profiles[0].kernels[] | select(.part == "head") | .bytes] | add == 8192 * 256 * 2'
done
works "bench --profile prints a table" bench --backend cuda --profile --context-frontiers 64 --prompt-tokens 16 --decode-tokens 2 \
    --verify-rows 1 --repeats 1
check "of kernels" grep -q -E '^gate/up +[a-z_]+ +12 ' "$WORK/out"
finish
