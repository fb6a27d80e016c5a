/* For programs that study models: the score of a text, what a model is and what it will cost, and the switches of
 * tests.
 */
#ifndef KAKEYA_STUDY_H
#define KAKEYA_STUDY_H

#include "kakeya.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------- score */

typedef struct kakeya_score_options {
    size_t size;
    size_t prompt_length; /* rows t < prompt_length are prompt rows (native attention), later ones decode rows under the
                             session's policy. 0: all rows are prompt rows */
    float *nll;           /* NULL, or [n - 1]: -log p(tokens[t + 1] | tokens[0..t]), natural logarithm */
    float *logits;        /* NULL, or [n][vocab], after soft-capping */
    float *hidden_states; /* NULL, or [layers + 1][n][hidden]: embedding, each layer's output, the last one after the
                             final norm */
    kakeya_progress_fn progress;
    void *user; /* for progress */
    /* NULL, or a safetensors file to write: `logits` (F32 [n, vocab]) and, with file_hidden_states, `hidden_states`
     * (F32 [layers + 1, n, hidden]). Logits are written as they are computed and need no memory. The file appears only
     * if scoring succeeds. */
    const char *file;
    bool file_hidden_states;
    /* The number of earlier turns at the prompt's end, each an answer as long as what follows prompt_length and then a
     * prompt of the same length. Their rows attend as in a session that answers and continues: rows of a later prompt
     * attend, under the session's policy, to what was evicted before them. */
    size_t earlier_turns;
    /* NULL, or the reference that every row is compared with: a file as written by `file`, with the `logits` [n, vocab]
     * of the same tokens under other weights, precision or attention. It is mapped and needs no memory. */
    const char *against;
    float *against_nll;        /* NULL, or [n - 1]: -log p(tokens[t + 1] | tokens[0..t]) of the reference */
    float *against_kl;         /* NULL, or [n]: KL(reference || this model) of row t, natural logarithm */
    uint8_t *against_top_same; /* NULL, or [n]: 1 if both have the same most likely token, else 0 */
    const kakeya_media *media; /* n_media pictures, as in kakeya_session_sync_media; all inside the prompt */
    size_t n_media;
} kakeya_score_options;

/* Teacher-forced scoring of tokens[0..n) in a fresh timeline with the session's options; the session's own timeline is
 * not touched. */
KAKEYA_API kakeya_status kakeya_session_score(kakeya_session *session, const int32_t *tokens, size_t n,
                                              const kakeya_score_options *options, kakeya_error *error);

/* ------------------------------------------------------------------------------------------- description */

typedef struct kakeya_description kakeya_description;

/* Describes an engine's models; owned by the engine and valid as long as it is open. */
KAKEYA_API const kakeya_description *kakeya_engine_description(const kakeya_engine *engine);

/* What a model is and what it will cost, from its configuration files alone: nothing is loaded. Of the
 * options only the models matter, and `synthetic` of `study`. The caller owns *out. */
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
    int f_theta_rank_v;  /* of the latents of values */
    bool f_theta_shared; /* keys and values have one latent */
    const char
        *restoration_input; /* what it reads: "drafter_context_kv", "drafter_kv", "aux_hidden"; NULL without one */
    const char *restoration_latents;     /* how sessions keep latents: "kv" (as their K/V), "bf16", "q8", "q4" */
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

/* What the parameters of a verifier are for. */
typedef enum kakeya_parameter_group {
    KAKEYA_PARAMETERS_EMBEDDING = 0, /* token table; also the head where tied */
    KAKEYA_PARAMETERS_HEAD,
    KAKEYA_PARAMETERS_PLE_TABLE, /* table of the per-layer embeddings */
    KAKEYA_PARAMETERS_PLE,
    KAKEYA_PARAMETERS_ATTENTION,
    KAKEYA_PARAMETERS_DENSE_MLP,
    KAKEYA_PARAMETERS_EXPERTS,
    KAKEYA_PARAMETERS_ROUTER,
    KAKEYA_PARAMETERS_NORMS, /* norms and layer scalars */
} kakeya_parameter_group;

KAKEYA_API const char *kakeya_parameter_group_name(kakeya_parameter_group group);

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

/* ------------------------------------------------------------------------------------- switches of tests */

/* kakeya_engine_options.study. */
struct kakeya_study_options {
    size_t size;
    /* Weights made in memory in place of a model: "26b-a4b", "26b-a4b:layers=6", "e2b", "e4b", "12b", "31b". The
     * engine's `model` is then NULL, and its `drafter` may be "synthetic" or "synthetic:mtp". */
    const char *synthetic;
    const char *cpu_isa;              /* NULL: best available; "scalar", "avx2", "neon", ... (`kakeya run --help`) */
    bool drafter_scaled_embedding;    /* multiply drafter block embeddings by sqrt(hidden) (some public engines do) */
    bool drafter_block_bidirectional; /* drafter's sliding layers: no causal mask inside the block */
};

/* ----------------------------------------------------------------------------------- what zeros stand for */

/* The positions that a session with these options keeps. */
static inline int kakeya_options_sink(const kakeya_session_options *options) {
    return options->sink == KAKEYA_NO_SINK ? 0 : options->sink ? options->sink : (int)KAKEYA_DEFAULT_SINK;
}
static inline int kakeya_options_window(const kakeya_session_options *options) {
    return options->window ? options->window : (int)KAKEYA_DEFAULT_WINDOW;
}
static inline int kakeya_options_draft_window(const kakeya_session_options *options) {
    return options->draft_window ? options->draft_window : (int)KAKEYA_DEFAULT_DRAFT_WINDOW;
}

/* top_p for interfaces in which 0 is not "off", as in the options, but leaves the most likely token alone. */
static inline float kakeya_options_top_p(float top_p) { return top_p == 0 ? 1e-9f : top_p; }

#ifdef __cplusplus
}
#endif

#endif
