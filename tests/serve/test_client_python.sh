# The Python client of the gRPC service, installed by pip as its users do.
. tests/serve/start.sh
need_grpc "the Python client"
need_packages "the Python client"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A copy, because building leaves files in the source tree.
mkdir -p "$work/clients" "$work/src/serve"
cp -R clients/python "$work/clients/python"
cp -R src/serve/proto "$work/src/serve/proto"
if ! "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target "$work/site" \
    "$work/clients/python" >"$work/log" 2>&1; then
    echo "not ok 1 - pip installs the Python client"
    sed 's/^/# /' "$work/log"
    exit 1
fi
cp -R "$work/site/kakeya/v1" "$work/clients/python/kakeya/v1" # for mypy, which looks at the sources
status=0
CLIENT_SOURCE=$work/clients/python PYTHONPATH=$work/site "$PYTHON" tests/serve/client_python.py "$@" || status=$?
exit $status
