# What a build says of itself (--version --verbose, info --backends), and backends that are plugins: found, used, and refused.
. tests/cli/common.sh

unset KAKEYA_PLUGINS KAKEYA_TEST_DEVICE
works "--version works" --version
check "and is one line" grep -q -x -E 'kakeya [0-9]+\.[0-9]+\.[0-9]+' "$WORK/out"
check "alone" test "$(wc -l <"$WORK/out")" -eq 1
works "--version --verbose works" --version --verbose
check "the version comes first" sh -c 'head -n 1 "$1" | grep -q -x "kakeya [0-9.]*"' - "$WORK/out"
for word in '^  source  *[0-9a-z]' '^  compiler  *[A-Z]' '^  type, flags  *[A-Z]' '^  for  *[A-Z]' \
    '^  cpu  .*kernels .*; runs .*; compiled '; do
    check "then a line with $word" grep -q -e "$word" "$WORK/out"
done
sed -n '/^libraries$/,$p' "$WORK/out" | sed -n 's/^  \([^ ]*\)  *\([^ ,]*\).*/\1 \2/p' >"$WORK/versions"
check "and the libraries with their versions" sh -c '[ "$(wc -l <"$1")" -gt 9 ] && ! grep -v -E " [0-9]|^giflib|^gRPC" "$1"' - \
    "$WORK/versions"
for name in cJSON yajl zlib OpenSSL libspng libwebp; do
    check "$name is one of them" grep -q "^$name [0-9]" "$WORK/versions"
done
# What is linked is told, under the name of its soname; the C library's parts, and what libraries are split into, are left out.
if command -v readelf >/dev/null 2>&1 && readelf -h "$KAKEYA" >"$WORK/check" 2>&1; then
    readelf -d "$KAKEYA" | sed -n 's/.*NEEDED.*\[lib\([^.]*\)\.so.*/\1/p' | grep -v -x -E 'c|m|dl|rt|pthread|stdc\+\+|gcc_s' |
        sed -e 's/^event.*/libevent/' -e 's/^webp.*/libwebp/' -e 's/^crypto$/OpenSSL/' -e 's/^ssl$/OpenSSL/' -e 's/^gif$/giflib/' \
            -e 's/^jpeg$/libjpeg-turbo/' -e 's/^z$/zlib/' -e 's/^spng$/libspng/' -e 's/^cjson$/cJSON/' -e 's/^edit$/libedit/' \
            -e 's/^sndfile$/libsndfile/' -e 's/^mpg123$/libmpg123/' -e 's/^samplerate$/libsamplerate/' -e 's/^uring$/liburing/' \
            -e 's/^sqlite3$/SQLite/' |
        LC_ALL=C sort -u >"$WORK/linked"
    cut -d ' ' -f 1 "$WORK/versions" | LC_ALL=C sort >"$WORK/told"
    : >"$WORK/err"
    LC_ALL=C comm -23 "$WORK/linked" "$WORK/told" >"$WORK/out"
    check "everything that is linked is told" test ! -s "$WORK/out"
else
    skip "everything that is linked is told" "no readelf here"
fi

works "info --backends works" info --backends
check "with a line for each backend at least" sh -c 'for b in cuda mlx cpu; do grep -q "^$b " "$1" || exit 1; done' - "$WORK/out"
works "info --backends --json works" info --backends --json
json_holds "one backend is chosen, and each says why or why not" '
    (.backends | map(.name)) == ["cuda", "mlx", "cpu"] and ([.backends[] | select(.automatic)] | length) == 1 and
    (.backends | all((.about | length) > 0 and (.automatic == false or .usable)))'
cp "$WORK/out" "$WORK/backends"
refuses "info: a model or the backends" "--backends describes this build" info --backends demo

if [ ! -e "$BUILD/plugin/good/libkakeya-cuda.so" ] || jq -e '.backends[0].built_in' "$WORK/backends" >"$WORK/check"; then
    skip "plugins" "this build has none for tests"
    finish
fi
plugins=$BUILD/plugin

# --- found, with and without its device
export KAKEYA_PLUGINS="$WORK/none:$plugins/good"
works "a plugin is found" info --backends --json
json_holds "and named" '.backends[0] | .name == "cuda" and (.plugin | endswith("/good/libkakeya-cuda.so")) and .built_in == false'
json_holds "without its device the CPU is used, and the reason is told" '
    (.backends[0] | .usable == false and .automatic == false and (.about | test("no device of tests"))) and .backends[2].automatic'
