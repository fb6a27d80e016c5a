# Words: spelling, and phrases that readers stumble over (phrases.txt), in what users read; help texts within 100 columns.
. tests/cli/common.sh

# What every verb says with --help, in a file for each; verbs of verbs have theirs.
mkdir "$WORK/help"
"$KAKEYA" --help >"$WORK/help/kakeya"
"$KAKEYA" --list-verbs | cut -f1 | while IFS= read -r verb; do
    echo "$verb"
    "$KAKEYA" "$verb" --list-verbs 2>/dev/null | cut -f1 | sed "s/^/$verb /"
done >"$WORK/verbs"
while IFS= read -r verb; do
    # shellcheck disable=SC2086
    "$KAKEYA" $verb --help >"$WORK/help/$(echo "$verb" | tr ' ' -)"
done <"$WORK/verbs"
check "the help texts are found" test "$(cat "$WORK/help"/* | wc -l)" -gt 500
awk 'length > 100 && !/^usage: / && !/^  kakeya / { print FILENAME ": " $0 }' "$WORK/help"/* >"$WORK/out"
check "no line of a help text is longer than 100 columns" test ! -s "$WORK/out"

STATUS=0
: >"$WORK/err"
wc -l README.md >"$WORK/out"
check "README has at most 150 lines" test "$(wc -l <README.md)" -le 150

# What a reader who has never seen the project looks for is in README, or on a page that two links lead to.
linked() { # page: the project's pages that it links to
    grep -o -E '\]\([^)#: ]+\.md' "$1" | sed 's/](//' | while IFS= read -r link; do
        echo "$(cd "$(dirname "$1")/$(dirname "$link")" && pwd)/${link##*/}"
    done | sed "s|^$PWD/||" | sort -u
}
found() { # what is looked for, extended regular expression of lines that tell it
    STATUS=0
    xargs grep -l -E "$2" <"$WORK/near" >"$WORK/out" 2>"$WORK/err" || true
    check "$1 is within two links of README" test -s "$WORK/out"
}
linked README.md >"$WORK/one"
{ cat "$WORK/one" && while IFS= read -r page; do linked "$page"; done <"$WORK/one"; } | sort -u >"$WORK/near"
check "pages are near README" test "$(wc -l <"$WORK/one")" -gt 10 -a "$(wc -l <"$WORK/near")" -gt 20
found "serving a GGUF file with a key" '^    kakeya serve --model [^ ]*\.gguf( .*)? --api-key '
found "what restored costs" '^## What `restored` costs$'
found "adding an operation" '^## Adding an operation'

ls README.md CONTRIBUTING.md docs/*.md docs/*/*.md include/*.h python/README.md python/kakeya/*.py \
    python/kakeya/remote/*.py models/README.md docs/kakeya.1 "$WORK/help"/* >"$WORK/pages"
check "the pages are found" test "$(wc -l <"$WORK/pages")" -gt 30
grep -v '^#' tests/style/phrases.txt | cut -f1 >"$WORK/phrases"
xargs grep -n -E -f "$WORK/phrases" <"$WORK/pages" |
    grep -v -i -E 'behind (HAProxy|nginx|an? [a-z ]*(balancer|router)|[a-z-]*router|balancers|routers)|\(#[^)]*behind|look-behind' \
        >"$WORK/out" || true
STATUS=0
: >"$WORK/err"
check "no phrase of phrases.txt is in what users read" test ! -s "$WORK/out"

if command -v codespell >/dev/null 2>&1; then
    # names of Unicode's properties and scripts
    codespell -q 3 -L nd,beng,maka,te README.md CONTRIBUTING.md docs include src python/README.md models/README.md --skip '*.svg,*.png' \
        >"$WORK/out" 2>"$WORK/err" || true
    check "codespell finds nothing" test ! -s "$WORK/out"
else
    skip "codespell finds nothing" "no codespell here"
fi
finish
