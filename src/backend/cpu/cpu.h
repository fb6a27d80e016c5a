/* The model of the CPU backend with its workspace. The rooms that work on it:
 *
 *   model.c         creation, and the table of verbs        forward.h       the decoder layers over segments
 *   matrix.h        batches of matrix products              attention.h     flash attention over blocks of 16 keys
 *   experts.h       router and mixture of experts           head.h          logits and greedy choices
 *   rope.h          tables of cosines and sines             screen.h        int8 bounds of logits
 *   stores.h        kernels of stored rows                  cache.h         a cache and what follows its rows
 *   draft.h         rows and context of the drafter         block.h         drafting a block
 *   assistant.h     drafts of an MTP assistant
 *   latents.h       what the restoration's encoders give            token_latents.h their oldest source
 *   repack.h        weights in tiles, tile_file.h from a file  measure.c    benchmarks and diagnostics
 *   fine_layers.h   layers whose products round less
 *   bounded.h       weights under a limit
 *   train.c         the table of training                   train_taps.h    forwards with taps
 *   restoration_trainer.h distillation of a restoration            drafter_trainer.h training of a drafter
 *   backward.h      gradients of rows                       train_products.h exact products
 *   train_rows.h    rows of both kinds of drafters' trainers
 *   kernels.h       the inner loops, a table per instruction set */
#ifndef KAKEYA_BACKEND_CPU_CPU_H
#define KAKEYA_BACKEND_CPU_CPU_H

#include <string.h>

#include <pthread.h>
#include <stdbool.h>

#include "backend/backend.h"
#include "backend/bounded_rows.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/screen.h"
#include "backend/program/program.h"
#include "base/files.h"
#include "base/threads.h"

enum {
    CPU_PROMPT_ROWS = 512, /* rows of one forward: compute-bound on wide models, bounded by the workspace they cost */
    CPU_MEDIA_ROWS = 1152, /* the same with pictures and sounds: at most 1,120 rows, and never cut */
    CPU_MAX_ROWS = BOUNDED_ROWS_MOST,
    CPU_HEAD_ROWS = 64,          /* rows whose greedy choices are made in one go */
    CPU_ROPE_GROWTH = 1024,      /* positions by which RoPE tables grow */
    CPU_PARTITION_FULL = 256,    /* key positions of one independent flash state in full-attention layers */
    CPU_TILE_QUERIES = 64,       /* query rows (tokens x grouped heads) of one prompt attention tile, about */
    CPU_SERIAL_VALUES = 8192,    /* per-row work on so few values costs less than a fork and join */
    CPU_SERIAL_WEIGHTS = 8192,   /* so does a matrix product with so few weights */
    CPU_SERIAL_PRODUCTS = 65536, /* and so few multiply-adds */
};

/* cos/sin of position * inverse frequency, [position][pairs], grown on demand. */
typedef struct rope_table {
    int pairs, half;
    float *inverse_frequency; /* [pairs] */
    float *cosine, *sine;
    int positions;
} rope_table;

/* Packings of activations (cpu_packing) as a set, one bit each. */
typedef unsigned packing_set;

/* Rows of activations, packed in every form in which a matrix may want them. */
typedef struct packed_rows {
    void *data[PACKING_COUNT]; /* [rows], NULL where no matrix wants that form */
    int rows, k;               /* at most */
} packed_rows;

typedef struct thread_scratch {
    void *q_packed[2];   /* queries packed for stored keys, and for derived (float32) keys */
    float *key_block;    /* [16][max head_dim] derived or gathered keys */
    float *value_block;  /* [16][max head_dim] gathered or mixed values */
    float *latent_block; /* [16][rank] */
    void *latent_packed; /* 16 packed latents */
    int *lo, *hi;        /* [max query rows] */
    float *state[6];     /* flash states: partition exact, partition restored, totals (see attention.c) */
    float *row;          /* [max row length] */
} thread_scratch;

/* A head's int8 copy and what a greedy choice through it needs. */
typedef struct head_screen {
    bool ready; /* the lock is made */
    mem_spare spare;
    pthread_mutex_t lock; /* held while the copy is used, or given back to a session that needs its memory */
    screen_bounds bounds; /* NULL: not used */
    screen_matrix matrix;
    int8_t *codes; /* [CPU_HEAD_ROWS][matrix.steps * SCREEN_DEPTH] */
    screen_row row[CPU_HEAD_ROWS];
    int limit;          /* logits that a row computes at most; where more could be the largest, all are computed */
    int32_t *candidate; /* [CPU_HEAD_ROWS][limit] */
    float *logit;       /* of the candidates */
    int pause, backoff; /* after rows with too many candidates: calls that do without, doubled each time */
} head_screen;

