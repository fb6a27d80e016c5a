#!/bin/sh
# Makes Debian packages of what `make install` would install, and prints their paths.
# usage: tools/package.sh BUILD_DIRECTORY [DIRECTORY]     into BUILD_DIRECTORY/packages, or into another that it makes anew
set -eu

build=${1:?usage: tools/package.sh BUILD_DIRECTORY [DIRECTORY]}
packages=${2:-$build/packages}
rm -rf "$packages"
mkdir -p "$packages"
packages=$(realpath "$packages")
log=$packages/log
if ! (cd "$build" && cpack -G DEB -B "$packages" -D CPACK_OUTPUT_FILE_PREFIX="$packages") >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -rf "$packages/_CPack_Packages"

# CPack gives all packages one synopsis and puts their own below it; and it has packages with libraries call ldconfig, for which dpkg has
# a trigger, and which plugins do not need.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in "$packages"/*.deb; do
    tree=$work/$(basename "$package" .deb)
    dpkg-deb -R "$package" "$tree"
    awk '/^Description: / { synopsis = 1; next } synopsis { $0 = "Description:" $0; synopsis = 0 } { print }' "$tree/DEBIAN/control" \
        >"$work/control"
    cat "$work/control" >"$tree/DEBIAN/control"
    rm -f "$tree/DEBIAN/postinst" "$tree/DEBIAN/postrm"
    if grep -q -x 'Package: libkakeya0' "$work/control"; then
        cp packaging/debian/triggers "$tree/DEBIAN/triggers"
        chmod 644 "$tree/DEBIAN/triggers"
        version=$(sed -n 's/^Version: //p' "$work/control")
        find "$tree" -name 'libkakeya.so.*' -type l | sed "s|.*/libkakeya\.so\.\(.*\)|libkakeya \1 libkakeya0 (>= $version)|" \
            >"$tree/DEBIAN/shlibs"
        chmod 644 "$tree/DEBIAN/shlibs"
    fi
    dpkg-deb --root-owner-group -Zgzip -b "$tree" "$package" >>"$log"
    rm -rf "$tree"
done
rm "$log"
ls "$packages"/*.deb
