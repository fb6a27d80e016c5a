/* The CUDA backend on a device: reference vectors, the CPU backend as oracle, and what must hold on bits: any chunking
 * of a prompt, any number of decode rows, truncation, fork and snapshot. Without a device every test is skipped. */
#include "backend/measure.h"
#include "base/exp_weight.h"
#include "gpu/policy_checks.h"

/* ------------------------------------------------------------------------------------------- reference vectors */

static void moe_form(void **state) {
    (void)state;
    check_form("gemma4-tiny-moe");
}

static void dense_form(void **state) {
    (void)state;
    check_form("gemma4-tiny-dense");
}

static void per_layer_embedding_form(void **state) {
    (void)state;
    check_form("gemma4-tiny-ple");
}

/* ------------------------------------------------------------------------------------------------ CPU as oracle */

enum { PROMPT = 400, DECODE = 100 };

static void against_cpu(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[PROMPT + DECODE];
    fill_tokens(tokens, PROMPT + DECODE, (int)vocab, 7);
    float *logits[MODELS], *decoded[MODELS];
    for (int b = 0; b < MODELS; b++) {
        logits[b] = calloc(PROMPT * vocab, sizeof(float));
        decoded[b] = calloc(DECODE * vocab, sizeof(float));
    }
    for (int k = 0; k < POLICIES; k++) {
        backend_cache *caches[MODELS];
        int drafts_equal = 0, drafts_all = 0;
        for (int b = 0; b < MODELS; b++) {
            caches[b] = new_cache(&p, b, &policies[k], CONTEXT, true);
            step(&p, b, caches[b], tokens, PROMPT, PROMPT, SEGMENT_PROMPT, logits[b]);
        }
        assert_as_close("prompt", logits[CUDA], logits[CPU], logits[REFERENCE], PROMPT * vocab);
        for (int at = 0; at < DECODE; at += 5) {
            int32_t drafts[MODELS][7];
            for (int b = 0; b < MODELS; b++) {
                step(&p, b, caches[b], tokens + PROMPT + at, 5, 5, SEGMENT_DECODE, decoded[b] + (size_t)at * vocab);
                if (at % 20 == 0)
                    REQUIRE_OK(backend_draft_one(p.ops[b], p.model[b], caches[b], tokens[at], 7, drafts[b], error));
            }
            for (int i = 0; at % 20 == 0 && i < 7; i++, drafts_all++) drafts_equal += drafts[CPU][i] == drafts[CUDA][i];
        }
        assert_as_close(policies[k].name, decoded[CUDA], decoded[CPU], decoded[REFERENCE], DECODE * vocab);
        if (drafts_equal * 10 < drafts_all * 8)
            fail_msg("%s: %d of %d drafts equal", policies[k].name, drafts_equal, drafts_all);
        for (int b = 0; b < MODELS; b++) p.ops[b]->cache_destroy(caches[b]);
    }
    for (int b = 0; b < MODELS; b++) {
        free(logits[b]);
        free(decoded[b]);
    }
    pair_close(&p);
}

/* ---------------------------------------------------------------------------------------------------- on bits */

static void row_counts(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[PROMPT + DECODE];
    fill_tokens(tokens, PROMPT + DECODE, (int)vocab, 11);
    float *one = calloc(DECODE * vocab, sizeof *one), *many = calloc(DECODE * vocab, sizeof *many);
    for (int k = 0; k < POLICIES; k++) {
        for (int rows = 1; rows <= BACKEND_MAX_DECODE_ROWS; rows++) {
            backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            step(&p, CUDA, cache, tokens, PROMPT, PROMPT, SEGMENT_PROMPT, NULL);
            float *to = rows == 1 ? one : many;
            for (int at = 0, round = 0; at < DECODE; round++) {
                int n = DECODE - at < rows ? DECODE - at : rows, kept = n > 1 && round % 2 ? n / 2 : n;
                int32_t block[BACKEND_MAX_DECODE_ROWS];
                /* rows that will be dropped hold other tokens: they must leave no trace */
                for (int i = 0; i < n; i++) block[i] = i < kept ? tokens[PROMPT + at + i] : tokens[i];
                float *rows_logits = calloc((size_t)n * vocab, sizeof(float));
                step(&p, CUDA, cache, block, n, kept, SEGMENT_DECODE, rows_logits);
                memcpy(to + (size_t)at * vocab, rows_logits, (size_t)kept * vocab * sizeof(float));
                free(rows_logits);
                at += kept;
            }
            p.ops[CUDA]->cache_destroy(cache);
            if (rows == 1) continue;
            char what[64];
            snprintf(what, sizeof what, "%s, blocks of %d rows", policies[k].name, rows);
            assert_same_bits(what, many, one, DECODE * vocab);
        }
    }
    free(one);
    free(many);
    pair_close(&p);
}

