# What others get: Debian packages that lintian finds nothing in, which install and go away again; the archive of the sources; the bill
# of materials. Whole runs only.
. tests/cli/common.sh
built=$KAKEYA

# --- the Debian packages
if ! command -v dpkg-shlibdeps >/dev/null 2>&1; then
    skip "Debian packages" "no dpkg-dev here"
else
    tools/package.sh "$BUILD" "$WORK/packages" >"$WORK/out" 2>"$WORK/err" && STATUS=0 || STATUS=$?
    check "make package makes packages" test "$STATUS" -eq 0
    version=$("$KAKEYA" --version | cut -d ' ' -f 2)
    sed "s|.*/\([^_]*\)_.*|\1|" "$WORK/out" | LC_ALL=C sort >"$WORK/names"
    expected="kakeya kakeya-models-demo libkakeya-dev libkakeya0"
    [ ! -e "$BUILD/libkakeya-cuda.so" ] || expected="kakeya kakeya-cuda kakeya-models-demo libkakeya-dev libkakeya0"
    check "one for each part" test "$(tr '\n' ' ' <"$WORK/names")" = "$expected "
    file_of() { ls "$WORK"/packages/"$1"_"$version"_*.deb; }
    field() { dpkg-deb -f "$(file_of "$1")" "$2"; }
    has() { # package, field, pattern
        field "$1" "$2" | grep -q -E -e "$3"
    }
    check "the program depends on what it is linked with" has kakeya Depends "libcjson1.*libevent"
    if [ -x "$BUILD/tools/grpc_server" ]; then
        check "and on grpc, which it loads" has kakeya Depends libgrpc
    fi
    check "it recommends the demo model" has kakeya Recommends kakeya-models-demo
    check "and suggests the GPU's plugin" has kakeya Suggests "kakeya-cuda \(= $version\)"
    check "the library depends on what it is linked with" has libkakeya0 Depends libcjson1
    check "and not on the program" sh -c '! dpkg-deb -f "$1" Depends | grep -q kakeya' - "$(file_of libkakeya0)"
    check "headers go with their library" has libkakeya-dev Depends "libkakeya0 \(= $version\)"
    check "models are for every machine" has kakeya-models-demo Architecture '^all$'
    if [ -e "$BUILD/libkakeya-cuda.so" ]; then
        check "the plugin goes with its program or library" has kakeya-cuda Depends \
            "kakeya \(= $version\) \| libkakeya0 \(= $version\)"
        dpkg-deb -c "$(file_of kakeya-cuda)" | awk '$1 ~ /^-/ { print $6 }' | grep -v /share/ >"$WORK/files"
        check "and is the plugin alone" test "$(cat "$WORK/files")" = ./usr/lib/kakeya/libkakeya-cuda.so
    fi
    for package in $(cat "$WORK/names"); do dpkg-deb -c "$(file_of "$package")" | awk '$1 !~ /^d/ { print $6 }'; done |
        LC_ALL=C sort >"$WORK/all"
    check "no file is in two packages" test -z "$(uniq -d "$WORK/all")"

    for package in $(cat "$WORK/names"); do dpkg-deb -x "$(file_of "$package")" "$WORK/package"; done
    KAKEYA=$WORK/package/usr/bin/kakeya
    cd "$WORK"
    works "the program of the packages runs, with the demo models" run --raw --max-tokens 4 'def f'
    cd - >/dev/null
    check "the manual page is compressed" gzip -t "$WORK/package/usr/share/man/man1/kakeya.1.gz"
    check "and not there a second time" test ! -e "$WORK/package/usr/share/man/man1/kakeya.1"
    unit=$WORK/package/usr/lib/systemd/system/kakeya.service
    check "the service starts the installed program" grep -q '^ExecStart=/usr/bin/kakeya serve ' "$unit"
    check "no path of the build is in it" sh -c '! grep -q -F -e "$1" "$2"' - "$BUILD" "$unit"

    if [ "$(id -u)" -eq 0 ]; then
        mkdir -p "$WORK/root/var/lib/dpkg/info" "$WORK/root/var/lib/dpkg/updates"
        : >"$WORK/root/var/lib/dpkg/status"
        in_root() { dpkg --root="$WORK/root" --force-depends --force-bad-path --no-triggers "$@" >"$WORK/out" 2>"$WORK/err"; }
        in_root -i "$WORK"/packages/*.deb && STATUS=0 || STATUS=$?
        check "the packages install" test "$STATUS" -eq 0
        KAKEYA=$WORK/root/usr/bin/kakeya
        cd "$WORK"
        works "what is installed runs" run --raw --max-tokens 4 'def f'
        cd - >/dev/null
        # shellcheck disable=SC2046  # several names
        in_root -r $(cat "$WORK/names") && STATUS=0 || STATUS=$?
        check "and can be removed" test "$STATUS" -eq 0
        check "leaving no file" test -z "$(find "$WORK/root/usr" -type f 2>/dev/null)"
    else
        skip "the packages install" "only root can install packages, even into a folder"
    fi
    if command -v lintian >/dev/null 2>&1; then
        as_root=""
        [ "$(id -u)" -ne 0 ] || as_root=--allow-root
        STATUS=0
        lintian $as_root --fail-on error,warning "$WORK"/packages/*.deb >"$WORK/out" 2>"$WORK/err" || STATUS=$?
        check "lintian finds nothing" sh -c 'test "$1" -eq 0 && ! grep -q "^[EW]: " "$2"' - "$STATUS" "$WORK/out"
    else
        skip "lintian finds nothing" "no lintian here"
    fi
fi

# --- the archive of the sources
if [ -e .git ] && command -v git >/dev/null 2>&1 && git rev-parse HEAD >"$WORK/head" 2>"$WORK/err"; then
    tools/dist.sh "$WORK/one" >"$WORK/out" 2>"$WORK/err" && STATUS=0 || STATUS=$?
    check "make dist makes an archive" test "$STATUS" -eq 0
    sleep 1 # another second of the clock
    tools/dist.sh "$WORK/two" >"$WORK/again" 2>>"$WORK/err" && STATUS=0 || STATUS=$?
    check "the same bytes a second time" cmp "$(cat "$WORK/out")" "$(cat "$WORK/again")"
    mkdir "$WORK/sources"
    tar -xzf "$(cat "$WORK/out")" -C "$WORK/sources" --strip-components=1
    git ls-tree -r --name-only -z HEAD | tr '\0' '\n' | LC_ALL=C sort >"$WORK/committed"
    (cd "$WORK/sources" && find . -type f -o -type l) | sed 's|^\./||' | LC_ALL=C sort >"$WORK/archived"
    check "it holds what was committed" cmp "$WORK/committed" "$WORK/archived"
    mkdir -p "$WORK/facts/generated"
    : >"$WORK/facts/generated/kakeya.cdx.json.in"
    check "a build of it knows its revision" cmake -D SOURCE="$WORK/sources" -D BUILD="$WORK/facts" -D VERSION=0 -P tools/facts.cmake
    check "without git" grep -q "\"$(cat "$WORK/head")\"" "$WORK/facts/generated/build/kakeya_revision.h"
else
    skip "the archive of the sources" "this is no repository of git's"
fi

# --- the bill of materials: valid, and of what this build is linked with
bill=$BUILD/kakeya.cdx.json
check "the bill of materials names every library of --version --verbose" sh -c '
    "$1" --version --verbose | sed -n "/^libraries\$/,\$p" | sed -n "s/^  \([^ ]*\) .*/\1/p" | grep -v -x glibc | sort >"$3.told"
    jq -r ".components[].name" "$2" | sort | cmp - "$3.told"' - "$built" "$bill" "$WORK/bill"
