# Pictures on the command line: score and run with --image, of tokens, of prompts and of messages.
. tests/cli/common.sh

VISION=tests/data/vision
IMAGES=tests/data/images
model="--backend cpu --precision f32 --threads 2 --model"
tiny="$model $VISION/tiny-tower"

# Tensors of integers of a golden file, as JSON.
integers() { # model, tensor
    python3 - "$VISION/$1/golden.safetensors" "$2" <<'END'
import json, struct, sys
with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    data = file.read()
begin, end = header[sys.argv[2]]["data_offsets"]
print(json.dumps(struct.unpack("<%di" % ((end - begin) // 4), data[begin:end])))
END
}

# As fails_with, of models whose chat template is no known revision, which a note says.
refused() { # description, pattern, arguments...
    description=$1
    pattern=$2
    shift 2
    run "$@"
    sed -i '/: note: /d' "$WORK/err"
    if [ "$STATUS" -eq 1 ] && [ "$(wc -l <"$WORK/err")" -eq 1 ] && grep -q -e "$pattern" "$WORK/err"; then
        pass "$description"
    else
        fail "$description" "$(shown)"
    fi
}

for name in tiny-tower tiny-e tiny-unified; do
    for prompt in one two; do
        integers $name $prompt.input_ids >"$WORK/$name.$prompt.ids"
        integers $name $prompt.greedy >"$WORK/$name.$prompt.greedy"
    done
done

# shellcheck disable=SC2086  # several options
for name in tiny-tower tiny-e tiny-unified; do
    works "$name answers tokens with a picture" run $model $VISION/$name --ids-file "$WORK/$name.one.ids" \
        --image $IMAGES/photo.jpg --image-budget 70 --max-tokens 12 --ignore-eos --json
    json_holds "as the reference does" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/$name.one.greedy"
    works "$name answers tokens with three" run $model $VISION/$name --ids-file "$WORK/$name.two.ids" \
        --image $IMAGES/gradient.png,budget=70 --image $IMAGES/text.png,budget=70 --image $IMAGES/photo.jpg,budget=70 \
        --max-tokens 12 --ignore-eos --json
    json_holds "as the reference does" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/$name.two.greedy"
    works "$name answers a question about a picture" run $model $VISION/$name --image $IMAGES/photo.jpg --image-budget 70 \
        --max-tokens 12 --ignore-eos --json 'What is this?'
    json_holds "whose turn is that of the reference" '.token_ids == $wanted[0] and .prompt_tokens == ($ids[0] | length)' \
        --slurpfile wanted "$WORK/$name.one.greedy" --slurpfile ids "$WORK/$name.one.ids"
done

cat >"$WORK/messages.json" <<'END'
[{"role": "user", "content": [{"type": "text", "text": "A thing:"}, {"type": "image"}, {"type": "text", "text": "is this a thing?"}]},
 {"role": "assistant", "content": "This is a line."},
 {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "image_url", "image_url": {"url": "data:,"}},
  {"type": "input_image"}, {"type": "text", "text": "differ?"}]}]
END
# shellcheck disable=SC2086
{
    works "a conversation has pictures in earlier turns" run $tiny --messages "$WORK/messages.json" --image $IMAGES/gradient.png \
        --image $IMAGES/text.png --image $IMAGES/photo.jpg --image-budget 70 --max-tokens 12 --ignore-eos --json
    json_holds "in the order of its parts" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/tiny-tower.two.greedy"
    refused "a conversation's parts are counted" "2 images, but the messages have room for 3" run $tiny \
        --messages "$WORK/messages.json" --image $IMAGES/gradient.png --image $IMAGES/text.png
    refused "parts without pictures are refused" 'part of type "image"' run $tiny --messages "$WORK/messages.json"

    works "score takes pictures" score $tiny --ids-file "$WORK/tiny-tower.one.ids" --image $IMAGES/photo.jpg --image-budget 70 --json
    picture=$(jq .nll "$WORK/out")
    works "and works without them" score $tiny --ids-file "$WORK/tiny-tower.one.ids" --json
    check "with another result" test "$picture" != "$(jq .nll "$WORK/out")"
    refused "two pictures for one place are refused with both numbers" "2 images, but the prompt has room for 1" score $tiny \
        --ids-file "$WORK/tiny-tower.one.ids" --image $IMAGES/photo.jpg --image $IMAGES/photo.jpg --image-budget 70
    refused "so is a picture of another length" "image 0 is 130 tokens, but the prompt has room for 63" score $tiny \
        --ids-file "$WORK/tiny-tower.one.ids" --image $IMAGES/photo.jpg,budget=140
    refused "budgets are known ones" "70, 140, 280, 560 or 1120" score $tiny --ids-file "$WORK/tiny-tower.one.ids" \
        --image $IMAGES/photo.jpg,budget=71
    refused "a broken picture is named" "truncated.jpg: broken JPEG" run $tiny --image $IMAGES/bad/truncated.jpg hello
    works "text that spells the token is text" run $tiny --max-tokens 1 --ignore-eos --json 'What is <|image|>?'
    works "an answer is as long as it may be" run $tiny --image $IMAGES/photo.jpg --image-budget 70 --max-tokens 30 --ignore-eos \
        --temperature 0 --json hi
    json_holds "without the tokens of pictures, sounds and films" '.token_ids | length == 30 and all(. != 19 and . != 22 and . != 23)'
    refuses "a picture needs turns or ids" "not with --raw" run $tiny --raw --image $IMAGES/photo.jpg hello
    refuses "score has no turns" "needs --ids-file" score $tiny --text-file README.md --image $IMAGES/photo.jpg
}
# --- what it takes
works "info tells of what reads pictures" info $VISION/tiny-tower --json
json_holds "layers, parameters, weights, and workspace by budget" '.vision | .layers == 2 and .hidden == 48 and .budget == 70 and
    .weights_bytes > 2 * .parameters and (.pictures | map(.budget)) == [70, 140, 280, 560, 1120] and
    (.pictures | map(.workspace_bytes) | . == sort and .[0] > 0)'
works "and in words" info $VISION/tiny-unified
check "of an embedder, too" grep -q '^  vision          no layers, hidden [0-9]*, .* parameters' "$WORK/out"
check "with a picture's workspace" grep -q '^  *while a picture is read on the CPU: .* of 70 tokens, .* of 1120 tokens$' "$WORK/out"
works "with --vision off there is none" info $VISION/tiny-tower --vision off --json
json_holds "and says so" '.vision == null'
text_model "$WORK/text"
works "nor in a model of text" info "$WORK/text" --json
json_holds "which says it" '.vision == null'
works "a server tells it before it starts" serve --dry-run --backend cpu --model $VISION/tiny-tower --vision on --image-budget 140
check "weights and workspace" grep -q '^pictures: .* of these weights, read at the start; .* while one of 140 tokens is read' "$WORK/out"
check "also in the ledger" grep -q '^  picture  .* while a picture of 140 tokens is read' "$WORK/out"

# --- every way to the same tokens
set -- --backend cpu --precision f32 --max-tokens 6 --image $IMAGES/photo.jpg --image $IMAGES/text.png,budget=140 \
    --image $IMAGES/exact.png --image-budget 70
names="tiny-tower tiny-e tiny-unified" prompts=9 compositions=8
short_sweeps && names="tiny-tower tiny-e" prompts=5 compositions=2
for name in $names; do
    works "$name: streams with pictures" eval lossless --model $VISION/$name --prompts $prompts --json --report "$WORK/lossless.json" "$@"
    json_holds "none differs, slow references included" '.summary.lossless | .differences == 0 and .comparisons > 5 * $n' \
        --argjson n $((prompts - 1))
    check "and the gate passes them" "$KAKEYA" gate "$WORK/lossless.json"
    works "$name: batches with pictures" eval lossless --batch --model $VISION/$name --compositions $compositions --sessions 8 --json "$@"
    json_holds "none differs, forks included" '.summary.lossless | .differences == 0 and .comparisons > 8'
done
works "rows are computed again with the pictures" gate "$WORK/lossless.json" --replay 4 --model $VISION/$name
mkdir "$WORK/elsewhere"
cp $IMAGES/photo.jpg $IMAGES/text.png "$WORK/elsewhere"
cp $IMAGES/gradient.png "$WORK/elsewhere/exact.png"
run gate "$WORK/lossless.json" --replay 4 --model $VISION/$name --files "$WORK/elsewhere"
check "not with another one" sh -c "test $STATUS -eq 1 && grep -q images '$WORK/out'"
# with an f_theta, whatever it is worth: it sees rows of pictures as it sees others
works "an f_theta for such a model" train --backend cpu --precision f32 --threads 2 --sink 2 --window 12 f-theta \
    --model $VISION/tiny-tower --data README.md --tokens 2000 --sequence 256 --held-out 2 --metric-tokens 500 --even-if-worse \
    --out "$WORK/f-theta"
works "restored streams with pictures" eval lossless --model $VISION/tiny-tower --f-theta "$WORK/f-theta" --sink 2 --window 12 \
    --prompts 3 --json --report "$WORK/restored.json" "$@"
json_holds "none differs" '.summary.lossless | .differences == 0 and .comparisons > 25'
check "under both restored policies" grep -q restored-all "$WORK/restored.json"
works "and in batches" eval lossless --batch --model $VISION/tiny-tower --f-theta "$WORK/f-theta" --sink 2 --window 12 --compositions 2 \
    --sessions 6 --policies restored,restored-all --json "$@"
json_holds "none differs there, either" '.summary.lossless | .differences == 0 and .comparisons > 6'
fails_with "a model of text is refused" "the model reads no images" eval lossless --model "$WORK/text" --prompts 1 \
    --image $IMAGES/photo.jpg
set --

# --- the switch
# shellcheck disable=SC2086
{
    works "--vision on answers as auto does" run $tiny --vision on --ids-file "$WORK/tiny-tower.one.ids" --image $IMAGES/photo.jpg \
        --image-budget 70 --max-tokens 12 --ignore-eos --json
    json_holds "as the reference does" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/tiny-tower.one.greedy"
    refused "--vision off refuses a picture" "vision is off (--vision off)" run $tiny --vision off --image $IMAGES/photo.jpg hello
    works "and answers text" run $tiny --vision off --ids-file "$WORK/tiny-tower.one.ids" --max-tokens 12 --ignore-eos --json
    mv "$WORK/out" "$WORK/off"
    works "which auto answers" run $tiny --ids-file "$WORK/tiny-tower.one.ids" --max-tokens 12 --ignore-eos --json
    check "in the same way" test "$(jq .token_ids "$WORK/off")" = "$(jq .token_ids "$WORK/out")"
}
fails_with "--vision on needs a model that reads pictures" "vision on: the model reads no images" run --backend cpu \
    --model "$WORK/text" --vision on hello
refuses "--vision has three values" "auto on off" run --vision maybe hello

# --- GGUF files, with what reads pictures beside them
mkdir "$WORK/g" "$WORK/part"
works "a model is converted with what reads pictures" convert $VISION/tiny-tower "$WORK/g/tiny.gguf" --to q8_0 --keep '.*=bf16' --head bf16
check "which becomes a file" test -s "$WORK/g/mmproj-tiny.gguf"
# shellcheck disable=SC2086
{
    works "the GGUF file answers a question about a picture" run $model "$WORK/g/tiny.gguf" --image $IMAGES/photo.jpg --image-budget 70 \
        --max-tokens 12 --ignore-eos --json 'What is this?'
    json_holds "as the directory does" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/tiny-tower.one.greedy"
    works "so it does at length" run $model "$WORK/g/tiny.gguf" --image $IMAGES/photo.jpg --image-budget 70 --max-tokens 30 --ignore-eos \
        --temperature 0 --json hi
    json_holds "without the tokens of pictures, sounds and films" '.token_ids | length == 30 and all(. != 19 and . != 22 and . != 23)'
    mv "$WORK/g/mmproj-tiny.gguf" "$WORK/part/part.gguf"
    refused "without that file it says so" "reads no images: no pictures: no vision part (mmproj-\*.gguf)" run $model "$WORK/g/tiny.gguf" \
        --image $IMAGES/photo.jpg hello
    works "and text works" run $model "$WORK/g/tiny.gguf" --max-tokens 1 --ignore-eos hello
    check "with a note" grep -q "note: no pictures: no vision part" "$WORK/err"
    works "a named file is taken" run $model "$WORK/g/tiny.gguf" --mmproj "$WORK/part/part.gguf" --image $IMAGES/photo.jpg \
        --image-budget 70 --max-tokens 12 --ignore-eos --json 'What is this?'
    json_holds "with the same answer" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/tiny-tower.one.greedy"
    refused "and left out where vision is off" "vision is off" run $model "$WORK/g/tiny.gguf" --mmproj "$WORK/part/part.gguf" --vision off \
        --image $IMAGES/photo.jpg hello
    refused "one that is none is refused" "mmproj.*general.architecture is gemma4" run $model "$WORK/g/tiny.gguf" \
        --mmproj "$WORK/g/tiny.gguf" hello
    refused "so it is beside a directory" "mmproj is for GGUF files" run $tiny --mmproj "$WORK/part/part.gguf" hello
}

refused "a model without a tower says so" "the model reads no images" run --backend cpu --model "$WORK/text" \
    --image $IMAGES/photo.jpg hello
finish
