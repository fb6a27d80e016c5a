# lm-eval and AIPerf, as they are, against a server. Their packages are large, so it is for whole runs: WHOLE_SWEEPS=1.
. tests/serve/start.sh
[ -n "${WHOLE_SWEEPS:-}" ] || skip_all "lm-eval and AIPerf" "in whole runs alone (WHOLE_SWEEPS=1)"
PACKAGES=-evaluations
run_with_packages "lm-eval and AIPerf" tests/serve/evaluations.py "$@"
