# bash completion for kakeya(1). Verbs and options come from the program's own tables, so they are never out of date.
_kakeya() {
    local program=$1 word=$2 previous=$3 verb=${COMP_WORDS[1]} values first=2 words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p') --help --version"
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
        return
    fi
    case $verb in
    eval | remote | train | sessions)
        if [[ $COMP_CWORD -eq 2 && $word != -* ]]; then
            case $verb in
            train) words="f-theta drafter" ;;
            sessions) words="list show rm" ;;
            *) words=$("$program" "$verb" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p') ;;
            esac
        fi
        [[ $verb == sessions || ${COMP_WORDS[2]} == -* || $COMP_CWORD -eq 2 ]] || verb="$verb ${COMP_WORDS[2]}" first=3
        ;;
    esac
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
