#include "serve/zmq_core.h"

#include "serve/late_library.h"

zmq_core_functions zmq_core;

#define NAME(name) #name,
static const char *const names[] = {ZMQ_CORE_FUNCTIONS(NAME)};
#undef NAME

static late_library library = {.file = KAKEYA_ZMQ_LIBRARY,
                               .what = "K/V events: libzmq does not load",
                               .names = names,
                               .functions = &zmq_core,
                               .n = sizeof names / sizeof *names,
                               .lock = PTHREAD_MUTEX_INITIALIZER};

kakeya_status zmq_core_load(kakeya_error *error) { return late_library_load(&library, error); }
