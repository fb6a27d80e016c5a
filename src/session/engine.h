/* Inside of a kakeya_engine: models, tokenizer and the backend model that holds the weights. Immutable once open but
 * for the account's counters and the experience with drafts, which `turn` protects. */
#ifndef KAKEYA_SESSION_ENGINE_H
#define KAKEYA_SESSION_ENGINE_H

#include <pthread.h>

#include "backend/backend.h"
#include "decode/draft_control.h"
#include "session/description.h"
#include "session/tokenizer.h"

enum { ENGINE_POLICIES = KAKEYA_ATTENTION_RESTORED + 1 };

struct kakeya_engine {
    const backend_ops *ops;
    backend_model *model;
    mem_account account;
    gemma4_model *verifier;
    dflash_model *drafter;                 /* NULL: none */
    f_theta_model *f_theta;                /* NULL: none */
    char *drafter_sought, *f_theta_sought; /* where none was found: the places, for messages; NULL: not looked for */
    kakeya_tokenizer text;
    kakeya_description description; /* of the models above */
    kakeya_precision precision;
    uint64_t fingerprint;                         /* of configurations and sampled weights: snapshots name it */
    pthread_mutex_t turn;                         /* held around backend work: sessions of one engine take turns */
    draft_experience experience[ENGINE_POLICIES]; /* by attention policy */
};

/* What an engine is made of; everything but ops and verifier may be NULL. */
typedef struct engine_parts {
    const backend_ops *ops;
    gemma4_model *verifier;
    dflash_model *drafter;
    f_theta_model *f_theta;
    kakeya_tokenizer text;
    kakeya_precision precision; /* AUTO follows the checkpoint */
    const char *cpu_isa;
    int threads;
    bool drafter_scaled_embedding, drafter_block_bidirectional;
    kakeya_progress_fn progress;
    void *user;
} engine_parts;

/* Opens an engine on any backend. The account that the parts were allocated from is the engine's, so an engine is
 * created empty first, then completed. Takes ownership of the parts, also on failure (kakeya_engine_close frees both).
 */
kakeya_status engine_create(size_t memory_limit_bytes, kakeya_engine **out, kakeya_error *error);
kakeya_status engine_complete(kakeya_engine *engine, const engine_parts *parts, kakeya_error *error);

#endif
