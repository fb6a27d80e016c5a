# The library as its users see it: the public header alone, from C and from C++, and the example program.
. tests/cli/common.sh

cat >"$WORK/header.c" <<'END'
#include <kakeya.h>
const char *use_header(void);
const char *use_header(void) { return kakeya_version(); }
END
cat >"$WORK/header.cpp" <<'END'
#include <kakeya.h>
#include <cstdio>
int main() {
    kakeya_error error = {};
    kakeya_engine *engine = nullptr;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = "/no/such/model";
    if (kakeya_engine_open(&options, &engine, &error) == KAKEYA_OK) return 1;
    return std::puts(error.message) < 0;
}
END
check "the header is C11 by itself" cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude "$WORK/header.c"
check "the header is C++11" c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude "$WORK/header.cpp"

STATUS=0
"$BUILD/examples/generate" "$MODELS/demo" "def main():" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
check "the example program answers" test "$STATUS" -eq 0 -a -s "$WORK/out"
check "the example program counts its tokens" grep -q -E '^[0-9]+ tokens in ' "$WORK/err"
"$KAKEYA" run --model "$MODELS/demo" --raw --max-tokens 64 "def main():" >"$WORK/run" 2>/dev/null </dev/null || STATUS=$?
check "kakeya run gives the same text" sh -c 'test "$(cat "$1")" = "$(cat "$2")"' - "$WORK/out" "$WORK/run"
STATUS=0
"$BUILD/examples/generate" /no/such/model x >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
check "the example program reports a failure" test "$STATUS" -eq 1
check "the failure names the model" grep -q '/no/such/model' "$WORK/err"

STATUS=0
"$BUILD/examples/batch" "$MODELS/demo" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
check "sixteen sessions answer together" test "$STATUS" -eq 0 -a "$(grep -c -x -e '--- [0-9]*' "$WORK/out")" -eq 16
"$KAKEYA" run --model "$MODELS/demo" --raw --attention native --max-tokens 24 "def add_7(numbers):
    " >"$WORK/run7" 2>/dev/null </dev/null || STATUS=$?
check "one of them as it answers alone" sh -c '
    sed -n "/^--- 7$/,/^--- 8$/p" "$1" | sed "1d;\$d" >"$1.seven"; test "$(cat "$1.seven")" = "$(cat "$2")"' - "$WORK/out" "$WORK/run7"
STATUS=0
"$BUILD/examples/chat" "$MODELS/demo" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
check "a conversation calls a tool and goes on" sh -c '
    test "$1" -eq 0 && head -1 "$2" | grep -q -x -E "temperature\(\{\"city\":\"(Oslo|Rome)\"\}\)" && test "$(wc -l <"$2")" -gt 1' - \
    "$STATUS" "$WORK/out"
STATUS=0
"$BUILD/examples/picture" "$MODELS/demo" "$EXAMPLES/code.png" "Question: what is the secret code? Answer:" >"$WORK/out" 2>"$WORK/err" \
    </dev/null || STATUS=$?
check "a question about a picture is answered" test "$STATUS" -eq 0 -a "$(cat "$WORK/out")" = "The secret code is 7294."
STATUS=0
"$BUILD/examples/picture" "$MODELS/demo" README.md "What is this?" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
check "a file that is no picture is refused by its name" sh -c 'test "$1" -eq 1 && grep -q "README.md: neither PNG" "$2"' - \
    "$STATUS" "$WORK/err"
for example in batch chat; do
    STATUS=0
    "$BUILD/examples/$example" /no/such/model >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
    check "$example reports a failure" sh -c 'test "$1" -eq 1 && grep -q /no/such/model "$2"' - "$STATUS" "$WORK/err"
done

# Every public function has an example, or a test of the interface that shows its use. Of the functions that take a struct's size, callers
# use the inline function or macro without it.
cat include/kakeya*.h | tr '\n' ' ' | grep -o 'KAKEYA_API [^;]*;' |
    sed -n 's/^KAKEYA_API[^(]*[ *]\(kakeya_[a-z_0-9]*\)(.*/\1/p' | sort >"$WORK/declared"
