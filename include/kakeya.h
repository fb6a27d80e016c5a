/* kakeya: a Gemma 4 inference engine with bounded K/V memory and lossless speculative decoding.
 *
 * A complete program makes five calls; examples/generate.c is one of a page:
 *
 *     kakeya_engine_open(&model, &engine, &error);                          weights
 *     kakeya_session_open(engine, NULL, &session, &error);                  one timeline of tokens
 *     kakeya_session_sync(session, ids, n_ids, NULL, NULL, NULL, &error);   sets the prompt (kakeya_tokenize)
 *     kakeya_session_generate(session, &answer, &stats, &error);            continues it; tokens come as events
 *     kakeya_session_close(session), kakeya_engine_close(engine);
 *
 * Two nouns. A kakeya_engine holds weights on one backend; it is immutable after opening and may be shared by sessions.
 * A kakeya_session is one mutable timeline of tokens (a conversation). One session is used by one thread at a time;
 * calls on different sessions from different threads are safe. Sessions of one engine that work at the same time are
 * batched: their rows form one step. No session's tokens depend on the others. One of the waiting threads computes for
 * all of them, or a thread of the engine if none waits. Callbacks of prompts and answers are called on the thread that
 * computes, so they may cancel sessions and submit requests, but not wait for one. A kakeya_tokenizer is the text side
 * of a model. It needs no weights, is immutable, and may be shared by threads.
 *
 * This file has the five calls first, then their options, then the rest. It includes kakeya_text.h (tokenizer, chat,
 * parser, grammar), kakeya_image.h and kakeya_sound.h. kakeya_study.h, which a program that studies models includes
 * itself, has scores, descriptions of models, and the switches of tests.
 *
 * Every function that can fail returns a kakeya_status and, on failure, writes one line into the caller's kakeya_error
 * (which may be NULL). The library never exits, never prints and has no global state.
 * A thread that calls the library needs KAKEYA_STACK_BYTES of stack; the library's own threads have that much, whatever
 * the system's default. Model files are mapped, not copied. If a file is truncated while it is open, the next read past
 * its new end raises SIGBUS, on a thread of the caller's or of the library's, which ends the process unless the program
 * handles the signal (see bytes_lost in kakeya_engine_options); replace a model by renaming a new file over it. Strings
 * are UTF-8; contents of messages and stop strings encode U+0000 as C0 80. Names with "tokens" or "bytes" count those.
 *
 * Structs that begin with `size` may grow at their end in later versions. `size` is the number of bytes that the caller
 * knows; the library reads and writes no more. KAKEYA_INIT sets it, and zeros, which are the defaults everywhere. A
 * program then runs with every later library of the same soname. A library that is older than the program refuses
 * options that it does not know, unless they are zero. kakeya_error, kakeya_message and kakeya_sampling never change.
 */
#ifndef KAKEYA_H
#define KAKEYA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define KAKEYA_API __attribute__((visibility("default")))
#else
#define KAKEYA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KAKEYA_STACK_BYTES   (512 * 1024)
#define KAKEYA_VERSION_MAJOR 0
#define KAKEYA_VERSION_MINOR 3
#define KAKEYA_VERSION_PATCH 0

typedef enum kakeya_status {
    KAKEYA_OK = 0,
    KAKEYA_INVALID_ARGUMENT, /* the caller's values contradict each other or are out of range */
    KAKEYA_IO,               /* a file cannot be opened, read or written */
    KAKEYA_FORMAT,           /* a file's content is malformed or does not fit the model */
    KAKEYA_UNSUPPORTED,      /* well formed, but not something this build can run */
    KAKEYA_OUT_OF_MEMORY,
    KAKEYA_CONTEXT_FULL, /* the tokens do not fit into the session's context */
    KAKEYA_CANCELLED,    /* a callback asked to stop */
    KAKEYA_BACKEND,      /* the compute device failed */
} kakeya_status;

/* One line of text that names the file, tensor or option and the values that disagree. */
typedef struct kakeya_error {
    kakeya_status status;
    char message[1024];
} kakeya_error;

/* Sets every byte of a struct that begins with `size` to zero, then its size. Call it before anything else is set:
 *
 *     kakeya_session_options options;
 *     KAKEYA_INIT(&options);
 *     options.window = 256;
 */
#define KAKEYA_INIT(pointer) ((void)(memset((pointer), 0, sizeof *(pointer)), (pointer)->size = sizeof *(pointer)))

