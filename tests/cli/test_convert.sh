# kakeya convert: what it makes is a model under other verbs, with the same ids; the same bytes for any number of threads; nothing half
# made is left behind. For whole runs only; test_convert stands in.
. tests/cli/common.sh

demo=$MODELS/demo
ids() { "$KAKEYA" tokenize --model "$1" --text-file README.md --json 2>&1 | jq -c .ids; }

for target in q4_0 q8_0 q4_k_m affine4; do
    out=$WORK/$target
    works "to $target" convert "$demo" "$out" --to "$target"
    check "says how large it is" grep -q 'tensors, .* bits per weight' "$WORK/out"
    check "$target has the ids of the model" test "$(ids "$out")" = "$(ids "$demo")"
    works "$target is a model" run --model "$out" --drafter none --f-theta none --max-tokens 4 --json 'def f('
done
works "info describes it" info --model "$WORK/q4_0" --json
works "with one thread" convert "$demo" "$WORK/one" --to q4_k_m --threads 1
check "the bytes are the same" cmp "$WORK/one" "$WORK/q4_k_m"
works "weights that are on no grid" convert "$demo" "$WORK/grid" --to q4_0 --grid
check "are said to be so" grep -q '0.00 % of the Q4_0 blocks' "$WORK/out"

fails_with "what is there is not overwritten" 'already exists' convert "$demo" "$WORK/one" --to q8_0
fails_with "what is quantised is not quantised again" 'quantised already' convert "$WORK/q4_0" "$WORK/again" --to q8_0
fails_with "a model that is not there" 'nowhere' convert "$WORK/nowhere" "$WORK/again" --to q8_0
fails_with "a folder that is not there" 'no/folder' convert "$demo" "$WORK/no/folder" --to q8_0
fails_with "a grid for other formats" 'q4_0' convert "$demo" "$WORK/again" --to q8_0 --grid
works "single tensors are chosen" convert "$demo" "$WORK/chosen" --to q4_0 --head q8_0 --attn q5_1 --keep 'blk.0.attn_q=bf16'
works "and info tells" info --model "$WORK/chosen" --stored --json
json_holds "the head in Q8_0, attention in Q5_1 and BF16" \
    '[.stored[] | select(.format == "Q8_0" or .format == "Q5_1" or .format == "BF16") | .format] | unique | length == 3'
fails_with "a format that is none" '"q9" is none of f32, f16' convert "$demo" "$WORK/again" --to q4_0 --head q9
fails_with "an expression that is none" 'regular expression' convert "$demo" "$WORK/again" --to q4_0 --keep '(=q8_0'
fails_with "an expression that no tensor meets" '"blk.99.=q8_0" matches no quantised tensor' \
    convert "$demo" "$WORK/again" --to q4_0 --keep 'blk.99.=q8_0'
fails_with "importances that are not there" 'nowhere' convert "$demo" "$WORK/again" --to q4_0 --importance "$WORK/nowhere"
fails_with "a model for importances" 'holds no importances' convert "$demo" "$WORK/again" --to q4_0 --importance "$WORK/q8_0"
fails_with "importances of an older form" 'llama-imatrix' convert "$demo" "$WORK/again" --to q4_0 --importance README.md
run convert "$demo" "$WORK/again"
check "--to is needed" test "$STATUS" = 2
run convert "$demo" --to q8_0
check "a name for the output is needed" test "$STATUS" = 2
run convert "$demo" "$WORK/again" --to q9
check "another format is wrong use" test "$STATUS" = 2

# a file may not grow beyond a megabyte: as on a full disk
mkdir "$WORK/full"
for target in q8_0 affine4; do
    STATUS=0
    (ulimit -f 1024 && "$KAKEYA" convert "$demo" "$WORK/full/out" --to "$target") >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
    check "$target that finds no room fails" test "$STATUS" != 0
    check "and leaves nothing" test -z "$(ls "$WORK/full")"
done

