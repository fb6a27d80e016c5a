/* Protects pages that forks share: a fork takes the memory of what differs, each page is counted once, a holder that
 * writes or goes changes nothing for the others, and no bit differs from caches that share nothing. */
#include "memory_stream.h"
#include "tiny.h"

enum { PROMPT = 200, MORE = 30, PAGE = 64 };

typedef struct holder {
    mem_account account;
    backend_cache *cache;
} holder;

static size_t vocab_of(const tiny *d) { return (size_t)d->verifier->config.vocab; }

static void open_holder(tiny *d, const tiny_policy *policy, const int32_t *tokens, int n, holder *h) {
    mem_account_init(&h->account, &d->account, 0);
    if (d->f_theta) d->f_theta->config.input = policy->input;
    static const kv_format formats[] = {KV_FORMAT_Q8, KV_FORMAT_F32, KV_FORMAT_Q4};
    kv_format format = formats[(policy - tiny_policies) % 3];
    backend_cache_options options = tiny_options(d, policy, format);
    options.account = &h->account;
    REQUIRE_OK(d->ops->cache_create(d->backend, &options, &h->cache, error));
    tiny_step(d, h->cache, SEGMENT_PROMPT, tokens, n, n, NULL);
}

static void fork_holder(tiny *d, const holder *from, holder *h) {
    mem_account_init(&h->account, &d->account, 0);
    REQUIRE_OK(d->ops->cache_fork(from->cache, &h->account, &h->cache, error));
}

static void close_holder(tiny *d, holder *h) {
    d->ops->cache_destroy(h->cache);
    assert_int_equal(mem_total(&h->account), 0);
}

/* What a cache holds is what its account counts and what it shares. */
static void check_bytes(tiny *d, const holder *h) {
    backend_cache_bytes b = d->ops->cache_bytes(h->cache);
    assert_int_equal(b.full, mem_bytes(&h->account, MEM_KV_FULL) + b.shared_full);
    assert_int_equal(b.latent, mem_bytes(&h->account, MEM_KV_LATENT) + b.shared_latent);
    assert_int_equal(b.sliding, mem_bytes(&h->account, MEM_KV_SLIDING));
    assert_int_equal(b.draft, mem_bytes(&h->account, MEM_KV_DRAFT));
}

static void save(tiny *d, const holder *h, memory_stream *stream) {
    REQUIRE_OK(d->ops->cache_snapshot(h->cache, memory_write, stream, error));
}

static void expect_state(tiny *d, const char *what, const holder *h, const memory_stream *expected) {
    memory_stream now = {0};
    save(d, h, &now);
    if (now.bytes != expected->bytes || memcmp(now.data, expected->data, now.bytes) != 0) fail_msg("%s", what);
    memory_free(&now);
}

/* An answer and another prompt, logits [MORE][vocab]; then drafts. */
static void go_on(tiny *d, const tiny_policy *policy, backend_cache *cache, const int32_t *tokens, float *logits,
                  int32_t *drafts) {
    int rows = tiny_block_rows(policy) < 4 ? tiny_block_rows(policy) : 4;
    for (int at = 0; at < MORE / 2;) {
        int n = MORE / 2 - at < rows ? MORE / 2 - at : rows;
        tiny_step(d, cache, SEGMENT_DECODE, tokens + at, n, n, logits + (size_t)at * vocab_of(d));
        at += n;
    }
    tiny_step(d, cache, SEGMENT_PROMPT, tokens + MORE / 2, MORE - MORE / 2, MORE - MORE / 2,
              logits + (size_t)(MORE / 2) * vocab_of(d));
    REQUIRE_OK(backend_draft_one(d->ops, d->backend, cache, tokens[0], 5, drafts, error));
}

