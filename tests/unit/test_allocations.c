/* Protects sessions from memory that runs out: every allocation of a long use of the CPU backend fails in turn, alone
 * or with all that follow until the call has returned. The call says so, nothing has changed, and after the retry
 * everything has the bits of a run in which nothing failed. Also what a fork allocates. The allocator's functions are
 * wrapped by the linker (CMakeLists.txt). */
#include <errno.h>

#include "allocation_sites.h"
#include "memory_stream.h"
#include "sweep.h"
#include "tiny.h"

/* ------------------------------------------------------------------------------------------------- the allocator */

static long allocations;  /* so far */
static long failing = -1; /* the one that fails; -1: none */
static bool and_the_rest; /* and all after it */
static bool has_failed;
static size_t allocated_bytes;

static bool fails(size_t bytes) {
    long index = allocations++;
    allocation_sites_note();
    allocated_bytes += bytes;
    if (failing < 0 || index < failing || (index > failing && !and_the_rest)) return false;
    has_failed = true;
    return true;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) { return fails(bytes) ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t bytes) { return fails(n * bytes) ? NULL : __real_calloc(n, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return fails(bytes) ? NULL : __real_realloc(old, bytes); }
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
    return fails(bytes) ? ENOMEM : __real_posix_memalign(out, alignment, bytes);
}

/* ---------------------------------------------------------------------------------------------------- the sweep */

enum { FIRST = 66, SECOND = 30, MOST_ROWS = 256, DRAFTS = 4 };

/* A use of the backend; each of its calls is made once more where it has failed. */
typedef struct use {
    tiny *d;
    const tiny_policy *policy;
    backend_cache *cache, *other;
    int32_t tokens[MOST_ROWS];
    int at, rows;  /* tokens used; rows whose logits are kept */
    float *logits; /* [MOST_ROWS][vocab] */
    int32_t drafts[DRAFTS];
    long failures;
} use;

typedef kakeya_status (*use_call)(use *u, kakeya_error *error);

static bool same_lengths(const use *u, int length, int pending) {
    return !u->cache || (u->d->ops->cache_length(u->cache) == length && u->d->ops->cache_pending(u->cache) == pending);
}

static void call(use *u, const char *what, use_call function) {
    int length = u->cache ? u->d->ops->cache_length(u->cache) : 0,
        pending = u->cache ? u->d->ops->cache_pending(u->cache) : 0;
    size_t held = mem_total(&u->d->account);
    kakeya_error refusal = {0};
    has_failed = false;
    kakeya_status status = function(u, &refusal);
    if (status == KAKEYA_OK) {
        if (has_failed) fail_msg("%s, %s: allocation %ld failed unnoticed", u->policy->name, what, failing);
        return;
    }
    if (status != KAKEYA_OUT_OF_MEMORY || !has_failed)
        fail_msg("%s, %s, allocation %ld: %s", u->policy->name, what, failing, refusal.message);
    failing = -1;
    u->failures++;
    if (!same_lengths(u, length, pending)) fail_msg("%s, %s: the failure left a trace", u->policy->name, what);
    /* Tables of the engine may have grown; a cache may not. */
    if (mem_total(&u->d->account) < held) fail_msg("%s, %s: the failure took memory away", u->policy->name, what);
    backend_cache_bytes formula = u->cache ? u->d->ops->cache_bytes(u->cache) : (backend_cache_bytes){0};
    size_t kv = mem_bytes(&u->d->account, MEM_KV_FULL) + mem_bytes(&u->d->account, MEM_KV_SLIDING) +
                mem_bytes(&u->d->account, MEM_KV_LATENT) + mem_bytes(&u->d->account, MEM_KV_DRAFT);
    if (u->other) kv -= u->d->ops->cache_bytes(u->other).total;
    if (kv != formula.total)
        fail_msg("%s, %s: %zu bytes of K/V after the failure, %zu by the formula", u->policy->name, what, kv,
                 formula.total);
    REQUIRE_OK(function(u, error));
}

static kakeya_status create(use *u, kakeya_error *error) {
    backend_cache_options options = tiny_options(u->d, u->policy, KV_FORMAT_F32);
    return u->d->ops->cache_create(u->d->backend, &options, u->cache ? &u->other : &u->cache, error);
}

static kakeya_status forward(use *u, segment_kind kind, int n, kakeya_error *error) {
    size_t vocab = (size_t)u->d->verifier->config.vocab;
    backend_segment segment = tiny_rows(u->cache, kind, u->tokens + u->at, n, u->logits + (size_t)u->rows * vocab);
    return u->d->ops->forward(u->d->backend, &segment, 1, error);
}

static kakeya_status first_prompt(use *u, kakeya_error *error) { return forward(u, SEGMENT_PROMPT, FIRST, error); }
static kakeya_status second_prompt(use *u, kakeya_error *error) { return forward(u, SEGMENT_PROMPT, SECOND, error); }
static kakeya_status block(use *u, kakeya_error *error) {
    return forward(u, SEGMENT_DECODE, tiny_block_rows(u->policy), error);
}

/* Beside a prompt of another cache, whose reservation comes later and may fail alone. */
static kakeya_status block_beside_prompt(use *u, kakeya_error *error) {
    size_t vocab = (size_t)u->d->verifier->config.vocab;
    backend_segment segments[2] = {tiny_rows(u->cache, SEGMENT_DECODE, u->tokens + u->at, tiny_block_rows(u->policy),
                                             u->logits + (size_t)u->rows * vocab),
                                   tiny_rows(u->other, SEGMENT_PROMPT, u->tokens, FIRST, NULL)};
    return u->d->ops->forward(u->d->backend, segments, 2, error);
}

