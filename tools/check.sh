#!/bin/sh
# The inner loop: release build, then style, unit and command-line tests, several at a time. Long sweeps over every
# combination are cut short (tests/sweep.h); `make test` runs them whole.
# The last line is "N passed, N failed[, N skipped]", counting single tests; the exit status is 1 if any failed.
# environment: BUILD (build), TEST_TIMEOUT, TEST_JOBS (tools/tap.sh)
set -eu

build=${BUILD:-build}
. tools/tap.sh

tools/bootstrap.sh test
tools/bootstrap.sh style >/dev/null 2>&1 || true # the style test skips what it cannot check

if ! run_step "build" tools/build.sh "$build" all -DKAKEYA_TESTS=ON; then
    finish
    exit 1
fi
export KAKEYA_SHORT_SWEEPS=1
{
    unit_tests "$build"
    ls tests/style/test_*.sh tests/cli/test_*.sh tests/serve/test_*.sh
} | run_programs "$build" ""
finish