sed -E 's/^kakeya_(image|sound)_facts_sized$/kakeya_\1_describe/; s/_sized$//' "$WORK/declared" | sort -u >"$WORK/named"
cat examples/*.c examples/*.cpp tests/unit/*.c tests/unit/*.h | grep -o -E '\<kakeya_[a-z_0-9]+[(,)]' | tr -d '(,)' | sort -u >"$WORK/used"
comm -23 "$WORK/named" "$WORK/used" >"$WORK/out"
STATUS=0
: >"$WORK/err"
check "every public function is used by an example or a test" test "$(wc -l <"$WORK/named")" -gt 60 -a ! -s "$WORK/out"

# libkakeya.so and libkakeya.a: kakeya_* and nothing else, and the example against each of them in every language
foreign() { # nm's output: names that are not ours
    awk 'NF >= 3 && $2 ~ /[A-TV-Z]/ && $3 !~ /^kakeya_/ { print $3 }' | head
}
if [ ! -e "$BUILD/lib/libkakeya.so" ]; then
    skip "the shared and the static library" "instrumented builds have none"
    finish
fi
objects=$BUILD/lib/libkakeya
nm -D --defined-only "$objects.so" >"$WORK/names.so"
nm -g --defined-only "$objects.a" 2>/dev/null >"$WORK/names.a"
for kind in so a; do
    foreign <"$WORK/names.$kind" >"$WORK/out"
    check "libkakeya.$kind shows kakeya_* only" test ! -s "$WORK/out"
    # every function that the header declares, and no other
    awk '$2 == "T" { print $3 }' "$WORK/names.$kind" | sort >"$WORK/shown"
    check "libkakeya.$kind shows what the header declares" cmp "$WORK/declared" "$WORK/shown"
done
check "the header declares functions" test "$(wc -l <"$WORK/declared")" -gt 60
readelf -d "$objects.so" >"$WORK/out" 2>"$WORK/err"
check "the soname carries the version of the interface" grep -q 'SONAME.*\[libkakeya\.so\.0\.3\]' "$WORK/out"

c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Iinclude examples/embed.cpp -o "$WORK/embed" -L"$BUILD/lib" -lkakeya \
    -Wl,-rpath,"$BUILD/lib" >"$WORK/err" 2>&1 && STATUS=0 || STATUS=$?
check "the example in C++ compiles" test "$STATUS" -eq 0
"$WORK/embed" "$MODELS/demo" "def f(x):" "def f(x):" "the code" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
check "a text is as like itself as can be, and another less" sh -c '
    test "$1" -eq 0 && awk "NR == 1 { same = \$1 } NR == 2 { other = \$1 } END { exit !(same > 0.999 && other < 0.999) }" "$2"' - \
    "$STATUS" "$WORK/out"

private=$(sed -n 's/^Libs.private: //p' "$BUILD/kakeya.pc")
for language in c11 c17 c++17; do
    compiler=cc from=c
    case $language in c++*) compiler=c++ from=c++ ;; esac
    for kind in so a; do
        library="$objects.a $private"
        [ $kind = a ] || library="-L$BUILD/lib -lkakeya -Wl,-rpath,$BUILD/lib"
        STATUS=0
        # shellcheck disable=SC2086
        $compiler -std=$language -Wall -Wextra -Wpedantic -Werror -Iinclude -x $from examples/generate.c -x none -o "$WORK/generate" \
            $library >"$WORK/err" 2>&1 || STATUS=$?
        check "the example is $language, against libkakeya.$kind" test "$STATUS" -eq 0
        STATUS=0
        "$WORK/generate" "$MODELS/demo" "def main():" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
        check "and gives the same text" sh -c 'test "$(cat "$1")" = "$(cat "$2")"' - "$WORK/out" "$WORK/run"
    done
done

finish
