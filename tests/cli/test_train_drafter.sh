# kakeya train drafter on a small model: what it writes and reports, that an interrupted run ends with the drafter of an
# uninterrupted one and answers nothing twice, and what it refuses.
. tests/cli/common.sh

awk 'BEGIN { srand(7); printf "["; for (i = 0; i < 2600; i++) printf "%s%d", i ? "," : "", 5 + int(rand() * 300); print "]" }' \
    >"$WORK/ids.json"
model="--model tests/data/golden/gemma4-tiny-dense --drafter none --sequence 64 --answer 24 --held-out 2"
form="--layers 2 --block 6 --taps 2 --mask-token 7"
steps="--steps 8 --batch 4 --blocks 8 --prompt-blocks 3 --rate 0.005"

# shellcheck disable=SC2086  # words
run train drafter $model $form $steps --store f32 --answers "$WORK/answers" --out "$WORK/whole" --json "$WORK/ids.json"
check "a drafter is trained from nothing" test "$STATUS" -eq 0
json_holds "the report has it, with what holds by place" \
    '.drafters | length == 1 and (.[0] | .name == "after" and .drafts == 5 and .text.tokens_per_forward >= 1
        and (.text.held_by_place | length == 5))'
json_holds "and what each answer took" '.drafters[0].text | .answers == 2 and (.answer_tokens | length == 2 and add == 48) and
    (.answer_forwards | length == 2) and (.answer_forwards | add) == .forwards'
json_holds "and how it was trained" \
    '.steps == 8 and .batch == 4 and .blocks == 8 and .scope == "full" and .prompt_blocks == 3 and .last_loss > 0'
check "memory is told before the first step" grep -q '8 steps of 4 sequences; training takes [0-9.]* [kMG]B beside' "$WORK/err"
check "no state is left" test ! -e "$WORK/whole/drafter.state"
check "answers that are to be kept are" test -s "$WORK/answers"
run run --model tests/data/golden/gemma4-tiny-dense --drafter "$WORK/whole" --ids-file "$WORK/ids.json" --mode speculative --max-tokens 8 \
    --context 4000 --json
json_holds "the engine drafts with it" '.stats.drafted_tokens > 0'

# --- made where the model's own drafter would be found, which is not there yet
ln -s "$PWD/tests/data/golden/gemma4-tiny-dense" "$WORK/m"
few="--sequence 64 --answer 24 --held-out 2 --steps 1 --batch 1 --blocks 2"
# shellcheck disable=SC2086
run train drafter --model "$WORK/m" $few $form --out "$WORK/m-dflash" "$WORK/ids.json"
check "a drafter is trained into MODEL-dflash" test "$STATUS" -eq 0 -a -s "$WORK/m-dflash/config.json"
run run --model "$WORK/m" --ids-file "$WORK/ids.json" --mode speculative --max-tokens 8 --context 4000 --json
json_holds "and found there" '.stats.drafted_tokens > 0'
rm -r "$WORK/m-dflash"

# --- interrupted wherever it is once its state is there
# shellcheck disable=SC2086
"$KAKEYA" train drafter $model $form $steps --store f32 --out "$WORK/again" --json "$WORK/ids.json" >"$WORK/out" 2>"$WORK/err" </dev/null &
while [ ! -e "$WORK/again/drafter.state" ] && kill -0 $! 2>/dev/null; do sleep 0.02; done
kill -TERM $! 2>/dev/null || true
STATUS=0
wait $! || STATUS=$?
if [ "$STATUS" -eq 143 ] && [ -e "$WORK/again/drafter.state" ]; then # a fast machine may have ended before the signal
    cp "$WORK/again/drafter.state" "$WORK/state"
    # shellcheck disable=SC2086
    run train drafter $model $form $steps --decay 2 --out "$WORK/again" "$WORK/ids.json"
    check "another decay does not go on from there" grep -q "drafter.state: the state of a drafter's training with another" "$WORK/err"
    # shellcheck disable=SC2086
    run train drafter $model $form $steps --store f32 --out "$WORK/again" --json "$WORK/ids.json"
    check "the same command continues" grep -q '^going on after [0-9]* steps' "$WORK/err"
    check "and answers nothing again" grep -q 'of [0-9]* prompts have been answered already' "$WORK/err"
    # as if it had been interrupted again, while it was measured
    rm "$WORK/again/report.json"
    mv "$WORK/state" "$WORK/again/drafter.state"
    # shellcheck disable=SC2086
    run train drafter $model $form $steps --store f32 --answers "$WORK/answers" --out "$WORK/again" --json "$WORK/ids.json"
    check "a drafter that was not measured is" test "$STATUS" -eq 0 -a -s "$WORK/again/report.json"
