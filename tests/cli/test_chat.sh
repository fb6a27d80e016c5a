# The chat, on a pseudo-terminal: line editing, commands, Ctrl-C, colours, progress.
. tests/cli/common.sh

if ! has_terminals; then
    skip "the chat" "no pseudo-terminals here"
    finish
fi

# Plays the script on stdin against kakeya run ARGUMENTS.
play() { # description, arguments...
    description=$1
    shift
    STATUS=0
    "$BUILD/tools/pty" "$KAKEYA" "$@" >"$WORK/out" 2>"$WORK/err" || STATUS=$?
    if [ "$STATUS" -eq 0 ]; then
        pass "$description"
    else
        fail "$description" "$(shown)
$(tail -c 400 "$WORK/out")"
    fi
}
escape=$(printf '\033')
needle_file=$EXAMPLES/needle-60.txt

play "a question is answered, /exit leaves" run --max-tokens 40 <<'SCRIPT'
expect > 
send Note 1: x. IMPORTANT: the secret code is MAPLE-7890. Question: what is the secret code? Answer:
expect The secret code is MAPLE-7890.
expect tokens per forward
expect > 
send /exit
exit 0
SCRIPT
check "a terminal gets colours" grep -q "$escape\[2m" "$WORK/out"

play "commands: /help, /reset, an unknown one; Ctrl-D leaves" run <<'SCRIPT'
expect > 
send /help
expect /reset
expect /save FILE
expect /load FILE
expect /image FILE
expect /audio FILE
expect > 
send /reset
expect anew
expect > 
send /frobnicate
expect unknown command /frobnicate
expect > 
end
exit 0
SCRIPT

play "the second turn continues the first, /reset forgets it" run --max-tokens 24 <<'SCRIPT'
expect > 
send hello
expect prompt tokens
expect > 
send again
expect prompt tokens
expect > 
send /reset
expect anew
expect > 
send hello
expect prompt tokens
expect > 
end
exit 0
SCRIPT
# prompt tokens of the three turns: the second holds the first turn too, the third is as the first
tr '\r' '\n' <"$WORK/out" | grep -o '\[[0-9,]* prompt tokens' | tr -dc '0-9\n' >"$WORK/counts"
first=$(sed -n 1p "$WORK/counts") second=$(sed -n 2p "$WORK/counts") third=$(sed -n 3p "$WORK/counts")
check "the conversation grows and starts anew" test "$second" -gt "$first" -a "$third" -eq "$first"

play "Ctrl-C ends the answer and keeps the chat" run --ignore-eos --max-tokens 100000 <<'SCRIPT'
expect > 
send def quicksort(items):
expect def quicksort(items):
output 40
keeps
interrupt
expect tokens per forward
expect > 
send /help
expect /reset
expect > 
interrupt
expect Ctrl-C again
expect > 
interrupt
exit 0
SCRIPT

# By default a terminal throws away what it has not shown yet when Ctrl-C is typed, the program's answer to it included.
play "Ctrl-C at the prompt gives up the line" run <<'SCRIPT'
expect > 
type abc
expect abc
keeps
interrupt
expect Ctrl-C again
expect > 
send /help
expect /reset
expect > 
interrupt
expect Ctrl-C again
expect > 
end
exit 0
SCRIPT

play "history: the line before comes back with Ctrl-P" run --max-tokens 8 <<SCRIPT
expect > 
send /frobnicate
expect unknown command /frobnicate
expect > 
send $(printf '\020')
expect unknown command /frobnicate
expect > 
end
exit 0
SCRIPT

play "characters of several bytes can be typed" run --max-tokens 8 <<'SCRIPT'
expect > 
send /naïve—漢字
expect unknown command /naïve—漢字
expect > 
end
exit 0
SCRIPT

