/* Sessions on a device: what they hold survives every schedule of prompts, blocks, rejections, truncation, copies and
 * saved states, in this engine and in a fresh one; blocks of which nothing is kept, other sessions and failing
 * allocations leave no trace. Everything is compared on bits. Run by `make test-gpu`; without a device every test is
 * skipped. */
#include <stdatomic.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backend/measure.h"
#include "gpu/random_pair.h"
#include "sweep.h"

/* ------------------------------------------------------------------------------------ allocations that can fail */

/* The linker puts these between the library and the CUDA runtime (CMakeLists.txt). */
cudaError_t __real_cudaMalloc(void **pointer, size_t bytes);
cudaError_t __real_cudaMallocHost(void **pointer, size_t bytes);
cudaError_t __real_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result);
cudaError_t __wrap_cudaMalloc(void **pointer, size_t bytes);
cudaError_t __wrap_cudaMallocHost(void **pointer, size_t bytes);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result);

static atomic_int allocations, failing = -1; /* the allocation of this number fails, once; -1: none */

static bool fails(void) { return atomic_fetch_add(&allocations, 1) == atomic_load(&failing); }

cudaError_t __wrap_cudaMalloc(void **pointer, size_t bytes) {
    return fails() ? cudaErrorMemoryAllocation : __real_cudaMalloc(pointer, bytes);
}

cudaError_t __wrap_cudaMallocHost(void **pointer, size_t bytes) {
    return fails() ? cudaErrorMemoryAllocation : __real_cudaMallocHost(pointer, bytes);
}

static CUresult (*real_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                       unsigned long long flags) {
    return fails() ? CUDA_ERROR_OUT_OF_MEMORY : real_create(handle, bytes, properties, flags);
}

cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result) {
    cudaError_t status = __real_cudaGetDriverEntryPointByVersion(symbol, function, version, flags, result);
    if (status != cudaSuccess || strcmp(symbol, "cuMemCreate") != 0 || !*function) return status;
    CUresult (*ours)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long) = create;
    memcpy(&real_create, function, sizeof real_create);
    memcpy(function, &ours, sizeof ours);
    return status;
}

/* --------------------------------------------------------------------------------------------- a conversation */

/* Three turns. Decode rows are compared; a prompt's rows, too. The demo's window of 256 wraps, 64 evicts. */
enum { TURNS = 3, CONTEXT = 1024 };
static const int prompt_rows[TURNS] = {150, 70, 260}, answer_rows[TURNS] = {45, 60, 50};
enum { ALL_ROWS = 150 + 45 + 70 + 60 + 260 + 50 };

typedef struct talk {
    pair *p;
    const policy *how;
    int32_t tokens[ALL_ROWS];
    float *logits; /* [ALL_ROWS][vocab] */
    size_t vocab;
} talk;

static void talk_open(talk *t, pair *p, const policy *how, uint32_t seed) {
    *t = (talk){.p = p, .how = how, .vocab = (size_t)p->verifier->config.vocab};
    fill_tokens(t->tokens, ALL_ROWS, (int)t->vocab, seed);
    t->logits = calloc(ALL_ROWS * t->vocab, sizeof *t->logits);
}

/* The plain way: whole prompts, one decode row at a time. */
static void talk_plainly(talk *t, int b) {
    backend_cache *cache = new_cache(t->p, b, t->how, CONTEXT, true);
    int at = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        step(t->p, b, cache, t->tokens + at, prompt_rows[turn], prompt_rows[turn], SEGMENT_PROMPT,
             t->logits + (size_t)at * t->vocab);
        at += prompt_rows[turn];
        for (int i = 0; i < answer_rows[turn]; i++, at++)
            step(t->p, b, cache, t->tokens + at, 1, 1, SEGMENT_DECODE, t->logits + (size_t)at * t->vocab);
    }
    t->p->ops[b]->cache_destroy(cache);
}

typedef struct player {
    talk *t;
    backend_cache *cache;
    float *scratch; /* [BACKEND_MAX_DECODE_ROWS][vocab] */
    uint32_t state;
    int events; /* how many of the rare ones happened */
} player;

static uint32_t draw(player *y, uint32_t n) {
    y->state = y->state * 1664525u + 1013904223u;
    return (y->state >> 8) % n;
}

/* A block behind `at`: `kept` rows of the conversation, then others; those kept are compared. */
static void play_block(player *y, int at, int n, int kept, const char *what) {
    talk *t = y->t;
    int32_t rows[BACKEND_MAX_DECODE_ROWS];
    for (int i = 0; i < n; i++) rows[i] = i < kept ? t->tokens[at + i] : (int32_t)draw(y, (uint32_t)t->vocab);
    step(t->p, CUDA, y->cache, rows, n, kept, SEGMENT_DECODE, y->scratch);
    assert_same_bits(what, y->scratch, t->logits + (size_t)at * t->vocab, (size_t)kept * t->vocab);
}

