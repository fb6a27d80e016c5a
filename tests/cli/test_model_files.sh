# Files of models as they are found on people's disks: optional ones that are there and cannot be read, what is no file at all, places
# of chat templates, directories of GGUF files, names with a NUL. Nothing of this may block, so every program gets a minute.
. tests/cli/common.sh

printf '#!/bin/sh\nexec timeout 60 "%s" "$@"\n' "$KAKEYA" >"$WORK/limited"
chmod +x "$WORK/limited"
KAKEYA=$WORK/limited

tiny=$PWD/tests/data/golden/gemma4-tiny-moe
QUANT=$PWD/tests/data/golden/quant
echo '[2, 5, 7, 9]' >"$WORK/ids.json"

fresh() { # makes $WORK/m a model directory of links, which a case may change
    rm -rf "$WORK/m" "$WORK/m-dflash" "$WORK/m-f-theta"
    mkdir "$WORK/m"
    ln -s "$MODELS"/demo/* "$WORK/m/"
}

make_socket() { python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$1"; }

spoil() { # kind, path: what has a file's name and is none
    rm -rf "$2"
    case $1 in
    dangling) ln -s ../blobs/gone "$2" ;;
    loop) ln -s "$(basename "$2")" "$2" ;;
    directory) mkdir "$2" ;;
    fifo) mkfifo "$2" ;;
    link-to-fifo) mkfifo "$2.fifo" && ln -s "$2.fifo" "$2" ;;
    socket) make_socket "$2" ;;
    esac
}

# --- optional files: absent is fine, what is there and cannot be read is not
optional="generation_config.json chat_template.jinja chat_template.json tokenizer_config.json special_tokens_map.json
    preprocessor_config.json processor_config.json hf_quant_config.json model.safetensors.index.json tokenizer.json"
kinds="dangling loop directory fifo link-to-fifo socket"
short_sweeps && kinds="dangling fifo"
for file in $optional; do
    case $file in model.safetensors.index.json) ;; *)
        fresh
        rm -f "$WORK/m/$file"
        works "$file may be absent" info --model "$WORK/m"
        ;;
    esac
    for kind in $kinds; do
        fresh
        spoil "$kind" "$WORK/m/$file"
        fails_with "$file may not be a $kind" "/m/$file: " info --model "$WORK/m"
    done
done
if [ "$(id -u)" -ne 0 ]; then
    fresh
    rm "$WORK/m/generation_config.json"
    echo '{}' >"$WORK/m/generation_config.json"
    chmod 0 "$WORK/m/generation_config.json"
    fails_with "nor one without permission" 'generation_config.json: cannot open: Permission' info --model "$WORK/m"
fi
fresh
spoil dangling "$WORK/m/generation_config.json"
for verb in "run --model $WORK/m hi" "tokenize --model $WORK/m --text-file $WORK/ids.json" \
    "score --model $WORK/m --ids-file $WORK/ids.json" "convert $WORK/m $WORK/out.gguf --to q8_0" "serve --model $WORK/m --port 0"; do
    # shellcheck disable=SC2086 # several arguments
    fails_with "kakeya ${verb%% *} says which link leads nowhere" \
        'generation_config.json: .*a link to ../blobs/gone, which does not exist' $verb
done

# --- what is needed
for file in config.json model-00002-of-00003.safetensors; do
    for kind in $kinds; do
        fresh
        spoil "$kind" "$WORK/m/$file"
        fails_with "$file may not be a $kind" "/m/$file: " run --model "$WORK/m" --max-tokens 1 hi
    done
done
fresh
spoil fifo "$WORK/m/config.json"
for verb in "info --model $WORK/m" "run --model $WORK/m hi" "convert $WORK/m $WORK/out.gguf --to q8_0" "serve --model $WORK/m --port 0" \
    "run --drafter $WORK/m hi" "run --f-theta $WORK/m hi" "tokenize --model $WORK/m --text-file $WORK/ids.json"; do
    # shellcheck disable=SC2086 # several arguments
    fails_with "a FIFO as config.json blocks nothing: $verb" 'config.json: is a FIFO, not a regular file' $verb
done
mkfifo "$WORK/pipe.gguf"
fails_with "nor does one called .gguf" 'pipe.gguf: is a FIFO' run --model "$WORK/pipe.gguf" hi

# --- auxiliary models and their files
for auxiliary in dflash f-theta; do
    for kind in dangling loop fifo socket; do
        fresh
        spoil "$kind" "$WORK/m-$auxiliary"
        fails_with "an auxiliary model may not be a $kind" "m-$auxiliary: " run --model "$WORK/m" --max-tokens 1 hi
    done
    fresh
    ln -s ../gone "$WORK/m-$auxiliary"
    case $auxiliary in dflash) option=--drafter ;; *) option=--f-theta ;; esac
    works "which nobody looks at who goes without" run --model "$WORK/m" $option none --max-tokens 1 hi
done
for file in dflash/config.json dflash/model.safetensors f-theta/f_theta_config.json f-theta/f_theta_weights.safetensors; do
    for kind in $kinds; do
        fresh
        for auxiliary in dflash f-theta; do
            mkdir "$WORK/m-$auxiliary"
            ln -s "$MODELS/demo-$auxiliary"/* "$WORK/m-$auxiliary/"
        done
        spoil "$kind" "$WORK/m-$file"
        fails_with "$file may not be a $kind" "m-$file: " run --model "$WORK/m" --max-tokens 1 hi
    done
done

# --- names with a NUL, and numbers that are none
config() { # jq expression
    fresh
    rm "$WORK/m/config.json"
    jq "$1" "$MODELS/demo/config.json" >"$WORK/m/config.json"
}
fresh
rm "$WORK/m/config.json"
sed 's/"hidden_size"/"hid\\u0000den_size"/' "$MODELS/demo/config.json" >"$WORK/m/config.json"
fails_with "a key with a NUL is refused" 'config.json: malformed JSON at line [0-9]+, byte [0-9]+: a string contains NUL' \
    info --model "$WORK/m"
fresh
rm "$WORK/m/model.safetensors.index.json"
sed 's/-00001-of-00003.safetensors"/-00001-of-00003.safetensors\\u0000junk"/' "$MODELS/demo/model.safetensors.index.json" \
    >"$WORK/m/model.safetensors.index.json"
fails_with "a shard's name, too" 'index.json: malformed JSON .* a string contains NUL' run --model "$WORK/m" hi
fresh
rm "$WORK/m/config.json"
sed 's/"hidden_size"/"hid\x00den_size"/' "$MODELS/demo/config.json" >"$WORK/m/config.json"
fails_with "a NUL itself as well" 'config.json: malformed JSON .* a NUL' info --model "$WORK/m"
for number in NaN Infinity -Infinity; do
    fresh
    rm "$WORK/m/config.json"
    sed "s/\"rms_norm_eps\": [^,]*/\"rms_norm_eps\": $number/" "$MODELS/demo/config.json" >"$WORK/m/config.json"
    fails_with "$number is named" 'config.json: malformed JSON at line [0-9]+.*: NaN and Infinity, which Python writes' \
        info --model "$WORK/m"
done
fresh
rm "$WORK/m/config.json"
{ printf '\357\273\277' && sed 's/$/\r/' "$MODELS/demo/config.json"; } >"$WORK/m/config.json"
works "a mark and line ends of Windows are fine" info --model "$WORK/m"

# --- chat templates: one reader for all places
known="{{ '<|turn>' + role + '\\n' }}{{ 'x<turn|>\\n' }}{{ '<|turn>model\\n' }}"
template() { # where, text
    fresh
    rm -f "$WORK/m/tokenizer_config.json"
    case $1 in
    jinja) printf '%s' "$2" >"$WORK/m/chat_template.jinja" ;;
    json) jq -n --arg t "$2" '{chat_template: $t}' >"$WORK/m/chat_template.json" ;;
    config) jq --arg t "$2" '.chat_template = $t' "$MODELS/demo/tokenizer_config.json" >"$WORK/m/tokenizer_config.json" ;;
    list) jq --arg t "$2" '.chat_template = [{name: "tool_use", template: "other"}, {name: "default", template: $t}]' \
        "$MODELS/demo/tokenizer_config.json" >"$WORK/m/tokenizer_config.json" ;;
    esac
}
for place in jinja json config list; do
    template $place '{{ messages }}'
    run run --model "$WORK/m" --max-tokens 1 hi
    check "a foreign template is refused: $place" test "$STATUS" -eq 1
    check "and the reason is said" grep -q "run: chat: the model's chat template writes no turns of Gemma 4 or Gemma 3" "$WORK/err"
    template $place "$known"
    works "one that writes this family's turns is taken: $place" run --model "$WORK/m" --max-tokens 1 hi
    template $place ''
    works "an empty one is none: $place" run --model "$WORK/m" --max-tokens 1 hi
