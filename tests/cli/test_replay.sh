# kakeya gate --replay: rows of real reports computed again. Honest reports of unusual options pass, forged ones do not, and what cannot be
# computed here is said to be so.
. tests/cli/common.sh
export HWLOC_SYNTHETIC="core:1 pu:1"

# Enough for the gate to have nothing against it, and little more.
fidelity="eval fidelity $EXAMPLES/code/events.py --prompt-length 100 --score-tokens 4 --max-sequences 5"

# shellcheck disable=SC2086  # words
works "a report to be replayed" $fidelity --report "$WORK/f.json"
works "three of its rows, and those that matter most, come out again" gate --replay 3 --seed 7 "$WORK/f.json"
check "on bits" grep -q 'compared bit for bit' "$WORK/out"
check "with the probability that a forger is found" \
    grep -q -E 'found with probability 0\.[0-9]+ in one row, [0-9.]+ in half of an arm \(of 5 rows\), 1 in a whole arm' "$WORK/out"
check "and speeds that nobody else can measure" grep -q 'not reproducible, not judged' "$WORK/out"
works "the same as JSON" gate --replay 3 --seed 7 --json "$WORK/f.json"
json_holds "rows, draw, probabilities and speed" '.passed and (.reports[0].replay | .drawn_rows == 3 and .seed == 7 and
    .replayed_rows >= 5 and .compared == "bits" and .detection_probability.one_row > 0.2 and
    .detection_probability.half_an_arm > .detection_probability.one_row and .detection_probability.whole_arm == 1 and
    .speed.reproducible == false and .speed.rows == .replayed_rows)'

# A careful forger: every divergence of an arm is lowered, token by token. The rules alone need not see it; the replay does.
jq -c '.rows |= map(if .policy == "restored" then .kl_from_native *= 0.7 | .token_kl |= map(. * 0.7) else . end)' \
    "$WORK/f.json" >"$WORK/scaled.json"
run gate --replay 0 "$WORK/scaled.json"
check "divergences that were scaled are refused" test "$STATUS" -eq 1
check "because a row is another here" \
    grep -q -E '\[REPLAY_ROW\] rows\[[0-9]+\] \(./events.py, restored score\): kl_from_native is' "$WORK/out"
jq -c '.environment.fingerprint = "0123456789abcdef"' "$WORK/f.json" >"$WORK/other.json"
run gate --replay 1 "$WORK/other.json"
check "another model is refused" \
    grep -q '\[REPLAY_MODEL\] the model here has the fingerprint [0-9a-f]*, the report.s 0123456789abcdef' "$WORK/out"
run gate --replay 1 --model "$WORK/none" "$WORK/f.json"
check "a model that is not here is no verdict" grep -q '\[NOT_REPLAYED\] .*none' "$WORK/out"
check "but status 1" test "$STATUS" -eq 1
cp "$EXAMPLES/code/matrix.c" "$WORK/events.py"
run gate --replay 1 --files "$WORK" "$WORK/f.json"
check "a file of the same name and another content has other prompts" grep -q '\[REPLAY_PROMPT\] .*are the files the same' "$WORK/out"
rm "$WORK/events.py"
run gate --replay 1 --files "$WORK/nowhere" "$WORK/f.json"
check "a file that is not here is named" grep -q '\[NOT_REPLAYED\] .*events.py: no such file here; .* --files' "$WORK/out"
mkdir "$WORK/copies" && cp "$EXAMPLES/code/events.py" "$WORK/copies"
works "files from elsewhere" gate --replay 0 --files "$WORK/copies" "$WORK/f.json"
jq -c '.command = ["kakeya","eval","fidelity","/dev/zero","--max-sequences","5"]' "$WORK/f.json" >"$WORK/device.json"
run gate --replay 1 "$WORK/device.json"
check "what is no regular file is not read" grep -q '/dev/zero: no such file' "$WORK/out"
jq -c '.command |= map(if . == "--score-tokens" then "--score" elif . == "--max-sequences" then "--max-seq" else . end)' \
    "$WORK/f.json" >"$WORK/shortened.json"
works "options that an earlier version let shorten" gate --replay 1 "$WORK/shortened.json"
works "kernels of another kind stay within the bounds" gate --replay 1 --isa scalar "$WORK/f.json"
check "which is said" grep -q 'within bounds, because the report was made with another backend' "$WORK/out"
refuses "a number of rows that is none" "neither a number of rows nor 'all'" gate --replay many "$WORK/f.json"
refuses "a model without a replay" 'need --replay' gate --model "$MODELS/demo" "$WORK/f.json"
run gate --replay 3 "$WORK/none.json"
check "no report, no replay" grep -q '\[UNREADABLE\]' "$WORK/out"

# What a command says is run, and the report is what that gives.
while IFS='|' read -r code words; do
    jq -c --arg words "$words" '.command += ($words | split(" "))' "$WORK/f.json" >"$WORK/contradicted.json"
    run gate --replay 0 "$WORK/contradicted.json"
    check "$words contradicts its report" grep -q "\[$code\]" "$WORK/out"
