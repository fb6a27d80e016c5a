# The gRPC service, by clients whose stubs are generated from the .proto that users get.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
if [ ! -x "${GRPC_SERVER_BUILD:-$BUILD}/tools/grpc_server" ]; then
    echo "ok 1 - the gRPC service # SKIP this build has none"
    exit 0
fi
. tests/serve/python.sh
if [ -z "$PYTHON" ]; then
    echo "ok 1 - the gRPC service # SKIP $REASON"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec "$PYTHON" tests/serve/grpc_service.py "$@"
