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
                                 gemma4_model **out, kakeya_error *error) {
    return (outlined(ops) ? gemma4_model_outline : gemma4_model_synthesize)(description, account, out, error);
}

kakeya_status synthetic_drafter(const backend_ops *ops, const gemma4_config *verifier, mem_account *account,
                                dflash_model **out, kakeya_error *error) {
    return (outlined(ops) ? dflash_model_outline : dflash_model_synthesize)(verifier, account, out, error);
}

kakeya_status synthetic_assistant(const gemma4_config *verifier, mem_account *account, assistant_model **out,
                                  kakeya_error *error) {
    return assistant_model_synthesize(verifier, account, out, error);
}

bool synthetic_is_drafter(const char *description, backend_drafter *kind) {
    bool assistant = strcmp(description, "synthetic:mtp") == 0;
    *kind = assistant ? BACKEND_ASSISTANT : BACKEND_DFLASH;
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

kakeya_status synthetic_f_theta(const backend_ops *ops, const char *description, const gemma4_config *verifier,
                                const dflash_config *drafter, mem_account *account, f_theta_model **out,
                                kakeya_error *error) {
    int rank_k = F_THETA_PUBLISHED_RANK, rank_v = F_THETA_PUBLISHED_RANK;
    const char *text = description + sizeof f_theta_name - 1;
    if (*text) {
        text++;
        if (!read_rank(&text, &rank_k) || *text++ != ',' || !read_rank(&text, &rank_v) || *text)
            return error_set(
                error, KAKEYA_INVALID_ARGUMENT,
                "f_theta '%s' is neither 'synthetic' nor 'synthetic:K,V' with the ranks of keys and values",
                description);
    }
    return f_theta_model_synthesize(verifier, drafter, rank_k, rank_v, outlined(ops), account, out, error);
}
