# Output and input paths of every kind: what a person types in a hurry must not destroy anything. All devices, FIFOs and links are
# made in the scratch folder; the machine's own are never written to.
. tests/cli/common.sh

tiny=tests/data/golden/gemma4-tiny-moe
echo '[2, 5, 7, 9]' >"$WORK/ids.json"
ids=$WORK/ids.json
text=$EXAMPLES/code/events.py
# What the commands with an output have in common: small runs.
niah="eval niah --lines 10 --samples 1 --max-tokens 4 --policies native --mode ar"
report="eval code $text --repetitions 1 --max-tokens 2 --prompt-tokens 16 --draft-lengths 1 --report"
score="score --model $tiny --ids-file $ids"
bench="bench --model $tiny --drafter none --context-frontiers 16 --prompt-tokens 16 --decode-tokens 2 --verify-rows 1 --repeats 1"

# A short run leaves out the commands that take longest, and all signals but one.
set -- "$niah --report" "$niah --plot" "$score --out" "$bench --csv"
signals="TERM:143 HUP:129 QUIT:131"
short_sweeps && set -- "$score --out" && signals=TERM:143

is_kind() { # test flag, path; links are not followed
    test ! -L "$2" && test "$1" "$2"
}

# --- devices stay devices
if mknod "$WORK/null" c 1 3 2>/dev/null && : 2>/dev/null >"$WORK/null" && mknod "$WORK/full" c 1 7; then
    for output in "$@"; do
        # shellcheck disable=SC2086
        works "kakeya $output NULL-DEVICE" $output "$WORK/null"
        check "leaves the device a device" is_kind -c "$WORK/null"
        # shellcheck disable=SC2086
        run $output "$WORK/full"
        check "kakeya $output FULL-DEVICE: status 1" test "$STATUS" -eq 1
        check "and the reason" grep -q "$WORK/full: cannot write: No space left" "$WORK/err"
        check "which stays a device" is_kind -c "$WORK/full"
    done
    # shellcheck disable=SC2086
    works "--report and --plot may both be one null device" $niah --report "$WORK/null" --plot "$WORK/null"
else
    skip "devices as outputs" "devices cannot be made here"
fi

# --- FIFOs, /dev/stdout, links
mkfifo "$WORK/fifo"
# The other end of the FIFO, which gives up when the program under test never opens its own.
fill() { timeout 60 sh -c 'cat "$1" >"$2"' sh "$1" "$WORK/fifo"; }
timeout 60 cat "$WORK/fifo" >"$WORK/piped.json" &
# shellcheck disable=SC2086
works "a report goes through a FIFO" $report "$WORK/fifo"
wait
check "the FIFO stays" is_kind -p "$WORK/fifo"
check "its reader gets one whole report" jq -es 'length == 1 and .[0].complete' "$WORK/piped.json"
# shellcheck disable=SC2086
works "a report goes to standard output" $report /dev/stdout
check "behind which the table stands" grep -q '^Report: /dev/stdout' "$WORK/out"
check "the report is its first line" sh -c "head -1 '$WORK/out' | jq -e .complete"

mkdir "$WORK/behind"
echo old >"$WORK/behind/target"
for output in "$@"; do
    ln -sf behind/target "$WORK/link"
    # shellcheck disable=SC2086
    works "kakeya $output LINK" $output "$WORK/link"
    check "leaves the link" test "$(readlink "$WORK/link")" = behind/target
    check "and replaces what is behind it" test "$(head -c 3 "$WORK/behind/target")" != old
    check "and nothing else lies there" test "$(ls -A "$WORK/behind")" = target
    # shellcheck disable=SC2086
    fails_with "kakeya $output FOLDER" "$WORK/behind.*is a directory" $output "$WORK/behind"
    # shellcheck disable=SC2086
    fails_with "kakeya $output FOLDER/ABSENT/FILE" "$WORK/behind/no/file" $output "$WORK/behind/no/file"
    echo kept >"$WORK/locked"
    chmod 444 "$WORK/locked"
    # shellcheck disable=SC2086
    fails_with "kakeya $output READ-ONLY-FILE" "$WORK/locked: cannot write: " $output "$WORK/locked"
    check "which keeps its content" test "$(cat "$WORK/locked")" = kept
    rm -f "$WORK/locked"
done

