# Counting tests: sourced by the scripts that run them. Programs print TAP lines; `finish` prints
# "N passed, N failed[, N skipped]" as the last line and returns 1 if any failed.
# environment: TEST_TIMEOUT (600 seconds for one test program)

test_timeout=${TEST_TIMEOUT:-600}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=$work/results # one line "passed failed skipped" per test program
: >"$results"

# Runs one test program that prints TAP lines ("ok ...", "not ok ...", "... # SKIP"), counts them, and shows what failed.
# A program that dies, times out or reports nothing is itself one failed test.
run_tap() { # title, command...
    title=$1
    shift
    started=$(date +%s)
    status=0
    timeout -k 10 "$test_timeout" "$@" >"$work/output" 2>"$work/errors" </dev/null || status=$?
    skipped=$(grep -c -i -E '^(not )?ok\b.*# skip' "$work/output" || true)
    failed=$(grep -i -v '# skip' "$work/output" | grep -c '^not ok\b' || true)
    passed=$(grep -i -v '# skip' "$work/output" | grep -c '^ok\b' || true)
    broken=""
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
        broken="ended with status $status after $passed passed tests"
        [ "$status" -eq 124 ] && broken="timed out after $test_timeout seconds"
    elif [ $((passed + failed + skipped)) -eq 0 ]; then
        failed=1
        broken="reported no test"
    fi
    echo "$passed $failed $skipped" >>"$results"
    line="$title: $passed passed"
    [ "$failed" -eq 0 ] || line="$line, $failed failed"
    [ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
    echo "$line ($(($(date +%s) - started)) s)"
    if [ "$failed" -ne 0 ]; then
        [ -z "$broken" ] || echo "  $broken"
        { grep -A12 '^not ok\b' "$work/output" || tail -n 20 "$work/output"; } | sed 's/^/  /'
        tail -n 40 "$work/errors" | sed 's/^/  /'
    fi
}

# A step that either works or is one failed test: compiling a variant, for example.
run_step() { # title, command...
    title=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        return 0
    fi
    echo "0 1 0" >>"$results"
    echo "$title: failed"
    tail -n 40 "$work/output" | sed 's/^/  /'
    return 1
}

skip() { # title, reason
    echo "0 0 1" >>"$results"
    echo "$1: skipped ($2)"
}

run_unit_tests() { # build directory, suffix of the title
    for program in "$1"/tests/test_*; do
        [ -x "$program" ] || continue
        CMOCKA_MESSAGE_OUTPUT=TAP run_tap "$(basename "$program")$2" "$program"
    done
}

finish() {
    awk '{ p += $1; f += $2; s += $3 }
         END { printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""; exit f || !p }' "$results"
}
