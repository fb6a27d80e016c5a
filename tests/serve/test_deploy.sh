# The commands of docs/deploy.md, with Python's standard library.
. tests/serve/start.sh
run_python "the commands of docs/deploy.md" tests/serve/deploy.py "$@"