static void snapshots(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[PROMPT + DECODE];
    fill_tokens(tokens, PROMPT + DECODE, (int)vocab, 13);
    float *a = calloc(17 * vocab, sizeof *a), *b = calloc(17 * vocab, sizeof *b);
    for (int k = 0; k < POLICIES; k++) {
        mem_account own;
        mem_account_init(&own, &p.account, 0);
        backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
        step(&p, CUDA, cache, tokens, PROMPT, PROMPT, SEGMENT_PROMPT, NULL);
        for (int i = 0; i < 40; i++) step(&p, CUDA, cache, tokens + PROMPT + i, 1, 1, SEGMENT_DECODE, NULL);

        /* Through a snapshot on this backend and through the CPU's cache: the same bytes, the same future. */
        memory_stream data = snapshot_of(&p, CUDA, cache);
        backend_cache *on_cpu = new_cache(&p, CPU, &policies[k], CONTEXT, true);
        REQUIRE_OK(p.ops[CPU]->cache_restore(on_cpu, memory_read, &data, error));
        memory_stream cpu_data = snapshot_of(&p, CPU, on_cpu);
        assert_int_equal(data.bytes, cpu_data.bytes);
        assert_memory_equal(data.data, cpu_data.data, data.bytes);
        backend_cache *back = new_cache(&p, CUDA, &policies[k], CONTEXT, true), *fork = NULL;
        REQUIRE_OK(p.ops[CUDA]->cache_restore(back, memory_read, &cpu_data, error));
        memory_stream again = snapshot_of(&p, CUDA, back);
        assert_int_equal(data.bytes, again.bytes);
        assert_memory_equal(data.data, again.data, data.bytes);
        REQUIRE_OK(p.ops[CUDA]->cache_fork(cache, &own, &fork, error));
        backend_cache_bytes formula = p.ops[CUDA]->cache_bytes(fork);
        assert_int_equal(formula.full, mem_bytes(&own, MEM_KV_FULL));
        assert_int_equal(formula.sliding, mem_bytes(&own, MEM_KV_SLIDING));
        assert_int_equal(formula.latent, mem_bytes(&own, MEM_KV_LATENT));
        assert_int_equal(formula.draft, mem_bytes(&own, MEM_KV_DRAFT));
        step(&p, CUDA, cache, tokens + 60, 9, 9, SEGMENT_DECODE, a);
        step(&p, CUDA, back, tokens + 60, 9, 9, SEGMENT_DECODE, b);
        assert_same_bits("after restore", b, a, 9 * vocab);
        step(&p, CUDA, fork, tokens + 60, 9, 9, SEGMENT_DECODE, b);
        assert_same_bits("after fork", b, a, 9 * vocab);
        int32_t drafts[2][7];
        REQUIRE_OK(backend_draft_one(p.ops[CUDA], p.model[CUDA], cache, tokens[3], 7, drafts[0], error));
        REQUIRE_OK(backend_draft_one(p.ops[CUDA], p.model[CUDA], fork, tokens[3], 7, drafts[1], error));
        assert_memory_equal(drafts[0], drafts[1], sizeof drafts[0]);

        /* Back by three and forth again: the same bits. */
        int length = p.ops[CUDA]->cache_length(cache);
        step(&p, CUDA, cache, tokens + 80, 3, 3, SEGMENT_DECODE, a);
        REQUIRE_OK(p.ops[CUDA]->cache_truncate(cache, length, error));
        step(&p, CUDA, cache, tokens + 80, 3, 3, SEGMENT_DECODE, b);
        assert_same_bits("after truncation", b, a, 3 * vocab);
        p.ops[CUDA]->cache_destroy(cache);
        p.ops[CUDA]->cache_destroy(back);
        p.ops[CUDA]->cache_destroy(fork);
        p.ops[CPU]->cache_destroy(on_cpu);
        assert_int_equal(mem_total(&own), 0);
        memory_free(&data);
        memory_free(&cpu_data);
        memory_free(&again);
    }
    free(a);
    free(b);
    pair_close(&p);
}

