#!/bin/sh
# Line coverage of the unit tests by gcovr: a table on stdout, pages in build-coverage/report/.
set -eu

tools/bootstrap.sh coverage
tools/build.sh build-coverage all -DKAKEYA_TESTS=ON -DKAKEYA_COVERAGE=ON
find build-coverage -name '*.gcda' -delete
failed=0
for program in build-coverage/tests/test_*; do
    [ -x "$program" ] || continue
    "$program" >/dev/null 2>&1 || { echo "$(basename "$program") failed" >&2; failed=1; }
done
mkdir -p build-coverage/report
gcovr --root . --filter src/ --html-details build-coverage/report/index.html --print-summary --sort-uncovered
echo "report: build-coverage/report/index.html"
exit $failed
