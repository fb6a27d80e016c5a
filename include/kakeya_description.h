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

/* What a model is and what it will cost, from its configuration files alone: nothing is loaded. Only model,
 * synthetic, drafter, second_drafter and f_theta of the options matter. The caller owns *out. */
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
    int assistant_layers;                /* of the assistant. If there is a DFlash drafter too, drafter_layers and the
                                            other drafter_* fields are about that one, otherwise about the assistant */
    uint64_t assistant_parameters;
    bool has_dflash; /* there is a DFlash drafter */
    /* The vision tower, with the projection to the text model; all 0: the model reads no pictures. */
    int vision_layers; /* 0 in the 12B, whose patches are embedded without layers */
    int vision_hidden;
    int vision_budget; /* most tokens of a picture, unless a request says otherwise */
    uint64_t vision_parameters;
    size_t vision_bytes; /* of its weights */
    /* The audio encoder, with the projection to the text model; all 0: the model reads no sound. */
    int audio_layers; /* 0 in the 12B, whose samples are embedded without layers */
    int audio_width;  /* hidden size; of the 12B samples that make a token */
    uint64_t audio_parameters;
    size_t audio_bytes; /* of its weights */
} kakeya_facts;

KAKEYA_API void kakeya_description_facts_sized(const kakeya_description *description, kakeya_facts *out);
static inline kakeya_facts kakeya_description_facts(const kakeya_description *description) {
    kakeya_facts facts;
    facts.size = sizeof facts;
    kakeya_description_facts_sized(description, &facts);
    return facts;
}

KAKEYA_API uint64_t kakeya_description_parameters(const kakeya_description *description, kakeya_parameter_group group);
/* Weight bytes that decoding one token reads if all weights are stored as F32 or BF16; 0 for other precisions. */
KAKEYA_API uint64_t kakeya_description_bytes_per_token(const kakeya_description *description,
                                                       kakeya_precision precision);

/* The K/V memory of a session with these options (NULL: all defaults) that has begun to decode and holds `tokens`. A
 * kv_format of AUTO follows the checkpoint. */
KAKEYA_API kakeya_status kakeya_description_kv_bytes(const kakeya_description *description,
                                                     const kakeya_session_options *options, size_t tokens,
                                                     kakeya_kv_bytes *out, kakeya_error *error);
/* The ledger of such a session: bytes that one layer holds, a full-attention or sliding layer of the verifier or a
 * layer of the drafter (KAKEYA_MEMORY_KV_DRAFT); kakeya_engine_layer_memory counts the same while sessions are open. 0
 * if the layer has none of that kind, and if kakeya_description_kv_bytes fails. */
KAKEYA_API size_t kakeya_description_layer_bytes(const kakeya_description *description,
                                                 const kakeya_session_options *options, size_t tokens,
                                                 kakeya_memory_kind kind, int layer);
/* Bytes of a checkpoint of such a session: a copy (kakeya_session_fork) that shares its full pages, at a number of
 * tokens that fills them. It holds the rings, the drafter's context and, if only latents are kept, their newest page.
 */
KAKEYA_API size_t kakeya_description_checkpoint_bytes(const kakeya_description *description,
                                                      const kakeya_session_options *options, size_t tokens);
/* For comparison: bytes of K and V, both stored, at `tokens` under native attention. rings: sliding layers hold only
 * their window, as in common engines; otherwise every layer holds every position. 0 beyond the longest context. */
KAKEYA_API size_t kakeya_description_reference_bytes(const kakeya_description *description, kakeya_kv_format format,
                                                     size_t tokens, bool rings);

/* How a class of tensors is stored: its name and format ("experts", "Q4_K"), the kernels with which this CPU multiplies
 * the format ("int8, vnni, tiles"; "-" for tensors that enter no product), the number of matrices (or vectors) in the
 * format, their bytes, and how many of these bytes the forward of one token reads: the chosen experts, one row of a
 * table, the whole head. The names are valid only during the call. */
typedef void (*kakeya_stored_fn)(void *user, const char *group, const char *format, const char *kernels,
                                 uint64_t matrices, uint64_t bytes, uint64_t bytes_per_token);

/* Reads a model's files, a directory or a GGUF file, and calls `stored` for every class and format. With `check`, every
 * scale and every floating-point value must be finite: otherwise the call fails with KAKEYA_FORMAT, and the message
 * names the tensor and row of the first that is not. */
KAKEYA_API kakeya_status kakeya_inspect(const char *model, bool check, kakeya_stored_fn stored, void *user,
                                        kakeya_error *error);

/* How a mixture of experts, without its drafters, divides under a limit on weights
 * (kakeya_engine_options.weights_limit_bytes). */
typedef struct kakeya_weights_needs {
    size_t size;
    size_t resident;              /* bytes that every token needs */
    size_t expert_bytes;          /* of a routed expert, in the layer where they are largest */
    size_t experts, wanted;       /* routed experts of all layers, and those of them that a token chooses */
    double read_bytes_per_second; /* of experts at random places of the file, several at a time */
} kakeya_weights_needs;

/* Reads a model's files, a directory or a GGUF file, and measures the speed of their disk for about `seconds` (0: not
 * at all). KAKEYA_UNSUPPORTED for a model without experts. */
KAKEYA_API kakeya_status kakeya_weights_inspect(const char *model, double seconds, kakeya_weights_needs *out,
                                                kakeya_error *error);

#ifdef __cplusplus
}
#endif
#endif
