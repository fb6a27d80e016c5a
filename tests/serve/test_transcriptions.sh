# /v1/audio/transcriptions of `kakeya serve`, by OpenAI's own client and by plain HTTP.
. tests/serve/start.sh
run_with_packages "transcriptions" tests/serve/transcriptions_api.py "$@"
