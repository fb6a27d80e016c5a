# The HTTP layer of `kakeya serve`, by clients that are scripts of our own: TAP lines come from Python's standard library alone.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
export KAKEYA BUILD
if ! command -v python3 >/dev/null 2>&1; then
    echo "ok 1 - the HTTP layer # SKIP there is no python3"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/serve/http_guards.py "$@"
