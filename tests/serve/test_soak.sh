# `kakeya serve` under mixed load (tests/serve/soak.py). With gRPC where its Python package is, else without.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
. tests/serve/python.sh
if [ -z "$PYTHON" ]; then
    PYTHON=$(command -v python3) || {
        echo "ok 1 - the server under mixed load # SKIP $REASON"
        exit 0
    }
fi
PYTHONDONTWRITEBYTECODE=1 exec "$PYTHON" tests/serve/soak.py "$@"
