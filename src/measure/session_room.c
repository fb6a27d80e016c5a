#include "measure/session_room.h"

#include "backend/bounded_rows.h"
#include "backend/kv_bytes.h"
#include "backend/measure.h"
#include "kakeya_study.h"
#include "media/sound.h"
#include "model/sizes.h"

/* What the backends decide for themselves: rows of their largest forward, and by how much a device's stores grow. */
enum { CPU_ROWS = 512, GPU_ROWS_LARGE = 4096, GPU_ROWS_SMALL = 1024 };
static const size_t large_gpu_bytes = (size_t)60 << 30, gpu_granule_bytes = (size_t)2 << 20;

int room_default_rows(room_device device, size_t memory_bytes) {
    if (device == ROOM_CPU) return CPU_ROWS;
    return memory_bytes >= large_gpu_bytes ? GPU_ROWS_LARGE : GPU_ROWS_SMALL;
}

/* ------------------------------------------------------------------------------------------------------ workspace */

/* Widths of the widest layer, and of the drafter and f_theta (0 where there is none). */
typedef struct widths {
    size_t hidden, q, kv, intermediate, head_dim, chosen, expert, ple, aux;
    size_t d_hidden, d_q, d_kv, d_all, d_intermediate, d_head_dim, d_aux, rank, codes, encoder_in, normed;
    size_t a_hidden, a_q, a_intermediate, a_clusters; /* of an assistant; of its logits of clusters */
    size_t group;                                     /* query heads of one K/V head, at most */
    bool shared;                                      /* sliding layers have the K/V of others */
} widths;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static widths widths_of(const kakeya_description *d) {
    const model_config *c = d->verifier;
    widths w = {.hidden = (size_t)c->hidden, .ple = (size_t)c->layers * (size_t)c->ple_width};
    if (c->moe) w.chosen = (size_t)c->experts_per_token, w.expert = (size_t)c->expert_intermediate;
    for (int i = 0; i < c->layers; i++) {
        const layer_config *l = &c->layer[i];
        w.q = larger(w.q, (size_t)(c->heads * l->head_dim));
        w.kv = larger(w.kv, (size_t)(l->kv_heads * l->head_dim));
        w.intermediate = larger(w.intermediate, (size_t)l->intermediate);
        w.head_dim = larger(w.head_dim, (size_t)l->head_dim);
        w.group = larger(w.group, (size_t)(c->heads / l->kv_heads));
        w.shared |= l->kv_source != i && c->layer[l->kv_source].type == LAYER_SLIDING;
    }
    if (d->drafter) {
        const block_drafter_config *f = d->drafter;
        w.aux = (size_t)f->targets * w.hidden;
        w.d_hidden = (size_t)f->hidden;
        w.d_q = (size_t)(f->heads * f->head_dim);
        w.d_kv = (size_t)(f->kv_heads * f->head_dim);
        w.d_all = (size_t)f->layers * w.d_kv;
        w.d_intermediate = (size_t)f->intermediate;
        w.d_head_dim = (size_t)f->head_dim;
        w.d_aux = w.aux;
        w.group = larger(w.group, (size_t)(f->heads / f->kv_heads));
    }
    if (d->assistant) {
        const model_config *a = &d->assistant->stack;
        for (int i = 0; i < a->layers; i++) {
            const layer_config *l = &a->layer[i];
            w.a_q = larger(w.a_q, (size_t)(a->heads * l->head_dim));
            w.a_intermediate = larger(w.a_intermediate, (size_t)l->intermediate);
            w.group = larger(w.group,
                             (size_t)(a->heads / l->kv_heads + BACKEND_MAX_DECODE_ROWS - 1) / BACKEND_MAX_DECODE_ROWS);
        }
        w.a_hidden = (size_t)a->hidden;
        if (d->assistant->clusters)
            w.a_clusters = (size_t)d->assistant->clusters +
                           (size_t)d->assistant->chosen_clusters * (1 + (size_t)(a->vocab / d->assistant->clusters));
    }
    if (d->f_theta) {
        w.rank = (size_t)d->f_theta->rank;
        w.codes = (size_t)(d->f_theta->rank_k + (d->f_theta->shared_latent ? 0 : d->f_theta->rank_v));
        w.encoder_in = (size_t)restoration_encoder_in(d->f_theta);
        w.normed =
            restoration_needs_drafter(d->f_theta) ? 0 : w.encoder_in; /* the drafter's context is counted with it */
        w.aux += (size_t)d->f_theta->aux_layers * w.hidden;
    }
    return w;
}

