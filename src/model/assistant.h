/* MTP assistants of Gemma 4: small drafters that attend the verifier's own K/V. Configuration and weight binding, from
 * directories (gemma4_assistant, gemma4_unified_assistant) and GGUF files (gemma4-assistant). No arithmetic lives here;
 * docs/guide/drafters.md says what an assistant computes. */
#ifndef KAKEYA_MODEL_ASSISTANT_H
#define KAKEYA_MODEL_ASSISTANT_H

#include "formats/gguf.h"
#include "model/language_model.h"

/* Tokens that its longest draft has: more than 7 are published nowhere. */
enum { ASSISTANT_LONGEST_DRAFT = 7, ASSISTANT_MAX_LAYERS = 32 };

typedef struct assistant_config {
    model_config stack;  /* layers without keys and values: each layer's kv_heads and head_dim are those of the
                             verifier's layer that it attends */
    int backbone;        /* hidden size of the verifier */
    int clusters;        /* of the head's rows; 0: every draft computes all logits */
    int chosen_clusters; /* whose logits a draft computes */
} assistant_config;

typedef struct assistant_weights {
    model_weights stack;     /* no embedding: that is the verifier's. With clusters the head's rows lie cluster by
                                 cluster */
    weight pre_projection;   /* [hidden][2 * backbone]: of the embedding, then of the state */
    weight post_projection;  /* [backbone][hidden] */
    weight centroids;        /* [clusters][hidden] */
    const int32_t *token_of; /* with clusters: [vocab], the token of each row of the head */
} assistant_weights;

typedef struct assistant_model {
    assistant_config config;
    assistant_weights weights;
    struct checkpoint *checkpoint; /* of a directory */
    struct gguf *file;             /* of a GGUF file */
    void **owned;                  /* MEM_WEIGHTS blocks */
    size_t n_owned;
    size_t mapped_bytes; /* bytes of mapped tensors that are bound */
} assistant_model;

/* Whether an assistant lies there, by what its configuration calls itself. False also of what cannot be read: who opens
 * it says why. Fails where there is no memory alone. */
kakeya_status assistant_is_at(const char *path, bool *found, kakeya_error *error);

/* config.json of either class and either dialect. */
kakeya_status assistant_config_parse(const char *name, const char *json, size_t json_bytes, assistant_config *out,
                                     kakeya_error *error);
/* The same of a GGUF file's keys. */
kakeya_status assistant_gguf_config(const gguf *file, assistant_config *out, kakeya_error *error);
/* The configuration alone of what lies at `path`. */
kakeya_status assistant_config_read(const char *path, assistant_config *out, kakeya_error *error);

/* Refuses an assistant of another verifier: vocabulary, hidden size, head dimensions, K/V heads, window and RoPE must
 * agree. Messages name both numbers. */
kakeya_status assistant_config_fits(const char *name, const assistant_config *c, const model_config *verifier,
                                    kakeya_error *error);
/* The layer of the verifier whose K/V layers of this type attend: the last of the type with K/V of its own; -1 where
 * there is none. */
int assistant_source(const model_config *verifier, layer_type type);

/* A directory or a GGUF file, whose tensors are bound and checked, and which fits the verifier. */
kakeya_status assistant_model_open(const char *path, const model_config *verifier, mem_account *account,
                                   assistant_model **out, kakeya_error *error);
/* The published shape for a verifier of a published shape; deterministic weights. */
kakeya_status assistant_model_synthesize(const model_config *verifier, mem_account *account, assistant_model **out,
                                         kakeya_error *error);
/* That shape alone. */
void assistant_config_published(const model_config *verifier, assistant_config *out);
void assistant_model_close(assistant_model *model); /* NULL is fine */

/* Bytes of weights that one draft reads. */
size_t assistant_draft_bytes(const assistant_model *model);

#endif
