# Random texts of compiled schemas, judged by Python's jsonschema with formats.
. tests/serve/start.sh
run_with_packages "texts of grammars" tests/serve/grammar_texts.py "$@"
