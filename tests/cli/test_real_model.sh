# A public model, as people have one: Gemma 3 270M in a file that llama.cpp wrote (tools/real_model.sh).
. tests/cli/common.sh

model=${KAKEYA_REAL_MODEL:-}
if [ -z "$model" ]; then
    skip "a public model" "KAKEYA_REAL_MODEL is not set, and it could not be downloaded"
    finish
fi

works "info describes it" info "$model" --json
json_holds "by what the file says" '.architecture | .variant == "gemma3-270m" and .layers == 18 and .full_attention_layers == 3 and
    .vocab == 262144 and .max_context == 32768 and .experts == 0'
# The twelfth token is a near-tie, which rounding decides: it differs from one instruction set to another.
works "a text is continued" run "$model" --raw --max-tokens 11 --json 'The capital of France is'
json_holds "by what is likeliest" '.text == " the capital of the country of France. It is the" and .prompt_tokens == 6'
jq -c .token_ids "$WORK/out" >"$WORK/expected"
for how in '--mode ar' '--mode ngram --threads 1' '--mode ngram --isa scalar --precision int8'; do
    # shellcheck disable=SC2086 # several options
    run run "$model" --raw --max-tokens 11 $how --json 'The capital of France is'
    check "with $how by the same tokens" test "$(jq -c .token_ids "$WORK/out")" = "$(cat "$WORK/expected")"
done
works "what is dropped is stated" run "$model" --raw --attention sink-window --max-tokens 4 --json 'The capital of France is'
fails_with "there is nothing to restore with" 'f_theta' run "$model" --raw --attention restored hello

printf '[{"role":"system","content":" Be brief. "},{"role":"user","content":"  Hello\\n"}]' >"$WORK/turns"
works "turns are Gemma 3's" run "$model" --messages "$WORK/turns" --max-tokens 1 --json
# <bos> <start_of_turn> user \n "▁Be" "▁brief" "." "▁" \n\n Hello <end_of_turn> \n <start_of_turn> model \n
json_holds "with the system text before the first" '.prompt_tokens == 15'
printf '[{"role":"user","content":"a"},{"role":"user","content":"b"}]' >"$WORK/turns"
fails_with "turns that do not alternate are refused" 'messages\[1\].role is "user", expected "assistant"' \
    run "$model" --messages "$WORK/turns"
printf '{"type":"object","properties":{"city":{"type":"string","maxLength":20}},"required":["city"]}' >"$WORK/schema"
works "an answer follows a schema" run "$model" --raw --max-tokens 60 --json-schema "$WORK/schema" --json 'The capital of France as JSON: '
json_holds "whole" '.text | fromjson | .city | length <= 20'

# written anew: 3 GB
if [ "$(df -Pk "$WORK" | awk 'NR == 2 { print $4 }')" -gt 4000000 ]; then
    head -c 2000 README.md >"$WORK/text"
    score() { "$KAKEYA" score --model "$1" --text-file "$WORK/text" --precision f32 --json 2>/dev/null | jq -c '[.nll, .token_nll]'; }
    expected=$(score "$model")
    works "a directory is made of it" convert "$model" "$WORK/plain" --to f32
    check "of the same likelihoods" test "$(score "$WORK/plain")" = "$expected"
    works "and a GGUF file of that" convert "$WORK/plain" "$WORK/again.gguf" --to q8_0 --keep '.=f32'
    check "of the same likelihoods, too" test "$(score "$WORK/again.gguf")" = "$expected"
    rm "$WORK/again.gguf"
    works "it is quantised anew" convert "$WORK/plain" "$WORK/q8_0.gguf" --to q8_0
    rm -r "$WORK/plain"
    works "and answers" run --model "$WORK/q8_0.gguf" --raw --max-tokens 11 --json 'The capital of France is'
    json_holds "as before" '.text == " the capital of the country of France. It is the"'
    rm "$WORK/q8_0.gguf"
else
    skip "the public model is written anew" "4 GB of room are needed"
fi
fails_with "what is quantised is not quantised again" 'quantised already' convert "$model" "$WORK/out.gguf" --to q8_0
works "tiles are made of it" convert "$model" "$WORK/model.tiles" --to tiles
works "a base model is asked for one fact of a list" eval niah --facts --model "$model" --lines 10,20 --max-tokens 8 --mode ar \
    --policies native,sink-window --report "$WORK/facts.json"
check "and mostly finds it" jq -e '.options.facts and ([.rows[] | select(.policy == "native") | .correct] |
    map(select(.)) | length) * 2 > ([.rows[] | select(.policy == "native")] | length)' "$WORK/facts.json"
works "which the gate takes" gate "$WORK/facts.json"
works "sessions decode losslessly" eval lossless --model "$model" --prompts 3 --reference-prompts 0 --max-tokens 8 --json
json_holds "in every mode" '.summary.lossless | .differences == 0 and .comparisons >= 15'
finish
