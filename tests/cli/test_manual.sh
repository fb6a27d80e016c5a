# The tables of verbs and options from which --help, completion and docs/reference/options.md come, and the manual page: what one
# of them has, the other has, too, under the same name and with the same argument.
. tests/cli/common.sh

# Every command: a verb, or a verb of a verb.
"$KAKEYA" --list-verbs >"$WORK/verbs"
cut -f1 "$WORK/verbs" | while IFS= read -r verb; do
    "$KAKEYA" "$verb" --list-verbs 2>/dev/null | cut -f1 >"$WORK/words"
    if [ -s "$WORK/words" ]; then sed "s/^/$verb /" "$WORK/words"; else echo "$verb"; fi
done >"$WORK/commands"
: >"$WORK/err" >"$WORK/out"
STATUS=0
check "verbs and verbs of verbs are listed" sh -c 'for c in run "eval niah" "train drafter" "sessions rm" "remote clean"; do
    grep -q -x "$c" "$1" || exit 1; done' - "$WORK/commands"
works "--help works" --help
check "it shows the verbs that are listed" sh -c '
    sed -n "s/^  \([a-z]*\)  *\([^ ].*\)/\1\t\2/p" "$1" | grep -v "^kakeya" | cmp - "$2"' - "$WORK/out" "$WORK/verbs"

# "section, option, argument" of the tables. A section of the page is a verb; train drafter has one of its own.
tab=$(printf '\t')
while IFS= read -r command; do
    case $command in "train drafter") section=$command ;; *) section=${command%% *} ;; esac
    # shellcheck disable=SC2086  # a verb of a verb is two words
    "$KAKEYA" $command --help | sed -n -E "s/^  --([a-z0-9-]+)( ([^ ]+))?( .*)?\$/$section$tab\1$tab\3/p"
done <"$WORK/commands" | grep -v "${tab}help$tab" | sort -u >"$WORK/tables"

# The same of the page: what it explains (the line after .TP), and what it mentions.
awk '
    /^\.S[SH] / { section = substr($0, 5); gsub(/"/, "", section); next }
    /^\.TP/ { head = 1; next }
    {
        kind = head ? "head" : "text"
        head = 0
        text = $0
        gsub(/\\f[A-Z]/, "", text)
        gsub(/\\-/, "-", text)
        while (match(text, /--[a-z][a-z0-9-]*/)) {
            name = substr(text, RSTART + 2, RLENGTH - 2)
            text = substr(text, RSTART + RLENGTH)
            argument = ""
            if (kind == "head" && match(text, /^ ?" *[^" ]+/)) argument = substr(text, 1, RLENGTH)
            gsub(/[" ]/, "", argument)
            sub(/,$/, "", argument)
            print section "\t" name "\t" argument "\t" kind
        }
    }' docs/kakeya.1 >"$WORK/page"
check "options are found" test "$(wc -l <"$WORK/tables")" -gt 400 -a "$(grep -c "head$" "$WORK/page")" -gt 200

# What is in every table's tail is explained once, in SHARED OPTIONS.
awk -F'\t' '
    NR == FNR { named[$1, $2] = 1; if ($4 == "head" && $1 == "SHARED OPTIONS") shared[$2] = 1; next }
    !(($1, $2) in named) && !($2 in shared) { print $1 ": --" $2 " is not in the page" }' "$WORK/page" "$WORK/tables" >"$WORK/out"
check "the manual page has every option in the section of its verb" test ! -s "$WORK/out"
awk -F'\t' '
    NR == FNR { has[$1, $2] = 1; has[$1, $2, $3] = 1; any[$2] = 1; any[$2, $3] = 1; next }
    $4 != "head" || $2 == "help" { next }
    $1 == "SHARED OPTIONS" { if (!(($2, $3) in any)) print $1 ": no option --" $2 " " $3; next }
    !(($1, $2, $3) in has) { print $1 ": no option --" $2 " " $3 }' "$WORK/tables" "$WORK/page" >"$WORK/out"
check "and explains no other, nor with another argument" test ! -s "$WORK/out"

# The page of reference is what the program prints.
works "the server is in this build" serve --help
if tools/reference.sh "$KAKEYA" >"$WORK/reference" 2>"$WORK/err"; then STATUS=0; else STATUS=$?; fi
diff "$WORK/reference" docs/reference/options.md >"$WORK/out" || true
check "docs/reference/options.md is up to date (tools/reference.sh writes it anew)" test "$STATUS" -eq 0 -a ! -s "$WORK/out"
cp docs/kakeya.1 "$WORK/kakeya.1"
if tools/manual.sh "$KAKEYA" "$WORK/kakeya.1" 2>"$WORK/err"; then STATUS=0; else STATUS=$?; fi
diff "$WORK/kakeya.1" docs/kakeya.1 >"$WORK/out" || true
check "docs/kakeya.1 says of options what the tables say (tools/manual.sh writes it anew)" test "$STATUS" -eq 0 -a ! -s "$WORK/out"
# What the table says is put in, what is the page's own stays.
sed 's/^Read the prompt from FILE.*/wrong/; s/^Special.token strings in it.*/Own words./' docs/kakeya.1 >"$WORK/changed.1"
tools/manual.sh "$KAKEYA" "$WORK/changed.1"
diff docs/kakeya.1 "$WORK/changed.1" | grep '^[<>]' >"$WORK/out" || true
check "of a page with other words the table's come back, and others stay" test "$(cat "$WORK/out")" = \
    "$(printf '< Special-token strings in it become their ids.\n> Own words.')"
finish
