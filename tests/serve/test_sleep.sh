# A model that leaves memory while nobody asks and comes back, with Python's standard library; gRPC where its client is installed.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
if ! command -v python3 >/dev/null 2>&1; then
    echo "ok 1 - idle unload # SKIP there is no python3"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/serve/sleep.py "$@"