static void prompt_chunks(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[PROMPT];
    fill_tokens(tokens, PROMPT, (int)vocab, 17);
    float *whole = calloc(PROMPT * vocab, sizeof *whole), *parts = calloc(PROMPT * vocab, sizeof *parts);
    for (int k = 0; k < POLICIES; k++) {
        static const int chunks[] = {PROMPT, 1, 33, 64, 300};
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            for (int at = 0; at < PROMPT; at += chunks[i]) {
                int n = PROMPT - at < chunks[i] ? PROMPT - at : chunks[i];
                step(&p, CUDA, cache, tokens + at, n, n, SEGMENT_PROMPT, (i ? parts : whole) + (size_t)at * vocab);
            }
            p.ops[CUDA]->cache_destroy(cache);
            char what[64];
            snprintf(what, sizeof what, "%s, chunks of %d", policies[k].name, chunks[i]);
            if (i) assert_same_bits(what, parts, whole, PROMPT * vocab);
        }
    }
    free(whole);
    free(parts);
    pair_close(&p);
}

/* Before anything is evicted every policy's prompt rows see what native ones see, and take the same kernels. */
static void first_prompts_are_native(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[PROMPT];
    fill_tokens(tokens, PROMPT, (int)vocab, 43);
    float *native = calloc(PROMPT * vocab, sizeof *native), *bounded = calloc(PROMPT * vocab, sizeof *bounded);
    for (int k = 0; k < POLICIES; k++) {
        backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
        step(&p, CUDA, cache, tokens, PROMPT, PROMPT, SEGMENT_PROMPT, k ? bounded : native);
        p.ops[CUDA]->cache_destroy(cache);
        if (k) assert_same_bits(policies[k].name, bounded, native, PROMPT * vocab);
    }
    free(native);
    free(bounded);
    pair_close(&p);
}

static void later_prompts(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    check_later_prompts(&p, "demo", p.verifier->config.sliding_window);
    pair_close(&p);
}

/* --------------------------------------------------------------------- forms that the bundled models do not have */

/* Prompt rows of a sharing layer attend the source layer's rows of the same chunk. */
static void shared_kv(void **state) {
    (void)state;
    enum { ROWS = 300, MORE = 40 };
    pair p;
    model_config form = shared_form();
    pair_random(&p, &form, NULL, false, false);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[ROWS + MORE];
    fill_tokens(tokens, ROWS + MORE, (int)vocab, 23);
    float *logits[MODELS], *again = calloc((ROWS + MORE) * vocab, sizeof *again);
    for (int k = 0; k < 2; k++) { /* native, sink-window */
        for (int b = 0; b < MODELS; b++) {
            logits[b] = calloc((ROWS + MORE) * vocab, sizeof(float));
            backend_cache *cache = new_cache(&p, b, &policies[k], CONTEXT, false);
            step(&p, b, cache, tokens, ROWS, ROWS, SEGMENT_PROMPT, logits[b]);
            for (int at = ROWS; at < ROWS + MORE; at += 8)
                step(&p, b, cache, tokens + at, 8, 8, SEGMENT_DECODE, logits[b] + (size_t)at * vocab);
            p.ops[b]->cache_destroy(cache);
        }
        assert_as_close("shared K/V", logits[CUDA], logits[CPU], logits[REFERENCE], (ROWS + MORE) * vocab);
        static const int chunks[] = {1, 37, 96, 200};
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, false);
            for (int at = 0; at < ROWS; at += chunks[i]) {
                int n = ROWS - at < chunks[i] ? ROWS - at : chunks[i];
                step(&p, CUDA, cache, tokens + at, n, n, SEGMENT_PROMPT, again + (size_t)at * vocab);
            }
            for (int at = ROWS; at < ROWS + MORE; at++)
                step(&p, CUDA, cache, tokens + at, 1, 1, SEGMENT_DECODE, again + (size_t)at * vocab);
            p.ops[CUDA]->cache_destroy(cache);
            assert_same_bits("shared K/V in chunks", again, logits[CUDA], (ROWS + MORE) * vocab);
        }
        for (int b = 0; b < MODELS; b++) free(logits[b]);
    }
    free(again);
    pair_close(&p);
}