play "a turn that does not fit is refused, the chat goes on" run --context 40 --max-tokens 4 <<'SCRIPT'
expect > 
send one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
expect kakeya run: 
expect > 
send x
expect tokens per forward
expect > 
end
exit 0
SCRIPT

export NO_COLOR=1
play "NO_COLOR is honoured" run --max-tokens 8 <<'SCRIPT'
expect > 
send hello
expect tokens per forward
expect > 
end
exit 0
SCRIPT
check "no colour sequences with NO_COLOR" sh -c "! grep -q '$escape\[2m' '$WORK/out'"
unset NO_COLOR

# --- thoughts
"$BUILD/tools/scripted_model" "$MODELS/demo" "$WORK/thinker" '<|channel>thought
Hm, let me see.<channel|>Fine.' || fail "the scripted model" "not written"
play "thoughts are dimmed" run --model "$WORK/thinker" --thinking <<SCRIPT
expect > 
send why
expect $escape[2mH
expect see
expect Fine.
expect tokens per forward
expect > 
end
exit 0
SCRIPT
play "without --thinking they are not shown" run --model "$WORK/thinker" <<'SCRIPT'
expect > 
send why
expect Fine.
expect tokens per forward
expect > 
end
exit 0
SCRIPT
check "not at all" sh -c "! grep -q 'let me see' '$WORK/out'"

# --- conversations in files
question='def add(a, b): what does it return, and what else could it do with its arguments'
play "a conversation without a break" run --max-tokens 24 --system 'Be brief.' <<SCRIPT
expect > 
send $question
expect tokens per forward
expect > 
send and then
expect tokens per forward
expect > 
end
exit 0
SCRIPT
tr -d '\r' <"$WORK/out" | sed -n '/> and then/,/tokens per forward/p' | grep -v -e 'tokens per forward' -e 'and then$' >"$WORK/expected"
play "/save keeps it" run --max-tokens 24 --system 'Be brief.' <<SCRIPT
expect > 
send /save $WORK/talk
expect there is nothing to save yet
expect > 
send $question
expect tokens per forward
expect > 
send /save
expect /save needs the name of a file
expect > 
send /save $WORK/none/talk
expect kakeya run: $WORK/none/talk
expect > 
send /save $WORK/talk
expect (3 messages saved in $WORK/talk)
expect > 
end
exit 0
SCRIPT
play "/load goes on in another process" run --max-tokens 24 <<SCRIPT
expect > 
send /load $WORK/talk
expect (3 messages loaded from $WORK/talk, with 
expect tokens in memory)
expect > 
send and then
expect tokens per forward
expect > 
send /reset
expect anew
expect > 
end
exit 0
SCRIPT
tr -d '\r' <"$WORK/out" | sed -n '/> and then/,/tokens per forward/p' | grep -v -e 'tokens per forward' -e 'and then$' >"$WORK/continued"
check "with the answer that it would have had" sh -c "test -s '$WORK/expected' && cmp '$WORK/expected' '$WORK/continued'"
play "under another policy the messages are computed anew" run --max-tokens 4 --attention native <<SCRIPT
expect > 
send /load $WORK/talk
expect kakeya run: 
expect (3 messages loaded from $WORK/talk; the next answer computes them anew)
expect > 
send and then
expect tokens per forward
expect > 
end
exit 0
SCRIPT
head -c 3000 "$WORK/talk" >"$WORK/short"
head -c 40 "$WORK/talk" >"$WORK/shorter"
printf 'kakeya chat 1\n2\n{}' >"$WORK/object"
printf 'kakeya chat 1\n34\n[{"role":"king","content":"obey"}]\n' >"$WORK/king"
play "what is wrong with a file is told, the chat goes on" run --max-tokens 4 <<SCRIPT
expect > 
send /load $WORK/none
expect kakeya run: $WORK/none: No such file
expect > 
send /load $needle_file
expect not a conversation written by /save
expect > 
send /load $WORK/shorter
expect ends after
expect > 
send /load $WORK/object
expect the messages are not a list
expect > 
send /load $WORK/king
expect message 0 has the role "king"
expect > 
send /load $WORK/short
expect kakeya run: 
expect computes them anew
expect > 
send x
expect tokens per forward
expect > 
end
exit 0
SCRIPT

# --- pictures
tiny="--model tests/data/vision/tiny-tower --backend cpu --precision f32 --threads 2 --ignore-eos --max-tokens 8"
images=tests/data/images
show_answer() { # the line of the question
    tr -d '\r' <"$WORK/out" | sed -n "/> $1/,/tokens per forward/p" | grep -v -e 'tokens per forward' -e "$1\$"
}
# shellcheck disable=SC2086
{
    works "an answer about a picture" run $tiny --image $images/photo.jpg,budget=70 'What is this?'
    cp "$WORK/out" "$WORK/expected"
    play "/image gives the next message a picture" run $tiny --image-budget 70 <<SCRIPT
expect > 
send /image
expect /image needs the name of a file
expect > 
send /image $images/photo.jpg,budget=71
expect 70, 140, 280, 560 or 1120
expect > 
send /image $images/bad/truncated.jpg
expect kakeya run: $images/bad/truncated.jpg: broken JPEG
expect > 
send /image -
expect standard input is this chat
expect > 
send /image $images/photo.jpg
expect (a picture of 63 tokens stands before your next message)
expect > 
send What is this?
expect tokens per forward
expect > 
send /image $images/text.png,budget=140
expect before your next message
expect > 
send and this?
expect tokens per forward
expect > 
end
exit 0
SCRIPT
    show_answer 'What is this?' >"$WORK/found"
    check "whose answer is that of run --image" sh -c "test -s '$WORK/expected' && cmp '$WORK/expected' '$WORK/found'"
    show_answer 'and this?' >"$WORK/expected"
    play "/save keeps pictures of messages, without one that waits for its message," run $tiny --image-budget 70 <<SCRIPT
expect > 
send /image $images/photo.jpg
expect > 
send What is this?
expect tokens per forward
expect > 
send /image $images/wide.png
expect before your next message
expect > 
send /save $WORK/pictures
expect (2 messages saved
expect > 
send /reset
expect anew
expect > 
send What is this?
expect tokens per forward
expect > 
end
exit 0
SCRIPT
    check "in a file that holds their bytes" test "$(wc -c <"$WORK/pictures")" -gt "$(wc -c <$images/photo.jpg)"
    play "/load goes on with them" run $tiny --image-budget 70 <<SCRIPT
expect > 
send /load $WORK/pictures
expect (2 messages loaded from $WORK/pictures, with 
expect > 
send /image $images/text.png,budget=140
expect > 
send and this?
expect tokens per forward
expect > 
end
exit 0
SCRIPT
    show_answer 'and this?' >"$WORK/found"
    check "with the answer that it would have had" sh -c "test -s '$WORK/expected' && cmp '$WORK/expected' '$WORK/found'"
    head -c 1000 "$WORK/pictures" >"$WORK/short"
    printf 'kakeya chat 2\n63\n[{"role":"user","content":[{"type":"image","bytes":9999999}]}]  \n' >"$WORK/large"
    play "a file that ends inside of a picture is refused" run $tiny <<SCRIPT
expect > 
send /load $WORK/short
expect ends inside of picture 0
expect > 
send /load $WORK/large
expect ends inside of picture 0
expect > 
end
exit 0
SCRIPT
}
# --- sounds
hears="--model tests/data/vision/tiny-e --backend cpu --precision f32 --threads 2 --ignore-eos --max-tokens 8"
sounds=tests/data/sounds
# shellcheck disable=SC2086
{
    works "an answer about a sound and a picture" run $hears --image $images/photo.jpg --image-budget 70 \
        --audio $sounds/chirp.wav 'What is this?'
    cp "$WORK/out" "$WORK/expected"
    play "/audio gives the next message a sound" run $hears --image-budget 70 <<SCRIPT
expect > 
send /audio
expect /audio needs the name of a file
expect > 
send /audio README.md
expect kakeya run: README.md: neither WAV, FLAC nor MP3
expect > 
send /audio -
expect /audio needs a file: standard input is this chat
expect > 
send /image $images/photo.jpg
expect (a picture of 63 tokens stands before your next message)
expect > 
send /audio $sounds/chirp.wav
expect (a sound of 15 tokens stands before your next message)
expect > 
send What is this?
expect tokens per forward
expect > 
send /audio $sounds/sweep-24000.mp3
expect before your next message
expect > 
send /image $images/text.png
expect before your next message
expect > 
send and this?
expect tokens per forward
expect > 
end
exit 0
SCRIPT
    show_answer 'What is this?' >"$WORK/found"
    check "whose answer is that of run --audio" sh -c "test -s '$WORK/expected' && cmp '$WORK/expected' '$WORK/found'"
    show_answer 'and this?' >"$WORK/expected"
    play "/save keeps sounds beside pictures" run $hears --image-budget 70 <<SCRIPT
expect > 
send /image $images/photo.jpg
expect > 
send /audio $sounds/chirp.wav
expect > 
send What is this?
expect tokens per forward
expect > 
send /save $WORK/sounds
expect (2 messages saved
expect > 
end
exit 0
SCRIPT
    bytes=$(($(wc -c <$sounds/chirp.wav) + $(wc -c <$images/photo.jpg)))
    check "in a file that holds their bytes" test "$(wc -c <"$WORK/sounds")" -gt "$bytes"
    check "and is of a form of its own" test "$(head -n 1 "$WORK/sounds")" = "kakeya chat 3"
    check "which pictures alone are not" test "$(head -n 1 "$WORK/pictures")" = "kakeya chat 2"
    play "/load goes on with them" run $hears --image-budget 70 <<SCRIPT
expect > 
send /load $WORK/sounds
expect (2 messages loaded from $WORK/sounds, with 
expect > 
send /audio $sounds/sweep-24000.mp3
expect > 
send /image $images/text.png
expect > 
send and this?
expect tokens per forward
expect > 
end
exit 0
SCRIPT
    show_answer 'and this?' >"$WORK/found"
    check "with the answer that it would have had" sh -c "test -s '$WORK/expected' && cmp '$WORK/expected' '$WORK/found'"
    head -c $((bytes - 100)) "$WORK/sounds" >"$WORK/short"
    printf 'kakeya chat 3\n56\n[{"role":"user","content":[{"type":"audio","bytes":0}]}]' >"$WORK/empty"
    printf 'kakeya chat 3\n56\n[{"role":"user","content":[{"type":"audio","bytes":9}]}]123456789' >"$WORK/noise"
    play "a file that ends inside of a sound is refused, and so is no sound" run $hears <<SCRIPT
expect > 
send /load $WORK/short
expect ends inside of sound 0
expect > 
send /load $WORK/empty
expect bytes
expect > 
send /load $WORK/noise
expect noise: sound: neither WAV, FLAC nor MP3
expect > 
end
exit 0
SCRIPT
}
play "a model that hears nothing says so" run --backend cpu <<SCRIPT
expect > 
send /audio $sounds/chirp.wav
expect kakeya run: the model reads no sound
expect > 
end
exit 0
SCRIPT

text_model "$WORK/text"
play "a model that reads no pictures says so" run --backend cpu --model "$WORK/text" <<SCRIPT
expect > 
send /image $images/photo.jpg
expect kakeya run: the model reads no images
expect > 
end
exit 0
SCRIPT

play "a chat needs a tokenizer" run --model tests/data/golden/gemma4-tiny-moe <<'SCRIPT'
expect kakeya run: a chat needs a tokenizer
exit 1
SCRIPT

finish