static void forks_share_and_part(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[PROMPT], other[2][MORE], drafts[2][5];
    tiny_tokens(tokens, PROMPT, 3);
    size_t n = MORE * vocab_of(&d);
    float *found = malloc(n * sizeof *found), *expected = malloc(n * sizeof *expected);
    for (int i = 0; i < TINY_POLICIES; i++) {
        const tiny_policy *policy = &tiny_policies[i];
        holder first, second, third;
        memory_stream whole = {0};
        open_holder(&d, policy, tokens, PROMPT, &first);
        save(&d, &first, &whole);
        size_t sum = mem_bytes(&d.account, MEM_KV_FULL), latent = mem_bytes(&d.account, MEM_KV_LATENT);
        fork_holder(&d, &first, &second);
        backend_cache_bytes b = d.ops->cache_bytes(second.cache);
        size_t pages = PROMPT / PAGE, all = pages + 1;
        if (policy->layers == KAKEYA_RESTORE_SLIDING) { /* no sink in layers that grow */
            assert_int_equal(b.shared_full, b.full / all * pages);
            assert_int_equal(mem_bytes(&d.account, MEM_KV_FULL), sum + b.full / all);
        }
        assert_true(b.shared_full > 0 && b.shared_full < b.full);
        assert_int_equal(mem_bytes(&d.account, MEM_KV_FULL), sum + b.full - b.shared_full);
        assert_int_equal(mem_bytes(&d.account, MEM_KV_LATENT), latent + b.latent - b.shared_latent);
        if (policy->layers == KAKEYA_RESTORE_ALL && policy->input == RESTORATION_DRAFTER_CONTEXT_KV)
            assert_int_equal(b.shared_latent, b.latent / all * pages);
        fork_holder(&d, &second, &third);
        check_bytes(&d, &first);
        check_bytes(&d, &second);
        check_bytes(&d, &third);
        expect_state(&d, "a fork differs", &third, &whole);

        /* one goes back into a shared page, where it can, and on with other tokens */
        int back = PROMPT - 10;
        if (d.ops->cache_min_truncate(second.cache) <= back) {
            for (int length = PROMPT - 1; length >= back; length -= 3)
                REQUIRE_OK(d.ops->cache_truncate(second.cache, length, error));
            back = d.ops->cache_length(second.cache);
        } else {
            back = PROMPT;
        }
        tiny_tokens(other[0], MORE, 70);
        tiny_tokens(other[1], MORE, 71);
        for (int alone = 0; alone < 2; alone++) {
            holder control;
            if (alone) {
                open_holder(&d, policy, tokens, PROMPT, &control);
                if (back < PROMPT) REQUIRE_OK(d.ops->cache_truncate(control.cache, back, error));
            }
            go_on(&d, policy, alone ? control.cache : second.cache, other[0], alone ? expected : found, drafts[alone]);
            if (alone) close_holder(&d, &control);
        }
        assert_same_bits(policy->name, found, expected, n);
        assert_memory_equal(drafts[0], drafts[1], sizeof drafts[0]);
        expect_state(&d, "a fork's rows reach the first holder", &first, &whole);
        expect_state(&d, "a fork's rows reach its own fork", &third, &whole);
        check_bytes(&d, &second);

        /* the first holder goes; the last one stays, and goes on */
        close_holder(&d, &first);
        close_holder(&d, &second);
        check_bytes(&d, &third);
        expect_state(&d, "a holder that went took something along", &third, &whole);
        for (int alone = 0; alone < 2; alone++) {
            holder control;
            if (alone) open_holder(&d, policy, tokens, PROMPT, &control);
            go_on(&d, policy, alone ? control.cache : third.cache, other[1], alone ? expected : found, drafts[alone]);
            if (alone) close_holder(&d, &control);
        }
        assert_same_bits(policy->name, found, expected, n);
        assert_memory_equal(drafts[0], drafts[1], sizeof drafts[0]);
        check_bytes(&d, &third);
        close_holder(&d, &third);
        memory_free(&whole);
        assert_int_equal(mem_bytes(&d.account, MEM_KV_FULL), 0);
        assert_int_equal(mem_bytes(&d.account, MEM_KV_LATENT), 0);
    }
    free(found);
    free(expected);
    tiny_close(&d);
}

/* Back into a page that is shared, several pages before the end; each holder then writes its own rows there. */
static void a_shared_page_is_copied_before_it_is_written(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[PROMPT], others[2][PROMPT];
    tiny_tokens(tokens, PROMPT, 3);
    tiny_tokens(others[0], PROMPT, 4);
    tiny_tokens(others[1], PROMPT, 5);
    const tiny_policy *policy = &tiny_policies[0];
    for (int memory = 0; memory < 2; memory++) {
        holder first, second;
        open_holder(&d, policy, tokens, PROMPT, &first);
        fork_holder(&d, &first, &second);
        int least = d.ops->cache_min_truncate(second.cache), back = least > 3 * PAGE - 2 ? least : 3 * PAGE - 2;
        assert_true(back < 3 * PAGE); /* inside the last shared page */
        memory_stream before = {0}, cut = {0};
        save(&d, &first, &before);
        REQUIRE_OK(d.ops->cache_truncate(second.cache, back, error));
        save(&d, &second, &cut);
        if (memory) { /* there is no memory for the copy: the segment is named, and nothing has changed */
            second.account.limit_bytes = mem_total(&second.account);
            backend_segment segments[2] = {tiny_rows(first.cache, SEGMENT_DECODE, tokens, 1, NULL),
                                           tiny_rows(second.cache, SEGMENT_DECODE, tokens, 1, NULL)};
            kakeya_error refusal = {0};
            assert_int_equal(d.ops->forward(d.backend, segments, 2, &refusal), KAKEYA_OUT_OF_MEMORY);
            assert_int_equal(segments[0].status, KAKEYA_OK);
            assert_int_equal(segments[1].status, KAKEYA_OUT_OF_MEMORY);
            second.account.limit_bytes = 0;
            expect_state(&d, "a refused forward has changed the fork", &second, &cut);
            expect_state(&d, "a refused forward has changed the first holder", &first, &before);
        }
        size_t shared = d.ops->cache_bytes(second.cache).shared_full;
        tiny_step(&d, second.cache, SEGMENT_DECODE, others[0], 1, 1, NULL);
        assert_true(d.ops->cache_bytes(second.cache).shared_full < shared);
        expect_state(&d, "a row behind a truncation reaches the first holder", &first, &before);
        check_bytes(&d, &first);
        check_bytes(&d, &second);
        memory_free(&before);
        memory_free(&cut);
        close_holder(&d, &first);
        close_holder(&d, &second);
    }
    tiny_close(&d);
}

/* Accounts with nothing above them in common: the fork is a copy of its own. */
static void unrelated_accounts_share_nothing(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", NULL, KAKEYA_PRECISION_F32);
    int32_t tokens[PROMPT];
    tiny_tokens(tokens, PROMPT, 3);
    holder first, second;
    open_holder(&d, &tiny_policies[0], tokens, PROMPT, &first);
    mem_account_init(&second.account, NULL, 0);
    REQUIRE_OK(d.ops->cache_fork(first.cache, &second.account, &second.cache, error));
    assert_int_equal(d.ops->cache_bytes(second.cache).shared_full, 0);
    check_bytes(&d, &first);
    check_bytes(&d, &second);
    close_holder(&d, &first);
    close_holder(&d, &second);
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_share_and_part),
        cmocka_unit_test(a_shared_page_is_copied_before_it_is_written),
        cmocka_unit_test(unrelated_accounts_share_nothing),
    };
    return cmocka_run_group_tests_name("sharing", tests, NULL, NULL);
}
