# The Messages API of `kakeya serve` by Anthropic's own Python client.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
. tests/serve/python.sh
if [ -z "$PYTHON" ]; then
    echo "ok 1 - the Messages API # SKIP $REASON"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec "$PYTHON" tests/serve/messages_api.py "$@"
