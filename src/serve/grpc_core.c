#include "serve/grpc_core.h"

#include "serve/late_library.h"

grpc_core_functions grpc_core;

#define NAME(name) #name,
static const char *const names[] = {GRPC_CORE_FUNCTIONS(NAME)};
#undef NAME

static late_library library = {.file = KAKEYA_GRPC_LIBRARY,
                               .what = "gRPC does not load",
                               .names = names,
                               .functions = &grpc_core,
                               .n = sizeof names / sizeof *names,
                               .lock = PTHREAD_MUTEX_INITIALIZER};

kakeya_status grpc_core_load(kakeya_error *error) { return late_library_load(&library, error); }
