# Who depends on whom: includes point downwards in the order of the folders, no file depends on itself through others, and
# the verbs that are clients of the library know its public header alone.
. tests/cli/common.sh

# The folders of src/, lowest first; a folder includes those before it. Backends do not know each other; the list that they execute
# (backend/program) knows none of them.
order="base media formats text grammar model backend/program backend backend/cpu backend/cuda backend/mlx decode session train convert serve
    measure remote cli"

# "from to" for every include of one of the project's own files. X.c, X.h, X.cu, X.cuh, X.cpp and X.hpp are one node, X.
includes() {
    find src \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.[ch]pp' \) -print | sort |
        xargs -d '\n' grep -o -H -E '^[[:blank:]]*#[[:blank:]]*include[[:blank:]]*["<][^">]*[">]' |
        sed 's|^src/\([^:]*\):.*\(["<]\)\(.*\)[">]$|\1 \3 \2|' >"$WORK/named"
    find src include -type f | sed 's|^[a-z]*/||' | awk -v unknown="$WORK/unknown" '
        NR == FNR { own[$1] = 1; next }
        $2 in own { print $1, $2; next }
        { print >unknown }' - "$WORK/named"
}
without_suffix='s/\.(c|h|cu|cuh|cpp|hpp)( |$)/\2/g'

# In $WORK/symbols, "file address type name" for every symbol of the program's object files. A build folder may hold objects of files that
# have moved since: those do not count.
symbols() {
    find "$BUILD/CMakeFiles" -path '*/kakeya*.dir/src/*.o' | while IFS= read -r object; do
        source=${object##*.dir/}
        [ ! -e "${source%.o}" ] || echo "$object"
    done | xargs -d '\n' nm -A | sed -n 's|^.*\.dir/src/\(.*\)\.cu*\.o:|\1 |p' >"$WORK/symbols"
}

# "from to" for every function or table of one object file of the library that another one uses.
uses() {
    awk 'NF == 4 && $3 ~ /[TDBRC]/ { at[$4] = $1 }
         NF == 3 && $2 == "U" { user[++n] = $1; name[n] = $3 }
         END { for (i = 1; i <= n; i++) if (name[i] in at && at[name[i]] != user[i]) print user[i], at[name[i]] }' \
        "$WORK/symbols" | sort -u
}

circles() { # file of edges
    awk -f tests/style/graph.awk "$1" >"$WORK/out" && STATUS=0 || STATUS=1
    : >"$WORK/err"
}

includes >"$WORK/files"
sed -E "$without_suffix" "$WORK/files" >"$WORK/includes"
STATUS=0
: >"$WORK/out" >"$WORK/err"
check "the includes are found" test "$(wc -l <"$WORK/includes")" -gt 300

awk -v order="$order" '
    function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
    BEGIN { count = split(order, name, " "); for (i = 1; i <= count; i++) rank[name[i]] = i }
    $2 ~ /^kakeya(_study)?\.h$/ { next }
    { from = folder($1); to = folder($2) }
    !(from in rank) { print $1 ": folder " from " is not in the order of folders"; next }
    !(to in rank) { print $2 ": folder " to " is not in the order of folders"; next }
    rank[to] > rank[from] { print $1 " includes " $2 ", which is above it" }
    to ~ /^backend\/(cpu|cuda|mlx)$/ && from != to { print $1 " includes " $2 ": only backend.h is known outside of a backend" }
' "$WORK/files" >"$WORK/out"
check "includes point downwards in the order of the folders" test ! -s "$WORK/out"

# A machine executes what it is given: which model, drafter or restoration that is, the folders above it know.
grep -r -n -o -i -E 'gemma|dflash|f_theta' src/backend/cpu src/backend/cuda src/backend/mlx >"$WORK/out" || true
check "no file of a machine names a model" test ! -s "$WORK/out"

printf '%s\n' 'a b' 'b c' 'c c' 'd a' 'b e' >"$WORK/tree"
{ cat "$WORK/tree" && echo 'e d'; } >"$WORK/circle"
circles "$WORK/tree"
check "a graph without circles is none" test "$STATUS" -eq 0
circles "$WORK/circle"
check "a circle is found and named" grep -q -x 'circle: a -> b -> e -> d -> a' "$WORK/out"

# An include that is not named from src/ or include/ would be left out of the graph.
awk '$3 == "\"" { print $1 " includes \"" $2 "\"" }' "$WORK/unknown" >"$WORK/out"
check "own files are included by their path from src/" test ! -s "$WORK/out"

circles "$WORK/includes"
check "no file includes itself through others" test "$STATUS" -eq 0

if command -v nm >/dev/null 2>&1 && [ -d "$BUILD/CMakeFiles" ]; then
    symbols
    uses >"$WORK/uses"
    STATUS=0
    check "the uses of object files are found" test "$(wc -l <"$WORK/uses")" -gt 300
    circles "$WORK/uses"
    check "no file uses itself through others" test "$STATUS" -eq 0
    # A linker takes the first one of two functions of the same name in an archive, and says nothing.
    awk 'NF == 4 && $3 ~ /[TDBRC]/ { if (($4 in at) && at[$4] != $1) print $4 ": " at[$4] ", " $1; at[$4] = $1 }' \
        "$WORK/symbols" | sort -u >"$WORK/out"
    STATUS=0
    check "no two files define the same name" test ! -s "$WORK/out"
else
    skip "no file uses itself through others" "no nm, or nothing is built in $BUILD"
fi

# What the verbs of users include, directly or through headers of cli/.
for verb in run chat score tokenize info; do
    awk -v start="cli/$verb.c" '
        { list[$1] = list[$1] " " $2 }
        END {
            queue[tail = 1] = start
            for (head = 1; head <= tail; head++) {
                count = split(list[queue[head]], next_files, " ")
                for (i = 1; i <= count; i++) {
                    to = next_files[i]
                    if (to ~ /^kakeya(_study)?\.h$/ || to ~ /^base\//) continue
                    if (to !~ /^cli\//) { print start, to, "through " queue[head]; continue }
                    if (!seen[to]++) queue[++tail] = to
                }
            }
        }' "$WORK/files"
done | sort -u >"$WORK/reach"
awk '{ print $1 " includes " $2 " " $3 " " $4 }' "$WORK/reach" >"$WORK/out"
check "run, chat, score, tokenize and info include kakeya.h, kakeya_study.h, base/ and cli/ alone" test ! -s "$WORK/out"

finish
