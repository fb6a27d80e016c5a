# MTP assistants on the command line: found beside a model and in the Hugging Face cache, named, described, measured; the
# answer is the same with one and without, in every mode; what does not fit is refused.
. tests/cli/common.sh

GOLDEN=$PWD/tests/data/golden
unpack() { # from, to: a folder of the tests with its gzipped files
    mkdir -p "$2"
    for file in "$1"/*; do
        case $file in
        *.gz) gzip -dc "$file" >"$2/$(basename "$file" .gz)" ;;
        *) cp "$file" "$2/" ;;
        esac
    done
}
tokens() { jq -c .token_ids "$WORK/out"; }

for pair in dense ple moe; do
    unpack "$GOLDEN/gemma4-tiny-$pair" "$WORK/$pair"
    unpack "$GOLDEN/mtp/$pair" "$WORK/$pair-assistant"
done
printf '[2, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 10, 20, 30, 40, 50, 60, 70, 80]' >"$WORK/ids"
answer() { # model, arguments...
    model=$1
    shift
    run run --model "$WORK/$model" --ids-file "$WORK/ids" --max-tokens 40 --ignore-eos --json "$@"
}

for pair in dense ple moe; do
    answer $pair --drafter none --mode ar
    tokens >"$WORK/expected"
    for how in '--mode speculative' '--mode speculative --draft-length 3' '--mode auto' '--mode speculative --threads 1' \
        '--mode speculative --kv-format f32 --precision f32 --temperature 0'; do
        # shellcheck disable=SC2086 # several options
        answer $pair $how
        case $how in
        *f32*) check "$pair: $how drafts" test "$(jq '.stats.drafted_tokens > 0' "$WORK/out")" = true ;;
        *) check "$pair: $how gives the same tokens" test "$(tokens)" = "$(cat "$WORK/expected")" ;;
        esac
    done
    for policy in sink-window; do
        answer $pair --drafter none --mode ar --attention $policy --sink 2 --window 9 --temperature 1 --seed 5
        tokens >"$WORK/expected"
        answer $pair --mode speculative --attention $policy --sink 2 --window 9 --temperature 1 --seed 5
        check "$pair: $policy, temperature 1, the same tokens" test "$(tokens)" = "$(cat "$WORK/expected")"
    done
done
answer dense --mode speculative
json_holds "the one beside the model drafts" '.stats.drafted_tokens > 0 and .stats.accepted_tokens > 0'
answer dense --mode speculative --drafter none
check "without it there is none" test "$STATUS" = 1

works "info describes it" info "$WORK/ple" --json
json_holds "as an assistant" '.drafter | .kind == "mtp" and .layers == 4 and .draft_parameters < .parameters'
json_holds "and counts its row with a session" '.sessions[0].kv_bytes.draft == 256'
works "info says so in words" info "$WORK/ple"
check "in one line" grep -q 'drafter  *an MTP assistant, 4 layers' "$WORK/out"
works "a server's room is reckoned with it" info "$WORK/ple" --sessions --memory 1G --json

# beside a DFlash drafter, which is found in the same way
unpack "$GOLDEN/dflash-tiny" "$WORK/tiny-dflash"
answer dense --drafter none --mode ar
tokens >"$WORK/expected"
for mode in auto speculative; do
    answer dense --drafter "$WORK/tiny-dflash" --drafter "$WORK/dense-assistant" --mode $mode
    check "two drafters, $mode, the same tokens" test "$(tokens)" = "$(cat "$WORK/expected")"
    json_holds "and they draft" '.stats.drafted_tokens > 0'
done
works "the certificate asks each of two" verify --model "$WORK/dense" --drafter "$WORK/tiny-dflash" --drafter "$WORK/dense-assistant" \
    --rounds 2 --max-tokens 12 --threads 1 --policies native --report "$WORK/v.json"
check "and says so" grep -q "Drafters: n-grams, the model's drafter, its MTP assistant" "$WORK/out"
works "and the gate finds both" gate "$WORK/v.json"
cp "$WORK/v.json" "$WORK/out"
json_holds "in rows of their own, which draft" '[.rows[] | select(.comparison == "drafter")] | length == 8 and
    (map(select(.source == "assistant")) | length == 4 and (map(.drafted_tokens) | add > 0)) and
    (map(select(.source == null) | .drafted_tokens) | add > 0)'
jq -c '.rows |= map(select(.source == null))' "$WORK/v.json" >"$WORK/forged.json"
run gate "$WORK/forged.json"
check "one of which may not be left out" test "$STATUS" = 1
works "info describes both" info "$WORK/dense" --drafter "$WORK/dense-assistant" --drafter "$WORK/tiny-dflash" --json
json_holds "each by itself" '.drafter.kind == "dflash" and .assistant.layers == 4 and .assistant.draft_parameters > 0'
cp -r "$WORK/tiny-dflash" "$WORK/dense-dflash"
works "info finds both beside the model" info "$WORK/dense" --json
json_holds "as it does one" '.drafter.kind == "dflash" and .assistant.layers == 4'
works "and says so in words" info "$WORK/dense"
check "in two lines" test "$(grep -c '^  drafter ' "$WORK/out")" = 2
rm -r "$WORK/dense-dflash"
fails_with "two of a kind are refused" 'both MTP assistants' \
    run --model "$WORK/dense" --drafter "$WORK/dense-assistant" --drafter "$WORK/dense-assistant" --ids-file "$WORK/ids"
fails_with "so are three" 'not 3 drafters' run --model "$WORK/dense" --drafter a --drafter b --drafter c --ids-file "$WORK/ids"

# in the cache, by its name
mkdir -p "$WORK/hub/models--org--m/snapshots" "$WORK/hub/models--org--m-assistant/snapshots"
cp -r "$WORK/dense" "$WORK/hub/models--org--m/snapshots/1"
cp -r "$WORK/dense-assistant" "$WORK/hub/models--org--m-assistant/snapshots/1"
STATUS=0
HF_HUB_CACHE=$WORK/hub "$KAKEYA" info org/m --json >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
json_holds "the cache has one under the model's name" '.drafter.kind == "mtp"'
STATUS=0
HF_HUB_CACHE=$WORK/hub "$KAKEYA" run --model "$WORK/dense" --drafter org/m-assistant --ids-file "$WORK/ids" --max-tokens 8 \
    --mode speculative --json >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
json_holds "and names one" '.stats.drafted_tokens > 0'

# what measures
works "bench times its drafts" bench --model "$WORK/dense" --context-frontiers 8 --prompt-tokens 8 --decode-tokens 4 --verify-rows 1 \
    --repeats 1 --json
json_holds "of the longest chain" '[.rows[] | select(.what == "draft")] | length == 1 and .[0].rows == 7 and .[0].bytes > 0'
works "one of a published shape is made" info --synthetic e2b --drafter synthetic:mtp --json
json_holds "in its size" '.drafter.parameters == 77731332 and .drafter.draft_parameters == 11671044'

# what does not fit
fails_with "an assistant of another model is refused with both numbers" 'is [0-9]+, the verifier.s [0-9]+' \
    run --model "$WORK/moe" --drafter "$WORK/ple-assistant" --ids-file "$WORK/ids"
sed 's/"backbone_hidden_size": 64/"backbone_hidden_size": 72/' "$WORK/dense-assistant/config.json" >"$WORK/config.json"
cp "$WORK/config.json" "$WORK/dense-assistant/config.json"
fails_with "so is one beside the model" "backbone_hidden_size is 72, the verifier's 64" info "$WORK/dense"
fails_with "a drafter is no model" 'Gemma4AssistantForCausalLM|assistant' info "$WORK/ple-assistant"
finish