struct backend_model {
    backend_model_options options;
    const model_config *config;
    const model_weights *weights; /* the file's, or own_weights */
    model_weights *own_weights;   /* with precision int8: fine_layers.h marks some, repack.h points them to tiles */
    unsigned char *tiles;         /* MEM_WEIGHTS: theirs, one behind the other, so that huge pages hold all of them */
    file_map tile_map;            /* what holds them instead (tile_file.h) */
    char *tile_path;              /* its file; NULL: there is none */
    struct bounded_weights *bounded; /* bounded.h; NULL: all weights are there */
    char note[256];                  /* "" or where the tiles are from */
    const cpu_kernels *kernels;
    thread_pool *pool;
    mem_account *account;
    cpu_input input; /* what happens to activations before a product */
    char description[64];

    int max_rows;       /* rows of one forward that the workspace has room for */
    int most_rows;      /* to which it can grow */
    int prompt_rows;    /* of a prompt's forward: at most most_rows */
    rope_table rope[2]; /* by layer_type */
    rope_table draft_rope;
    float embed_scale;

    /* workspace, [max_rows][...] float32 unless noted */
    float *h;         /* residual stream */
    float *x;         /* normed input of a product */
    float *q;         /* queries, later attention output */
    float *k, *v;     /* raw projections, [max kv_dim] */
    float *branch;    /* [hidden] output of a block before its post-norm */
    float *gate_up;   /* [2 * max intermediate] */
    float *x_experts; /* [hidden] */
    float *ple;       /* [layers * ple_width] */
    float *ple_gate;  /* [ple_width] */
    /* [CPU_HEAD_ROWS][head_stride]: logits, or bounds of them, of rows whose greedy choice is wanted, and of drafts */
    float *head_logits;
    int head_stride; /* vocab, rounded up to SCREEN_OUTPUTS */
    head_screen screen;
    float *router_logits;  /* [experts] */
    int *expert_of;        /* [experts_per_token] */
    float *expert_weight;  /* [experts_per_token] */
    int *expert_rows;      /* [max_rows * experts_per_token] slot -> row, grouped by expert */
    int *expert_slot;      /* [max_rows * experts_per_token] (row, rank) -> slot */
    int *expert_begin;     /* [experts + 1], and behind it room for a list of experts */
    float *expert_gate_up; /* [slots][2 * expert_intermediate] */
    float *expert_out;     /* [slots][hidden] */
    packed_rows packed, packed_moe, packed_slots, packed_act, packed_act_slots;
    void *chunk_k, *chunk_v;   /* K/V of the current layer's new rows in the stored type (float32-sized), + a block */
    int shared_sliding;        /* sliding layer whose K/V later layers attend too, -1: none; layers in between ... */
    void *shared_k, *shared_v; /* ... use chunk_k/v, so its new rows lie here until the forward ends */
    float *aux;                /* [max_rows][max_taps * hidden] */
    int max_taps;              /* layers that the drafter and the restoration read */
    float *partial;            /* flash states of partitions when one step is split over threads */
    size_t partial_floats;
    thread_scratch *scratch;                 /* [threads] */
    struct forward_taps *taps;               /* taps.h; NULL: nobody looks */
    const struct backend_recoding *recoding; /* backend/measure.h; NULL: vectors are stored as they are */
    int threads;
    struct matrix_job *jobs;
    int max_jobs;

    /* The verifier's forward as this machine runs it, of the shape that was wanted last. */
    program_op *ops;        /* [program_most_ops] */
    program_launch *launch; /* the same */
    int launches;           /* 0: none was made yet */
    program_shape shape;

    /* drafter workspace */
    float *d_state, *d_x, *d_q, *d_k, *d_v, *d_gate_up, *d_context; /* rows x ... */
    void *d_block_k, *d_block_v;
    packed_rows d_packed, d_packed_aux, d_packed_act;

    /* restoration workspace, rows x ... */
    float *latent_in, *latent_out; /* inputs of the encoders (aux hidden states); codes, then values of a layer */
    packed_rows packed_latent_in;
    struct assistant_space *assistant;           /* assistant.c; NULL: there is no assistant */
    struct restored_keys *_Atomic restored_keys; /* restored_keys.h; since the first cache that restores */
};

/* V of one head as attention sees it: the norm of values has no weight, and some models have none. out may be v. */
static inline void norm_values(const backend_model *m, const float *v, int head_dim, float *out) {
    if (!m->config->raw_values)
        m->kernels->rms_norm(v, NULL, head_dim, m->config->rms_eps, out);
    else if (out != v)
        memcpy(out, v, (size_t)head_dim * sizeof *out);
}

#endif
