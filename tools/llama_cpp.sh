#!/bin/sh
# Builds llama.cpp as llama-cpp-python carries it (its sources from PyPI, of one pinned version), for bench/llama_compare.py: the library
# for this machine's CPU, and Python's declarations of its functions. 80 files of C++: minutes of one core.
# usage: tools/llama_cpp.sh
# The last line is the folder. Exits with 1 and a line where it cannot be had.
# environment: BUILD (build), whose folder llama-cpp-VERSION it becomes, JOBS (1)
set -eu

version=0.3.36
folder=${BUILD:-build}/llama-cpp-$version
fail() {
    echo "llama_cpp: $*" >&2
    exit 1
}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ ! -f "$folder/done" ]; then
    "$(dirname "$0")/bootstrap.sh" pip >/dev/null 2>&1 || fail "python3 with pip is needed, and could not be installed"
    sources=$folder/llama_cpp_python-$version.tar.gz
    [ -f "$sources" ] ||
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$folder" \
            "llama-cpp-python==$version" >"$folder/log" 2>&1 || fail "its sources could not be downloaded: $(tail -n 1 "$folder/log")"
    tar -xzf "$sources" -C "$folder" --strip-components=1
    # Its code for AMX dies when GCC 12 compiled it, which takes the configuration of tiles for 8 bytes and leaves the others unwritten.
    without=
    [ "$(uname -m)" != x86_64 ] || without="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    # What a compiler cache holds for "native" may have been made for another processor.
    export CCACHE_DISABLE=1
    cmake -S "$folder/vendor/llama.cpp" -B "$folder/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON \
        -DGGML_CCACHE=OFF -DCMAKE_C_FLAGS="$without" -DCMAKE_CXX_FLAGS="$without" -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF \
        >"$folder/log" 2>&1 || fail "it could not be configured: see $folder/log"
    nice -n 19 cmake --build "$folder/cmake" --target llama -j "${JOBS:-1}" >>"$folder/log" 2>&1 ||
        fail "it could not be built: see $folder/log"
    touch "$folder/done"
fi
echo "$folder"
