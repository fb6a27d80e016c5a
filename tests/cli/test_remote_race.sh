# Two workers race for 50 requests (RACE_REQUESTS for more): whole runs only.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
export KAKEYA BUILD
for tool in python3 git ssh-keygen; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "ok 1 - a race of two workers # SKIP there is no $tool"
        exit 0
    fi
done
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/cli/remote_race.py "$@"