static void replace(player *y, backend_cache *cache) {
    y->t->p->ops[CUDA]->cache_destroy(y->cache);
    y->cache = cache;
    y->events++;
}

/* Something that must leave no trace. */
static void disturb(player *y, int at, const char *what) {
    talk *t = y->t;
    const backend_ops *ops = t->p->ops[CUDA];
    backend_cache *other = NULL;
    int32_t drafts[BACKEND_MAX_DRAFT];
    switch (draw(y, 6)) {
    case 0: /* a block of which nothing is kept */
    case 1:
        play_block(y, at, 1 + (int)draw(y, BACKEND_MAX_DECODE_ROWS), 0, what);
        break;
    case 2: /* a copy goes on */
        REQUIRE_OK(ops->cache_fork(y->cache, &t->p->account, &other, error));
        replace(y, other);
        break;
    case 3: { /* a saved state goes on */
        memory_stream data = snapshot_of(t->p, CUDA, y->cache);
        other = new_cache(t->p, CUDA, t->how, CONTEXT, true);
        REQUIRE_OK(ops->cache_restore(other, memory_read, &data, error));
        memory_free(&data);
        replace(y, other);
        break;
    }
    case 4:
        if (!t->p->drafter) break;
        REQUIRE_OK(backend_draft_one(ops, t->p->model[CUDA], y->cache, t->tokens[at],
                                     1 + (int)draw(y, BACKEND_MAX_DRAFT), drafts, error));
        break;
    default:
        break;
    }
}

/* The same conversation in random chunks, blocks and disturbances. */
static void play(talk *t, uint32_t seed) {
    char what[96];
    snprintf(what, sizeof what, "%s, seed %u", t->how->name, seed);
    player y = {.t = t, .state = seed, .cache = new_cache(t->p, CUDA, t->how, CONTEXT, true)};
    y.scratch = calloc((size_t)260 * t->vocab, sizeof *y.scratch);
    int at = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int left = prompt_rows[turn]; left > 0;) {
            int n = 1 + (int)draw(&y, (uint32_t)left);
            step(t->p, CUDA, y.cache, t->tokens + at, n, n, SEGMENT_PROMPT, y.scratch);
            assert_same_bits(what, y.scratch, t->logits + (size_t)at * t->vocab, (size_t)n * t->vocab);
            at += n;
            left -= n;
            if (draw(&y, 2)) disturb(&y, at < ALL_ROWS ? at : ALL_ROWS - 1, what);
        }
        for (int left = answer_rows[turn]; left > 0;) {
            int n = 1 + (int)draw(&y, BACKEND_MAX_DECODE_ROWS), kept = (int)draw(&y, (uint32_t)n + 1);
            if (kept > left) kept = left;
            play_block(&y, at, n, kept, what);
            at += kept;
            left -= kept;
            if (left > 0 && draw(&y, 4) == 0) disturb(&y, at, what);
            /* A few committed rows go, and come again, as far as the cache can go back. */
            int least = t->p->ops[CUDA]->cache_min_truncate(y.cache), back = at - (int)draw(&y, 6),
                begin = at - (answer_rows[turn] - left);
            if (draw(&y, 5) == 0 && back >= least && back > begin) {
                REQUIRE_OK(t->p->ops[CUDA]->cache_truncate(y.cache, back, error));
                left += at - back;
                at = back;
                y.events++;
            }
        }
        /* A full block behind the answer overwrites what the next prompt may see, and is dropped. */
        if (draw(&y, 2)) play_block(&y, at, BACKEND_MAX_DECODE_ROWS, 0, what);
    }
    assert_int_equal(at, ALL_ROWS);
    assert_true(y.events > 0);
    t->p->ops[CUDA]->cache_destroy(y.cache);
    free(y.scratch);
}

static void random_schedules(void **state) {
    (void)state;
    enum { SEEDS = 4 };
    pair p;
    pair_open(&p, demo_path(), true);
    for (int k = 0; k < POLICIES; k++) {
        talk t;
        talk_open(&t, &p, &policies[k], 61);
        talk_plainly(&t, CUDA);
        for (uint32_t seed = 1; seed <= (sweep_short() ? 1 : SEEDS); seed++) play(&t, seed);
        free(t.logits);
    }
    pair_close(&p);
}

