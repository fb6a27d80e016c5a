# lm-eval as it is against a server. Its packages are large, so this is for whole runs: WHOLE_SWEEPS=1.
. tests/serve/start.sh
[ -n "${WHOLE_SWEEPS:-}" ] || skip_all "lm-eval" "in whole runs alone (WHOLE_SWEEPS=1)"
PACKAGES=-evaluations
run_with_packages "lm-eval" tests/serve/evaluations.py "$@"
