# `kakeya serve` with a public model (tools/real_model.sh), by OpenAI's own Python client.
. tests/serve/start.sh
[ -n "${KAKEYA_REAL_MODEL:-}" ] || skip_all "a public model behind the server" "it could not be downloaded"
run_with_packages "OpenAI's client" tests/serve/real_model.py "$@"