/* Of backend/cpu: the comments name what they are there. */
enum {
    CPU_BLOCK = 16,            /* ATTENTION_BLOCK */
    CPU_TILE = 64,             /* CPU_TILE_QUERIES */
    CPU_PARTITION = 256,       /* CPU_PARTITION_FULL */
    CPU_CHOICES = 64,          /* CPU_HEAD_ROWS */
    CPU_LEAST_CANDIDATES = 64, /* SCREEN_LEAST_CANDIDATES */
    CPU_VOCAB_SHARE = 64,      /* SCREEN_VOCAB_SHARE */
};

/* Inputs of products, for each row of the largest forward (backend/cpu/workspace.c). */
static size_t cpu_input_bytes(const model_config *c, const widths *w) {
    const backend_measure_ops *cpu = backend_measure_find(backend_find("cpu", NULL));
    const weight_format format = c->checkpoint_format;
    size_t bytes =
        cpu->input_bytes(format, larger(w->q, w->hidden), c->moe) + cpu->input_bytes(format, w->intermediate, false);
    if (c->moe)
        bytes += (1 + w->chosen) * cpu->input_bytes(format, w->hidden, false) +
                 w->chosen * cpu->input_bytes(format, w->expert, false);
    if (w->d_hidden)
        bytes += cpu->input_bytes(format, larger(w->d_q, w->d_hidden), false) +
                 cpu->input_bytes(format, w->d_aux, false) + cpu->input_bytes(format, w->d_intermediate, false);
    if (w->rank) bytes += cpu->input_bytes(format, larger(w->encoder_in, w->rank), true);
    return bytes;
}

/* Floats of rows of the largest forward. */
static size_t cpu_row_floats(const model_config *c, const widths *w, size_t rows) {
    size_t activations =
        3 * w->hidden + w->q + 2 * w->kv + 2 * w->intermediate + w->ple + (size_t)c->ple_width + w->aux;
    size_t experts = (size_t)c->experts;
    if (c->moe) experts += w->hidden + w->chosen * (2 * w->expert + w->hidden + 4);
    size_t drafter = 0, chunks = 2 * w->kv * (rows + 2 * CPU_BLOCK); /* new K and V before they are stored */
    if (w->shared) chunks *= 2;
    if (w->d_hidden) {
        drafter = 2 * w->d_hidden + w->d_q + 2 * w->d_kv + 2 * w->d_all + 2 * w->d_intermediate;
        chunks += 2 * w->d_kv * (rows + CPU_BLOCK);
    }
    if (w->rank) drafter += w->codes + w->kv + w->normed;
    return rows * (activations + experts + drafter) + chunks;
}

/* Floats of the states of so many queries, exact and restored. */
static size_t cpu_state_floats(const widths *w, size_t queries) {
    return 2 * queries * (larger(larger(w->head_dim, w->d_head_dim), w->rank) + 2);
}

