# tokenize, score, explain, info, bench: what they print, and that it is right where a reference says so.
. tests/cli/common.sh

tiny=tests/data/golden/gemma4-tiny-moe

# --- tokenize
printf 'Hello world<bos>' >"$WORK/text.txt"
works "tokenize works" tokenize --text-file "$WORK/text.txt" --json
json_holds "with <bos> in front, special tokens in the text as ids" \
    '.ids == [2,7634,1353,846,2] and (.tokens | length) == 5 and .tokens[0] == "<bos>"'
works "tokenize --no-special-tokens works" tokenize --text-file "$WORK/text.txt" --no-special-tokens --json
json_holds "without <bos> in front" '.ids == [7634,1353,846,2]'
works "tokenize prints lines" tokenize --text-file "$WORK/text.txt"
check "one per token" test "$(wc -l <"$WORK/out")" -eq 5
echo '[2,7634,1353,846]' >"$WORK/ids.json"
works "tokenize --decode works" tokenize --decode --ids-file "$WORK/ids.json" --json
json_holds "ids become text" '.text == "<bos>Hello world"'
works "tokenize --decode --no-special-tokens works" tokenize --decode --no-special-tokens --ids-file "$WORK/ids.json"
check "special tokens are left out" test "$(cat "$WORK/out")" = "Hello world"
: >"$WORK/empty.txt"
works "an empty text has <bos> alone" tokenize --text-file "$WORK/empty.txt" --json
json_holds "and nothing else" '.ids == [2]'

# every string of the reference, there and back; a short run takes every other one, test_tokenizer has all
cases=tests/data/text/tokenizer_golden.json
short_sweeps && jq '[range(0; length; 2) as $i | .[$i]]' "$cases" >"$WORK/some.json" && cases=$WORK/some.json
jq -r '.[] | (.text | @base64), (.ids_no_special | tojson)' "$cases" >"$WORK/cases" # two lines a case: jq starts slowly
: >"$WORK/found"
while read -r text && read -r plain_ids; do
    printf '%s' "$text" | base64 -d >"$WORK/text.txt"
    printf '%s' "$plain_ids" >"$WORK/ids.json"
    for arguments in "--text-file $WORK/text.txt" "--no-special-tokens --text-file $WORK/text.txt" "--decode --ids-file $WORK/ids.json"; do
        # shellcheck disable=SC2086
        run tokenize $arguments --json
        cat "$WORK/out" >>"$WORK/found"
    done
done <"$WORK/cases"
cp "$WORK/found" "$WORK/out"
check "every string of the reference" jq -e -s --slurpfile cases "$cases" '
    . as $found | ($cases[0] | length) as $n | ($found | length) == 3 * $n and $n > 8 and
    all(range($n); $cases[0][.] as $case | $found[3 * .].ids == $case.ids and
        $found[3 * . + 1].ids == $case.ids_no_special and $found[3 * . + 2].text == $case.decoded)' "$WORK/found"

# --- score
echo '[2,436,418,297,377,457,289,387,352]' >"$WORK/ids.json"
works "score works" score --ids-file "$WORK/ids.json" --json
json_holds "every token but the first is scored" '.tokens == 8 and (.token_nll | length) == 8'
json_holds "nll is their sum, perplexity its exponential mean" \
    '((.token_nll | add) - .nll | fabs) < 1e-3 and ((.nll / .tokens | exp) - .perplexity | fabs) < 1e-6 * .perplexity'
