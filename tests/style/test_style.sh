# The rules of form that a machine can check (CONTRIBUTING.md): clang-format, columns, length of files, blanks at the end of
# lines, and that what is cited exists.
. tests/cli/common.sh

code_columns=120  # C, CUDA
prose_columns=140 # everything else, but tables, headings and code in Markdown
most_lines=800

# Files with a reason to be longer than most_lines: none.
longer() { :; }

# Files that clang-format has not been run on yet.
unformatted() {
    cat <<'END'
END
}

# Programs that evaluations read as text, and vectors: not ours to change.
sources() { # find's expression...
    find Makefile CMakeLists.txt README.md CONTRIBUTING.md bench docs examples include models/README.md src tests tools \
        \( -path examples/code -o -path tests/data -o -path tests/fuzz/corpus \) -prune -o -type f \( "$@" \) -print | sort
}
sources -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.[ch]pp' >"$WORK/code"
sources -name '*.sh' -o -name '*.awk' -o -name '*.py' -o -name Makefile -o -name CMakeLists.txt -o -name '*.1' >"$WORK/scripts"
sources -name '*.md' >"$WORK/prose"

nothing() { # description: $WORK/out lists what is wrong
    STATUS=0
    : >"$WORK/err"
    check "$1" test ! -s "$WORK/out"
}
too_wide() { # columns: of "file:line:text" on stdin
    # most lines are not even so many bytes, which is told faster than how many characters they are
    awk -v most="$1" 'length > most' | LC_ALL=C.UTF-8 grep -E "^[^:]*:[0-9]*:.{$(($1 + 1))}" || true
}
lines() { xargs -d '\n' grep -n '' /dev/null <"$1"; }

: >"$WORK/out" >"$WORK/err" >"$WORK/known"
STATUS=0
check "the sources are found" test "$(cat "$WORK/code" "$WORK/scripts" "$WORK/prose" | wc -l)" -gt 250

formatter=$(command -v clang-format-14 || command -v clang-format || true)
version=$([ -z "$formatter" ] || "$formatter" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$version" = 14 ]; then
    # What was found formatted before is known by its checksum and not read again.
    settings=$(sha256sum <.clang-format | cut -c1-16)
    unformatted | grep -v -x -F -f - "$WORK/code" | xargs -d '\n' sha256sum | sed "s/^/$settings/" | sort >"$WORK/sums"
    [ ! -e "$BUILD/formatted" ] || cp "$BUILD/formatted" "$WORK/known"
    comm -23 "$WORK/sums" "$WORK/known" | sed 's/^[^ ]*  //' |
        xargs -r -d '\n' "$formatter" --dry-run -Werror >/dev/null 2>"$WORK/format" || true
    sed -n 's/: error: code should be.*//p' "$WORK/format" | cut -d: -f1,2 | sort -u >"$WORK/out"
    nothing "clang-format would change nothing"
    [ -s "$WORK/out" ] || [ ! -d "$BUILD" ] || cp "$WORK/sums" "$BUILD/formatted"
    unformatted | while IFS= read -r file; do
        if "$formatter" --dry-run -Werror "$file" 2>/dev/null; then echo "$file is formatted: take it off the list"; fi
    done >"$WORK/out"
    nothing "what is not formatted is listed"
else
    skip "clang-format would change nothing" "formatted by clang-format 14; here is ${version:-none}"
fi

unformatted | grep -v -x -F -f - "$WORK/code" >"$WORK/formatted" || true
lines "$WORK/formatted" | too_wide $code_columns | cut -d: -f1,2 >"$WORK/out"
nothing "code has at most $code_columns columns"

lines "$WORK/scripts" | too_wide $prose_columns | cut -d: -f1,2 >"$WORK/out"
nothing "scripts have at most $prose_columns columns"

# Documents whose prose has not been wrapped yet: none.
unwrapped() { :; }

# Tables, headings, indented code and fenced code are as wide as they are; a line that is one word cannot be broken.
while IFS= read -r file; do
    awk -v file="$file" '/^```/ { code = !code; next } code || /^\|/ || /^#/ || /^    / || !/[^ ] +[^ ]/ { next }
                         { print file ":" FNR ":" $0 }' "$file"
done <"$WORK/prose" | too_wide $prose_columns | cut -d: -f1,2 >"$WORK/wide"
unwrapped | sed 's/$/:/' | grep -v -F -f - "$WORK/wide" >"$WORK/out" || true
nothing "prose has at most $prose_columns columns"

xargs -d '\n' wc -l <"$WORK/code" | awk -v most=$most_lines '$2 != "total" && $1 > most { print $2 ": " $1 " lines" }' >"$WORK/long"
longer | sed 's/$/:/' | grep -v -F -f - "$WORK/long" >"$WORK/out" || true
nothing "no file has more than $most_lines lines"

# In the conversations of test_chat.sh a prompt ends with a blank.
{ lines "$WORK/code"; lines "$WORK/scripts"; lines "$WORK/prose"; } | grep -E '[[:blank:]]$' |
    grep -v '^tests/cli/test_chat.sh:[0-9]*:expect ' | cut -d: -f1,2 >"$WORK/out" || true
nothing "no line ends with a blank"

{ lines "$WORK/code"; lines "$WORK/prose"; } | grep "$(printf '\t')" | cut -d: -f1,2 >"$WORK/out" || true
nothing "code and prose have no tabs"

# Documents and files that headers and code cite, from the root, from src/ or beside the file.
lines "$WORK/code" | grep -v -E '# *include <' | awk -F: '
    { text = substr($0, length($1 $2) + 3)
      while (match(text, /[A-Za-z0-9_.\/-]+\.(md|py|sh|h|c|cuh|cu)/)) {
          cited = substr(text, RSTART, RLENGTH)
          text = substr(text, RSTART + RLENGTH)
          if (text !~ /^[A-Za-z0-9_.(]/ && (cited ~ /[a-z]\/[a-z]/ || cited ~ /\.md$/) && cited !~ /^(\/|\.|-)/)
              print $1 ":" $2 ":" cited
      } }' | while IFS=: read -r file line cited; do
    for place in "$cited" "src/$cited" "src/backend/$cited" "tests/$cited" "include/$cited" "${file%/*}/$cited"; do
        [ ! -e "$place" ] || continue 2
    done
    echo "$file:$line: $cited"
done >"$WORK/out"
nothing "what code cites is in the repository"

# Links of documents.
while IFS= read -r file; do
    grep -n -o -E '\]\([^)#: ]+' "$file" | sed 's/](//' | while IFS=: read -r line cited; do
        [ -e "$(dirname "$file")/$cited" ] || echo "$file:$line: $cited"
    done
done <"$WORK/prose" >"$WORK/out"
nothing "what documents link to is in the repository"

finish
