# What --dry-run says of memory is what /metrics reports; and the thresholds of --memory-warn and --memory-refuse.
. tests/serve/start.sh
run_python "memory ledger" tests/serve/ledger.py "$@"
