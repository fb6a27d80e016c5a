# Sourced by the tests that need packages of Python: makes a virtual environment in $BUILD with what requirements$PACKAGES.txt pins, once,
# and sets PYTHON to its interpreter; or leaves PYTHON empty and says in REASON why there is none.
PYTHON="" REASON=""
if ! command -v python3 >/dev/null 2>&1; then
    REASON="there is no python3"
else
    environment=$BUILD/serve-python${PACKAGES:=}
    requirements=tests/serve/requirements$PACKAGES.txt
    mkdir -p "$BUILD"
    exec 8>"$environment.lock"
    flock 8
    if ! cmp -s "$requirements" "$environment/installed"; then
        rm -rf "$environment"
        # compiled is what tests import, when they do
        if ! python3 -m venv "$environment" >"$environment.log" 2>&1; then
            REASON="python3 -m venv does not work here (python3-venv)"
        elif ! "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -r "$requirements" \
            >>"$environment.log" 2>&1; then
            REASON="the packages of $requirements cannot be installed: no network?"
        else
            cp "$requirements" "$environment/installed"
        fi
    fi
    flock -u 8
    exec 8>&-
    [ -n "$REASON" ] || PYTHON=$environment/bin/python
fi
