# The commands of docs/guide/deploy.md, with Python's standard library.
. tests/serve/start.sh
run_python "the commands of docs/guide/deploy.md" tests/serve/deploy.py "$@"
