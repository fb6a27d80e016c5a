# K/V events: what `kakeya serve` tells routers of what it could continue.
. tests/serve/start.sh
run_with_routers "K/V events" tests/serve/kv_events.py "$@"
