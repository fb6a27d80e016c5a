# kakeya eval and kakeya gate: real runs on the demo model, small ones; reports that pass, are refused, or cannot be judged.
. tests/cli/common.sh
export HWLOC_SYNTHETIC="core:1 pu:1" # one thread computes: two take a third more of the processors, which other tests want

# --- a needle evaluation that shows all it has to show; a short one has too few samples, tokens and rungs for the gate
samples=5 lines=10,11 allowed=SPEED
short_sweeps && samples=1 lines=10 allowed="SPEED SPEED_TOKENS SAMPLE_COUNT MEMORY_UNPROVEN"
works "eval niah writes report and picture" \
    eval niah --lines "$lines" --samples "$samples" --max-tokens 24 --policies native,restored \
    --report "$WORK/niah.json" --plot "$WORK/niah.svg"
check "it prints the table" grep -q 'restored.*auto.*100.0%' "$WORK/out"
check "and the comparison of token streams" grep -q ' 0 differ' "$WORK/out"
check "the picture is SVG" grep -q '^<svg .*xmlns' "$WORK/niah.svg"
check "every needle is found" jq -e '[.rows[].correct] | all' "$WORK/niah.json"
check "every arm has a warm-up row of its own" \
    jq -e '[.rows[] | select(.warmup)] | length == 4 and ([.[] | .policy + .mode] | unique | length == 4)' "$WORK/niah.json"
check "K/V of sliding layers stay as they are under bounded policies" \
    jq -e '[.rows[] | select(.policy != "native") | .kv_bytes.sliding] | unique | length == 1' "$WORK/niah.json"
check "the command is recorded" jq -e '.command[0:3] == ["kakeya", "eval", "niah"]' "$WORK/niah.json"
check "no path of this machine is recorded as the model" jq -e '.environment.model == "demo"' "$WORK/niah.json"
# Speed is not judged here: the machine may be busy with other tests.
run gate --json "$WORK/niah.json"
json_holds "the gate has nothing against it, speed aside" \
    '[.reports[0].violations[].code] - ($allowed | split(" ")) | length == 0' --arg allowed "$allowed"

# --- the gate refuses
jq -c '.rows[7].kv_bytes.total += 1' "$WORK/niah.json" >"$WORK/bent.json"
run gate "$WORK/bent.json"
check "a bent report is refused with status 1" test "$STATUS" -eq 1
check "by a line with the rule's code" grep -q '^  \[ROW_FIELD\] ' "$WORK/out"
jq -c '.complete = false' "$WORK/niah.json" >"$WORK/incomplete.json"
run gate "$WORK/incomplete.json"
check "an incomplete report is refused" grep -q '\[INCOMPLETE\]' "$WORK/out"
jq -c '.summary.arms[0].recall = 2' "$WORK/niah.json" >"$WORK/praised.json"
run gate "$WORK/praised.json"
check "a summary that the rows do not give is refused" grep -q '\[SUMMARY_MISMATCH\] summary.arms\[0\].recall' "$WORK/out"
head -c 1000 "$WORK/niah.json" >"$WORK/cut.json"
run gate "$WORK/cut.json"
check "a truncated report is refused" grep -q "\[UNREADABLE\] $WORK/cut.json" "$WORK/out"
echo '{"kind": "k3_integrated_niah_acceptance_mac", "schema_version": 2}' >"$WORK/foreign.json"
run gate "$WORK/foreign.json"
check "a foreign report is refused" grep -q '\[UNKNOWN_KIND\]' "$WORK/out"
jq -c '.schema_version = 0' "$WORK/niah.json" >"$WORK/old.json"
run gate "$WORK/old.json"
check "an old report is refused" grep -q '\[SCHEMA_VERSION\]' "$WORK/out"
run gate --json "$WORK/niah.json" "$WORK/foreign.json" "$WORK/none.json"
json_holds "several reports are judged one by one" \
    '(.passed | not) and (.reports | map(.file | split("/") | last) == ["niah.json", "foreign.json", "none.json"])'
check "status 1 if one of them fails" test "$STATUS" -eq 1

# --- an interrupted evaluation leaves what it has; test_files.sh has another signal where time is short
if ! short_sweeps; then
    "$KAKEYA" eval niah --lines 10,12 --samples 300 --threads 1 --report "$WORK/stopped.json" >"$WORK/out" 2>"$WORK/err" </dev/null &
    evaluation=$!
    for _ in $(seq 600); do
        jq -e '.rows | length > 0' "$WORK/stopped.json" >/dev/null 2>&1 && break
        kill -0 "$evaluation" 2>/dev/null || break
        sleep 0.1
    done
    # A shell without job control starts background programs with SIGINT ignored; kakeya takes it back.
    kill -INT "$evaluation"
    STATUS=0
    wait "$evaluation" || STATUS=$?
    check "interrupting ends with status 1" test "$STATUS" -eq 1
    check "and one line that names the report" grep -q "interrupted; $WORK/stopped.json holds the [0-9]* finished rows" "$WORK/err"
    check "which holds the finished rows" jq -e '(.complete | not) and (.rows | length > 0)' "$WORK/stopped.json"