done <<'CASES'
REPLAY_OPTIONS|--sink 8
REPLAY_OPTIONS|--max-sequences 4
REPLAY_PROMPT|--score-tokens 5
REPLAY_MODEL|--precision f32
REPLAY_MODEL|--drafter none --f-theta none
REPLAY_ENVIRONMENT|--kv-format q8
NOT_REPLAYED|--fast
CASES

# Honest reports with unusual options, of other models, of every kind.
if ! short_sweeps; then
    honest() { # description, allowed codes, arguments of eval...
        description=$1
        allowed=$2
        shift 2
        works "$description" eval "$@" --report "$WORK/r.json"
        run gate --json --replay 2 "$WORK/r.json"
        json_holds "$description: nothing is against it, and its rows come out again" \
            '([.reports[0].violations[].code] - ($allowed | split(" ")) == []) and .reports[0].replay.replayed_rows > 0' \
            --arg allowed "$allowed"
    }
    # Whole runs have more of the same: a report costs seconds, and its replay as many.
    more() { [ -z "${WHOLE_SWEEPS:-}" ] || honest "$@"; }
    text="$EXAMPLES/code/events.py --prompt-length=100 --score-tokens 4 --max-sequences 5"
    # shellcheck disable=SC2086
    {
        more "in float32, with scalar kernels" "" fidelity $text --precision f32 --isa scalar --threads 1
        honest "without f_theta" "" fidelity $text --f-theta none --policies sink-window
        more "without a drafter" "" fidelity $text --drafter none --backend cpu
        honest "with K/V in 8 bits and other sizes" "" fidelity $text --kv-format q8 --sink 2 --windows 24,32 --draft-window 96
    }
    works "the demo as a GGUF file" convert --to q8_0 "$MODELS/demo" "$WORK/demo.gguf"
    honest "a GGUF file as the first operand" "" fidelity "$WORK/demo.gguf" "$EXAMPLES/code/events.py" --prompt-length 100 \
        --score-tokens 4 --max-sequences 5 --f-theta none
    jq -n -c '{sequences: [range(5) as $i | [range(30) | (. * 7 + $i * 3 + 5) % 200]], prompt_length: 24}' >"$WORK/ids.json"
    honest "a synthetic model on ids" "" fidelity --ids-json "$WORK/ids.json" --synthetic e2b:layers=2 --policies native,sink-window \
        --window 8
    for seed in ${WHOLE_SWEEPS:+1} 18446744073709551615; do
        honest "needles of seed $seed" "SPEED" niah --lines 10,11 --samples 5 --max-tokens 24 --policies native,restored --seed "$seed"
    done
    honest "needles without a drafter, one by one" "" niah --lines 10,11 --max-tokens 12 --mode ar --drafter none --f-theta none \
        --policies native,sink-window
    more "needles with several draft windows and diagnostics" "SPEED" niah --lines 10,11 --max-tokens 24 --draft-window 64,1024 \
        --mode speculative --draft-length 3 --policies native,restored --mix-alpha 0.5 --identity-restore
    more "code" "SPEED" code "$EXAMPLES/code/events.py" --max-tokens 33 --prompt-tokens 60 --draft-lengths 3
    for i in 1 2 3 4 5; do printf '{"prompt": "def f%d(values):\\n"}\n' "$i"; done >"$WORK/p.jsonl"
    more "acceptance, as messages" "" acceptance --jsonl "$WORK/p.jsonl" --max-tokens 8 --chat --drafter-scaled-embedding
    honest "lossless" "" lossless --prompts 5 --max-tokens 4 --reference-prompts 1
    more "lossless without a drafter" "SPECULATION_INACTIVE" lossless --prompts 5 --max-tokens 4 --reference-prompts 0 --drafter none
    honest "batches" "SPECULATION_INACTIVE" lossless --batch --compositions 2 --sessions 5 --max-tokens 6 --seed 9
    more "formats of K/V" "KV_FORMAT_UNFAITHFUL RECALL_UNPROVEN RECALL" kv-format "$EXAMPLES/code/events.py" --formats q8,d4-10 \
        --prompt-length 40 --score-tokens 4 --lines 10 --max-tokens 12
    honest "formats that sessions keep" "KV_FORMAT_UNFAITHFUL RECALL_UNPROVEN RECALL" kv-format "$EXAMPLES/code/events.py" --as-stored \
        --prompt-length 40 --score-tokens 4 --lines 10 --max-tokens 12

    # The rungs that had the same codes once.
    rungs=12,40 codes=11
    [ -z "${WHOLE_SWEEPS:-}" ] || rungs=12,40,60,150 codes=21
    works "needles on several rungs" eval niah --lines $rungs --samples 5 --seed 4711 --max-tokens 24 --policies native,restored \
        --report "$WORK/ladder.json"
    run gate --json "$WORK/ladder.json"
    json_holds "none of them is another one's copy" '[.reports[0].violations[].code] - ["SPEED"] == []'
    check "and no two have one code" jq -e --argjson n "$codes" '[.rows[] | {(.sample): .expected}] | add | [.[]] | length == $n and
        (unique | length == $n)' "$WORK/ladder.json"
fi
finish
