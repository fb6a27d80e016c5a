# `kakeya serve` by OpenAI's own Python client: many at once, clients that leave, queues, the end.
. tests/serve/start.sh
run_with_packages "OpenAI's client" tests/serve/openai_load.py "$@"