static void random_schedules_of_shared_layers(void **state) {
    (void)state;
    static const int windows[3] = {0, 40, 0};
    model_config forms[] = {shared_form(), wide_form(), gemma3_form()};
    forms[1].sliding_window = forms[2].sliding_window = 192;
    for (int i = 0; i < forms[2].layers; i++) forms[2].layer[i].intermediate -= 7; /* prompts multiply eights of rows */
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        pair p;
        pair_random(&p, &forms[f], windows, false, true);
        for (int k = 0; k < POLICIES; k++) {
            talk t;
            talk_open(&t, &p, &policies[k], 67);
            talk_plainly(&t, CUDA);
            for (uint32_t seed = 1; seed <= (sweep_short() ? 1 : 3); seed++) play(&t, seed);
            free(t.logits);
        }
        pair_close(&p);
    }
}

/* The same with latents of aux hidden states. What is not restored has none. */
static void random_schedules_of_aux_forms(void **state) {
    (void)state;
    model_config forms[] = {wide_form(), shared_form()};
    forms[0].sliding_window = 192;
    for (int f = 0; f < AUX_FORMS; f++) {
        pair p;
        pair_random_aux(&p, &forms[f % 2], &aux_forms[f]);
        for (int k = 2; k < POLICIES; k++) {
            talk t;
            talk_open(&t, &p, &policies[k], 71);
            talk_plainly(&t, CUDA);
            for (uint32_t seed = 1; seed <= (sweep_short() ? 1 : 3); seed++) play(&t, seed + (uint32_t)f);
            free(t.logits);
        }
        pair_close(&p);
    }
}

/* The same with K/V of full-attention layers in codes: values alone, and keys and values. */
static void schedules_in_codes(kv_format format, int first_form) {
    static const int windows[3] = {0, 40, 0};
    pair_kv_format = format;
    for (int f = first_form; f < 4; f++) {
        pair p;
        model_config form = f == 1 ? tall_form() : f == 2 ? shared_form() : gemma3_form();
        if (f == 0)
            pair_open(&p, demo_path(), true);
        else
            pair_random(&p, &form, windows, false, true);
        for (int k = 0; k < POLICIES; k += sweep_short() ? 3 : 1) {
            talk t;
            talk_open(&t, &p, &policies[k], 73);
            talk_plainly(&t, CUDA);
            for (uint32_t seed = 1; seed <= (sweep_short() ? 1 : 2); seed++) play(&t, seed);
            free(t.logits);
        }
        pair_close(&p);
    }
    pair_kv_format = KV_FORMAT_BF16;
}

static void random_schedules_in_8_bits(void **state) {
    (void)state;
    schedules_in_codes(KV_FORMAT_Q8, 0);
}

static void random_schedules_in_4_bits(void **state) {
    (void)state;
    schedules_in_codes(KV_FORMAT_Q4, 2);
}

/* A block of which nothing is kept evicts nothing: the prompt behind it has the bits that it has without. */
static void dropped_first_block(void **state) {
    (void)state;
    enum { FIRST = 300, LATER = 80 };
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[FIRST + LATER + BACKEND_MAX_DECODE_ROWS];
    fill_tokens(tokens, FIRST + LATER + BACKEND_MAX_DECODE_ROWS, (int)vocab, 71);
    float *with = calloc(LATER * vocab, sizeof *with), *without = calloc(LATER * vocab, sizeof *without);
    for (int k = 0; k < POLICIES; k++) {
        for (int n = 1; n <= BACKEND_MAX_DECODE_ROWS; n += 8) {
            for (int drop = 0; drop < 2; drop++) {
                backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
                step(&p, CUDA, cache, tokens, FIRST, FIRST, SEGMENT_PROMPT, NULL);
                if (drop) step(&p, CUDA, cache, tokens + FIRST + LATER, n, 0, SEGMENT_DECODE, NULL);
                step(&p, CUDA, cache, tokens + FIRST, LATER, LATER, SEGMENT_PROMPT, drop ? with : without);
                p.ops[CUDA]->cache_destroy(cache);
            }
            assert_same_bits(policies[k].name, with, without, LATER * vocab);
        }
    }
    free(with);
    free(without);
    pair_close(&p);
}

/* A prompt that is dropped leaves no trace either, or, where it has overwritten what the committed rows need, a cache
 * that says so. */
