/* Any bytes as a configuration of quantised weights: what is accepted answers for every module, with numbers that the
 * loaders take for granted. */
#include <stdint.h>
#include <stdlib.h>

#include "formats/quantisation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const modules[] = {
        "",
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.self_attn.q_proj",
        "language_model.model.layers.17.experts.switch_glu.down_proj",
        "model.language_model.layers.29.experts.127.gate_proj",
        "model.language_model.layers.3.router.proj",
    };
    quantisation *q = NULL;
    kakeya_error error = {0};
    kakeya_status status = quantisation_parse("fuzz", (const char *)data, size, &q, &error);
    if (status != KAKEYA_OK) {
        require(!q && error.status == status && *error.message);
        return 0;
    }
    require((quantisation_method_of(q) != QUANTISATION_NONE) == (q != NULL));
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        for (int linear = 0; linear < 2; linear++) {
            module_scheme s = quantisation_find(q, modules[i], linear);
            require(s.form < MODULE_FORM_COUNT && *module_form_name(s.form));
            if (s.form == MODULE_PLAIN) continue;
            require(s.bits >= 2 && s.bits <= 8 && s.group >= 0 && s.block_rows >= 0);
            require(s.group % 16 == 0);
        }
    }
    quantisation_free(q);
    return 0;
}
