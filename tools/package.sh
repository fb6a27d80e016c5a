#!/bin/sh
# Makes a Debian package of what `make install` would install, and prints its path.
# usage: tools/package.sh BUILD_DIRECTORY
set -eu

build=${1:?usage: tools/package.sh BUILD_DIRECTORY}
log=$build/package.log
rm -rf "$build/packages"
if ! (cd "$build" && cpack -G DEB) >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -rf "$build/packages/_CPack_Packages"
ls "$build"/packages/*.deb