static void dropped_prompt(void **state) {
    (void)state;
    enum { FIRST = 200, SHORT = 40, LONG = 500, ROWS = 9 };
    pair p;
    pair_open(&p, demo_path(), true);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[FIRST + LONG];
    fill_tokens(tokens, FIRST + LONG, (int)vocab, 101);
    float *with = calloc(ROWS * vocab, sizeof *with), *without = calloc(ROWS * vocab, sizeof *without);
    for (int k = 0; k < POLICIES; k++) {
        for (int dropped = 0; dropped <= LONG; dropped += dropped ? LONG - SHORT : SHORT) {
            backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            step(&p, CUDA, cache, tokens, FIRST, FIRST, SEGMENT_PROMPT, NULL);
            if (dropped) step(&p, CUDA, cache, tokens + FIRST, dropped, 0, SEGMENT_PROMPT, NULL);
            assert_int_equal(ops->cache_length(cache), FIRST);
            if (dropped == LONG) {
                kakeya_error refusal = {0};
                backend_segment segment = {
                    .cache = cache, .tokens = tokens, .n = 1, .kind = SEGMENT_DECODE, .logits = with};
                assert_int_equal(ops->cache_min_truncate(cache), FIRST + 1);
                assert_int_equal(ops->forward(p.model[CUDA], &segment, 1, &refusal), KAKEYA_INVALID_ARGUMENT);
                assert_non_null(strstr(refusal.message, "dropped prompt"));
            } else {
                step(&p, CUDA, cache, tokens + FIRST, ROWS, ROWS, SEGMENT_DECODE, dropped ? with : without);
            }
            ops->cache_destroy(cache);
        }
        assert_same_bits(policies[k].name, with, without, ROWS * vocab);
    }
    free(with);
    free(without);
    pair_close(&p);
}

/* ---------------------------------------------------------------------------------------------- several sessions */

/* Segments of two sessions in one forward, prompts beside decode rows: each has the bits that it has alone. One that is
 * refused changes neither. */
static void two_segments(void **state) {
    (void)state;
    enum { FIRST = 200, ROWS = 9, TOO_MANY = CONTEXT, ENOUGH = FIRST + 3 * ROWS + TOO_MANY };
    pair p;
    pair_open(&p, demo_path(), true);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[2][ENOUGH];
    for (int s = 0; s < 2; s++) fill_tokens(tokens[s], ENOUGH, (int)vocab, 73 + (uint32_t)s);
    float *alone = calloc(2 * 3 * ROWS * vocab, sizeof *alone),
          *together = calloc(2 * 3 * ROWS * vocab, sizeof *together);
    for (int k = 0; k < POLICIES; k++) {
        for (int s = 0; s < 2; s++) { /* session 0 decodes thrice; session 1 decodes, is prompted, decodes */
            backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            step(&p, CUDA, cache, tokens[s], FIRST, FIRST, SEGMENT_PROMPT, NULL);
            for (int i = 0; i < 3; i++)
                step(&p, CUDA, cache, tokens[s] + FIRST + i * ROWS, ROWS, ROWS,
                     s && i == 1 ? SEGMENT_PROMPT : SEGMENT_DECODE, alone + (size_t)((s * 3 + i) * ROWS) * vocab);
            ops->cache_destroy(cache);
        }
        backend_cache *caches[2];
        for (int s = 0; s < 2; s++) {
            caches[s] = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            step(&p, CUDA, caches[s], tokens[s], FIRST, FIRST, SEGMENT_PROMPT, NULL);
        }
        for (int i = 0; i < 3; i++) {
            backend_segment segments[2];
            for (int s = 0; s < 2; s++)
                segments[s] = (backend_segment){.cache = caches[s],
                                                .tokens = tokens[s] + FIRST + i * ROWS,
                                                .n = ROWS,
                                                .kind = s && i == 1 ? SEGMENT_PROMPT : SEGMENT_DECODE,
                                                .logits = together + (size_t)((s * 3 + i) * ROWS) * vocab};
            kakeya_error refusal = {0};
            segments[1].n = TOO_MANY; /* for its kind, or for its context */
            assert_int_not_equal(ops->forward(p.model[CUDA], segments, 2, &refusal), KAKEYA_OK);
            for (int s = 0; s < 2; s++) {
                assert_int_equal(ops->cache_length(caches[s]), FIRST + i * ROWS);
                assert_int_equal(ops->cache_pending(caches[s]), 0);
            }
            segments[1].n = ROWS;
            REQUIRE_OK(ops->forward(p.model[CUDA], segments, 2, error));
            for (int s = 0; s < 2; s++) REQUIRE_OK(ops->cache_commit(caches[s], ROWS, error));
        }
        assert_same_bits(policies[k].name, together, alone, 2 * 3 * ROWS * vocab);
        for (int s = 0; s < 2; s++) ops->cache_destroy(caches[s]);
    }
    free(alone);
    free(together);
    pair_close(&p);
}

