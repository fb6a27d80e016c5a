# The Responses API of `kakeya serve` by OpenAI's own Python client.
. tests/serve/start.sh
run_with_packages "the Responses API" tests/serve/responses_api.py "$@"
