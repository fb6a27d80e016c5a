# fish completion for kakeya(1). Verbs and options come from the program's own tables, so they are never out of date.
function __kakeya_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l program $words[1]
    if test (count $words) -eq 1
        $program --list-verbs 2>/dev/null
        return
    end
    set -l verb $words[2]
    # what some verbs take next: eval niah, train drafter
    set -l next ($program $verb --list-verbs 2>/dev/null)
    if test (count $next) -gt 0
        if test (count $words) -eq 2; and not string match -q -- '-*' $word
            printf '%s\n' $next
            return
        end
        if test (count $words) -gt 2; and contains -- $words[3] (string split -f 1 \t -- $next)
            set -a verb $words[3]
        end
    end
    if string match -q -- '--*' $words[-1]
        for line in ($program $verb --list-options 2>/dev/null)
            set -l part (string split \t -- $line)
            test "$part[1]" = "$words[-1]"; or continue
            if string match -q -r '^[a-z0-9]' -- $part[2]
                string split ' ' -- $part[2]
                return
            end
        end
    end
    if string match -q -- '-*' $word
        $program $verb --list-options 2>/dev/null | sed 's/^\([^\t]*\)\t[^\t]*\t/\1\t/'
    else
        __fish_complete_path $word
    end
end
complete -c kakeya -f -a '(__kakeya_complete)'
