# `kakeya serve` under mixed load (tests/serve/soak.py). With gRPC where its Python package is, else without.
. tests/serve/start.sh
. tests/serve/python.sh
if [ -z "$PYTHON" ]; then
    PYTHON=$(command -v python3) || skip_all "the server under mixed load" "$REASON"
fi
exec "$PYTHON" tests/serve/soak.py "$@"
