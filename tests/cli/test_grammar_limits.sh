# Schemas of 100 kB that are made to cost much are compiled, or refused, in bounded memory. (How long they take is for a bench to say.)
. tests/cli/common.sh

every=1 megabytes=64
short_sweeps && every=7
grep -q __asan_ "$BUILD/tools/grammar_texts" && megabytes=4000
grep -q __tsan_ "$BUILD/tools/grammar_texts" && megabytes=4000
if python3 bench/grammar_limits.py --build "$BUILD" --every $every --megabytes $megabytes >"$WORK/limits" 2>&1; then
    pass "every schema has its answer within $megabytes MB: $(tail -n 1 "$WORK/limits")"
else
    fail "every schema has its answer within $megabytes MB" "$(cat "$WORK/limits")"
fi
check "some are compiled" grep -q ': compiled$' "$WORK/limits"
check "what is too large is said, with its place" grep -q 'schema #.*: too large' "$WORK/limits"

finish