/* A session whose K/V are not numbers leaves no trace in another one, whatever buffers they share. */
static void poisoned_session(void **state) {
    (void)state;
    enum { POISON = 639, ROWS = 300, MORE = 30 };
    static const int windows[3] = {0, 0, 0};
    model_config form = wide_form();
    form.sliding_window = 192;
    pair p;
    random_models(&p, &form, windows, true);
    /* One token's embedding, and with it all K/V of its position, are not numbers. */
    uint16_t *row = (uint16_t *)(uintptr_t)weight_row(&p.verifier->weights.embed, 0, POISON);
    for (int i = 0; i < form.hidden; i++) row[i] = 0x7fc0;
    pair_create(&p, false);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)form.vocab;
    int32_t healthy[ROWS + MORE], ill[ROWS + MORE];
    fill_tokens(healthy, ROWS + MORE, POISON, 79);
    fill_tokens(ill, ROWS + MORE, POISON, 83);
    for (int i = 0; i < ROWS + MORE; i += 3) ill[i] = POISON;
    float *logits[2] = {calloc((ROWS + MORE) * vocab, sizeof(float)), calloc((ROWS + MORE) * vocab, sizeof(float))};
    for (int k = 0; k < POLICIES; k++) {
        for (int with = 0; with < 2; with++) {
            backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true), *other = NULL;
            int32_t drafts[2][BACKEND_MAX_DRAFT], choice;
            if (with) other = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            if (with) step(&p, CUDA, other, ill, ROWS, ROWS, SEGMENT_PROMPT, NULL);
            step(&p, CUDA, cache, healthy, 100, 100, SEGMENT_PROMPT, logits[with]);
            step(&p, CUDA, cache, healthy + 100, ROWS - 100, ROWS - 100, SEGMENT_PROMPT, logits[with] + 100 * vocab);
            for (int at = ROWS; at < ROWS + MORE; at += 5) {
                if (with) {
                    backend_segment segment = {
                        .cache = other, .tokens = ill + at, .n = 1, .kind = SEGMENT_DECODE, .argmax = &choice};
                    REQUIRE_OK(ops->forward(p.model[CUDA], &segment, 1, error));
                    assert_int_equal(choice, -1); /* it is ill indeed */
                    REQUIRE_OK(ops->cache_commit(other, 1, error));
                    REQUIRE_OK(backend_draft_one(ops, p.model[CUDA], other, healthy[at], 7, drafts[0], error));
                }
                step(&p, CUDA, cache, healthy + at, 5, 5, SEGMENT_DECODE, logits[with] + (size_t)at * vocab);
            }
            REQUIRE_OK(backend_draft_one(ops, p.model[CUDA], cache, healthy[0], 7, drafts[1], error));
            ops->cache_destroy(cache);
            if (with) ops->cache_destroy(other);
        }
        /* The head is the embedding: the logit of the poisoned token itself is no number. */
        for (size_t i = 0; i < (ROWS + MORE) * vocab; i++) assert_true(i % vocab == POISON || isfinite(logits[0][i]));
        assert_same_bits(policies[k].name, logits[1], logits[0], (ROWS + MORE) * vocab);
    }
    free(logits[0]);
    free(logits[1]);
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------------ saved sessions */

/* A session is saved at some length, and goes on in a fresh engine by a prompt and an answer: the same bits as without
 * the break; what the CPU makes of it, saved again, is the same, too. */
static void resume_elsewhere(void (*open)(pair *), int first_policy) {
    static const int saved_at[] = {0, 1, 150, 155, 195, 265, 300};
    for (int k = first_policy; k < POLICIES; k++) {
        pair p;
        open(&p);
        talk t;
        talk_open(&t, &p, &policies[k], 89);
        talk_plainly(&t, CUDA);
        memory_stream data[sizeof saved_at / sizeof saved_at[0]];
        backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
        int at = 0, begin = 0, saved = 0, n_saved = (int)(sizeof saved_at / sizeof saved_at[0]);
        for (int turn = 0; turn < TURNS && saved < n_saved; begin += prompt_rows[turn] + answer_rows[turn], turn++) {
            while (saved < n_saved && at < begin + prompt_rows[turn] + answer_rows[turn]) {
                int end = begin + prompt_rows[turn];
                if (saved_at[saved] == at) {
                    data[saved] = snapshot_of(&p, CUDA, cache);
                    saved++;
                    continue;
                }
                int to = at < end && end < saved_at[saved] ? end : at < end ? saved_at[saved] : at + 1;
                step(&p, CUDA, cache, t.tokens + at, to - at, to - at, at < end ? SEGMENT_PROMPT : SEGMENT_DECODE,
                     NULL);
                at = to;
            }
        }
        assert_int_equal(saved, n_saved);
        p.ops[CUDA]->cache_destroy(cache);
        p.ops[CUDA]->model_destroy(p.model[CUDA]);
        float *logits = calloc(ALL_ROWS * t.vocab, sizeof *logits);
        for (int i = 0; i < n_saved; i++) {
            if (sweep_short() && (i + k) % 2) { /* every length, and every policy, half of their pairs */
                memory_free(&data[i]);
                continue;
            }
            backend_model_options options = pair_options(&p, CUDA, false);
            REQUIRE_OK(p.ops[CUDA]->model_create(&options, &p.model[CUDA], error));
            cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            backend_cache *on_cpu = new_cache(&p, CPU, &policies[k], CONTEXT, true);
            REQUIRE_OK(p.ops[CPU]->cache_restore(on_cpu, memory_read, &data[i], error));
            memory_stream again = snapshot_of(&p, CPU, on_cpu);
            assert_int_equal(again.bytes, data[i].bytes);
            assert_memory_equal(again.data, data[i].data, again.bytes);
            REQUIRE_OK(p.ops[CUDA]->cache_restore(cache, memory_read, &again, error));
            at = saved_at[i];
            for (int turn = 0, first = 0; turn < TURNS; first += prompt_rows[turn] + answer_rows[turn], turn++) {
                int end = first + prompt_rows[turn], last = end + answer_rows[turn];
                if (at < end) {
                    step(&p, CUDA, cache, t.tokens + at, end - at, end - at, SEGMENT_PROMPT,
                         logits + (size_t)at * t.vocab);
                    at = end;
                }
                for (; at < last; at++)
                    step(&p, CUDA, cache, t.tokens + at, 1, 1, SEGMENT_DECODE, logits + (size_t)at * t.vocab);
            }
            char what[96];
            snprintf(what, sizeof what, "%s, saved at %d", policies[k].name, saved_at[i]);
            size_t from = (size_t)saved_at[i] * t.vocab;
            assert_same_bits(what, logits + from, t.logits + from, ALL_ROWS * t.vocab - from);
            p.ops[CUDA]->cache_destroy(cache);
            p.ops[CPU]->cache_destroy(on_cpu);
            memory_free(&again);
            memory_free(&data[i]);
            p.ops[CUDA]->model_destroy(p.model[CUDA]);
        }
        backend_model_options options = pair_options(&p, CUDA, false);
        REQUIRE_OK(p.ops[CUDA]->model_create(&options, &p.model[CUDA], error));
        free(logits);
        free(t.logits);
        pair_close(&p);
    }
}

