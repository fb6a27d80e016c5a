# --weights-limit of a server: memory that is held, what is said of it, and files that are damaged while it serves.
. tests/serve/start.sh
run_python "weights under a limit" tests/serve/weights.py "$@"
