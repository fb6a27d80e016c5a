# The Messages API of `kakeya serve` by Anthropic's own Python client.
. tests/serve/start.sh
run_with_packages "the Messages API" tests/serve/messages_api.py "$@"
