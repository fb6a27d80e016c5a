/* What benchmarks and evaluations ask of a backend beside inference: what the device allows, where a step spends its
 * time, diagnostics of restored attention, and weights that are made up. A second table beside backend_ops, whose
 * objects it shares; nothing that serves a user calls it. */
#ifndef KAKEYA_BACKEND_MEASURE_H
#define KAKEYA_BACKEND_MEASURE_H

#include "backend/backend.h"
#include "backend/program/program.h"

/* What the device allows, measured now with the model's own threads and kernels: the bounds of the benchmark. */
typedef struct backend_probe {
    double read_bytes_per_second; /* over memory far larger than every cache */
    double flops_per_second; /* the matrix product's inner instruction on registers, a multiply-add counted as 2; on
                                integers where products are (precision int8) */
    int threads;
} backend_probe;

/* One kernel in one part of the model, over the launches of a decode step of one row. */
enum { BACKEND_PROFILE_NAME = 40, BACKEND_MAX_PROFILE_ROWS = 64 };
typedef struct backend_profile_row {
    char kernel[BACKEND_PROFILE_NAME], part[BACKEND_PROFILE_NAME];
    int launches;
    double seconds;    /* of all of them, each measured alone: the sum of the launches' medians */
    double bytes;      /* that they must read; 0: what they move has been counted, or is next to nothing */
    double operations; /* that they must do */
} backend_profile_row;

typedef struct backend_profile {
    backend_profile_row row[BACKEND_MAX_PROFILE_ROWS]; /* in the order of their first launch */
    int n;
    double step_seconds;  /* of the whole step as decoding runs it: median */
    double empty_seconds; /* of a kernel that does nothing, measured like the others */
} backend_profile;

/* The device that a model is on, and what the library beneath the backend has allocated on it. */
typedef struct backend_device {
    char name[96];            /* "" where it has none */
    size_t memory_bytes;      /* that the device has; 0: it does not say */
    size_t working_set_bytes; /* of them, what programs should use at most; 0: it does not say */
    size_t held_bytes;        /* by the library's own count, now */
    size_t most_bytes;        /* since the last forward began */
} backend_device;

/* How a backend that has several ways for an operation has chosen when the model was loaded. */
enum { BACKEND_MAX_CHECKS = 64 };
typedef struct backend_check {
    char operation[48]; /* and the shape that was tried */
    char chosen[32];
    bool first_choice; /* false: a way that is preferred failed its check */
    char reason[96];   /* "", or why it did */
} backend_check;

/* What a model's forwards have cost beside their kernels since it was made. */
typedef struct backend_forwards {
    uint64_t graphs; /* captured */
    double graph_seconds;
    uint64_t gaps; /* between forwards that followed each other while they were watched: from the end of the last kernel
                      to the begin of the next one's first */
    double gap_seconds, longest_gap_seconds;
} backend_forwards;

/* What stands between a model and its stores while formats of K/V are compared: every vector (K or V of one head at one
 * position) of full-attention layers that keep their own passes `vector` before it is stored; x [n] is what will be
 * attended. One call at a time, layer by layer. */
typedef struct backend_recoding {
    void (*vector)(void *user, int layer, float *x, int n);
    void *user;
} backend_recoding;