static void restored_window(void **state) {
    (void)state;
    static const int ranks[][2] = {{136, 264}, {72, 40}, {64, 200}, {136, 72}, {192, 256}, {256, 256}};
    model_config forms[] = {wide_form(), shared_form()};
    for (int i = 0; i < 4; i++) check_window(&forms[i % 2], &policies[2 + i / 2], 5, ranks[i % 2], "two ranks");
    for (int i = 2; i < 6; i++) check_window(&forms[0], &policies[2], 5, ranks[i], "restored window");
}

static void published_heads(void **state) {
    (void)state;
    model_config form = tall_form();
    for (int k = 0; k < 2; k++) check_window(&form, &policies[k], 5, NULL, policies[k].name);
    form = grouped_form();
    form.max_context = 8192; /* beyond 4,096 partitions are coarse */
    for (int k = 0; k < POLICIES; k++) check_window(&form, &policies[k], k ? 5 : 20, NULL, policies[k].name);
}

static void later_prompts_of_shared_layers(void **state) {
    (void)state;
    static const int windows[3] = {0, 0, 0};
    model_config forms[] = {shared_form(), wide_form()};
    forms[1].sliding_window = 192; /* smaller than the conversation */
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        pair p;
        pair_random(&p, &forms[i], windows, false, true);
        check_later_prompts(&p, "shared layers", forms[i].sliding_window);
        pair_close(&p);
    }
}

enum { DRAFTS = 15, BLOCKS = 12 };

/* Drafts of several blocks behind one prompt. */
static void draft_blocks(pair *p, int b, int32_t drafts[BLOCKS][DRAFTS]) {
    enum { ROWS = 120 };
    int32_t tokens[ROWS];
    fill_tokens(tokens, ROWS, p->verifier->config.vocab, 29);
    backend_cache *cache = new_cache(p, b, &policies[0], CONTEXT, true);
    step(p, b, cache, tokens, ROWS, ROWS, SEGMENT_PROMPT, NULL);
    for (int i = 0; i < BLOCKS; i++) {
        REQUIRE_OK(backend_draft_one(p->ops[b], p->model[b], cache, tokens[i], DRAFTS, drafts[i], error));
        step(p, b, cache, tokens + 3 * i, 3, 3, SEGMENT_DECODE, NULL);
    }
    p->ops[b]->cache_destroy(cache);
}

static int equal_drafts(int32_t a[BLOCKS][DRAFTS], int32_t b[BLOCKS][DRAFTS]) {
    int equal = 0;
    for (int i = 0; i < BLOCKS * DRAFTS; i++) equal += a[i / DRAFTS][i % DRAFTS] == b[i / DRAFTS][i % DRAFTS];
    return equal;
}

/* A drafter's sliding window counts inside the block too, in both directions where the block is bidirectional: windows
 * smaller than a block, on the device as on the CPU. */
static void drafter_windows(void **state) {
    (void)state;
    static const int windows[][3] = {{5, 0, 3}, {0, 0, 0}};
    int32_t found[2][2][MODELS][BLOCKS][DRAFTS];
    for (int w = 0; w < 2; w++) {
        for (int bidirectional = 0; bidirectional < 2; bidirectional++) {
            pair p;
            model_config form = shared_form();
            pair_random(&p, &form, windows[w], bidirectional, false);
            for (int b = 0; b < MODELS; b++) draft_blocks(&p, b, found[w][bidirectional][b]);
            int equal = equal_drafts(found[w][bidirectional][CUDA], found[w][bidirectional][CPU]);
            int host = equal_drafts(found[w][bidirectional][REFERENCE], found[w][bidirectional][CPU]);
            print_message("windows %d, bidirectional %d: %d of %d drafts equal (CPU in float32: %d)\n", windows[w][0],
                          bidirectional, equal, BLOCKS * DRAFTS, host);
            if (equal * 100 < BLOCKS * DRAFTS * 94)
                fail_msg("windows %d: %d of %d drafts equal", windows[w][0], equal, BLOCKS * DRAFTS);
            pair_close(&p);
        }
    }
    /* The windows matter here, or equality would say nothing. */
    int causal = equal_drafts(found[0][0][CPU], found[0][1][CPU]),
        wide = equal_drafts(found[0][1][CPU], found[1][1][CPU]);
    print_message("equal whatever the rule: %d causal and not, %d with and without windows\n", causal, wide);
    assert_true(causal * 100 < BLOCKS * DRAFTS * 80 && wide * 100 < BLOCKS * DRAFTS * 80);
}

