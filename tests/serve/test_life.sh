# The life of a server, from what it says before it starts to what it leaves, with Python's standard library alone.
. tests/serve/start.sh
run_python "the life of a server" tests/serve/life_cycle.py "$@"
