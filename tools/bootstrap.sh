#!/bin/sh
# Installs the Debian packages that a task still lacks, naming each; does nothing, apt included, when none is missing.
# usage: tools/bootstrap.sh build|test|balancer|browser|shells|style|packaging|cache|mlx|fuzz|arm64|coverage|package
# `browser`, `shells`, `style`, `packaging`, `cache`, `mlx`, `fuzz` and `arm64` packages are optional to the caller: where they cannot be
# installed the script fails and the caller decides.
set -eu

task=${1:?usage: tools/bootstrap.sh build|test|balancer|browser|shells|style|packaging|cache|mlx|fuzz|arm64|coverage|package}
missing=""

need_command() { # command, package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need_library() { # pkg-config name, package
    command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$1" || missing="$missing $2"
}

need_build() {
    need_command cc gcc
    # a compiler without the C library's headers cannot build anything
    echo '#include <stdio.h>' | cc -E -x c - >/dev/null 2>&1 || missing="$missing libc6-dev"
    need_command cmake cmake
    need_command ninja ninja-build
    need_command pkg-config pkg-config
    need_library libcjson libcjson-dev
    need_library yajl libyajl-dev
    need_library hwloc libhwloc-dev
    need_library zlib zlib1g-dev
    need_library libedit libedit-dev
    need_library libxxhash libxxhash-dev
    need_library liburing liburing-dev
    need_library spng libspng-dev
    need_library libjpeg libjpeg62-turbo-dev
    need_library libwebpdemux libwebp-dev
    echo '#include <gif_lib.h>' | cc -E -x c - >/dev/null 2>&1 || missing="$missing libgif-dev"
    need_library sndfile libsndfile1-dev
    need_library libmpg123 libmpg123-dev
    need_library samplerate libsamplerate0-dev
    need_library libevent_openssl libevent-dev
    need_library openssl libssl-dev
    need_library sqlite3 libsqlite3-dev
    # pkg-config would walk the hundred files of grpc's dependencies at each start
    echo '#include <grpc/grpc.h>' | cc -E -x c - >/dev/null 2>&1 || missing="$missing libgrpc-dev"
    need_library libprotobuf-c libprotobuf-c-dev
    need_command protoc-c protobuf-c-compiler
    need_library libzmq libzmq3-dev
}

# On a Mac nothing is installed: what is missing is named as Homebrew names it.
if [ "$(uname -s)" = Darwin ] && [ "$task" = build ]; then
    formulae="cmake ninja pkgconf cjson yajl hwloc xxhash libspng jpeg-turbo webp giflib libsndfile mpg123 libsamplerate libevent"
    formulae="$formulae openssl@3 grpc protobuf-c sqlite zeromq"
    for formula in $formulae; do
        brew list --formula "$formula" >/dev/null 2>&1 || missing="$missing $formula"
    done
    [ -z "$missing" ] || { echo "kakeya needs more before it can be built: brew install$missing" >&2 && exit 1; }
    exit 0
fi

case $task in
build) need_build ;;
test)
    need_build
    need_library cmocka libcmocka-dev
    need_command jq jq
    need_command c++ g++
    need_command python3 python3
    need_command openssl openssl
    need_command haproxy haproxy
    need_command git git
    need_command ssh-keygen openssh-client
    python3 -c 'import ensurepip' >/dev/null 2>&1 || missing="$missing python3-venv"
    ;;
balancer) need_command nginx nginx-light ;;
browser)
    for name in chromium chromium-browser google-chrome; do
        ! command -v $name >/dev/null 2>&1 || exit 0
    done
    missing=" chromium"
    ;;
package)
    need_build
    need_command dpkg-shlibdeps dpkg-dev
    ;;
shells)
    need_command zsh zsh
    need_command fish fish
    ;;
style)
    need_command clang-format clang-format
    need_command codespell codespell
    need_command doxygen doxygen
    ;;
packaging)
    need_command dpkg-shlibdeps dpkg-dev
    need_command lintian lintian
    need_command ruby ruby
    need_command nix-instantiate nix-bin
    ;;
pip) python3 -m pip --version >/dev/null 2>&1 || missing="$missing python3-pip" ;;
mlx)
    python3 -m pip --version >/dev/null 2>&1 || missing="$missing python3-pip"
    ldconfig -p 2>/dev/null | grep -q 'libopenblas\.so\.0 ' || missing="$missing libopenblas0-pthread"
    ;;
cache) need_command ccache ccache ;;
fuzz)
    need_build
    need_command clang clang
    if command -v clang >/dev/null 2>&1; then
        runtime=$(clang -print-file-name=libclang_rt.fuzzer-x86_64.a)
        [ -e "$runtime" ] || [ "$(uname -m)" != x86_64 ] ||
            missing="$missing libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
    fi
    ;;
arm64)
    need_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    echo '#include <stdio.h>' | aarch64-linux-gnu-gcc -E -x c - >/dev/null 2>&1 || missing="$missing libc6-dev-arm64-cross"
    need_command qemu-aarch64 qemu-user
    ;;
coverage)
    need_build
    need_library cmocka libcmocka-dev
    need_command gcovr gcovr
    ;;
*)
    echo "usage: tools/bootstrap.sh build|test|balancer|browser|shells|style|packaging|cache|mlx|fuzz|arm64|coverage|package" >&2
    exit 2
    ;;
esac

[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "kakeya needs these Debian packages, or what your system calls them, before it can go on:$missing" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "kakeya needs these Debian packages (run as root: apt-get install$missing)" >&2
        exit 1
    fi
    as_root=sudo
fi
echo "installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086  # word splitting of the package list is wanted
if ! { $as_root apt-get update -q && $as_root apt-get install -q -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "installing failed; install them by hand and try again:$missing" >&2
    exit 1
fi
# clang brings its sanitizer runtime in a package of its own, whose name depends on the version just installed
case " $missing " in *" clang "*) exec "$0" "$task" ;; esac
