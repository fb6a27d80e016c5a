# Answers that are what was asked for: kakeya run --json-schema, --json-object and --regex.
. tests/cli/common.sh

cat >"$WORK/person.json" <<'JSON'
{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
 "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["name", "age"]}
JSON
echo '{"type": "object", "properties": {"a": {"extends": {}}}}' >"$WORK/refused.json"
echo '{"enum": ["yes", "no"]}' >"$WORK/enum.json"

for temperature in 0 1; do
    works "a schema at temperature $temperature" run --json-schema "$WORK/person.json" --temperature $temperature \
        --json 'Describe a person.'
    json_holds "the answer is valid" '.finish_reason == "stop" and
        (.text | fromjson | (keys_unsorted == ["name", "age"]) and (.name | length <= 12) and .age >= 0 and .age <= 120)'
    json_holds "what it has cost is reported" '.stats.grammar_redraws >= 0 and .stats.grammar_masks >= 0'
done
works "a value of an enum" run --json-schema "$WORK/enum.json" --raw --json 'Answer:'
json_holds "is one of them" '.text | fromjson | . == "yes" or . == "no"'
works "an expression" run --regex '[a-f]{3}-[0-9]{2}' --json x
json_holds "matches as a whole" '.text | test("^[a-f]{3}-[0-9]{2}$")'
printf 'root ::= greeting " " [a-z]{3} list\ngreeting ::= "hi" | "ho"\nlist ::= "(" list? ")"\n' >"$WORK/rules.gbnf"
printf 'start: "n" NUMBER ("," NUMBER)~2\nNUMBER: /[0-9]{2}/\n' >"$WORK/rules.lark"
echo 'root ::= other "a"
other ::= root "c"' >"$WORK/left.gbnf"
works "rules in GBNF" run --grammar "$WORK/rules.gbnf" --json x
json_holds "make the answer" '.text | test("^h[io] [a-z]{3}\\(+\\)+$")'
works "rules in Lark's syntax" run --grammar "$WORK/rules.lark" --json x
json_holds "make the answer" '.text | test("^n[0-9]{2}(,[0-9]{2}){2}$")'
works "an object" run --json-object --max-tokens 24 --json x
json_holds "begins like one" '.text | startswith("{")'
works "without --json" run --regex 'a{3}b' x
check "the answer is the text" grep -q -x 'aaab' "$WORK/out"
for mode in ar speculative ngram auto; do
    works "mode $mode" run --json-schema "$WORK/person.json" --mode $mode --json 'Describe a person.'
    jq -c .token_ids "$WORK/out" >"$WORK/$mode.ids"
    check "mode $mode gives the tokens of ar" cmp "$WORK/ar.ids" "$WORK/$mode.ids"
done

# --- the order of members
echo '{"type": "object", "properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["a"]}' >"$WORK/order.json"
for order in on off; do
    for seed in 1 2 3 4 5 6 7 8 9 10 11 12; do
        run run --json-schema "$WORK/order.json" --strict-order $order --temperature 2 --seed $seed --max-tokens 200 --raw --json x
        cat "$WORK/out"
    done >"$WORK/order.$order"
done
check "in the order of the schema, and only those that are declared" jq -e -s 'all(.[]; .finish_reason != "stop" or
    (.text | fromjson | . == {"a": 2} or (. == {"b": 1, "a": 2} and keys_unsorted == ["b", "a"])))' "$WORK/order.on"
check "in any order, and others" jq -e -s 'any(.[]; (.text | startswith("{\"a\"")) or (.text | test("\"[^ab]")))' "$WORK/order.off"
refuses "an order without members" '--strict-order needs --json-schema or --json-object' run --strict-order off --regex x x
refuses "an order that is none" 'strict-order' run --json-object --strict-order maybe x

# --- refusals
fails_with "a schema that is not understood" 'refused.json: schema #/properties/a/extends: not supported' \
    run --json-schema "$WORK/refused.json" x
fails_with "a rule that begins with itself" 'left.gbnf: grammar, line 1: a rule that begins with itself, through others' \
    run --grammar "$WORK/left.gbnf" x
fails_with "an expression that is none" '--regex: regular expression, at byte 1' run --regex '(' x
fails_with "a schema that is not there" 'absent.json' run --json-schema "$WORK/absent.json" x
refuses "two of them" 'exclude each other' run --json-object --regex x x
refuses "a schema from standard input" 'standard input' run --json-schema - x

finish