works "score prints a line" score --ids-file "$WORK/ids.json"
check "with the perplexity" grep -q '^8 tokens, .* perplexity ' "$WORK/out"
works "score --prompt-length works" score --ids-file "$WORK/ids.json" --prompt-length 6 --json
json_holds "tokens behind the prompt are scored" '.tokens == 3'
works "a prompt may be everything" score --ids-file "$WORK/ids.json" --prompt-length 9 --json
json_holds "nothing is left to score" '.tokens == 0 and .nll == 0 and .perplexity == null'
works "score --out works" score --ids-file "$WORK/ids.json" --out "$WORK/logits.safetensors" --hidden-states --json
header_bytes=$(od -A n -t u8 -N 8 "$WORK/logits.safetensors" | tr -d ' ')
tail -c +9 "$WORK/logits.safetensors" | head -c "$header_bytes" >"$WORK/header.json"
check "the file names logits and hidden states with their shapes" jq -e '
    .logits.dtype == "F32" and .logits.shape == [9, 8192] and
    .hidden_states.dtype == "F32" and .hidden_states.shape == [13, 9, 256]' "$WORK/header.json"
check "the file has their bytes and no more" \
    test "$(wc -c <"$WORK/logits.safetensors")" -eq $((8 + header_bytes + 4 * (9 * 8192 + 13 * 9 * 256)))
works "score overwrites" score --ids-file "$WORK/ids.json" --out "$WORK/logits.safetensors"
check "with logits alone" test "$(wc -c <"$WORK/logits.safetensors")" -lt $((9000 + 4 * 9 * 8192))
works "score --against works" score --ids-file "$WORK/ids.json" --against "$WORK/logits.safetensors" --json
json_holds "a model is not far from itself" '.kl >= -1e-6 and .kl < 1e-6 and .top1 == 1 and (.token_kl | length) == 8'
json_holds "whose perplexity is its own" '(.against_perplexity - .perplexity | fabs) < 1e-6'
works "score --against prints a line" \
    score --ids-file "$WORK/ids.json" --attention sink-window --against "$WORK/logits.safetensors"
check "with the divergence" grep -q 'mean KL -\{0,1\}0\.0000' "$WORK/out"
echo '[2,436,418]' >"$WORK/ids3.json"
fails_with "a reference of other tokens is refused" 'the logits are \[9, ' \
    score --ids-file "$WORK/ids3.json" --against "$WORK/logits.safetensors"
head -c 1500 examples/code/events.py >"$WORK/text.py"
works "text can be scored" score --text-file "$WORK/text.py" --context 8192 --json
json_holds "all of it" '.tokens > 100 and .perplexity > 1'

# --- explain
works "explain works" explain
check "explain says what the list is for" grep -q '^1 decode row after 1024 tokens' "$WORK/out"
check "explain shows a launch of two operations" grep -q 'EXPERT_PRODUCTS .*+side by side' "$WORK/out"
check "explain ends with the sum" grep -q '^ *sum ' "$WORK/out"
works "explain --json works" explain --rows 8 --prompt 100 --position 500 --read-gb 10 --gflops 100 --json
json_holds "operations have what scripts read" '
    .backend == "cpu" and .layers == 12 and .rows == 8 and .prompt_rows == 100 and .position == 500 and
    .rates == {"read_bytes_per_second": 10000000000, "flops_per_second": 100000000000, "measured": false} and
    (.operations | all(has("operation") and has("layer") and has("kernel") and .rows <= 108 and .bytes >= 0 and
        (.reads + .writes | length) > 0 and (.weights | type) == "array"))'
json_holds "indices and launches count up" '
    ([.operations[].index] == [range(.operations | length)]) and
    ([.operations[].launch] | unique) == [range(.launches)]'
json_holds "bounds are the longer of reading and computing" '
    .operations | all(([.bytes / 1e4, .flops / 1e5] | max) - .bound_microseconds | . < 0.001 and . > -0.001)'
json_holds "sums add up" '
    ([.operations[].bytes] | add) - .total.bytes | . < 1 and . > -1'
json_holds "experts are fused, all layers attend" '
    ([.operations[] | select(.fused)] | length) == 4 * .layers and
    ([.operations[] | select(.operation == "ATTEND") | .layer] == [range(12)])'
json_holds "row programs are spelt out" '
    [.operations[] | select(.steps)][0].steps == ["load", "norm"] and ([.operations[] | select(.steps)] | length) == 25'
