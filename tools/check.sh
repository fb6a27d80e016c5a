#!/bin/sh
# The inner loop: release build, then style, unit and command-line tests, several at a time, cut short to about 100 seconds of
# processors. `make test` runs everything. What is left out here:
# - parts of long sweeps: a test asks sweep_short() (tests/sweep.h), short_sweeps (tests/cli/common.sh) or SHORT (harness.py);
# - tests whose source has a line with the words "whole runs only";
# - tests/serve, but for test_smoke.sh, which has a case of each API.
# The programs that cost most are named at the end. The last line is "N passed, N failed[, N skipped]", counting single tests;
# the exit status is 1 if any failed.
# environment: BUILD (build), TEST_TIMEOUT, TEST_JOBS (tools/tap.sh)
set -eu

build=${BUILD:-build}
. tools/tap.sh

# Leaves out the programs that `make test` alone runs.
short_programs() { # paths on stdin
    while IFS= read -r program; do
        source=$program
        [ "${source%.sh}" != "$source" ] || source=tests/unit/$(basename "$program").c
        grep -q -s -i "whole runs only" "$source" || echo "$program"
    done
}

tools/bootstrap.sh test
tools/bootstrap.sh cache >/dev/null 2>&1 || true
tools/bootstrap.sh shells >/dev/null 2>&1 || true
tools/bootstrap.sh style >/dev/null 2>&1 || true # the style test skips what it cannot check

if ! run_step "build" tools/build.sh "$build" all -DKAKEYA_TESTS=ON; then
    finish
    exit 1
fi
export KAKEYA_SHORT_SWEEPS=1
{
    unit_tests "$build"
    ls tests/style/test_*.sh tests/cli/test_*.sh tests/serve/test_smoke.sh
} | short_programs >"$work/paths"
run_programs "$build" "" <"$work/paths"
show_costs 5
finish