check "with versions and licenses" jq -e '
    (.components | length) > 9 and all(.components[]; (.version | length) > 0 and (.licenses | length) == 1) and
    ([.dependencies[0].dependsOn[]] | sort) == ([.components[]."bom-ref"] | sort)' "$bill"
PACKAGES=-sbom
. tests/serve/python.sh
if [ -n "$PYTHON" ]; then
    cat >"$WORK/validate.py" <<'PYTHON'
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
with open(sys.argv[1], encoding="utf-8") as file:
    sys.exit(str(JsonStrictValidator(SchemaVersion.V1_5).validate_str(file.read()) or ""))
PYTHON
    "$PYTHON" "$WORK/validate.py" "$bill" >"$WORK/out" 2>"$WORK/err" && STATUS=0 || STATUS=$?
    check "it keeps to the schema of CycloneDX" test "$(cat "$WORK/err")" = ""
    sed 's/"bomFormat"/"bomForm"/' "$bill" >"$WORK/bill.json"
    "$PYTHON" "$WORK/validate.py" "$WORK/bill.json" >"$WORK/out" 2>"$WORK/err" && STATUS=0 || STATUS=$?
    check "which finds what does not" test -s "$WORK/err"
else
    skip "it keeps to the schema of CycloneDX" "$REASON"
fi
finish
