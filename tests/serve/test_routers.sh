# Replicas behind vllm-router and sglang-router.
. tests/serve/start.sh
run_with_routers "routers" tests/serve/routers.py "$@"
