# The HTTP layer of `kakeya serve`, by clients that are scripts of our own: TAP lines come from Python's standard library alone.
. tests/serve/start.sh
run_python "the HTTP layer" tests/serve/http_guards.py "$@"
