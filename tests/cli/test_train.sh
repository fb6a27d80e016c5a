# kakeya train f-theta: on the demo and on a small model with per-layer embeddings and shared K/V, figures within bounds; what is
# interrupted goes on to the same weights; what fails leaves no f_theta. For
# whole runs only; test_train stands in.
. tests/cli/common.sh
export HWLOC_SYNTHETIC="core:1 pu:1" # one thread computes: two take a third more of the processors, which other tests want

# Long files by name, and a seed that holds one of them out: with a pattern, another file in the folder changed what is held out.
text="src/backend/timeline.c src/backend/snapshot.c src/backend/cpu/forward.c src/backend/cpu/attention.c src/backend/cpu/experts.c
    src/backend/cpu/matrix.c --seed 2"

train() { # out, arguments...: two hidden states of the demo, little text
    out=$1
    shift
    run train f-theta --aux-layers 1,5 --rank 128 --ranks 1 --tokens 4000 --metric-tokens 1000 --held-out 1 --out "$out" --json "$@"
}

# shellcheck disable=SC2086  # words
train "$WORK/whole-text" $text
check "an f_theta is trained" test "$STATUS" -eq 0
json_holds "it gives back more than a third of what dropping costs" \
    '.ranks[0] | .restored.kl_from_native < 0.65 * $dropped' --argjson dropped "$(jq .dropped.kl_from_native "$WORK/out")"
json_holds "the report has its parts" \
    '.trained_tokens >= 4000 and .ranks[0].latent_bytes == 336 and .ranks[0].recall >= 0 and .native.top1_agreement == 1'
works "it is one that the engine takes, without a drafter" \
    run --raw --drafter none --f-theta "$WORK/whole-text" --attention restored --max-tokens 4 --json "def f"
json_holds "whose latents are held" '.stats.kv_bytes.latent > 0 and .stats.kv_bytes.draft == 0'
check "no state is left" test ! -e "$WORK/whole-text/training.state"
# shellcheck disable=SC2016
check "a sequence from the middle of a file begins with <bos>" jq -e '.sequences | all(.[0] == 2)' "$WORK/whole-text/held_out.json"

# --- from the drafter's context, with latents that its keys and values give
# shellcheck disable=SC2086
run train f-theta --input drafter --rank 128 --ranks 1 --tokens 4000 --metric-tokens 1000 --held-out 1 --out "$WORK/drafter" --json \
    $text
json_holds "an f_theta that reads the drafter gives a third back, too" \
    '.ranks[0] | .rank_k == 128 and .rank_v == 128 and .latent_bytes == 592 and .restored.kl_from_native < 0.65 * $dropped' \
    --argjson dropped "$(jq .dropped.kl_from_native "$WORK/out")"
check "it has the form of the reference implementation" \
    test "$(jq -c 'del(.rank, .rank_k, .rank_v, .latent_format)' "$WORK/drafter/f_theta_config.json" | jq -S .)" = \
    "$(jq -c 'del(.rank)' tests/data/golden/demo-f-theta-regression/f_theta_config.json | jq -S .)"
refuses "hidden states where a drafter is read" "aux-layers needs --input aux" \
    train f-theta --input drafter --aux-layers 1 --data x --out y
fails_with "a drafter that is not there" "input drafter: the model has no drafter" \
    train f-theta --input drafter --drafter none --out "$WORK/x" README.md
fails_with "a rank above the drafter's context" "rank 257 is above the 256 values of the drafter's context" \
    train f-theta --input drafter --rank 257 --out "$WORK/x" README.md

# --- interrupted as soon as it has begun, wherever it is then
goes_on() { # name, arguments...: the same command ends with the weights of $WORK/whole-NAME
    name=$1
    shift
    for _ in 1 2 3 4 5; do # where this shell stands still, the training may be over before it is interrupted: then again
        rm -rf "$WORK/again-$name"
        "$KAKEYA" train f-theta "$@" --out "$WORK/again-$name" --json >"$WORK/out" 2>"$WORK/err" </dev/null &
        while [ ! -d "$WORK/again-$name" ] && kill -0 $! 2>/dev/null; do sleep 0.05; done
        kill -TERM $! 2>/dev/null || true
        STATUS=0
        wait $! || STATUS=$?
        [ "$STATUS" -eq 0 ] || break
    done
    check "$name: a signal ends it" test "$STATUS" -eq 143
    check "$name: and it says where it stands" grep -q 'interrupted after [0-9]* tokens; the same command continues' "$WORK/err"
    check "$name: no f_theta is left" test ! -e "$WORK/again-$name/f_theta_config.json"
    run train f-theta "$@" --out "$WORK/again-$name" --seed 1
    check "$name: another seed does not go on from there" \
        grep -q 'training.state: the state of a training with another model' "$WORK/err"
    run train f-theta "$@" --out "$WORK/again-$name" --json
    check "$name: the same command continues" grep -q '^going on after [0-9]* tokens' "$WORK/err"
    check "$name: to the same weights" cmp "$WORK/whole-$name/f_theta_weights.safetensors" "$WORK/again-$name/f_theta_weights.safetensors"
}
# text is left to tests/unit/test_train.c, but for a whole run
# shellcheck disable=SC2086
[ -z "${WHOLE_SWEEPS:-}" ] ||
    goes_on text --aux-layers 1,5 --rank 128 --ranks 1 --tokens 4000 --metric-tokens 1000 --held-out 1 $text

