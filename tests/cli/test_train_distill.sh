# kakeya train f-theta --distill on a small model with per-layer embeddings and shared K/V: what it writes and reports, that an
# interrupted run ends with the weights of an uninterrupted one, and what it refuses. For whole runs only; test_distiller stands in.
. tests/cli/common.sh

awk 'BEGIN { srand(7); printf "["; for (i = 0; i < 3000; i++) printf "%s%d", i ? "," : "", 5 + int(rand() * 300); print "]" }' \
    >"$WORK/ids.json"
model="--model tests/data/golden/gemma4-tiny-ple --sequence 64 --sink 1 --window 4 --tokens 2000 --held-out 2"
form="--rank 16 --aux-layers 1,3 --latent-format q8"
steps="--steps 8 --batch 4 --segments 4 --rows 6 --later-turns 0.4"

# shellcheck disable=SC2086  # words
run train f-theta $model $form --distill $steps --out "$WORK/whole" --json "$WORK/ids.json"
check "an f_theta is distilled" test "$STATUS" -eq 0
json_holds "the report has it, and what it began with" \
    '(.ranks | length == 2) and .ranks[1].note == "start" and .ranks[0].rank_k == 16 and .ranks[0].latent_bytes == .ranks[1].latent_bytes'
json_holds "and the distillation" '.distillation | .steps == 8 and .batch == 4 and .rows == 6 and .loss == "mixed" and .last_kl > 0'
json_holds "which is better than dropping" '.dropped.kl_from_native as $dropped | .ranks[0].restored.kl_from_native < $dropped'
check "memory is told before the first step" grep -q '8 steps of 4 sequences; distillation takes [0-9.]* [kM]B beside' "$WORK/err"
check "what it began with is an f_theta of its own" test -s "$WORK/whole/start/f_theta_config.json"
check "no state is left" test ! -e "$WORK/whole/distill.state"

# --- interrupted wherever it is once its state is there
# shellcheck disable=SC2086
"$KAKEYA" train f-theta $model $form --distill $steps --out "$WORK/again" --json "$WORK/ids.json" >"$WORK/out" 2>"$WORK/err" </dev/null &
while [ ! -e "$WORK/again/distill.state" ] && kill -0 $! 2>/dev/null; do sleep 0.02; done
kill -INT $! 2>/dev/null || true
kill -TERM $! 2>/dev/null || true
STATUS=0
wait $! || STATUS=$?
if [ "$STATUS" -eq 143 ] && [ -e "$WORK/again/distill.state" ]; then # a fast machine may have ended before the signal
    # shellcheck disable=SC2086
    run train f-theta $model $form --distill $steps --rate 0.01 --out "$WORK/again" "$WORK/ids.json"
    check "another rate does not go on from there" grep -q 'distill.state: the state of a distillation with another model' "$WORK/err"
    # shellcheck disable=SC2086
    run train f-theta $model $form --distill $steps --out "$WORK/again" --json "$WORK/ids.json"
    check "the same command continues" grep -q '^going on after [0-9]* steps' "$WORK/err"
fi
check "an interrupted run ends with the same weights" \
    cmp "$WORK/whole/f_theta_weights.safetensors" "$WORK/again/f_theta_weights.safetensors"

# --- from an f_theta that is there, with a loss of another kind
# shellcheck disable=SC2086
run train f-theta $model --distill --init-from "$WORK/whole" --loss attn_distill_hybrid --lambda-km 0.2 --steps 2 --batch 2 --rows 6 \
    --out "$WORK/from" --json "$WORK/ids.json"
json_holds "an f_theta that is there is distilled, in its form" \
    '.distillation.loss == "attn_distill_hybrid" and .ranks[0].rank_k == 16 and .trained_tokens >= 2000'
check "what it began with is that one" \
    cmp "$WORK/whole/f_theta_weights.safetensors" "$WORK/from/start/f_theta_weights.safetensors"

# shellcheck disable=SC2086
run train f-theta $model --distill --init-from "$WORK/whole" --loss kl_hidden --steps 2 --batch 2 --rows 6 --even-if-worse \
    --out "$WORK/hidden" --json "$WORK/ids.json"
json_holds "the logits and the layers' outputs alone are a loss, too, and the report says what a step took" \
    '.distillation | .loss == "kl_hidden" and .last_loss > .last_kl and .step_ms.learning > 0 and .step_ms.optimiser >= 0'
json_holds "and KL by what segments restore" \
    '.distillation | .all_layers == 0.5 and .last_kl_sliding > 0 and .last_kl_all_layers > 0 and .rate < 0.00031'
check "which a line of the log has, too" grep -Eq \
    '^step 2 of 2: loss [0-9.]+, KL [0-9.]+, of sliding layers [0-9.]+, of all layers [0-9.]+, gradient ' "$WORK/err"

# shellcheck disable=SC2086
run train f-theta $model --distill --init-from "$WORK/whole" --all-layers 0 --steps 2 --batch 2 --rows 6 --even-if-worse \
    --out "$WORK/sliding" --json "$WORK/ids.json"
json_holds "segments may restore sliding layers alone" \
    '.distillation | .all_layers == 0 and .last_kl_sliding == .last_kl and has("last_kl_all_layers") == false'

# --- what cannot be done
fails_with "an f_theta of another model" "verifier_hidden_size is 64, the verifier has 256" \
    train f-theta --distill --init-from "$WORK/whole" --out "$WORK/x" README.md
# shellcheck disable=SC2086
fails_with "an f_theta that is not there" "no-such-f-theta" \
    train f-theta --distill --init-from no-such-f-theta $model --out "$WORK/x" "$WORK/ids.json"
# shellcheck disable=SC2086
fails_with "more rows than a sequence has" "rows 60: .* do not fit into sequences of 64 tokens" \
    train f-theta --distill $model $form --rows 60 --out "$WORK/x" "$WORK/ids.json"
# shellcheck disable=SC2086
fails_with "needles for a model without tokenizer" "needles needs a tokenizer" \
    train f-theta --distill $model $form --needles 0.5 --out "$WORK/needles" "$WORK/ids.json"
STATUS=0
# shellcheck disable=SC2086
(ulimit -f 40 && exec "$KAKEYA" train f-theta --distill --init-from "$WORK/whole" $model --steps 2 --rows 6 --out "$WORK/full" \
    "$WORK/ids.json") >"$WORK/out" 2>"$WORK/err" || STATUS=$?
check "a full disk ends it" test "$STATUS" -ne 0
check "with the file's name" grep -q "$WORK/full/" "$WORK/err"
check "and leaves nothing that looks like the result" test ! -e "$WORK/full/f_theta_config.json"
refuses "steps of nothing" "are for --distill" train f-theta --steps 3 --data x --out y
refuses "ranks of an f_theta that is there" "init-from takes ranks" \
    train f-theta --distill --init-from z --rank 8 --data x --out y
refuses "weights of another loss" "lambda-... are for --loss attn_distill_hybrid" \
    train f-theta --distill --lambda-kd 1 --data x --out y
refuses "later turns of a loss without turns" "later-turns and --all-layers are for --loss mixed, kl and kl_hidden" \
    train f-theta --distill --loss mse --later-turns 0.5 --data x --out y
refuses "layers of a loss that looks at each by itself" "all-layers are for --loss mixed, kl and kl_hidden" \
    train f-theta --distill --loss mse --all-layers 0 --data x --out y
refuses "a share of no distillation" "are for --distill" train f-theta --all-layers 0 --data x --out y
refuses "a loss that nobody knows" "loss" train f-theta --distill --loss nonsense --data x --out y
finish
