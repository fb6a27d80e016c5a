# AIPerf as it is against a server. Its packages are large, so this is for whole runs: WHOLE_SWEEPS=1.
. tests/serve/start.sh
[ -n "${WHOLE_SWEEPS:-}" ] || skip_all "AIPerf" "in whole runs alone (WHOLE_SWEEPS=1)"
PACKAGES=-load
run_with_packages "AIPerf" tests/serve/load_generator.py "$@"
