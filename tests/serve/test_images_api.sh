# Pictures in requests to `kakeya serve`, by OpenAI's and Anthropic's own clients and by plain HTTP.
. tests/serve/start.sh
run_with_packages "pictures in requests" tests/serve/images_api.py "$@"
