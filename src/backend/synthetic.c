#include "backend/synthetic.h"

#include "backend/measure.h"

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

kakeya_status synthetic_f_theta(const backend_ops *ops, const gemma4_config *verifier, const dflash_config *drafter,
                                mem_account *account, f_theta_model **out, kakeya_error *error) {
    return f_theta_model_synthesize(verifier, drafter, outlined(ops), account, out, error);
}
