# kakeya run: answers, JSON, modes, prompts from everywhere, broken pipes, environment.
. tests/cli/common.sh

needle=$EXAMPLES/needle-60.txt

works "the bundled needle prompt is answered" run --prompt-file "$needle"
check "the answer holds the code" grep -q '^The secret code is IOTA-8961\.$' "$WORK/out"
check "the answer is all that stdout holds" test "$(wc -l <"$WORK/out")" -eq 1
check "figures go to stderr in one line" test "$(wc -l <"$WORK/err")" -eq 1
check "figures name the prompt, speed, tokens per forward and K/V" \
    grep -q -E '^.1,[56][0-9][0-9] prompt tokens at [0-9]+/s, .* tokens at [0-9]+/s, .* tokens per forward, K/V ' "$WORK/err"
check "no escape sequences where there is no terminal" test -z "$(grep -l "$(printf '\033')" "$WORK/out" "$WORK/err")"

# What follows asks a prompt of 8 lines, most of which are evicted, too.
needle=$WORK/needle
sed -n '1,3p; 31p; 60,$p' "$EXAMPLES/needle-60.txt" >"$needle"
works "JSON is printed" run --prompt-file "$needle" --json
json_holds "JSON has the contract's fields and types" '
    (.text | type) == "string" and (.token_ids | type) == "array" and (.token_ids | all(type == "number")) and
    .prompt_tokens > 200 and .completion_tokens == (.token_ids | length) and .finish_reason == "stop" and
    (.stats | .mode == "auto" and .attention == "restored" and (.backend | startswith("cpu/")) and
        .prefill_tokens_per_second > 0 and .decode_tokens_per_second > 0 and .verifier_forwards > 0 and
        .tokens_per_forward > 0 and .drafted_tokens >= .accepted_tokens and .accepted_tokens >= 0 and
        (.kv_bytes | .total == .full + .sliding + .latent + .draft and .full > 0))'
json_holds "JSON holds the answer" '.text == "The secret code is IOTA-8961."'
check "with --json stderr is silent" test ! -s "$WORK/err"
jq -c .token_ids "$WORK/out" >"$WORK/expected"

same_tokens() { # description, arguments...
    description=$1
    shift
    run "$@" --json
    if [ "$STATUS" -eq 0 ] && [ "$(jq -c .token_ids "$WORK/out")" = "$(cat "$WORK/expected")" ]; then
        pass "$description"
    else
        fail "$description" "expected $(cat "$WORK/expected")
$(shown)"
    fi
}
modes="ar speculative ngram auto"
short_sweeps && modes="ar speculative" # the first run was auto
for mode in $modes; do
    same_tokens "mode $mode gives the same tokens" run --prompt-file "$needle" --mode $mode
    json_holds "mode $mode is reported" '.stats.mode == $mode' --arg mode $mode
done
same_tokens "one thread gives the same tokens" run --prompt-file "$needle" --threads 1
json_holds "restored attention, the default for prompts, holds latents" '.stats.kv_bytes | .latent > 0'
same_tokens "native attention answers alike" run --prompt-file "$needle" --attention native
json_holds "the policy is reported" '.stats | .attention == "native" and .kv_bytes.latent == 0'
same_tokens "no drafter gives the same tokens" run --prompt-file "$needle" --drafter none
json_holds "an f_theta that reads hidden states restores without a drafter" '.stats | .attention == "restored" and .kv_bytes.latent > 0'
json_holds "without a drafter nothing is drafted" '.stats.kv_bytes.draft == 0'
ln -s "$PWD/models/demo" "$WORK/reads"
ln -s "$PWD/tests/data/golden/demo-f-theta-regression" "$WORK/reads-f-theta"
same_tokens "nor where the f_theta reads a drafter" run --model "$WORK/reads" --prompt-file "$needle" --drafter none
json_holds "without a drafter attention is native then" '.stats | .attention == "native" and .kv_bytes.latent == 0'

# prompts from everywhere give the same prompt
STATUS=0
"$KAKEYA" run --json <"$needle" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
json_holds "a prompt can be piped" '.text == "The secret code is IOTA-8961."'
STATUS=0
"$KAKEYA" run --json - <"$needle" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
json_holds "- is standard input" '.text == "The secret code is IOTA-8961."'
works "a prompt can be an argument" run --json "$(cat "$needle")"
json_holds "an argument is the same prompt" '.text == "The secret code is IOTA-8961."'

