# Texts that C strings cannot hold, on every route that takes a text: U+0000, and halves of surrogate pairs.
. tests/serve/start.sh
run_with_packages "OpenAI's and Anthropic's clients" tests/serve/odd_texts.py "$@"
