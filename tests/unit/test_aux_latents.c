/* f_theta fed by aux hidden states: latents against a plain double-precision evaluation, the forms of latents against
 * each other, and what must hold for every one of them: decode rows one by one = blocks, chunks of a prompt, several
 * caches in one forward, truncation, forks, snapshots (also read by another model object), sizes. */
#include "memory_stream.h"
#include "sweep.h"
#include "tiny.h"

#include "backend/cpu/cache.h"
#include "backend/kv_bytes.h"
#include "backend/latent_row.h"
#include "backend/synthetic.h"
#include "measure/kv_geometry.h"

/* ------------------------------------------------------------------------------------------------------- forms */

typedef struct form {
    const char *name, *verifier, *drafter;
    int rank_k, rank_v, taps;
    bool shared;
    restoration_latents latents;
} form;

static const form forms[] = {
    {"shared, as K/V, no drafter", "gemma4-tiny-dense", NULL, 24, 24, 2, true, RESTORATION_LATENTS_KV},
    {"shared q8, no drafter, per-layer embeddings", "gemma4-tiny-ple", NULL, 20, 20, 3, true, RESTORATION_LATENTS_Q8},
    {"separate q4 beside a drafter", "gemma4-tiny-dense", "dflash-tiny", 6, 37, 3, false, RESTORATION_LATENTS_Q4},
    {"separate bf16, experts", "gemma4-tiny-moe", NULL, 10, 16, 1, false, RESTORATION_LATENTS_BF16},
    {"shared q4 beside a drafter", "gemma4-tiny-dense", "dflash-tiny", 40, 40, 4, true, RESTORATION_LATENTS_Q4},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static restoration_config config_of(const tiny *d, const form *f) {
    restoration_config c = {
        .input = RESTORATION_AUX_HIDDEN, .latents = f->latents, .hidden = d->verifier->config.hidden};
    restoration_config_fit(&c, &d->verifier->config, f->rank_k, f->rank_v, f->shared);
    c.aux_layers = restoration_default_taps(&d->verifier->config, f->taps, c.aux_layer);
    return c;
}

static void open_form(tiny *d, const form *f, kakeya_precision precision) {
    tiny_open_weights(d, f->verifier, f->drafter);
    restoration_config c = config_of(d, f);
    REQUIRE_OK(restoration_model_synthesize_as(&c, WEIGHT_F32, false, &d->account, &d->f_theta, error));
    tiny_complete(d, precision, NULL, 2);
}

static const tiny_policy policies[] = {
    {"restored 16", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 2, 16, RESTORATION_AUX_HIDDEN},
    {"restored all 9", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 4, 9, RESTORATION_AUX_HIDDEN},
    {"sink-window 5", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 0, 5, RESTORATION_AUX_HIDDEN},
};
enum { POLICIES = sizeof policies / sizeof policies[0] };

/* ------------------------------------------------------------------------------------------------------- oracle */

static double weight_at(const weight *w, size_t row, size_t column) {
    return (double)((const float *)w->stream[0])[row * (size_t)w->in + column];
}

/* latent = E [rms(aux_1) ... rms(aux_n)] of prompt rows, whose hidden states the forward itself gives. */
static void latents_of_prompt(void **state) {
    (void)state;
    if (strcmp(TINY_BACKEND, "cpu") != 0) skip(); /* it looks inside */
    enum { ROWS = 37 };
    const form f = {"separate, as K/V", "gemma4-tiny-dense", "dflash-tiny", 6, 10, 3, false, RESTORATION_LATENTS_KV};
    tiny d;
    open_form(&d, &f, KAKEYA_PRECISION_F32);
    size_t hidden = (size_t)d.verifier->config.hidden, layers = (size_t)d.verifier->config.layers;
    float *states = calloc((layers + 1) * ROWS * hidden, sizeof *states), found[64];
    int32_t tokens[ROWS];
    tiny_tokens(tokens, ROWS, 5);
    backend_cache *cache = tiny_cache(&d, &policies[0], KV_FORMAT_F32);
    backend_segment segment = tiny_rows(cache, SEGMENT_PROMPT, tokens, ROWS, NULL);
    segment.hidden_states = states;
    REQUIRE_OK(d.ops->forward(d.backend, &segment, 1, error));
    REQUIRE_OK(d.ops->cache_commit(cache, ROWS, error));
    const restoration_config *c = &d.f_theta->config;
    for (int t = 0; t < ROWS; t++) {
        for (int half = 0; half < 2; half++) {
            const weight *encoder = half ? &d.f_theta->encoder_v : &d.f_theta->encoder_k;
            latent_load(cache, t, !half, found);
            for (int r = 0; r < encoder->out; r++) {
                double expected = 0;
                for (int tap = 0; tap < c->aux_layers; tap++) {
                    const float *h = states + (((size_t)c->aux_layer[tap] + 1) * ROWS + (size_t)t) * hidden;
                    double squares = 0, sum = 0;
                    for (size_t i = 0; i < hidden; i++) {
                        squares += (double)h[i] * (double)h[i];
                        sum += weight_at(encoder, (size_t)r, (size_t)tap * hidden + i) * (double)h[i];
                    }
                    expected += sum / sqrt(squares / (double)hidden + (double)d.verifier->config.rms_eps);
                }
                if (fabs((double)found[r] - expected) > 1e-4 * (1 + fabs(expected)))
                    fail_msg("position %d, %s %d is %g, expected %g", t, half ? "e_v" : "e_k", r, (double)found[r],
                             expected);
            }
        }
    }
    free(states);
    d.ops->cache_destroy(cache);
    tiny_close(&d);
}

/* Logits of a prompt and decode rows behind it. */
enum { PROMPT = 45, ANSWER = 12, TOTAL = PROMPT + ANSWER };

static void play(tiny *d, const tiny_policy *p, kv_format format, float *logits) {
    int32_t tokens[TOTAL];
    tiny_tokens(tokens, TOTAL, 11);
    backend_cache *cache = tiny_cache(d, p, format);
    size_t vocab = (size_t)d->verifier->config.vocab;
    tiny_step(d, cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, logits);
    for (int at = PROMPT; at < TOTAL; at += 4)
        tiny_step(d, cache, SEGMENT_DECODE, tokens + at, 4, 4, logits + (size_t)at * vocab);
    d->ops->cache_destroy(cache);
}

static float *values_of(const weight *w) { return (float *)(uintptr_t)w->stream[0]; }

/* One latent for both = two latents of the same encoder. Fewer values of keys = as many, of which some are nothing. */
static void forms_agree(void **state) {
    (void)state;
    if (strcmp(TINY_BACKEND, "cpu") != 0) skip(); /* it changes weights that others have copied */
    static const form shared = {"", "gemma4-tiny-dense", NULL, 24, 24, 2, true, RESTORATION_LATENTS_KV},
                      twice = {"", "gemma4-tiny-dense", NULL, 24, 24, 2, false, RESTORATION_LATENTS_KV},
                      fewer = {"", "gemma4-tiny-dense", NULL, 7, 24, 2, false, RESTORATION_LATENTS_KV};
    tiny one, two, three;
    open_form(&one, &shared, KAKEYA_PRECISION_F32);
    open_form(&two, &twice, KAKEYA_PRECISION_F32);
    open_form(&three, &fewer, KAKEYA_PRECISION_F32);
    size_t n = (size_t)TOTAL * (size_t)one.verifier->config.vocab;
    float *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
    for (int i = 0; i < one.verifier->config.layers; i++) {
        const weight *from[] = {&one.f_theta->decoder_k[i], &one.f_theta->decoder_v[i]},
                     *to[] = {&two.f_theta->decoder_k[i], &two.f_theta->decoder_v[i]};
        for (int h = 0; h < 2; h++)
            memcpy(values_of(to[h]), values_of(from[h]), (size_t)(to[h]->out * to[h]->in) * sizeof(float));
    }
    size_t encoder = (size_t)(one.f_theta->encoder_k.out * one.f_theta->encoder_k.in) * sizeof(float);
    memcpy(values_of(&two.f_theta->encoder_k), values_of(&one.f_theta->encoder_k), encoder);
    memcpy(values_of(&two.f_theta->encoder_v), values_of(&one.f_theta->encoder_k), encoder);
    for (int p = 0; p < 2; p++) {
        play(&one, &policies[p], KV_FORMAT_F32, a);
        play(&two, &policies[p], KV_FORMAT_F32, b);
        assert_same_bits("a shared latent and two of one encoder", a, b, n);
    }

    int few = three.f_theta->config.rank_k, many = two.f_theta->config.rank_k;
    memset(values_of(&two.f_theta->encoder_k), 0, encoder);
    memcpy(values_of(&two.f_theta->encoder_k), values_of(&three.f_theta->encoder_k),
           (size_t)(few * three.f_theta->encoder_in) * sizeof(float));
    memcpy(values_of(&two.f_theta->encoder_v), values_of(&three.f_theta->encoder_v), encoder);
    for (int i = 0; i < one.verifier->config.layers; i++) {
        const weight *from = &three.f_theta->decoder_k[i], *to = &two.f_theta->decoder_k[i];
        for (int row = 0; row < to->out; row++)
            memcpy(values_of(to) + row * many, values_of(from) + row * few, (size_t)few * sizeof(float));
        const weight *v = &two.f_theta->decoder_v[i];
        memcpy(values_of(v), values_of(&three.f_theta->decoder_v[i]), (size_t)(v->out * v->in) * sizeof(float));
    }
    for (int p = 0; p < 2; p++) {
        play(&two, &policies[p], KV_FORMAT_F32, a);
        play(&three, &policies[p], KV_FORMAT_F32, b);
        assert_close("fewer values of keys", b, a, n, 1e-3);
    }
    free(a);
    free(b);
    tiny_close(&one);
    tiny_close(&two);
    tiny_close(&three);
}

/* ------------------------------------------------------------------------------------------------------- codes */

static void codes(void **state) {
    (void)state;
    enum { N = 77 };
    float x[N], back[N];
    unsigned char row[2][512];
    uint64_t random = 3;
    for (int i = 0; i < N; i++)
        x[i] = (float)((double)tiny_draw(&random, 20001) / 10000.0 - 1.0) * (i < 32 ? 1.0f : 30.0f);
    for (int which = 0; which < 2; which++) {
        latent_format format = which ? LATENT_Q4 : LATENT_Q8;
        memset(row, 0xaa, sizeof row);
        latent_encode(format, x, N, row[0]);
        latent_decode(format, row[0], N, back);
        for (int i = 0; i < N; i++) {
            /* half a step, and what rounding the scale to bf16 costs the code that is farthest from 0 */
            float largest = 0, step;
            for (int j = which ? i / 32 * 32 : 0; j < (which && i / 32 * 32 + 32 < N ? i / 32 * 32 + 32 : N); j++)
                largest = fmaxf(largest, fabsf(x[j]));
            step = which ? largest / 8 * 1.01f : largest / 127;
            /* of 4 bits the largest value of the other sign is 7 steps, so it may be one step off */
            float bound = which ? step * 1.04f : step * 0.501f;
            if (!(fabsf(back[i] - x[i]) <= bound))
                fail_msg("%s: value %d is %g, was %g, may be off by %g", which ? "q4" : "q8", i, (double)back[i],
                         (double)x[i], (double)bound);
        }
        memset(row[1], 0x55, sizeof row[1]);
        latent_encode(format, x, N, row[1]);
        size_t bytes = which ? 3 * 2 + (N + 1) / 2 : 4 + N;
        assert_memory_equal(row[0], row[1], bytes);
        assert_int_equal(row[0][bytes], 0xaa); /* and nothing behind them */
        x[N - 1] = INFINITY;
        latent_encode(format, x, N, row[0]);
        latent_decode(format, row[0], N, back);
        assert_true(isnan(back[N - 1]));
        x[N - 1] = 1;
        memset(back, 0, sizeof back);
        latent_encode(format, back, N, row[0]);
        latent_decode(format, row[0], N, back);
        for (int i = 0; i < N; i++) assert_true(back[i] == 0);
    }
}

/* Eight bits are near, four are farther, and neither is the same. */
static void fewer_bits_cost_little(void **state) {
    (void)state;
    double off[RESTORATION_LATENTS_COUNT] = {0};
    float *first = NULL;
    for (int latents = 0; latents < RESTORATION_LATENTS_COUNT; latents++) {
        const form f = {"", "gemma4-tiny-dense", NULL, 32, 32, 2, true, (restoration_latents)latents};
        tiny d;
        open_form(&d, &f, KAKEYA_PRECISION_F32);
        size_t n = (size_t)TOTAL * (size_t)d.verifier->config.vocab;
        float *logits = calloc(n, sizeof *logits);
        play(&d, &policies[1], KV_FORMAT_F32, logits);
        if (!first) first = logits;
        for (size_t i = 0; i < n; i++) off[latents] += fabs((double)logits[i] - (double)first[i]) / (double)n;
        if (logits != first) free(logits);
        tiny_close(&d);
    }
    free(first);
    assert_true(off[RESTORATION_LATENTS_BF16] > 0 && off[RESTORATION_LATENTS_BF16] < off[RESTORATION_LATENTS_Q8]);
    assert_true(off[RESTORATION_LATENTS_Q8] < off[RESTORATION_LATENTS_Q4]);
    assert_true(off[RESTORATION_LATENTS_Q4] < 0.2);
}

/* --------------------------------------------------------------------------------------------------- properties */

enum { TURNS = 3, TURN_PROMPT = 50, TURN_ANSWER = 24, ALL = TURNS * (TURN_PROMPT + TURN_ANSWER) };

static void check_bytes(tiny *d, const backend_cache *cache) {
    backend_cache_bytes formula = d->ops->cache_bytes(cache);
    assert_int_equal(formula.full, mem_bytes(&d->account, MEM_KV_FULL));
    assert_int_equal(formula.sliding, mem_bytes(&d->account, MEM_KV_SLIDING));
    assert_int_equal(formula.latent, mem_bytes(&d->account, MEM_KV_LATENT));
    assert_int_equal(formula.draft, mem_bytes(&d->account, MEM_KV_DRAFT));
}

/* The state goes on in a fresh cache of `to`, by fork (the same model) or through a snapshot. */
static backend_cache *go_on(tiny *from, tiny *to, backend_cache *cache, const tiny_policy *p, kv_format format) {
    backend_cache *next = NULL;
    if (from == to) {
        REQUIRE_OK(from->ops->cache_fork(cache, &from->account, &next, error));
    } else {
        memory_stream stream = {0};
        REQUIRE_OK(from->ops->cache_snapshot(cache, memory_write, &stream, error));
        assert_int_equal(stream.bytes, from->ops->cache_snapshot_bytes(cache));
        next = tiny_cache(to, p, format);
        REQUIRE_OK(to->ops->cache_restore(next, memory_read, &stream, error));
        assert_int_equal(stream.at, stream.bytes);
        memory_free(&stream);
    }
    from->ops->cache_destroy(cache);
    return next;
}

/* style 0: whole prompts, single decode rows. Others: uneven chunks, blocks with rejected rows, and detours through
 * truncation, forks, and snapshots between two models. */
static void run_turns(tiny *one, tiny *two, const tiny_policy *p, kv_format format, int style, const int32_t *tokens,
                      float *logits) {
    size_t vocab = (size_t)one->verifier->config.vocab;
    tiny *d = one;
    backend_cache *cache = tiny_cache(d, p, format);
    float *discard = calloc(BACKEND_MAX_DECODE_ROWS * vocab, sizeof *discard);
    uint64_t random = (uint64_t)style;
    int at = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int end = at + TURN_PROMPT; at < end;) {
            int n = style == 0 ? end - at : 1 + (int)tiny_draw(&random, 23);
            if (n > end - at) n = end - at;
            tiny_step(d, cache, SEGMENT_PROMPT, tokens + at, n, n, logits + (size_t)at * vocab);
            at += n;
        }
        for (int begin = at, end = at + TURN_ANSWER; at < end;) {
            int n = style == 0 ? 1 : 1 + (int)tiny_draw(&random, (uint32_t)tiny_block_rows(p));
            int kept = style == 0 ? 1 : 1 + (int)tiny_draw(&random, (uint32_t)n);
            if (kept > end - at) kept = end - at;
            int32_t block[BACKEND_MAX_DECODE_ROWS];
            for (int i = 0; i < n; i++) block[i] = i < kept ? tokens[at + i] : (int32_t)tiny_draw(&random, 300);
            tiny_step(d, cache, SEGMENT_DECODE, block, n, kept, discard);
            memcpy(logits + (size_t)at * vocab, discard, (size_t)kept * vocab * sizeof *logits);
            at += kept;
            if (style == 0) continue;
            if (tiny_draw(&random, 3) == 0 && at - 2 >= d->ops->cache_min_truncate(cache) && at - 2 > begin) {
                REQUIRE_OK(d->ops->cache_truncate(cache, at - 2, error));
                tiny_step(d, cache, SEGMENT_DECODE, tokens + at - 2, 2, 2, discard);
            }
            if (tiny_draw(&random, 3) == 0) {
                tiny *to = tiny_draw(&random, 2) ? d : d == one ? two : one;
                cache = go_on(d, to, cache, p, format);
                d = to;
            }
        }
        check_bytes(d, cache);
    }
    free(discard);
    d->ops->cache_destroy(cache);
}

