# The Python package as its users have it: the wheel, installed by pip into an environment of its own. Its module, its program, and
# kakeya.remote against a gRPC server.
# Whole runs only: the wheel is built.
. tests/serve/start.sh
need_packages "the Python package"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BUILD/serve-python/bin/python" -c 'import ensurepip' 2>/dev/null || skip_all "the Python package" "python3 -m venv does not work here"
if ! wheel=$(tools/wheel.sh 2>"$work/log"); then
    # Without its packages nothing can be said; that it does not compile is a failure.
    ! grep -q "wheel: .*/pip failed\|wheel: python3 failed" "$work/log" || skip_all "the Python package" "$(tail -n 1 "$work/log")"
    echo "not ok 1 - make wheel"
    sed 's/^/# /' "$work/log"
    exit 1
fi
wheel=$(echo "$wheel" | tail -n 1)
# What the wheel needs lies in the environment of the tests: no network.
packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m venv "$work/clean"
if ! "$work/clean/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel" >"$work/log" 2>&1; then
    echo "not ok 1 - pip installs the wheel"
    sed 's/^/# /' "$work/log"
    exit 1
fi
cp -R "$packages"/numpy* "$packages"/cffi* "$packages"/_cffi_backend* "$packages"/pycparser* \
    "$("$work/clean/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
status=0
env -u KAKEYA_MODEL -u KAKEYA_LIBRARY "$work/clean/bin/python" tests/serve/python_package.py "$@" || status=1

[ -x "${GRPC_SERVER_BUILD:-$BUILD}/tools/grpc_server" ] || {
    echo "ok - kakeya.remote # SKIP this build has no gRPC service"
    exit $status
}
site=$("$work/clean/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -R python "$work/source" # for mypy, which looks at the sources
cp -R "$site/kakeya/v1" "$site/kakeya/_ffi.py" "$work/source/kakeya/"
mkdir "$work/site"
cp -R "$site/kakeya" "$work/site/kakeya"
CLIENT_SOURCE=$work/source PYTHONPATH=$work/site "$PYTHON" tests/serve/client_python.py "$@" || status=1
exit $status