for shape in 26b-a4b e2b 31b; do
    works "explain --synthetic $shape works" explain --synthetic $shape --read-gb 100 --gflops 1000 --json
    jq .total.bytes "$WORK/out" >"$WORK/list"
    works "info --synthetic $shape has the bytes of a token" info --synthetic $shape --json
    check "explain $shape reads what info says, and K/V, less what the head's copy saves" jq -e --slurpfile list "$WORK/list" '
        $list[0] / .bytes_per_token.bf16 | . > 0.75 and . < 1.1' "$WORK/out"
done
works "a long prompt is cut" explain --prompt 4000 --read-gb 10 --gflops 100 --json
json_holds "what a forward takes of a prompt is told" '.prompt == 4000 and .prompt_rows == 512 and .rows == 0'
fails_with "a model that is not there" "nowhere" explain --model nowhere
fails_with "a position beyond the context" "--position 9999999: the model's context ends" explain --position 9999999 --read-gb 1 --gflops 1
fails_with "a backend that this build has not" "walk" explain --backend walk
fails_with "a precision that this backend has not" "precision fp8 needs --backend cuda" explain --precision fp8
fails_with "restored attention is refused" "--attention restored" explain --attention restored

# --- info
works "info works" info --context 7300 --json
json_holds "info describes the demo" '
    .architecture.layers == 12 and .architecture.full_attention_layers == 2 and .architecture.experts == 16 and
    .architecture.vocab == 8192 and .parameters.total > .parameters.active and .drafter.block_size == 8 and
    .f_theta.rank == 256 and .context == 7300'
json_holds "every policy and K/V format is sized" '[.sessions[] | .attention + .restore_layers + .kv_format] | unique | length == 16'
json_holds "sizes add up" '.sessions | all(.kv_bytes | .total == .full + .sliding + .latent + .draft)'
json_holds "restored holds less than native" '
    [.sessions[] | select(.kv_format == "bf16")] |
    (map(select(.attention == "restored" and .restore_layers == "sliding"))[0].kv_bytes.total) <
    (map(select(.attention == "native"))[0].kv_bytes.total)'
native=$(jq '[.sessions[] | select(.attention == "native" and .kv_format == "bf16")][0].kv_bytes' "$WORK/out")
works "info prints text" info --context 7300
check "with the parameters" grep -q '^parameters  *18,884,812' "$WORK/out"
works "info needs no weights" info --synthetic 26b-a4b --context 62000 --json
json_holds "26B-A4B has 25.2 billion parameters, 3.8 of them active" \
    '.parameters.total / 1e9 | floor == 25'
json_holds "its K = V layers are stored once" '
    [.sessions[] | select(.attention == "native" and .kv_format == "bf16")][0].kv_bytes.full / 62000 | . > 10200 and . < 10400'
json_holds "8 bits halve what grows: under 0.55 GB for 62,000 tokens, none of it elsewhere" '
    ([.sessions[] | select(.attention == "native" and .kv_format == "bf16")][0].kv_bytes) as $bf16 |
    ([.sessions[] | select(.attention == "native" and .kv_format == "q8")][0].kv_bytes) as $q8 |
    $q8.total < 550000000 and $q8.sliding == $bf16.sliding and ($q8.full / $bf16.full | . > 0.503 and . < 0.505)'
json_holds "4 bits take 2,920 bytes a token" '
    [.sessions[] | select(.attention == "native" and .kv_format == "q4")][0].kv_bytes.full / 62000 | . > 2900 and . < 2940'
fails_with "a GPU that is asked for 32 bits" "--kv-format f32: GPUs support bf16, q8 and q4" \
    info --synthetic 26b-a4b --sessions --memory 141G --kv-format f32
shapes="31b 12b e2b e4b 26b-a4b:layers=6"
short_sweeps && shapes="e2b 26b-a4b:layers=6"
for shape in $shapes; do
    works "info --synthetic $shape works" info --synthetic $shape --json
done