/* Partial states of attention that is split over a context, for all rows of a block, and what each thread has. */
static size_t cpu_attention_floats(const model_config *c, const widths *w, size_t threads) {
    const size_t queries = larger(CPU_TILE, w->group * BACKEND_MAX_DECODE_ROWS), states = cpu_state_floats(w, queries);
    const size_t head = larger(w->head_dim, w->d_head_dim), packed = larger(head, w->rank);
    size_t row = larger(larger(w->q, w->kv), larger(w->hidden, w->encoder_in));
    size_t each = 2 * queries * packed + 2 * CPU_BLOCK * (head + w->rank) + 2 * queries + (w->rank ? 2 : 1) * states +
                  larger(row, 2 * w->rank) + head;
    size_t split = 2 * threads * (size_t)c->heads * cpu_state_floats(w, BACKEND_MAX_DECODE_ROWS) + 2 * states;
    return threads * each + (c->max_context > CPU_PARTITION ? split : 0);
}

/* Logits of rows whose choices are made in one go, and what bounds them (backend/cpu/head.c). */
static size_t cpu_head_bytes(const model_config *c) {
    const size_t vocab = (size_t)c->vocab;
    size_t candidates = larger(vocab / CPU_VOCAB_SHARE, CPU_LEAST_CANDIDATES);
    return CPU_CHOICES * (sizeof(float) * vocab + (size_t)c->hidden + candidates * (sizeof(int32_t) + sizeof(float)));
}

/* A pass of an assistant over as many rows as sessions share a forward (backend/cpu/assistant.c). */
static size_t cpu_assistant_bytes(const model_config *c, const widths *w) {
    const backend_measure_ops *cpu = backend_measure_find(backend_find("cpu", NULL));
    if (!w->a_hidden) return 0;
    size_t floats = 2 * w->hidden + 4 * w->a_hidden + w->a_q + 2 * w->a_intermediate + w->a_clusters;
    size_t input = larger(larger(2 * w->hidden, w->a_hidden), w->a_q);
    return BACKEND_MAX_SEGMENTS * (sizeof(float) * floats + cpu->input_bytes(c->checkpoint_format, input, false) +
                                   cpu->input_bytes(c->checkpoint_format, w->a_intermediate, false));
}

static size_t cpu_bytes(const model_config *c, const widths *w, size_t rows, size_t threads) {
    return sizeof(float) * (cpu_row_floats(c, w, rows) + cpu_attention_floats(c, w, threads)) +
           rows * cpu_input_bytes(c, w) + cpu_head_bytes(c) + cpu_assistant_bytes(c, w);
}

static size_t gpu_row_bytes(const model_config *c, const widths *w) {
    const size_t half = 2;
    size_t floats = 3 * w->hidden + w->q + 2 * w->kv + w->ple + (size_t)c->ple_width + w->aux + 2 * w->d_all +
                    w->d_hidden + 2 * w->rank + (w->rank ? w->kv : 0) + w->head_dim;
    size_t halves = 2 * w->hidden + 2 * w->q + w->intermediate + 2 * w->kv + w->d_hidden + w->aux +
                    (w->rank ? 2 * w->d_all + w->rank : 0);
    if (c->moe) {
        floats += w->hidden + (size_t)c->experts + w->chosen * (w->hidden + 4);
        halves += w->hidden + w->chosen * w->expert;
    }
    return sizeof(float) * floats + half * halves;
}

/* A pass of an assistant, as on the CPU (backend/cuda/workspace.c). */
static size_t gpu_assistant_bytes(const widths *w) {
    const size_t half = 2;
    if (!w->a_hidden) return 0;
    size_t floats = w->hidden + 2 * w->a_hidden + w->a_q + w->a_clusters,
           halves = 2 * w->hidden + w->a_hidden + 2 * w->a_q + w->a_intermediate;
    return BACKEND_MAX_SEGMENTS * (sizeof(float) * floats + half * halves);
}

static size_t rope_bytes(const model_config *c, int tokens) {
    size_t growth = 1024, rows = ((size_t)tokens + growth - 1) / growth * growth;
    return 2 * sizeof(float) * rows * (size_t)(c->rope[0].rotated_pairs + c->rope[1].rotated_pairs);
}

