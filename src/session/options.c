/* The defaults of sized options: what a caller gets before it sets fields. */
#include "base/sized.h"
#include "kakeya.h"

static const kakeya_engine_options engine_defaults = {.size = sizeof engine_defaults};
static const kakeya_session_options session_defaults = {
    .size = sizeof session_defaults, .sink = 4, .window = 64, .draft_window = 1024};

void kakeya_engine_options_init_sized(kakeya_engine_options *options, size_t size) {
    sized_init(options, size, &engine_defaults, sizeof engine_defaults);
}

void kakeya_session_options_init_sized(kakeya_session_options *options, size_t size) {
    sized_init(options, size, &session_defaults, sizeof session_defaults);
}