works "info --devices works" info --synthetic 26b-a4b --context 62000 --devices 0,1 --json
json_holds "two devices have half of the heads, of every expert and of the head each" '
    (.devices | length) == 2 and ([.devices[].heads] | add) == .architecture.heads and
    ([.devices[].head_rows] | add) == .architecture.vocab and .devices[1].head_first == .devices[0].head_rows and
    .devices[0].expert_width == 352 and .devices[0].dense_width == 1056 and
    (.devices[0].kv_bytes * 2 - (.sessions[] | select(.attention == "native" and .kv_format == "bf16") | .kv_bytes.total) |
        . < 1000000 and . > -1000000)'
works "info --devices prints text" info --synthetic 26b-a4b --devices 0,1
check "info says what lies where" grep -q "device 1 " "$WORK/out"
fails_with "a number of devices that does not divide the heads is refused" "16 query heads" info --synthetic 26b-a4b --devices 0,1,2
fails_with "a CPU has no devices to choose" "devices '0,1': backend cpu" run --backend cpu --devices 0,1 --max-tokens 1 Hi
fails_with "devices are numbers" "not a list of numbers" info --synthetic 26b-a4b --devices 0,x

works "info --sessions works" info --sessions --memory 2G --backend cpu --context 1604 --json
json_holds "every length of the model under every policy" '
    ([.room.rows[].tokens] | unique) == [1000, 1604, 4000, 8192] and (.room.rows | length) == 16 and
    .room.memory_bytes == 2147483648 and .room.device == "cpu"'
json_holds "K/V memory as in the table of one session" '
    ([.room.rows[] | select(.tokens == 1604) | .kv_bytes]) ==
        [.sessions[] | select(.kv_format == "bf16") | .kv_bytes.total]'
json_holds "as many as fit" '
    .room as $r | $r.rows | all(.sessions > 0 and
        .sessions * (.kv_bytes + .other_bytes) + $r.weights_bytes + .workspace_bytes <= $r.memory_bytes)'
works "info --sessions takes this machine's free memory" info --sessions --backend cpu
check "and says so" grep -q -E '^sessions that fit at once into .* that this machine has free, beside 44.1 MB of weights' "$WORK/out"
works "info --sessions of a GPU that is not here" info --synthetic 26b-a4b --sessions --memory 141G --json
json_holds "the whole model is told, and there is room" '
    .room.device == "gpu" and .room.weights_bytes > 50e9 and
    ([.room.rows[] | select(.tokens == 62000 and .attention == "native")][0].sessions | . > 80 and . < 130)'
works "info --sessions where nothing fits" info --synthetic 26b-a4b --sessions --memory 24G --json
json_holds "no session" '.room.rows | all(.sessions == 0)'

images=tests/data/images
works "info --image works" info --image $images/exif-orientation-6.jpg --json
json_holds "a picture is upright" '
    $all[0].images["exif-orientation-6.jpg"] as $wanted | .format == "JPEG" and .orientation == 6 and
    .width == $wanted.width and .height == $wanted.height' --slurpfile all $images/processing.json
json_holds "and fits into every budget" '
    [.budgets[].budget] == [70, 140, 280, 560, 1120] and (.budgets | all(.tokens <= .budget and .patches == 9 * .tokens)) and
    ([.budgets[].digest] | unique | length == 5)'
"$KAKEYA" info --image - --json <$images/exif-orientation-6.jpg | jq .budgets >"$WORK/piped"
check "a picture comes through a pipe, too" test "$(jq .budgets "$WORK/out")" = "$(cat "$WORK/piped")"
works "info --image prints text" info --image $images/photo.webp
check "with the tokens of the largest budget" grep -q '^ *1120 ' "$WORK/out"
for bad in $images/bad/*; do
    fails_with "${bad##*/} is refused" "$bad: " info --image "$bad"
done
fails_with "81 million pixels are refused by their number" "9000 x 9000 pixels, but at most 64000000 are allowed" \
    info --image $images/bad/bomb-9000x9000.png
refuses "a picture is no model" "--image describes a picture" info --image $images/text.png --stored

