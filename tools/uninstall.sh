#!/bin/sh
# Removes what `make install` wrote, by CMake's manifest of that install.
# usage: tools/uninstall.sh BUILD_DIRECTORY [DESTDIR]
set -eu

manifest=${1:?usage: tools/uninstall.sh BUILD_DIRECTORY [DESTDIR]}/install_manifest.txt
destination=${2:-}
if [ ! -f "$manifest" ]; then
    echo "uninstall: no $manifest: nothing was installed from this build directory" >&2
    exit 1
fi
# the manifest's last line has no newline
{ cat "$manifest"; echo; } | while IFS= read -r file; do
    [ -n "$file" ] || continue
    rm -f "$destination$file"
    # directories that are ours alone go when they become empty
    directory=$(dirname "$destination$file")
    while case $directory in */kakeya | */kakeya/*) true ;; *) false ;; esac; do
        rmdir "$directory" 2>/dev/null || break
        directory=$(dirname "$directory")
    done
done
rm -f "$manifest"
