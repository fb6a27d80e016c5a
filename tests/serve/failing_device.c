/* Linked with the program itself: a device that is lost when a test says so. The forward that finds the file
 * $LOSE_DEVICE removes it and fails as a whole. The linker sends the program's calls of kakeya_engine_open here. */
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "session/engine.h"

kakeya_status __real_kakeya_engine_open(const kakeya_engine_options *options, kakeya_engine **out, kakeya_error *error);
kakeya_status __wrap_kakeya_engine_open(const kakeya_engine_options *options, kakeya_engine **out, kakeya_error *error);

static const backend_ops *real;
static backend_ops failing;

static kakeya_status forward(backend_model *model, backend_segment *segments, int n, kakeya_error *error) {
    const char *path = getenv("LOSE_DEVICE");
    if (path && unlink(path) == 0) return error_set(error, KAKEYA_BACKEND, "forward: the device is lost");
    return real->forward(model, segments, n, error);
}

kakeya_status __wrap_kakeya_engine_open(const kakeya_engine_options *options, kakeya_engine **out,
                                        kakeya_error *error) {
    kakeya_status status = __real_kakeya_engine_open(options, out, error);
    if (status != KAKEYA_OK) return status;
    real = (*out)->ops;
    failing = *real;
    failing.forward = forward;
    (*out)->ops = &failing;
    return KAKEYA_OK;
}