done
template jinja "$known"
jq -n '{chat_template: "other"}' >"$WORK/m/chat_template.json"
works "chat_template.jinja comes first" run --model "$WORK/m" --max-tokens 1 hi
fresh
rm "$WORK/m/tokenizer_config.json"
echo '{"chat_template": [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}]}' >"$WORK/m/tokenizer_config.json"
fails_with "several without a default are refused" 'tokenizer_config.json: chat_template is neither' run --model "$WORK/m" hi
echo '{"chat_template": 5}' >"$WORK/m/tokenizer_config.json"
fails_with "and a number" 'tokenizer_config.json: chat_template is neither' run --model "$WORK/m" hi

# --- a directory that does not name the end of a turn, as merges and uploads made by hand do not
"$BUILD/tools/scripted_model" "$MODELS/demo" "$WORK/script" 'Hi' || fail "the scripted model" "not written"
for ends in null '[]' 7 '[7]' -1; do
    jq --argjson e "$ends" '.eos_token_id = $e' "$WORK/script/config.json" >"$WORK/config.json"
    cp "$WORK/config.json" "$WORK/script/config.json"
    works "eos_token_id $ends" run --model "$WORK/script" --temperature 0 --max-tokens 30 --json hello
    json_holds "ends its answer all the same" '.finish_reason == "stop" and .text == "Hi"'
