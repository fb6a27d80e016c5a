#!/bin/sh
# The MLX backend's tests, on the device that libmlx has here: on Linux its CPU device. libmlx is installed into build-mlx by pip.
# Sweeps are short unless WHOLE_SWEEPS is set: a row takes far longer on the CPU device than in the CPU backend.
# usage: tools/test_mlx.sh
set -eu
[ -n "${WHOLE_SWEEPS:-}" ] || export KAKEYA_SHORT_SWEEPS=1
. tools/mlx.sh

install_mlx build-mlx || {
    echo "libmlx $mlx_version could not be installed into build-mlx (python3 with pip, and the network)" >&2
    exit 1
}
tools/build.sh build-mlx "kakeya_cli mlx" -DKAKEYA_MLX=ON -DKAKEYA_TESTS=ON -DKAKEYA_CUDA=OFF
failed=0
for test in build-mlx/mlx-tests/test_*; do
    echo "== $test"
    "$test" || failed=1
done
for test in tests/mlx/test_*.sh; do
    echo "== $test"
    KAKEYA=build-mlx/kakeya BUILD=build-mlx sh "$test" || failed=1
done
[ "$failed" -eq 0 ] && echo "all passed" || { echo "some tests failed" && exit 1; }
