# The program with the MLX backend inside, on its CPU device.
. tests/cli/common.sh

works "a prompt is answered" run --backend mlx --raw --max-tokens 6 --json --mode ar 'def f'
json_holds "by its backend" '.stats.backend | startswith("mlx/cpu, libmlx 0.")'
json_holds "which says how rows keep their bits" '.stats.backend | endswith(", rows by tiles")'
check "and holds weights of bf16 as they are" test ! -s "$WORK/err"
jq -c .token_ids "$WORK/out" >"$WORK/ar.json"
works "in speculative mode" run --backend mlx --raw --max-tokens 6 --json --mode speculative 'def f'
jq -c .token_ids "$WORK/out" >"$WORK/mode.json"
check "with the same tokens" cmp "$WORK/ar.json" "$WORK/mode.json"
# Every operation of a step, with what it must read and do, and the bound that follows.
works "a step is profiled" bench --backend mlx --model tests/data/golden/gemma4-tiny-moe --drafter none --context-frontiers 12 \
    --prompt-tokens 8 --decode-tokens 2 --verify-rows 1 --repeats 1 --profile --json
json_holds "behind its context" '.profiles | length == 1 and .[0].context == 12 and .[0].step_seconds > 0'
json_holds "operation by operation" '.profiles[0].kernels | map(.kernel) | contains(["norm", "product", "attention", "experts"])'
json_holds "with the bound of each" '.profiles[0].kernels | all(.launches > 0 and .seconds > 0) and
    (map(select(.kernel == "product")) | all(.bytes > 0 and .operations > 0 and .bound_seconds > 0 and .share_of_bound > 0))'
json_holds "every matrix read once" '.profiles[0].kernels | map(select(.part == "head, 320 x 64"))[0] | .bytes == 320 * 64 * 4'
works "and with K/V in 4 bits" bench --backend mlx --model tests/data/golden/gemma4-tiny-moe --drafter none --context-frontiers 12 \
    --prompt-tokens 8 --decode-tokens 2 --verify-rows 1 --repeats 1 --kv-format q4 --profile --json
json_holds "whose codes are what is read: 24 bytes for 32 values, 14 positions, two layers" '.profiles[0].kernels |
    map(select(.part == "full layers"))[0] | .bytes == 24 * 14 * 2'

works "a question about a picture" run --backend mlx --precision f32 --model tests/data/vision/tiny-tower \
    --image tests/data/images/photo.jpg --image-budget 70 --max-tokens 12 --ignore-eos --json 'What is this?'
json_holds "is answered as the reference does" '.token_ids == [142, 30, 206, 120, 234, 196, 181, 67, 290, 273, 309, 196]'
works "streams with pictures" eval lossless --backend mlx --precision f32 --model tests/data/vision/tiny-tower --prompts 2 --max-tokens 4 \
    --image tests/data/images/photo.jpg --image tests/data/images/text.png --image-budget 70 --json
json_holds "none differs" '.summary.lossless | .differences == 0 and .comparisons > 8'

works "auto is the CPU's own backend" run --raw --max-tokens 2 --json 'def f'
json_holds "which needs no libmlx" '.stats.backend | startswith("cpu/")'
echo '[2, 5, 6, 7]' >"$WORK/ids.json"
fails_with "distillation is refused before anything is computed" "backend mlx cannot distil: use --backend cpu" train f-theta --distill \
    --rank 16 --backend mlx --model tests/data/golden/gemma4-tiny-dense --drafter none --out "$WORK/f" "$WORK/ids.json"
check "and leaves nothing" test ! -e "$WORK/f"
fails_with "devices have no numbers" "backend mlx" run --backend mlx --devices 0,1 x
fails_with "a memory limit is refused in one line" "^kakeya run: out of memory: " \
    run --backend mlx --memory-limit 1000000 x

# Another libmlx than the program was built for: numbers may change from one to the next, and C++ promises nothing between two.
echo 'const char *other(void) __asm__("_ZN3mlx4core7versionEv"); const char *other(void) { return "0.33.0"; }' >"$WORK/other.c"
check "a libmlx of another version" cc -shared -fPIC -o "$WORK/other.so" "$WORK/other.c"
export LD_PRELOAD="$WORK/other.so"
fails_with "is refused in one line" "libmlx is 0.33.0, kakeya was built for 0.32.[0-9]*: build it again" run --backend mlx x
works "and other backends do not mind it" run --raw --max-tokens 1 --json 'def f'
unset LD_PRELOAD
mkdir -p "$WORK/old/include/mlx" "$WORK/old/lib"
touch "$WORK/old/include/mlx/mlx.h" "$WORK/old/lib/libmlx.so" "$WORK/old/lib/libmlx.dylib"
printf '#define MLX_VERSION_%s\n' "MAJOR 0" "MINOR 31" "PATCH 2" >"$WORK/old/include/mlx/version.h"
! cmake -S . -B "$WORK/build" -DKAKEYA_SERVE=OFF -DKAKEYA_CUDA=OFF -DKAKEYA_MLX=ON -DKAKEYA_MLX_ROOT="$WORK/old" >"$WORK/cmake" 2>&1
check "an older one than 0.32.0 is not built with" grep -q 'libmlx is to be at least 0\.32\.0, not 0\.31\.2' "$WORK/cmake"
finish
