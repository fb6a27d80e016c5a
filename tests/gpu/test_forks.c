/* Protects memory that forks share on a device (tests/unit/test_sharing.c is the same of a CPU): a fork takes the
 * memory of what differs, each granule is counted once, a holder that writes or goes changes nothing for the others,
 * and no bit differs from caches that share nothing. Run by `make test-gpu`, and on a fake device (tests/gpu/fake)
 * wherever the backend is compiled. */
#include "gpu/random_pair.h"

/* A granule of 2 MB holds 512 positions of a full-attention layer's keys or values. */
enum { CONTEXT = 4096, GRANULE = 2 << 20, GRANULE_ROWS = 512, PROMPT = 2100, MORE = 30, DRAFTS = 5, CHUNK = 700 };

typedef struct holder {
    mem_account account;
    backend_cache *cache;
} holder;

static void forks_open(pair *p) {
    static const int windows[3] = {0, 0, 48};
    model_config form = wide_form();
    form.sliding_window = 192;
    for (int i = 0; i < form.layers; i++) {
        if (form.layer[i].type != LAYER_FULL) continue;
        form.layer[i].head_dim = 512;
        form.layer[i].kv_heads = 4;
    }
    pair_random(p, &form, windows, false, true);
}

static void append(pair *p, backend_cache *cache, const int32_t *tokens, int n) {
    for (int at = 0; at < n; at += CHUNK) {
        int rows = n - at < CHUNK ? n - at : CHUNK;
        step(p, CUDA, cache, tokens + at, rows, rows, SEGMENT_PROMPT, NULL);
    }
}

static void open_holder(pair *p, const policy *how, const int32_t *tokens, int n, holder *h) {
    mem_account_init(&h->account, &p->account, 0);
    backend_cache_options options = {.context_tokens = CONTEXT,
                                     .attention = how->attention,
                                     .restore_layers = how->layers,
                                     .sink = 4,
                                     .window = 64,
                                     .draft_window = 256,
                                     .kv_format = KV_FORMAT_BF16,
                                     .keep_draft_context = true,
                                     .account = &h->account};
    REQUIRE_OK(p->ops[CUDA]->cache_create(p->model[CUDA], &options, &h->cache, error));
    append(p, h->cache, tokens, n);
}

static void fork_holder(pair *p, const holder *from, holder *h) {
    mem_account_init(&h->account, &p->account, 0);
    REQUIRE_OK(p->ops[CUDA]->cache_fork(from->cache, &h->account, &h->cache, error));
}

static void close_holder(pair *p, holder *h) {
    p->ops[CUDA]->cache_destroy(h->cache);
    assert_int_equal(mem_total(&h->account), 0);
}

/* What a cache holds is what its account counts and what it shares. */
static void check_bytes(pair *p, const holder *h) {
    backend_cache_bytes b = p->ops[CUDA]->cache_bytes(h->cache);
    assert_int_equal(b.full, mem_bytes(&h->account, MEM_KV_FULL) + b.shared_full);
    assert_int_equal(b.latent, mem_bytes(&h->account, MEM_KV_LATENT) + b.shared_latent);
    assert_int_equal(b.sliding, mem_bytes(&h->account, MEM_KV_SLIDING));
    assert_int_equal(b.draft, mem_bytes(&h->account, MEM_KV_DRAFT));
}

static void expect_state(pair *p, const char *what, const holder *h, const memory_stream *expected) {
    memory_stream now = snapshot_of(p, CUDA, h->cache);
    if (now.bytes != expected->bytes || memcmp(now.data, expected->data, now.bytes) != 0) fail_msg("%s", what);
    memory_free(&now);
}

/* An answer, drafts, and another prompt; logits [MORE][vocab]. */
static void go_on(pair *p, backend_cache *cache, const int32_t *tokens, float *logits, int32_t *drafts) {
    enum { ROWS = 3 };
    size_t vocab = (size_t)p->verifier->config.vocab;
    for (int at = 0; at < MORE / 2; at += ROWS)
        step(p, CUDA, cache, tokens + at, ROWS, ROWS, SEGMENT_DECODE, logits + (size_t)at * vocab);
    REQUIRE_OK(backend_draft_one(p->ops[CUDA], p->model[CUDA], cache, tokens[0], DRAFTS, drafts, error));
    step(p, CUDA, cache, tokens + MORE / 2, MORE - MORE / 2, MORE - MORE / 2, SEGMENT_PROMPT,
         logits + (size_t)(MORE / 2) * vocab);
}

