# kakeya train drafter --kind mtp on a small model: what it writes and reports, that an interrupted run ends with the assistant of an
# uninterrupted one, that one that is there is aligned, and what it refuses.
. tests/cli/common.sh

awk 'BEGIN { srand(7); printf "["; for (i = 0; i < 2600; i++) printf "%s%d", i ? "," : "", 5 + int(rand() * 300); print "]" }' \
    >"$WORK/ids.json"
model="--model tests/data/golden/gemma4-tiny-dense --drafter none --sequence 64 --answer 24 --held-out 2"
form="--kind mtp --layers 2 --hidden 24 --mlp 32 --block 5"
steps="--steps 8 --batch 4 --blocks 8 --prompt-blocks 3 --rate 0.005"

# shellcheck disable=SC2086  # words
run train drafter $model $form $steps --store f32 --answers "$WORK/answers" --out "$WORK/whole" --json "$WORK/ids.json"
check "an assistant is trained from nothing" test "$STATUS" -eq 0
json_holds "the report has it, with what holds by place" \
    '.kind == "mtp" and .loss == "kl" and (.drafters | length == 1 and (.[0] | .name == "after" and .drafts == 7
        and .text.tokens_per_forward >= 1 and (.text.held_by_place | length == 7)))'
check "no state is left" test ! -e "$WORK/whole/drafter.state"
check "it says what it is" grep -q '"model_type":[[:space:]]*"gemma4_assistant"' "$WORK/whole/config.json"
run info --model tests/data/golden/gemma4-tiny-dense --drafter "$WORK/whole" --json
check "info reads it" test "$STATUS" -eq 0
run run --model tests/data/golden/gemma4-tiny-dense --drafter "$WORK/whole" --ids-file "$WORK/ids.json" --mode speculative --max-tokens 8 \
    --context 4000 --json
json_holds "the engine drafts with it" '.stats.drafted_tokens > 0'

# --- interrupted wherever it is once its state is there
# shellcheck disable=SC2086
"$KAKEYA" train drafter $model $form $steps --store f32 --out "$WORK/again" --json "$WORK/ids.json" >"$WORK/out" 2>"$WORK/err" </dev/null &
while [ ! -e "$WORK/again/drafter.state" ] && kill -0 $! 2>/dev/null; do sleep 0.02; done
kill -TERM $! 2>/dev/null || true
STATUS=0
wait $! || STATUS=$?
if [ "$STATUS" -eq 143 ] && [ -e "$WORK/again/drafter.state" ]; then # a fast machine may have ended before the signal
    # shellcheck disable=SC2086
    run train drafter $model $form $steps --loss entropy --out "$WORK/again" "$WORK/ids.json"
    check "another loss does not go on from there" grep -q "drafter.state: the state of a drafter's training with another" "$WORK/err"
    # shellcheck disable=SC2086
    run train drafter $model $form $steps --store f32 --out "$WORK/again" --json "$WORK/ids.json"
    check "the same command continues" grep -q '^going on after [0-9]* steps' "$WORK/err"
fi
check "an interrupted run ends with the same assistant" cmp "$WORK/whole/model.safetensors" "$WORK/again/model.safetensors"

# --- from one that is there
# shellcheck disable=SC2086
run train drafter $model --init-from "$WORK/whole" --block 3 --steps 2 --batch 2 --answers "$WORK/answers" --out "$WORK/aligned" --json \
    "$WORK/ids.json"
json_holds "an assistant that is there is aligned, and compared with what it was" \
    '(.drafters | map(.name) == ["before", "after"]) and .kind == "mtp"'
check "in its shape, in bfloat16" grep -q '"dtype":[[:space:]]*"bfloat16"' "$WORK/aligned/config.json"
small=$(wc -c <"$WORK/aligned/model.safetensors")
large=$(wc -c <"$WORK/whole/model.safetensors")
check "which is half as large" test "$((2 * small))" -lt "$((large + 9000))"

# --- to a quantised model
run convert tests/data/golden/gemma4-tiny-dense "$WORK/q4.gguf" --to q4_0
run train drafter --model "$WORK/q4.gguf" --sequence 64 --answer 24 --held-out 2 --init-from "$WORK/whole" --steps 2 --batch 2 \
    --out "$WORK/q4" --json "$WORK/ids.json"
json_holds "an assistant is aligned with a model in Q4_0" '.loss == "kl" and .last_loss > 0 and (.drafters | length == 2)'

# --- what cannot be done
# shellcheck disable=SC2086
fails_with "norms of an assistant alone" "an MTP assistant is trained in full" \
    train drafter $model --init-from "$WORK/whole" --scope fc-norms --out "$WORK/x" "$WORK/ids.json"
# shellcheck disable=SC2086
fails_with "heads that do not divide" "--heads 3: the model's 2 K/V heads" \
    train drafter $model --kind mtp --heads 3 --out "$WORK/x" "$WORK/ids.json"
fails_with "an assistant of another model" "backbone_hidden_size is 64, the verifier's 256" \
    train drafter --init-from "$WORK/whole" --out "$WORK/x" README.md
# shellcheck disable=SC2086
fails_with "KL for a drafter that reads no logits" "--loss kl: a DFlash drafter" \
    train drafter $model --loss kl --out "$WORK/x" "$WORK/ids.json"
refuses "taps of an assistant" "are a DFlash drafter's" train drafter --kind mtp --taps 3 --data x --out y
refuses "the width of a DFlash drafter" "use --kind mtp" train drafter --hidden 32 --data x --out y
finish
