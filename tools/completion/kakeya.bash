# bash completion for kakeya(1). Verbs and options come from the program's own tables, so they are never out of date.
_kakeya() {
    local program=$1 word=$2 previous=$3 verb=${COMP_WORDS[1]} values first=2 words="" next=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="$("$program" --list-verbs 2>/dev/null | cut -f1) --help --version"
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
        return
    fi
    # what some verbs take next: eval niah, train drafter
    next=$("$program" "$verb" --list-verbs 2>/dev/null | cut -f1)
    if [ -n "$next" ]; then
        if [[ $COMP_CWORD -eq 2 ]]; then
            [[ $word == -* ]] || words=$next
        elif [[ $'\n'$next$'\n' == *$'\n'"${COMP_WORDS[2]}"$'\n'* ]]; then
            verb="$verb ${COMP_WORDS[2]}" first=3
        fi
    fi
    # shellcheck disable=SC2086  # a verb may be two words
    if [[ $previous == --* ]]; then
        values=$("$program" $verb --list-options 2>/dev/null | awk -F'\t' -v name="$previous" '$1 == name { print $2 }')
        case $values in
        '') [[ $previous != --preset ]] || words=$("$program" remote presets 2>/dev/null | sed -n 's/^\([a-z-]*\): .*/\1/p') ;;
        [A-Z]*) ;;
        *) words=$values ;;
        esac
    elif [[ "$verb" == remote\ @(run|presets) && $COMP_CWORD -eq $first ]]; then
        words=$("$program" remote presets 2>/dev/null | sed -n 's/^\([a-z-]*\): .*/\1/p')
    elif [[ $word == -* ]]; then
        words="$("$program" $verb --list-options 2>/dev/null | cut -f1) --help"
    fi
    if [ -n "$words" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _kakeya kakeya
