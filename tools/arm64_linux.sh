#!/bin/sh
# The program for 64-bit Arm Linux: built by Debian's cross compiler, run under qemu's emulation of a processor.
# usage: tools/arm64_linux.sh libraries                    only fetches what the program is linked with
#        tools/arm64_linux.sh build TARGET...              into build-arm64, without the server
#        tools/arm64_linux.sh run PROGRAM [ARGUMENT...]    QEMU_CPU: max (the default), cortex-a53, neoverse-n1, ...
# The compiler and qemu are packages of this machine (tools/bootstrap.sh arm64). The libraries are Debian's for arm64, 8 MB, unpacked
# into the build folder: installed, they would make apt hold two architectures.
set -eu

build=$PWD/build-arm64
root=$build/root
packages="libcjson-dev libcjson1 libyajl-dev libyajl2 libhwloc-dev libhwloc15 libudev1 zlib1g-dev zlib1g libxxhash-dev libcmocka-dev
    libcmocka0 libedit-dev libedit2 libbsd-dev libbsd0 libmd-dev libmd0 libncurses-dev libtinfo6 libssl-dev libssl3 libspng-dev
    libspng0 libjpeg62-turbo-dev libjpeg62-turbo libwebp-dev libwebp7 libwebpdemux2 libgif-dev libgif7
    libsndfile1-dev libsndfile1 libmpg123-dev libmpg123-0 libsamplerate0-dev libsamplerate0 libflac-dev libflac12 libogg-dev libogg0
    libvorbis-dev libvorbis0a libvorbisenc2 libopus-dev libopus0 libmp3lame-dev libmp3lame0 liburing-dev liburing2"

fetch_libraries() {
    [ "$(cat "$build/packages" 2>/dev/null)" != "$packages" ] || return 0 # else another list was unpacked, or none
    work=$build/fetch
    rm -rf "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/state" "$work/debs" "$work/root"
    : >"$work/state/status" # nothing is installed
    cat >"$work/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
Dir::State "$work/state";
Dir::State::lists "$work/lists";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
END
    APT_CONFIG=$work/apt.conf apt-get update -q
    # shellcheck disable=SC2086  # several packages
    (cd "$work/debs" && APT_CONFIG=$work/apt.conf apt-get download -q $packages)
    for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/root"; done
    rm -rf "$root"
    mv "$work/root" "$root"
    rm -rf "$work"
    printf '%s\n' "$packages" >"$build/packages"
}

case ${1:-} in
libraries) fetch_libraries ;;
build)
    shift
    fetch_libraries
    # What is not written for Arm is only to be compiled.
    tools/build.sh "$build" "$*" -DKAKEYA_TESTS=ON -DKAKEYA_CUDA=OFF -DKAKEYA_MLX=OFF -DKAKEYA_SERVE=OFF -DCMAKE_C_FLAGS_RELEASE=-O0 \
        -DCMAKE_TOOLCHAIN_FILE="$PWD/tools/arm64_linux.cmake" -DKAKEYA_ROOT="$root" \
        -DGIF_INCLUDE_DIR="$root/usr/include" -DGIF_LIBRARY="$root/usr/lib/aarch64-linux-gnu/libgif.so"
    ;;
run)
    shift
    QEMU_CPU=${QEMU_CPU:-max} exec qemu-aarch64 -L /usr/aarch64-linux-gnu \
        -E "LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu:/usr/aarch64-linux-gnu/lib" "$@"
    ;;
*)
    echo "usage: tools/arm64_linux.sh libraries | build TARGET... | run PROGRAM [ARGUMENT...]" >&2
    exit 2
    ;;
esac