static void argmax_rows(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[64], found[5];
    fill_tokens(tokens, 64, (int)vocab, 19);
    float *logits = calloc(5 * vocab, sizeof *logits);
    backend_cache *cache = new_cache(&p, CUDA, &policies[0], CONTEXT, false);
    step(&p, CUDA, cache, tokens, 40, 40, SEGMENT_PROMPT, NULL);
    backend_segment segment = {
        .cache = cache, .tokens = tokens + 40, .n = 5, .kind = SEGMENT_DECODE, .logits = logits, .argmax = found};
    REQUIRE_OK(p.ops[CUDA]->forward(p.model[CUDA], &segment, 1, error));
    for (int i = 0; i < 5; i++) assert_int_equal(found[i], argmax_of(logits + (size_t)i * vocab, (int)vocab));
    p.ops[CUDA]->cache_destroy(cache);
    free(logits);
    pair_close(&p);
}

/* A large head is screened in int8 where only the greedy choice is wanted: the same tokens and drafts as a model has
 * that is short of memory for the copy, and the same as its logits say. */
static void greedy_rows(void **state) {
    (void)state;
    enum { VOCAB = 140000, PROMPT_ROWS = 90, ROWS = BACKEND_MAX_DECODE_ROWS, SCREENED = 0, FULL = 1 };
    static const int windows[] = {5, 0, 3};
    pair p;
    model_config form = shared_form();
    form.vocab = VOCAB;
    random_models(&p, &form, windows, false);
    p.verifier->config.n_suppress_tokens = 1; /* token 0 */
    const backend_measure_ops *measure = backend_measure_find(backend_find("cuda", NULL));
    mem_account accounts[2];
    mem_account_init(&accounts[SCREENED], NULL, 0);
    size_t copied = 0, all = 0;
    for (int b = 0; b < 2;
         b++) { /* the second one could hold two copies, and keeps three quarters of that for sessions */
        p.ops[b] = backend_find("cuda", NULL);
        if (b == FULL) mem_account_init(&accounts[FULL], NULL, all + copied);
        backend_model_options options = {
            .verifier = p.verifier, .drafter = p.drafter, .precision = KAKEYA_PRECISION_BF16, .account = &accounts[b]};
        REQUIRE_OK(p.ops[b]->model_create(&options, &p.model[b], error));
        all = mem_total(&accounts[b]);
        copied = measure->greedy_head_bytes(p.model[b]);
    }
    p.ops[REFERENCE] = p.ops[FULL];
    assert_int_equal(copied, (size_t)VOCAB * 256 * 2);
    assert_true(measure->greedy_head_bytes(p.model[SCREENED]) < copied * 55 / 100);
    assert_int_equal(mem_bytes(&accounts[SCREENED], MEM_WEIGHTS) - mem_bytes(&accounts[FULL], MEM_WEIGHTS),
                     measure->greedy_head_bytes(p.model[SCREENED]));

    int32_t tokens[PROMPT_ROWS + ROWS], found[2][ROWS], drafts[2][BACKEND_MAX_DRAFT];
    fill_tokens(tokens, PROMPT_ROWS + ROWS, 640, 41);
    float *logits = calloc((size_t)ROWS * VOCAB, sizeof *logits), *row = calloc(VOCAB, sizeof *row);
    backend_cache *caches[2];
    for (int b = 0; b < 2; b++) {
        caches[b] = new_cache(&p, b, &policies[0], CONTEXT, true);
        step(&p, b, caches[b], tokens, PROMPT_ROWS, PROMPT_ROWS, SEGMENT_PROMPT, NULL);
    }
    for (int n = 1; n <= ROWS; n++) {
        for (int b = 0; b < 2; b++) {
            backend_segment segment = {.cache = caches[b],
                                       .tokens = tokens + PROMPT_ROWS,
                                       .n = n,
                                       .kind = SEGMENT_DECODE,
                                       .first_logit_row = n / 3,
                                       .argmax = found[b],
                                       .logits = b == FULL ? logits : NULL};
            REQUIRE_OK(p.ops[b]->forward(p.model[b], &segment, 1, error));
            if (b == SCREENED) {
                kakeya_error refusal = {0};
                assert_int_equal(p.ops[b]->read_logits(p.model[b], 0, 0, row, &refusal), KAKEYA_INVALID_ARGUMENT);
            }
            REQUIRE_OK(p.ops[b]->cache_commit(caches[b], 0, error));
        }
        for (int i = 0; i < n - n / 3; i++) {
            logits[i * VOCAB + p.verifier->config.suppress_tokens[0]] = -INFINITY;
            assert_int_equal(found[FULL][i], argmax_of(logits + (size_t)i * VOCAB, VOCAB));
            if (found[SCREENED][i] != found[FULL][i])
                fail_msg("row %d of %d: %d, expected %d", i, n - n / 3, (int)found[SCREENED][i], (int)found[FULL][i]);
        }
        /* a graph per number of rows: the next one is captured with the token that it would choose suppressed, or
         * another */
        p.verifier->config.suppress_tokens[0] = n % 2 ? found[FULL][n - n / 3 - 1] : 0;
        if (n > BACKEND_MAX_DRAFT) continue;
        for (int b = 0; b < 2; b++)
            REQUIRE_OK(backend_draft_one(p.ops[b], p.model[b], caches[b], tokens[n], n, drafts[b], error));
        assert_memory_equal(drafts[SCREENED], drafts[FULL], (size_t)n * sizeof **drafts);
    }
    for (int b = 0; b < 2; b++) p.ops[b]->cache_destroy(caches[b]);
    free(logits);
    free(row);
    pair_close(&p);
    for (int b = 0; b < 2; b++) assert_int_equal(mem_total(&accounts[b]), 0);
}