static void lossless(void **state) {
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        for (int precision = 0; precision < 2; precision++) {
            tiny one, two;
            open_form(&one, &forms[f], precision ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32);
            open_form(&two, &forms[f], precision ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32);
            kv_format format = precision ? KV_FORMAT_BF16 : KV_FORMAT_F32;
            size_t vocab = (size_t)one.verifier->config.vocab;
            float *reference = calloc(ALL * vocab, sizeof *reference), *other = calloc(ALL * vocab, sizeof *other);
            int32_t tokens[ALL];
            tiny_tokens(tokens, ALL, 17);
            for (int p = 0; p < POLICIES; p++) {
                run_turns(&one, &two, &policies[p], format, 0, tokens, reference);
                for (int style = 1; style < (sweep_short() ? 2 : 4); style++) {
                    run_turns(&one, &two, &policies[p], format, style, tokens, other);
                    for (size_t t = 0; t < ALL; t++) {
                        char what[160];
                        snprintf(what, sizeof what, "%s, %s, %s, style %d, row %zu", forms[f].name, policies[p].name,
                                 kv_format_name(format), style, t);
                        assert_same_bits(what, other + t * vocab, reference + t * vocab, vocab);
                    }
                }
            }
            free(reference);
            free(other);
            tiny_close(&one);
            tiny_close(&two);
        }
    }
}

