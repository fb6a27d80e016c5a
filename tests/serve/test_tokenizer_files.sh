# Changed tokenizer.json files, judged by Hugging Face tokenizers. For whole runs only; test_tokenizer stands in.
. tests/serve/start.sh
run_with_packages "tokenizer files" tests/serve/tokenizer_files.py "$@"