/* Called during long work. done/total count `what` ("loading", "prompt", ...). Return false to cancel. */
typedef bool (*kakeya_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* ----------------------------------------------------------------------------------------------- five calls */

typedef struct kakeya_engine kakeya_engine;
typedef struct kakeya_session kakeya_session;
typedef struct kakeya_engine_options kakeya_engine_options;
typedef struct kakeya_session_options kakeya_session_options;
typedef struct kakeya_generate_options kakeya_generate_options;
typedef struct kakeya_stats kakeya_stats;

/* Opens a model. The caller owns *out and releases it with kakeya_engine_close, after closing its sessions. */
KAKEYA_API kakeya_status kakeya_engine_open(const kakeya_engine_options *options, kakeya_engine **out,
                                            kakeya_error *error);

/* options NULL: all defaults. The session allocates its K/V memory with its first prompt, so opening it takes almost no
 * memory and waits for no forward. */
KAKEYA_API kakeya_status kakeya_session_open(kakeya_engine *engine, const kakeya_session_options *options,
                                             kakeya_session **out, kakeya_error *error);

/* Makes the session's timeline equal to tokens[0..n): reuses the longest common prefix that its cache can still reach,
 * truncates or extends the rest, rebuilds when it must. *reused (optional) receives the number of tokens that were not
 * computed again. On failure the session holds a prefix of `tokens` and stays usable.
 *
 * Reused rows stay as they were computed. Under `native` this makes no difference: they are bit for bit what a new
 * session would compute. Under `sink-window` and `restored` it does: rows of earlier answers attended to less than rows
 * of one long prompt do, so later output may differ from a new session's. If output must not depend on what came
 * before, open a session for each request, or load a saved one. */
KAKEYA_API kakeya_status kakeya_session_sync(kakeya_session *session, const int32_t *tokens, size_t n, size_t *reused,
                                             kakeya_progress_fn progress, void *user, kakeya_error *error);

/* Continues the timeline. Generated tokens are appended to it (stop token included). The token stream is the same for
 * every mode, draft length, chunking and thread count (docs/design/architecture.md, "Positions, never block borders").
 * options NULL: all defaults. stats may be NULL. */
KAKEYA_API kakeya_status kakeya_session_generate(kakeya_session *session, const kakeya_generate_options *options,
                                                 kakeya_stats *stats, kakeya_error *error);

/* Frees what was opened; NULL is ignored. */
KAKEYA_API void kakeya_session_close(kakeya_session *session);
KAKEYA_API void kakeya_engine_close(kakeya_engine *engine);

/* --------------------------------------------------------------------------------------------------- options */

typedef enum kakeya_precision {
    KAKEYA_PRECISION_AUTO = 0, /* follows the checkpoint: bf16 for bf16, int8 for quantised on a CPU, else f32 */
    KAKEYA_PRECISION_F32,
    KAKEYA_PRECISION_BF16,
    KAKEYA_PRECISION_INT8, /* CPU only: inputs of quantised weights are rounded to 8 bits; the rest is f32 */
    KAKEYA_PRECISION_FP8,  /* CUDA only: bf16, but prompt rows are rounded to FP8 where the weights are FP8 */
} kakeya_precision;

typedef enum kakeya_kv_format {
    KAKEYA_KV_AUTO = 0, /* f32 at precision f32, else bf16 */
    KAKEYA_KV_F32,
    KAKEYA_KV_BF16,
    KAKEYA_KV_Q8, /* full-attention layers in 8 bits with a scale per head; bounded layers in bf16 */
    KAKEYA_KV_Q4, /* the same in 4 bits, experimental (its loss of fidelity: docs/reference/formats.md) */
} kakeya_kv_format;

typedef enum kakeya_attention {
    KAKEYA_ATTENTION_NATIVE = 0,  /* the model's own attention, everything exact */
    KAKEYA_ATTENTION_SINK_WINDOW, /* sliding layers keep sink + window positions and drop the rest */
    KAKEYA_ATTENTION_RESTORED,    /* as above, but evicted positions are reconstructed by f_theta when attended */
} kakeya_attention;

typedef enum kakeya_restore_layers {
    KAKEYA_RESTORE_SLIDING = 0, /* sliding layers only; full-attention layers stay exact */
    KAKEYA_RESTORE_ALL,         /* full-attention layers are bounded and restored too */
} kakeya_restore_layers;

/* When the vision tower is loaded. */
typedef enum kakeya_vision {
    KAKEYA_VISION_AUTO = 0, /* with the first picture; until then its files are checked and mapped, but not read */
    KAKEYA_VISION_ON,       /* when the engine is opened, which fails if the model or the backend reads no pictures */
    KAKEYA_VISION_OFF,      /* never: pictures are refused */
} kakeya_vision;

typedef enum kakeya_mode {
    KAKEYA_MODE_AUTO = 0, /* draft length chosen per block from measured cost and acceptance; AR if drafts do not pay */
    KAKEYA_MODE_AR,       /* one token per verifier forward */
    KAKEYA_MODE_SPECULATIVE, /* DFlash blocks of fixed draft length */
    KAKEYA_MODE_NGRAM,       /* drafts looked up in the session's own tokens; needs no drafter */
} kakeya_mode;

/* One forward, for all requests that were computed together. */
typedef struct kakeya_step {
    size_t requests;
    size_t prompt_positions; /* of prompts */
    size_t answer_positions; /* of answers: their tokens and the drafts that were tried */
    double seconds;
    kakeya_status status; /* KAKEYA_OK, or why the whole forward failed: no single request caused it, and all fail */
    size_t preemptions;   /* requests that have moved to a file since the step before */
} kakeya_step;

/* Called after each forward on the thread that computes, before its results are delivered. It must not block. */
typedef void (*kakeya_step_fn)(void *user, const kakeya_step *step);

/* Requests are about `bytes` of memory short. Gives memory of idle sessions back, by closing or parking them, and
 * returns how many bytes, or 0 if there is none to give. KAKEYA_RELIEF_LATER: some is on its way; requests that could
 * not go on without it wait until kakeya_engine_relieved. Called on the thread that computes, again and again while
 * memory is short; it must not wait for requests, and all requests wait until it returns. */
typedef size_t (*kakeya_relieve_fn)(void *user, size_t bytes);

#define KAKEYA_RELIEF_LATER SIZE_MAX

typedef struct kakeya_study_options kakeya_study_options;

struct kakeya_engine_options {
    size_t size;
    const char *model; /* directory, GGUF file, name in the Hugging Face cache, "DIR:Q4_K_M" */
    /* Directory, GGUF file or name of a DFlash drafter or an MTP assistant; NULL: "<model>-dflash" and
     * "<model>-assistant" if they exist beside the model; "none". */
    const char *drafter;
    const char *f_theta; /* directory; NULL: none, unless the sibling "<model>-f-theta" exists; "none" */
    const char *backend; /* "auto" (NULL), "cpu", "cuda", "mlx" */
    kakeya_precision precision;
    int threads;               /* at most 1024; 0: one per physical core available to the process */
    size_t memory_limit_bytes; /* 0: none. Allocations beyond it fail with KAKEYA_OUT_OF_MEMORY */
    kakeya_progress_fn progress;
    void *user;       /* for progress */
    int max_batch;    /* maximum number of answers computed together, 1 to 256; more wait. 0: 256 on CUDA, else 64 */
    int max_stall_ms; /* time a prompt may add to a step of running answers, at least 1. 0: 200, on a GPU 60 */
    kakeya_step_fn on_step; /* may be NULL */
    void *step_user;
    const char *devices; /* GPUs that compute together, by number: "0,1", at most 8; NULL or "": device 0. Tokens are
                            the same for the same number of devices */
    const volatile int *bytes_lost; /* NULL, or set to non-zero by a SIGBUS handler that has put zeros in place of
                                       the model's lost bytes: running work then fails with KAKEYA_BACKEND */
    const char *spill_directory;    /* for the unnamed files of preempted sessions; NULL: $TMPDIR, else /var/tmp */
    const char *second_drafter;     /* NULL, or one of the other kind than `drafter`: DFlash and an MTP assistant */
    const char *mmproj;      /* vision and audio tower of a GGUF model; NULL: looked for in its file, then beside it */
    size_t image_rows_bytes; /* cache of picture embeddings for later prompts with the same pictures; in addition to
                                memory_limit_bytes. 0: no cache */
    kakeya_vision vision;
    /* Bytes that weights may take in memory, 0: all that they need. Weights that every token needs are always there;
     * routed experts are read from the model's files (on a GPU, whose memory this is about, from the host's) when a
     * token chooses them, and tokens are the same. Mixtures of experts, backends cpu and cuda. KAKEYA_WEIGHTS_AUTO:
     * three quarters of the free memory, and no more than all weights. */
    size_t weights_limit_bytes;
    const kakeya_study_options *study; /* kakeya_study.h: for tests and measurements; NULL in all other programs */
    kakeya_relieve_fn relieve;         /* asked before requests wait for memory; may be NULL */
    void *relieve_user;
};

#define KAKEYA_WEIGHTS_AUTO SIZE_MAX

enum {
    KAKEYA_DEFAULT_SINK = 4,
    KAKEYA_DEFAULT_WINDOW = 64,
    KAKEYA_DEFAULT_DRAFT_WINDOW = 1024,
    KAKEYA_NO_SINK = -1,
};

struct kakeya_session_options {
    size_t size;
    int context_tokens; /* 0: the model's maximum */
    kakeya_attention attention;
    kakeya_restore_layers restore_layers;
    int sink;         /* positions; 0: KAKEYA_DEFAULT_SINK. KAKEYA_NO_SINK: none */
    int window;       /* positions; 0: KAKEYA_DEFAULT_WINDOW */
    int draft_window; /* positions of drafter context; 0: KAKEYA_DEFAULT_DRAFT_WINDOW */
    kakeya_kv_format kv_format;
    int prompt_chunk_tokens; /* 0: the backend's choice */
    bool without_drafter; /* keep no drafter context: saves memory and work; for modes ar, ngram, auto without DFlash */
};

typedef struct kakeya_sampling {
    float temperature;        /* 0: greedy */
    int top_k;                /* 0: off */
    float top_p;              /* 0, 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 0, 1: off; from 1e-3 to 1e3 */
    uint64_t seed;            /* sampling at position p depends on (seed, p) and the logits only */
} kakeya_sampling;

enum { KAKEYA_MAX_TOP_LOG_PROBABILITIES = 20 };

typedef struct kakeya_event kakeya_event;
typedef struct kakeya_grammar kakeya_grammar; /* kakeya_text.h */

/* Everything that the event points to is valid only during the call. Return false to stop after this token, which is
 * then the timeline's last; the value returned for a FINISH event is ignored. The callback must not use the session,
 * but may cancel it. */
typedef bool (*kakeya_event_fn)(void *user, const kakeya_event *event);

/* Added to the logit of a token before anything else is done to it; -INFINITY: the token is never chosen. */
typedef struct kakeya_logit_bias {
    int32_t token;
    float bias; /* finite or -INFINITY */
} kakeya_logit_bias;

/* Constrained decoding: says which tokens may follow tokens[0..n). `allowed` holds n_words words, all zero on entry;
 * bit t % 32 of word t / 32 allows token t, and bits past the end of the vocabulary are ignored. Return true after
 * setting bits, or false if every token is allowed. Called once for every generated token, in order of position,
 * whatever the mode and the draft length. Generation fails if no token is left to choose. The callback must not use the
 * session, but may cancel it. */
typedef bool (*kakeya_token_mask_fn)(void *user, const int32_t *tokens, size_t n, uint32_t *allowed, size_t n_words);

struct kakeya_generate_options {
    size_t size;
    int max_tokens; /* 0: until the context is full */
    kakeya_mode mode;
    /* Tokens drafted per block after the bonus token, 1..16: the exact number in the fixed modes, the maximum in auto.
     * 0: the drafter's block size - 1; in auto 16, of which the drafter proposes at most block size - 1, look-up in the
     * text the rest. */
    int draft_length;
    kakeya_sampling sampling;
    const char *const *stop_strings; /* n_stop_strings texts that end the answer and are not part of it */
    size_t n_stop_strings;
    bool ignore_stop_tokens;
    kakeya_event_fn on_event;  /* may be NULL */
    void *user;                /* for on_event */
    bool log_probabilities;    /* report them in events; needs the whole head, a greedy choice only half of it */
    int top_log_probabilities; /* also of the 0..KAKEYA_MAX_TOP_LOG_PROBABILITIES most likely; implies the above */
    const kakeya_logit_bias *logit_bias; /* n_logit_bias entries; those of the same token add up */
    size_t n_logit_bias;
    kakeya_token_mask_fn token_mask; /* may be NULL */
    void *token_mask_user;
    const kakeya_grammar *grammar; /* constrains the answer from answer_start on; must outlive it. NULL: none */
    /* Subtracted from the logits of tokens that already occur in the answer, after the repetition penalty:
     * presence_penalty once, frequency_penalty once per occurrence. Finite; 0: off. The answer begins at position
     * answer_start of the timeline, so that an interrupted one can be continued, also under a grammar; 0: with this
     * call. */
    float presence_penalty, frequency_penalty;
    size_t answer_start;
    /* n_prediction tokens that the answer is expected to resemble; used as drafts in modes that draft from text. They
     * must outlive the answer. */
    const int32_t *prediction;
    size_t n_prediction;
    bool without_calls; /* never choose the token that begins a tool call; unlike a bias, this costs nothing */
};

/* --------------------------------------------------------------------------------------------- what comes back */

typedef enum kakeya_finish {
    KAKEYA_FINISH_NONE = 0,
    KAKEYA_FINISH_STOP,      /* stop token or stop string */
    KAKEYA_FINISH_LENGTH,    /* max_tokens or the context's end */
    KAKEYA_FINISH_CANCELLED, /* the callback returned false, or kakeya_session_cancel */
    KAKEYA_FINISH_FAILED,    /* the call returned an error */
} kakeya_finish;

typedef enum kakeya_event_type {
    KAKEYA_EVENT_TOKEN = 0,
    KAKEYA_EVENT_FINISH,
} kakeya_event_type;

struct kakeya_stats {
    size_t size;
    size_t prompt_tokens, reused_tokens, completion_tokens;
    double prefill_seconds, decode_seconds;
    uint64_t verifier_forwards; /* decode forwards; tokens per forward = completion_tokens / verifier_forwards */
    uint64_t drafted_tokens, accepted_tokens;
    uint64_t drafted_at[32], accepted_at[32]; /* by draft position, 0 = first draft after the bonus token */
    double draft_seconds, verify_seconds;
    kakeya_finish finish;
    uint64_t waits;           /* how often the request was preempted and waited for memory in a file */
    uint64_t grammar_redraws; /* tokens that were drawn and then rejected by the grammar */
    uint64_t grammar_masks;   /* positions at which the grammar had to check the whole vocabulary */
    uint64_t prediction_drafted, prediction_accepted; /* the drafts from options.prediction */
};

typedef struct kakeya_log_probability {
    int32_t token;
    double log_probability; /* natural logarithm, at most 0 but for rounding */
} kakeya_log_probability;

/* What happens while an answer is generated. `size` is the number of bytes that the library fills; a program that may
 * run with an older library checks it before reading newer fields. Ignore types that you do not know. */
struct kakeya_event {
    size_t size;
    kakeya_event_type type;

    /* KAKEYA_EVENT_TOKEN: one generated token, in order. `text` holds the UTF-8 characters that it completes, possibly
     * none; NULL without a tokenizer; not NUL-terminated. Text that may begin a stop string is held back until later
     * tokens decide; a token whose text is undecided is itself delivered only when the next token or the end is known.
     * A stop token is not delivered. */
    int32_t token;
    size_t position; /* of the token in the timeline */
    const char *text;
    size_t text_bytes;

    /* KAKEYA_EVENT_FINISH: the last event of every generation that began, failures included. */
    kakeya_finish finish;
    int32_t stop_token;        /* the token that ended the answer; -1: none did */
    int32_t stop_string;       /* index of the stop string that ended the answer; -1: none did */
    const kakeya_error *error; /* with KAKEYA_FINISH_FAILED: what the call returns; otherwise NULL */

    /* If requested, with KAKEYA_EVENT_TOKEN, and with FINISH if there is a stop_token: log-probabilities of the token
     * and of the most likely tokens at its position, highest first, ties by lowest id. They are the model's own:
     * softmax at temperature 1 of the logits after soft-capping, before penalties, biases, masks and filters. Error: at
     * most 4e-6. */
    double log_probability;            /* NaN if not requested */
    const kakeya_log_probability *top; /* n_top entries */
    size_t n_top;

    /* Counts so far: forwards, drafted and accepted tokens of the completed blocks. A block's tokens are delivered
     * before it is complete; times are filled in at the answer's end. */
    const kakeya_stats *stats;
};

/* ---------------------------------------------------------------------------------------------- text and media */

#include "kakeya_text.h"

#include "kakeya_sound.h"

#include "kakeya_image.h" /* pictures, and what prompts hold of both */

/* ----------------------------------------------------------------------------------------------- names, memory */

KAKEYA_API const char *kakeya_version(void); /* "0.3.0"; of the library, which may be newer than this header */

/* What allocated memory holds. Mapped files are not allocations. */
typedef enum kakeya_memory_kind {
    KAKEYA_MEMORY_WEIGHTS = 0,
    KAKEYA_MEMORY_KV_FULL,    /* full-attention layers: exact K/V */
    KAKEYA_MEMORY_KV_SLIDING, /* sliding layers: exact K/V */
    KAKEYA_MEMORY_KV_LATENT,  /* f_theta latents and their norms */
    KAKEYA_MEMORY_KV_DRAFT,   /* drafter context K/V */
    KAKEYA_MEMORY_WORKSPACE,  /* activations, logits, tokens */
} kakeya_memory_kind;

/* Names as the command line spells them: "ok", "f32", "sink-window", "speculative", "stop", "kv.full". NULL for a value
 * that this library does not know, so that `for (i = 0; kakeya_mode_name((kakeya_mode)i); i++)` visits them all. */
KAKEYA_API const char *kakeya_status_name(kakeya_status status);
KAKEYA_API const char *kakeya_precision_name(kakeya_precision precision);
KAKEYA_API const char *kakeya_kv_format_name(kakeya_kv_format format);
KAKEYA_API const char *kakeya_attention_name(kakeya_attention attention);
KAKEYA_API const char *kakeya_restore_layers_name(kakeya_restore_layers layers);
KAKEYA_API const char *kakeya_vision_name(kakeya_vision vision);
KAKEYA_API const char *kakeya_mode_name(kakeya_mode mode);
KAKEYA_API const char *kakeya_finish_name(kakeya_finish finish);
KAKEYA_API const char *kakeya_event_name(kakeya_event_type type);
KAKEYA_API const char *kakeya_memory_name(kakeya_memory_kind kind);

KAKEYA_API void kakeya_free(void *pointer);

/* Bytes of K/V memory that a session uses, or would use. */
typedef struct kakeya_kv_bytes {
    size_t size;
    size_t full, sliding, latent, draft, total;
    size_t each_token; /* permanent growth with every token */
    size_t shared;     /* part of total: is, or was, shared with forks. The engine counts it, once for all of them */
} kakeya_kv_bytes;

/* ------------------------------------------------------------------------------------------------ engine */

KAKEYA_API int kakeya_engine_vocab_size(const kakeya_engine *engine);
KAKEYA_API int kakeya_engine_hidden_size(const kakeya_engine *engine);
KAKEYA_API int kakeya_engine_layers(const kakeya_engine *engine);
KAKEYA_API int kakeya_engine_max_context(const kakeya_engine *engine);
/* Owned by the engine and valid as long as it is open; NULL if the model has none, or if `engine` is NULL. */
KAKEYA_API const kakeya_tokenizer *kakeya_engine_tokenizer(const kakeya_engine *engine);
KAKEYA_API bool kakeya_engine_has_tokenizer(const kakeya_engine *engine);
KAKEYA_API bool kakeya_engine_has_drafter(const kakeya_engine *engine);
KAKEYA_API bool kakeya_engine_has_f_theta(const kakeya_engine *engine);
/* True if the f_theta's report says that restoring with it is worse than dropping on held-out text; a note says so. */
KAKEYA_API bool kakeya_engine_f_theta_loses(const kakeya_engine *engine);
KAKEYA_API int kakeya_engine_drafter_block_size(const kakeya_engine *engine);     /* 0 without drafter */
KAKEYA_API const char *kakeya_engine_backend(const kakeya_engine *engine);        /* e.g. "cpu/avx512" */
KAKEYA_API kakeya_precision kakeya_engine_precision(const kakeya_engine *engine); /* never AUTO */
KAKEYA_API bool kakeya_engine_is_stop_token(const kakeya_engine *engine, int32_t token);

/* The i-th note for the user (skipped tensors, a chat template that was not understood, an f_theta that is worse than
 * dropping); NULL after the last. */
KAKEYA_API const char *kakeya_engine_note(const kakeya_engine *engine, size_t i);
KAKEYA_API const char *kakeya_engine_chat_template(const kakeya_engine *engine); /* never executed; "": none */

/* Bytes of this kind that the engine and all its sessions have allocated now. */
KAKEYA_API size_t kakeya_engine_memory(const kakeya_engine *engine, kakeya_memory_kind kind);
/* The part of these bytes that is one layer's K/V (0, 1, ...): a full-attention or sliding layer of the verifier, or a
 * layer of the drafter (KAKEYA_MEMORY_KV_DRAFT). 0 if the layer has none of that kind, and on backends that count by
 * kind only (GPUs). */
KAKEYA_API size_t kakeya_engine_layer_memory(const kakeya_engine *engine, kakeya_memory_kind kind, int layer);
/* Bytes that the K/V memory of all sessions may occupy in total, including what it occupies now: the part of the memory
 * limit that is left after everything else or, without a limit, of the memory that the device can provide. 0: unknown.
 */
KAKEYA_API size_t kakeya_engine_kv_room(const kakeya_engine *engine);
/* Memory of sessions without a request has been given back, or can be: requests that are short of some ask for it
 * again. After KAKEYA_RELIEF_LATER; from any thread. */
KAKEYA_API void kakeya_engine_relieved(kakeya_engine *engine);

/* Weights under weights_limit_bytes: zeros without one. Counts since the engine was opened. Any thread may ask. */
typedef struct kakeya_weights {
    size_t size;
    size_t limit;            /* bytes */
    size_t resident;         /* bytes of it for the weights that every token needs */
    size_t slot_bytes;       /* memory of one routed expert */
    size_t slots, experts;   /* routed experts of all layers: how many fit into memory, and how many there are */
    uint64_t wanted, found;  /* experts that forwards needed, and those of them that were in memory */
    uint64_t bytes_read;     /* for those that were not */
    uint64_t failures;       /* forwards that failed because experts could not be read */
    bool failing;            /* the last read failed: so will answers, until one succeeds */
    double read_seconds;     /* time that forwards waited for reads */
    const char *read_method; /* "io_uring, direct", "threads, through the page cache" and the like; NULL: none */
    size_t host_bytes;       /* on a GPU: page-locked memory of the host for all experts, beside the limit; else 0 */
} kakeya_weights;

KAKEYA_API void kakeya_engine_weights_sized(const kakeya_engine *engine, kakeya_weights *out);
static inline kakeya_weights kakeya_engine_weights(const kakeya_engine *engine) {
    kakeya_weights weights;
    weights.size = sizeof weights;
    kakeya_engine_weights_sized(engine, &weights);
    return weights;
}

KAKEYA_API size_t kakeya_engine_spilled_bytes(const kakeya_engine *engine); /* of preempted sessions, in files */

/* ----------------------------------------------------------------------------------------------- session */

/* The same with pictures and sounds: the i-th picture among n_media takes the place of the i-th run of
 * kakeya_engine_image_token in `tokens`, the i-th sound that of the i-th run of kakeya_engine_sound_token. Returns
 * KAKEYA_INVALID_ARGUMENT if the number of runs, or the length of one, does not match. Both are copied. The reused
 * prefix ends before the first picture that differs in a pixel, or sound that differs in a sample. */
KAKEYA_API kakeya_status kakeya_session_sync_media(kakeya_session *session, const int32_t *tokens, size_t n,
                                                   const kakeya_media *media, size_t n_media, size_t *reused,
                                                   kakeya_progress_fn progress, void *user, kakeya_error *error);

/* Stops what the session is doing. May be called from any thread, also from a callback, at any time between opening and
 * closing. A running sync or score returns KAKEYA_CANCELLED after the current prompt chunk; a running generate ends
 * with KAKEYA_FINISH_CANCELLED after the current block. The session stays usable and continues from there. If nothing
 * is running, the next sync, score or generate is cancelled before it computes anything, so that no cancel is lost
 * between two calls. A call consumes all cancels that came before it returned. */
KAKEYA_API void kakeya_session_cancel(kakeya_session *session);
KAKEYA_API void kakeya_session_clear_cancel(kakeya_session *session); /* drops one not consumed yet */

/* The session's request computes nothing from the next step on, until kakeya_session_resume: for an answer whose reader
 * is slow. Tokens of the step under way are still delivered. Meanwhile it takes no place of max_batch, and if others
 * need its memory, it waits in a temporary file. A cancel ends it all the same. From any thread, also from callbacks; a
 * pause ends with its request. */
KAKEYA_API void kakeya_session_pause(kakeya_session *session);
KAKEYA_API void kakeya_session_resume(kakeya_session *session);

/* The timeline's tokens, synced and generated; may be NULL if none. Valid until the next call on the session. */
KAKEYA_API const int32_t *kakeya_session_tokens(const kakeya_session *session, size_t *n);

/* Writes the keys (kakeya_prompt_keys) of these tokens to the caller's `keys`, [n] as in kakeya_session_tokens. */
KAKEYA_API void kakeya_session_keys(const kakeya_session *session, int32_t *keys);
/* The number of pictures and sounds among them. If it is 0, the keys are the tokens. */
KAKEYA_API size_t kakeya_session_images(const kakeya_session *session);

/* The length of the longest prefix of tokens[0..n), keys if there are pictures, that the timeline begins with and can
 * be truncated to without cutting a picture; 0 if its memory cannot go back that far. These tokens are not computed
 * again, with one exception, the newest token of an answer: if nothing has followed it yet, it does not count; if the
 * answer is cut there, under a bounded policy or on a backend with separate kernels for prompts, it is computed again
 * with what follows. */
KAKEYA_API size_t kakeya_session_reachable(const kakeya_session *session, const int32_t *tokens, size_t n);
/* Cuts the timeline to its first n tokens. It continues as it did when it had n tokens, under every attention policy:
 * an answer that is cut counts as having ended there. Nothing is computed. Returns KAKEYA_INVALID_ARGUMENT and changes
 * nothing if there are fewer tokens, or if memory cannot go back that far; 0 is always possible. */
KAKEYA_API kakeya_status kakeya_session_truncate(kakeya_session *session, size_t n, kakeya_error *error);

/* ---------------------------------------------------------------------------------------------- requests */

/* A request does the same without waiting. To use a machine well, submit many at once, for different sessions. */
typedef struct kakeya_request kakeya_request;

/* Called once for every submitted request, as its last callback, on the thread that computes. The request is then done:
 * kakeya_request_wait computes nothing and does not wait for others. */
typedef void (*kakeya_done_fn)(void *user);

/* Receives a session, which the callee then owns. Called on the thread that computes: all requests wait until it
 * returns. */
typedef void (*kakeya_session_fn)(void *user, kakeya_session *session);

typedef struct kakeya_request_options {
    size_t size;
    const int32_t *tokens; /* the prompt, n_tokens ids, applied as by kakeya_session_sync; NULL: none */
    size_t n_tokens;
    const kakeya_generate_options *generate; /* the answer after them; NULL: none */
    kakeya_progress_fn progress;             /* of the prompt; may be NULL */
    void *progress_user;
    kakeya_done_fn on_done; /* may be NULL */
    void *done_user;
    /* on_prompt_copy receives a copy of the session (kakeya_session_fork) for later prompts that begin alike: made at
     * the end of the prompt, before the answer's first token, and cut to its first prompt_copy_tokens tokens. Best
     * effort: no copy is made if memory is short, or if more than 16 tokens would be cut off. 0 or NULL: none. */
    size_t prompt_copy_tokens;
    kakeya_session_fn on_prompt_copy;
    void *prompt_copy_user;
    uint64_t arrival; /* kakeya_request_arrival of an earlier request, whose place in the queue this one takes: it
                         comes before all that have arrived since. 0: it arrives now */
    /* Pictures of the prompt, as in kakeya_session_sync_media, but not copied: keep them until the request is done. */
    const kakeya_media *media;
    size_t n_media;
} kakeya_request_options;

/* Queues a request and returns. Arrays are copied; callbacks and what they point to must stay valid until the request
 * is done. A session has at most one request at a time (KAKEYA_INVALID_ARGUMENT otherwise), and until it is done no
 * function but kakeya_session_cancel, _pause and _resume may be called on the session. Requests begin in order of
 * arrival, when their K/V memory fits beside that of the requests under way; one that wants an answer also needs one of
 * max_batch places. A request whose memory does not fit holds up all later ones; one that only waits for a place lets
 * requests without an answer pass. Where memory is short, idle sessions give way first (kakeya_engine_options.relieve),
 * then requests that are paused, then the one that arrived last: it is preempted, and waits in a temporary file until
 * there is room. kakeya_request_wait must be called and frees *out. */
KAKEYA_API kakeya_status kakeya_session_submit(kakeya_session *session, const kakeya_request_options *options,
                                               kakeya_request **out, kakeya_error *error);
KAKEYA_API bool kakeya_request_is_done(kakeya_request *request);
/* The request's place in the queue: above those of all requests submitted to the engine before, unless its options gave
 * it one of theirs. Valid until kakeya_request_wait. */
KAKEYA_API uint64_t kakeya_request_arrival(const kakeya_request *request);
KAKEYA_API void kakeya_request_cancel(kakeya_request *request); /* as kakeya_session_cancel */
/* Waits until the request is done, returns its status and frees it. stats may be NULL. Called from a callback, it
 * returns KAKEYA_INVALID_ARGUMENT and the request continues. */
KAKEYA_API kakeya_status kakeya_request_wait(kakeya_request *request, kakeya_stats *stats, kakeya_error *error);

/* ---------------------------------------------------------------------------------------- memory of a session */

/* Bytes of this kind that the session has allocated now and that closing it frees. Memory that it shares with forks is
 * counted for the engine only. */
KAKEYA_API size_t kakeya_session_memory(const kakeya_session *session, kakeya_memory_kind kind);

KAKEYA_API void kakeya_session_kv_bytes_sized(const kakeya_session *session, kakeya_kv_bytes *out);
static inline kakeya_kv_bytes kakeya_session_kv_bytes(const kakeya_session *session) {
    kakeya_kv_bytes bytes;
    bytes.size = sizeof bytes;
    kakeya_session_kv_bytes_sized(session, &bytes);
    return bytes;
}

/* Makes an independent copy of the timeline. Full pages of K/V memory that grows with the text are shared and copied on
 * write: 64 positions on a CPU, 2 MB of a layer's keys or values on a GPU. Everything else is copied at once. */
KAKEYA_API kakeya_status kakeya_session_fork(const kakeya_session *session, kakeya_session **out, kakeya_error *error);

/* Moves the K/V memory to an unnamed temporary file and frees it. The next request reads it back and gives the same
 * tokens as without parking; if there is no memory, it fails with KAKEYA_OUT_OF_MEMORY and the session stays parked. A
 * session may also be left parked by any other request that fails with KAKEYA_OUT_OF_MEMORY, or that is cancelled while
 * it waits. A parked session can only be asked for its tokens, saved and closed. */
KAKEYA_API kakeya_status kakeya_session_park(kakeya_session *session, kakeya_error *error);
KAKEYA_API bool kakeya_session_is_parked(const kakeya_session *session);

/* --------------------------------------------------------------------------------------------- persistence */

/* Writes the next bytes of a stream. Return false if they cannot be written: the call then fails with KAKEYA_IO. */
typedef bool (*kakeya_write_fn)(void *user, const void *data, size_t bytes);
/* Reads at least one and at most `bytes` bytes and returns their number; 0 if the stream ends or cannot be read. */
typedef size_t (*kakeya_read_fn)(void *user, void *data, size_t bytes);

/* Writes the whole state of a session as a stream of kakeya_session_save_bytes bytes: tokens, K/V memory, and whatever
 * is needed to continue with the same tokens, in this process or another. No second copy is held in memory. While a
 * callback writes or reads bytes, the engine's other sessions wait; it must not use them. Between two calls of it they
 * go on, after a sixth of max_stall_ms at the latest. */
KAKEYA_API kakeya_status kakeya_session_save(const kakeya_session *session, kakeya_write_fn write, void *user,
                                             kakeya_error *error);
KAKEYA_API uint64_t kakeya_session_save_bytes(const kakeya_session *session);
/* Replaces the session's state with one saved by a session with the same model, attention policy and K/V format; the
 * context may be larger or smaller, as long as the tokens fit. Reads exactly the bytes that were written. If the stream
 * is damaged, truncated or of another model, the session is left as it was; its old memory is kept until everything has
 * been read. */
KAKEYA_API kakeya_status kakeya_session_load(kakeya_session *session, kakeya_read_fn read, void *user,
                                             kakeya_error *error);
/* The same, but the K/V memory goes to a temporary file, as by kakeya_session_park: for a session that there is no
 * memory for now. The next request reads it back. */
KAKEYA_API kakeya_status kakeya_session_load_parked(kakeya_session *session, kakeya_read_fn read, void *user,
                                                    kakeya_error *error);
/* The part of the last load's seconds in which it waited for the engine's other sessions; 0: nothing was loaded. */
KAKEYA_API double kakeya_session_load_waited(const kakeya_session *session);

/* Two numbers that tell whether a session can load a saved one, without reading it: both must be equal to those of the
 * session that was saved. The fingerprint covers the models and the precision; the policy covers attention, the K/V
 * format and the drafter's context. */
KAKEYA_API uint64_t kakeya_engine_fingerprint(const kakeya_engine *engine);
KAKEYA_API uint64_t kakeya_session_policy(const kakeya_session *session);

/* The same with a file. It is written under another name and renamed at the end, so it is never seen half written. */
KAKEYA_API kakeya_status kakeya_session_save_file(const kakeya_session *session, const char *path, kakeya_error *error);
KAKEYA_API kakeya_status kakeya_session_load_file(kakeya_session *session, const char *path, kakeya_error *error);

#ifdef __cplusplus
}
#endif

#endif
