# The page of `kakeya serve` in Chromium, with Python's standard library, and axe-core's rules of accessibility, which a package of PyPI
# has: it is read out of a file that is downloaded into the build, once, and checked.
. tests/serve/start.sh
command -v python3 >/dev/null 2>&1 || skip_all "the page" "there is no python3"
AXE=$BUILD/axe/axe.min.js AXE_REASON=""
export AXE AXE_REASON
if [ ! -e "$AXE" ]; then
    rm -rf "$BUILD/axe"
    mkdir -p "$BUILD/axe"
    cat >"$BUILD/axe/requirements.txt" <<'END'
axe-playwright-python==0.1.8 --hash=sha256:fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8
END
    if ! python3 -m venv "$BUILD/axe/pip" >"$BUILD/axe/log" 2>&1; then
        AXE_REASON="python3 -m venv does not work here (python3-venv)"
    elif ! "$BUILD/axe/pip/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        -r "$BUILD/axe/requirements.txt" -d "$BUILD/axe" >>"$BUILD/axe/log" 2>&1; then
        AXE_REASON="axe-core cannot be downloaded: no network?"
    else
        python3 - "$BUILD"/axe/*.whl "$AXE" <<'END'
import sys
import zipfile
with zipfile.ZipFile(sys.argv[1]) as package, open(sys.argv[2], "wb") as out:
    out.write(package.read("axe_playwright_python/axe.min.js"))
END
    fi
    rm -rf "$BUILD/axe/pip"
fi
run_python "the page" tests/serve/page.py "$@"
