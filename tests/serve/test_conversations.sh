# What conversations compute again, in every dialect of `kakeya serve`, with Python's standard library alone.
. tests/serve/start.sh
run_python "conversations" tests/serve/conversations.py "$@"