fi

# --- the other evaluations
# Fidelity, and lossless but for its batches, are left to the unit test where time is short.
if ! short_sweeps; then
    works "eval fidelity" eval fidelity --ids-json tests/data/eval/fidelity.json --max-sequences 1 --precision f32 --json
    json_holds "restoring is closer to native attention than dropping" \
        '(.summary.arms | map({(.policy): .kl_from_native}) | add) as $kl | $kl.restored < $kl["sink-window"]'
    json_holds "perplexity is the reference's within 1 %" \
        '.summary.arms[] | select(.policy == "native") | .perplexity - 2.64981 | fabs < 0.026'
    works "eval fidelity of a third turn" eval fidelity --ids-json tests/data/eval/fidelity.json --max-sequences 1 --precision f32 \
        --turns 3 --policies native,restored --report "$WORK/turns.json" --json
    json_holds "is that of the same tokens" '.summary.arms | all(.scored_tokens == 64) and .[0].kl_from_native == 0'
    check "its report says so" jq -e '.options.turns == 3' "$WORK/turns.json"
    run gate "$WORK/turns.json"
    check "and the gate knows that option" sh -c '! grep -E "OPTIONS|COMMAND" "$1" "$2"' - "$WORK/out" "$WORK/err"
    fails_with "turns that do not fit" "a prompt of 600 tokens is too short for the turns before turn 6, of 2 x 64" \
        eval fidelity --ids-json tests/data/eval/fidelity.json --max-sequences 1 --turns 6
    works "eval lossless" eval lossless --prompts 2 --max-tokens 4 --reference-prompts 0 --json
    json_holds "no token differs" '.summary.lossless | .comparisons == 32 and .differences == 0'
    works "eval lossless with K/V in 8 bits" eval lossless --kv-format q8 --prompts 5 --max-tokens 4 --reference-prompts 0 --json \
        --report "$WORK/q8.json"
    json_holds "no token differs there" '.summary.lossless | .comparisons == 80 and .differences == 0'
    works "whose report passes the gate, which derives its bytes of K/V" gate "$WORK/q8.json"
    works "eval lossless with K/V in 4 bits" eval lossless --kv-format q4 --prompts 2 --max-tokens 4 --reference-prompts 0 --json
    json_holds "no token differs there, either" '.summary.lossless | .comparisons == 32 and .differences == 0'
fi
sessions=5 compositions=2
short_sweeps && sessions=3 compositions=1
works "eval lossless --batch" eval lossless --batch --compositions "$compositions" --sessions "$sessions" --max-tokens 6 --json \
    --report "$WORK/batch.json"
json_holds "no session is changed by the others" '
    .kind == "kakeya.eval.batch" and (.rows | length) == 2 * .summary.lossless.comparisons and
    .summary.lossless.comparisons >= $n and .summary.lossless.differences == 0' --argjson n "$sessions"
works "eval kv-format" eval kv-format examples/code/events.py --formats q8,d4-10 --prompt-length 40 --score-tokens 4 --lines 10 \
    --max-tokens 12 --json --report "$WORK/formats.json"
json_holds "8 bits take 132 bytes for 128 values, and next to nothing else" '
    .summary.arms | length == 3 and .[0].format == "identity" and .[1].format == "q8" and .[1].bytes_per_vector == 132 and
    .[1].kl_from_identity < 0.01 and .[1].relative_mse > 1e-6 and .[2].bits_per_value == 4.5'
works "its report passes the gate" gate "$WORK/formats.json"
works "eval kv-format --as-stored" eval kv-format examples/code/events.py --as-stored --prompt-length 40 --score-tokens 4 --lines 10 \
    --max-tokens 12 --json --report "$WORK/stored.json"
json_holds "sessions keep three formats, which differ" '.options.as_stored and (.summary.arms | map(.format) == ["bf16", "q8", "q4"] and
    .[0].kl_from_bf16 == 0 and .[1].kl_from_bf16 > 0 and .[2].kl_from_bf16 > 0 and all(.decode_ms_per_token > 0))'
json_holds "and take what the formats say" '.rows | map(.stored_bytes / .stored_vectors) | unique == [76, 132, 256]'
json_holds "in full-attention layers alone" '.rows[0:3] | (map(.kv_bytes.sliding) | unique | length == 1) and
    .[0].kv_bytes.full > .[1].kv_bytes.full and .[1].kv_bytes.full > .[2].kv_bytes.full'
