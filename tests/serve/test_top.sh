# `kakeya top` in front of a server with scripted answers, and of a real one.
. tests/serve/start.sh
run_python "kakeya top" tests/serve/top.py "$@"
