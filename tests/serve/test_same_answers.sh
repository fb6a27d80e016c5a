# One request, one answer, whatever else `kakeya serve` does, with Python's standard library alone.
. tests/serve/start.sh
run_python "one answer" tests/serve/same_answers.py "$@"
