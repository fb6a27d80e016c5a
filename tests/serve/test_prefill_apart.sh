# Prefill apart from decode, through a shared directory, with Python's standard library.
. tests/serve/start.sh
run_python "prefill apart from decode" tests/serve/prefill_apart.py "$@"