works "its report passes the gate, too" gate "$WORK/stored.json"
check "which says what it is" grep -q "note: K/V as sessions of backend cpu.* keep them, relative to bf16" "$WORK/out"
while IFS='|' read -r code change; do
    jq "$change" "$WORK/stored.json" >"$WORK/broken.json"
    run gate "$WORK/broken.json"
    check "but not after $change" grep -q "\[$code\]" "$WORK/out"
done <<'CASES'
KV_FORMULA|.rows |= map(if .format == "q8" then .kv_bytes.full -= 8 | .kv_bytes.total -= 8 else . end)
ROW_UNPROMISED|del(.options.as_stored)
CASES
fails_with "a format that sessions do not keep" "sessions of backend cpu store bf16, q8 and q4; fp8 needs" \
    eval kv-format --as-stored --formats q8,fp8
fails_with "an unknown format of K/V" "formats: unknown format 'd4-11'" eval kv-format --formats d4-11
fails_with "a format named twice" "formats: q8 is named twice" eval kv-format --formats q8,bf16,q8
fails_with "texts that are too short" "the texts have only" eval kv-format examples/code/events.py --prompt-length 4000
works "eval code on a named file" eval code examples/code/events.py --repetitions 1 --max-tokens 8 --prompt-tokens 40 \
    --draft-lengths 3 --json
json_holds "its arms" '.summary.arms | map(.mode) == ["ar", "speculative", "ngram", "auto"]'
printf '{"prompt": "def add(a, b):\\n", "category": "code"}\n{"prompt": "int"}\n' | gzip >"$WORK/prompts.jsonl.gz"
works "eval acceptance on compressed lines" eval acceptance "$WORK/prompts.jsonl.gz" --max-tokens 8 --json
json_holds "both embedding forms, and n-grams" \
    '.summary.arms | map([.mode, .drafter_scaled_embedding]) == [["speculative", false], ["speculative", true], ["ngram", false]]'
json_holds "by category" '.summary.arms[0].categories | map(.category) == ["code", "none"]'
works "in words" eval acceptance "$WORK/prompts.jsonl.gz" --max-tokens 8
check "category by category" test "$(grep -c '^Accepted by draft position, [cn]o[dn]e, 1 prompts:' "$WORK/out")" = 2

# A recording measures blocks of every length, which takes half a minute.
if ! short_sweeps; then
    works "eval draft-policy, recorded" eval draft-policy "$EXAMPLES/code/matrix.c" --needles 1 --random-texts 1 \
        --max-tokens 6 --trace "$WORK/t.json" --json
    json_holds "one column a kind and two of all" '.groups | map(.workload) == ["code", "needle", "random", "mixed", "mixed"]'
    cp "$WORK/out" "$WORK/recorded"
    works "eval draft-policy, replayed" eval draft-policy --replay "$WORK/t.json" --json
    check "the same figures" cmp "$WORK/out" "$WORK/recorded"
fi

# --- wrong usage, wrong files
fails_with "a recording that is none" 'not a file of recorded texts' eval draft-policy --replay "$MODELS/demo/config.json"
refuses "a replay that records" 'excludes --trace' eval draft-policy --replay a.json --trace b.json
refuses "eval without a name" 'name an evaluation' eval
refuses "an unknown evaluation" "unknown evaluation 'taste'" eval taste
refuses "too few lines" '10 to' eval niah --lines 5
refuses "fractions out of range" 'mix-alpha' eval niah --mix-alpha 0,1.5
refuses "gate without files" 'at least one' gate
refuses "a batch of one session" 'sessions' eval lossless --batch --sessions 1
refuses "policies without a batch" '--policies needs --batch' eval lossless --policies native
refuses "acceptance without prompts" 'jsonl' eval acceptance
fails_with "an unknown policy" "policy 'exact'" eval niah --policies native,exact
fails_with "a report that cannot be written" "$WORK/no/r.json" eval niah --lines 12 --report "$WORK/no/r.json"
fails_with "prompts that are not there" "$WORK/no.jsonl" eval acceptance "$WORK/no.jsonl"
fails_with "restored without f_theta" 'f_theta' eval niah --lines 12 --policies native,restored --f-theta none
fails_with "speculation without a drafter" 'drafter' eval niah --lines 12 --mode speculative --drafter none
fails_with "diagnostics without f_theta" 'f_theta' eval niah --lines 12 --identity-restore --f-theta none
for name in niah fidelity code acceptance lossless kv-format draft-policy; do
    works "eval $name --help" eval "$name" --help
done
works "eval --help" eval --help

finish
