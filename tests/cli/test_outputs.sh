# Folders that verbs write: a finished result is not overwritten, a folder with other people's files is not taken, and what a killed
# conversion has left goes with the next one.
. tests/cli/common.sh

dense=tests/data/golden/gemma4-tiny-dense
jq -nc '[range(900) | . * 7 % 90 + 3]' >"$WORK/ids.json"
f_theta="train f-theta --model $dense --aux-layers 1 --rank 8 --ranks 1 --tokens 64"

# --- train: what is there stays
for name in f_theta_config.json notes.txt model.safetensors; do
    mkdir "$WORK/there"
    echo kept >"$WORK/there/$name"
    case $name in f_theta_config.json) reason='there: already has an f_theta' ;; *) reason="there: contains $name, which is not" ;; esac
    # shellcheck disable=SC2086 # several arguments
    fails_with "no f_theta goes into a folder with $name" "$reason" $f_theta --out "$WORK/there" "$WORK/ids.json"
    check "which is kept" test "$(cat "$WORK/there/"*)" = kept
    rm -r "$WORK/there"
done
mkdir "$WORK/there"
touch "$WORK/there/notes.txt"
fails_with "nor a drafter" 'there: contains notes.txt, which is not' train drafter --model "$dense" --out "$WORK/there" "$WORK/ids.json"
rm "$WORK/there/notes.txt"
touch "$WORK/there/config.json"
fails_with "nor beside a drafter" 'there: already has a drafter' train drafter --model "$dense" --out "$WORK/there" "$WORK/ids.json"
rm "$WORK/there/config.json"
touch "$WORK/file"
# shellcheck disable=SC2086
fails_with "a file is no folder" 'file: is not a directory' $f_theta --out "$WORK/file" "$WORK/ids.json"
ln -s gone "$WORK/link"
# shellcheck disable=SC2086
fails_with "nor is a link that leads nowhere" 'link: .*a link to gone, which does not exist' $f_theta --out "$WORK/link" "$WORK/ids.json"

# --- convert: what a killed one has left
gone=999999 # no process has this number
while kill -0 "$gone" 2>/dev/null; do gone=$((gone - 1)); done
leave() { # number: a directory on its way
    mkdir "$WORK/small.kakeya-$1"
    echo '{}' >"$WORK/small.kakeya-$1/config.json"
    : >"$WORK/small.kakeya-$1/.kakeya-$1-5-0"
}
leave "$gone"
leave $$ # of a process that lives
mkdir "$WORK/small.kakeya-x" "$WORK/small.kakeya-0"
works "a conversion" convert "$MODELS/demo" "$WORK/small" --to affine8
check "removes what a dead process has left" test ! -e "$WORK/small.kakeya-$gone"
check "and not what one that lives is making" test -e "$WORK/small.kakeya-$$/config.json"
check "nor what is called otherwise" test -e "$WORK/small.kakeya-x" -a -e "$WORK/small.kakeya-0"
killed=no
for attempt in 1 2 3 4 5; do
    rm -rf "$WORK/other" "$WORK"/small.kakeya-*
    "$KAKEYA" convert "$MODELS/demo" "$WORK/other" --to affine8 >/dev/null 2>&1 &
    process=$!
    while kill -0 "$process" 2>/dev/null && [ ! -d "$WORK/other.kakeya-$process" ]; do :; done
    kill -KILL "$process" 2>/dev/null
    wait "$process" 2>/dev/null
    [ -d "$WORK/other.kakeya-$process" ] && killed=yes && break
done
check "a conversion was killed in its midst ($attempt)" test "$killed" = yes
works "the same one again" convert "$MODELS/demo" "$WORK/other" --to affine8
check "leaves the directory alone" test "$(cd "$WORK" && echo other*)" = other

finish
