# `kakeya serve` with less K/V memory than its requests want together. Whole runs only.
. tests/serve/start.sh
run_python "little K/V memory" tests/serve/memory.py "$@"
