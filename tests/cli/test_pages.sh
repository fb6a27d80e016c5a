# The blocks of README.md and docs/guide: each is run as a reader would run it, or a comment before it says why it is not:
# <!-- not run: reason -->. The demo stands in for published models under their names, and a tiny model for those that are trained for;
# answers, training and evaluations are cut short, servers take free ports.
. tests/cli/common.sh
PAGES=$PWD
if short_sweeps; then
    PYTHON=$BUILD/serve-python/bin/python # nothing is installed; what is not there is skipped
    [ -x "$PYTHON" ] || PYTHON=""
else
    . tests/serve/python.sh
fi

# Writes each block into blocks/N, and a line "N kind page:line" into a list; kind is sh, python, another fence's word, or "marked".
# A block of commands loses its indent, and the remarks after three spaces; one with "$ " keeps what is said to be printed as it is.
blocks() { # list, pages...
    list=$1
    shift
    awk -v to="$WORK/blocks/" '
        function begin(kind) {
            file = to (++count)
            print count, (marked ? "marked" : kind == "" ? "unnamed" : kind), FILENAME ":" FNR
            printf "" >file
            marked = session = 0
        }
        function end() { if (file != "") close(file); file = "" }
        FNR == 1 { if (marked) print 0, "stray", was; end(); marked = fence = 0; blank = 1 }
        fence && /^```/ { fence = 0; end(); blank = 1; next }
        fence { print >file; next }
        /^```/ { end(); begin(substr($0, 4)); fence = 1; next }
        /^ +(```|~~~)|^~~~/ { end(); begin("a fence that is indented or of another kind"); end(); marked = blank = 0; next }
        /^    / && (file != "" || blank) {
            if (file == "") begin("sh")
            line = substr($0, 5)
            if (line ~ /^\$ /) session = 1
            if (!session && match(line, /[^ ]   +/)) line = substr(line, 1, RSTART)
            print line >file
            next
        }
        { end() }
        /^ *$/ { blank = 1; next }
        { if (marked) print 0, "stray", was; marked = 0; blank = 0 }
        /^ *<!-- not run: [^ ].* -->$/ { marked = 1; was = FILENAME ":" FNR }
        END { if (marked) print 0, "stray", was }' "$@" >"$list"
}

mkdir -p "$WORK/blocks" "$WORK/bin" "$WORK/place" "$WORK/home/models"

# The program of the blocks. What fails in a pipe counts, too; a server is stopped when it has answered.
cat >"$WORK/bin/kakeya" <<'END'
#!/bin/sh
failed() {
    echo "failed: kakeya $*" >>"$WORK/failed"
    exit 1
}
verb=$1
line="$*"
case " $* " in
*" --dry-run "*) ;;
" convert "*) rm -rf "$3" "mmproj-$3" ;; # an earlier block may have made them
" train "*)
    rm -rf "$(echo "$line" | sed 's/.* --out \([^ ]*\).*/\1/')" # likewise
    case $line in
    "train f-theta "*)
        set -- "$@" --tokens 2000 --held-out 1 --sequence 128 --window 8 --even-if-worse
        case $line in *" --init-from "*) ;; *) set -- "$@" --rank 8 --ranks 1 --metric-tokens 100 ;; esac
        case $line in *" --distill "*) set -- "$@" --steps 1 --batch 1 --segments 1 --rows 8 ;; esac
        case $line in *" --self "*) set -- "$@" --self 64 --tokens 8000 --sequence 512 ;; esac
        ;;
    *) set -- "$@" --steps 1 --batch 1 --blocks 2 --prompts 3 --held-out 1 --answer 16 --sequence 128 ;;
    esac
    ;;
" eval acceptance "*) set -- "$@" --prompts 2 --max-tokens 8 ;;
" eval lossless --batch "*) set -- "$@" --compositions 1 ;;
" eval lossless "*) set -- "$@" --prompts 1 ;;
" verify "*) set -- "$@" --seconds 1 ;;
" remote serve "*) set -- "$@" --once ;;
" remote init "*" --name alice "*) set -- "$@" --key "$WORK/alice" ;;
" remote run "*) # the worker is the one that the page has set up before
    "$KAKEYA" "$@" --param attention=native,sink-window --param max-tokens=16 &
    requester=$!
    while kill -0 "$requester" 2>/dev/null; do
        HOME="$WORK/home" "$KAKEYA" remote serve --once >>"$WORK/worker" 2>&1 || true
        sleep 0.2
    done
    wait "$requester" || failed "$line"
    exit
    ;;
" run "*)
    shift
    case $line in *--max-tokens*) ;; *) set -- --max-tokens 12 "$@" ;; esac
    "$KAKEYA" run "$@" || failed "$line"
    exit
    ;;
" serve "*)
    shift
    left=$#
    while [ "$left" -gt 0 ]; do
        if [ "$1" = --port ]; then
            shift 2
            left=$((left - 2))
        else
            set -- "$@" "$1"
            shift
            left=$((left - 1))
        fi
    done
    . "$WORK/server.sh"
    start_server "$@" || failed "$line"
    stop_server || failed "$line"
    exit
    ;;
esac
"$KAKEYA" "$@" || failed "$line"
END
cat >"$WORK/server.sh" <<'END'
# Starts a server on a free port, whose address is then in $address; returns when it is ready.
start_server() { # options...
    "$KAKEYA" serve --port 0 --grpc off --threads 1 "$@" >"$WORK/address" 2>"$WORK/server" </dev/null &
    server=$!
    echo "$server" >"$WORK/server_pid"
    until address=$(sed -n 's|.*"http": *"http://\([^"]*\)".*|\1|p' "$WORK/address") && [ -n "$address" ] &&
        curl --noproxy '*' -s -f -o "$WORK/health" "http://$address/health"; do
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
}
stop_server() {
    kill -TERM "$server"
    stopped=0
    wait "$server" || stopped=$?
    rm -f "$WORK/server_pid"
    [ "$stopped" -eq 0 ]
}
END
cat >"$WORK/bin/curl" <<'END'
#!/bin/sh
exec "$CURL" --noproxy '*' -sS -f "$@"
END
CURL=$(command -v curl) || CURL=""
chmod +x "$WORK/bin/kakeya" "$WORK/bin/curl"
[ -n "$CURL" ] || rm "$WORK/bin/curl"
trap '[ ! -e "$WORK/server_pid" ] || kill "$(cat "$WORK/server_pid")" 2>/dev/null || true; rm -rf "$WORK"' EXIT
export WORK KAKEYA CURL PYTHONDONTWRITEBYTECODE=1
. "$WORK/server.sh"

# What the blocks name. Published models have longer contexts than the demo.
mkdir "$WORK/published"
ln -s "$MODELS"/demo/* "$WORK/published/"
rm "$WORK/published/config.json"
sed 's/\("max_position_embeddings": *\)[0-9]*/\1262144/' "$MODELS/demo/config.json" >"$WORK/published/config.json"
for name in google/gemma-4-26B-A4B-it google/gemma-4-E4B-it mlx-community/gemma-4-26b-a4b-it-4bit \
    RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic; do
    snapshots=$WORK/hub/models--$(echo "$name" | sed 's|/|--|')/snapshots
    mkdir -p "$snapshots"
    ln -s "$WORK/published" "$snapshots/1"
done
ln -s "$MODELS/demo" "$WORK/home/models/gemma-4-E4B-it"
ln -s "$MODELS/demo" "$WORK/home/models/gemma-4-26b-qat"
ln -s "$MODELS" "$WORK/place/models"
ln -s "$EXAMPLES" "$WORK/place/examples"
cp README.md "$WORK/place/"
cd "$WORK/place" || exit 1
run convert "$MODELS/demo" q4_0.gguf --to q4_0
check "the demo as a GGUF file" test "$STATUS" -eq 0
for name in gemma-4-26B-A4B-it-Q4_K_M gemma-4-E4B-it-Q8_0 gemma-3-270m-q4_k_m gemma-4-26b-q4_k_m gemma-4-26b-q4_0; do
    cp q4_0.gguf $name.gguf
done
mkdir -p "$WORK/hub/models--unsloth--gemma-4-E4B-it-GGUF/snapshots/1"
cp q4_0.gguf "$WORK/hub/models--unsloth--gemma-4-E4B-it-GGUF/snapshots/1/gemma-4-E4B-it-Q4_K_M.gguf"
head -c 2000 README.md >long.txt
"$KAKEYA" tokenize --model "$MODELS/demo" --text-file "$EXAMPLES/needle-60.txt" --json |
    sed 's/.*"ids": *\(\[[^]]*]\).*/\1/' >ids.json
echo '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}' >person.json
echo '[{"role": "user", "content": "Is it raining in Oslo?"}]' >chat.json
echo '[{"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}]' >tools.json
# A model to train for, texts, prompts, and an assistant of the demo's.
ln -s "$PAGES/tests/data/vision/tiny-e" M
"$KAKEYA" convert M M-Q4_0.gguf --to q4_0 >"$WORK/check" 2>&1
mkdir corpus
cp "$EXAMPLES"/code/matrix.c corpus/matrix.txt
cp README.md corpus/readme.txt
cp chat.json chats.jsonl
awk 'BEGIN {
    for (i = 1; i <= 40; i++) {
        text = "What follows"
        for (j = 1; j <= 60; j++) text = text " line " i * j
        printf "{\"prompt\": \"def f%d():\", \"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}\n", i, text
    }
}' >prompts.jsonl
mkdir -p "$WORK/hub/models--google--gemma-4-26B-A4B-it-assistant/snapshots"
run train drafter --kind mtp --model "$MODELS/demo" --data prompts.jsonl --steps 1 --batch 1 --blocks 2 --prompts 3 --held-out 1 \
    --answer 16 --sequence 128 --out "$WORK/hub/models--google--gemma-4-26B-A4B-it-assistant/snapshots/1"
check "an assistant for the demo" test "$STATUS" -eq 0
# The page on images and sound has a tiny model that reads both in place of a published one; kinds are told by bytes, not by names.
mkdir -p "$WORK/hub-media/models--google--gemma-4-E4B-it/snapshots" "$WORK/requester"
ln -s "$PAGES/tests/data/vision/tiny-e" "$WORK/hub-media/models--google--gemma-4-E4B-it/snapshots/1"
ln -s "$PAGES/tests" tests
for name in receipt.jpg photo.jpg a.png b.png; do cp "$PAGES/tests/data/images/photo.jpg" $name; done
for name in speech.wav a.mp3 b.flac; do cp "$PAGES/tests/data/sounds/chirp.wav" $name; done
echo '[{"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image"}]}]' >conversation.json
echo '[{"role": "user", "content": [{"type": "audio"}, {"type": "audio"}]}]' >spoken.json
awk 'BEGIN { for (i = 1; i <= 15; i++) heard = heard "<|audio|>"; print "Hear " heard " this." }' >heard.txt # the sound's 15 tokens
"$KAKEYA" tokenize --model tests/data/vision/tiny-e --text-file heard.txt --json | sed 's/.*"ids": *\(\[[^]]*]\).*/\1/' >heard.json

public_key="" # of the end that requests evaluations
if command -v ssh-keygen >/dev/null 2>&1; then
    ssh-keygen -q -t ed25519 -N '' -C alice -f "$WORK/alice"
    public_key=$(cut -d ' ' -f 1,2 "$WORK/alice.pub")
fi

# The Python package, without a wheel.
cp -R "$PAGES/python" "$WORK/python"
if [ -n "$PYTHON" ] && "$PYTHON" -c "import cffi" >"$WORK/check" 2>&1; then
    check "declarations for cffi" env PYTHONPATH="$WORK/python" \
        "$PYTHON" -c "import generate; generate.write_ffi('$PAGES/include', '$WORK/python/kakeya')"
fi

# Whether a block's commands worked: status 0, and no kakeya of a pipe failed. SKIPPED says what is missing. After "$ command" the block
# goes on with what the command prints.
block_works() { # file, kind, place
    rm -f "$WORK/failed"
    SKIPPED=""
    for tool in curl jq git; do
        ! grep -q -w "$tool" "$1" || command -v $tool >/dev/null 2>&1 || SKIPPED="there is no $tool"
    done
    ! grep -q -E 'kakeya serve|127\.0\.0\.1:8080' "$1" || command -v curl >/dev/null 2>&1 || SKIPPED="there is no curl"
    ! grep -q 'kakeya remote' "$1" || [ -n "$public_key" ] || SKIPPED="there is no ssh-keygen"
    interpreter="sh -e" client=""
    if [ "$2" = python ]; then
        interpreter=$PYTHON
        client=$(sed -n 's/^from \([a-z]*\).*/\1/p' "$1" | head -n 1)
        [ "$client" != kakeya ] || client="cffi, numpy"
        { [ -n "$PYTHON" ] && "$PYTHON" -c "import $client"; } >"$WORK/check" 2>&1 || SKIPPED="Python without $client"
        [ "$client" = "cffi, numpy" ] && [ ! -e "$BUILD/lib/libkakeya.so" ] && SKIPPED="this build has no shared library"
    fi
    [ -z "$SKIPPED" ] || return 0
    ! grep -q -w "git diff" "$1" || git_change || return 1
    served=false address="" model=$MODELS/demo hub=$WORK/hub home=$WORK/home key=$public_key
    case $3 in
    docs/guide/images.md:*) grep -q "code\.png" "$1" || model=$PAGES/tests/data/vision/tiny-e hub=$WORK/hub-media ;;
    docs/guide/remote.md:*)
        grep -q -e "--name mini" "$1" || home=$WORK/requester
        grep -q -e "--name mini" "$1" || key=$(cut -d ' ' -f 1,2 "$WORK/home/.config/kakeya/remote/key.pub")
        ;;
    esac
    if grep -q '127\.0\.0\.1:8080' "$1"; then
        start_server --model "$model" --name demo --name gemma || return 1
        served=true
    fi
    awk -v address="$address" -v bus="$WORK/bus.git" -v key="$key" -v picture="$(base64 <photo.jpg | tr -d '\n')" \
        -v sound="$(base64 <speech.wav | tr -d '\n')" -v printed="$WORK/printed" '
        BEGIN { printf "" >printed }
        /^\$ / { session = 1; sub(/^\$ /, "") ; print; next }
        session { print >printed; next }
        {
            gsub(/127\.0\.0\.1:8080/, address)
            gsub(/\/srv\/bus\.git/, bus)
            gsub(/ssh-ed25519 AAAA\.\.\./, key)
            gsub(/base64,\.\.\./, "base64," picture)
            gsub(/UklGR\.\.\./, sound)
            print
        }' "$1" >"$1.run"
    STATUS=0
    # shellcheck disable=SC2086  # an option of sh
    env -u XDG_CONFIG_HOME -u XDG_STATE_HOME PATH="$WORK/bin:$PATH" HOME="$home" HF_HUB_CACHE="$hub" \
        KAKEYA_MODEL="$model" no_proxy='*' NO_PROXY='*' \
        KAKEYA_LIBRARY="$BUILD/lib/libkakeya.so" PYTHONPATH="$WORK/python" \
        $interpreter "$1.run" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
    ! "$served" || stop_server || return 1
    ! grep -v -x -F -f "$WORK/out" "$WORK/printed" >>"$WORK/failed" || return 1
    [ "$STATUS" -eq 0 ] && { [ ! -s "$WORK/failed" ] || return 1; }
}

git_change() { # a working tree with a change in it
    [ ! -e .git ] || return 0
    { git init -q . && echo one >file && git add file && echo two >>file; } >"$WORK/check" 2>&1
}

# The test itself: what does not work is found, and so is a comment that marks nothing.
printf 'Text.\n\n    kakeya run --no-such-option x | cat\n\n<!-- not run: why -->\n\nText.\n' >"$WORK/page"
printf '\n<!-- not run: why -->\n\n    no such\n\n   ```sh\n' >>"$WORK/page"
blocks "$WORK/list" "$WORK/page"
check "blocks are told apart" test "$(cut -d ' ' -f 1,2 "$WORK/list" | tr '\n' ' ')" = "1 sh 0 stray 2 marked 3 a "
if block_works "$WORK/blocks/1" sh page; then
    fail "a wrong option is found" "$(shown)"
else
    pass "a wrong option is found"
fi
printf '$ echo one; echo two\none\n' >"$WORK/blocks/1"
check "what a command is said to print" block_works "$WORK/blocks/1" sh page
echo three >>"$WORK/blocks/1"
if block_works "$WORK/blocks/1" sh page; then
    fail "what it does not print is found" "$(shown)"
else
    pass "what it does not print is found"
fi

guide=$(cd "$PAGES" && ls docs/guide/*.md | grep -v -x docs/guide/deploy.md) # tests/serve/test_deploy.sh runs the blocks of that one
! short_sweeps || guide="" # `make check` has README.md alone
# shellcheck disable=SC2086  # a list
(cd "$PAGES" && blocks "$WORK/list" README.md $guide)
while read -r number kind place <&3; do
    STATUS=0
    case $kind in
    marked) continue ;;
    sh | python) ;;
    stray) fail "$place: a comment that marks a block" "no block follows it" && continue ;;
    *) fail "$place: a block of commands or of Python, or marked as not run" "it is $kind" && continue ;;
    esac
    works=true
    block_works "$WORK/blocks/$number" "$kind" "$place" || works=false
    if [ -n "$SKIPPED" ]; then
        skip "$place" "$SKIPPED"
    elif "$works"; then
        pass "$place"
    else
        fail "$place" "$(cat "$WORK/blocks/$number" "$WORK/failed" 2>&1)
$(shown)"
    fi
done 3<"$WORK/list"
most=8
short_sweeps || most=30
check "at least $most blocks are run" test "$(grep -c -v ' marked ' "$WORK/list")" -ge $most
finish
