# A model that leaves memory while nobody asks and comes back, with Python's standard library; gRPC where its client is installed.
. tests/serve/start.sh
run_python "idle unload" tests/serve/sleep.py "$@"