works "nobody hears of it who has not asked" run --raw --max-tokens 4 --json 'def f'
check "of the plugin" test ! -s "$WORK/err"
export KAKEYA_TEST_DEVICE="a device of tests"
works "with its device it is usable" info --backends --json
json_holds "and what auto takes" '.backends[0] | .usable and .automatic and .about == "a device of tests"'
works "info says where it is from" info --backends
check "in a line" grep -q -E "^ +from .*/good/libkakeya-cuda.so$" "$WORK/out"
"$KAKEYA" run --backend cpu --raw --max-tokens 16 'def f' >"$WORK/cpu" 2>"$WORK/err" </dev/null
for backend in cuda auto; do
    works "the plugin answers as backend $backend" run --backend $backend --raw --max-tokens 16 'def f'
    check "with the same tokens" cmp "$WORK/cpu" "$WORK/out"
done
works "it scores" score --backend cuda --text-file README.md --context 8192 --json
works "and a bench asks its second table" bench --backend cuda --drafter none --context-frontiers 16 --prompt-tokens 16 \
    --decode-tokens 2 --verify-rows 1 --repeats 1
unset KAKEYA_TEST_DEVICE

# --- refused
other='/other/libkakeya-cuda.so is of another build: its interface is 0\.0\.0-other, this one.s [0-9.]*-[0-9a-f]{16}'
export KAKEYA_PLUGINS="$plugins/other:$plugins/good"
fails_with "a plugin of another build is refused" "^kakeya run: backend cuda: $plugins$other \(available: cpu\)$" run --backend cuda x
works "where a backend is chosen automatically, the CPU answers" run --raw --max-tokens 4 'def f'
check "and one line says why" grep -q -x -E "kakeya run: note: .*$other" "$WORK/err"
check "alone" test "$(grep -c note: "$WORK/err")" -eq 1
works "--backend cpu says nothing of it" run --backend cpu --raw --max-tokens 4 'def f'
check "at all" test "$(grep -c note: "$WORK/err")" -eq 0
works "info --backends has the reason" info --backends
check "in the line of the backend" grep -q -x -E "cuda +not used: .*$other" "$WORK/out"
export KAKEYA_PLUGINS="$plugins/nothing"
fails_with "so is what is no plugin" "is no plugin of kakeya: it exports no kakeya_backend_plugin" run --backend cuda x
mkdir "$WORK/broken" "$WORK/named" "$WORK/beside"
echo "no library" >"$WORK/broken/libkakeya-cuda.so"
export KAKEYA_PLUGINS="$WORK/broken"
fails_with "and what cannot be loaded" "/broken/libkakeya-cuda.so cannot be loaded: " run --backend cuda x
cp "$plugins/good/libkakeya-cuda.so" "$WORK/named/libkakeya-mlx.so"
export KAKEYA_PLUGINS="$WORK/named"
fails_with "and one under another's name" "libkakeya-mlx.so is the plugin of backend cuda" run --backend mlx x
export KAKEYA_PLUGINS=
fails_with "an empty list of folders has none" "no libkakeya-cuda.so in .*, which is empty \(available: cpu\)" run --backend cuda x
unset KAKEYA_PLUGINS

# --- without $KAKEYA_PLUGINS: beside the program, and where a package puts it
mkdir -p "$WORK/prefix/bin" "$WORK/prefix/lib/kakeya"
cp "$KAKEYA" "$WORK/prefix/bin/kakeya"
KAKEYA=$WORK/prefix/bin/kakeya
export KAKEYA_MODEL="$MODELS/demo"
fails_with "without a plugin the folders are named" "no libkakeya-cuda.so in $WORK/prefix/bin:" run --backend cuda x
cp "$plugins/good/libkakeya-cuda.so" "$WORK/prefix/bin/"
works "a plugin beside the program is found" info --backends --json
json_holds "there" '.backends[0].plugin | endswith("/prefix/bin/libkakeya-cuda.so")'
mv "$WORK/prefix/bin/libkakeya-cuda.so" "$WORK/prefix/bin/kept"
library_folder=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[A-Z]*=//p' "$BUILD/CMakeCache.txt")
mkdir -p "$WORK/prefix/$library_folder/kakeya"
mv "$WORK/prefix/bin/kept" "$WORK/prefix/$library_folder/kakeya/libkakeya-cuda.so"
works "so is one where packages put it" info --backends --json
json_holds "too" '.backends[0].plugin | endswith("/kakeya/libkakeya-cuda.so")'
finish