# --- outputs that are inputs
cp "$text" "$WORK/source.py"
printf '{"prompt": "def f():"}\n' >"$WORK/p.jsonl"
mkdir "$WORK/model"
cp "$tiny"/* "$WORK/model/"
before=$(cat "$WORK/source.py" "$WORK/p.jsonl" "$ids" "$WORK"/model/* | cksum)
fails_with "score does not replace its ids" "--out: $ids is read" score --model "$tiny" --ids-file "$ids" --out "$ids"
ln -s ids.json "$WORK/ids-link"
fails_with "nor through a link" "--out: $WORK/ids-link is read" score --model "$tiny" --ids-file "$ids" --out "$WORK/ids-link"
fails_with "nor the model" "--out: $WORK/model/model.safetensors is a file of $WORK/model" \
    score --model "$WORK/model" --ids-file "$ids" --out "$WORK/model/model.safetensors"
fails_with "bench does not replace the model" "--csv: $WORK/model/config.json is a file of" \
    bench --model "$WORK/model" --csv "$WORK/model/config.json"
fails_with "eval code does not replace its source" "--report: $WORK/source.py is read" \
    eval code "$WORK/source.py" --report "$WORK/source.py"
fails_with "eval fidelity does not replace its text" "--report: $WORK/source.py is read" \
    eval fidelity "$WORK/source.py" --report "$WORK/source.py"
fails_with "eval fidelity does not replace its ids" "--report: $WORK/p.jsonl is read" \
    eval fidelity --ids-json "$WORK/p.jsonl" --report "$WORK/p.jsonl"
fails_with "eval acceptance does not replace its prompts" "--report: $WORK/p.jsonl is read" \
    eval acceptance "$WORK/p.jsonl" --report "$WORK/p.jsonl"
fails_with "eval lossless does not replace its source" "--report: $WORK/source.py is read" \
    eval lossless "$WORK/source.py" --report "$WORK/source.py"
fails_with "report and picture are two files" "--report and --plot name one file" \
    eval niah --lines 12 --report "$WORK/one" --plot "$WORK/./one"
check "nothing of all this has changed" \
    test "$(cat "$WORK/source.py" "$WORK/p.jsonl" "$ids" "$WORK"/model/* | cksum)" = "$before"
check "and no file was made" test ! -e "$WORK/one"

# --- inputs that are no regular files
fed() { # description, file to feed, arguments with FIFO for the path
    description=$1
    source=$2
    shift 2
    fill "$source" &
    works "$description" "$@"
    wait
}
"$KAKEYA" run --raw "$(cat "$EXAMPLES/code/events.py" | head -c 200)" --max-tokens 2 --json </dev/null >"$WORK/expected" 2>/dev/null
head -c 200 "$EXAMPLES/code/events.py" >"$WORK/prompt"
fed "a prompt from a FIFO" "$WORK/prompt" run --raw --prompt-file "$WORK/fifo" --max-tokens 2 --json
json_holds "is read to its end" '.prompt_tokens == ($e[0].prompt_tokens)' --slurpfile e "$WORK/expected"
fed "a text to tokenize from a FIFO" "$WORK/prompt" tokenize --text-file "$WORK/fifo" --json
fed "a text to score from a FIFO" "$WORK/prompt" score --text-file "$WORK/fifo" --json
fed "ids from a FIFO" "$ids" run --model "$tiny" --ids-file "$WORK/fifo" --max-tokens 1
STATUS=0
"$KAKEYA" tokenize --text-file /dev/stdin --json <"$WORK/prompt" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
check "/dev/stdin from a file" test "$STATUS" -eq 0
STATUS=0
cat "$WORK/prompt" | "$KAKEYA" tokenize --text-file /dev/stdin --json >"$WORK/out2" 2>"$WORK/err" || STATUS=$?
check "/dev/stdin from a pipe gives the same" cmp "$WORK/out" "$WORK/out2"
works "a file of /proc, whose size stat gives as 0" tokenize --text-file /proc/self/status --json
json_holds "is read to its end" '.ids | length > 100'
# shellcheck disable=SC2086
works "a report for the gate" $report "$WORK/r.json"
run gate "$WORK/r.json"
cp "$WORK/out" "$WORK/direct"
fill "$WORK/r.json" &
run gate "$WORK/fifo"
wait
check "the gate judges a FIFO as the file" sh -c "sed 's|^$WORK/[a-z.]*||' '$WORK/direct' >'$WORK/a'
    sed 's|^$WORK/[a-z.]*||' '$WORK/out' | cmp - '$WORK/a'"
fails_with "an endless input is refused by what was read" "/dev/zero: more than the [0-9]+ bytes" \
    tokenize --text-file /dev/zero
fails_with "an endless line of prompts, too" "/dev/zero: a line is longer than [0-9]+ bytes" eval acceptance /dev/zero
bad_number() { # description, content
    printf '%s' "$2" >"$WORK/bad.json"
    fails_with "$1" "bad.json.*line 1" run --model "$tiny" --ids-file "$WORK/bad.json" --max-tokens 1
}
bad_number "an id with a leading zero is malformed" '[2, 05]'
bad_number "two leading zeros" '[00]'
bad_number "a leading zero behind a sign" '[-01]'
bad_number "a plus sign" '[+2]'
bad_number "a point without digits" '[2.]'

# --- a model behind a symbolic link finds its auxiliary models beside the link or beside what it leads to
ln -s "$MODELS/demo" "$WORK/linked"
works "auxiliary models beside what the link leads to" run --model "$WORK/linked" --attention restored --max-tokens 2 --raw x
mkdir "$WORK/own"
ln -s "$MODELS/demo" "$WORK/own/m"
ln -s "$MODELS/demo-dflash" "$WORK/own/m-dflash"
works "a drafter beside the link, an f_theta beside its target" run --model "$WORK/own/m" --attention restored --max-tokens 2 --raw x
(cd "$MODELS/demo" && "$KAKEYA" run --model . --attention restored --max-tokens 2 --raw x >"$WORK/out" 2>"$WORK/err" </dev/null)
STATUS=$?
check "a model named . finds them, too" test "$STATUS" -eq 0
mkdir "$WORK/bare"
ln -s "$MODELS"/demo/* "$WORK/bare/"
ln -s "$WORK/bare" "$WORK/bare-link"
fails_with "where none is, both places are named" \
    "f_theta.*looked for $WORK/bare-link-f-theta and $WORK/bare-f-theta" run --model "$WORK/bare-link" --attention restored x

# --- signals: temporary files go, reports stay readable, the status says which signal it was
mkdir "$WORK/s"
for signal in $signals; do
    rm -f "$WORK/s/r.json" "$WORK/s/p.svg"
    "$KAKEYA" eval niah --lines 10,12 --samples 300 --threads 1 --report "$WORK/s/r.json" --plot "$WORK/s/p.svg" \
        >"$WORK/out" 2>"$WORK/err" </dev/null &
    evaluation=$!
    for _ in $(seq 600); do
        jq -e '.rows | length > 0' "$WORK/s/r.json" >/dev/null 2>&1 && break
        kill -0 "$evaluation" 2>/dev/null || break
        sleep 0.1
    done
    kill -"${signal%:*}" "$evaluation"
    STATUS=0
    wait "$evaluation" || STATUS=$?
    check "SIG${signal%:*} ends with status ${signal#*:}" test "$STATUS" -eq "${signal#*:}"
    check "the report is readable and holds the finished rows" \
        jq -e '(.complete | not) and (.rows | length > 0)' "$WORK/s/r.json"
    check "no temporary file stays" test -z "$(ls -A "$WORK/s" | grep -v -e '^r.json$' -e '^p.svg$')"
done
# A program that waits for the reader of a FIFO ends, too.
mkfifo "$WORK/lonely"
"$KAKEYA" bench --model "$tiny" --csv "$WORK/lonely" >"$WORK/out" 2>"$WORK/err" </dev/null &
waiting=$!
sleep 0.3
kill -TERM "$waiting"
STATUS=0
wait "$waiting" || STATUS=$?
check "waiting for a FIFO's reader ends with SIGTERM" test "$STATUS" -eq 143
# The limit is in blocks of 512 or 1,024 bytes; the logits of 600 tokens are larger than any.
STATUS=0
(ulimit -f 4 && exec "$KAKEYA" score --text-file "$text" --out "$WORK/s/large" >/dev/null 2>"$WORK/limited") || STATUS=$?
cp "$WORK/limited" "$WORK/err"
: >"$WORK/out"
check "SIGXFSZ ends with status 153" test "$STATUS" -eq 153
check "and the reason" grep -q "$WORK/s/large: cannot write: File too large" "$WORK/err"
check "and leaves no file" test ! -e "$WORK/s/large"

finish