code='def add(a, b):'
works "raw text is continued" run --raw --max-tokens 12 --json "$code"
json_holds "max-tokens ends the answer" '.completion_tokens == 12 and .finish_reason == "length"'
json_holds "raw text is continued under native attention" '.stats.attention == "native"'
jq -c .token_ids "$WORK/out" >"$WORK/expected"
text=$(jq -r .text "$WORK/out")
printf '%s' "$code" >"$WORK/code.txt"
works "the raw prompt's ids" tokenize --text-file "$WORK/code.txt" --json
jq -c .ids "$WORK/out" >"$WORK/ids.json"
json_holds "raw text begins with <bos>" '.ids[0] == 2 and .tokens[0] == "<bos>"'
same_tokens "ids give the same tokens as their text" run --ids-file "$WORK/ids.json" --max-tokens 12
STATUS=0
"$KAKEYA" run --json --max-tokens 12 --ids-file - <"$WORK/ids.json" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
json_holds "ids can be piped" '.token_ids == $expected' --argjson expected "$(cat "$WORK/expected")"
works "the answer's ids decode" tokenize --decode --json --ids-file "$WORK/expected"
json_holds "to the answer's text" '.text == $text' --arg text "$text"

# sampling
works "sampling works" run --raw --max-tokens 16 --temperature 1 --top-k 40 --top-p 0.95 --min-p 0.01 \
    --repetition-penalty 1.1 --seed 7 --json "$code"
jq -c .token_ids "$WORK/out" >"$WORK/expected"
modes="ar speculative ngram"
short_sweeps && modes="ar ngram"
for mode in $modes; do
    same_tokens "the same seed gives the same tokens in mode $mode" run --raw --max-tokens 16 --temperature 1 --top-k 40 \
        --top-p 0.95 --min-p 0.01 --repetition-penalty 1.1 --seed 7 --mode $mode "$code"
done
works "another seed works" run --raw --max-tokens 16 --temperature 1 --top-k 40 --top-p 0.95 --min-p 0.01 \
    --repetition-penalty 1.1 --seed 8 --json "$code"
check "another seed gives other tokens" test "$(jq -c .token_ids "$WORK/out")" != "$(cat "$WORK/expected")"

works "a stop text ends the answer" run --prompt-file "$needle" --stop 'IOTA' --stop 'never' --json
json_holds "before itself" '.text == "The secret code is " and .finish_reason == "stop"'
works "stop tokens can be ignored" run --prompt-file "$needle" --ignore-eos --max-tokens 40 --json
json_holds "the answer then goes on to its length" '.completion_tokens == 40 and .finish_reason == "length"'
works "a system message works" run --system 'Answer briefly.' --max-tokens 4 --json "$code"
json_holds "and is part of the prompt" '.prompt_tokens > 12'

# a model without tokenizer
tiny=tests/data/golden/gemma4-tiny-moe
echo '[2, 5, 7, 9]' >"$WORK/ids.json"
works "a model without tokenizer continues ids" run --model "$tiny" --ids-file "$WORK/ids.json" --max-tokens 5 --json
json_holds "its text is null" '.text == null and (.token_ids | length) == 5'
ids=$(jq -r '.token_ids | map(tostring) | join(" ")' "$WORK/out")
works "without --json its answer is ids" run --model "$tiny" --ids-file "$WORK/ids.json" --max-tokens 5
check "printed with spaces between" test "$(cat "$WORK/out")" = "$ids"
works "K/V can be kept in 4 bits" run --model "$tiny" --ids-file "$WORK/ids.json" --max-tokens 5 --kv-format q4
check "and a line says that this is experimental" grep -q '^kakeya run: note: --kv-format q4 is experimental' "$WORK/err"