/* Twice the bits of a weight as a GPU has it: bf16, or codes with their scales (backend/cuda/quant.h). */
static int gpu_half_bits(weight_format format) {
    enum { BF16 = 32, Q4 = 9, S4 = 10, A4_OR_G4 = 12, Q8 = 17, F8 = 18, A8_OR_G8 = 20 };
    static const unsigned char half_bits[WEIGHT_FORMAT_COUNT] = {
        [WEIGHT_Q4_0] = Q4,
        [WEIGHT_INT4] = S4,
        [WEIGHT_Q4_1] = A4_OR_G4,
        [WEIGHT_Q4_K] = A4_OR_G4,
        [WEIGHT_Q3_K] = A4_OR_G4,
        [WEIGHT_AFFINE_2] = A4_OR_G4,
        [WEIGHT_AFFINE_3] = A4_OR_G4,
        [WEIGHT_AFFINE_4] = A4_OR_G4,
        [WEIGHT_INT4_ZERO] = A4_OR_G4,
        [WEIGHT_MXFP4] = A4_OR_G4,
        [WEIGHT_NVFP4] = A4_OR_G4,
        [WEIGHT_FP4_E8M0] = A4_OR_G4,
        [WEIGHT_FP4_E4M3] = A4_OR_G4,
        [WEIGHT_FP4_E4M3_DIV] = A4_OR_G4,
        [WEIGHT_Q5_0] = Q8,
        [WEIGHT_Q8_0] = Q8,
        [WEIGHT_IQ4_NL] = Q8,
        [WEIGHT_FP8] = F8,
        [WEIGHT_FP8_E8M0] = F8,
        [WEIGHT_Q5_1] = A8_OR_G8,
        [WEIGHT_Q5_K] = A8_OR_G8,
        [WEIGHT_Q6_K] = A8_OR_G8,
        [WEIGHT_IQ4_XS] = A8_OR_G8,
        [WEIGHT_AFFINE_5] = A8_OR_G8,
        [WEIGHT_AFFINE_6] = A8_OR_G8,
        [WEIGHT_AFFINE_8] = A8_OR_G8,
        [WEIGHT_INT8] = A8_OR_G8,
        [WEIGHT_INT8_ZERO] = A8_OR_G8,
        [WEIGHT_INT8_SIGNED] = A8_OR_G8,
    };
    return half_bits[format] ? half_bits[format] : BF16;
}

/* What a backend says of its pictures: the CPU's, or that of the GPU which is here; NULL: there is none, or it reads
 * none.
 */
static const backend_measure_ops *reader_of(room_device device) {
    const backend_ops *ops = backend_find(device == ROOM_CPU ? "cpu" : "auto", NULL);
    if (!ops || !ops->embed_image || (device != ROOM_CPU && ops == backend_find("cpu", NULL))) return NULL;
    return backend_measure_find(ops);
}

/* Its patches, its rows, and what the tower holds; pictures become rows one after the other. */
size_t room_of_picture(const kakeya_description *d, room_device device, int threads, int budget) {
    const vision_model *v = d->vision;
    const backend_measure_ops *reader = v ? reader_of(device) : NULL;
    if (!reader || !reader->image_bytes) return 0;
    const weight_format format = d->verifier->checkpoint_format;
    const int patches = budget * v->pooling * v->pooling, longest = budget * v->pooling;
    const int side = longest < v->positions ? longest : v->positions;
    const size_t floats =
        (size_t)patches * (size_t)vision_model_patch_values(v) + (size_t)budget * (size_t)v->text_hidden;
    return sizeof(float) * floats +
           reader->image_bytes(v, weight_format_is_plain(format) ? format : WEIGHT_BF16, patches, side, threads);
}

