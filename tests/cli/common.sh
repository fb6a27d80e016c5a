# Shared by the command-line tests, which source it: one TAP line per check, and the tools to make checks.
# KAKEYA is the program, BUILD its build directory; both come from tools/run_tests.sh.

: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
MODELS=$PWD/models
EXAMPLES=$PWD/examples
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
unset KAKEYA_MODEL NO_COLOR HF_HOME HF_HUB_CACHE
TEST_COUNT=0
TEST_FAILED=0
JSON_CHECKS=0
JSON_VARIABLES=""

pass() {
    TEST_COUNT=$((TEST_COUNT + 1))
    echo "ok $TEST_COUNT - $1"
}
fail() { # description, explanation
    TEST_COUNT=$((TEST_COUNT + 1))
    TEST_FAILED=1
    echo "not ok $TEST_COUNT - $1"
    printf '%s\n' "$2" | sed 's/^/# /'
}
skip() { # description, reason
    TEST_COUNT=$((TEST_COUNT + 1))
    echo "ok $TEST_COUNT - $1 # SKIP $2"
}

# Whether long runs are to be cut short, as in `make check` (tests/sweep.h).
short_sweeps() { [ -n "${KAKEYA_SHORT_SWEEPS:-}" ]; }

# The demo without its vision tower: a model of text.
text_model() { # directory
    mkdir "$1"
    ln -s "$MODELS"/demo/* "$1/"
    rm "$1/config.json"
    sed '/"vision_config"/,/^  },/d' "$MODELS/demo/config.json" >"$1/config.json"
}

# Runs kakeya; its output is in $WORK/out and $WORK/err, its exit status in $STATUS.
run() {
    STATUS=0
    "$KAKEYA" "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || STATUS=$?
}

shown() { # what the last run did, for explanations
    echo "status $STATUS"
    echo "stdout: $(head -c 600 "$WORK/out")"
    echo "stderr: $(head -c 600 "$WORK/err")"
}

check() { # description, command...: passes if the command succeeds
    description=$1
    shift
    if "$@" >"$WORK/check" 2>&1; then
        pass "$description"
    else
        fail "$description" "$* failed
$(head -c 400 "$WORK/check")
$(shown)"
    fi
}

# A request that must fail: status 1, nothing on stdout, exactly one line on stderr that matches a pattern (grep -E).
fails_with() { # description, pattern, arguments...
    description=$1
    pattern=$2
    shift 2
    run "$@"
    if [ "$STATUS" -eq 1 ] && [ ! -s "$WORK/out" ] && [ "$(wc -l <"$WORK/err")" -eq 1 ] &&
        grep -q -E -e "$pattern" "$WORK/err"; then
        pass "$description"
    else
        fail "$description" "expected status 1 and one line with /$pattern/ from: kakeya $*
$(shown)"
    fi
}

# Wrong usage: status 2, nothing on stdout, the usage line on stderr.
refuses() { # description, pattern, arguments...
    description=$1
    pattern=$2
    shift 2
    run "$@"
    if [ "$STATUS" -eq 2 ] && [ ! -s "$WORK/out" ] && grep -q '^usage: kakeya' "$WORK/err" &&
        grep -q -E -e "$pattern" "$WORK/err"; then
        pass "$description"
    else
        fail "$description" "expected status 2, a usage line and /$pattern/ from: kakeya $*
$(shown)"
    fi
}

# A request that must work.
works() { # description, arguments...
    description=$1
    shift
    run "$@"
    if [ "$STATUS" -eq 0 ]; then
        pass "$description"
    else
        fail "$description" "expected status 0 from: kakeya $*
$(shown)"
    fi
}

# The last run's stdout is one JSON object for which a jq expression holds. Starting jq costs more than most runs of the program, so
# `finish` has one judge all such checks of the script together, and asks one for each only where something does not hold.
json_holds() { # description, jq expression, [--arg NAME TEXT | --argjson NAME JSON | --slurpfile NAME FILE]...
    if [ "$(wc -l <"$WORK/out")" -ne 1 ]; then
        fail "$1" "one line was expected
$(shown)"
        return
    fi
    JSON_CHECKS=$((JSON_CHECKS + 1))
    json=$WORK/json.$JSON_CHECKS
    cp "$WORK/out" "$json.out"
    shown >"$json.shown"
    printf '%s' "$1" >"$json.description"
    printf '%s' "$2" >"$json.expression"
    bindings=""
    shift 2
    while [ $# -gt 0 ]; do
        variable=v${JSON_CHECKS}_$2
        kind=--slurpfile value=$variable
        case $1 in
        --arg) kind=--rawfile && printf '%s' "$3" >"$json.$2" ;;
        --argjson) value="$variable[0]" && printf '%s' "$3" >"$json.$2" ;;
        *) cp "$3" "$json.$2" ;;
        esac
        JSON_VARIABLES="$JSON_VARIABLES $kind $variable $json.$2"
        bindings="$bindings\$$value as \$$2 | "
        shift 3
    done
    printf '%s' "$bindings" >"$json.bindings"
}

judge_json() {
    [ "$JSON_CHECKS" -gt 0 ] || return 0
    numbers=$(seq "$JSON_CHECKS") outputs="" together=true
    {
        printf '['
        for number in $numbers; do
            [ "$number" -eq 1 ] || printf ','
            printf '(input | %s(%s))\n' "$(cat "$WORK/json.$number.bindings")" "$(cat "$WORK/json.$number.expression")"
        done
        printf '] | length == %d and all and ([inputs] == [])\n' "$JSON_CHECKS"
    } >"$WORK/json.program"
    for number in $numbers; do outputs="$outputs $WORK/json.$number.out"; done
    # shellcheck disable=SC2086
    jq -n -e $JSON_VARIABLES -f "$WORK/json.program" $outputs >"$WORK/check" 2>&1 || together=false
    for number in $numbers; do
        json=$WORK/json.$number
        # shellcheck disable=SC2086
        if "$together" || jq -e $JSON_VARIABLES "$(cat "$json.bindings")($(cat "$json.expression"))" "$json.out" >"$WORK/check" 2>&1; then
            pass "$(cat "$json.description")"
        else
            fail "$(cat "$json.description")" "jq $(cat "$json.expression"): $(cat "$WORK/check")
$(cat "$json.shown")"
        fi
    done
}

# Whether this system has pseudo-terminals (a bare chroot or a sandbox may not).
has_terminals() {
    "$BUILD/tools/pty" true </dev/null >"$WORK/check" 2>&1 || return 1
}

finish() {
    judge_json
    echo "1..$TEST_COUNT"
    exit $TEST_FAILED
}
