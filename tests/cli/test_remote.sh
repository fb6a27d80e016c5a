# Evaluations on another machine, over a bare repository, with real processes and keys; by Python's standard library.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
export KAKEYA BUILD
for tool in python3 git ssh-keygen; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "ok 1 - evaluations on another machine # SKIP there is no $tool"
        exit 0
    fi
done
# A short run has a run, forgeries, results that are not believed and wrong usage. Words choose tests by their names.
if [ -n "${KAKEYA_SHORT_SWEEPS:-}" ] && [ $# -eq 0 ]; then
    set -- "is run by the worker's own program" "is not signed" "results are believed" "old programs"
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/cli/remote_protocol.py "$@"
