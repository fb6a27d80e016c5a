#!/bin/sh
# Every test: unit tests, command line, example program, the same again under sanitizers with a short fuzz of the parsers, threads
# under ThreadSanitizer, kernels of 64-bit Arm under qemu, and the MLX and CUDA backends where there are libmlx and a CUDA compiler.
# Long sweeps are longest in the release build: a sanitizer, and a fake device, look at every kind of case, and find no more in the
# fiftieth of a kind. `make test-whole` has every repetition. Builds and tests that do not depend on each other overlap, so that no
# processor waits for the last test of a part.
# The last line is "N passed, N failed[, N skipped]", counting single tests; the exit status is 1 if any failed.
# environment: BUILD (build), KAKEYA_REAL_MODEL (a public model, which tools/real_model.sh brings otherwise),
# FUZZ_SECONDS (2, per target), TEST_TIMEOUT and TEST_JOBS (tools/tap.sh), WHOLE_SWEEPS (if set, every
# sweep is whole, everywhere), CUDA_ARCHITECTURES (90a-real, with Hopper's own instructions; when sweeps are whole also 80-real, without
# them; "all": every one that CMakeLists.txt names)
set -eu

build=${BUILD:-build}
fuzz_seconds=${FUZZ_SECONDS:-2}
cuda_architectures=${CUDA_ARCHITECTURES:-90a-real${WHOLE_SWEEPS:+;80-real}}
[ "$cuda_architectures" != all ] ||
    cuda_architectures=$(sed -n 's/^set(KAKEYA_CUDA_ARCHITECTURES "\([^"]*\)".*/\1/p' CMakeLists.txt)
. tools/tap.sh
. tools/cuda.sh
. tools/mlx.sh

tools/bootstrap.sh test
tools/bootstrap.sh balancer >/dev/null 2>&1 || true # the tests behind nginx are skipped without it
tools/bootstrap.sh browser >/dev/null 2>&1 || true # the test of the page is skipped without one
tools/bootstrap.sh cache >/dev/null 2>&1 || true # without it, what several builds have in common is compiled by each
tools/bootstrap.sh mlx >/dev/null 2>&1 || true   # what cannot be had is skipped
tools/bootstrap.sh shells >/dev/null 2>&1 || true
tools/bootstrap.sh packaging >/dev/null 2>&1 || true # what looks at packages is skipped without it
tools/bootstrap.sh style >/dev/null 2>&1 || true # the style test skips what it cannot check

echo "== Release build"
if ! run_step "build" tools/build.sh "$build" all -DKAKEYA_TESTS=ON -DKAKEYA_CUDA=OFF -DKAKEYA_MLX=OFF; then
    finish
    exit 1
fi
# A public model, which others made, where it can be had: its tests are skipped without it.
[ -n "${KAKEYA_REAL_MODEL:-}" ] || KAKEYA_REAL_MODEL=$(BUILD="$build" tools/real_model.sh quiet 2>"$work/real_model") || {
    skip "public model" "$(tail -n 1 "$work/real_model")"
    KAKEYA_REAL_MODEL=
}
export KAKEYA_REAL_MODEL
{
    unit_tests "$build"
    ls tests/style/test_*.sh tests/cli/test_*.sh tests/serve/test_*.sh
} >"$work/paths"
run_programs "$build" "" <"$work/paths"
[ -n "${WHOLE_SWEEPS:-}" ] || export KAKEYA_SHORT_SWEEPS=1

# One build has the sanitized tests and the fuzz targets: clang's, which no other compiler can replace for the latter.
echo "== AddressSanitizer and UndefinedBehaviorSanitizer, fuzzing for $fuzz_seconds seconds per target"
sanitized=build-fuzz options="-DCMAKE_C_COMPILER=clang -DKAKEYA_FUZZ=ON" targets="all fuzz_targets"
if ! tools/bootstrap.sh fuzz >"$work/bootstrap" 2>&1; then
    skip "fuzz" "clang with libFuzzer is not installed and could not be"
    sanitized=build-sanitize options=-DKAKEYA_SANITIZE=ON targets=all
