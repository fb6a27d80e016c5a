#!/bin/sh
# Fuzzes the parsers with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer.
# usage: tools/fuzz.sh SECONDS               every target, SECONDS each
#        tools/fuzz.sh build                 only builds the targets into build-fuzz/
#        tools/fuzz.sh one TARGET SECONDS    one built target
# environment: FUZZ_RUNS (if set, so many executions of each target end it, too: FUZZ_RUNS=1000000 tools/fuzz.sh 0, where 0 seconds
# are no limit), FUZZ_TIMEOUT (10: seconds for one input; `make test` has more, since its machine may stand still), and FUZZ_SEED
# (0: another one every time). `make test` sets it, so that it tries the same inputs every time: what it finds is there to be found
# again. Long runs explore.
# Seeds are tests/fuzz/corpus/NAME/ (or fuzz_NAME/) for fuzz_NAME. What is learned goes to build-fuzz/corpus/NAME/, a crashing input to
# build-fuzz/crashes/; the command to repeat it is printed.
set -eu

build_targets() {
    tools/build.sh build-fuzz fuzz_targets -DCMAKE_C_COMPILER=clang -DKAKEYA_FUZZ=ON -DKAKEYA_TESTS=OFF
}

fuzz_one() { # target, seconds
    name=$(basename "$1")
    learned=build-fuzz/corpus/${name#fuzz_}
    seeds=tests/fuzz/corpus/${name#fuzz_}
    mkdir -p "$learned" build-fuzz/crashes
    [ -d "$seeds" ] || seeds=tests/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=""
    log=$(mktemp)
    begun=$(date +%s)
    # shellcheck disable=SC2086  # an absent seed directory is no argument
    if "$1" -seed="${FUZZ_SEED:-0}" -max_total_time="$2" -runs="${FUZZ_RUNS:--1}" -timeout="${FUZZ_TIMEOUT:-10}" \
        -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix=build-fuzz/crashes/"$name"- "$learned" $seeds >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        rm -f "$log"
        echo "ok - $name: $runs inputs in $(($(date +%s) - begun)) seconds"
    else
        echo "not ok - $name"
        grep -E 'ERROR|SUMMARY|Test unit written' "$log" || tail -n 20 "$log"
        echo "repeat with: $1 build-fuzz/crashes/$name-*"
        rm -f "$log"
        return 1
    fi
}

case ${1:-} in
build) build_targets ;;
one) fuzz_one "$2" "$3" ;;
'' | *[!0-9]*)
    echo "usage: tools/fuzz.sh SECONDS | build | one TARGET SECONDS" >&2
    exit 2
    ;;
*)
    tools/bootstrap.sh fuzz
    build_targets
    status=0
    for target in build-fuzz/fuzz/fuzz_*; do
        [ -x "$target" ] || continue
        fuzz_one "$target" "$1" || status=1
    done
    exit $status
    ;;
esac
