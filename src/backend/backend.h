/* The boundary between everything that decides (sessions, decoding, evaluation, command line) and everything that
 * computes. A backend is a table of verbs on opaque objects; the level is the model step, so that each backend can fuse
 * as its hardware wants. Nothing above this folder names a backend.
 *
 * Objects
 *   backend_model   weights of a verifier, optionally with its drafter and f_theta, on one device
 *   backend_cache   the K/V memory of one timeline
 *
 * A cache has `length` committed positions. A forward computes rows behind them; these rows are *pending* until
 * cache_commit keeps the first n of them (0 <= n <= pending) and drops the others without a trace. Committing also
 * extends the drafter's context and the f_theta latents by the kept rows, from aux hidden states that the forward left
 * on the device. Position rule of the attention policies (docs/design/restoration.md): a decode row at position t sees
 * position j exactly if j < sink or j > t - window; a prompt row sees as evicted what the last committed decode row of
 * an earlier turn had evicted; the layer's own causal/sliding mask applies on top. */
#ifndef KAKEYA_BACKEND_BACKEND_H
#define KAKEYA_BACKEND_BACKEND_H

#include "backend/kv_format.h"
#include "base/alloc.h"
#include "base/error.h"
#include "model/assistant.h"
#include "model/block_drafter.h"
#include "model/language_model.h"
#include "model/restoration.h"

enum {
    BACKEND_MAX_DRAFT = 16,                          /* tokens drafted after the bonus token */
    BACKEND_MAX_DECODE_ROWS = BACKEND_MAX_DRAFT + 1, /* rows of one decode segment */
    BACKEND_MAX_SEGMENTS = 256, /* decode segments of one forward, or caches in one call of draft */
    BACKEND_MAX_PROMPTS = 64,   /* prompt segments of one forward, beside them */
    BACKEND_MAX_FORWARD = BACKEND_MAX_SEGMENTS + BACKEND_MAX_PROMPTS,
};

#define BACKEND_ARRANGED ".tiles"

typedef struct backend_model backend_model;
typedef struct backend_cache backend_cache;
typedef struct backend_reading backend_reading;
typedef struct backend_hearing backend_hearing;
typedef struct backend_ops backend_ops;

typedef struct backend_model_options {
    const language_model *verifier;       /* outlives the backend model */
    const block_drafter_model *drafter;   /* or NULL */
    const assistant_model *assistant;     /* or NULL; only of backends that run them */
    const restoration_model *restoration; /* or NULL; needs the drafter */
    kakeya_precision precision;           /* F32 or BF16 */
    const char *isa;                      /* CPU: NULL or the name of a kernel set */
    int threads;                          /* CPU: 0 = one per physical core */
    const int *devices; /* GPU: [n_devices] to share the work, the first of which also drafts; copied */
    int n_devices;      /* 0: device 0; the CPU takes no other number */
    bool drafter_scaled_embedding;
    bool drafter_block_bidirectional;
    size_t weights_limit; /* 0: none; only of backends that bound weights */
    size_t weights_aside; /* bytes of the drafters' and f_theta's weights that are mapped: part of the limit */
    mem_account *account;
    kakeya_progress_fn progress; /* or NULL: told of bytes on their way to the device */
    void *user;
} backend_model_options;

/* The form of a session's K/V by the name that callers know it by; not of AUTO, which an engine has resolved. */
static inline kv_format backend_kv_format(kakeya_kv_format format) {
    return format == KAKEYA_KV_Q4     ? KV_FORMAT_Q4
           : format == KAKEYA_KV_Q8   ? KV_FORMAT_Q8
           : format == KAKEYA_KV_BF16 ? KV_FORMAT_BF16
                                      : KV_FORMAT_F32;
}

/* Weights under a limit; all zeros without one. Counts since the model was made; any thread may ask. */
typedef struct backend_weights {
    size_t limit, resident; /* resident: of the limit, what every token needs */
    size_t slot_bytes;      /* memory of one expert */
    size_t host;            /* of a device: the host's memory that all experts take */
    int slots, experts;     /* that there is memory for, and that there are, in all layers */
    uint64_t wanted, found; /* experts that forwards wanted, and those of them that were in memory */
    uint64_t bytes;         /* that were read */
    uint64_t failures;      /* forwards that failed because experts could not be read */
    bool failing;           /* the last read failed */
    double seconds;         /* that forwards waited for reads */
    const char *method;     /* how they are read */
} backend_weights;

typedef struct backend_cache_options {
    int context_tokens;
    kakeya_attention attention;
    kakeya_restore_layers restore_layers;
    int sink, window, draft_window;
    kv_format kv_format;
    bool keep_draft_context; /* false: AR or n-gram decoding without restoration; nothing is kept for the drafter */
    bool keep_draft_state;   /* the same of the row that an assistant begins with */
    mem_account *account;
} backend_cache_options;

