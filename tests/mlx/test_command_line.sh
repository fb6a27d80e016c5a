# The program with the MLX backend inside, on its CPU device.
. tests/cli/common.sh

works "a prompt is answered" run --backend mlx --raw --max-tokens 6 --json --mode ar 'def f'
json_holds "by its backend" '.stats.backend | startswith("mlx/cpu, libmlx 0.")'
check "which says how it keeps weights" \
    grep -q '^kakeya run: note: backend mlx holds weights of type BF16 as float32$' "$WORK/err"
jq -c .token_ids "$WORK/out" >"$WORK/ar.json"
works "in speculative mode" run --backend mlx --raw --max-tokens 6 --json --mode speculative 'def f'
jq -c .token_ids "$WORK/out" >"$WORK/mode.json"
check "with the same tokens" cmp "$WORK/ar.json" "$WORK/mode.json"
works "auto is the CPU's own backend" run --raw --max-tokens 2 --json 'def f'
json_holds "which needs no libmlx" '.stats.backend | startswith("cpu/")'
fails_with "devices have no numbers" "backend mlx" run --backend mlx --devices 0,1 x
fails_with "a memory limit is refused in one line" "^kakeya run: out of memory: " \
    run --backend mlx --memory-limit 1000000 x
finish
