# Every API of `kakeya serve`, its most telling case, on one server: what `make check` runs of tests/serve. Python's standard library.
. tests/serve/start.sh
run_python "the server's APIs" tests/serve/smoke.py "$@"
