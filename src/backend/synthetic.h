/* Models in the exact shapes of published ones with made-up weights, for measurements without a checkpoint: in host
 * memory, or only outlined where the backend makes the values on its device. */
#ifndef KAKEYA_BACKEND_SYNTHETIC_H
#define KAKEYA_BACKEND_SYNTHETIC_H

#include "backend/backend.h"

/* Described as language_model_synthesize wants it. */
kakeya_status synthetic_verifier(const backend_ops *ops, const char *description, mem_account *account,
                                 language_model **out, kakeya_error *error);
kakeya_status synthetic_drafter(const backend_ops *ops, const model_config *verifier, mem_account *account,
                                block_drafter_model **out, kakeya_error *error);
/* An assistant, which no backend makes on its device. */
kakeya_status synthetic_assistant(const model_config *verifier, mem_account *account, assistant_model **out,
                                  kakeya_error *error);
/* Whether a synthetic drafter is described, and of which kind: "synthetic" or "synthetic:mtp". */
bool synthetic_is_drafter(const char *description, backend_drafter *kind);
/* description: "synthetic", of the published ranks, or "synthetic:K,V" with those of keys and of values. */
bool synthetic_is_f_theta(const char *description);
kakeya_status synthetic_f_theta(const backend_ops *ops, const char *description, const model_config *verifier,
                                const block_drafter_config *drafter, mem_account *account, restoration_model **out,
                                kakeya_error *error);

#endif
