# `kakeya serve` over gRPC.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
if [ ! -x "$BUILD/tools/grpc_server" ]; then
    echo "ok 1 - kakeya serve over gRPC # SKIP this build has none"
    exit 0
fi
. tests/serve/python.sh
if [ -z "$PYTHON" ]; then
    echo "ok 1 - kakeya serve over gRPC # SKIP $REASON"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec "$PYTHON" tests/serve/grpc_serve.py "$@"
