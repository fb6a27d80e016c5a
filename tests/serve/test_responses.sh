# The Responses API of `kakeya serve` by OpenAI's own Python client.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
. tests/serve/python.sh
if [ -z "$PYTHON" ]; then
    echo "ok 1 - the Responses API # SKIP $REASON"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec "$PYTHON" tests/serve/responses_api.py "$@"
