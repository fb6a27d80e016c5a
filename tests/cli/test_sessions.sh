# kakeya sessions: what a directory of saved sessions holds.
. tests/cli/common.sh

if [ ! -x "$BUILD/tools/saved_sessions" ]; then
    skip "kakeya sessions" "this build has no server"
    finish
    exit
fi

DIRECTORY=$WORK/kv
"$BUILD/tools/saved_sessions" "$DIRECTORY" "$MODELS/demo" >"$WORK/out" 2>"$WORK/err" && STATUS=0 || STATUS=$?
check "two sessions are saved" test "$STATUS" -eq 0
checkpoint=$(cd "$DIRECTORY" && ls | grep -v '^sess-' | grep 'kkc$')
named=$(cd "$DIRECTORY" && ls | grep '^sess-')
check "the directory is its owner's alone" test "$(stat -c %a "$DIRECTORY")" = 700
check "so is each file" test "$(stat -c %a "$DIRECTORY/$named")" = 600

works "sessions list works" sessions list --session-dir "$DIRECTORY"
check "list names both" grep -q '^2 sessions, ' "$WORK/out"
begin=$(echo "$checkpoint" | cut -c 1-16)
check "list shows tokens, reason and model" grep -q -E "^$begin +60 +[0-9.]+ +[0-9]+ s +system turn +toy$" "$WORK/out"
check "list shows the session with a name" grep -q -E '^sess-[0-9a-f]{11} +40 ' "$WORK/out"
check "list fits into 80 columns" test "$(wc -L <"$WORK/out")" -le 80
works "sessions list --json works" sessions list --json --session-dir "$DIRECTORY"
check "list --json has both" test "$(jq '.sessions | length' "$WORK/out")" -eq 2
check "list --json has the bytes" test "$(jq .bytes "$WORK/out")" -eq "$(cat "$DIRECTORY"/*.kkc | wc -c)"

works "sessions show works" sessions show "$(echo "$checkpoint" | cut -c 1-5)" --session-dir "$DIRECTORY"
check "show verifies" grep -q 'all of them verified' "$WORK/out"
check "show says what rows it holds" grep -q '60, all of them prompt rows' "$WORK/out"
works "sessions show --json works" sessions show "$named" --json --session-dir "$DIRECTORY"
check "show --json names the session" test "$(jq -r .metadata.name "$WORK/out").kkc" = "$named"
check "show --json finds it good" test "$(jq .good "$WORK/out")" = true

# one byte changed in the middle
size=$(stat -c %s "$DIRECTORY/$named")
dd if=/dev/zero of="$DIRECTORY/$named" bs=1 seek=$((size / 2)) count=64 conv=notrunc 2>/dev/null
fails_with "show finds damage" "damaged: chunk" sessions show "$named" --session-dir "$DIRECTORY"
cp "$DIRECTORY/$checkpoint" "$DIRECTORY/short.kkc"
truncate -s 100 "$DIRECTORY/short.kkc"
works "list goes on behind a file that is cut off" sessions list --session-dir "$DIRECTORY"
check "and says so" grep -q -E '^short.kkc .* unreadable' "$WORK/out"

fails_with "a wrong name is named" "no session is called 'zz'" sessions show zz --session-dir "$DIRECTORY"
fails_with "rm with one wrong name removes nothing" "no session is called 'zz'" sessions rm short zz --session-dir "$DIRECTORY"
check "nothing is removed" test -e "$DIRECTORY/short.kkc"
works "sessions rm works" sessions rm short "$named" --session-dir "$DIRECTORY"
check "rm says what it removed" grep -q "^removed $named\$" "$WORK/out"
check "it is gone" test ! -e "$DIRECTORY/$named"
check "the other one is not" test -e "$DIRECTORY/$checkpoint"
fails_with "a directory that is not there is named" "no/such: No such file" sessions list --session-dir "$WORK/no/such"

refuses "sessions without more is wrong usage" "say list, show or rm" sessions
refuses "an unknown word is named" "unknown 'ls'" sessions ls --session-dir "$DIRECTORY"
refuses "the directory must be given" "session-dir is missing" sessions list
refuses "show takes one name" "show takes one name" sessions show a b --session-dir "$DIRECTORY"
refuses "list takes none" "takes no name" sessions list a --session-dir "$DIRECTORY"

finish
