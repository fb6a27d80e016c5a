# The gRPC service, by clients whose stubs are generated from the .proto that users get.
. tests/serve/start.sh
need_grpc "the gRPC service"
run_with_packages "the gRPC service" tests/serve/grpc_service.py "$@"
