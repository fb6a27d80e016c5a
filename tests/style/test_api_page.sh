# Pages of the public headers (tools/api_page.sh): Doxygen warns of nothing, and every public function is there with its text.
. tests/cli/common.sh

if ! command -v doxygen >/dev/null 2>&1; then
    skip "pages of the public headers" "no doxygen here"
    finish
fi
if tools/api_page.sh "$WORK/api" >"$WORK/out" 2>"$WORK/err"; then STATUS=0; else STATUS=$?; fi
check "Doxygen makes them without a warning" test "$STATUS" -eq 0 -a ! -s "$WORK/out" -a ! -s "$WORK/err"
cat include/*.h | tr "\n" " " | grep -o -E "KAKEYA_API [a-z][^;(]*\(" | sed -E "s/.*[ *](kakeya_[a-z0-9_]+)\\($/\1/" |
    sort -u >"$WORK/functions"
check "the public functions are found" test "$(wc -l <"$WORK/functions")" -gt 100
cat "$WORK"/api/html/*_8h.html >"$WORK/pages"
while IFS= read -r name; do
    grep -q -F "$name()" "$WORK/pages" || echo "$name"
done <"$WORK/functions" >"$WORK/out"
check "every one is on a page" test ! -s "$WORK/out"
check "with the text that the header has" grep -q "timeline equal to tokens" "$WORK/pages"
check "the first page has the five calls" grep -q "A complete program makes five calls" "$WORK/pages"
finish
