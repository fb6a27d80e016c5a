#!/bin/sh
# Writes the manual page anew, in its place: what a verb and an option do comes from the program's own tables, as in --help and in
# docs/reference/options.md.
# usage: tools/manual.sh KAKEYA docs/kakeya.1
#
# Below a line `.\" help COMMAND` stands what its --help says before the options, and what else the page has to say after a line `.\" more`.
# In an entry (.TP) of one option, the words of the table stand below its head, and what else the page has to say about it after a line
# `.\" more`. An entry of several options begins with `.\" own`, and all of it is the page's. A new entry is a .TP and its head.
set -eu

kakeya=${1:?usage: tools/manual.sh KAKEYA PAGE} page=${2:?usage: tools/manual.sh KAKEYA PAGE}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# "section, option, command, text" of the tables.
"$kakeya" --list-verbs | cut -f1 | while IFS= read -r verb; do
    "$kakeya" "$verb" --list-verbs 2>/dev/null | cut -f1 >"$work/words"
    if [ -s "$work/words" ]; then sed "s/^/$verb /" "$work/words"; else echo "$verb"; fi
    [ "$verb" != sessions ] || echo "$verb"
done >"$work/commands"
while IFS= read -r command; do
    case $command in "train drafter") section=$command ;; *) section=${command%% *} ;; esac
    # shellcheck disable=SC2086  # a verb of a verb is two words
    "$kakeya" $command --list-options | awk -F'\t' -v at="$section" -v command="$command" '
        { sub(/^--/, "", $1); print at "\t" $1 "\t" command "\t" $3 }'
done <"$work/commands" >"$work/tables"

# What --help says before the options, one file for each command: its form, then paragraphs; a list of verbs has a line for each.
"$kakeya" --list-verbs | cut -f1 | cat - "$work/commands" | sort -u >"$work/all"
while IFS= read -r command; do
    # shellcheck disable=SC2086
    "$kakeya" $command --help | awk '
        NR == 1 { sub(/^usage: /, ""); print "form\t" $0; next }
        /^(Options|Shared options|Example):$/ { exit }
        /^$/ { gap = 1; next }
        /^  [a-z]/ { name = $1; sub(/^ *[^ ]+ +/, ""); print (gap ? "first" : "item") "\t" name "\t" $0; gap = 0; next }
        { print (gap ? "begin" : "more") "\t" $0; gap = 0 }' >"$work/help kakeya $command"
done <"$work/all"

