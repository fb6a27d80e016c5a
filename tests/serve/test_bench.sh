# `kakeya bench --requests --url` in front of a scripted server, and of a real one.
. tests/serve/start.sh
run_python "kakeya bench --url" tests/serve/bench.py "$@"
