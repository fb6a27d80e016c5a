# A public model on a device, as people have one: Gemma 3 270M in a file that llama.cpp wrote (tools/real_model.sh).
. tests/cli/common.sh

model=${KAKEYA_REAL_MODEL:-}
if [ -z "$model" ]; then
    skip "a public model on a device" "KAKEYA_REAL_MODEL is not set"
    finish
fi

head -c 5000 README.md >"$WORK/text"
head -c 700 README.md >"$WORK/short"
works "the CPU reads a text in float32" score --model "$model" --backend cpu --precision f32 --text-file "$WORK/text" --json
jq -c .token_nll "$WORK/out" >"$WORK/expected"
works "the device reads it" score --model "$model" --backend cuda --text-file "$WORK/text" --json
check "to the same likelihoods but for what bf16 costs" jq -e --slurpfile all "$WORK/expected" '.token_nll as $found | $all[0] as $wanted |
    [range($found | length) | ($found[.] - $wanted[.]) | fabs] | (length > 1000) and (add / length < 0.03) and max < 1' "$WORK/out"

# Rows of a prompt, and decode rows under each policy that needs no f_theta, as the CPU has them at the same policy.
for how in '' '--prompt-length 40 --attention native' '--prompt-length 120 --attention sink-window --window 16'; do
    # shellcheck disable=SC2086 # several options
    works "the CPU's logits${how:+ with $how}" score --model "$model" --backend cpu --precision bf16 --text-file "$WORK/short" \
        --out "$WORK/logits" $how
    # shellcheck disable=SC2086
    works "and the device's" score --model "$model" --backend cuda --text-file "$WORK/short" --against "$WORK/logits" --json $how
    json_holds "are near" '.kl < 0.02 and .top1 > 0.9'
done

works "a text is continued" run "$model" --backend cuda --raw --mode ar --max-tokens 11 --json 'The capital of France is'
json_holds "by what is likeliest" '.text == " the capital of the country of France. It is the"'
works "sessions decode losslessly" eval lossless --model "$model" --backend cuda --prompts 12 --reference-prompts 1 --max-tokens 16 --json
json_holds "in every mode" '.summary.lossless | .differences == 0 and .comparisons >= 60'
for format in bf16 q8 q4; do
    works "sessions together, K/V in $format" eval lossless --batch --model "$model" --backend cuda --kv-format "$format" \
        --compositions 8 --json
    json_holds "have the tokens that they have alone" '[.. | .differences? | numbers] | length > 0 and add == 0'
done
finish
