# What /metrics says, with Python's standard library.
. tests/serve/start.sh
run_python "metrics" tests/serve/counted.py "$@"
