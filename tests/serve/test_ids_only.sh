# A model without tokenizer: ids in, ids out, over HTTP and gRPC; what needs text is refused, and nothing crashes.
. tests/serve/start.sh
run_with_packages "OpenAI's client" tests/serve/ids_only.py "$@"