# what a file holds
works "info tells what a file holds" info --model "$WORK/q4_0" --stored --json
json_holds "by class and format" '.stored | map(select(.class == "experts" and .format == "Q4_0")) | .[0].bytes > 0'
json_holds "and what decoding reads" '(.stored | map(.bytes_per_token) | add) < (.stored | map(.bytes) | add)'
json_holds "and which kernels multiply it" '.stored | map(select(.format == "Q4_0")) | all(.cpu_kernels | startswith("int8, "))'
works "and checks it" info --model "$WORK/q4_0" --check
check "which it says" grep -q 'all scales and values are finite' "$WORK/out"
fails_with "synthetic models have no files" 'no files' info --synthetic e2b --check --json

# tiles beside a file: mapped, the same answers, and refused when the file is another one
answer() { "$KAKEYA" run --model "$1" --drafter none --f-theta none --max-tokens 24 --json 'def f(' 2>/dev/null | jq -c .text; }
for target in q4_0 q4_k_m; do
    without=$(answer "$WORK/$target")
    works "tiles of $target" convert "$WORK/$target" "$WORK/$target.tiles" --to tiles
    works "a model with tiles" run --model "$WORK/$target" --drafter none --f-theta none --max-tokens 1 'def f('
    check "says that they are used" grep -q "quantised weights are those of .*$target.tiles" "$WORK/err"
    check "they change no answer" test "$(answer "$WORK/$target")" = "$without"
done
works "tiles under another name" convert "$WORK/q8_0" "$WORK/elsewhere" --to tiles
check "are said to be unused" grep -q 'once it is called FILE.gguf.tiles' "$WORK/out"
mv "$WORK/elsewhere" "$WORK/q4_0.tiles"
fails_with "tiles of other weights" 'made from other weights' run --model "$WORK/q4_0" --drafter none --f-theta none --max-tokens 1 'a'
rm "$WORK/q4_0.tiles"
STATUS=0
(ulimit -f 1024 && "$KAKEYA" convert "$WORK/q4_0" "$WORK/full/out" --to tiles) >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
check "tiles that find no room fail" test "$STATUS" != 0
check "and leave nothing" test -z "$(ls "$WORK/full")"
fails_with "tiles of plain weights" 'the model has no weights for tiles' convert "$demo" "$WORK/again" --to tiles
works "info reads a quantised directory" info --model "$WORK/affine4"
check "and names its form" grep -q 'stored as affine4' "$WORK/out"
without=$(answer "$WORK/affine4")
works "tiles of a directory" convert "$WORK/affine4" "$WORK/affine4/model.tiles" --to tiles
works "lie in it" run --model "$WORK/affine4" --drafter none --f-theta none --max-tokens 1 'def f('
check "and are used" grep -q "quantised weights are those of .*affine4/model.tiles" "$WORK/err"
check "and change no answer" test "$(answer "$WORK/affine4")" = "$without"

# the tokenizer.json beside a GGUF file wins
mkdir "$WORK/beside"
cp "$WORK/q8_0" "$WORK/beside/model.gguf"
jq '.model.merges |= .[0:100]' "$demo/tokenizer.json" >"$WORK/beside/tokenizer.json"
check "a tokenizer.json beside a file wins" test "$(ids "$WORK/beside/model.gguf")" = "$(ids "$WORK/beside")"
check "which had other ids" test "$(ids "$WORK/beside")" != "$(ids "$demo")"
jq '.model.vocab["another"] = 8192' "$demo/tokenizer.json" >"$WORK/beside/tokenizer.json"
fails_with "one of another model is refused" '8193 tokens, but .*model.gguf beside it 8192' run --model "$WORK/beside/model.gguf" hello

# another reader, where it is installed
if python3 -c 'import gguf' 2>/dev/null; then
    python3 - "$WORK/q4_k_m" >"$WORK/out" 2>"$WORK/err" <<'PYTHON' && STATUS=0 || STATUS=$?
import sys, numpy, gguf
reader = gguf.GGUFReader(sys.argv[1])
assert len(reader.tensors) == 265, len(reader.tensors)
for tensor in reader.tensors:
    assert numpy.isfinite(gguf.dequantize(tensor.data, tensor.tensor_type)).all(), tensor.name
assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 8192
assert len(reader.fields["tokenizer.ggml.merges"].contents()) == 7806
PYTHON
    check "the gguf package for Python reads it" test "$STATUS" = 0
else
    skip "the gguf package for Python reads it" "not installed (pip install gguf==0.19.0)"
fi

finish
