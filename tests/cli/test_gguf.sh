# Models in GGUF files: as --model and as the operand, under every verb that takes a model, and what is refused.
. tests/cli/common.sh

QUANT=$PWD/tests/data/golden/quant
micro=$WORK/micro.gguf
cp "$QUANT/micro.gguf" "$micro"

works "a GGUF file is a model" run --model "$micro" --max-tokens 4 --json hello
jq -c .token_ids "$WORK/out" >"$WORK/expected"
works "it may be the operand" run "$micro" --max-tokens 4 --json hello
check "which gives the same tokens" test "$(jq -c .token_ids "$WORK/out")" = "$(cat "$WORK/expected")"
cp "$micro" "$WORK/sha256-0123"
works "its name does not matter" run --model "$WORK/sha256-0123" --max-tokens 4 --json hello
check "which gives the same tokens again" test "$(jq -c .token_ids "$WORK/out")" = "$(cat "$WORK/expected")"

works "info describes it" info "$micro" --json
json_holds "by its keys" '.architecture | .vocab == 293 and .layers == 2 and .experts == 4 and .max_context == 64'
STATUS=0
printf 'hello' | "$KAKEYA" tokenize --model "$micro" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
check "tokenize uses its vocabulary" grep -q '^279' "$WORK/out"
printf '[2, 279, 284]' >"$WORK/ids"
works "score reads it" score --model "$micro" --ids-file "$WORK/ids" --json
works "bench reads it" bench --model "$micro" --context-frontiers 0 --prompt-tokens 8 --decode-tokens 4 --verify-rows 1,2 --repeats 1 --json
json_holds "and says that it computes in int8" '.precision == "int8"'

# the same tokens however they are computed
works "one token after the other" run "$micro" --max-tokens 16 --mode ar --threads 1 --json 'hello world hello'
jq -c .token_ids "$WORK/out" >"$WORK/expected"
for how in '--mode ngram' '--mode auto --threads 2'; do
    # shellcheck disable=SC2086 # several options
    run run "$micro" --max-tokens 16 $how --json 'hello world hello'
    check "$how gives the same tokens" test "$(jq -c .token_ids "$WORK/out")" = "$(cat "$WORK/expected")"
done

fails_with "a file that is not there is said to be so" 'none.gguf' run --model "$WORK/none.gguf" hello
head -c 50000 "$micro" >"$WORK/cut.gguf"
fails_with "a truncated file is refused with both sizes" 'has 50000 bytes, but tensor .* ends at byte 66144' run "$WORK/cut.gguf" hello
cp "$QUANT/container-v3.gguf" "$WORK/test.gguf"
fails_with "another architecture is refused by name" 'general.architecture is test' run "$WORK/test.gguf" hello
cp "$QUANT/split-00001-of-00002.gguf" "$WORK/m-00001-of-00002.gguf"
fails_with "a missing part is named" 'm-00002-of-00002.gguf: part 2 of 2' info "$WORK/m-00001-of-00002.gguf"
mkdir "$WORK/elsewhere"
cp "$micro" "$WORK/elsewhere/model.safetensors"
printf '{}' >"$WORK/elsewhere/config.json"
fails_with "a GGUF file is no shard" 'a GGUF file, which is not read in this place|model_type' run --model "$WORK/elsewhere" hello
fails_with "a model is no drafter" 'architecture is gemma4, but only DFlash drafters' run --drafter "$micro" hello

# A mapped file that becomes shorter ends the program with a line. The pipe is opened behind the beginning of the program.
mkfifo "$WORK/text"
"$KAKEYA" tokenize --model "$micro" --text-file "$WORK/text" >"$WORK/out" 2>"$WORK/err" &
reader=$!
exec 3>"$WORK/text"
kill -BUS "$reader"
STATUS=0
wait "$reader" || STATUS=$?
exec 3>&-
check "bytes that are gone are a failure" test "$STATUS" -eq 1
check "which is said in one line" test "$(grep -c 'cut off or rewritten while it was in use' "$WORK/err")" -eq 1

finish
