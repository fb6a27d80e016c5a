# Sound on the command line: score, run and info with --audio, of tokens, of prompts and of messages.
. tests/cli/common.sh

VISION=tests/data/vision
SOUNDS=tests/data/sounds
model="--backend cpu --precision f32 --threads 2 --model"
tiny="$model $VISION/tiny-e"

integers() { # model, tensor: of a golden file, as JSON
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

cat >"$WORK/messages.json" <<'END'
[{"role": "user", "content": [{"type": "text", "text": "Transcribe this:"}, {"type": "input_audio", "input_audio": {}}]}]
END
# shellcheck disable=SC2086  # several options
for name in tiny-e tiny-unified; do
    integers $name audio.input_ids >"$WORK/$name.ids"
    integers $name audio.greedy >"$WORK/$name.greedy"
    "$KAKEYA" info $VISION/$name --json >"$WORK/$name.info"
    works "$name answers tokens with a sound" run $model $VISION/$name --ids-file "$WORK/$name.ids" --audio $SOUNDS/chirp.wav \
        --max-tokens 12 --ignore-eos --json
    json_holds "as the reference does" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/$name.greedy"
    works "$name answers messages with a sound" run $model $VISION/$name --messages "$WORK/messages.json" --audio $SOUNDS/chirp.wav \
        --max-tokens 12 --ignore-eos --json
    json_holds "whose turn is that of the reference" '.token_ids == $wanted[0] and .prompt_tokens == ($ids[0] | length)' \
        --slurpfile wanted "$WORK/$name.greedy" --slurpfile ids "$WORK/$name.ids"
done

# shellcheck disable=SC2086
{
    works "sounds and a picture stand before the text" run $tiny --audio $SOUNDS/sweep-24000.mp3 --audio $SOUNDS/sweep-44100-stereo.flac \
        --image tests/data/images/photo.jpg --image-budget 70 --max-tokens 3 --ignore-eos --json 'What is this?'
    STATUS=0
    "$KAKEYA" run $tiny --audio - --max-tokens 3 --ignore-eos Listen <$SOUNDS/chirp.wav >"$WORK/out" 2>"$WORK/err" || STATUS=$?
    check "a sound comes from standard input" test "$STATUS" -eq 0 -a -s "$WORK/out"
    works "score takes sounds" score $tiny --ids-file "$WORK/tiny-e.ids" --audio $SOUNDS/chirp.wav --json
    heard=$(jq .nll "$WORK/out")
    works "and works without them" score $tiny --ids-file "$WORK/tiny-e.ids" --json
    check "with another result" test "$heard" != "$(jq .nll "$WORK/out")"
    refused "two sounds for one place are refused with both numbers" "2 sounds, but the prompt has room for 1" score $tiny \
        --ids-file "$WORK/tiny-e.ids" --audio $SOUNDS/chirp.wav --audio $SOUNDS/chirp.wav
    refused "so is a sound of another length" "sound 0 is 10 tokens, but the prompt has room for 15" score $tiny \
        --ids-file "$WORK/tiny-e.ids" --audio $SOUNDS/sweep.wav
    refused "a conversation's parts are counted" "2 sounds, but the messages have room for 1" run $tiny \
        --messages "$WORK/messages.json" --audio $SOUNDS/chirp.wav --audio $SOUNDS/chirp.wav
    refused "parts without sounds are refused" 'part of type "input_audio"' run $tiny --messages "$WORK/messages.json"
    refused "a model without an audio encoder is named as one" "the model reads no sound" run $model $VISION/tiny-tower \
        --audio $SOUNDS/chirp.wav hello
    fails_with "so is a model of text" "the model reads no sound" run --audio $SOUNDS/chirp.wav hello
    refused "what is no sound is refused" "README.md: neither WAV, FLAC nor MP3" run $tiny --audio README.md hello
    head -c 9000 $SOUNDS/chirp.wav >"$WORK/cut.wav"
    refused "a file that was cut off is refused" "cut.wav: the file ends early" run $tiny --audio "$WORK/cut.wav" hello
    works "text that spells the token is text" run $tiny --max-tokens 1 --ignore-eos --json 'What is <|audio|>?'
    works "--vision off reads sound as ever" run $tiny --vision off --ids-file "$WORK/tiny-e.ids" --audio $SOUNDS/chirp.wav \
        --max-tokens 12 --ignore-eos --json
    json_holds "with the same answer" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/tiny-e.greedy"
    refuses "a sound needs turns or ids" "not with --raw" run $tiny --raw --audio $SOUNDS/chirp.wav hello
    refuses "score has no turns" "needs --ids-file" score $tiny --text-file README.md --audio $SOUNDS/chirp.wav
}

# --- the audio encoder is told
works "info tells of what reads sound" info $VISION/tiny-e --json
json_holds "layers, parameters, weights and workspace" '.audio | .layers == 2 and .width == 24 and .weights_bytes > 2 * .parameters and
    .workspace_bytes > 0'
works "and in words" info $VISION/tiny-unified
check "of frames, too" grep -q '^  audio           no layers, 160 samples a token, .* parameters' "$WORK/out"
check "with a sound's workspace" grep -q '^  *while a sound of 30 seconds is read on the CPU: ' "$WORK/out"
works "there is none in the form of the larger models" info $VISION/tiny-tower --json
json_holds "which says it" '.audio == null'
works "a server tells it before it starts" serve --dry-run --backend cpu --model $VISION/tiny-e
check "weights and workspace" grep -q '^sound: .* of these weights; .* while one of 30 seconds is read' "$WORK/out"
check "also in the ledger" grep -q '^  sound  .* while a sound of 30 seconds is read' "$WORK/out"

# --- GGUF files, with what reads sound in the file beside them
for name in tiny-e tiny-unified; do
    works "$name becomes a GGUF file" convert $VISION/$name "$WORK/$name.gguf" --to q8_0 --keep '.*=bf16' --head bf16
    check "with its audio encoder beside it" grep -q "mmproj-$name.gguf: the vision encoder, .*, and the audio encoder, .*, unchanged" \
        "$WORK/out"
    works "which info tells" info "$WORK/$name.gguf" --json
    json_holds "as it does of the directory" '.audio == $wanted[0].audio' --slurpfile wanted "$WORK/$name.info"
    # shellcheck disable=SC2086
    works "$name.gguf answers tokens with a sound" run $model "$WORK/$name.gguf" --ids-file "$WORK/$name.ids" --audio $SOUNDS/chirp.wav \
        --max-tokens 12 --ignore-eos --json
    json_holds "as the reference does" '.token_ids == $wanted[0]' --slurpfile wanted "$WORK/$name.greedy"
done
works "a model without an audio encoder is converted as ever" convert $VISION/tiny-tower "$WORK/tiny-tower.gguf" --to q8_0
check "without a word about one" sh -c "! grep -q audio '$WORK/out'"
# shellcheck disable=SC2086
refused "and refuses a sound with the file's name" "reads no sound: no audio encoder in $WORK/mmproj-tiny-tower.gguf" run $model \
    "$WORK/tiny-tower.gguf" --audio $SOUNDS/chirp.wav hello

# --- tensors of a tower that cannot be used
mkdir "$WORK/deaf"
cp $VISION/tiny-e/* "$WORK/deaf"
python3 - "$WORK/deaf/model.safetensors" <<'END'
import json, struct, sys
with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    data = file.read()
header["model.audio_tower.other"] = header.pop("model.audio_tower.output_proj.weight")
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
END
run run $model "$WORK/deaf" --audio $SOUNDS/chirp.wav hello
check "a tensor that is missing is named" grep -q "no sound: audio_tower.output_proj.weight is missing" "$WORK/err"
works "and text is answered as ever" run $model "$WORK/deaf" --max-tokens 2 --ignore-eos hello
finish