/* Its rows, and what the encoder holds. */
size_t room_of_sound(const kakeya_description *d, room_device device) {
    const backend_ops *ops = backend_find(device == ROOM_CPU ? "cpu" : "auto", NULL);
    if (!d->sound || !ops || !ops->sound_begin || (device != ROOM_CPU && ops == backend_find("cpu", NULL))) return 0;
    const size_t samples = (size_t)SOUND_MAX_SECONDS * SOUND_RATE;
    const weight_format format = d->verifier->checkpoint_format;
    return sizeof(float) * audio_model_rows(d->sound, samples) * (size_t)d->sound->text_hidden +
           backend_measure_find(ops)->sound_bytes(d->sound, weight_format_is_plain(format) ? format : WEIGHT_BF16,
                                                  samples);
}

room_engine room_of_engine(const kakeya_description *d, room_device device, int max_rows, int threads,
                           int longest_tokens) {
    const model_config *c = d->verifier;
    widths w = widths_of(d);
    const weight_stream *stream = &weight_format_find(c->checkpoint_format)->stream[0];
    int64_t parameters = gemma4_parameters(c).total;
    if (d->drafter) parameters += dflash_parameters(d->drafter);
    if (d->assistant) parameters += assistant_parameters(d->assistant);
    if (d->f_theta) parameters += f_theta_parameters(d->f_theta);
    const int64_t bytes = device == ROOM_GPU ? parameters * gpu_half_bits(c->checkpoint_format) / 16
                                             : parameters / stream->values * stream->bytes;
    room_engine engine = {.weights = (size_t)bytes};
    if (d->vision && reader_of(device)) {
        engine.weights += d->vision_sizes.bytes;
        engine.picture = room_of_picture(d, device, threads, d->vision->budget);
    }
    engine.sound = room_of_sound(d, device);
    if (engine.sound) engine.weights += d->audio_sizes.bytes;

    const size_t rows = (size_t)max_rows;
    if (device == ROOM_CPU)
        engine.workspace = cpu_bytes(c, &w, rows, (size_t)threads);
    else
        engine.workspace = rows * gpu_row_bytes(c, &w) + sizeof(float) * BACKEND_MAX_DECODE_ROWS * (size_t)c->vocab +
                           gpu_assistant_bytes(&w);
    engine.workspace += rope_bytes(c, longest_tokens);
    return engine;
}

int room_rows(const kakeya_description *d, room_device device, size_t memory_bytes, int threads, size_t weights_limit) {
    const int rows = room_default_rows(device, memory_bytes);
    if (device != ROOM_CPU || weights_limit == 0) return rows;
    return bounded_rows(weights_limit, room_of_engine(d, device, rows, threads, 1).workspace / (size_t)rows + 1, rows);
}

/* ------------------------------------------------------------------------------------------------------- sessions */

room_session room_of_session(const kakeya_description *d, room_device device, const kakeya_session_options *options,
                             int tokens) {
    size_t granule = device == ROOM_GPU ? gpu_granule_bytes : 0;
    timeline t = description_session(d, options, (size_t)tokens);
    room_session session = {.kv = kv_bytes(&t, granule).total};
    session.own = (size_t)tokens * (sizeof(int32_t) + 1);
    if (t.keeps_backlog) session.own += KV_BACKLOG * timeline_aux_row_bytes(&t);
    if (t.keeps_state) session.own += BACKEND_MAX_DECODE_ROWS * timeline_state_bytes(&t);
    timeline beginning = t;
    if (t.prompt_capacity != t.decode_capacity) beginning.reserved_capacity = t.prompt_capacity;
    session.beginning = kv_bytes(&beginning, granule).total - session.kv;
    if (device == ROOM_CPU && options->attention == KAKEYA_ATTENTION_RESTORED)
        session.shared = backend_measure_find(backend_find("cpu", NULL))->restored_key_bytes(d->verifier);
    return session;
}

size_t room_sessions(size_t memory_bytes, const room_engine *engine, const room_session *session) {
    size_t each = session->kv + session->own;
    size_t once = engine->weights + engine->workspace + larger(engine->picture, engine->sound) + session->shared +
                  session->beginning;
    return memory_bytes > once && each ? (memory_bytes - once) / each : 0;
}