static void open_demo(pair *p) { pair_open(p, demo_path(), true); }

static void fresh_engine(void **state) {
    (void)state;
    resume_elsewhere(open_demo, 0);
}

/* Latents in 8 and 4 bits, without a drafter and beside one: aux hidden states that wait are in two orders. */
static void open_shared_q8(pair *p) {
    model_config form = wide_form();
    form.sliding_window = 192;
    pair_random_aux(p, &form, &aux_forms[0]);
}

static void open_separate_q4(pair *p) {
    model_config form = shared_form();
    pair_random_aux(p, &form, &aux_forms[1]);
}

static void fresh_engine_in_8_bits(void **state) {
    (void)state;
    pair_kv_format = KV_FORMAT_Q8;
    resume_elsewhere(open_demo, 3);
    pair_kv_format = KV_FORMAT_BF16;
}

static void fresh_engine_in_4_bits(void **state) {
    (void)state;
    pair_kv_format = KV_FORMAT_Q4;
    resume_elsewhere(open_demo, 3);
    pair_kv_format = KV_FORMAT_BF16;
}

static void fresh_engine_of_aux_forms(void **state) {
    (void)state;
    resume_elsewhere(open_shared_q8, 2);
    resume_elsewhere(open_separate_q4, 2);
}

/* -------------------------------------------------------------------------------------------- failing allocations */

