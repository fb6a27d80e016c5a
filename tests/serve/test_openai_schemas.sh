# `kakeya serve` by OpenAI's own Python client: schemas.
. tests/serve/start.sh
run_with_packages "OpenAI's client" tests/serve/openai_schemas.py "$@"
