# --weights-limit on the command line: the curve of info and of serve --dry-run, the table of bench, refusals, and the same answers
# from an evaluation of losslessness under three limits.
. tests/cli/common.sh

demo=$MODELS/demo
run run --model "$demo" --weights-limit 1K x
check "a limit that is too small is refused" test "$STATUS" -eq 1
check "with the number that is needed" grep -q 'weights limit: 1024 bytes are not enough: [0-9]* are needed' "$WORK/err"
needed=$(sed -n 's/.*not enough: \([0-9]*\) are needed.*/\1/p' "$WORK/err")
run run --model "$demo" --weights-limit 12Q x
check "what is no number of bytes is refused" grep -q "'12Q' is not a number of bytes" "$WORK/err"
echo '[2, 5, 9]' >"$WORK/ids"
run run --model tests/data/golden/gemma4-tiny-dense --ids-file "$WORK/ids" --weights-limit 1G
check "a model without experts is refused" grep -q 'has no experts' "$WORK/err"
run train f-theta --weights-limit 1G --data x --out "$WORK/x"
check "training refuses it" test "$STATUS" -eq 2

run run --model "$demo" --raw --max-tokens 40 --json 'def add(a, b):'
jq -c .token_ids "$WORK/out" >"$WORK/whole"
run run --model "$demo" --raw --max-tokens 40 --json --weights-limit 30M 'def add(a, b):'
check "an answer under a limit is the answer without" sh -c 'jq -c .token_ids "$1/out" | cmp - "$1/whole"' - "$WORK"
check "run counts experts" jq -e '.stats.weights | .wanted > .found and .found > 0 and .slots < .experts and .bytes_read > 0' "$WORK/out"

middle=$((needed + 4000000))
for limit in "$needed" "$middle" 60M; do
    run eval lossless --model "$demo" --weights-limit "$limit" --prompts 2 --max-tokens 4 --reference-prompts 0 --json
    check "eval lossless under $limit: no token differs" \
        jq -e '.summary.lossless | .comparisons == 32 and .differences == 0' "$WORK/out"
done

run info "$demo" --weights-limit 24M
check "info prints the curve" grep -q '^-> *25.2 MB .* % .* tokens/s$' "$WORK/out"
check "down to where all is in memory" grep -q 'all is in memory$' "$WORK/out"
run info "$demo" --weights-limit 24M --json
check "info's curve as JSON" jq -e '.weights_limit | .experts == 192 and .experts_per_token == 48 and .read_bytes_per_second > 0 and
    ([.curve[].hit_rate] | . == sort) and (.curve | length == 9) and .curve[-1].tokens_per_second == null' "$WORK/out"
head -c 600 src/cli/info.c >"$WORK/text"
run info "$demo" --weights-limit 30M --text-file "$WORK/text" --json
check "info counts the experts of a text, which are found more often than by chance" \
    jq -e '.weights_limit | .measured.tokens > 50 and .measured.bytes_per_token > 0 and
    .measured.hit_rate > ([.curve[] | select(.limit_bytes == 31457280)][0].hit_rate)' "$WORK/out"
run info "$demo" --weights-limit 30M --text-file "$WORK/text"
check "and prints them" grep -q '^measured under the limit, on [0-9]* tokens of the text: hit rate' "$WORK/out"
run info "$demo" --text-file "$WORK/text"
check "a text needs a limit" test "$STATUS" -eq 2
run info --synthetic 26b-a4b --weights-limit 4G
check "info refuses weights without a file" grep -q 'synthetic weights have none' "$WORK/err"
run serve --dry-run --json --model "$demo" --weights-limit 24M
check "serve --dry-run has the curve, and weights within the limit" \
    jq -e '(.weights_limit.curve | length == 9) and .ledger.weights_bytes == 24 * 1024 * 1024' "$WORK/out"
run serve --dry-run --model "$demo" --weights-limit 24M
check "and prints it" grep -q '^weights under a limit' "$WORK/out"

run bench --model "$demo" --weights-limit "$needed,60M" --repeats 2 --prompt-tokens 24 --decode-tokens 4 \
    --context-frontiers 8
check "bench prints a row for each limit" test "$(grep -c 'of 192 experts in memory$' "$WORK/out")" -eq 2
run bench --model "$demo" --weights-limit "$needed,60M" --repeats 2 --prompt-tokens 24 --decode-tokens 4 \
    --context-frontiers 8 --json
check "bench as JSON" jq -e '.weights_limits | length == 2 and .[0].decode.bytes_read > .[1].decode.bytes_read and
    all(.[]; .decode.tokens_per_second > 0 and .prompt.share_of_bound.median > 0 and .disk_bytes_per_second.median > 0 and
    .decode.bytes_missed <= .decode.bytes_read) and .[0].decode.waited_seconds.median > 0 and .[0].decode.bytes_missed > 0' "$WORK/out"
run bench --model "$demo" --weights-limit 60M --requests 4
check "bench refuses it with --requests" test "$STATUS" -eq 2

finish