awk -F'\t' -v folder="$work" '
    # Text as it stands in a page: wrapped, with options in bold.
    function roff(text,    out) {
        gsub(/\\/, "\\e", text)
        gsub(/\047/, "\\(aq", text)
        gsub(/ - /, " \\- ", text)
        while (match(text, /`[^`]*`/))
            text = substr(text, 1, RSTART - 1) "\\fB" substr(text, RSTART + 1, RLENGTH - 2) "\\fP" substr(text, RSTART + RLENGTH)
        out = ""
        while (match(text, /--[a-z][a-z0-9-]*/)) {
            name = substr(text, RSTART, RLENGTH)
            gsub(/-/, "\\-", name)
            out = out substr(text, 1, RSTART - 1) "\\fB" name "\\fP"
            text = substr(text, RSTART + RLENGTH)
        }
        return out text
    }
    function write(text,    n, word, i, line) {
        n = split(text, word, " ")
        line = word[1]
        if (line ~ /^[.\047]/) line = "\\&" line
        for (i = 2; i <= n; i++)
            if (length(line) + 1 + length(word[i]) <= 118) line = line " " word[i]
            else { print line; line = (word[i] ~ /^[.\047]/ ? "\\&" : "") word[i] }
        print line
    }
    # What --help says of a command.
    function help(command,    file, part, text, n, line) {
        file = folder "/help " command
        while ((getline line <file) > 0) {
            n = split(line, part, "\t")
            if (part[1] == "more") { text = text " " part[2]; continue }
            if (text != "") { write(roff(text)); text = "" }
            if (part[1] == "form") {
                line = roff(part[2])
                sub(/^kakeya [a-z-]+/, "\\fB&\\fP", line)
                print ".RS"
                write(line)
                print ".RE"
            }
            if (part[1] == "begin" || part[1] == "first") print ".PP"
            if (part[1] == "begin") text = part[2]
            if (part[1] == "item") print ".br"
            if (n == 3) write("\\fB" roff(part[2]) "\\fP: " roff(part[3]))
        }
        close(file)
        if (text != "") write(roff(text))
    }
    # Sentences: a word at the beginning is written large, a value is not.
    function sentence(text) {
        if (text ~ /^[a-z]+ / || text ~ /^[a-z]+$/) text = toupper(substr(text, 1, 1)) substr(text, 2)
        return text ~ /[.]$/ ? text : text "."
    }
    # What the tables say of an option: of the command that the page is at, if it has the option, or else of all of the verb; where its
    # verbs of verbs say different things, or not all of them have it, with their names before.
    function words(name,    key, n, i, j, texts, kind, commands, all, out) {
        key = at SUBSEP name
        if ((key SUBSEP here) in told) return sentence(told[key, here])
        n = split(of[key], commands, ",")
        for (i = 1; i <= n; i++) {
            for (j = 1; j <= kind && texts[j] != told[key, commands[i]]; j++);
            if (j > kind) { texts[++kind] = told[key, commands[i]]; all[kind] = "" }
            word = commands[i]
            sub(/^[a-z]+ /, "", word)
            all[j] = all[j] (all[j] == "" ? "" : ", ") word
        }
        if (kind == 1 && (n == number[at] || at == "SHARED OPTIONS" || at == "eval" || at == "train")) return sentence(texts[1])
        for (j = 1; j <= kind; j++) out = out (j > 1 ? " " : "") sentence(all[j] ": " texts[j])
        return out
    }
    # Below the head of an entry.
    function fill() {
        write(roff(words(waiting)))
        waiting = ""
        skipped = 1
    }
    FNR == NR {
        if (!(($1, $2, $3) in told)) {
            if (!(($1, $3) in seen)) { seen[$1, $3] = 1; number[$1]++ }
            told[$1, $2, $3] = $4
            of[$1, $2] = of[$1, $2] (of[$1, $2] == "" ? "" : ",") $3
        }
        if (!(("SHARED OPTIONS", $2) in of)) { of["SHARED OPTIONS", $2] = $3; told["SHARED OPTIONS", $2, $3] = $4 }
        next
    }
    waiting != "" && /^\.(TP|PP|SS|SH|RS)/ { fill() }
    /^\.S[SH] / { at = substr($0, 5); gsub(/"/, "", at); here = "" }
    /^\.B kakeya [a-z]+ [a-z\\-]+$/ { here = substr($0, 11); gsub(/\\/, "", here) }
    head {
        print
        head = 0
        text = $0
        gsub(/\\f[A-Z]/, "", text)
        gsub(/\\-/, "-", text)
        if (!match(text, /--[a-z][a-z0-9-]*/)) next
        name = substr(text, RSTART + 2, RLENGTH - 2)
        waiting = ((at, name) in of) ? name : ""
        next
    }
    waiting != "" && /^\.\\" own/ { waiting = "" }
    waiting != "" { fill() }
    told_help && /^\.(TP|SS|SH|\\" more)/ { told_help = 0 }
    told_help { next }
    /^\.\\" help / { print; help(substr($0, 10)); told_help = 1; next }
    /^\.(TP|PP|SS|SH|RS|\\" more)/ { skipped = 0 }
    /^\.TP/ { print; head = 1; next }
    !skipped { print }' "$work/tables" "$page" >"$work/page"
cat "$work/page" >"$page"
