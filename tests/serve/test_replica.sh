# What routers ask of a replica, with Python's standard library.
. tests/serve/start.sh
run_python "what routers ask" tests/serve/replica.py "$@"
