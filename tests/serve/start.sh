# Sourced by the tests of the server: absolute paths of the program and of the build, and how a test written in Python is run.
: "${KAKEYA:=build/kakeya}" "${BUILD:=build}"
case $KAKEYA in /*) ;; *) KAKEYA=$PWD/$KAKEYA ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KAKEYA BUILD PYTHONDONTWRITEBYTECODE=1

skip_all() { # what is tested, why it cannot be
    echo "ok 1 - $1 # SKIP $2"
    exit 0
}

# With Python's standard library alone.
run_python() { # what is tested, script, arguments...
    command -v python3 >/dev/null 2>&1 || skip_all "$1" "there is no python3"
    shift
    exec python3 "$@"
}

# With the packages of requirements.txt: sets PYTHON to an interpreter that has them.
need_packages() { # what is tested
    . tests/serve/python.sh
    [ -n "$PYTHON" ] || skip_all "$1" "$REASON"
}

run_with_packages() { # what is tested, script, arguments...
    need_packages "$1"
    shift
    exec "$PYTHON" "$@"
}

run_with_routers() { # what is tested, script, arguments...: with those of requirements-routers.txt
    PACKAGES=-routers
    run_with_packages "$@"
}

need_grpc() { # what is tested
    [ -x "${GRPC_SERVER_BUILD:-$BUILD}/tools/grpc_server" ] || skip_all "$1" "this build has no gRPC service"
}
