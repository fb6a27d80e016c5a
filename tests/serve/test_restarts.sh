# Conversations across servers, with Python's standard library alone.
. tests/serve/start.sh
run_python "conversations across servers" tests/serve/restarts.py "$@"
