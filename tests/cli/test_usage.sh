# Verbs, options, help texts and exit statuses: what scripts rely on before any model is loaded.
. tests/cli/common.sh

refuses "no verb is wrong usage" '^usage: kakeya VERB'
refuses "an unknown verb is named" "unknown verb 'walk'" walk
refuses "an unknown global option is named" "unknown option '--walk'" --walk

works "--help works" --help
for verb in run serve top sessions tokenize score info explain convert bench eval verify gate train remote; do
    check "kakeya --help lists $verb" grep -q "^  $verb " "$WORK/out"
done
works "--version works" --version
check "--version prints a version" grep -q -E '^kakeya [0-9]+\.[0-9]+\.[0-9]+$' "$WORK/out"

for verb in run serve tokenize score info explain bench; do
    works "$verb --help works" $verb --help
    check "$verb --help shows usage" grep -q "^usage: kakeya $verb" "$WORK/out"
    check "$verb --help has an example" grep -q -A1 '^Example:' "$WORK/out"
    check "$verb --help lists the shared options" grep -q -e '--draft-window' "$WORK/out"
    check "$verb --help is silent on stderr" test ! -s "$WORK/err"
    check "$verb is in the manual page" grep -q "^\.SS $verb" docs/kakeya.1
    refuses "$verb: an unknown option is named" "unknown option '--frobnicate'" $verb --frobnicate
    refuses "$verb: an option has its whole name" \
        "^kakeya $verb: unknown option '--thread'; did you mean '--threads'\\?$" $verb --thread 2
    refuses "$verb: a missing value is named" "option '--model' needs a value" $verb --model
    refuses "$verb: a flag takes no value" "option '--json' takes no value" $verb --json=yes
    refuses "$verb: a bad number names the option" "--threads: 'two' is not an integer" $verb --threads two
    refuses "$verb: a number out of range names the option" "--window: '0' is not an integer from 1" $verb --window 0
    refuses "$verb: an unknown policy names the choices" "--attention: 'exact' is not one of: native sink-window restored" \
        $verb --attention exact
    refuses "$verb: bytes are checked" "--memory-limit: '5X' is not a number of bytes" $verb --memory-limit 5X
done

for verb in sessions convert eval gate train remote; do
    works "$verb --help works" $verb --help
    check "$verb --help shows usage" grep -q "^usage: kakeya $verb" "$WORK/out"
    check "$verb --help has an example" grep -q -A1 '^Example:' "$WORK/out"
    check "$verb is in the manual page" grep -q "^\.SS $verb" docs/kakeya.1
    refuses "$verb without more is wrong usage" "kakeya $verb" $verb
done

works "verify --help works" verify --help
check "verify --help shows usage" grep -q "^usage: kakeya verify" "$WORK/out"
check "verify --help has an example" grep -q -A1 '^Example:' "$WORK/out"
check "verify is in the manual page" grep -q "^\.SS verify" docs/kakeya.1
refuses "verify: an unknown option is named" "unknown option '--frobnicate'" verify --frobnicate
refuses "verify: it has policies of its own" "unknown option '--attention'" verify --attention native

for mode in "--mode ar" --mode=ar --mode; do
    # shellcheck disable=SC2086  # words
    refuses "serve $mode: an option of another verb is no beginning of one" \
        "^kakeya serve: unknown option '--mode'; did you mean '--model'\?$" serve $mode
