# kakeya eval mac-acceptance on MLX's CPU device, with a small model: its report passes the gate, and a report that was changed in any
# of its parts does not.
. tests/cli/common.sh

tiny="--quick --precision f32 --model tests/data/golden/gemma4-tiny-dense --drafter tests/data/golden/dflash-tiny"
works "mac-acceptance runs on MLX's CPU device" eval mac-acceptance $tiny --report "$WORK/mac.json"
works "its report passes the gate" gate --json "$WORK/mac.json"
json_holds "which says what it does not show" '.passed and (.reports[0].note | test("says nothing of a Mac.s GPU; quick"))'

refused() { # what was changed, code, filter
    jq -c "$3" "$WORK/mac.json" >"$WORK/bent.json"
    run gate --json "$WORK/bent.json"
    json_holds "refused: $1" ".passed == false and (.reports[0].violations | map(.code) | index(\"$2\") != null)"
}
refused "a token of one mode" LOSSLESS '.streams[1].token_ids[7] |= (. + 1) % 300'
refused "the greedy answer" GREEDY '.cpu_token_ids[3] |= (. + 1) % 300'
refused "a mode that is missing" PART_MISSING 'del(.streams[2])'
refused "a mode that is there twice" STREAMS_FORM '.streams[2] = .streams[0]'
refused "logits that are far off" VECTORS '.vectors[50].largest_difference = 0.5'
refused "a likelihood that the logits do not allow" VECTORS_FORM '.vectors[9].nll += 0.5'
refused "bytes of a session that moved" MOVED '.moved_sessions[2].digest_there = "0123456789abcdef"'
refused "what it said then" MOVED '.moved_sessions[1].token_ids_there[0] |= (. + 1) % 300'
refused "K/V that grow" MEMORY_GROWS '.memory[6].kv_bytes.sliding += 4096'
refused "K/V beside the formula" KV_FORMULA '.memory[4].kv_bytes.full += 64'
refused "memory that nobody counted" MEMORY_UNCOUNTED '.memory[5].device_held += 100000000'
refused "a step faster than memory" SPEED_IMPOSSIBLE \
    '{median: 1e-8, low: 1e-8, high: 1e-8} as $t | .speed.rows[1] |= (.seconds = $t | .bound_seconds = ($t | map_values(. * 2)) |
        .share = ($t | map_values(2)))'
refused "a share that is none" SPEED_FORM '.speed.rows[0].share.high = 90'
refused "an operation that fell back" SELF_CHECK \
    '.self_check += [{operation: "product", chosen: "stock", first_choice: false, reason: "bits differ"}]'
refused "another backend" BACKEND '.environment.backend = "cpu/avx2"'
refused "a Mac whose GPU was not used" METAL_UNUSED '.environment.os = "Darwin 25.1.0"'
refused "a key of another program" UNKNOWN_KEY '.verdict = "good"'
refused "no whole run" PART_MISSING '.options.quick = false'
refused "an interrupted run" INCOMPLETE '.complete = false | .failure = "interrupted at memory"'
refused "a part that was cut" PART_MISSING 'del(.speed)'

# The CPU's own choice for quantised weights would be int8, which MLX has not.
"$KAKEYA" convert tests/data/golden/gemma4-tiny-dense "$WORK/affine4" --to affine4 >/dev/null 2>&1
works "a quantised model needs no option" \
    eval mac-acceptance --quick --memory-tokens 70 --drafter none --model "$WORK/affine4" --report "$WORK/affine4.json"
check "both backends take bf16 then" test "$(jq -r .environment.precision "$WORK/affine4.json")" = bf16

fails_with "a model that cannot be opened is said in one line" "^kakeya eval mac-acceptance: " \
    eval mac-acceptance --quick --model "$WORK/none" --report "$WORK/failed.json"
finish
