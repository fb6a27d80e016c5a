# The life of a server, from what it says before it starts to what it leaves, with Python's standard library alone.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
if ! command -v python3 >/dev/null 2>&1; then
    echo "ok 1 - the life of a server # SKIP there is no python3"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/serve/life_cycle.py "$@"