/* Verbs that may be NULL say what their absence means. */
typedef struct backend_measure_ops {
    /* model_create makes values for matrices that have a `synthetic` deviation instead of data (backend/synthetic.h).
     */
    bool makes_weights;
    /* Bytes of the head that a greedy choice reads, where it needs no whole head. NULL: always the whole. */
    size_t (*greedy_head_bytes)(const backend_model *model);
    /* The same of a draft of an assistant whose head has no clusters. */
    size_t (*assistant_head_bytes)(const backend_model *model);
    /* Devices that share the model: to each its K/V heads, while latents and the drafter's context are held by all.
     * NULL: one. */
    int (*devices)(const backend_model *model);
    /* Bytes that stores which grow take from a device at a time. NULL: every page is an allocation of its own. */
    size_t (*page_granule)(const backend_model *model);
    /* Bytes that the device could still give, whatever the account's limit says; 0: it does not tell. A model of NULL:
     * the device that a new model would be on. */
    size_t (*free_bytes)(const backend_model *model);
    /* Bytes of k activations as this machine's products with weights of a format take them; exact_too: and as those
     * take them that round nothing. NULL: told with a model alone. */
    size_t (*input_bytes)(weight_format format, size_t k, bool exact_too);
    /* Backend cpu: of keys that are kept for the session computed last, if it restores (restored_keys.h). */
    size_t (*restored_key_bytes)(const model_config *config);
    /* The same: of workspace while the rows of a picture are computed that has so many patches, at most `side` of them
     * next to each other. format: of the tower's matrices. */
    size_t (*image_bytes)(const struct vision_model *vision, weight_format format, int patches, int side, int threads);
    /* The same of a sound of so many samples. NULL: this backend reads none. */
    size_t (*sound_bytes)(const struct audio_model *audio, weight_format format, size_t samples);
    kakeya_status (*probe)(backend_model *model, backend_probe *out, kakeya_error *error);
    /* Bytes per second of reads of experts, of a model whose weights are bounded. NULL: none is. */
    kakeya_status (*probe_weights)(backend_model *model, double *bytes_per_second, kakeya_error *error);
    /* Of a model whose weights are to be bounded on a device, which keeps experts in the host's memory: bytes of what
     * every token needs and of the largest expert, as the device has them, and bytes per second of copies from the
     * host. NULL: weights lie as in the model's files, and come from there. */
    kakeya_status (*bounded_needs)(const language_model *verifier, mem_account *account, size_t *resident,
                                   size_t *expert, double *bytes_per_second, kakeya_error *error);
    /* The same as probe of a model with these options that is not there: precision, isa, threads and account are read.
     * NULL: rates are measured with a model alone. */
    kakeya_status (*probe_machine)(const backend_model_options *options, backend_probe *out, kakeya_error *error);
    /* How the backend runs the verifier's list of operations: of prompt rows, or of decode rows, where the two have
     * lists of their own (its `rows`). NULL: it has none. */
    const program_machine *(*machine)(bool prompt);
    /* NULL: nothing is known beside free_bytes. */
    void (*device)(const backend_model *model, backend_device *out);
    /* Fills out [BACKEND_MAX_CHECKS] and returns how many there are. NULL: every operation has one way. */
    int (*checks)(const backend_model *model, backend_check *out);
    /* Computes `token` behind the cache's committed rows many times and drops it again. NULL: the backend has no
     * kernels of its own that it could tell apart. */
    kakeya_status (*profile)(backend_cache *cache, int32_t token, int repeats, backend_profile *out,
                             kakeya_error *error);
    /* From now on the evicted K/V of an empty cache under `restored` are mixed in pre-norm space as
     * alpha * own + (1 - alpha) * f_theta: 0 is plain restoration, 1 puts own K/V back. Own raw K/V of every position
     * are then kept (tag kv.latent), so such a cache is not bounded; it cannot be forked or snapshot. NULL: the backend
     * cannot do it. */
    kakeya_status (*cache_mix_own)(backend_cache *cache, float alpha, kakeya_error *error);
    /* Relative MSE of f_theta's K/V against own K/V over evicted positions, by layer type; after cache_mix_own. NULL
     * with it. */
    kakeya_status (*cache_restoration_error)(const backend_cache *cache, double relative_mse[2], kakeya_error *error);
    /* What forwards have cost beside their kernels; waits for what is not known yet. NULL: the backend has no kernels
     * of its own. watch_forwards (NULL with it): whether gaps are measured from now on. */
    void (*watch_forwards)(backend_model *model, bool on);
    void (*forwards)(backend_model *model, backend_forwards *out);
    /* From now on, for all caches of the model, until it is called with NULL; `recoding` outlives that. NULL: the
     * backend cannot do it. */
    void (*recode)(backend_model *model, const backend_recoding *recoding);
} backend_measure_ops;

/* The table beside that of a backend; NULL where it has none. */
const backend_measure_ops *backend_measure_find(const backend_ops *ops);

#endif