done

# --- directories of GGUF files
mkdir "$WORK/g"
cp "$QUANT/micro.gguf" "$WORK/g/micro-Q4_0.gguf"
echo x >"$WORK/g/mmproj-micro-F16.gguf"
echo '{}' >"$WORK/g/config.json"
works "the one GGUF file of a directory is the model" run --model "$WORK/g" --max-tokens 2 --json hello
json_holds "by its own keys" '.token_ids | length == 2'
cp "$QUANT/micro.gguf" "$WORK/g/micro-Q8_0.gguf"
cp "$QUANT/micro.gguf" "$WORK/g/micro-Q4_K_M.gguf"
fails_with "several are listed" 'holds 3 GGUF models \(micro-Q4_0.gguf, micro-Q4_K_M.gguf, micro-Q8_0.gguf\)' run --model "$WORK/g" hello
works "a format chooses" info --model "$WORK/g:q4_k_m"
works "or a name" info --model "$WORK/g:micro-Q8_0.gguf"
fails_with "part of a format does not" 'no GGUF model in it is called Q4_K' info --model "$WORK/g:Q4_K"
mkdir -p "$WORK/hub/models--org--micro/snapshots/1" "$WORK/hub/models--org--micro/refs"
printf 1 >"$WORK/hub/models--org--micro/refs/main"
cp "$WORK/g"/micro-Q* "$WORK/hub/models--org--micro/snapshots/1/"
HF_HUB_CACHE=$WORK/hub
export HF_HUB_CACHE
works "so in the cache" info --model org/micro:Q8_0
fails_with "where several are listed, too" 'holds 3 GGUF models' info --model org/micro
fails_with "a name that is not there is said" 'org/none.*no snapshot' info --model org/none:Q8_0
unset HF_HUB_CACHE
mkdir "$WORK/split"
cp "$QUANT"/split-0000?-of-00002.gguf "$WORK/split/"
fails_with "a split is one" 'general.architecture is test|split-00001-of-00002.gguf' info --model "$WORK/split"
check "and not two" sh -c "! grep -q 'holds 2' '$WORK/err'"

# --- what is called .gguf and is none, or is no model
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' >"$WORK/pointer.gguf"
fails_with "a pointer of Git LFS" 'pointer.gguf: a Git LFS pointer' run --model "$WORK/pointer.gguf" hi
printf '\n  <!DOCTYPE html>\n<html>' >"$WORK/page.gguf"
fails_with "a web page" 'page.gguf: a web page' run "$WORK/page.gguf" hi
printf 'Entry not found' >"$WORK/absent.gguf"
fails_with "a server's refusal" "absent.gguf: a server's refusal" run "$WORK/absent.gguf" hi
mkdir "$WORK/lora"
echo '{"peft_type": "LORA"}' >"$WORK/lora/adapter_config.json"
cp "$tiny/model.safetensors" "$WORK/lora/adapter_model.safetensors"
fails_with "a LoRA" 'lora: a LoRA adapter \(adapter_config.json\)' run --model "$WORK/lora" hi
fails_with "for info, too" 'lora: a LoRA adapter' info --model "$WORK/lora"

finish
