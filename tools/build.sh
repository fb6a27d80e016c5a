#!/bin/sh
# Configures (once, or when options are given) and builds. Quiet when it works and nobody watches.
# usage: tools/build.sh BUILD_DIRECTORY "TARGET..." [CMAKE_OPTION...]
set -eu

directory=${1:?usage: tools/build.sh BUILD_DIRECTORY TARGET [CMAKE_OPTION...]}
target=${2:?usage: tools/build.sh BUILD_DIRECTORY TARGET [CMAKE_OPTION...]}
shift 2

# What several builds compile alike (the kernels, and nearly everything of the CUDA build) is compiled once: ccache looks at no
# build folder's name, and takes the files that were read from the compiler instead of looking for them beforehand.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1

run() { # command...: its output only on a terminal or when it fails
    if [ -t 1 ]; then
        "$@"
    elif ! output=$("$@" 2>&1); then
        printf '%s\n' "$output" >&2
        exit 1
    fi
}

if [ ! -f "$directory/build.ninja" ]; then
    command -v ccache >/dev/null 2>&1 && set -- -DCMAKE_C_COMPILER_LAUNCHER=ccache "$@"
    case " $* " in *" -DKAKEYA_TESTS="*) ;; *) set -- -DKAKEYA_TESTS=OFF "$@" ;; esac
    run cmake -S . -B "$directory" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
elif [ $# -gt 0 ]; then
    run cmake -S . -B "$directory" "$@"
fi
# shellcheck disable=SC2086  # several targets
run ninja -C "$directory" $target