fi
check "an interrupted run ends with the same drafter" cmp "$WORK/whole/model.safetensors" "$WORK/again/model.safetensors"

# --- from a drafter that is there
# shellcheck disable=SC2086
run train drafter $model --init-from "$WORK/whole" --scope fc-norms --steps 2 --batch 2 --answers "$WORK/answers" --out "$WORK/aligned" \
    --json "$WORK/ids.json"
json_holds "a drafter that is there is aligned, and compared with what it was" \
    '(.drafters | map(.name) == ["before", "after"]) and .scope == "fc-norms"'
check "in its shape, in bfloat16" grep -q '"dtype":[[:space:]]*"bfloat16"' "$WORK/aligned/config.json"

# --- few prompts, one of which is held out
echo "[20, 21, 22, 23, 24, 25, 26, 27, 28, 29]" >"$WORK/one.json"
echo "[30, 31, 32, 33, 34, 35, 36, 37, 38, 39]" >"$WORK/two.json"
# shellcheck disable=SC2086
run train drafter $model $form --steps 1 --batch 1 --out "$WORK/few" --json "$WORK/one.json" "$WORK/two.json"
json_holds "of two short prompts one is held out" '.answers == 1 and .drafters[0].text.answers == 1'

# --- what cannot be done
# shellcheck disable=SC2086
fails_with "a drafter that is there already" "whole: already has a drafter" train drafter $model --out "$WORK/whole" "$WORK/ids.json"
fails_with "a drafter of another model" "hidden_size is 64, the verifier's 256" \
    train drafter --init-from "$WORK/whole" --out "$WORK/x" README.md
# shellcheck disable=SC2086
fails_with "a drafter that is not there" "no-such-drafter" train drafter $model --init-from no-such-drafter --out "$WORK/x" "$WORK/ids.json"
echo "[5, 6, 7]" >"$WORK/short.json"
# shellcheck disable=SC2086
fails_with "data too short" "the data are too short" train drafter $model --out "$WORK/x" "$WORK/short.json"
# shellcheck disable=SC2086
fails_with "answers longer than sequences" "answer 60: answers must be shorter" \
    train drafter $model --answer 60 --out "$WORK/x" "$WORK/ids.json"
# shellcheck disable=SC2086
fails_with "needles for a model without tokenizer" "needles needs a tokenizer" \
    train drafter $model --needles 0.5 --out "$WORK/x" "$WORK/ids.json"
# shellcheck disable=SC2086
fails_with "answers to other prompts" "answers: the model's answers with another model" \
    train drafter $model --seed 5 --answers "$WORK/answers" --out "$WORK/x" "$WORK/ids.json"
STATUS=0
# shellcheck disable=SC2086
(ulimit -f 40 && exec "$KAKEYA" train drafter $model $form --steps 2 --out "$WORK/full" "$WORK/ids.json") >"$WORK/out" 2>"$WORK/err" ||
    STATUS=$?
check "a full disk ends it" test "$STATUS" -ne 0
check "with the file's name" grep -q "$WORK/full/" "$WORK/err"
check "and leaves nothing that looks like the result" test ! -e "$WORK/full/config.json"
refuses "nothing to train on" "--data and --out are needed" train drafter --out y
refuses "layers of a drafter that is there" "init-from takes layers" train drafter --init-from z --layers 3 --data x --out y
refuses "norms of nothing" "scope fc-norms needs --init-from" train drafter --scope fc-norms --data x --out y
finish
