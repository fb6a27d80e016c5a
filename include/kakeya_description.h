/* What a model is and what it will cost, from its configuration files alone. A part of kakeya.h, which programs
 * include. */
#ifndef KAKEYA_DESCRIPTION_H
#define KAKEYA_DESCRIPTION_H

#ifndef KAKEYA_H
#error "include kakeya.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a model is and what it will cost, from its configuration files alone: nothing is loaded. Looks at model,
 * synthetic, drafter, second_drafter and f_theta of the options. *out is owned by the caller. */
KAKEYA_API kakeya_status kakeya_describe(const kakeya_engine_options *options, kakeya_description **out,
                                         kakeya_error *error);
KAKEYA_API void kakeya_description_close(kakeya_description *description);

typedef struct kakeya_facts {
    size_t size;
    const char *variant;     /* "26b-a4b", "e2b", ...; valid as long as the description */
    const char *weight_type; /* of the checkpoint: "BF16", ... */
    int layers, sliding_layers, full_attention_layers;
    int sliding_window, hidden, heads, vocab, max_context;
    int experts, experts_per_token, expert_width; /* 0: a dense model */
    int per_layer_embedding_width;                /* 0: it has none */
    int shared_kv_layers;                         /* the last layers, which use K/V of earlier ones */
    bool tied_head;                               /* the head is the token table */
    uint64_t parameters, active_parameters;       /* active: read by the forward of one token */
    int drafter_layers, drafter_block_size;       /* 0: no drafter */
    uint64_t drafter_parameters;
    int f_theta_rank; /* of the latents of keys; 0: no f_theta */
    uint64_t f_theta_parameters;
    int f_theta_rank_v;          /* of the latents of values */
    bool f_theta_shared;         /* keys and values have one latent */
    const char *f_theta_input;   /* what it reads: "drafter_context_kv", "drafter_kv", "aux_hidden"; NULL without one */
    const char *f_theta_latents; /* how sessions keep latents: "kv" (as their K/V), "bf16", "q8", "q4" */
    uint64_t assistant_draft_parameters; /* read by one draft of the MTP assistant; 0: there is none */
    int assistant_layers; /* of the assistant. Where there is a DFlash drafter too, drafter_layers and the
                             others are that one's, otherwise the assistant's */
    uint64_t assistant_parameters;
    bool has_dflash; /* there is a DFlash drafter */
} kakeya_facts;

KAKEYA_API void kakeya_description_facts_sized(const kakeya_description *description, kakeya_facts *out);
static inline kakeya_facts kakeya_description_facts(const kakeya_description *description) {
    kakeya_facts facts;
    facts.size = sizeof facts;
    kakeya_description_facts_sized(description, &facts);
    return facts;
}

KAKEYA_API uint64_t kakeya_description_parameters(const kakeya_description *description, kakeya_parameter_group group);
/* Weight bytes that one decoded token reads where all weights are stored as F32 or BF16; 0 for other values. */
KAKEYA_API uint64_t kakeya_description_bytes_per_token(const kakeya_description *description,
                                                       kakeya_precision precision);

/* The K/V memory of a session with these options (NULL: all defaults) that has begun to decode and holds `tokens`. A
 * kv_format of AUTO follows the checkpoint. */
KAKEYA_API kakeya_status kakeya_description_kv_bytes(const kakeya_description *description,
                                                     const kakeya_session_options *options, size_t tokens,
                                                     kakeya_kv_bytes *out, kakeya_error *error);
/* The ledger of such a session. What one layer of it holds: of the verifier's full-attention or sliding layers, or of
 * the drafter's (KAKEYA_MEMORY_KV_DRAFT); kakeya_engine_layer_memory counts the same while sessions are open. 0 where
 * the layer has none of that kind, and where kakeya_description_kv_bytes fails. */
KAKEYA_API size_t kakeya_description_layer_bytes(const kakeya_description *description,
                                                 const kakeya_session_options *options, size_t tokens,
                                                 kakeya_memory_kind kind, int layer);
/* What a copy of it takes (kakeya_session_fork: a checkpoint) that shares its full pages, at a number of tokens that
 * fills them: rings, the drafter's context, and where nothing but latents is kept their newest page. */
KAKEYA_API size_t kakeya_description_checkpoint_bytes(const kakeya_description *description,
                                                      const kakeya_session_options *options, size_t tokens);
/* For comparison: what K and V, both stored, take at `tokens` under native attention. rings: sliding layers hold their
 * window only, as common engines do; otherwise every layer holds every position. 0 beyond the longest context. */
KAKEYA_API size_t kakeya_description_reference_bytes(const kakeya_description *description, kakeya_kv_format format,
                                                     size_t tokens, bool rings);

/* What a class of tensors is stored in: its name and the format's ("experts", "Q4_K"), the kernels that this CPU
 * multiplies the format with ("int8, vnni, tiles"; "-" for what enters no product), matrices (or vectors) of the
 * format, their bytes, and how many of these the forward of one token reads: of experts those of the chosen ones, of
 * tables a row, of the head all. The names are valid during the call. */
typedef void (*kakeya_stored_fn)(void *user, const char *group, const char *format, const char *kernels,
                                 uint64_t matrices, uint64_t bytes, uint64_t bytes_per_token);

/* Looks into a model's files, a directory's or a GGUF file's: calls `stored` for every class and format. With `check`
 * every scale and every value in floating point must be a finite number: KAKEYA_FORMAT names tensor and row of the
 * first that is not. */
KAKEYA_API kakeya_status kakeya_inspect(const char *model, bool check, kakeya_stored_fn stored, void *user,
                                        kakeya_error *error);

#ifdef __cplusplus
}
#endif
#endif
