/* What benchmarks and diagnostics ask of this backend: what the machine allows, measured with the model's own threads
 * and kernels, and restored K/V against the layer's own. */
#include "backend/measure.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/assistant.h"
#include "backend/cpu/bounded.h"
#include "backend/cpu/conformer.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/head.h"
#include "backend/cpu/int8.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/latents.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/restored_keys.h"
#include "backend/cpu/tower.h"
#include "base/clock.h"
#include "base/machine_memory.h"

/* ------------------------------------------------------------------------------------------------------ probes */

/* Far beyond any last-level cache, so that every read comes from memory. */
static const size_t probe_buffer_bytes = (size_t)512 << 20;
/* Smallest share of the buffer that a thread takes at a time; probe_read wants multiples of 4,096. */
static const size_t probe_piece_bytes = (size_t)1 << 20;
/* Long enough that starting the threads does not count, short enough to be repeated beside every measurement. */
static const double probe_flops_seconds = 0.005;
/* The fastest of these counts: what the machine allows, not what a disturbance left of it. */
static const int probe_repeats = 4;

typedef struct read_probe {
    const cpu_kernels *kernels;
    const unsigned char *data;
    float checksum[THREAD_POOL_MAX];
} read_probe;

/* Fresh memory is one shared page of zeros until it is written; reading that would measure a cache. */
static void write_pieces(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    memset((unsigned char *)context + begin * probe_piece_bytes, 1, (end - begin) * probe_piece_bytes);
}

static void read_pieces(void *context, size_t begin, size_t end, int thread) {
    read_probe *probe = context;
    probe->checksum[thread] +=
        probe->kernels->probe_read(probe->data + begin * probe_piece_bytes, (end - begin) * probe_piece_bytes);
}

typedef struct flops_probe {
    const cpu_kernels *kernels;
    bool round;
    const int8_kernels *int8; /* NULL: products are of floating-point numbers */
    size_t iterations;
    double operations[THREAD_POOL_MAX];
} flops_probe;

static void run_operations(void *context, int thread, int threads) {
    (void)threads;
    flops_probe *probe = context;
    probe->operations[thread] = probe->int8 ? probe->int8->probe(probe->iterations)
                                            : probe->kernels->probe_flops(probe->round, probe->iterations);
}

static double seconds_of_operations(thread_pool *pool, flops_probe *probe) {
    double start = clock_seconds();
    thread_pool_run(pool, run_operations, probe);
    return clock_seconds() - start;
}

/* Reads the model's kernels, threads, input and account, and nothing else of it. */
static kakeya_status cpu_probe(backend_model *m, backend_probe *out, kakeya_error *error) {
    int threads = thread_pool_size(m->pool);
    unsigned char *buffer = mem_alloc(m->account, MEM_WORKSPACE, probe_buffer_bytes);
    if (!buffer) {
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the bandwidth probe reads %zu bytes",
                         probe_buffer_bytes);
    }
    thread_pool_for(m->pool, probe_buffer_bytes / probe_piece_bytes, 1, write_pieces, buffer);
    read_probe reading = {.kernels = m->kernels, .data = buffer};
    double fastest = 0;
    for (int i = 0; i < probe_repeats; i++) {
        double start = clock_seconds();
        thread_pool_for(m->pool, probe_buffer_bytes / probe_piece_bytes, 1, read_pieces, &reading);
        double rate = (double)probe_buffer_bytes / (clock_seconds() - start);
        if (rate > fastest) fastest = rate;
    }
    mem_free(buffer);
    out->read_bytes_per_second = fastest;

    flops_probe computing = {.kernels = m->kernels, .round = m->input == INPUT_BF16, .iterations = 1000};
    if (m->input == INPUT_INT8) computing.int8 = int8_of(m->kernels);
    while (seconds_of_operations(m->pool, &computing) < probe_flops_seconds && computing.iterations < SIZE_MAX / 2) {
        computing.iterations *= 2; /* wakes the threads and finds a run that is long enough */
    }
    fastest = 0;
    for (int i = 0; i < probe_repeats; i++) {
        double seconds = seconds_of_operations(m->pool, &computing), operations = 0;
        for (int t = 0; t < threads; t++) operations += computing.operations[t];
        if (operations / seconds > fastest) fastest = operations / seconds;
    }
    out->flops_per_second = fastest;
    out->threads = threads;
    return KAKEYA_OK;
}

static kakeya_status cpu_probe_machine(const backend_model_options *options, backend_probe *out, kakeya_error *error) {
    backend_model *m = calloc(1, sizeof *m);
    if (!m) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a probe");
    m->account = options->account;
    m->input = cpu_input_of(options->precision);
    kakeya_status status = cpu_kernels_choose(options->isa, &m->kernels, error);
    if (!status) status = thread_pool_create(options->threads, &m->pool, error);
    if (!status) status = cpu_probe(m, out, error);
    thread_pool_destroy(m->pool);
    free(m);
    return status;
}

