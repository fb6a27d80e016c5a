# Everything a user can get wrong in files: one clear line, status 1, no crash, no hang, no partial file.
. tests/cli/common.sh

tiny=tests/data/golden/gemma4-tiny-moe
echo '[2, 5, 7, 9]' >"$WORK/ids.json"
ids=$WORK/ids.json

# A copy of the tiny model in $WORK/NAME, to be damaged.
variant() {
    mkdir -p "$WORK/$1"
    cp "$tiny/config.json" "$tiny/model.safetensors" "$WORK/$1/"
    echo "$WORK/$1"
}
# Replaces bytes of the safetensors header by as many others.
edit_header() { # directory, sed expression
    LC_ALL=C sed -i "$2" "$1/model.safetensors"
}
edit_config() { # directory, jq expression
    jq "$2" "$tiny/config.json" >"$1/config.json"
}

works "the undamaged copy works" run --model "$(variant whole)" --ids-file "$ids" --max-tokens 2

# --- names
long=$(head -c 100000 /dev/zero | tr '\0' y)
fails_with "a path of 100,000 characters does not cut off the reason" \
    "^kakeya run: /yyy.*\.\.\.yyy.*: (no such directory|File name too long)" run --model "/$long" --ids-file "$ids"
fails_with "nor does the path of another file" "\.\.\.yyy.*: File name too long" run --model "$tiny" --ids-file "/$long"
long=$(head -c 100000 /dev/zero | tr '\0' x | sed 's/xx/\xc3\xa9/g')
run --model "/$long" --ids-file "$ids"
check "a shortened message is still UTF-8" iconv -f UTF-8 -t UTF-8 -o /dev/null "$WORK/err"

# --- weight files
d=$(variant truncated)
head -c 1000000 "$tiny/model.safetensors" >"$d/model.safetensors"
fails_with "truncated safetensors" "$d/model.safetensors.*" run --model "$d" --ids-file "$ids"
d=$(variant short)
head -c 5 "$tiny/model.safetensors" >"$d/model.safetensors"
fails_with "safetensors shorter than its first field" "$d/model.safetensors" run --model "$d" --ids-file "$ids"
d=$(variant empty)
: >"$d/model.safetensors"
fails_with "empty safetensors" "$d/model.safetensors" run --model "$d" --ids-file "$ids"
d=$(variant oversized-header)
printf '\377\377\377\377\377\377\377\177' | dd of="$d/model.safetensors" conv=notrunc 2>"$WORK/dd"
fails_with "safetensors whose header claims more than the file" "$d/model.safetensors.*header" run --model "$d" --ids-file "$ids"
d=$(variant trailing)
printf 'surplus' >>"$d/model.safetensors"
fails_with "safetensors with bytes behind the last tensor" "$d/model.safetensors" run --model "$d" --ids-file "$ids"
d=$(variant overlapping)
edit_header "$d" 's/"data_offsets":\[303104,303360\]/"data_offsets":[303000,303256]/'
fails_with "overlapping tensors" "$d/model.safetensors.*inside tensor" run --model "$d" --ids-file "$ids"
d=$(variant beyond)
edit_header "$d" 's/"shape":\[320,64\],"data_offsets":\[0,81920\]/"shape":[320,64],"data_offsets":[0,99999]/'
fails_with "a tensor whose bytes are not its shape's" "$d/model.safetensors.*embed_tokens" run --model "$d" --ids-file "$ids"
d=$(variant header-json)
edit_header "$d" 's/{"__metadata__"/{"__metadata__,/'
fails_with "a header that is not JSON" "$d/model.safetensors" run --model "$d" --ids-file "$ids"
d=$(variant dtype)
edit_header "$d" 's/"dtype":"F32","shape":\[320,64\]/"dtype":"I32","shape":[320,64]/'
fails_with "a tensor of a wrong type" "embed_tokens.weight.*I32" run --model "$d" --ids-file "$ids"
d=$(variant unknown-dtype)
edit_header "$d" 's/"dtype":"F32","shape":\[320,64\]/"dtype":"Q32","shape":[320,64]/'
fails_with "a tensor of an unknown type" "embed_tokens.weight.*Q32" run --model "$d" --ids-file "$ids"
d=$(variant shape)
edit_header "$d" 's/"shape":\[320,64\]/"shape":[640,32]/'
fails_with "a tensor of a wrong shape: both shapes are named" \
    "embed_tokens.weight.*640, ?32.*320, ?64|embed_tokens.weight.*320, ?64.*640, ?32" \
    run --model "$d" --ids-file "$ids"
