#!/bin/sh
# Every test that needs a CUDA device: kernels, the backend against the CPU's, failures, the command line, no token stream
# that depends on how it was decoded, no needle lost, and the tests of the backend once more under compute-sanitizer.
# The last line is "N passed, N failed[, N skipped]", counting single tests; the exit status is 1 if any failed.
# usage: tools/test_gpu.sh [--built]     --built: the programs are in $BUILD already
# environment: BUILD (build-gpu), TEST_TIMEOUT (600 seconds for one test program), REPORTS (where reports go; dropped otherwise)
set -eu

build=${BUILD:-build-gpu}
. tools/tap.sh
. tools/cuda.sh
reports=${REPORTS:-$work}

# An evaluation and the gate's verdict on its report are one test.
evaluate() { # what, option...
    what=$1
    shift
    title="eval $what"
    # shellcheck disable=SC2086  # options of one evaluation
    if run_step "$title" "$build/kakeya" eval $what --backend cuda --report "$reports/$(echo "$what" | tr ' ' -).json" "$@"; then
        cp "$work/output" "$reports/$(echo "$what" | tr ' ' -).txt" 2>/dev/null || true
        if run_step "gate of $title" "$build/kakeya" gate "$reports/$(echo "$what" | tr ' ' -).json"; then
            echo "1 0 0" >>"$results"
            echo "$title: passed ($(tail -n 1 "$work/output"))"
        fi
    fi
}

[ "${1:-}" = --built ] ||
    tools/build.sh "$build" cuda -DKAKEYA_CUDA=ON -DKAKEYA_TESTS=ON -DKAKEYA_CUDA_ARCHITECTURES="$(device_architecture)"

if [ ! -x "$build/gpu/test_failures" ]; then
    echo "$build/gpu/test_failures is not there: build it first (without --built)" >&2
    exit 1
fi
if ! "$build/gpu/test_failures" device; then
    skip "all device tests" "no CUDA device here"
    finish || true
    exit 0
fi
run_tap "prompt_kernels" "$build/gpu/prompt_kernels" check
run_tap "head_kernels" "$build/gpu/head_kernels"
run_tap "kv_q4_kernels" "$build/gpu/kv_q4_kernels"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_cuda" "$build/gpu/test_cuda"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_raw_values" "$build/gpu/test_raw_values"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_step" "$build/gpu/test_step"
run_tap "quant_kernels" "$build/gpu/quant_kernels" check
run_tap "codes_kernels" "$build/gpu/codes_kernels" check
run_tap "f8_kernels" "$build/gpu/f8_kernels" check
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_quant_rows" "$build/gpu/test_quant_rows"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_quantised" "$build/gpu/test_quantised"
# The bundled model in the two formats that have kernels of their own: the same bits whatever is computed beside a row.
for format in q4_0 q8_0; do
    demo=$work/demo-$format.gguf
    if ! run_step "convert to $format" "$build/kakeya" convert models/demo "$demo" --to "$format"; then continue; fi
    for test in test_cuda test_batch; do
        CMOCKA_MESSAGE_OUTPUT=TAP run_tap "$test ($format)" env KAKEYA_DEMO="$demo" "$build/gpu/$test"
    done
    evaluate lossless --model "$demo" --drafter models/demo-dflash --f-theta models/demo-f-theta
done
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_sessions" "$build/gpu/test_sessions"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_batch" "$build/gpu/test_batch"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_weights_limit" "$build/gpu/test_weights_limit"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_latents" "$build/gpu/test_latents"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_kv_codes" "$build/gpu/test_kv_codes"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_forks" "$build/gpu/test_forks"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_assistant" "$build/gpu/test_assistant"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_vision" "$build/gpu/test_vision"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_train" "$build/gpu/test_train"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_statistics" "$build/gpu/test_statistics"
CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_drafter_trainer" "$build/gpu/test_drafter_trainer"
# On two devices, where there are so many: otherwise each test is skipped.
run_tap "exchange_kernels" "$build/gpu/exchange_kernels"
for test in test_devices cuda_two_devices sessions_two_devices batch_two_devices forks_two_devices vision_two_devices; do
    CMOCKA_MESSAGE_OUTPUT=TAP run_tap "$test" "$build/gpu/$test"
done
run_tap "test_failures" "$build/gpu/test_failures"
KAKEYA=$build/kakeya BUILD=$build run_tap "test_command_line" sh tests/gpu/test_command_line.sh
KAKEYA=$build/kakeya BUILD=$build run_tap "test_device" sh tests/gpu/test_device.sh
# A public model, where it is here or can be had.
real_model=${KAKEYA_REAL_MODEL:-$(BUILD="$build" tools/real_model.sh quiet 2>"$work/real_model" || true)}
[ -n "$real_model" ] || tail -n 1 "$work/real_model"
KAKEYA=$build/kakeya BUILD=$build KAKEYA_REAL_MODEL=$real_model run_tap "test_real_model" sh tests/gpu/test_real_model.sh
evaluate lossless
evaluate niah
evaluate lossless --kv-format q8 --prompts 60
evaluate niah --kv-format q8
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$sanitizer" ]; then
    CMOCKA_MESSAGE_OUTPUT=TAP run_tap "test_cuda (memcheck)" "$sanitizer" --tool memcheck --error-exitcode 9 "$build/gpu/test_cuda"
else
    skip "test_cuda (memcheck)" "no compute-sanitizer here"
fi

finish
