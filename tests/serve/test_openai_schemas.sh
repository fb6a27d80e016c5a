# `kakeya serve` by OpenAI's own Python client: schemas.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
. tests/serve/python.sh
if [ -z "$PYTHON" ]; then
    echo "ok 1 - OpenAI's client # SKIP $REASON"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec "$PYTHON" tests/serve/openai_schemas.py "$@"