d=$(variant missing-tensor)
edit_header "$d" 's/layers.0.input_layernorm.weight/layers.0.inputXlayernorm.weight/'
fails_with "a missing tensor is named" "layers.0.input_layernorm.weight" run --model "$d" --ids-file "$ids"
d=$(variant no-weights)
rm "$d/model.safetensors"
fails_with "a directory without weights" "$d.*model.safetensors" run --model "$d" --ids-file "$ids"

d=$(variant lfs)
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:cc8d\nsize 32169626\n' >"$d/model.safetensors"
fails_with "a Git LFS pointer in the place of weights" "$d/model.safetensors: a Git LFS pointer.*git lfs pull" \
    run --model "$d" --ids-file "$ids"
d=$(variant pickled)
mv "$d/model.safetensors" "$d/pytorch_model.bin"
fails_with "a PyTorch checkpoint" "pickled: .*only pytorch_model.bin.*convert it to safetensors" \
    run --model "$d" --ids-file "$ids"
d=$(variant renamed)
printf 'PK\003\004' >"$d/model.safetensors"
fails_with "a PyTorch checkpoint under another name" "$d/model.safetensors: a PyTorch checkpoint" run --model "$d" --ids-file "$ids"

# --- shards
mkdir "$WORK/sharded"
ln -s "$MODELS"/demo/* "$WORK/sharded/"
rm "$WORK/sharded/model-00002-of-00003.safetensors"
fails_with "a missing shard is named" "model-00002-of-00003.safetensors" run --model "$WORK/sharded" --raw x
ln -s "$MODELS/demo/model-00002-of-00003.safetensors" "$WORK/sharded/"
rm "$WORK/sharded/model.safetensors.index.json"
jq '.weight_map["model.norm.weight"] = "model-00003-of-00003.safetensors"' "$MODELS/demo/model.safetensors.index.json" \
    >"$WORK/sharded/model.safetensors.index.json"
fails_with "an index that names the wrong shard" "model.norm.weight" run --model "$WORK/sharded" --raw x
jq '.weight_map["model.norm.weight"] = "../../etc/passwd"' "$MODELS/demo/model.safetensors.index.json" \
    >"$WORK/sharded/model.safetensors.index.json"
fails_with "an index that leaves the directory" "index.json" run --model "$WORK/sharded" --raw x

# --- configuration
d=$(variant config-json)
printf '{\n "text_config": {,\n}' >"$d/config.json"
fails_with "malformed JSON: file and position" "$d/config.json.*(line 2|:2:)" run --model "$d" --ids-file "$ids"
d=$(variant no-config)
rm "$d/config.json"
fails_with "a directory without config.json" "$d/config.json" run --model "$d" --ids-file "$ids"
d=$(variant architecture)
edit_config "$d" '.model_type = "mamba" | .architectures = ["MambaForCausalLM"] | .text_config.model_type = "mamba"'
fails_with "an unknown architecture" "config.json.*[mM]amba" run --model "$d" --ids-file "$ids"
d=$(variant layer-type)
edit_config "$d" '.text_config.layer_types[3] = "linear_attention"'
fails_with "an unknown layer type" "config.json.*linear_attention" run --model "$d" --ids-file "$ids"
d=$(variant layers)
edit_config "$d" '.text_config.num_hidden_layers = 1000000'
fails_with "an absurd number of layers" "config.json.*1000000" run --model "$d" --ids-file "$ids"
d=$(variant heads)
edit_config "$d" '.text_config.num_attention_heads = "four"'
fails_with "a number that is none" "config.json.*num_attention_heads" run --model "$d" --ids-file "$ids"
fails_with "info reports the same configuration error" "config.json.*num_attention_heads" info --model "$d"
d=$(variant rope-type)
edit_config "$d" '.text_config.rope_parameters.sliding_attention = {"type": "linear", "factor": 2, "rope_theta": 10000}'
fails_with "a RoPE kind under its older name" "config.json.*sliding_attention.*linear" run --model "$d" --ids-file "$ids"
d=$(variant rope-scaling)
edit_config "$d" '.text_config.rope_scaling = {"type": "linear", "factor": 2}'
fails_with "RoPE parameters that are not given by layer type" "config.json: rope_scaling.*type, factor" run --model "$d" --ids-file "$ids"
d=$(variant rope-layer-type)
edit_config "$d" '.text_config.rope_parameters |= with_entries(.key |= sub("full_attention"; "full_atention"))'
fails_with "a misspelt layer type in the RoPE parameters" "config.json: rope_parameters.*full_atention" run --model "$d" --ids-file "$ids"
d=$(variant suppressed)
jq -n '{suppress_tokens: [range(0; 320)]}' >"$d/generation_config.json"
fails_with "more suppressed tokens than are supported" "generation_config.json: suppress_tokens.*256" run --model "$d" --ids-file "$ids"

fails_with "a model that is not there" "/nonexistent" run --model /nonexistent x
fails_with "a model name that is not in the cache" "nobody/nothing" run --model nobody/nothing x
fails_with "an unknown synthetic shape" "99b" info --synthetic 99b
fails_with "--model and --synthetic together" "exclude each other" info --model "$tiny" --synthetic e2b
fails_with "an unknown backend" "abacus" run --backend abacus x
fails_with "an unknown instruction set" "abacus" run --isa abacus x

# --- auxiliary models
fails_with "a drafter of another model" "64.*256|256.*64|vocab|hidden" run --drafter tests/data/golden/dflash-tiny --max-tokens 1 x
fails_with "restored attention without f_theta" "f_theta" run --attention restored --f-theta none --max-tokens 1 x

# --- token ids and prompts
bad_ids() { # description, pattern, file content
    printf '%s' "$3" >"$WORK/bad.json"
    fails_with "$1" "$2" run --ids-file "$WORK/bad.json" --max-tokens 1
    fails_with "$1 (score)" "$2" score --ids-file "$WORK/bad.json"
}
bad_ids "an id beyond the vocabulary" "bad.json: token id 8192 at index 1 is outside the vocabulary of 8192" '[2, 8192]'
bad_ids "a negative id" "bad.json: token id -1 at index 0" '[-1]'
bad_ids "an id that is not whole" "bad.json: item 1 is not an integer" '[2, 1.5]'
bad_ids "an id that is text" "bad.json: item 0 is not an integer" '["2"]'
bad_ids "an id beyond 32 bits" "bad.json: item 0 is not an integer" '[99999999999999]'
bad_ids "ids that are no array" "bad.json: expected a JSON array" '{"ids": [2]}'
bad_ids "ids that are no JSON" "bad.json.*(line 1|:1:)" '[2, 5'
bad_ids "no ids" "no tokens" '[]'
fails_with "an ids file that is not there" "/nonexistent" run --ids-file /nonexistent
fails_with "a prompt file that is not there" "/nonexistent" run --prompt-file /nonexistent
fails_with "a prompt file that is a directory" "$WORK" run --prompt-file "$WORK"
printf 'good \377 bad' >"$WORK/latin1.txt"
fails_with "a prompt file that is not UTF-8" "latin1.txt: not valid UTF-8: byte 0xff at offset 5" run --prompt-file "$WORK/latin1.txt"
fails_with "a prompt that is not UTF-8" "the prompt: not valid UTF-8: byte 0xff at offset 1" run "$(printf 'x\377')"
fails_with "a text to score that is not UTF-8" "latin1.txt: not valid UTF-8" score --text-file "$WORK/latin1.txt"
fails_with "a text to tokenize that is not UTF-8" "latin1.txt: not valid UTF-8" tokenize --text-file "$WORK/latin1.txt"
fails_with "a system message that is not UTF-8" "--system: not valid UTF-8" run --system "$(printf '\300')" x
fails_with "a stop text that is not UTF-8" "--stop: not valid UTF-8" run --stop "$(printf '\300')" x
fails_with "a prompt longer than the context" "[0-9]+.*100" run --context 100 --prompt-file "$EXAMPLES/needle-60.txt"
fails_with "a context beyond the model's" "9000.*8192" run --context 9000 x
fails_with "tokens to score beyond the context" "[0-9]+.*3" score --context 3 --ids-file "$ids"
fails_with "a prompt length beyond the tokens" "--prompt-length 5: .*ids.json has only 4 tokens" score --ids-file "$ids" --prompt-length 5
echo '[2, 99999]' >"$WORK/bad.json"
fails_with "decoding an id beyond the vocabulary" "99999" tokenize --decode --ids-file "$WORK/bad.json"

# --- a model without tokenizer
fails_with "a text prompt without tokenizer" "tokenizer" run --model "$tiny" x
fails_with "tokenize without tokenizer" "$tiny/tokenizer.json" tokenize --model "$tiny" --text-file "$EXAMPLES/needle-60.txt"
fails_with "scoring text without tokenizer" "tokenizer" score --model "$tiny" --text-file "$EXAMPLES/needle-60.txt"
mkdir "$WORK/tokenizer"
ln -s "$MODELS"/demo/* "$WORK/tokenizer/"
rm "$WORK/tokenizer/tokenizer.json"
head -c 5000 "$MODELS/demo/tokenizer.json" >"$WORK/tokenizer/tokenizer.json"
fails_with "a truncated tokenizer" "tokenizer.json" run --model "$WORK/tokenizer" x
fails_with "a truncated tokenizer (tokenize)" "tokenizer.json" tokenize --model "$WORK/tokenizer" --text-file "$EXAMPLES/needle-60.txt"

printf 'version https://git-lfs.github.com/spec/v1\noid sha256:cc8d\nsize 32169626\n' >"$WORK/pointer"
rm "$WORK/tokenizer/tokenizer.json"
cp "$WORK/pointer" "$WORK/tokenizer/tokenizer.json"
fails_with "a Git LFS pointer in the place of a tokenizer" "tokenizer.json: a Git LFS pointer" run --model "$WORK/tokenizer" x

# --- output
fails_with "an output directory that is not there" "/nonexistent/out" score --ids-file "$ids" --out /nonexistent/out.safetensors
fails_with "an output that is a directory" "$WORK is a directory" score --ids-file "$ids" --out "$WORK"
fails_with "a CSV directory that is not there" "/nonexistent/x.csv" bench --csv /nonexistent/x.csv
mkdir "$WORK/outputs"
fails_with "a failed score names its cause" "8192" score --ids-file "$WORK/bad.json" --out "$WORK/outputs/logits.safetensors"
check "a failed score leaves no file behind" test -z "$(ls -A "$WORK/outputs")"
if [ -w /dev/full ]; then
    STATUS=0
    "$KAKEYA" info >/dev/full 2>"$WORK/err" || STATUS=$?
    : >"$WORK/out"
    check "a full disk on stdout is status 1" test "$STATUS" -eq 1
    check "a full disk on stdout is named" grep -q "^kakeya info: standard output: No space left" "$WORK/err"
else
    skip "a full disk on stdout" "no /dev/full here"
fi

fails_with "a precision that only GPUs have" "precision fp8 needs --backend cuda, this is backend cpu" \
    run --backend cpu --precision fp8 x

# --- memory
fails_with "not enough memory for the engine" "memory" run --memory-limit 1K x
fails_with "not enough memory for the session" "memory" run --memory-limit 24M --prompt-file "$EXAMPLES/needle-60.txt"
fails_with "not enough memory for scoring" "out of memory" score --text-file "$EXAMPLES/needle-60.txt" \
    --out "$WORK/outputs/l" --memory-limit 48M
check "a lack of memory leaves no file behind" test -z "$(ls -A "$WORK/outputs")"
fails_with "not enough memory for synthetic weights" "memory" run --synthetic 26b-a4b --memory-limit 1G --ids-file "$ids"

finish