/* Caches of every policy, with and without the drafter's context, share forwards; each gets what it gets alone. */
static void together(void **state) {
    (void)state;
    enum { CACHES = 4, STEPS = 14 };
    static const tiny_policy native = {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 0,
                                       0,        RESTORATION_AUX_HIDDEN};
    const tiny_policy *const kinds[CACHES] = {&policies[0], &native, &policies[1], &policies[0]};
    for (int f = 0; f < FORMS; f++) {
        tiny d;
        open_form(&d, &forms[f], KAKEYA_PRECISION_BF16);
        size_t vocab = (size_t)d.verifier->config.vocab;
        enum { ROWS = 9 };
        float *alone = calloc(CACHES * ROWS * vocab, sizeof *alone),
              *batch = calloc(CACHES * ROWS * vocab, sizeof *batch);
        backend_cache *caches[2][CACHES];
        for (int w = 0; w < 2; w++) {
            for (int i = 0; i < CACHES; i++) {
                backend_cache_options options = tiny_options(&d, kinds[i], KV_FORMAT_BF16);
                options.keep_draft_context = d.drafter && i % 2 == 0;
                REQUIRE_OK(d.ops->cache_create(d.backend, &options, &caches[w][i], error));
            }
        }
        for (int step = 0; step < STEPS; step++) {
            int32_t tokens[CACHES][ROWS];
            backend_segment segments[CACHES];
            for (int i = 0; i < CACHES; i++) {
                bool prompt = (step + i) % 5 < 3;
                int n = prompt ? ROWS - i : 1 + i;
                tiny_tokens(tokens[i], n, (uint64_t)(step * CACHES + i));
                segments[i] = tiny_rows(caches[1][i], prompt ? SEGMENT_PROMPT : SEGMENT_DECODE, tokens[i], n,
                                        batch + (size_t)(i * ROWS) * vocab);
                tiny_step(&d, caches[0][i], segments[i].kind, tokens[i], n, n, alone + (size_t)(i * ROWS) * vocab);
            }
            REQUIRE_OK(d.ops->forward(d.backend, segments, CACHES, error));
            for (int i = 0; i < CACHES; i++) {
                REQUIRE_OK(d.ops->cache_commit(caches[1][i], segments[i].n, error));
                char what[128];
                snprintf(what, sizeof what, "%s, cache %d, step %d", forms[f].name, i, step);
                assert_same_bits(what, batch + (size_t)(i * ROWS) * vocab, alone + (size_t)(i * ROWS) * vocab,
                                 (size_t)segments[i].n * vocab);
            }
        }
        for (int i = 0; i < 2 * CACHES; i++) d.ops->cache_destroy(caches[i / CACHES][i % CACHES]);
        free(alone);
        free(batch);
        tiny_close(&d);
    }
}