static const float *sorted_logits;
static int by_logit(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorted_logits[x] != sorted_logits[y]) return sorted_logits[x] > sorted_logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* What the device lists of a row is what a sort of the row gives, and the sum of weights is the same integer; both
 * without what is never sampled. */
static void assert_leaders(const backend_leaders *found, const float *row, const model_config *c, float temperature) {
    const int vocab = c->vocab;
    int32_t *order = malloc((size_t)vocab * sizeof *order);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    memcpy(logits, row, (size_t)vocab * sizeof *logits);
    for (int i = 0; i < c->n_suppress_tokens; i++) logits[c->suppress_tokens[i]] = -INFINITY;
    for (int i = 0; i < vocab; i++) order[i] = i;
    sorted_logits = logits;
    qsort(order, (size_t)vocab, sizeof *order, by_logit);
    uint64_t total = 0, plain = 0;
    for (int i = 0; i < vocab; i++) {
        total += exp_weight(logits[i], logits[order[0]], temperature);
        plain += exp_weight(logits[i], logits[order[0]], 1);
    }
    if (found->total != total || found->plain_total != plain)
        fail_msg("temperature %g: weights sum to %llu, at temperature 1 to %llu; expected %llu and %llu",
                 (double)temperature, (unsigned long long)found->total, (unsigned long long)found->plain_total,
                 (unsigned long long)total, (unsigned long long)plain);
    assert_int_equal(found->n, BACKEND_LEADERS);
    for (int i = 0; i < found->n; i++) {
        if (found->token[i] != order[i] || memcmp(&found->logit[i], &logits[order[i]], sizeof(float)) != 0)
            fail_msg("leader %d is %d (%g), expected %d (%g)", i, (int)found->token[i], (double)found->logit[i],
                     (int)order[i], (double)logits[order[i]]);
    }
    free(logits);
    free(order);
}

