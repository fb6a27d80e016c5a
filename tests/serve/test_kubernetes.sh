# The manifests of packaging/kubernetes, by the models of Kubernetes's Python client and what llm-d reads; in whole runs the image too.
. tests/serve/start.sh
PACKAGES=-kubernetes
run_with_packages "manifests" tests/serve/kubernetes_files.py "$@"
