# Homebrew's formula and the Nix expression ask for what CMake looks for, and for nothing else.
. tests/cli/common.sh

# Modules of pkg-config and what else is looked for, as Homebrew names what brings them; what is left of a line is a test's or another
# platform's.
homebrew_names() {
    sed -e 's/^libcjson$/cjson/' -e 's/^libevent_.*$/libevent/' -e 's/^libcrypto$/openssl@3/' -e 's/^openssl$/openssl@3/' \
        -e 's/^libxxhash$/xxhash/' -e 's/^libprotobuf-c$/protobuf-c/' -e 's/^spng$/libspng/' -e 's/^libjpeg$/jpeg-turbo/' \
        -e 's/^libwebp.*$/webp/' -e 's/^libzmq$/zeromq/' -e 's/^sndfile$/libsndfile/' \
        -e 's/^sqlite3.*$/sqlite/' -e 's/^libmpg123$/mpg123/' -e 's/^samplerate$/libsamplerate/' -e '/^liburing/d' -e '/^cmocka$/d'
}
{
    sed -n -E 's/^ *pkg_check_modules\([A-Z_]+ (REQUIRED )?(IMPORTED_TARGET )?([^)]*)\).*/\3/p' CMakeLists.txt | tr ' ' '\n'
    sed -n 's/^find_package(GIF .*/giflib/p' CMakeLists.txt
    sed -n -E 's/^ *find_library\((GRPC|KAKEYA_MLX)_LIBRARY ([a-z]+).*/\2/p' CMakeLists.txt
} | homebrew_names | sort -u >"$WORK/wanted"
sed -n -E 's/^ *(depends_on|uses_from_macos) "([^"]+)".*/\2/p' packaging/kakeya.rb | grep -v -x -e cmake -e ninja -e pkgconf | sort -u \
    >"$WORK/named"
check "something is looked for" test "$(wc -l <"$WORK/wanted")" -gt 9
check "the formula names what CMake looks for" diff "$WORK/wanted" "$WORK/named"
for tool in cmake ninja pkgconf; do
    check "and $tool to build with" grep -q "depends_on \"$tool\" => :build" packaging/kakeya.rb
done
named=$(sed -n -E 's/^    formulae="([$]formulae )?(.*)"$/\2/p' tools/bootstrap.sh |
    tr ' ' '\n' | grep -v -x -e cmake -e ninja -e pkgconf | sort)
check "make on a Mac asks for the same, but for libmlx and what macOS has" test "$named" = \
    "$(grep -v -x -e mlx -e libedit -e zlib "$WORK/named")"
# nixpkgs has other names for some of them, and what Linux alone has.
grep -q 'pkg_check_modules(URING .*liburing' CMakeLists.txt && echo liburing >>"$WORK/wanted"
grep -v -x mlx "$WORK/wanted" | sed -e 's/^jpeg-turbo$/libjpeg/' -e 's/^openssl@3$/openssl/' -e 's/^protobuf-c$/protobufc/' \
    -e 's/^webp$/libwebp/' -e 's/^xxhash$/xxHash/' -e 's/^zeromq$/zeromq/' | LC_ALL=C sort >"$WORK/wanted.nix"
sed -n '/^  buildInputs = \[$/,/^  \];$/p' packaging/kakeya.nix | sed -n 's/^    \([A-Za-z0-9-]*\)$/\1/p' | LC_ALL=C sort >"$WORK/named.nix"
check "the Nix expression names what CMake looks for" diff "$WORK/wanted.nix" "$WORK/named.nix"
tr -d '\n' <packaging/kakeya.nix | sed 's/.*{ lib, \([^}]*\) }:.*/\1/' | tr -d ' ' | tr ',' '\n' | LC_ALL=C sort >"$WORK/arguments"
sed -n -E 's/^ *nativeBuildInputs = \[ (.*) \];/\1/p' packaging/kakeya.nix | tr ' ' '\n' | cat - "$WORK/named.nix" | sed '$astdenv' |
    LC_ALL=C sort -u >"$WORK/used"
check "and takes what it names" diff "$WORK/arguments" "$WORK/used"
check "its version is the project's" grep -q -F "version = \"$(sed -n 's/^project(kakeya VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)\";" \
    packaging/kakeya.nix
for option in $(grep -h -o -E 'DKAKEYA_[A-Z_]+' packaging/kakeya.rb packaging/kakeya.nix | sed 's/^D//' | sort -u); do
    check "CMake has $option" grep -q -E "(option|set)\($option " CMakeLists.txt
done
if command -v ruby >/dev/null 2>&1; then
    check "it is Ruby" ruby -c packaging/kakeya.rb
else
    skip "it is Ruby" "ruby is not installed"
fi
if ! command -v nix-instantiate >/dev/null 2>&1; then
    skip "the other is Nix" "nix-instantiate is not installed"
elif ! nix-instantiate --parse -E 1 >"$WORK/out" 2>"$WORK/err"; then
    skip "the other is Nix" "nix-instantiate does not work here"
else
    check "the other is Nix" nix-instantiate --parse packaging/kakeya.nix
    sed 's/;$//' packaging/kakeya.nix >"$WORK/broken.nix"
    check "which nix-instantiate can tell" sh -c '! nix-instantiate --parse "$1"' - "$WORK/broken.nix"
fi
finish