typedef enum segment_kind { SEGMENT_PROMPT = 0, SEGMENT_DECODE } segment_kind;

/* The largest logits of one row, and what all of them weigh: enough to sample most tokens without the others. */
enum { BACKEND_LEADERS = 256 };
typedef struct backend_leaders {
    int32_t n; /* listed; 0: too many tokens are too close to tell them apart; -1: a logit is not a number */
    int32_t reserved;
    uint64_t total;       /* sum of exp_weight (base/exp_weight.h) over the vocabulary at the segment's temperature */
    uint64_t plain_total; /* the same at temperature 1, for log-probabilities; without those as well */
    int32_t token[BACKEND_LEADERS]; /* largest logit first, then lowest id; no suppressed or excluded token */
    float logit[BACKEND_LEADERS];
} backend_leaders;

/* A picture for a model that reads pictures. */
typedef struct backend_image {
    const struct vision_model *vision;
    int across, down;     /* patches */
    const float *patches; /* [down * across][values of a patch], in [0, 1] */
} backend_image;

/* A sound for a model that reads sound. */
typedef struct backend_sound {
    const struct audio_model *audio;
    const float *samples; /* [n] of 16 kHz, in [-1, 1]; at least as many as make a row (audio_model_rows) */
    size_t n;
} backend_sound;

/* Rows that stand in the place of tokens' embeddings. */
typedef struct backend_given {
    int first, n;      /* rows of the segment */
    const float *rows; /* [n][hidden] */
    bool both_ways;    /* in sliding layers each of them sees all of them */
} backend_given;

/* One stretch of new tokens of one cache. Decode segments hold at most min(BACKEND_MAX_DECODE_ROWS, window) rows under
 * the bounded policies. One forward takes 1 to BACKEND_MAX_FORWARD segments of different caches with one K/V format:
 * BACKEND_MAX_SEGMENTS of decode rows and BACKEND_MAX_PROMPTS of prompts at most, model_prompt_chunk rows in all (with
 * given rows model_most_rows). A row's results do not depend on what else is in the call, nor on the order of the
 * segments. */
typedef struct backend_segment {
    backend_cache *cache;
    const int32_t *tokens; /* [n] ids inside the vocabulary */
    int n;
    segment_kind kind;
    int first_logit_row; /* logits of rows [first_logit_row, n) are written; n: none */
    float
        *logits; /* [n - first_logit_row][vocab], after soft-capping, float32; NULL only where argmax or leaders are */
    backend_leaders *leaders; /* NULL, or (backends with finds_leaders) [n - first_logit_row]; of a prompt, of its last
                                 row alone */
    float temperature;        /* above 0, with leaders */
    int32_t
        *argmax; /* NULL, or (backends with finds_argmax) [n - first_logit_row]: the greedy choice of each row, lowest
                    id on ties, never one of the model's suppressed tokens; -1 where a logit is not a number */
    const int32_t *excluded; /* NULL, or one token more that argmax and leaders never name */
    const uint32_t *allowed; /* NULL, or, with argmax (backends with masks_argmax; decode segments), [n -
                                first_logit_row][(vocab + 31) / 32] bits by token: argmax names only tokens whose bit is
                                set, -1 where none is; what the other logits are means nothing */
    float *
        hidden_states; /* NULL, or [layers + 1][n][hidden]: embedding, each layer's output, last one after final norm */
    const int *chosen_layers; /* NULL, or, where the backend's training table has `chooses`, [chosen]: hidden_states is
                                 [n][chosen * hidden] instead, the outputs of these layers, but the last */
    int chosen;
    const backend_given *given; /* NULL, or (backends with embed_image, prompts) [n_given], ascending: their tokens
                                   stand for nothing */
    int n_given;
    kakeya_status status; /* out, where forward fails: why this segment cannot be computed, whatever is beside it (a
                             token that does not exist, no room in the context, no memory for its cache); KAKEYA_OK in
                             all segments: the failure is not one segment's */
} backend_segment;

/* Who drafts: a DFlash drafter, the whole block at once, or an MTP assistant, one token after the other. */
typedef enum backend_drafter { BACKEND_BLOCK_DRAFTER = 0, BACKEND_ASSISTANT, BACKEND_DRAFTERS } backend_drafter;

