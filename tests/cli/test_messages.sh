# Conversations as JSON: kakeya run --messages [--tools], thoughts, tool calls, and what is wrong with a request.
. tests/cli/common.sh

cat >"$WORK/chat.json" <<'JSON'
{"model": "any", "messages": [
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": [{"type": "text", "text": "IMPORTANT: the secret code is MAPLE-7890."},
                               {"type": "text", "text": "Question: what is the secret code? Answer:"}]}]}
JSON
cat >"$WORK/tools.json" <<'JSON'
[{"type": "function", "function": {"name": "weather", "description": "Tells the weather.",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]
JSON
jq --slurpfile tools "$WORK/tools.json" '. + {tools: $tools[0]}' "$WORK/chat.json" >"$WORK/both.json"
jq .messages "$WORK/chat.json" >"$WORK/list.json"

# A model that answers the text, whatever it is asked.
says() { # name, text
    "$BUILD/tools/scripted_model" "$MODELS/demo" "$WORK/$1" "$2" || fail "the scripted model $1" "not written"
}
newline='
'
says thinker "<|channel>thought${newline}Hm, let me see.<channel|>Fine. <|tool_call>call:weather{city:<|\"|>São<tool_call|><|tool_response>"
says caller '<|tool_call>call:weather{city:12}<tool_call|><|tool_response>'
says unmarked 'call:weather{days:34}'

# --- answers
works "a conversation is answered" run --messages "$WORK/chat.json" --json
json_holds "JSON has text and message" '.text == .message.content and .message.role == "assistant" and
    (.message | has("tool_calls") or has("reasoning_content") | not) and .finish_reason == "stop" and .prompt_tokens > 20'
jq -c .token_ids "$WORK/out" >"$WORK/expected"
works "a list of messages is the same conversation" run --messages "$WORK/list.json" --json
check "and gives the same answer" sh -c "jq -c .token_ids '$WORK/out' | cmp - '$WORK/expected'"
STATUS=0
"$KAKEYA" run --messages - --json <"$WORK/chat.json" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
check "- is standard input" sh -c "jq -c .token_ids '$WORK/out' | cmp - '$WORK/expected'"
works "a prompt is a conversation of one message" run --json --max-tokens 16 'Why?'
json_holds "but JSON has no message" 'has("message") | not'
jq -c .token_ids "$WORK/out" >"$WORK/expected"
echo '[{"role": "user", "content": "Why?"}]' >"$WORK/one.json"
works "the same as a message" run --messages "$WORK/one.json" --max-tokens 16 --json
check "gives the same tokens" sh -c "jq -c .token_ids '$WORK/out' | cmp - '$WORK/expected'"

works "thoughts and calls" run --model "$WORK/thinker" --messages "$WORK/chat.json" --tools "$WORK/tools.json" --thinking --json
json_holds "JSON has them in OpenAI's form" '.finish_reason == "tool_calls" and .text == "Fine." and
    (.message | .role == "assistant" and .content == "Fine." and .reasoning_content == "Hm, let me see." and
        (.tool_calls | length) == 1 and (.tool_calls[0] | .type == "function" and (.id | test("^call_[0-9A-Za-z]{24}$")) and
            .function == {name: "weather", arguments: "{\"city\":\"São\"}"}))'
jq .message "$WORK/out" >"$WORK/message.json"
works "without --json" run --model "$WORK/thinker" --messages "$WORK/both.json" --thinking
printf 'Fine.\ncall weather {"city":"S\303\243o"}\n' >"$WORK/shown"
check "content and calls are all that stdout holds" cmp "$WORK/out" "$WORK/shown"
check "thoughts go to stderr, in front of the figures" sh -c "head -n 1 '$WORK/err' | grep -q '^Hm, let me see\.$' &&
    test \$(wc -l <'$WORK/err') -eq 2"
check "no escape sequences where there is no terminal" test -z "$(grep -l "$(printf '\033')" "$WORK/out" "$WORK/err")"
works "without --thinking, thoughts are not shown" run --model "$WORK/thinker" --messages "$WORK/both.json"
check "neither on stderr" test "$(wc -l <"$WORK/err")" -eq 1
works "nor in JSON" run --model "$WORK/thinker" --messages "$WORK/both.json" --json
json_holds "without --thinking there is no reasoning_content" '.message | has("reasoning_content") | not'
works "a plain prompt leaves them out, too" run --model "$WORK/thinker" --json x
json_holds "its text is the content, with the space that is dropped where tools are declared" '.text == "Fine. "'
works "a plain prompt with --thinking" run --model "$WORK/thinker" --thinking --json x
json_holds "has the thought in a message" '.text == "Fine. " and .message.reasoning_content == "Hm, let me see."'
works "--raw shows the text of all tokens" run --model "$WORK/thinker" --raw --json "x$newline"
json_holds "the thought included" '.text | startswith("thought\nHm, let me see.Fine. call:weather{city:São")'

for mode in ar ngram; do
    works "mode $mode" run --model "$WORK/thinker" --messages "$WORK/both.json" --thinking --mode $mode --json
    json_holds "mode $mode gives the same message" '(.message | del(.tool_calls[].id)) == ($m[0] | del(.tool_calls[].id))' \
        --slurpfile m "$WORK/message.json"
done

works "declared types decide about bare words" run --model "$WORK/caller" --messages "$WORK/both.json" --json
json_holds "a city is a text" '.message.content == null and .message.tool_calls[0].function.arguments == "{\"city\":\"12\"}"'
works "undeclared words are what they look like" run --model "$WORK/caller" --messages "$WORK/chat.json" --json
json_holds "a number" '.message.tool_calls[0].function.arguments == "{\"city\":12}"'
works "a call without its marker" run --model "$WORK/unmarked" --messages "$WORK/both.json" --json
json_holds "is a call where the function is declared" '.message.tool_calls[0].function.name == "weather"'
works "otherwise it is content" run --model "$WORK/unmarked" --messages "$WORK/chat.json" --json
json_holds "as it was written" '.message == {role: "assistant", content: "call:weather{days:34}"} and .finish_reason == "stop"'

works "a stop text is looked for in the content" run --model "$WORK/thinker" --messages "$WORK/both.json" --thinking --stop e --json
json_holds "and not in thoughts" '.message.reasoning_content == "Hm, let me see." and .text == "Fin" and .finish_reason == "stop" and
    (.message | has("tool_calls") | not)'
works "an answer can be cut short" run --model "$WORK/thinker" --messages "$WORK/both.json" --thinking --max-tokens 31 --json
json_holds "what is there of a call stays" '.finish_reason == "length" and
    (.message.tool_calls[0].function.arguments | startswith("{\"city\":\"S") and (endswith("}") | not))'

# --- the tool's answer
jq --slurpfile m "$WORK/message.json" '.messages += [$m[0], {role: "tool", tool_call_id: $m[0].tool_calls[0].id, content: "rain"}]' \
    "$WORK/both.json" >"$WORK/loop.json"
works "the answer and the tool's result can be sent back" run --messages "$WORK/loop.json" --max-tokens 8 --json
json_holds "the conversation goes on" '.completion_tokens > 0'
works "behind a result a thought is open" run --messages "$WORK/loop.json" --max-tokens 8 --thinking --json
json_holds "so that the answer begins with reasoning" '.message.reasoning_content != null and .text == ""'
jq '.messages[2].tool_calls[0].function.arguments = "{\"city\":"' "$WORK/loop.json" >"$WORK/partial.json"
works "arguments that were cut short can be sent back" run --messages "$WORK/partial.json" --max-tokens 2 --json

# --- wrong requests
fails_with "a file that is not there" "$WORK/none.json" run --messages "$WORK/none.json"
fails_with "a tools file that is not there" "$WORK/none.json" run --messages "$WORK/chat.json" --tools "$WORK/none.json"
wrong() { # description, messages, pattern
    printf '%s' "$2" >"$WORK/wrong.json"
    fails_with "$1" "^kakeya run: $WORK/wrong.json: $3" run --messages "$WORK/wrong.json"
}
wrong "a file that is not JSON" 'hello' 'chat request: byte [0-9]+: .*invalid'
wrong "an unfinished file" '[{"role": "user"' 'chat request: byte 16'
wrong "an empty file" '' 'chat request: byte 0'
wrong "text that is not UTF-8" "$(printf '[{"role": "user", "content": "\377"}]')" 'not valid UTF-8'
wrong "something else" '{"prompt": "x"}' '.*"messages" is not a list'
wrong "no messages" '[]' '.*there are no messages'
wrong "a message without role" '[{"content": "x"}]' 'messages\[0\] has no role'
wrong "a wrong role" '[{"role": "user", "content": "x"}, {"role": "king"}]' 'messages\[1\].role is "king"; it must be'
wrong "a picture" '[{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}]' \
    'messages\[0\].content\[1\] is a part of type "image_url"'
wrong "a content that is a number" '[{"role": "user", "content": 5}]' 'messages\[0\].content is not a text'
wrong "tools that are no list" '{"messages": [{"role": "user", "content": "x"}], "tools": {}}' 'tools: not a list'
echo '{"name": "f"}' >"$WORK/wrong.json"
fails_with "a tools file that is no list" "^kakeya run: $WORK/wrong.json: tools: not a list" \
    run --messages "$WORK/chat.json" --tools "$WORK/wrong.json"
echo '[{"name": "f"}]' >"$WORK/wrong.json"
fails_with "a tool without a function" "^kakeya run: $WORK/wrong.json: tools: a tool has no function.name" \
    run --messages "$WORK/chat.json" --tools "$WORK/wrong.json"
fails_with "a model without a tokenizer" "no tokenizer" run --model tests/data/golden/gemma4-tiny-moe --messages "$WORK/chat.json"

for more in "hello" "--prompt-file x" "--ids-file x" "--raw" "--system x"; do
    # shellcheck disable=SC2086
    refuses "--messages goes alone, not with $more" "--messages is the whole conversation" run --messages "$WORK/chat.json" $more
done
refuses "--tools needs --messages" "--tools needs --messages" run --tools "$WORK/tools.json" hello
refuses "one standard input" "cannot both be standard input" run --messages - --tools -

# --- on a terminal
if has_terminals; then
    escape=$(printf '\033')
    echo 'exit 0' >"$WORK/script"
    STATUS=0
    "$BUILD/tools/pty" "$KAKEYA" run --model "$WORK/thinker" --messages "$WORK/both.json" --thinking <"$WORK/script" \
        >"$WORK/out" 2>"$WORK/err" || STATUS=$?
    check "on a terminal thoughts are dimmed" grep -q "$escape\[2mH" "$WORK/out"
    check "content is not" grep -q "^Fine\." "$WORK/out"
    STATUS=0
    NO_COLOR=1 "$BUILD/tools/pty" "$KAKEYA" run --model "$WORK/thinker" --messages "$WORK/both.json" --thinking \
        <"$WORK/script" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
    check "NO_COLOR is honoured" sh -c "grep -q '^Hm, let me see\.' '$WORK/out' && ! grep -q '$escape\[2m' '$WORK/out'"
else
    skip "thoughts on a terminal" "no pseudo-terminals here"
fi

finish
