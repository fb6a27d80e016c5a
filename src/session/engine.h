/* Inside of a kakeya_engine: models, tokenizer and the backend model that holds the weights. Immutable once open but
 * for the account's counters and the experience with drafts, which `turn` protects. */
#ifndef KAKEYA_SESSION_ENGINE_H
#define KAKEYA_SESSION_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "backend/timeline.h"
#include "decode/draft_control.h"
#include "kakeya_study.h"
#include "session/description.h"
#include "session/tokenizer.h"

enum { ENGINE_POLICIES = KAKEYA_ATTENTION_RESTORED + 1 };

enum { ENGINE_TURN_PLACES = 16 };

/* The right to use the backend. Threads that wait get it in the order in which they asked: the scheduler asks again and
 * again, and must not keep others out. Until the next one is awake somebody else may use it, but only once: on a busy
 * machine waking takes longer than most turns. */
typedef struct engine_turn {
    pthread_mutex_t mutex;
    pthread_cond_t next[ENGINE_TURN_PLACES]; /* who is the n-th to wait sleeps at place n % ENGINE_TURN_PLACES */
    unsigned long waited, served;            /* how many have had to wait, and how many of them do not any more */
    bool held, passed;                       /* passed: somebody did not wait for the next one */
} engine_turn;

struct kakeya_engine {
    const backend_ops *ops;
    backend_model *model;
    mem_account account;
    mem_ledger ledger; /* of the account */
    language_model *verifier;
    block_drafter_model *drafter;          /* NULL: none */
    assistant_model *assistant;            /* NULL: none */
    restoration_model *f_theta;            /* NULL: none */
    const char *plugin_note;               /* NULL or why a plugin beside the program is not used */
    char drafter_note[256];                /* "" or why a drafter beside the model is not used */
    char *drafter_sought, *f_theta_sought; /* where none was found: the places, for messages; NULL: not looked for */
    kakeya_tokenizer text;
    int32_t call_token;             /* the one that begins a call of a tool; -1: there is none */
    kakeya_description description; /* of the models above */
    kakeya_precision precision;
    uint64_t fingerprint;           /* of configurations and sampled weights: snapshots name it */
    engine_turn turn;               /* held around backend work; of the next two */
    int sessions;                   /* that are open */
    void *spare;                    /* memory for parking when all else is used up; NULL: none */
    char *spill_directory;          /* where parked sessions lie; NULL: where the system has room */
    _Atomic size_t spilled_bytes;   /* of their files */
    struct scheduler *scheduler;    /* session/scheduler.h; NULL until the first request */
    pthread_mutex_t scheduler_lock; /* of the pointer */
    int max_batch, max_stall_ms;    /* of the scheduler, resolved */
    int threads;                    /* of the host, as asked for: 0 is one per core */
    atomic_uint cancels;            /* of its sessions, so far */
    atomic_bool rests;              /* the scheduler has nothing to compute, and waits for scheduler_nudge */
    kakeya_relieve_fn relieve;      /* may be NULL */
    void *relieve_user;
    bool vision_off;               /* pictures are refused, whatever the model's files have */
    struct image_rows *image_rows; /* session/image_rows.h; NULL: none are kept */
    _Atomic uint64_t images_computed, image_rows_computed, sounds_computed, sound_rows_computed;
    kakeya_step_fn on_step; /* may be NULL */
    void *step_user;
    const volatile int *bytes_lost;               /* may be NULL */
    draft_experience experience[ENGINE_POLICIES]; /* by attention policy */
};

/* What an engine is made of; everything but ops and verifier may be NULL. */
typedef struct engine_parts {
    const backend_ops *ops;
    language_model *verifier;
    block_drafter_model *drafter;
    assistant_model *assistant;
    restoration_model *f_theta;
    kakeya_tokenizer text;
    kakeya_precision precision; /* AUTO follows the checkpoint */
    const char *cpu_isa;
    int threads;
    const int *devices; /* [n_devices]; 0: as the backend likes */
    int n_devices;
    bool drafter_scaled_embedding, drafter_block_bidirectional;
    size_t weights_limit;        /* 0: none */
    int max_batch, max_stall_ms; /* 0: defaults */
    kakeya_step_fn on_step;      /* may be NULL */
    void *step_user;
    const volatile int *bytes_lost; /* as in kakeya_engine_options */
    kakeya_progress_fn progress;
    void *user;
} engine_parts;

/* Opens an engine on any backend. The account that the parts were allocated from is the engine's, so an engine is
 * created empty first, then completed. Takes ownership of the parts, also on failure (kakeya_engine_close frees both).
 */
kakeya_status engine_create(size_t memory_limit_bytes, kakeya_engine **out, kakeya_error *error);
kakeya_status engine_complete(kakeya_engine *engine, const engine_parts *parts, kakeya_error *error);

/* Who drafts for sessions; of an engine that has a drafter. */
backend_drafter engine_drafter(const kakeya_engine *engine);
/* Its configurations, where there are such models. */
timeline_models engine_models(const kakeya_engine *engine);

/* KAKEYA_BACKEND where bytes of the model are gone: what was computed is worth nothing. */
kakeya_status engine_check(const kakeya_engine *engine, kakeya_error *error);

/* Of an engine without scheduler. */
void engine_free(kakeya_engine *engine);

void engine_turn_begin(kakeya_engine *engine);
void engine_turn_end(kakeya_engine *engine);
/* For work that may stop in the middle: once the turn has been held since *since (clock_seconds) for a part of what a
 * prompt may add to a step, whoever waits for it comes first. *since is then the time at which it was taken up again.
 * Seconds that the others had it. */
double engine_turn_share(kakeya_engine *engine, double *since);

/* Parking a session needs some memory where there is none left: under a limit it is set aside while several sessions
 * are open, and lent to parking and to what takes a session up again. Both need the turn. */
void engine_keep_spare(kakeya_engine *engine);
void engine_lend_spare(kakeya_engine *engine);

/* The file of a parked session, whose bytes the engine counts. Forgetting closes it; *file may be NULL. */
size_t engine_file_bytes(FILE *file);
void engine_forget_file(kakeya_engine *engine, FILE **file);

#endif
