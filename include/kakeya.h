/* kakeya: a Gemma 4 inference engine with bounded K/V memory and lossless speculative decoding.
 *
 * Two nouns. A kakeya_engine holds weights on one backend; it is immutable after opening and may be shared by sessions.
 * A kakeya_session is one mutable timeline of tokens (a conversation). One session is used by one thread at a time;
 * sessions of one engine take turns inside the engine, so calls on different sessions from different threads are safe.
 *
 * Every function that can fail returns a kakeya_status and, on failure, writes one line into the caller's kakeya_error
 * (which may be NULL). The library never exits, never prints and has no global state.
 * Strings are UTF-8. Token ids are int32_t. "tokens" counts tokens, "bytes" counts bytes. */
#ifndef KAKEYA_H
#define KAKEYA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KAKEYA_VERSION_MAJOR 0
#define KAKEYA_VERSION_MINOR 1
#define KAKEYA_VERSION_PATCH 0

typedef enum kakeya_status {
    KAKEYA_OK = 0,
    KAKEYA_INVALID_ARGUMENT, /* the caller's values make no sense together or are out of range */
    KAKEYA_IO,               /* a file cannot be opened, read or written */
    KAKEYA_FORMAT,           /* a file's content is malformed or does not fit the model */
    KAKEYA_UNSUPPORTED,      /* well formed, but not something this build can run */
    KAKEYA_OUT_OF_MEMORY,
    KAKEYA_CONTEXT_FULL,     /* the tokens do not fit into the session's context */
    KAKEYA_CANCELLED,        /* a callback asked to stop */
    KAKEYA_BACKEND,          /* the compute device failed */
} kakeya_status;

/* One line of text that names the file, tensor or option and the values that disagree. */
typedef struct kakeya_error {
    kakeya_status status;
    char message[1024];
} kakeya_error;

const char *kakeya_status_name(kakeya_status status);
const char *kakeya_version(void); /* "0.1.0" */

typedef enum kakeya_precision {
    KAKEYA_PRECISION_AUTO = 0, /* the checkpoint's own type: bf16 for bf16 checkpoints, otherwise f32 */
    KAKEYA_PRECISION_F32,
    KAKEYA_PRECISION_BF16,
} kakeya_precision;

typedef enum kakeya_kv_format {
    KAKEYA_KV_AUTO = 0, /* follows the precision */
    KAKEYA_KV_F32,
    KAKEYA_KV_BF16,
} kakeya_kv_format;

typedef enum kakeya_attention {
    KAKEYA_ATTENTION_NATIVE = 0,  /* the model's own attention, everything exact */
    KAKEYA_ATTENTION_SINK_WINDOW, /* sliding layers keep sink + window positions, the rest is gone */
    KAKEYA_ATTENTION_RESTORED,    /* as above, but evicted positions are reconstructed by f_theta when attended */
} kakeya_attention;

typedef enum kakeya_restore_layers {
    KAKEYA_RESTORE_SLIDING = 0, /* S5: full-attention layers stay exact */
    KAKEYA_RESTORE_ALL,         /* full-attention layers are bounded and restored too */
} kakeya_restore_layers;

typedef enum kakeya_mode {
    KAKEYA_MODE_AUTO = 0,    /* draft length chosen per block from measured cost and acceptance; AR when none pays */
    KAKEYA_MODE_AR,          /* one token per verifier forward */
    KAKEYA_MODE_SPECULATIVE, /* DFlash blocks of fixed draft length */
    KAKEYA_MODE_NGRAM,       /* drafts looked up in the session's own tokens; needs no drafter */
} kakeya_mode;

