# Words: spelling, and phrases that readers stumble over (phrases.txt), in what users read.
. tests/cli/common.sh

ls README.md CONTRIBUTING.md docs/*.md docs/guide/*.md include/*.h python/README.md models/README.md >"$WORK/pages"
check "the pages are found" test "$(wc -l <"$WORK/pages")" -gt 30
grep -v '^#' tests/style/phrases.txt | cut -f1 >"$WORK/phrases"
xargs grep -n -E -f "$WORK/phrases" <"$WORK/pages" |
    grep -v -i -E 'behind (HAProxy|nginx|an? [a-z ]*(balancer|router)|[a-z-]*router|balancers|routers)|\(#[^)]*behind|look-behind' \
        >"$WORK/out" || true
STATUS=0
: >"$WORK/err"
check "no phrase of phrases.txt is in what users read" test ! -s "$WORK/out"

if command -v codespell >/dev/null 2>&1; then
    # names of Unicode's properties and scripts
    codespell -q 3 -L nd,beng,maka README.md CONTRIBUTING.md docs include src python/README.md models/README.md --skip '*.svg,*.png' \
        >"$WORK/out" 2>"$WORK/err" || true
    check "codespell finds nothing" test ! -s "$WORK/out"
else
    skip "codespell finds nothing" "no codespell here"
fi
finish