/* A verb that runs out of memory says so, and does its work when it is asked again. */
#define AGAIN(call)                                                                                                    \
    do {                                                                                                               \
        kakeya_error refusal_ = {0};                                                                                   \
        kakeya_error *error = &refusal_;                                                                               \
        kakeya_status refused_ = (call);                                                                               \
        if (refused_ == KAKEYA_OUT_OF_MEMORY) refused_ = (call);                                                       \
        if (refused_) fail_msg("%s: %s", #call, refusal_.message);                                                     \
    } while (0)

static void rows(pair *p, backend_cache *cache, const int32_t *tokens, int n, int kept, segment_kind kind,
                 float *logits) {
    backend_segment segment = {.cache = cache, .tokens = tokens, .n = n, .kind = kind, .logits = logits};
    AGAIN(p->ops[CUDA]->forward(p->model[CUDA], &segment, 1, error));
    AGAIN(p->ops[CUDA]->cache_commit(cache, kept, error));
}

/* A short life of a session that allocates wherever one can; its logits in `logits`. */
enum {
    LIFE_PROMPT = 200,
    LIFE_BLOCKS = 3,
    LIFE_LATER = 150,
    LIFE_ROWS = LIFE_PROMPT + 8 * LIFE_BLOCKS + LIFE_LATER + 9
};

static void live(pair *p, const policy *how, const int32_t *tokens, float *logits) {
    const backend_ops *ops = p->ops[CUDA];
    size_t vocab = (size_t)p->verifier->config.vocab;
    backend_cache_options options = {.context_tokens = CONTEXT,
                                     .attention = how->attention,
                                     .restore_layers = how->layers,
                                     .sink = 4,
                                     .window = 64,
                                     .draft_window = 256,
                                     .kv_format = KV_FORMAT_BF16,
                                     .keep_draft_context = true,
                                     .account = &p->account};
    backend_cache *cache = NULL, *copy = NULL, *back = NULL;
    int32_t drafts[7];
    int at = LIFE_PROMPT;
    AGAIN(ops->cache_create(p->model[CUDA], &options, &cache, error));
    rows(p, cache, tokens, LIFE_PROMPT, LIFE_PROMPT, SEGMENT_PROMPT, logits);
    for (int i = 0; i < LIFE_BLOCKS; i++, at += 8) {
        AGAIN(backend_draft_one(ops, p->model[CUDA], cache, tokens[at], 7, drafts, error));
        rows(p, cache, tokens + at, 8, 8, SEGMENT_DECODE, logits + (size_t)at * vocab);
    }
    AGAIN(ops->cache_fork(cache, &p->account, &copy, error));
    rows(p, copy, tokens + at, LIFE_LATER, LIFE_LATER, SEGMENT_PROMPT, logits + (size_t)at * vocab);
    at += LIFE_LATER;
    memory_stream data = snapshot_of(p, CUDA, copy);
    AGAIN(ops->cache_create(p->model[CUDA], &options, &back, error));
    AGAIN((data.at = 0, ops->cache_restore(back, memory_read, &data, error)));
    rows(p, back, tokens + at, 9, 9, SEGMENT_DECODE, logits + (size_t)at * vocab);
    memory_free(&data);
    ops->cache_destroy(cache);
    ops->cache_destroy(copy);
    ops->cache_destroy(back);
}

static void failing_allocations(void **state) {
    (void)state;
    static const int windows[3] = {0, 40, 0};
    model_config form = wide_form();
    form.sliding_window = 192;
    pair p;
    pair_random(&p, &form, windows, false, true);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[LIFE_ROWS];
    fill_tokens(tokens, LIFE_ROWS, (int)vocab, 97);
    float *expected = calloc(LIFE_ROWS * vocab, sizeof *expected), *found = calloc(LIFE_ROWS * vocab, sizeof *found);
    for (int k = 0; k < POLICIES; k++) {
        live(&p, &policies[k], tokens, expected);
        size_t before = mem_total(&p.account);
        /* a short run fails one in so many as there are policies, others under each, and half of that where two devices
         * have twice the allocations */
        const int every = sweep_short() ? POLICIES * PAIR_DEVICES + (PAIR_DEVICES - 1) : 1;
        const int first = sweep_short() ? k * PAIR_DEVICES : 0;
        int last = first + 1;
        for (int i = first; i < last; i += every) {
            /* Buffers that all sessions of a model share grow once, and it keeps the memory of closed ones: a fresh
             * model has neither. */
            failing = -1;
            ops->model_destroy(p.model[CUDA]);
            backend_model_options options = pair_options(&p, CUDA, false);
            REQUIRE_OK(ops->model_create(&options, &p.model[CUDA], error));
            allocations = 0;
            failing = i;
            live(&p, &policies[k], tokens, found);
            last = allocations;
            failing = -1;
            char what[64];
            snprintf(what, sizeof what, "%s, allocation %d fails", policies[k].name, i);
            assert_same_bits(what, found, expected, LIFE_ROWS * vocab);
        }
        assert_true(last > 20);
        print_message("%s: of %d allocations one in %d has failed once\n", policies[k].name, last - 1, every);
        if (policies[k].attention != KAKEYA_ATTENTION_RESTORED) assert_int_equal(mem_total(&p.account), before);
    }
    free(expected);
    free(found);
    pair_close(&p);
}

/* The device's allocations that opening two sessions takes; both are closed, the first one under that limit. */
static int open_two(pair *p, size_t limit_beside_one) {
    const backend_ops *ops = p->ops[CUDA];
    backend_cache *one = NULL, *other = NULL;
    allocations = 0;
    one = new_cache(p, CUDA, &policies[0], CONTEXT, false);
    size_t beside = mem_total(&p->account);
    other = new_cache(p, CUDA, &policies[0], CONTEXT, false);
    int taken = allocations;
    ops->cache_destroy(other);
    if (limit_beside_one) p->account.limit_bytes = beside + limit_beside_one;
    ops->cache_destroy(one);
    p->account.limit_bytes = 0;
    return taken;
}

/* Memory of closed sessions serves the next ones, which see nothing of what it held, and stays within the limit. */
static void kept_memory(void **state) {
    (void)state;
    static const int windows[3] = {0, 40, 0};
    model_config form = wide_form();
    form.sliding_window = 192;
    pair p;
    pair_random(&p, &form, windows, false, true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[LIFE_ROWS];
    fill_tokens(tokens, LIFE_ROWS, (int)vocab, 98);
    float *expected = calloc(LIFE_ROWS * vocab, sizeof *expected), *found = calloc(LIFE_ROWS * vocab, sizeof *found);
    for (int k = 0; k < POLICIES; k++) {
        live(&p, &policies[k], tokens, expected);
        live(&p, &policies[k], tokens, found);
        assert_same_bits("with memory that was kept", found, expected, LIFE_ROWS * vocab);
    }
    (void)open_two(&p, 0);
    int pages = open_two(&p, 1); /* full layers' pages are not kept */
    /* The limit left one session's memory and one byte: that of the other was freed. */
    int freed = open_two(&p, 0);
    print_message("opening two sessions: %d allocations, %d after a limit\n", pages, freed);
    assert_true(freed > pages);
    assert_int_equal(open_two(&p, 0), pages);
    free(expected);
    free(found);
    pair_close(&p);
}

/* Sessions of different lengths go on together: their steps are captured few times, however often one of them gets
 * another partition. */
static void growing_sessions_keep_graphs(void **state) {
    (void)state;
    enum { SESSIONS = 20, SHORTEST = 20, APART = 7, STEPS = 150, MOST_GRAPHS = 8 };
    pair p;
    pair_open(&p, demo_path(), false);
    const backend_measure_ops *measure = backend_measure_find(p.ops[CUDA]);
    backend_cache *cache[SESSIONS];
    backend_segment segments[SESSIONS];
    backend_forwards before, counted;
    static int32_t tokens[SHORTEST + SESSIONS * APART + STEPS];
    fill_tokens(tokens, SHORTEST + SESSIONS * APART + STEPS, (int)p.verifier->config.vocab, 29);
    for (int s = 0; s < SESSIONS; s++) {
        const int n = SHORTEST + s * APART;
        cache[s] = new_cache(&p, CUDA, &policies[0], CONTEXT, false);
        step(&p, CUDA, cache[s], tokens, n, n, SEGMENT_PROMPT, NULL);
    }
    measure->forwards(p.model[CUDA], &before);
    for (int i = 0; i < STEPS; i++) {
        for (int s = 0; s < SESSIONS; s++)
            segments[s] = (backend_segment){.cache = cache[s],
                                            .tokens = tokens + SHORTEST + s * APART + i,
                                            .n = 1,
                                            .kind = SEGMENT_DECODE,
                                            .first_logit_row = 1};
        REQUIRE_OK(p.ops[CUDA]->forward(p.model[CUDA], segments, SESSIONS, error));
        for (int s = 0; s < SESSIONS; s++) REQUIRE_OK(p.ops[CUDA]->cache_commit(cache[s], 1, error));
    }
    measure->forwards(p.model[CUDA], &counted);
    assert_in_range(counted.graphs - before.graphs, 1, MOST_GRAPHS);
    for (int s = 0; s < SESSIONS; s++) p.ops[CUDA]->cache_destroy(cache[s]);
    pair_close(&p);
}

/* Products of prompts take eights of outputs. Dense blocks are padded; what is not is refused when the model is opened,
 * not at the first prompt. */
static void refused_widths(void **state) {
    (void)state;
    model_config forms[] = {shared_form(), routed_form()};
    forms[0].ple_width -= 4;
    forms[1].expert_intermediate -= 4;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        pair p;
        random_models(&p, &forms[f], NULL, false);
        backend_model_options options = pair_options(&p, CUDA, false);
        backend_model *model = NULL;
        kakeya_error refusal = {0};
        assert_int_equal(backend_find("cuda", NULL)->model_create(&options, &model, &refusal), KAKEYA_UNSUPPORTED);
        assert_non_null(strstr(refusal.message, "is not a multiple of 8, as backend cuda needs"));
        assert_null(model);
        pair_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules),
        cmocka_unit_test(random_schedules_of_shared_layers),
        cmocka_unit_test(random_schedules_in_8_bits),
        cmocka_unit_test(fresh_engine_in_8_bits),
        cmocka_unit_test(random_schedules_in_4_bits),
        cmocka_unit_test(fresh_engine_in_4_bits),
        cmocka_unit_test(random_schedules_of_aux_forms),
        cmocka_unit_test(fresh_engine_of_aux_forms),
        cmocka_unit_test(dropped_first_block),
        cmocka_unit_test(dropped_prompt),
        cmocka_unit_test(two_segments),
        cmocka_unit_test(poisoned_session),
        cmocka_unit_test(fresh_engine),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(kept_memory),
        cmocka_unit_test(growing_sessions_keep_graphs),
        cmocka_unit_test(refused_widths),
    };
    return cmocka_run_group_tests_name("sessions", tests, NULL, NULL);
}
