#include "backend/synthetic.h"

#include <stdlib.h>
#include <string.h>

#include "backend/measure.h"
#include "base/error.h"

static bool outlined(const backend_ops *ops) {
    const backend_measure_ops *measure = backend_measure_find(ops);
    return measure && measure->makes_weights;
}

kakeya_status synthetic_verifier(const backend_ops *ops, const char *description, mem_account *account,
                                 language_model **out, kakeya_error *error) {
    return (outlined(ops) ? language_model_outline : language_model_synthesize)(description, account, out, error);
}

kakeya_status synthetic_drafter(const backend_ops *ops, const model_config *verifier, mem_account *account,
                                block_drafter_model **out, kakeya_error *error) {
    return (outlined(ops) ? block_drafter_model_outline : block_drafter_model_synthesize)(verifier, account, out,
                                                                                          error);
}

kakeya_status synthetic_assistant(const model_config *verifier, mem_account *account, assistant_model **out,
                                  kakeya_error *error) {
    return assistant_model_synthesize(verifier, account, out, error);
}

bool synthetic_is_drafter(const char *description, backend_drafter *kind) {
    bool assistant = strcmp(description, "synthetic:mtp") == 0;
    *kind = assistant ? BACKEND_ASSISTANT : BACKEND_BLOCK_DRAFTER;
    return assistant || strcmp(description, "synthetic") == 0;
}

static const char f_theta_name[] = "synthetic";

bool synthetic_is_f_theta(const char *description) {
    size_t name = sizeof f_theta_name - 1;
    return strncmp(description, f_theta_name, name) == 0 && (description[name] == '\0' || description[name] == ':');
}

static bool read_rank(const char **text, int *rank) {
    enum { MOST_RANK = 1 << 16 };
    char *end;
    long value = strtol(*text, &end, 10);
    bool good = end != *text && value > 0 && value <= MOST_RANK;
    *rank = good ? (int)value : 0;
    *text = end;
    return good;
}

kakeya_status synthetic_f_theta(const backend_ops *ops, const char *description, const model_config *verifier,
                                const block_drafter_config *drafter, mem_account *account, restoration_model **out,
                                kakeya_error *error) {
    int rank_k = RESTORATION_PUBLISHED_RANK, rank_v = RESTORATION_PUBLISHED_RANK;
    const char *text = description + sizeof f_theta_name - 1;
    if (*text) {
        text++;
        if (!read_rank(&text, &rank_k) || *text++ != ',' || !read_rank(&text, &rank_v) || *text)
            return error_set(
                error, KAKEYA_INVALID_ARGUMENT,
                "f_theta '%s' is neither 'synthetic' nor 'synthetic:K,V' with the ranks of keys and values",
                description);
    }
    return restoration_model_synthesize(verifier, drafter, rank_k, rank_v, outlined(ops), account, out, error);
}
