#!/bin/sh
# Prints docs/reference/options.md: every verb and option, out of the program's own tables.
# usage: tools/reference.sh KAKEYA >docs/reference/options.md
set -eu

kakeya=${1:?usage: tools/reference.sh KAKEYA}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The rows of a table: --list-options has a name, the choices or what the option takes, and a text between tabs; --help has what it takes.
rows() { # command...: only the options in $work/wanted
    "$kakeya" "$@" --help | sed -n -E 's/^  --([a-z0-9-]+) ([^ ]+).*/\1 \2/p' >"$work/arguments"
    "$kakeya" "$@" --list-options | awk -F'\t' '
        FILENAME == ARGV[1] { wanted[$1] = 1; next }
        FILENAME == ARGV[2] { split($0, part, " "); argument["--" part[1]] = part[2]; next }
        {
            if (!($1 in wanted)) next
            takes = argument[$1] == "" ? "" : " " argument[$1]
            text = $3
            if ($2 != "" && $2 != argument[$1] && text !~ /[:(].*,/) text = text "; one of " $2
            gsub(/\|/, "\\|", takes)
            gsub(/\|/, "\\|", text)
            gsub(/</, "\\<", text)
            print "| `" $1 takes "` | " text " |"
        }' "$work/wanted" "$work/arguments" -
}
table() { # command...
    [ -s "$work/wanted" ] || return 0
    printf '| option | what it does |\n|---|---|\n'
    rows "$@"
    echo
}

"$kakeya" run --help | sed -n '/^Shared options:/,/^$/p' | sed -n -E 's/^  (--[a-z0-9-]+).*/\1/p' >"$work/shared"
cat <<'END'
# Verbs and options

The program prints this page from its own tables (`tools/reference.sh`), as it does `kakeya VERB --help` and what shells complete.
`man kakeya` says more about each.

END
"$kakeya" --list-verbs >"$work/verbs"
printf '| verb | what it does |\n|---|---|\n'
awk -F'\t' '{ print "| [" $1 "](#kakeya-" $1 ") | " $2 " |" }' "$work/verbs"
echo

section() { # heading, command...
    heading=$1
    shift
    "$kakeya" "$@" --help >"$work/help"
    printf '%s kakeya %s\n\n%s\n\n    %s\n\n' "$heading" "$*" "$(sed -n 3p "$work/help")" "$(sed -n '1s/^usage: //p' "$work/help")"
    "$kakeya" "$@" --list-options | cut -f1 >"$work/options"
    if [ "$(grep -c -x -F -f "$work/shared" "$work/options")" -gt 5 ]; then
        grep -v -x -F -f "$work/shared" "$work/options" >"$work/wanted" || true
        missing=$(grep -v -x -F -f "$work/options" "$work/shared" | sed 's/.*/`&`/' | tr '\n' ',' | sed 's/,$//; s/,/, /g')
        table "$@"
        if [ -z "$missing" ]; then
            printf 'It takes the [shared options](#shared-options).\n\n'
        else
            printf 'It takes the [shared options](#shared-options), except %s.\n\n' "$missing" | fold -s -w 138 | sed 's/ *$//'
        fi
    else
        cp "$work/options" "$work/wanted" # some of its own may have the names of shared ones
        table "$@"
    fi
}
cut -f1 "$work/verbs" | while IFS= read -r verb; do
    "$kakeya" "$verb" --list-verbs 2>"$work/errors" >"$work/words"
    if [ "$verb" = sessions ] || [ ! -s "$work/words" ]; then
        section "##" "$verb"
    else
        printf '## kakeya %s\n\n' "$verb"
        printf '| %s | what it does |\n|---|---|\n' "$verb"
        awk -F'\t' '{ print "| `" $1 "` | " $2 " |" }' "$work/words"
        echo
        cut -f1 "$work/words" | while IFS= read -r word; do section "###" "$verb" "$word"; done
    fi
done
printf '## Shared options\n\nVerbs that open a model take these.\n\n'
cp "$work/shared" "$work/wanted"
table run
