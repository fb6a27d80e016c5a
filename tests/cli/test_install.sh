# Installation into a prefix of one's own: everything is there, works from there, and goes away again.
. tests/cli/common.sh

# the manifest of an installation that the user has made from this build directory stays theirs
[ ! -f "$BUILD/install_manifest.txt" ] || cp "$BUILD/install_manifest.txt" "$WORK/manifest"

if [ -f "$BUILD/cmake_install.cmake" ]; then
    DESTDIR=$WORK/stage cmake --install "$BUILD" --prefix /opt/kakeya >"$WORK/install" 2>&1 && installed=0 || installed=$?
else
    installed=1
fi
: >"$WORK/out"
cp "$WORK/install" "$WORK/err"
STATUS=$installed
check "cmake --install works" test "$installed" -eq 0
prefix=$WORK/stage/opt/kakeya
for file in bin/kakeya include/kakeya.h include/kakeya_text.h include/kakeya_image.h include/kakeya_sound.h include/kakeya_study.h \
    lib/libkakeya.a lib/libkakeya.so lib/libkakeya.so.0.3 \
    lib/pkgconfig/kakeya.pc share/man/man1/kakeya.1 share/bash-completion/completions/kakeya share/zsh/site-functions/_kakeya \
    share/fish/vendor_completions.d/kakeya.fish share/kakeya/models/demo/config.json \
    share/kakeya/proto/kakeya/v1/runtime.proto share/doc/kakeya/kakeya.cdx.json; do
    check "$file is installed" test -f "$prefix/$file"
done

KAKEYA=$prefix/bin/kakeya
cd "$WORK"
works "the installed program finds the bundled demo" run --raw --max-tokens 4 'def f'
works "and its drafter" info --json
json_holds "beside it" '.drafter.block_size == 8 and .f_theta.rank == 256'
cd - >/dev/null

# a user's program, in C and in C++, by pkg-config alone
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
flags=$(pkg-config --cflags --libs kakeya 2>&1) || flags="pkg-config failed: $flags"
# shellcheck disable=SC2086
cc -std=c17 -Wall -Wextra -Werror examples/generate.c -o "$WORK/generate" $flags >"$WORK/err" 2>&1 && STATUS=0 || STATUS=$?
check "the example compiles with the flags of pkg-config" test "$STATUS" -eq 0
check "and runs" "$WORK/generate" "$MODELS/demo" 'def f'
check "with the shared library" sh -c 'readelf -d "$1" | grep -q "NEEDED.*libkakeya.so.0.3"' - "$WORK/generate"
flags_static=$(pkg-config --static --cflags --libs kakeya | sed 's/-lkakeya/-Wl,-Bstatic -lkakeya -Wl,-Bdynamic/')
# shellcheck disable=SC2086
cc -std=c17 examples/generate.c -o "$WORK/generate-static" $flags_static >"$WORK/err" 2>&1 && STATUS=0 || STATUS=$?
check "the static library links with the flags of pkg-config --static" test "$STATUS" -eq 0
check "and runs without the shared one" env -u LD_LIBRARY_PATH "$WORK/generate-static" "$MODELS/demo" 'def f'
cat >"$WORK/user.cpp" <<'CPP'
#include <kakeya.h>
#include <cstdio>
int main() {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = "/nonexistent";
    kakeya_engine *engine = nullptr;
    kakeya_error error{};
    kakeya_status status = kakeya_engine_open(&options, &engine, &error);
    std::printf("%s: %s\n", kakeya_status_name(status), error.message);
    return status == KAKEYA_OK;
}
CPP
# shellcheck disable=SC2086
c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror "$WORK/user.cpp" -o "$WORK/user" $flags >"$WORK/err" 2>&1 && STATUS=0 || STATUS=$?
check "the header serves C++" test "$STATUS" -eq 0
check "and the library links there" "$WORK/user"

# texts of assertions, among others, name files as the source tree does
check "no path of the build is in the program" sh -c '! grep -q -F -e "$1" -e "$2" "$3"' - "$PWD" "$BUILD" "$prefix/bin/kakeya"

# the manual page is usable
if command -v man >/dev/null 2>&1; then
    check "the manual page has no mistakes" test -z "$(man --warnings -l "$prefix/share/man/man1/kakeya.1" 2>&1 >/dev/null)"
else
    skip "the manual page has no mistakes" "no man here"
fi
tools/uninstall.sh "$BUILD" "$WORK/stage" >"$WORK/out" 2>"$WORK/err" && STATUS=0 || STATUS=$?
check "uninstall works" test "$STATUS" -eq 0
check "and leaves no file" test -z "$(find "$WORK/stage" -type f)"
check "and no directory of ours" test ! -e "$prefix/share/kakeya"

[ ! -f "$WORK/manifest" ] || cp "$WORK/manifest" "$BUILD/install_manifest.txt"

finish