fi
# shellcheck disable=SC2086  # several options
if run_step "sanitizer build" tools/build.sh "$sanitized" "$targets" $options -DKAKEYA_TESTS=ON -DKAKEYA_CUDA=OFF -DKAKEYA_MLX=OFF; then
    # The leak checker reads the thread-local memory of threads that gRPC ends at that moment, and fails: it is not to follow it.
    export ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1:intercept_tls_get_addr=0
    export UBSAN_OPTIONS=print_stacktrace=1
    start_tap "test_grpc (sanitized)" env GRPC_SERVER_BUILD="$sanitized" SERVE_TEST_WAIT=200 \
        KAKEYA="$build/kakeya" BUILD="$build" sh tests/serve/test_grpc.sh
    start_tap "test_soak (sanitized)" env SOAK_SANITIZED=1 SERVE_TEST_WAIT=200 KAKEYA="$sanitized/kakeya" BUILD="$build" \
        sh tests/serve/test_soak.sh --seconds 6
    {
        unit_tests "$sanitized"
        ls tests/cli/test_bad_input.sh
    } >"$work/paths"
    run_programs "$sanitized" " (sanitized)" <"$work/paths"
    unset ASAN_OPTIONS UBSAN_OPTIONS
    for target in "$sanitized"/fuzz/fuzz_*; do
        [ ! -x "$target" ] || start_tap "$(basename "$target")" env FUZZ_SEED=1 FUZZ_TIMEOUT=100 tools/fuzz.sh one "$target" "$fuzz_seconds"
    done
fi

echo "== ThreadSanitizer"
threaded="test_threads test_concurrency test_turns test_cancel test_scheduler" served=""
[ ! -x "$build/tools/grpc_server" ] || served=grpc_server
if run_step "thread sanitizer build" tools/build.sh build-threads "kakeya_cli $served $threaded" -DKAKEYA_TESTS=ON \
    -DKAKEYA_CUDA=OFF -DKAKEYA_MLX=OFF -DKAKEYA_THREAD_SANITIZE=ON; then
    fixed="" # its runtime wants addresses that a kernel's randomisation may have taken
    setarch "$(uname -m)" -R true 2>"$work/errors" && fixed="setarch $(uname -m) -R"
    suppressed="TSAN_OPTIONS=suppressions=$PWD/tests/serve/thread_sanitizer.supp exitcode=66"
    start_tap "test_soak (ThreadSanitizer)" env "$suppressed" SOAK_SANITIZED=1 SOAK_WRAPPER="$fixed" \
        SERVE_TEST_WAIT=200 KAKEYA=build-threads/kakeya BUILD="$build" sh tests/serve/test_soak.sh --seconds 6
    [ -z "$served" ] ||
        start_tap "test_grpc (ThreadSanitizer)" env "$suppressed" GRPC_SERVER_BUILD=build-threads \
            GRPC_SERVER_WRAPPER="$fixed" SERVE_TEST_WAIT=200 KAKEYA="$build/kakeya" BUILD="$build" \
            sh tests/serve/test_grpc.sh "random clients" "64 streams" cancel outlive "reads nothing" "stop ends"
    for test in $threaded; do
        CMOCKA_MESSAGE_OUTPUT=TAP start_tap "$test (ThreadSanitizer)" $fixed "build-threads/tests/$test"
    done
fi

echo "== 64-bit Arm, emulated"
arm_tests="test_int8 test_kernels test_kernel_vectors test_attend_all test_gemm test_logit_hashes"
if [ "$(uname -m)" = aarch64 ]; then
    skip "64-bit Arm" "this machine is one"
elif ! { tools/bootstrap.sh arm64 && tools/arm64_linux.sh libraries; } >"$work/bootstrap" 2>&1; then
    skip "64-bit Arm" "its cross compiler, its libraries or qemu are not installed and could not be"
# shellcheck disable=SC2086  # several targets
elif run_step "build for 64-bit Arm" tools/arm64_linux.sh build kakeya_cli $arm_tests; then
    emulated="env CMOCKA_MESSAGE_OUTPUT=TAP KAKEYA_SHORT_SWEEPS=emulated"
    for test in $arm_tests; do
        start_tap "$test (64-bit Arm)" $emulated tools/arm64_linux.sh run "build-arm64/tests/$test"
    done
    # A processor with neither SDOT nor SMMLA.
    start_tap "test_int8 (Cortex-A53)" $emulated QEMU_CPU=cortex-a53 tools/arm64_linux.sh run build-arm64/tests/test_int8
fi

echo "== MLX backend"
if ! install_mlx build-mlx >"$work/mlx" 2>&1; then
    skip "MLX backend" "libmlx $mlx_version could not be installed by pip"
