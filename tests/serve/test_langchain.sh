# Pictures in requests to `kakeya serve` by LangChain, which has its own forms of parts.
. tests/serve/start.sh
PACKAGES=-langchain
run_with_packages "pictures by LangChain" tests/serve/langchain_images.py "$@"
