# `kakeya serve` by OpenAI's own Python client: the acceptance cases of the server's design, by number.
. tests/serve/start.sh
run_with_packages "OpenAI's client" tests/serve/openai_api.py "$@"