/* Called during long work. done/total count `what` ("loading", "prompt", ...). Return false to cancel. */
typedef bool (*kakeya_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* ------------------------------------------------------------------------------------------------ engine */

typedef struct kakeya_engine kakeya_engine;

typedef struct kakeya_engine_options {
    const char *model;     /* directory, or a name in the local Hugging Face cache; NULL with `synthetic` */
    const char *synthetic; /* "26b-a4b", "26b-a4b:layers=6", "e2b", "e4b", "12b", "31b": weights made in memory */
    /* Directory or name; NULL: none, unless the model directory's sibling "<model>-dflash" exists; "none";
     * "synthetic": weights made in memory, for a synthetic model. */
    const char *drafter;
    const char *f_theta;   /* directory; NULL: none, unless the sibling "<model>-f-theta" exists; "none" */
    const char *backend;   /* "auto" (NULL), "cpu", "cuda" */
    const char *cpu_isa;   /* NULL: best available; "scalar", "avx2", "avx512", "avx512bf16": for tests and bench */
    kakeya_precision precision;
    int threads;              /* at most 1024; 0: one per physical core available to the process */
    bool drafter_scaled_embedding; /* multiply drafter block embeddings by sqrt(hidden) (spec of some public engines) */
    bool drafter_block_bidirectional; /* drafter's sliding layers: no causal mask inside the block */
    size_t memory_limit_bytes; /* 0: none. Allocations beyond it fail with KAKEYA_OUT_OF_MEMORY */
    kakeya_progress_fn progress;
    void *user;
} kakeya_engine_options;

/* All defaults; call before setting fields, so that new fields keep old callers working. */
void kakeya_engine_options_init(kakeya_engine_options *options);

/* Opens a model. *out is owned by the caller, released by kakeya_engine_close after its sessions. */
kakeya_status kakeya_engine_open(const kakeya_engine_options *options, kakeya_engine **out, kakeya_error *error);
void kakeya_engine_close(kakeya_engine *engine);

int kakeya_engine_vocab_size(const kakeya_engine *engine);
int kakeya_engine_hidden_size(const kakeya_engine *engine);
int kakeya_engine_layers(const kakeya_engine *engine);
int kakeya_engine_max_context(const kakeya_engine *engine);
bool kakeya_engine_has_tokenizer(const kakeya_engine *engine);
bool kakeya_engine_has_drafter(const kakeya_engine *engine);
bool kakeya_engine_has_f_theta(const kakeya_engine *engine);
int kakeya_engine_drafter_block_size(const kakeya_engine *engine); /* 0 without drafter */
const char *kakeya_engine_backend(const kakeya_engine *engine);    /* e.g. "cpu/avx512" */
kakeya_precision kakeya_engine_precision(const kakeya_engine *engine); /* never AUTO */
bool kakeya_engine_is_stop_token(const kakeya_engine *engine, int32_t token);

/* Text to ids. *ids is malloc'ed, freed by the caller with kakeya_free. With special = true, special-token strings in the
 * text become their ids and the post-processor's <bos> is added; otherwise the text is taken literally. */
kakeya_status kakeya_tokenize(const kakeya_engine *engine, const char *text, size_t text_bytes, bool special,
                              int32_t **ids, size_t *n_ids, kakeya_error *error);
/* Ids to text, valid UTF-8 always. *text is NUL-terminated, freed with kakeya_free. */
kakeya_status kakeya_detokenize(const kakeya_engine *engine, const int32_t *ids, size_t n_ids, bool keep_special,
                                char **text, size_t *text_bytes, kakeya_error *error);
void kakeya_free(void *pointer);

/* One message of a conversation; role: "system", "user", "model" (or "assistant"). */
typedef struct kakeya_message {
    const char *role;
    const char *content;
} kakeya_message;

/* Renders a conversation in the Gemma 4 turn format and tokenises it; user text is never read as special tokens.
 * Ends with the opened model turn. */
kakeya_status kakeya_chat_tokens(const kakeya_engine *engine, const kakeya_message *messages, size_t n_messages,
                                 bool thinking, int32_t **ids, size_t *n_ids, kakeya_error *error);

/* ----------------------------------------------------------------------------------------------- session */

typedef struct kakeya_session kakeya_session;

typedef struct kakeya_session_options {
    int context_tokens; /* 0: the model's maximum */
    kakeya_attention attention;
    kakeya_restore_layers restore_layers;
    int sink;         /* positions; default 4 */
    int window;       /* positions; default 64 */
    int draft_window; /* positions of drafter context; default 1024 */
    kakeya_kv_format kv_format;
    int prompt_chunk_tokens; /* 0: the backend's choice */
    bool without_drafter; /* keep no drafter context: saves its memory and work; modes ar, ngram and auto without DFlash */
} kakeya_session_options;

void kakeya_session_options_init(kakeya_session_options *options);

kakeya_status kakeya_session_open(kakeya_engine *engine, const kakeya_session_options *options, kakeya_session **out,
                                  kakeya_error *error);
void kakeya_session_close(kakeya_session *session);

/* Makes the session's timeline equal to tokens[0..n): reuses the longest common prefix that its cache can still reach,
 * truncates or extends the rest, rebuilds when it must. *reused (optional) receives the tokens that were not computed
 * again. On failure the session holds a prefix of `tokens` and stays usable. */
kakeya_status kakeya_session_sync(kakeya_session *session, const int32_t *tokens, size_t n, size_t *reused,
                                  kakeya_progress_fn progress, void *user, kakeya_error *error);

/* Tokens of the timeline: those synced and those generated. Valid until the next call on the session. */
const int32_t *kakeya_session_tokens(const kakeya_session *session, size_t *n);

typedef enum kakeya_finish {
    KAKEYA_FINISH_NONE = 0,
    KAKEYA_FINISH_STOP,      /* stop token or stop string */
    KAKEYA_FINISH_LENGTH,    /* max_tokens or the context's end */
    KAKEYA_FINISH_CANCELLED, /* the callback returned false */
} kakeya_finish;

typedef struct kakeya_kv_bytes {
    size_t full, sliding, latent, draft, total; /* bytes that the session's allocator holds now */
} kakeya_kv_bytes;

typedef struct kakeya_stats {
    size_t prompt_tokens, reused_tokens, completion_tokens;
    double prefill_seconds, decode_seconds;
    uint64_t verifier_forwards; /* decode forwards; tokens per forward = completion_tokens / verifier_forwards */
    uint64_t drafted_tokens, accepted_tokens;
    uint64_t drafted_at[32], accepted_at[32]; /* by draft position, 0 = first draft after the bonus token */
    double draft_seconds, verify_seconds;
    kakeya_finish finish;
} kakeya_stats;

typedef struct kakeya_sampling {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float repetition_penalty; /* 1: off */
    uint64_t seed;     /* sampling at position p depends on (seed, p) and the logits only */
} kakeya_sampling;

/* One generated token. `text` holds the complete UTF-8 characters that became certain with this token, possibly none; NULL
 * without tokenizer; not NUL-terminated. Text that may be the beginning of a stop string waits for later tokens; a token
 * whose text is undecided is itself delivered only when the next token or the end is known. Return false to stop after
 * this token: it is then the timeline's last. Must not use the session. */
typedef bool (*kakeya_token_fn)(void *user, int32_t token, const char *text, size_t text_bytes);

typedef struct kakeya_generate_options {
    int max_tokens; /* 0: until the context is full */
    kakeya_mode mode;
    /* Tokens drafted per block after the bonus token, 1..16: their number in the fixed modes, the most in auto. 0: the
     * drafter's block size - 1; in auto 16, of which the drafter gives its block size - 1 at most and the text the rest. */
    int draft_length;
    kakeya_sampling sampling;
    const char *const *stop_strings; /* n_stop_strings texts that end the answer and are not part of it */
    size_t n_stop_strings;
    bool ignore_stop_tokens;
    kakeya_token_fn on_token;
    void *user;
} kakeya_generate_options;

void kakeya_generate_options_init(kakeya_generate_options *options);

/* Continues the timeline. Generated tokens join it (stop token included, which is not passed to on_token). The token
 * stream is the same for every mode, draft length, chunking and thread count (DESIGN: the lossless contract). */
kakeya_status kakeya_session_generate(kakeya_session *session, const kakeya_generate_options *options,
                                      kakeya_stats *stats, kakeya_error *error);

kakeya_kv_bytes kakeya_session_kv_bytes(const kakeya_session *session);

/* An independent copy of the timeline and its memory. */
kakeya_status kakeya_session_fork(const kakeya_session *session, kakeya_session **out, kakeya_error *error);
/* The whole state as bytes (*data freed with kakeya_free), and back. Refuses data of another model or policy. */
kakeya_status kakeya_session_snapshot(const kakeya_session *session, void **data, size_t *bytes, kakeya_error *error);
kakeya_status kakeya_session_restore(kakeya_session *session, const void *data, size_t bytes, kakeya_error *error);

/* Teacher-forced scoring of tokens[0..n) in a fresh timeline: rows t < prompt_length are prompt rows (native attention),
 * later rows are decode rows under the session's policy. nll[t], t in [0, n-1), is -log p(tokens[t+1] | tokens[0..t]);
 * logits, if not NULL, receives F32 [n][vocab]; hidden_states F32 [layers+1][n][hidden] (embedding, each layer's output,
 * the last one after the final norm). prompt_length 0: all rows are prompt rows. */
kakeya_status kakeya_session_score(kakeya_session *session, const int32_t *tokens, size_t n, size_t prompt_length,
                                   float *nll, float *logits, float *hidden_states, kakeya_progress_fn progress,
                                   void *user, kakeya_error *error);

#ifdef __cplusplus
}
#endif
#endif