/* ---------------------------------------------------------------------------------------------------- snapshots */

static uint32_t version_of(const memory_stream *s) {
    uint32_t version;
    memcpy(&version, s->data + sizeof version, sizeof version);
    return version;
}

static void write_snapshot(tiny *d, const tiny_policy *p, memory_stream *out) {
    int32_t tokens[PROMPT];
    tiny_tokens(tokens, PROMPT, 2);
    backend_cache *cache = tiny_cache(d, p, KV_FORMAT_F32);
    tiny_step(d, cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, NULL);
    REQUIRE_OK(d->ops->cache_snapshot(cache, memory_write, out, error));
    d->ops->cache_destroy(cache);
}

static void refuse(tiny *d, const tiny_policy *p, memory_stream *stream, const char *expected) {
    kakeya_error problem = {0};
    backend_cache *cache = tiny_cache(d, p, KV_FORMAT_F32);
    stream->at = 0;
    assert_int_equal(d->ops->cache_restore(cache, memory_read, stream, &problem), KAKEYA_FORMAT);
    if (!strstr(problem.message, expected)) fail_msg("'%s' does not say '%s'", problem.message, expected);
    assert_int_equal(d->ops->cache_length(cache), 0);
    d->ops->cache_destroy(cache);
}

/* Caches without the new forms go on writing version 2; what differs between forms is named. */
static void snapshots_know_their_form(void **state) {
    (void)state;
    static const form shared = {"", "gemma4-tiny-dense", "dflash-tiny", 24, 24, 2, true, RESTORATION_LATENTS_Q8},
                      four = {"", "gemma4-tiny-dense", "dflash-tiny", 24, 24, 2, true, RESTORATION_LATENTS_Q4},
                      taps = {"", "gemma4-tiny-dense", "dflash-tiny", 24, 24, 3, true, RESTORATION_LATENTS_Q8},
                      apart = {"", "gemma4-tiny-dense", "dflash-tiny", 24, 12, 2, false, RESTORATION_LATENTS_Q8};
    static const tiny_policy context = {
        "restored 16", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 2, 16, RESTORATION_DRAFTER_CONTEXT_KV};
    tiny d, old;
    memory_stream mine = {0}, before = {0}, native = {0};
    open_form(&d, &shared, KAKEYA_PRECISION_F32);
    tiny_open(&old, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    write_snapshot(&d, &policies[0], &mine);
    write_snapshot(&d, &policies[2], &native);
    write_snapshot(&old, &context, &before);
    assert_int_equal(version_of(&mine), 3);
    assert_int_equal(version_of(&native), 2);
    assert_int_equal(version_of(&before), 2);
    refuse(&old, &context, &mine, "f_theta rank is 24 there");
    refuse(&d, &policies[0], &before, "f_theta rank is 256 there");
    tiny_close(&old);
    tiny_close(&d);
    const struct {
        const form *form;
        const char *expected;
    } others[] = {
        {&four, "latent format is"}, {&taps, "tapped layers is 2 there and 3 here"}, {&apart, "rank of values is 24"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        open_form(&d, others[i].form, KAKEYA_PRECISION_F32);
        refuse(&d, &policies[0], &mine, others[i].expected);
        tiny_close(&d);
    }
    memory_free(&mine);
    memory_free(&before);
    memory_free(&native);
}

/* A session without a drafter keeps nothing for one, and latents are what the formula says. */
static void sizes(void **state) {
    (void)state;
    tiny d;
    open_form(&d, &forms[1], KAKEYA_PRECISION_BF16);
    int32_t tokens[PROMPT];
    tiny_tokens(tokens, PROMPT, 2);
    backend_cache *cache = tiny_cache(&d, &policies[0], KV_FORMAT_BF16);
    tiny_step(&d, cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, NULL);
    backend_cache_bytes bytes = d.ops->cache_bytes(cache);
    size_t capacity = (size_t)kv_ring_positions(d.verifier->config.sliding_window);
    size_t heads = (size_t)cache->t.latent_heads;
    assert_int_equal(bytes.draft, 0);
    assert_int_equal(bytes.latent, mem_rounded(capacity * (4 + 20)) + mem_rounded(capacity * heads * 4));
    check_bytes(&d, cache);
    d.ops->cache_destroy(cache);
    tiny_close(&d);
}

/* What a report records of the model gives the bytes that a session holds. */
static void geometry_of_reports(void **state) {
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        tiny d;
        open_form(&d, &forms[f], KAKEYA_PRECISION_BF16);
        kv_geometry written, read;
        kv_geometry_of(&d.verifier->config, d.drafter ? &d.drafter->config : NULL, &d.f_theta->config, KV_FORMAT_BF16,
                       &written);
        cJSON *json = kv_geometry_to_json(&written);
        REQUIRE_OK(kv_geometry_from_json(json, &read, error));
        const timeline_models models = {&d.verifier->config, d.drafter ? &d.drafter->config : NULL, &d.f_theta->config,
                                        NULL};
        for (int p = 0; p < POLICIES; p++) {
            backend_cache_options options = tiny_options(&d, &policies[p], KV_FORMAT_BF16);
            eval_arm arm = {.sink = options.sink, .window = options.window, .draft_window = options.draft_window};
            bool all = options.restore_layers == KAKEYA_RESTORE_ALL;
            options.keep_draft_context = false;
            snprintf(arm.mode, sizeof arm.mode, "ar");
            snprintf(arm.policy, sizeof arm.policy, "%s",
                     options.attention != KAKEYA_ATTENTION_RESTORED ? "sink-window"
                     : all                                          ? "restored-all"
                                                                    : "restored");
            timeline t = timeline_preview(&models, &options, 100);
            backend_cache_bytes held = kv_bytes(&t, 0), derived = kv_geometry_bytes(&read, &arm, 100);
            assert_memory_equal(&held, &derived, sizeof held);
        }
        cJSON_Delete(json);
        tiny_close(&d);
    }
}

/* f_thetas that are made up: of the published ranks, or of those that the description names. */
static void described_ranks(void **state) {
    (void)state;
    static const struct {
        const char *description;
        int rank_k, rank_v; /* 0: refused */
    } cases[] = {{"synthetic", RESTORATION_PUBLISHED_RANK, RESTORATION_PUBLISHED_RANK},
                 {"synthetic:128,256", 128, 256},
                 {"synthetic:8,8", 8, 8},
                 {"synthetic:", 0, 0},
                 {"synthetic:128", 0, 0},
                 {"synthetic:128,", 0, 0},
                 {"synthetic:0,8", 0, 0},
                 {"synthetic:8,-8", 0, 0},
                 {"synthetic:8,8,8", 0, 0},
                 {"synthetic:99999999999999999999,8", 0, 0}};
    kakeya_error e;
    tiny d;
    tiny_open_weights(&d, "gemma4-tiny-dense", "dflash-tiny");
    tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        restoration_model *f = NULL;
        assert_true(synthetic_is_f_theta(cases[i].description));
        kakeya_status status =
            synthetic_f_theta(d.ops, cases[i].description, &d.verifier->config, &d.drafter->config, &d.account, &f, &e);
        assert_int_equal(status, cases[i].rank_k ? KAKEYA_OK : KAKEYA_INVALID_ARGUMENT);
        if (status) {
            assert_non_null(strstr(e.message, cases[i].description));
            continue;
        }
        assert_int_equal(f->config.rank_k, cases[i].rank_k);
        assert_int_equal(f->config.rank_v, cases[i].rank_v);
        restoration_model_close(f);
    }
    assert_false(synthetic_is_f_theta("synthetics"));
    assert_false(synthetic_is_f_theta("models/synthetic"));
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(described_ranks),
        cmocka_unit_test(codes),
        cmocka_unit_test(latents_of_prompt),
        cmocka_unit_test(forms_agree),
        cmocka_unit_test(fewer_bits_cost_little),
        cmocka_unit_test(lossless),
        cmocka_unit_test(together),
        cmocka_unit_test(snapshots_know_their_form),
        cmocka_unit_test(sizes),
        cmocka_unit_test(geometry_of_reports),
    };
    return cmocka_run_group_tests_name("aux latents", tests, NULL, NULL);
}