/* A block of drafts of one cache. */
typedef struct backend_draft_request {
    backend_cache *cache; /* keeps drafter context (for an assistant: has a state, cache_has_state), nothing pending;
                             takes part at most once in a call */
    backend_drafter drafter;
    int32_t bonus;        /* stands at position cache_length */
    int n;                /* drafts that follow it, 1 to BACKEND_MAX_DRAFT */
    int32_t *drafts;      /* out: [n]; -1 from where a logit is not a number */
    kakeya_status status; /* out, as in backend_segment */
} backend_draft_request;

/* Bytes of K/V memory by kind, as the allocator counts them. */
typedef struct backend_cache_bytes {
    size_t full, sliding, latent, draft, total;
    size_t shared_full, shared_latent; /* of these: pages held together with forks, now or once, which are counted in an
                                          account above the cache's (base/alloc.h, mem_share) */
} backend_cache_bytes;

/* Take, or give, exactly `bytes`. A failure ends the snapshot that is being written or read, and is handed on. */
typedef kakeya_status (*backend_write_fn)(void *user, const void *data, size_t bytes, kakeya_error *error);
typedef kakeya_status (*backend_read_fn)(void *user, void *data, size_t bytes, kakeya_error *error);

struct backend_ops {
    const char *name;    /* "cpu", "cuda" */
    int most_devices;    /* that can compute together by number; 0: none can be chosen */
    bool bf16_only;      /* precision f32 is refused; automatic precision is bf16 whatever the checkpoint holds */
    bool int8_products;  /* precision int8 is there: what automatic precision is for quantised weights, else bf16 */
    bool fp8_prompts;    /* precision fp8 is there, for weights in FP8 */
    int stall_ms;        /* what a prompt may add to a step of answers by default */
    int batch;           /* answers that are computed together by default, at most BACKEND_MAX_SEGMENTS */
    bool kinds_differ;   /* rows of prompts are computed by other kernels than rows of answers, and have other bits */
    bool raw_values;     /* models whose values pass no norm are computed: Gemma 3 */
    bool assistants;     /* models with an MTP assistant are computed */
    bool bounds_weights; /* weights_limit is kept: experts come from elsewhere when they are wanted */
    bool finds_argmax;   /* forward fills backend_segment.argmax */
    bool masks_argmax;   /* and follows backend_segment.allowed */
    bool finds_leaders;  /* forward fills backend_segment.leaders, and read_logits is there */

    kakeya_status (*model_create)(const backend_model_options *options, backend_model **out, kakeya_error *error);
    void (*model_destroy)(backend_model *model);
    const char *(*model_description)(
        const backend_model *model); /* "cpu/avx512, 2 threads" style, owned by the model */
    const char *(*model_note)(
        const backend_model *model); /* "" or one line that the user should know; NULL: never any */
    /* What the limit on weights has come to. NULL: the backend bounds none. */
    void (*model_weights)(const backend_model *model, backend_weights *out);
    int (*model_prompt_chunk)(const backend_model *model); /* preferred (and largest) tokens per prompt segment, and the
                                                              most rows of a forward, but for pictures */
    /* The most rows of a forward with given rows, which may need memory that the model keeps then; NULL: the same. */
    int (*model_most_rows)(const backend_model *model);

    /* What cache_create would refuse, memory apart. NULL: nothing. */
    kakeya_status (*cache_check)(const backend_model *model, const backend_cache_options *options, kakeya_error *error);
    kakeya_status (*cache_create)(backend_model *model, const backend_cache_options *options, backend_cache **out,
                                  kakeya_error *error);
    void (*cache_destroy)(backend_cache *cache);
    int (*cache_length)(const backend_cache *cache);
    int (*cache_pending)(const backend_cache *cache);
    /* The smallest length that cache_truncate can still go back to; length + 1 for a cache that cannot go on, because a
     * dropped prompt has overwritten what the committed positions need. */
    int (*cache_min_truncate)(const backend_cache *cache);

    /* Computes all segments; every cache's rows become pending (earlier pending rows must have been committed). On
     * failure no cache has changed. */
    kakeya_status (*forward)(backend_model *model, backend_segment *segments, int n_segments, kakeya_error *error);
    /* Logits [vocab] of a row (0 .. n - first_logit_row - 1) of a decode segment of the last forward, or of a prompt of
     * which the last row alone was wanted, which asked for logits or leaders; before the next forward or draft on the
     * model. */
    kakeya_status (*read_logits)(backend_model *model, int segment, int row, float *logits, kakeya_error *error);
    /* Keeps the first n pending rows; of a prompt all, or none where it is to be dropped. */
    kakeya_status (*cache_commit)(backend_cache *cache, int n, kakeya_error *error);
    /* Drops committed positions [length, ...). KAKEYA_INVALID_ARGUMENT below cache_min_truncate. */
    kakeya_status (*cache_truncate)(backend_cache *cache, int length, kakeya_error *error);
    /* A copy that counts in `account`. What neither of the two will write to any more may be shared. */
    kakeya_status (*cache_fork)(const backend_cache *cache, mem_account *account, backend_cache **out,
                                kakeya_error *error);
    /* What the formula of the layout says (kv_bytes); tests compare it with the account. */
    backend_cache_bytes (*cache_bytes)(const backend_cache *cache);
    /* The committed state (nothing pending) as a stream, portable between backends (backend/snapshot.h). Restoring
     * replaces a cache's whole state; on failure the cache is unchanged. */
    size_t (*cache_snapshot_bytes)(const backend_cache *cache);
    kakeya_status (*cache_snapshot)(const backend_cache *cache, backend_write_fn write, void *user,
                                    kakeya_error *error);
    kakeya_status (*cache_restore)(backend_cache *cache, backend_read_fn read, void *user, kakeya_error *error);

