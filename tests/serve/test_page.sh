# The page of `kakeya serve` in Chromium, with Python's standard library alone.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
export KAKEYA BUILD
if ! command -v python3 >/dev/null 2>&1; then
    echo "ok 1 - the page # SKIP there is no python3"
    exit 0
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/serve/page.py "$@"