/* --------------------------------------------------------------------------------------------- diagnostics */

static kakeya_status mix_own(backend_cache *c, float alpha, kakeya_error *error) {
    int layers = c->model->config->layers;
    if (c->t.options.attention != KAKEYA_ATTENTION_RESTORED)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "restoration diagnostics need attention 'restored'");
    if (c->t.length || c->t.pending || c->own_raw)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "restoration diagnostics need an empty cache, not %d positions", c->t.length + c->t.pending);
    float **own = calloc((size_t)layers, sizeof *own);
    size_t bytes = (size_t)layers * sizeof *own;
    bool complete = own != NULL;
    for (int i = 0; i < layers && complete; i++) {
        if (c->t.layer[i].kind == STORE_NONE) continue;
        bytes = (size_t)c->t.options.context_tokens * 2 * (size_t)c->t.layer[i].values * sizeof(float);
        own[i] = mem_alloc(c->account, MEM_KV_LATENT, bytes);
        complete = own[i] != NULL;
    }
    if (!complete) {
        for (int i = 0; own && i < layers; i++) mem_free(own[i]);
        free(own);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for diagnostics (%zu bytes)", bytes);
    }
    c->own_raw = own;
    c->mix_alpha = alpha;
    return KAKEYA_OK;
}

/* raw = decoder * latent, compared with own raw K (V), over evicted positions; sums by layer type. */
static kakeya_status restoration_error(const backend_cache *c, double relative_mse[2], kakeya_error *error) {
    backend_model *m = c->model;
    if (!c->own_raw) return error_set(error, KAKEYA_INVALID_ARGUMENT, "this cache keeps no own K/V to compare with");
    const restoration_model *f = m->options.restoration;
    double difference[2] = {0, 0}, energy[2] = {0, 0};
    position_range held = timeline_latents_held(&c->t);
    int evicted = c->t.length - c->t.options.window, end = evicted < held.end ? evicted : held.end;
    int begin = c->t.options.sink > held.begin ? c->t.options.sink : held.begin;
    float *latent = m->scratch[0].row;
    for (int layer = 0; layer < m->config->layers; layer++) {
        const layer_config *lc = &m->config->layer[layer];
        if (lc->kv_source != layer || !c->own_raw[layer]) continue;
        int width = lc->kv_heads * lc->head_dim;
        for (int p = begin; p < end; p++) {
            for (int half = 0; half < 2; half++) {
                const weight *decoder = half ? &f->decoder_v[layer] : &f->decoder_k[layer];
                const float *own = c->own_raw[layer] + ((size_t)p * 2 + (size_t)half) * (size_t)width;
                latent_load(c, p, !half, latent);
                float *raw = m->latent_out;
                multiply_alone(m, decoder, latent, (size_t)(half ? f->config.rank_v : f->config.rank_k), 1,
                               m->scratch[0].latent_packed, raw, (size_t)width);
                for (int i = 0; i < width; i++) {
                    double delta = (double)raw[i] - (double)own[i];
                    difference[lc->type] += delta * delta;
                    energy[lc->type] += (double)own[i] * (double)own[i];
                }
            }
        }
    }
    for (int t = 0; t < 2; t++) relative_mse[t] = energy[t] > 0 ? difference[t] / energy[t] : 0;
    return KAKEYA_OK;
}

static void recode(backend_model *m, const backend_recoding *recoding) { m->recoding = recoding; }

static size_t cpu_free_bytes(const backend_model *m) {
    (void)m;
    return machine_memory_available();
}

static size_t input_bytes(weight_format format, size_t k, bool exact_too) {
    const cpu_kernels *kernels = cpu_kernels_find(NULL);
    const cpu_product *product = kernels->weight[format].product;
    const cpu_packing own = product[format == WEIGHT_F32 ? INPUT_EXACT : INPUT_BF16].packing;
    const cpu_packing exact = product[INPUT_EXACT].packing;
    size_t bytes = kernels->packing[own].row_bytes((int)k);
    return exact_too && exact != own ? bytes + kernels->packing[exact].row_bytes((int)k) : bytes;
}

const backend_measure_ops *cpu_measure(void);

const backend_measure_ops *cpu_measure(void) {
    static const backend_measure_ops ops = {
        .greedy_head_bytes = cpu_greedy_head_bytes,
        .assistant_head_bytes = assistant_head_bytes,
        .free_bytes = cpu_free_bytes,
        .probe_weights = bounded_probe,
        .input_bytes = input_bytes,
        .restored_key_bytes = restored_keys_bytes,
        .image_bytes = cpu_image_bytes,
        .sound_bytes = cpu_sound_bytes,
        .probe = cpu_probe,
        .probe_machine = cpu_probe_machine,
        .machine = cpu_machine,
        .cache_mix_own = mix_own,
        .cache_restoration_error = restoration_error,
        .recode = recode,
    };
    return &ops;
}
