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
# A block of commands loses its indent, and the remarks after three spaces.
blocks() { # list, pages...
    list=$1
    shift
    awk -v to="$WORK/blocks/" '
        function begin(kind) {
            file = to (++count)
            print count, (marked ? "marked" : kind == "" ? "unnamed" : kind), FILENAME ":" FNR
            printf "" >file
            marked = 0
        }
        function end() { if (file != "") close(file); file = "" }
        FNR == 1 { if (marked) print 0, "stray", was; end(); marked = fence = 0; blank = 1 }
        fence && /^```/ { fence = 0; end(); blank = 1; next }
        fence { print >file; next }
        /^```/ { end(); begin(substr($0, 4)); fence = 1; next }
        /^    / && (file != "" || blank) {
            if (file == "") begin("sh")
            line = substr($0, 5)
            if (match(line, /[^ ]   +/)) line = substr(line, 1, RSTART)
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
" verify "*) set -- "$@" --seconds 1 ;;
" remote serve "*) set -- "$@" --once ;;
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
chmod +x "$WORK/bin/kakeya"
trap '[ ! -e "$WORK/server_pid" ] || kill "$(cat "$WORK/server_pid")" 2>/dev/null || true; rm -rf "$WORK"' EXIT
export WORK KAKEYA PYTHONDONTWRITEBYTECODE=1
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

# Whether a block's commands worked: status 0, and no kakeya of a pipe failed. SKIPPED says what is missing.
block_works() { # file, kind
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
    served=false
    if grep -q '127\.0\.0\.1:8080' "$1"; then
        start_server --model "$MODELS/demo" --name demo || return 1
        served=true
        sed "s/127\.0\.0\.1:8080/$address/" "$1" >"$1.run"
    else
        sed "s|/srv/bus\.git|$WORK/bus.git|; s|ssh-ed25519 AAAA\.\.\.|$public_key|" "$1" >"$1.run"
    fi
    STATUS=0
    # shellcheck disable=SC2086  # an option of sh
    env -u XDG_CONFIG_HOME -u XDG_STATE_HOME PATH="$WORK/bin:$PATH" HOME="$WORK/home" HF_HUB_CACHE="$WORK/hub" \
        KAKEYA_MODEL="$MODELS/demo" no_proxy='*' NO_PROXY='*' \
        KAKEYA_LIBRARY="$BUILD/lib/libkakeya.so" PYTHONPATH="$WORK/python" \
        $interpreter "$1.run" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
    ! "$served" || stop_server || return 1
    [ "$STATUS" -eq 0 ] && [ ! -e "$WORK/failed" ]
}

git_change() { # a working tree with a change in it
    [ ! -e .git ] || return 0
    { git init -q . && echo one >file && git add file && echo two >>file; } >"$WORK/check" 2>&1
}

# The test itself: what does not work is found, and so is a comment that marks nothing.
printf 'Text.\n\n    kakeya run --no-such-option x | cat\n\n<!-- not run: why -->\n\nText.\n' >"$WORK/page"
printf '\n<!-- not run: why -->\n\n    no such\n' >>"$WORK/page"
blocks "$WORK/list" "$WORK/page"
check "blocks are told apart" test "$(cut -d ' ' -f 1,2 "$WORK/list" | tr '\n' ' ')" = "1 sh 0 stray 2 marked "
if block_works "$WORK/blocks/1" sh; then
    fail "a wrong option is found" "$(shown)"
else
    pass "a wrong option is found"
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
    block_works "$WORK/blocks/$number" "$kind" || works=false
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