# tensors that are not text are skipped, and said so once
mkdir "$WORK/vision"
cp "$tiny/config.json" "$WORK/vision/"
entry='"model.vision_tower.patch.weight":{"dtype":"F32","shape":[1],"data_offsets":[END,STOP]},'
old=$(od -A n -t u8 -N 8 "$tiny/model.safetensors" | tr -d ' ')
end=$(($(wc -c <"$tiny/model.safetensors") - 8 - old))
entry=$(printf '%s' "$entry" | sed "s/END/$end/; s/STOP/$((end + 4))/")
new=$((old + ${#entry}))
{
    printf "\\$(printf %o $((new % 256)))\\$(printf %o $((new / 256 % 256)))\\$(printf %o $((new / 65536)))\\0\\0\\0\\0\\0"
    printf '{%s' "$entry"
    tail -c +10 "$tiny/model.safetensors"
    printf '\0\0\0\0'
} >"$WORK/vision/model.safetensors"
works "a checkpoint with a vision tensor works" run --model "$WORK/vision" --ids-file "$WORK/ids.json" --max-tokens 5
check "its text part answers the same" test "$(cat "$WORK/out")" = "$ids"
check "one note says what was skipped" grep -q '^kakeya run: note: 1 vision and audio tensors skipped' "$WORK/err"

# the model comes from the environment, too
STATUS=0
KAKEYA_MODEL=$tiny "$KAKEYA" run --ids-file "$WORK/ids.json" --max-tokens 5 >"$WORK/out" 2>"$WORK/err" || STATUS=$?
check "\$KAKEYA_MODEL names the model" test "$(cat "$WORK/out")" = "$ids"
STATUS=0
KAKEYA_MODEL=/nonexistent "$KAKEYA" run --model "$tiny" --ids-file "$WORK/ids.json" --max-tokens 5 >"$WORK/out" 2>"$WORK/err" ||
    STATUS=$?
check "--model wins over it" test "$(cat "$WORK/out")" = "$ids"
mkdir -p "$WORK/hub/models--org--tiny/snapshots/0123" "$WORK/hub/models--org--tiny/refs"
printf '0123' >"$WORK/hub/models--org--tiny/refs/main"
cp "$tiny/config.json" "$tiny/model.safetensors" "$WORK/hub/models--org--tiny/snapshots/0123/"
STATUS=0
HF_HUB_CACHE=$WORK/hub "$KAKEYA" run --model org/tiny --ids-file "$WORK/ids.json" --max-tokens 5 >"$WORK/out" 2>"$WORK/err" ||
    STATUS=$?
check "a name is found in the Hugging Face cache" test "$(cat "$WORK/out")" = "$ids"

# a reader that leaves early is no error
"$KAKEYA" run --raw --ignore-eos --max-tokens 4000 "$code" 2>"$WORK/err" | head -c 10 >"$WORK/out"
check "a reader may leave early" test "$(wc -c <"$WORK/out")" -eq 10
check "and nobody complains" sh -c "! grep -q -i -E 'pipe|error' '$WORK/err'"

# a small stack: threads of the library have their own size, and verbs that have too little run on such a thread
printf '[2, 10, 20, 30, 40]' >"$WORK/few.json"
for verb in 'run --raw --max-tokens 4 --temperature 1 x' 'run --raw --attention restored --kv-format q4 --max-tokens 4 x' \
    "score --ids-file $WORK/few.json" "tokenize --text-file $WORK/few.json" info; do
    STATUS=0
    # shellcheck disable=SC2086,SC3045 # several words; dash has ulimit -s
    (ulimit -s 64 && exec "$KAKEYA" $verb) >"$WORK/out" 2>"$WORK/err" || STATUS=$?
    check "64 kB of stack are enough for ${verb%% *}" test "$STATUS" -eq 0
done

# a mapped file that becomes shorter ends the program with a line that names it; until then it answers
cp -R "$(dirname "$0")/../../models/demo" "$WORK/cut"
chmod -R u+w "$WORK/cut"
mkfifo "$WORK/answer"
"$KAKEYA" run --raw --max-tokens 8000 --ignore-eos --model "$WORK/cut" --backend cpu x >"$WORK/answer" 2>"$WORK/err" &
reader=$!
exec 3<"$WORK/answer"
dd bs=1 count=1 <&3 >/dev/null 2>&1
: >"$WORK/cut/model-00002-of-00003.safetensors"
cat <&3 >/dev/null
exec 3<&-
STATUS=0
wait "$reader" || STATUS=$?
check "bytes that are gone are a failure" test "$STATUS" -eq 1
check "which is said in one line that names the file" \
    test "$(grep -c 'cut/model-00002-of-00003.safetensors: bytes are gone' "$WORK/err")" -eq 1

# Ctrl-C ends the answer; what there is stays, with its figures
if has_terminals; then
    "$BUILD/tools/pty" "$KAKEYA" run --raw --ignore-eos 'def add(a, b):' <<'SCRIPT' >"$WORK/out" 2>"$WORK/err" || true
output 60
interrupt
expect tokens per forward
exit 0
SCRIPT
    check "Ctrl-C ends an answer in good order" test ! -s "$WORK/err"
else
    skip "Ctrl-C ends an answer in good order" "no pseudo-terminals here"
fi

finish