done
refuses "nor is a flag's beginning a flag, behind an operand" "^kakeya run: unknown option '--ra'; did you mean '--raw'\?$" run hello --ra
refuses "a letter behind an operand is named" "^kakeya run: unknown option '-x'$" run hello -xy
refuses "a beginning of several options means none" "^kakeya run: unknown option '--draft'$" run --draft 3 hello
refuses "run: a temperature must be a number" "--temperature: 'warm' is not a number from 0" run --temperature warm x
refuses "run: a negative temperature is refused" "--temperature: '-1' is not a number from 0" run --temperature -1 x
refuses "run: infinity is no number" "--temperature: 'inf' is not a number" run --temperature inf x
refuses "run: --draft-length is at most 16" "--draft-length: '17' is not an integer from 0 to 16" run --draft-length 17 x
refuses "run: an unknown K/V format names the choices" "--kv-format: 'q9' is not one of: auto f32 bf16 q8 q4" run --kv-format q9 x
refuses "run: an unknown mode names the choices" "--mode: 'fast' is not one of: auto ar speculative ngram" run --mode fast x
refuses "an empty path is told apart from a missing one" "--model: the DIR is empty" info --model ''
refuses "so is an empty name" "--synthetic: the SHAPE is empty" info --synthetic ''
refuses "and an empty file in a list" "--api-key: the KEY is empty" serve --api-key ''
refuses "run: a penalty that drowns all other numbers" "--repetition-penalty: '1.4e-45' is not a number from 0.001" \
    run --repetition-penalty 1.4e-45 x
refuses "run: two prompts are one too many" "more than one PROMPT \('world'\)" run hello world
refuses "run: prompt sources exclude each other" "exclude each other" run --prompt-file a --ids-file b
refuses "run: --system needs the turn format" "--system needs the turn format" run --raw --system s x
refuses "run: an empty stop text is refused" "--stop: the text is empty" run --stop '' x
refuses "run: a negative seed is refused" "--seed: '-1' is not a non-negative integer" run --seed -1 x
refuses "run: a seed beyond 64 bits is refused" "--seed: .* is not an integer below 2\^64" run --seed 99999999999999999999 x
refuses "score: no input" "give either --ids-file or --text-file" score
refuses "score: two inputs" "give either --ids-file or --text-file" score --ids-file a --text-file b
refuses "score: --hidden-states needs --out" "--hidden-states needs --out" score --ids-file a --hidden-states
refuses "tokenize: --decode takes ids" "--decode takes --ids-file" tokenize --decode --text-file a
refuses "tokenize: --ids-file needs --decode" "--ids-file needs --decode" tokenize --ids-file a
refuses "bench: a session at least" "--sessions: .0. is not an integer from 1" bench --sessions 0
refuses "bench: a profile is of one session" "--profile and --sessions exclude" bench --sessions 2 --profile
refuses "bench: requests are no sessions" "--requests and --sessions exclude" bench --requests 2 --sessions 2
refuses "bench: requests have no rows" "--requests and --csv exclude" bench --requests 2 --csv x
refuses "bench: a server gets requests" "--url, .* need --requests" bench --url http://127.0.0.1:1
refuses "bench: a list is checked item by item" "--context-frontiers: 'x' is not an integer" bench --context-frontiers 0,x
refuses "info: a memory for nothing" "--memory needs --sessions" info --memory 2G
refuses "remote: an unknown verb" "unknown verb 'walk'" remote walk
refuses "remote: a preset at least" "name one preset" remote run
refuses "remote: --report needs --wait" "--report needs --wait" remote run env --report r.json
refuses "remote: a bus and a name" "give --bus and --name" remote init
refuses "remote: models are of workers" "--model needs --worker" remote init --bus x --name y --model z=.
refuses "remote: who is allowed" "'friend' is neither requester nor worker" remote allow friend a b
refuses "remote: one nonce" "name one nonce" remote cancel
fails_with "remote: without a configuration" "remote.json does not exist: .kakeya remote init. writes it" \
    remote list --config "$WORK/none" --state "$WORK/state"
works "remote: presets are listed" remote presets
check "remote: with bounds" grep -q 'lines  *up to 16 of 10 to 2000 (12,60,150)' "$WORK/out"
refuses "explain: several devices" "--devices: only a single device can be explained" explain --devices 0,1
refuses "explain: no rows" "--rows 0 needs --prompt" explain --rows 0
refuses "explain: rows of one block" "--rows: '99' is not an integer" explain --rows 99
refuses "info: one model" "unexpected 'demo'" info --synthetic e2b demo
works "info: its operand is the model" info models/demo

finish