# what info computes is what a session holds
head -n 20 "$EXAMPLES/needle-60.txt" >"$WORK/long.txt"
works "a session longer than the sliding window" run --attention native --prompt-file "$WORK/long.txt" --ignore-eos --max-tokens 1 --json
json_holds "of 256 tokens" '.prompt_tokens > 400'
tokens=$(jq '.prompt_tokens + .completion_tokens' "$WORK/out")
jq .stats.kv_bytes "$WORK/out" >"$WORK/held.json"
works "info for as many tokens" info --context "$tokens" --json
json_holds "the formula is what the allocator holds" '
    [.sessions[] | select(.attention == "native" and .kv_format == "bf16")][0].kv_bytes == $held[0]' --slurpfile held "$WORK/held.json"

# --- bench
# Every case is compared with a probe of the machine, which reads half a gigabyte: a short run has few cases and no tables.
contexts=0,64
short_sweeps && contexts=8
cases=$((5 * $(echo "$contexts" | tr ',' '\n' | wc -l)))
works "bench works" bench --context-frontiers "$contexts" --prompt-tokens 32 --decode-tokens 2 --verify-rows 1,4 --repeats 1 \
    --csv "$WORK/bench.csv" --json
json_holds "every case of every context, beside its bound" '
    (.rows | length) == $cases and ([.rows[].what] | unique) == ["decode", "draft", "prefill", "verify"] and
    (.rows | all(.seconds.median > 0 and .bytes > 0 and .share_of_bound.median > 0 and .bound_seconds.median > 0)) and
    .probe.read_bytes_per_second.median > 0 and .probe.flops_per_second.median > 0' --argjson cases "$cases"
json_holds "one row costs one, by bytes four cost more" '
    (.rows | map(select(.what == "verify" and .rows == 1)) | all(.cost == 1 and .cost_bound == 1)) and
    (.rows | map(select(.what == "verify" and .rows == 4)) | all(.cost_bound > 1))'
check "the CSV file has a header and the rows" test "$(wc -l <"$WORK/bench.csv")" -eq $((cases + 1))
if ! short_sweeps; then
    works "bench prints a table" bench --context-frontiers 0 --prompt-tokens 16 --decode-tokens 1 --verify-rows 1 --repeats 1 \
        --attention restored --drafter "$MODELS/demo-dflash"
    check "with shares of the bound" grep -q -E '^ +0  decode 1 .* % of (read bandwidth|FLOP/s)' "$WORK/out"
    works "bench measures a model without drafter" bench --model "$tiny" --context-frontiers 0 --prompt-tokens 16 \
        --decode-tokens 1 --verify-rows 1 --repeats 1 --json
    json_holds "then there is no draft row" '[.rows[].what] | index("draft") == null'
fi
fails_with "a profile needs a GPU" "--profile: backend cpu has no profile" bench --backend cpu --profile
fails_with "a context that does not fit" "--context-frontiers: 8192" bench --context-frontiers 8192

# --- bench --sessions
# A short run leaves what is measured to test_bench.
if ! short_sweeps; then
    counts=1,2,257 contexts=0,40
    works "bench --sessions works" bench --sessions "$counts" --context-frontiers "$contexts" --prompt-tokens 64 --decode-tokens 2 \
        --repeats 1 --stall-ms 1 --attention restored --csv "$WORK/sessions.csv" --json
    json_holds "every number of sessions at every context, alone and beside a prompt" '
        [.rows[] | [.context, .sessions, .what]] == [$contexts[] as $c | [$c, 0, "prompt"],
            ($counts[] as $n | [$c, $n, "decode"], [$c, $n, "beside_prompt"])]' \
        --argjson contexts "[$contexts]" --argjson counts "[$counts]"
    json_holds "each beside its bound" '
        .rows | all(.step_seconds.median > 0 and .longest_step_seconds > 0 and .bytes > 0 and .share_of_bound.median > 0)'
    json_holds "speeds of what is decoded and of the prompt" '
        (.rows | map(select(.what == "decode")) | all(.tokens_per_second > 0 and .against_one_session > 0 and .prompt_rows == 0)) and
        (.rows | map(select(.what == "beside_prompt")) |
            all(.tokens_per_second > 0 and .prompt_against_alone > 0 and .prompt_rows == 32 and .steps == 2)) and
        (.rows | map(select(.what == "prompt")) | all(.prompt_tokens_per_second > 0 and .tokens_per_second == null))'
    json_holds "257 sessions take two forwards" \
        '.rows | map(select(.what == "decode" and .sessions == 257)) | all(.forwards == 2 * .steps)'
    check "the CSV file has a header and the rows" test "$(wc -l <"$WORK/sessions.csv")" -eq $((1 + $(jq '.rows | length' "$WORK/out")))
    works "bench --sessions prints a table" bench --sessions 2 --context-frontiers 8 --prompt-tokens 16 --decode-tokens 1 \
        --repeats 1 --model "$tiny" --drafter none
    check "with tokens per second and the bound" grep -q -E '^ +8 +2  decode .* % of (read bandwidth|FLOP/s)' "$WORK/out"