static void leading_logits(void **state) {
    (void)state;
    enum { ROWS = BACKEND_MAX_DECODE_ROWS };
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[64];
    fill_tokens(tokens, 64, (int)vocab, 37);
    float *logits = calloc(ROWS * vocab, sizeof *logits), *row = calloc(vocab, sizeof *row);
    backend_leaders *many = calloc(ROWS, sizeof *many), one;
    backend_cache *cache = new_cache(&p, CUDA, &policies[0], CONTEXT, false);
    step(&p, CUDA, cache, tokens, 40, 40, SEGMENT_PROMPT, NULL);
    static const float temperatures[] = {1, 0.1f, 0.7f, 30};
    for (size_t k = 0; k < sizeof temperatures / sizeof temperatures[0]; k++) {
        backend_segment segment = {.cache = cache,
                                   .tokens = tokens + 40,
                                   .n = ROWS,
                                   .kind = SEGMENT_DECODE,
                                   .logits = logits,
                                   .leaders = many,
                                   .temperature = temperatures[k]};
        REQUIRE_OK(p.ops[CUDA]->forward(p.model[CUDA], &segment, 1, error));
        REQUIRE_OK(p.ops[CUDA]->cache_commit(cache, 0, error));
        for (size_t i = 0; i < ROWS; i++)
            assert_leaders(&many[i], logits + i * vocab, &p.verifier->config, temperatures[k]);
        REQUIRE_OK(p.ops[CUDA]->read_logits(p.model[CUDA], 0, ROWS - 1, row, error));
        assert_same_bits("a row read afterwards", row, logits + (ROWS - 1) * vocab, vocab);
    }
    kakeya_error refusal = {0};
    assert_int_equal(p.ops[CUDA]->read_logits(p.model[CUDA], 0, ROWS, row, &refusal), KAKEYA_INVALID_ARGUMENT);
    /* one row gives the same as many */
    backend_segment segment = {.cache = cache,
                               .tokens = tokens + 40,
                               .n = 1,
                               .kind = SEGMENT_DECODE,
                               .leaders = &one,
                               .temperature = temperatures[3]};
    REQUIRE_OK(p.ops[CUDA]->forward(p.model[CUDA], &segment, 1, error));
    REQUIRE_OK(p.ops[CUDA]->cache_commit(cache, 0, error));
    assert_memory_equal(&one, many, sizeof one);
    segment.temperature = 0;
    assert_int_equal(p.ops[CUDA]->forward(p.model[CUDA], &segment, 1, &refusal), KAKEYA_INVALID_ARGUMENT);
    p.ops[CUDA]->cache_destroy(cache);
    free(logits);
    free(row);
    free(many);
    pair_close(&p);
}