    /* Whether the state of the last committed row is known, without which an assistant cannot draft: always behind a
     * forward whose rows were kept, never behind a truncation. NULL: never. */
    bool (*cache_has_state)(const backend_cache *cache);

    /* Drafts for 1 to BACKEND_MAX_SEGMENTS caches of one K/V format. A cache's drafts do not depend on the others. On
     * failure there are no drafts, and no cache's committed positions have changed. */
    kakeya_status (*draft)(backend_model *model, backend_draft_request *requests, int n_requests, kakeya_error *error);

    /* Optional: what embed_image would load with the first picture. NULL: it loads nothing. */
    kakeya_status (*load_vision)(backend_model *model, const struct vision_model *vision, kakeya_error *error);
    /* Optional: rows [across / pooling * down / pooling][hidden] of the text model out of a picture; NULL: this backend
     * reads none. */
    kakeya_status (*embed_image)(backend_model *model, const backend_image *image, float *rows, kakeya_error *error);
    /* Optional, all three or none: the same in pieces, between which the model may do anything else; any number of
     * pictures may be under way. The patches are needed no more behind image_begin, `rows` are until image_end. A step
     * computes for `seconds` or a little longer, a piece at least; made: the rows are there. Behind a failure only
     * image_end may follow, which gives the memory back, at any time, also without the turn. */
    kakeya_status (*image_begin)(backend_model *model, const backend_image *image, float *rows, backend_reading **out,
                                 kakeya_error *error);
    kakeya_status (*image_step)(backend_reading *reading, double seconds, bool *made, kakeya_error *error);
    void (*image_end)(backend_reading *reading);
    /* Optional, all three or none: rows [audio_model_rows][hidden] of the text model out of a sound, in pieces as
     * pictures' are. The samples are needed no more behind sound_begin. NULL: this backend reads no sound. */
    kakeya_status (*sound_begin)(backend_model *model, const backend_sound *sound, float *rows, backend_hearing **out,
                                 kakeya_error *error);
    kakeya_status (*sound_step)(backend_hearing *hearing, double seconds, bool *done, kakeya_error *error);
    void (*sound_end)(backend_hearing *hearing);

    /* Optional: writes quantised weights as this backend arranges them in memory to a file, so that model_create maps
     * them where it is what language_model_beside says of BACKEND_ARRANGED. KAKEYA_UNSUPPORTED where it arranges none
     * of the verifier's. */
    kakeya_status (*weights_arrange)(const backend_model_options *options, const char *path, kakeya_error *error);
};

/* Seconds that forwards of the model have waited for weights; 0 where it has them all. */
static inline double backend_read_seconds(const backend_ops *ops, const backend_model *model) {
    backend_weights weights = {0};
    if (ops->model_weights) ops->model_weights(model, &weights);
    return weights.seconds;
}

/* The drafts of one cache alone, by its DFlash drafter. */
kakeya_status backend_draft_one(const backend_ops *ops, backend_model *model, backend_cache *cache, int32_t bonus,
                                int n, int32_t *drafts, kakeya_error *error);
/* The same by any drafter. */
kakeya_status backend_draft_by(const backend_ops *ops, backend_model *model, backend_drafter drafter,
                               backend_cache *cache, int32_t bonus, int n, int32_t *drafts, kakeya_error *error);

/* The backend by name ("cpu"; "auto" or NULL picks the best present), or NULL with *error set. */
const backend_ops *backend_find(const char *name, kakeya_error *error);
/* The precision that is asked for; for AUTO what the backend computes a checkpoint of this format in.
 * KAKEYA_UNSUPPORTED where it has no such precision. */
kakeya_status backend_precision(const backend_ops *ops, weight_format format, kakeya_precision asked,
                                kakeya_precision *out, kakeya_error *error);

#endif
