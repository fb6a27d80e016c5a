# The demo sees: it reads a code in a picture, and eval niah finds codes that pictures show between lines of text.
. tests/cli/common.sh

question="Question: what is the secret code? Answer:"

works "the picture of the examples is read" run --image "$EXAMPLES/code.png" "$question"
check "its code is the answer" test "$(cat "$WORK/out")" = "The secret code is 7294."
works "also after text, from a conversation" run --json --image "$EXAMPLES/code.png" --max-tokens 16 \
    "Note 0000: this paragraph is unrelated padding and does not contain the answer. $question"
json_holds "in 64 tokens of picture" '(.text | contains("7294")) and .prompt_tokens > 80'
works "in float32, too" run --precision f32 --image "$EXAMPLES/code.png" "$question"
check "with the same answer" test "$(cat "$WORK/out")" = "The secret code is 7294."
convert_to() { # name, type
    works "convert keeps the tower: $2" convert "$MODELS/demo" "$WORK/$1" --to "$2"
    works "and what is written reads the picture" run --model "$WORK/$1" --drafter none --f-theta none \
        --image "$EXAMPLES/code.png" "$question"
    check "in the same way" test "$(cat "$WORK/out")" = "The secret code is 7294."
}
convert_to demo.gguf q8_0
check "a GGUF file has it beside it" test -s "$WORK/mmproj-demo.gguf"
convert_to mlx affine8

# --- needles
lines=12,60 samples=5 allowed="SPEED SPEED_TOKENS"
short_sweeps && samples=2 lines=12,30 allowed="SPEED SPEED_TOKENS SAMPLE_COUNT MEMORY_UNPROVEN"
set -- eval niah --images --lines $lines --samples $samples --max-tokens 16
works "codes in pictures are found" "$@" --policies native,sink-window,restored --report "$WORK/niah.json"
check "all of them, with native attention" jq -e '[.rows[] | select(.policy == "native") | .correct] | all' "$WORK/niah.json"
check "and restored" jq -e '[.rows[] | select(.policy == "restored") | .correct] | all' "$WORK/niah.json"
check "the report says that they are pictures" jq -e '.options.pictures == true' "$WORK/niah.json"
check "codes are four digits, and differ" jq -e '[.rows[] | select(.warmup | not) | .expected] | unique |
    length == $n and all(test("^[1-9][0-9]{3}$"))' --argjson n $((2 * samples)) "$WORK/niah.json"
run gate --json "$WORK/niah.json"
json_holds "the gate has nothing against it, speed aside" \
    '[.reports[0].violations[].code] - ($allowed | split(" ")) | length == 0' --arg allowed "$allowed"
run gate --json "$WORK/niah.json" --replay 4
json_holds "nor when it computes rows again" \
    '[.reports[0].violations[].code] - ($allowed | split(" ")) | length == 0' --arg allowed "$allowed"
jq -c '(.rows[] | select(.sample == "lines-12/0")) |= (.expected = "1234" | .correct = false)' "$WORK/niah.json" >"$WORK/bent.json"
run gate "$WORK/bent.json"
check "a code that the seed does not draw is refused" grep -q '\[ANSWER_MISMATCH\]' "$WORK/out"
jq -c 'del(.options.pictures)' "$WORK/niah.json" >"$WORK/bent.json"
run gate "$WORK/bent.json"
check "so is a report that hides the pictures" test "$STATUS" -eq 1

# --- a tower that does not see
mkdir "$WORK/blind"
ln -s "$MODELS"/demo/* "$WORK/blind/"
rm "$WORK/blind/vision.safetensors"
cp "$MODELS/demo/vision.safetensors" "$WORK/blind/"
chmod u+w "$WORK/blind/vision.safetensors"
bytes=$(wc -c <"$WORK/blind/vision.safetensors")
head -c $((bytes / 2)) /dev/zero | dd of="$WORK/blind/vision.safetensors" bs=4096 seek=$((bytes / 8192)) conv=notrunc 2>"$WORK/dd"
truncate -s "$bytes" "$WORK/blind/vision.safetensors"
works "a damaged tower answers" "$@" --model "$WORK/blind" --drafter none --f-theta none --policies native --report "$WORK/blind.json"
run gate "$WORK/blind.json"
check "but its report is refused" test "$STATUS" -eq 1
check "since no needle is found" grep -q "\[RECALL_UNPROVEN\]" "$WORK/out"

# --- refusals
fails_with "without the tower there are no pictures" "vision is off" "$@" --vision off
text_model "$WORK/text"
fails_with "nor in a model of text" "reads no images" "$@" --model "$WORK/text"
refuses "facts are no pictures" "exclude each other" "$@" --facts
fails_with "there are fewer pictures than codes" "fewer than 2000" eval niah --images --lines 12,60 --samples 1000
finish
