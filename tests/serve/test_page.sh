# The page of `kakeya serve` in Chromium, with Python's standard library alone.
. tests/serve/start.sh
run_python "the page" tests/serve/page.py "$@"
