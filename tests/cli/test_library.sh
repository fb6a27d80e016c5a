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
    kakeya_engine_options_init(&options);
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

finish
