# What a hostile or failing bus, a dying worker and a wrong clock do to `kakeya remote`: whole runs only.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
export KAKEYA BUILD
for tool in python3 git ssh-keygen; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "ok 1 - a failing bus # SKIP there is no $tool"
        exit 0
    fi
done
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/cli/remote_chaos.py "$@"
