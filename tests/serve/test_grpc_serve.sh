# `kakeya serve` over gRPC.
. tests/serve/start.sh
need_grpc "kakeya serve over gRPC"
run_with_packages "kakeya serve over gRPC" tests/serve/grpc_serve.py "$@"