# --- a small E2B: per-layer embeddings, layers that share K/V; token ids
awk 'BEGIN { srand(7); printf "["; for (i = 0; i < 4000; i++) printf "%s%d", i ? "," : "", 5 + int(rand() * 300); print "]" }' \
    >"$WORK/ids.json"
small="--model tests/data/golden/gemma4-tiny-ple --sequence 64 --sink 1 --window 4 --ranks 2 --tokens 2000 --even-if-worse"
# shellcheck disable=SC2086  # words
run train f-theta $small --rank 32 --aux-layers 1,3 --latent-format q8 --out "$WORK/ple" --json "$WORK/ids.json"
json_holds "a model with shared K/V is trained, and better than dropping" \
    '.dropped.kl_from_native as $dropped | (.ranks | length == 2) and (.ranks[0] |
        .restored.kl_from_native < $dropped and .restored_all.kl_from_native < $dropped)'
TEXT_PERPLEXITY=$(jq .native.perplexity "$WORK/out")
json_holds "in the format that was asked for" '.ranks[0].recall == null and .ranks[0].latent_bytes < 32 + 4 + 100'
check "the smaller rank has a folder" test -s "$WORK/ple/rank-16/f_theta_config.json"
check "with its own row in a report beside it" \
    test "$(jq -c '.ranks[0] | [.rank_k, .worse_than_dropping, .restored]' "$WORK/ple/rank-16/report.json")" = \
    "$(jq -c '.ranks[1] | [.rank_k, .worse_than_dropping, .restored]' "$WORK/ple/report.json")"
json_holds "both closed forms were measured, and the nearer one to native was taken" \
    '.ranks[0].restored.kl_from_native as $kl | .closed_form | .kl_from_native[.form] as $taken |
        (.kl_from_native | length) == 2 and $taken == (.kl_from_native | to_entries | map(.value) | min) and
        $taken - $kl < 1e-9 and $kl - $taken < 1e-9'

# --- what is worse than dropping is measured, said, and not written; nor is it used
worse="--model tests/data/golden/gemma4-tiny-ple --sequence 64 --sink 1 --window 4 --ranks 1 --tokens 200 --aux-layers 1 --rank 2
    --held-out 1"
# shellcheck disable=SC2086
run train f-theta $worse --out "$WORK/worse" "$WORK/ids.json"
check "restoring that is worse than dropping fails" test "$STATUS" -eq 1
check "with both figures" grep -q '/worse: no f_theta was written: .* restoring has a KL of [0-9.]* from native and dropping [0-9.]*;' \
    "$WORK/err"
check "which the table has, too" grep -q 'worse than dropping$' "$WORK/out"
check "is reported" jq -e '.ranks[0] | .directory == null and .worse_than_dropping' "$WORK/worse/report.json"
check "and not written" test ! -e "$WORK/worse/f_theta_config.json" -a ! -e "$WORK/worse/rank-2" -a ! -e "$WORK/worse/candidate"
# shellcheck disable=SC2086
works "but where it is wanted" train f-theta $worse --even-if-worse --out "$WORK/worse" "$WORK/ids.json"
check "it goes on from what was summed" grep -q '^going on after 256 tokens' "$WORK/err"
check "and is written" test -s "$WORK/worse/f_theta_config.json" -a ! -e "$WORK/worse/training.state"
printf '[5,6,7,8,9]' >"$WORK/short.json"
works "an engine that takes it" run --model tests/data/golden/gemma4-tiny-ple --f-theta "$WORK/worse" --attention sink-window \
    --ids-file "$WORK/short.json" --max-tokens 2
check "says so" grep -q 'note: .*worse/report.json: on held-out text restoring is worse than dropping' "$WORK/err"
cp -r "$WORK/whole-text" "$WORK/lost"
jq '.ranks[0].restored.kl_from_native = 2 * .dropped.kl_from_native' "$WORK/whole-text/report.json" >"$WORK/lost/report.json"
works "a conversation" run --drafter none --f-theta "$WORK/lost" --max-tokens 2 --json hello
json_holds "does without it" '.stats.attention == "sink-window"'
works "unless it is asked for" run --drafter none --f-theta "$WORK/lost" --attention restored --max-tokens 2 --json hello
json_holds "by name" '.stats.attention == "restored"'
works "one that helps" run --drafter none --f-theta "$WORK/whole-text" --max-tokens 2 --json hello
json_holds "is used unasked" '.stats.attention == "restored"'

