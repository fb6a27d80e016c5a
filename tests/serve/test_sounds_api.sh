# Sounds in requests to `kakeya serve`, by OpenAI's own client and by plain HTTP.
. tests/serve/start.sh
run_with_packages "sounds in requests" tests/serve/sounds_api.py "$@"
