#!/bin/sh
# Compiles and links the program for macOS on Apple silicon, on Linux, with the server and the MLX backend: zig, a package of PyPI, is a
# clang with macOS's headers and the names in its libSystem. Of the libraries that Homebrew has on a Mac this machine's headers are
# used, and lists of the names that they export, so that nothing stays undefined. libmlx is the package for Macs itself. Nothing is
# run.
# usage: tools/cross_macos.sh BUILD_DIRECTORY
set -eu
. tools/mlx.sh

build=${1:?usage: tools/cross_macos.sh BUILD_DIRECTORY}
zig_version=0.17.1
oldest_macos=14.0 # libmlx's
mkdir -p "$build"
build=$(cd "$build" && pwd)
cross=$build/cross

give_up() { # reason
    echo "cross-macos: skipped ($1)"
    exit 0
}

install_zig() {
    [ ! -f "$cross/zig-$zig_version" ] || return 0
    rm -rf "$cross"
    mkdir -p "$cross"
    python3 -m venv "$cross/venv" && "$cross/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --target "$cross/zig" "ziglang==$zig_version" && rm -rf "$cross/venv" && touch "$cross/zig-$zig_version"
}

# libmlx as pip installs it on a Mac: headers and the library; the kernels beside it are of no use here.
install_mac_mlx() {
    [ ! -f "$cross/mlx-$mlx_version" ] || return 0
    python3 -m pip --version >/dev/null 2>&1 || return 1
    rm -rf "$cross/mlx"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --platform "macosx_$(echo $oldest_macos | tr . _)_arm64" --target "$cross/mlx" "mlx-metal==$mlx_version" &&
        rm -f "$cross/mlx/mlx/lib/mlx.metallib" && touch "$cross/mlx-$mlx_version"
}

# clang names extensions of Arm by -march, zig by -mcpu.
write_tools() {
    mkdir -p "$cross/bin"
    cat >"$cross/bin/cc" <<END
#!/bin/sh
for a; do
    shift
    case \$a in -march=armv8.2-a+*) a=-mcpu=generic+v8_2a+\${a#*+} ;; esac
    set -- "\$@" "\$a"
done
exec env ZIG_GLOBAL_CACHE_DIR="$cross/cache" "$cross/zig/ziglang/zig" cc -target aarch64-macos.$oldest_macos "\$@"
END
    sed 's|/zig" cc |/zig" c++ |' "$cross/bin/cc" >"$cross/bin/c++"
    for tool in ar ranlib; do
        printf '#!/bin/sh\nexec "%s/zig/ziglang/zig" %s "$@"\n' "$cross" $tool >"$cross/bin/$tool"
    done
    chmod +x "$cross"/bin/*
}

# Headers of one library to include/, what its shared library exports to lib/: a "text-based stub", as in Apple's SDK.
add_library() { # pkg-config name, library, headers below an include directory...
    name=$1 library=$2
    shift 2
    for header; do
        for place in /usr/include "/usr/include/$(cc -print-multiarch)"; do
            [ ! -e "$place/$header" ] || cp -R "$place/$header" "$cross/include/"
        done
    done
    file=$(cc -print-file-name="lib$library.so")
    [ -e "$file" ] || give_up "lib$library.so is not installed"
    {
        printf -- "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '/opt/homebrew/lib/lib%s.dylib'\n" "$library"
        printf 'exports:\n  - targets: [ arm64-macos ]\n    symbols: [ '
        nm -D --defined-only "$file" | awk '$2 ~ /[TDBRVW]/ { sub(/@.*/, "", $3); printf "%s_%s", n++ ? ", " : "", $3 }'
        printf ' ]\n...\n'
    } >"$cross/lib/lib$library.tbd"
    folders=$(pkg-config --cflags-only-I "$name" | sed "s|/usr/include|$cross/include|g")
    printf 'Name: %s\nDescription: names alone\nVersion: %s\nCflags: -I%s %s\nLibs: -L%s -l%s\n' "$name" \
        "$(pkg-config --modversion "$name")" "$cross/include" "$folders" "$cross/lib" "$library" >"$cross/lib/pkgconfig/$name.pc"
}

tools/bootstrap.sh build
install_zig >"$build/zig.log" 2>&1 || give_up "ziglang $zig_version could not be installed by pip"
write_tools
rm -rf "$cross/include" "$cross/lib"
mkdir -p "$cross/include" "$cross/lib/pkgconfig"
add_library libcjson cjson cjson
add_library yajl yajl yajl
add_library hwloc hwloc hwloc hwloc.h
add_library zlib z zlib.h zconf.h
add_library libedit edit editline histedit.h
add_library spng spng spng.h
add_library libjpeg jpeg jpeglib.h jmorecfg.h jerror.h jconfig.h
add_library libwebp webp webp
add_library libwebpdemux webpdemux webp
add_library giflib gif gif_lib.h 2>/dev/null # has no file of pkg-config's
add_library sndfile sndfile sndfile.h
add_library libmpg123 mpg123 mpg123.h fmt123.h
add_library samplerate samplerate samplerate.h
add_library libcrypto crypto openssl
add_library libxxhash xxhash xxhash.h xxh3.h
add_library openssl ssl openssl
add_library libevent event event2 event.h
add_library libevent_pthreads event_pthreads event2
add_library libevent_openssl event_openssl event2
add_library sqlite3 sqlite3 sqlite3.h
add_library libprotobuf-c protobuf-c protobuf-c

# The core's headers, and its name on a Mac: it is loaded when it is needed.
cp -R /usr/include/grpc "$cross/include/"
mlx=-DKAKEYA_MLX=OFF with="without the MLX backend (mlx-metal $mlx_version could not be installed by pip)"
if install_mac_mlx >>"$build/zig.log" 2>&1; then
    mlx="-DKAKEYA_MLX=ON -DKAKEYA_MLX_ROOT=$cross/mlx/mlx" with="with the MLX backend"
fi
# shellcheck disable=SC2086  # several options
tools/build.sh "$build" product -DKAKEYA_TESTS=OFF -DKAKEYA_CUDA=OFF -DKAKEYA_SERVE=ON $mlx \
    -DGRPC_INCLUDE_DIR="$cross/include" -DGRPC_LIBRARY=/opt/homebrew/lib/libgrpc.dylib \
    -DGIF_INCLUDE_DIR="$cross/include" -DGIF_LIBRARY="$cross/lib/libgif.tbd" \
    -DCMAKE_TOOLCHAIN_FILE="$PWD/tools/arm64_macos.cmake" -DKAKEYA_CROSS="$cross"
magic=$(od -A n -t x4 -N 8 "$build/kakeya" | tr -d ' ')
if [ "$magic" != feedfacf0100000c ]; then
    echo "cross-macos: $build/kakeya is no program for macOS on Arm (it begins with $magic)" >&2
    exit 1
fi
echo "cross-macos: $build/kakeya is linked for macOS $oldest_macos on Apple silicon, $with"
