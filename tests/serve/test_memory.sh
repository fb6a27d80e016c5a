# `kakeya serve` with less K/V memory than its requests want together. Whole runs only.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/serve/memory.py "$@"