static kakeya_status draft(use *u, kakeya_error *error) {
    return backend_draft_one(u->d->ops, u->d->backend, u->cache, 5, DRAFTS, u->drafts, error);
}
static kakeya_status fork_cache(use *u, kakeya_error *error) {
    return u->d->ops->cache_fork(u->cache, &u->d->account, &u->other, error);
}

static kakeya_status through_snapshot(use *u, kakeya_error *error) {
    memory_stream stream = {0};
    kakeya_status status = u->d->ops->cache_snapshot(u->cache, memory_write, &stream, error);
    if (!status) status = u->d->ops->cache_restore(u->cache, memory_read, &stream, error);
    memory_free(&stream);
    return status;
}

/* A commit needs no memory: it cannot fail. */
static void keep(use *u, int computed, int kept) {
    long before = allocations;
    REQUIRE_OK(u->d->ops->cache_commit(u->cache, kept, error));
    assert_int_equal(allocations, before);
    u->rows += computed; /* also those that are dropped: they are compared, too */
    u->at += kept;
}

static void run_use(use *u) {
    const backend_ops *ops = u->d->ops;
    int n = tiny_block_rows(u->policy);
    call(u, "create", create);
    call(u, "first prompt", first_prompt);
    keep(u, FIRST, FIRST);
    call(u, "a block that is dropped", block);
    keep(u, n, 0);
    call(u, "first block", block);
    keep(u, n, n > 2 ? 2 : 1);
    call(u, "create another", create);
    call(u, "second block, beside a prompt", block_beside_prompt);
    REQUIRE_OK(ops->cache_commit(u->other, FIRST, error));
    keep(u, n, n);
    ops->cache_destroy(u->other);
    u->other = NULL;
    call(u, "draft", draft);
    call(u, "fork", fork_cache);
    ops->cache_destroy(u->cache);
    u->cache = u->other;
    u->other = NULL;
    call(u, "second prompt", second_prompt);
    keep(u, SECOND, SECOND);
    call(u, "third block", block);
    keep(u, n, n);
    call(u, "snapshot", through_snapshot);
    call(u, "fourth block", block);
    keep(u, n, n);
    ops->cache_destroy(u->cache);
    u->cache = NULL;
}

/* One run with allocation `index` failing (-1: none); how many allocations there were. */
static long run(tiny *d, int policy, long index, bool rest, float *logits, int *rows, int32_t *drafts, long *failures) {
    use u = {.d = d, .policy = &tiny_policies[policy], .logits = logits};
    d->f_theta->config.input = u.policy->input;
    tiny_tokens(u.tokens, MOST_ROWS, 40);
    allocations = 0;
    failing = index;
    and_the_rest = rest;
    run_use(&u);
    failing = -1;
    *rows = u.rows;
    *failures += u.failures;
    memcpy(drafts, u.drafts, sizeof u.drafts);
    return allocations;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const int policies[] = {0, 3, 5, 8}; /* every kind of store */
    for (int p = 0; p < 4; p++) {
        int policy = policies[p];
        long total = 1, failures = 0, tried = 0;
        float *expected = NULL, *found = NULL;
        int32_t wanted[DRAFTS], drafts[DRAFTS];
        int rows = 0, again = 0;
        for (long index = -1; index < total; index += sweep_short() && index >= 0 ? 29 : 1) {
            if (index >= 0 && !allocation_sites_worth(index + 1)) continue;
            tiny d; /* anew, so that the engine's tables grow again */
            tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
            size_t vocab = (size_t)d.verifier->config.vocab;
            if (!expected) expected = calloc(MOST_ROWS * vocab, sizeof *expected);
            if (!found) found = calloc(MOST_ROWS * vocab, sizeof *found);
            if (index < 0) {
                allocation_sites_begin();
                total = run(&d, policy, -1, false, expected, &rows, wanted, &failures);
                allocation_sites_end();
            } else {
                tried++;
                run(&d, policy, index, index % 2, found, &again, drafts, &failures);
                char what[128];
                snprintf(what, sizeof what, "%s, allocation %ld of %ld", tiny_policies[policy].name, index, total);
                assert_int_equal(again, rows);
                assert_same_bits(what, found, expected, (size_t)rows * vocab);
                assert_memory_equal(drafts, wanted, sizeof drafts);
            }
            tiny_close(&d);
        }
        assert_int_equal(failures, tried); /* each one was seen */
        print_message("%s: %ld of %ld allocations\n", tiny_policies[policy].name, tried, total);
        free(expected);
        free(found);
    }
}

/* A fork allocates what it holds, and next to nothing else. */
static void a_fork_needs_no_second_copy(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[FIRST];
    tiny_tokens(tokens, FIRST, 40);
    for (int i = 0; i < TINY_POLICIES; i++) {
        backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32), *fork = NULL;
        tiny_step(&d, cache, SEGMENT_PROMPT, tokens, FIRST, FIRST, NULL);
        mem_account own;
        mem_account_init(&own, &d.account, 0);
        allocated_bytes = 0;
        REQUIRE_OK(d.ops->cache_fork(cache, &own, &fork, error));
        enum { BOOKKEEPING = 64 << 10 };
        if (allocated_bytes > mem_total(&own) + BOOKKEEPING)
            fail_msg("%s: a fork of %zu bytes allocates %zu", tiny_policies[i].name, mem_total(&own), allocated_bytes);
        d.ops->cache_destroy(cache);
        d.ops->cache_destroy(fork);
    }
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_fork_needs_no_second_copy),
    };
    return cmocka_run_group_tests_name("allocations", tests, NULL, NULL);
}