# --- no rank given: held-out text chooses
run train f-theta --model tests/data/golden/gemma4-tiny-ple --sequence 64 --sink 1 --window 4 --tokens 2000 --aux-layers 1,3 \
    --even-if-worse --out "$WORK/free" --json "$WORK/ids.json"
json_holds "four ranks are tried, and the smallest that is near enough or the nearest is taken" \
    '.dropped.kl_from_native as $dropped | (.ranks | map(.restored.kl_from_native)) as $kl |
        (.ranks | map(.rank_k) | sort) == [8, 16, 32, 64] and ($kl[0] == ($kl | min) or $kl[0] <= $dropped / 4)'
check "which is what the folder has" test "$(jq .rank "$WORK/free/f_theta_config.json")" = "$(jq '.ranks[0].rank_k' "$WORK/out")"

# --- enough text before a sequence is held out: it is looked for in what follows, which is not trained on
# shellcheck disable=SC2086
for seed in 0 2 4 5; do
    run train f-theta $small --seed $seed --ranks 1 --tokens 200 --aux-layers 1 --rank 8 --held-out 1 --out "$WORK/held-$seed" --json \
        "$WORK/ids.json"
    json_holds "seed $seed finds one to hold out" '.trained_tokens == 256 and .native.perplexity > 0'
done

# --- the model's own answers
own="$small --rank 32 --aux-layers 1,3 --self 24 --temperature 1 --held-out 2"
# shellcheck disable=SC2086
run train f-theta $own --out "$WORK/whole-answers" --json "$WORK/ids.json"
json_holds "a model is trained on its own answers" '.trained_tokens >= 2000 and (.ranks | length == 2)'
json_holds "they are held out, too: text that the model finds likely" '.native.perplexity < 0.8 * $text' --argjson text "$TEXT_PERPLEXITY"
# shellcheck disable=SC2086
short_sweeps || goes_on answers $own "$WORK/ids.json"

# --- what cannot be done
# shellcheck disable=SC2086
fails_with "answers as long as sequences" "self 64: answers must be shorter" train f-theta $small --self 64 --out "$WORK/x" "$WORK/ids.json"
printf '[{"role":"assistant","content":"a"}]\n' >"$WORK/none.jsonl"
fails_with "a conversation without question" "none.jsonl, line 1: the conversation has no question" \
    train f-theta --self 8 --out "$WORK/x" "$WORK/none.jsonl"
refuses "a temperature of nothing" "temperature needs --self" train f-theta --temperature 1 --data x --out y
# shellcheck disable=SC2086
fails_with "too little text" "the data are too short|too few" \
    train f-theta $small --tokens 64 --aux-layers 1,3 --rank 8 --out "$WORK/short" "$WORK/ids.json"
check "leaves no f_theta" test ! -e "$WORK/short"
# shellcheck disable=SC2086
fails_with "a file that is not there is noticed before the first step" "no-such.json: cannot open" \
    train f-theta $small --tokens 64 --aux-layers 1,3 --rank 8 --out "$WORK/late" "$WORK/ids.json" "$WORK/no-such.json"
check "and nothing is left of it" test ! -e "$WORK/late"
# shellcheck disable=SC2086
fails_with "text for a model without tokenizer" "has no tokenizer" \
    train f-theta $small --aux-layers 1 --rank 8 --out "$WORK/x" README.md
# shellcheck disable=SC2086
fails_with "a rank above the inputs" "rank 65 is above the 64 values" \
    train f-theta $small --aux-layers 1 --rank 65 --out "$WORK/x" "$WORK/ids.json"
fails_with "a missing file" "no-such-file" train f-theta --aux-layers 1 --out "$WORK/x" no-such-file
fails_with "a layer that is not there" "aux-layers: 99" train f-theta --aux-layers 99 --out "$WORK/x" README.md
STATUS=0
# shellcheck disable=SC2086
(ulimit -f 8 && exec "$KAKEYA" train f-theta $small --rank 32 --aux-layers 1,3 --out "$WORK/full" "$WORK/ids.json") \
    >"$WORK/out" 2>"$WORK/err" || STATUS=$?
check "a full disk ends it" test "$STATUS" -ne 0
check "with the file's name" grep -q "$WORK/full/" "$WORK/err"
check "and leaves nothing that looks like an f_theta" test ! -e "$WORK/full/f_theta_config.json"
refuses "two ranks of one kind" "rank-k and --rank-v need each other" train f-theta --rank-k 8 --data x --out y
refuses "no data" "data and --out are needed" train f-theta --out y
finish