fi
fails_with "sessions that do not fit" "1000 sessions of 4000 tokens .* need [0-9]+ bytes of K/V memory, but only [0-9]+ are avail" \
    bench --sessions 1,1000 --context-frontiers 4000 --memory-limit 1G

# --- bench --requests
works "bench --requests works" bench --requests 6 --prompt-tokens 16 --answer-tokens 3 --repeats 1 --model "$tiny" --drafter none --json
json_holds "all tokens, and when they came" '
    .requests == 6 and .answer_tokens == 18 and .prompt_tokens >= 48 and .prompt_tokens < 144 and .seconds.median > 0 and
    .first_token_seconds.p50 > 0 and .first_token_seconds.p99 >= .first_token_seconds.p50 and .gap_seconds.longest > 0'
json_holds "the ideal, and the speeds that it is made of" '
    ((.ideal.prompt_seconds + .ideal.answer_seconds) / .ideal.seconds - 1 | fabs) < 1e-6 and .ideal.sessions == 6 and
    (.ideal.ratio * .ideal.seconds / .seconds.median - 1 | fabs) < 1e-6 and .ideal.speeds.prompt_tokens_per_second > 0'
json_holds "steps of a run of its own" '.steps.steps > 2 and .steps.host_seconds.p50 > 0 and .steps.graphs == 0'
jq '.ideal.speeds |= map_values(. * 1000)' "$WORK/out" >"$WORK/recorded.json"
works "bench --requests against faster days" bench --requests 6 --prompt-tokens 16 --answer-tokens 3 --repeats 1 --model "$tiny" \
    --drafter none --recorded "$WORK/recorded.json" --mode ngram
check "with tokens per second" grep -q -E '^[0-9]+ prompt and 18 answer tokens in .* 1 run\): .* answer tokens/s' "$WORK/out"
check "with the recorded speeds" grep -q -E '^  answers .* in step .*\([0-9]+ recorded: now 0\.[0-9]+ x\)' "$WORK/out"
echo '{"ideal": {}}' >"$WORK/recorded.json"
fails_with "what was recorded is of another kind" "recorded.json is not an output of kakeya bench --requests --json" \
    bench --requests 1 --model "$tiny" --drafter none --recorded "$WORK/recorded.json"
fails_with "requests that do not fit" "prompts of up to 12287 tokens and answers of 128 do not fit a context of 8192" \
    bench --requests 1 --prompt-tokens 8192

# --- the example program
example=$BUILD/examples/generate
if [ -x "$example" ]; then
    STATUS=0
    "$example" "$MODELS/demo" 'def add(a, b):' >"$WORK/example" 2>"$WORK/example-figures" || STATUS=$?
    check "the example program ends well" test "$STATUS" -eq 0
    run run --raw --max-tokens 64 'def add(a, b):'
    check "the example program answers as the command line does" test "$(cat "$WORK/example")" = "$(cat "$WORK/out")"
else
    fail "the example program is built" "no $example"
fi

finish
