#!/bin/sh
# Makes the archive of the sources at HEAD and prints its path. It does not depend on when and where it is made: two runs give the same
# bytes.
# usage: tools/dist.sh BUILD_DIRECTORY
set -eu

build=${1:?usage: tools/dist.sh BUILD_DIRECTORY}
[ -e .git ] || { echo "dist: this is no repository of git's: an archive is made of what was committed" >&2 && exit 1; }
[ -z "$(git status --porcelain --untracked-files=no)" ] ||
    echo "dist: changes that are not committed are not in the archive" >&2
version=$(sed -n 's/^project(kakeya VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
mkdir -p "$build/dist"
archive=$build/dist/kakeya-$version.tar.gz
git -c tar.umask=0022 -c core.autocrlf=false archive --format=tar --prefix="kakeya-$version/" HEAD >"$archive.tar"
gzip -9n <"$archive.tar" >"$archive"
rm -f "$archive.tar"
echo "$archive"
