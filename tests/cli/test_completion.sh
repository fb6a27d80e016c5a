# Completion by shells: verbs, verbs of verbs, options and values, out of the program's own tables.
. tests/cli/common.sh

program=$(realpath "$KAKEYA")
works "--list-options works" run --list-options
check "and has every option of the help" sh -c '
    "$0" run --help | grep -o -E "^  --[a-z-]+" | sed "s/^  //" | grep -v -x -e --help | sort >"$1/help"
    cut -f1 "$1/out" | sort | cmp -s - "$1/help"' "$program" "$WORK"
check "a line is a name, values and a text" test -z "$(awk -F'\t' 'NF != 3 || $3 == ""' "$WORK/out")"
works "--list-verbs works" --list-verbs
check "a line is a name and a text" test -z "$(awk -F'\t' 'NF != 2 || $2 == ""' "$WORK/out")"
works "it has what verbs take next" sessions --list-verbs
check "all of it" test "$(cut -f1 "$WORK/out" | tr '\n' ' ')" = "list show rm "
works "and nothing where a verb takes nothing" run --list-verbs
check "at all" test ! -s "$WORK/out"
check "no verb is written down in a script of completion" sh -c '! grep -n -w -E "f-theta|drafter|list show rm|eval \| remote" "$@" |
    grep -v "# what some verbs take next"' - tools/completion/kakeya.bash tools/completion/_kakeya tools/completion/kakeya.fish
works "of a verb of a verb, too" eval niah --list-options
check "with its own options" grep -q "^--lines	" "$WORK/out"

# words.. -> what is offered, one in a line; the last word is the one that is completed
in_bash() {
    bash -c '. tools/completion/kakeya.bash; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _kakeya "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; printf "%s\n" "${COMPREPLY[@]}"' - "$program" "$@"
}
in_zsh() {
    zsh -fc '_describe() { shift $(($# - 1)); print -l -- ${${(P)1}%%:*}; }; _files() { print -l -- *; }
        words=("$@") CURRENT=$#; . tools/completion/_kakeya; _kakeya' - "$program" "$@" | grep -e "^$(eval "printf %s \"\${$#}\"")"
}
in_fish() {
    HOME=$WORK fish --no-config -c "set -x PATH $(dirname "$program") \$PATH; source tools/completion/kakeya.fish
        complete -C 'kakeya $*'" | cut -f1
}
offers() { # SHELL EXPECTED WORD..
    shell=$1 expected=$2
    shift 2
    check "$shell: kakeya $*" test "$(in_"$shell" "$@" | LC_ALL=C sort | tr '\n' ' ' | sed 's/ $//')" = "$expected"
}
for shell in bash zsh fish; do
    if ! command -v $shell >/dev/null 2>&1; then
        skip "completion by $shell" "no $shell here"
        continue
    fi
    offers $shell "tokenize top train" t
    offers $shell "niah" eval ni
    offers $shell "--prompt-file" run --prompt
    offers $shell "speculative" run --mode s
    offers $shell "cpu cuda" serve --backend c
    offers $shell "--follow" remote status --fo
    offers $shell "--lines" eval niah --lin
    offers $shell "f-theta" train f
    offers $shell "show" sessions s
    offers $shell "--session-dir" sessions list --se
    offers $shell "--init-from" train drafter --init
    offers $shell "README.md" run --prompt-file README
done
finish
