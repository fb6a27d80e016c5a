/* The names of the public enums. */
#include "base/alloc.h"
#include "kakeya.h"

_Static_assert((int)KAKEYA_MEMORY_WEIGHTS == (int)MEM_WEIGHTS && (int)KAKEYA_MEMORY_WORKSPACE + 1 == (int)MEM_TAG_COUNT,
               "the public kinds of memory are the allocator's tags");

#define NAME_OF(value, ...)                                                                                            \
    static const char *const names[] = {__VA_ARGS__};                                                                  \
    size_t index = (size_t)(value);                                                                                    \
    return index < sizeof names / sizeof names[0] ? names[index] : NULL

const char *kakeya_status_name(kakeya_status status) {
    NAME_OF(status, "ok", "invalid argument", "input/output error", "bad format", "unsupported", "out of memory",
            "context full", "cancelled", "backend failure");
}

const char *kakeya_precision_name(kakeya_precision precision) {
    NAME_OF(precision, "auto", "f32", "bf16", "int8", "fp8");
}

const char *kakeya_kv_format_name(kakeya_kv_format format) { NAME_OF(format, "auto", "f32", "bf16", "q8", "q4"); }

const char *kakeya_attention_name(kakeya_attention attention) {
    NAME_OF(attention, "native", "sink-window", "restored");
}

const char *kakeya_restore_layers_name(kakeya_restore_layers layers) { NAME_OF(layers, "sliding", "all"); }

const char *kakeya_vision_name(kakeya_vision vision) { NAME_OF(vision, "auto", "on", "off"); }

const char *kakeya_mode_name(kakeya_mode mode) { NAME_OF(mode, "auto", "ar", "speculative", "ngram"); }

const char *kakeya_finish_name(kakeya_finish finish) {
    NAME_OF(finish, "none", "stop", "length", "cancelled", "failed");
}

const char *kakeya_event_name(kakeya_event_type type) { NAME_OF(type, "token", "finish"); }

const char *kakeya_memory_name(kakeya_memory_kind kind) {
    size_t tag = (size_t)kind;
    return tag < MEM_TAG_COUNT ? mem_tag_name((mem_tag)tag) : NULL;
}