/* A holder goes on as a cache does that has computed the same and shares nothing. */
static void expect_same_way_on(pair *p, const policy *how, const holder *h, const int32_t *prompt, uint32_t seed) {
    size_t n = MORE * (size_t)p->verifier->config.vocab;
    float *found = malloc(n * sizeof *found), *expected = malloc(n * sizeof *expected);
    int32_t more[MORE], drafts[2][DRAFTS];
    int back = p->ops[CUDA]->cache_length(h->cache);
    holder control;
    fill_tokens(more, MORE, p->verifier->config.vocab, seed);
    go_on(p, h->cache, more, found, drafts[0]);
    open_holder(p, how, prompt, PROMPT, &control);
    if (back < PROMPT) REQUIRE_OK(p->ops[CUDA]->cache_truncate(control.cache, back, error));
    go_on(p, control.cache, more, expected, drafts[1]);
    assert_same_bits(how->name, found, expected, n);
    assert_memory_equal(drafts[0], drafts[1], sizeof drafts[0]);
    close_holder(p, &control);
    free(found);
    free(expected);
}

static void forks_share_and_part(void **state) {
    (void)state;
    pair p;
    forks_open(&p);
    const backend_ops *ops = p.ops[CUDA];
    int32_t tokens[PROMPT];
    fill_tokens(tokens, PROMPT, p.verifier->config.vocab, 3);
    for (int k = 0; k < POLICIES; k++) {
        const policy *how = &policies[k];
        bool all = how->layers == KAKEYA_RESTORE_ALL;
        holder first, second, third;
        open_holder(&p, how, tokens, PROMPT, &first);
        memory_stream whole = snapshot_of(&p, CUDA, first.cache);
        size_t full = mem_bytes(&p.account, MEM_KV_FULL), latent = mem_bytes(&p.account, MEM_KV_LATENT);
        fork_holder(&p, &first, &second);
        backend_cache_bytes b = ops->cache_bytes(second.cache);
        /* Keys and values of five granules each, four of them whole; of two devices each has half of every row, and so
         * three granules, two of them whole. */
        if (!all)
            assert_int_equal(b.shared_full, PAIR_DEVICES == 1 ? b.full / 5 * 4 : b.full / 3 * 2);
        else
            assert_true(b.shared_latent >= GRANULE && b.shared_latent < b.latent);
        assert_int_equal(mem_bytes(&p.account, MEM_KV_FULL), full + b.full - b.shared_full);
        assert_int_equal(mem_bytes(&p.account, MEM_KV_LATENT), latent + b.latent - b.shared_latent);
        fork_holder(&p, &second, &third);
        check_bytes(&p, &first);
        check_bytes(&p, &second);
        check_bytes(&p, &third);
        expect_state(&p, "a fork differs", &third, &whole);

        /* one goes back a little, where it can, and on with other tokens */
        if (ops->cache_min_truncate(second.cache) <= PROMPT - 10)
            REQUIRE_OK(ops->cache_truncate(second.cache, PROMPT - 10, error));
        expect_same_way_on(&p, how, &second, tokens, 70);
        expect_state(&p, "a fork's rows reach the first holder", &first, &whole);
        expect_state(&p, "a fork's rows reach its own fork", &third, &whole);
        check_bytes(&p, &second);

        /* the first holder goes; the last one stays, and goes on */
        close_holder(&p, &first);
        close_holder(&p, &second);
        check_bytes(&p, &third);
        expect_state(&p, "a holder that went took something along", &third, &whole);
        expect_same_way_on(&p, how, &third, tokens, 71);
        check_bytes(&p, &third);
        close_holder(&p, &third);
        memory_free(&whole);
        assert_int_equal(mem_bytes(&p.account, MEM_KV_FULL), 0);
        assert_int_equal(mem_bytes(&p.account, MEM_KV_LATENT), 0);
    }
    pair_close(&p);
}