/* A profiled step is a step, and leaves no trace. */
static void profiles(void **state) {
    (void)state;
    if (PAIR_DEVICES > 1) skip(); /* a profile is of one device alone */
    pair p;
    pair_open(&p, demo_path(), true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t tokens[200];
    fill_tokens(tokens, 200, (int)vocab, 31);
    float *before = calloc(vocab, sizeof *before), *after = calloc(vocab, sizeof *after);
    for (int k = 0; k < POLICIES; k++) {
        backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
        step(&p, CUDA, cache, tokens, 180, 180, SEGMENT_PROMPT, NULL);
        step(&p, CUDA, cache, tokens + 180, 9, 9, SEGMENT_DECODE, NULL);
        step(&p, CUDA, cache, tokens + 189, 1, 0, SEGMENT_DECODE, before);
        backend_profile profile;
        REQUIRE_OK(backend_measure_find(p.ops[CUDA])->profile(cache, tokens[189], 3, &profile, error));
        step(&p, CUDA, cache, tokens + 189, 1, 0, SEGMENT_DECODE, after);
        assert_same_bits(policies[k].name, after, before, vocab);
        assert_int_equal(p.ops[CUDA]->cache_length(cache), 189);
        assert_true(profile.n > 8 && profile.step_seconds > 0 && profile.empty_seconds > 0);
        int restores = 0;
        for (int i = 0; i < profile.n; i++) {
            const backend_profile_row *row = &profile.row[i];
            if (!(row->launches > 0 && row->seconds > 0 && row->kernel[0] && row->part[0]))
                fail_msg("%s: %s / %s: %d launches in %g s", policies[k].name, row->part, row->kernel, row->launches,
                         row->seconds);
            restores += strstr(row->part, "restored") != NULL;
        }
        if (policies[k].attention == KAKEYA_ATTENTION_RESTORED) assert_true(restores > 0);
        p.ops[CUDA]->cache_destroy(cache);
    }
    free(before);
    free(after);
    pair_close(&p);
}

typedef struct upload_report {
    int calls, cancel_at; /* 0: never */
    uint64_t done, total;
    bool ordered;
} upload_report;

static bool take_report(void *user, const char *what, uint64_t done, uint64_t total) {
    upload_report *report = user;
    report->ordered = report->ordered && what[0] && done >= report->done && done <= total;
    report->done = done;
    report->total = total;
    return ++report->calls != report->cancel_at;
}

/* Uploads report bytes in order up to all of them, and end at once when they are asked to. */
static void upload_progress(void **state) {
    (void)state;
    if (!device_present()) skip();
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *model = NULL;
    REQUIRE_OK(language_model_open(KAKEYA_MODELS "/demo", &account, &model, error));
    size_t before = mem_total(&account);
    const backend_ops *ops = backend_find("cuda", NULL);
    upload_report report = {.ordered = true};
    backend_model_options options = {.verifier = model,
                                     .precision = KAKEYA_PRECISION_BF16,
                                     .account = &account,
                                     .progress = take_report,
                                     .user = &report};
    backend_model *backend = NULL;
    REQUIRE_OK(ops->model_create(&options, &backend, error));
    assert_true(report.ordered && report.calls > 12 && report.total > 30000000 && report.done == report.total);
    assert_string_equal(ops->model_note(backend), "");
    ops->model_destroy(backend);
    report = (upload_report){.ordered = true, .cancel_at = 5};
    kakeya_error refusal = {0};
    assert_int_equal(ops->model_create(&options, &backend, &refusal), KAKEYA_CANCELLED);
    assert_null(backend);
    assert_int_equal(report.calls, 5);
    assert_int_equal(mem_total(&account), before);
    language_model_close(model);
}

static void refusals(void **state) {
    (void)state;
    if (!device_present()) skip();
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *model = NULL;
    REQUIRE_OK(language_model_open(demo_path(), &account, &model, error));
    backend_model_options options = {.verifier = model, .precision = KAKEYA_PRECISION_F32, .account = &account};
    backend_model *backend = NULL;
    kakeya_error refusal = {0};
    const backend_ops *ops = backend_find("cuda", NULL);
    assert_int_equal(ops->model_create(&options, &backend, &refusal), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(refusal.message, "precision f32"));

    /* A limit below what a cache needs is met on the device too, and nothing stays counted. */
    options.precision = KAKEYA_PRECISION_BF16;
    REQUIRE_OK(ops->model_create(&options, &backend, error));
    mem_account small;
    mem_account_init(&small, NULL, 100000);
    backend_cache *cache = NULL;
    backend_cache_options cache_options = {.context_tokens = 512, .kv_format = KV_FORMAT_BF16, .account = &small};
    assert_int_equal(ops->cache_create(backend, &cache_options, &cache, &refusal), KAKEYA_OUT_OF_MEMORY);
    assert_null(cache);
    assert_int_equal(mem_total(&small), 0);
    cache_options.account = &account;
    cache_options.kv_format = KV_FORMAT_F32;
    assert_int_equal(ops->cache_create(backend, &cache_options, &cache, &refusal), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(refusal.message, "keeps bf16, q8 or q4"));
    ops->model_destroy(backend);
    language_model_close(model);
    assert_int_equal(mem_total(&account), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_form),
        cmocka_unit_test(moe_form),
        cmocka_unit_test(per_layer_embedding_form),
        cmocka_unit_test(against_cpu),
        cmocka_unit_test(row_counts),
        cmocka_unit_test(prompt_chunks),
        cmocka_unit_test(snapshots),
        cmocka_unit_test(shared_kv),
        cmocka_unit_test(restored_window),
        cmocka_unit_test(published_heads),
        cmocka_unit_test(drafter_windows),
        cmocka_unit_test(profiles),
        cmocka_unit_test(leading_logits),
        cmocka_unit_test(upload_progress),
        cmocka_unit_test(argmax_rows),
        cmocka_unit_test(greedy_rows),
        cmocka_unit_test(first_prompts_are_native),
        cmocka_unit_test(later_prompts),
        cmocka_unit_test(later_prompts_of_shared_layers),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