elif run_step "MLX build" tools/build.sh build-mlx "kakeya_cli mlx" -DKAKEYA_MLX=ON -DKAKEYA_TESTS=ON -DKAKEYA_CUDA=OFF; then
    CMOCKA_MESSAGE_OUTPUT=TAP start_tap "test_mlx" build-mlx/mlx-tests/test_mlx
    # The library comes with a plain BLAS, whose sums go from first to last. One whose kernels depend on shapes, as those of a
    # GPU do, shows where a row's bits hang on others: in the tests of what changes nothing.
    blas=$(find_openblas)
    if [ -n "$blas" ]; then
        core="" # in virtual machines it may not know the processor, and takes its oldest kernels
        ! grep -q avx2 /proc/cpuinfo || core=OPENBLAS_CORETYPE=Haswell
        CMOCKA_MESSAGE_OUTPUT=TAP start_tap "test_mlx (OpenBLAS)" env LD_PRELOAD="$blas" OPENBLAS_NUM_THREADS=1 $core \
            MLX_TEST_FILTER='*_no*' \
            build-mlx/mlx-tests/test_mlx
    else
        skip "test_mlx (OpenBLAS)" "libopenblas0-pthread is not installed"
    fi
    for test in test_kernels test_check test_failures; do
        CMOCKA_MESSAGE_OUTPUT=TAP start_tap "$test (MLX)" "build-mlx/mlx-tests/$test"
    done
    # Short ones of the last two take minutes on this device, whole ones longer than a test may.
    for test in test_images test_steps test_vision ${WHOLE_SWEEPS:+test_cache test_aux_latents}; do
        CMOCKA_MESSAGE_OUTPUT=TAP start_tap "$test (MLX)" env KAKEYA_SHORT_SWEEPS=1 "build-mlx/mlx-tests/$test"
    done
    for test in test_command_line test_mac_acceptance; do
        KAKEYA=build-mlx/kakeya BUILD=build-mlx start_tap "$test (MLX)" sh "tests/mlx/$test.sh"
    done
    KAKEYA=build-mlx/kakeya BUILD=build-mlx start_tap "test_includes (MLX)" sh tests/style/test_includes.sh
    # The backend's own code is instrumented, libmlx is as it is.
    checked="test_failures${WHOLE_SWEEPS:+ test_mlx}"
    # shellcheck disable=SC2046,SC2086  # several targets
    if run_step "MLX sanitizer build" tools/build.sh build-mlx "$(printf 'mlx_sanitized_%s ' $checked)" -DKAKEYA_MLX=ON \
        -DKAKEYA_TESTS=ON -DKAKEYA_CUDA=OFF; then
        for test in $checked; do
            CMOCKA_MESSAGE_OUTPUT=TAP start_tap "$test (MLX, sanitized)" "build-mlx/mlx-tests/sanitized_$test"
        done
    fi
fi

# Some minutes of a processor, and 150 MB of packages: whole runs only.
if [ -n "${WHOLE_SWEEPS:-}" ]; then
    echo "== macOS"
    tools/cross_macos.sh build-macos >"$work/macos" 2>&1 || true
    case $(tail -n 1 "$work/macos") in
    *" is linked for macOS "*) echo "1 0 0" >>"$results" ;;
    "cross-macos: skipped"*) skip "the program for macOS" "$(tail -n 1 "$work/macos")" ;;
    *) run_step "the program for macOS" tools/cross_macos.sh build-macos ;;
    esac
fi

echo "== CUDA backend"
if ! nvcc=$(find_nvcc); then
    skip "CUDA backend" "no CUDA compiler here"
elif run_step "CUDA build for $cuda_architectures" tools/build.sh build-cuda cuda -DKAKEYA_CUDA=ON -DKAKEYA_MLX=OFF -DKAKEYA_TESTS=ON \
    -DKAKEYA_CUDA_ARCHITECTURES="$cuda_architectures" -DCUDAToolkit_ROOT="${nvcc%/bin/nvcc}"; then
    echo "1 0 0" >>"$results"
    echo "CUDA build for $cuda_architectures: passed"
    # What needs no device: the lists of steps, and what sessions hold on a fake one.
    for test in batch_without_device sessions_without_device forks_without_device batch_two_without_device \
        sessions_two_without_device forks_two_without_device devices_without_device \
        statistics_without_device train_without_device drafter_trainer_without_device assistant_without_device \
        kv_q4_without_device expert_cache_without_device \
        weights_limit_without_device vision_without_device vision_two_without_device test_step test_quant_rows; do
        CMOCKA_MESSAGE_OUTPUT=TAP start_tap "$test (CUDA)" "build-cuda/gpu/$test"
    done
    KAKEYA=build-cuda/kakeya BUILD=build-cuda start_tap "test_command_line (CUDA)" sh tests/gpu/test_command_line.sh
    KAKEYA=build-cuda/kakeya BUILD=build-cuda start_tap "test_includes (CUDA)" sh tests/style/test_includes.sh
fi

finish