/* Back into a granule that is shared; each holder then writes its own rows there. */
static void a_shared_granule_is_copied_before_it_is_written(void **state) {
    (void)state;
    enum { LENGTH = 2 * GRANULE_ROWS + 4, BACK = 2 * GRANULE_ROWS - 4 };
    pair p;
    forks_open(&p);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)p.verifier->config.vocab;
    float *found = malloc(vocab * sizeof *found), *expected = malloc(vocab * sizeof *expected);
    int32_t tokens[LENGTH], other = 5;
    fill_tokens(tokens, LENGTH, (int)vocab, 3);
    for (int memory = 0; memory < 2; memory++) {
        holder first, second, control;
        open_holder(&p, &policies[0], tokens, LENGTH, &first);
        fork_holder(&p, &first, &second);
        memory_stream before = snapshot_of(&p, CUDA, first.cache);
        assert_true(ops->cache_min_truncate(second.cache) <= BACK);
        REQUIRE_OK(ops->cache_truncate(second.cache, BACK, error));
        memory_stream cut = snapshot_of(&p, CUDA, second.cache);
        if (memory) { /* there is none for the copy: the segment is named, and nothing has changed */
            second.account.limit_bytes = mem_total(&second.account);
            backend_segment segments[2] = {
                {.cache = first.cache, .tokens = tokens, .n = 1, .kind = SEGMENT_DECODE, .first_logit_row = 1}};
            segments[1] = segments[0];
            segments[1].cache = second.cache;
            kakeya_error refusal = {0};
            assert_int_equal(ops->forward(p.model[CUDA], segments, 2, &refusal), KAKEYA_OUT_OF_MEMORY);
            assert_int_equal(segments[0].status, KAKEYA_OK);
            assert_int_equal(segments[1].status, KAKEYA_OUT_OF_MEMORY);
            second.account.limit_bytes = 0;
            expect_state(&p, "a refused forward has changed the fork", &second, &cut);
            expect_state(&p, "a refused forward has changed the first holder", &first, &before);
        }
        size_t shared = ops->cache_bytes(second.cache).shared_full;
        step(&p, CUDA, second.cache, &other, 1, 1, SEGMENT_DECODE, found);
        assert_true(ops->cache_bytes(second.cache).shared_full < shared);
        expect_state(&p, "a row behind a truncation reaches the first holder", &first, &before);
        open_holder(&p, &policies[0], tokens, LENGTH, &control);
        REQUIRE_OK(ops->cache_truncate(control.cache, BACK, error));
        step(&p, CUDA, control.cache, &other, 1, 1, SEGMENT_DECODE, expected);
        assert_same_bits("a row in a copied granule", found, expected, vocab);
        check_bytes(&p, &first);
        check_bytes(&p, &second);
        memory_free(&before);
        memory_free(&cut);
        close_holder(&p, &first);
        close_holder(&p, &second);
        close_holder(&p, &control);
    }
    free(found);
    free(expected);
    pair_close(&p);
}

/* Accounts with nothing above them in common: the fork is a copy of its own. */
static void unrelated_accounts_share_nothing(void **state) {
    (void)state;
    pair p;
    forks_open(&p);
    int32_t tokens[PROMPT];
    fill_tokens(tokens, PROMPT, p.verifier->config.vocab, 3);
    holder first, second;
    open_holder(&p, &policies[0], tokens, PROMPT, &first);
    memory_stream whole = snapshot_of(&p, CUDA, first.cache);
    mem_account_init(&second.account, NULL, 0);
    REQUIRE_OK(p.ops[CUDA]->cache_fork(first.cache, &second.account, &second.cache, error));
    assert_int_equal(p.ops[CUDA]->cache_bytes(second.cache).shared_full, 0);
    expect_state(&p, "a copy differs", &second, &whole);
    check_bytes(&p, &first);
    check_bytes(&p, &second);
    memory_free(&whole);
    close_holder(&p, &first);
    close_holder(&p, &second);
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_share_and_part),
        cmocka_unit_test(a_shared_granule_is_copied_before_it_is_written),
        cmocka_unit_test(unrelated_accounts_share_nothing),
    };
    return cmocka_run_group_tests_name("forks", tests, NULL, NULL);
}
