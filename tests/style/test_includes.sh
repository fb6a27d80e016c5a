# Who depends on whom: includes point downwards in the order of the folders, no file depends on itself through others, and
# the verbs that are clients of the library know its public header alone.
. tests/cli/common.sh

# The folders of src/, lowest first; a folder includes those before it. Backends do not know each other.
order="base formats text model backend backend/cpu backend/cuda backend/mlx decode session train serve measure remote cli"

# Edges of circles that are still there, "graph from to"; a circle that is gone must be taken off.
known_circles() {
    cat <<'END'
include model/tensors model/sizes
include backend/cpu/kernels backend/cpu/kernels_private
include backend/cpu/screen backend/cpu/kernels
include backend/cpu/screen backend/cpu/kernels_private
END
}

# Headers that clients of the library include beside kakeya.h, base/ and cli/; one that is gone must be taken off.
known_reach() {
    cat <<'END'
END
}

# "from to" for every include of one of the project's own files. X.c, X.h, X.cu and X.cuh are one node, X.
includes() {
    find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort | while IFS= read -r file; do
        sed -n 's/^[ \t]*#[ \t]*include[ \t]*["<]\([a-z0-9_/]*\.[a-z]*\)[">].*/\1/p' "$file" | while IFS= read -r header; do
            if [ -e "src/$header" ] || [ -e "include/$header" ]; then echo "${file#src/} $header"; fi
        done
    done
}
without_suffix='s/\.(c|h|cu|cuh)( |$)/\2/g'

# "file address type name" for every symbol of the program's object files. A build folder may hold objects of files that
# have moved since: those do not count.
symbols() {
    find "$BUILD/CMakeFiles" -path '*/kakeya*.dir/src/*.o' | while IFS= read -r object; do
        source=${object##*.dir/}
        [ ! -e "${source%.o}" ] || nm -A "$object"
    done | sed -n 's|^.*\.dir/src/\(.*\)\.cu*\.o:|\1 |p'
}

# "from to" for every function or table of one object file of the library that another one uses.
uses() {
    symbols |
        awk 'NF == 4 && $3 ~ /[TDBRC]/ { at[$4] = $1 }
             NF == 3 && $2 == "U" { user[++n] = $1; name[n] = $3 }
             END { for (i = 1; i <= n; i++) if (name[i] in at && at[name[i]] != user[i]) print user[i], at[name[i]] }' | sort -u
}

circles() { # graph, file of edges; what only a CUDA build has is known only there
    { known_circles | awk -v graph="$1" -v cuda="$(grep -c '^backend/cuda/' "$2")" '
        $1 == graph && (cuda || $2 !~ "^backend/cuda/") { print "known", $2, $3 }'; sed 's/^/edge /' "$2"; } |
        awk -f tests/style/graph.awk >"$WORK/circles" && STATUS=0 || STATUS=1
    cp "$WORK/circles" "$WORK/out"
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
    $2 == "kakeya.h" { next }
    { from = folder($1); to = folder($2) }
    !(from in rank) { print $1 ": folder " from " is not in the order of folders"; next }
    !(to in rank) { print $2 ": folder " to " is not in the order of folders"; next }
    rank[to] > rank[from] { print $1 " includes " $2 ", which is above it" }
    to ~ /^backend\// && from != to { print $1 " includes " $2 ": only backend.h is known outside of a backend" }
' "$WORK/files" >"$WORK/out"
check "includes point downwards in the order of the folders" test ! -s "$WORK/out"

circles include "$WORK/includes"
check "no file includes itself through others" test "$STATUS" -eq 0

if command -v nm >/dev/null 2>&1 && [ -d "$BUILD/CMakeFiles" ]; then
    uses >"$WORK/uses"
    STATUS=0
    check "the uses of object files are found" test "$(wc -l <"$WORK/uses")" -gt 300
    circles link "$WORK/uses"
    check "no file uses itself through others" test "$STATUS" -eq 0
    # A linker takes the first one of two functions of the same name in an archive, and says nothing.
    symbols |
        awk 'NF == 4 && $3 ~ /[TDBRC]/ { if (($4 in at) && at[$4] != $1) print $4 ": " at[$4] ", " $1; at[$4] = $1 }' |
        sort -u >"$WORK/out"
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
                    if (to == "kakeya.h" || to ~ /^base\//) continue
                    if (to !~ /^cli\//) { print start, to, "through " queue[head]; continue }
                    if (!seen[to]++) queue[++tail] = to
                }
            }
        }' "$WORK/files"
done | sort -u >"$WORK/reach"
{ known_reach | sed 's/^/known /'; sed 's/^/found /' "$WORK/reach"; } |
    awk '$1 == "known" { known[$2, $3] = 1; next }
         { found[$2, $3] = 1; if (!(($2, $3) in known)) print $2 " includes " $3 " " $4 " " $5 }
         END {
             for (pair in known) {
                 if (pair in found) continue
                 split(pair, p, SUBSEP)
                 print p[1] " no longer includes " p[2] ": take it off the list"
             }
         }' >"$WORK/out"
check "run, chat, score, tokenize and info include kakeya.h, base/ and cli/ alone" test ! -s "$WORK/out"

finish
