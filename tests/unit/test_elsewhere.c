/* Protects what a cache's snapshot is for: another engine, in another process, goes on where the first one stopped,
 * under every policy, with the bits of a session that was never interrupted. The new engine has computed nothing yet
 * when it restores. */
#include "base/hash.h"
#include "memory_stream.h"
#include "tiny.h"

enum { PROMPT = 70, ANSWER = 26, NEXT = 24, LAST = 20, ALL = PROMPT + ANSWER + NEXT + LAST, DRAFTS = 6 };

static const char *program;

/* Another prompt, and another answer with drafts; everything that they give, in one number. */
static uint64_t go_on(tiny *d, const tiny_policy *policy, backend_cache *cache, const int32_t *tokens) {
    size_t vocab = (size_t)d->verifier->config.vocab;
    float *logits = malloc(NEXT * vocab * sizeof *logits);
    int32_t drafts[DRAFTS];
    int most = tiny_block_rows(policy) < 5 ? tiny_block_rows(policy) : 5;
    REQUIRE_OK(backend_draft_one(d->ops, d->backend, cache, tokens[0], DRAFTS, drafts, error));
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, drafts, sizeof drafts);
    tiny_step(d, cache, SEGMENT_PROMPT, tokens, NEXT, NEXT, logits);
    hash = hash_fnv1a(hash, logits, NEXT * vocab * sizeof *logits);
    for (int at = NEXT; at < NEXT + LAST; at += most) {
        int n = NEXT + LAST - at < most ? NEXT + LAST - at : most;
        tiny_step(d, cache, SEGMENT_DECODE, tokens + at, n, n, logits);
        hash = hash_fnv1a(hash, logits, (size_t)n * vocab * sizeof *logits);
    }
    free(logits);
    return hash;
}

static void open_models(tiny *d) { tiny_open(d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32); }

/* In the other process: restores from the file and prints what it computes then. */
static int restore_here(const char *file, const char *index) {
    tiny d;
    const tiny_policy *policy = &tiny_policies[atoi(index)];
    int32_t tokens[ALL];
    memory_stream snapshot = {0};
    char piece[4096];
    FILE *in = fopen(file, "rb");
    for (size_t n; in && (n = fread(piece, 1, sizeof piece, in)) > 0;) (void)memory_write(&snapshot, piece, n, NULL);
    if (in) fclose(in);
    open_models(&d);
    tiny_tokens(tokens, ALL, 77);
    backend_cache *cache = tiny_cache(&d, policy, KV_FORMAT_F32);
    REQUIRE_OK(d.ops->cache_restore(cache, memory_read, &snapshot, error));
    printf("%016llx\n", (unsigned long long)go_on(&d, policy, cache, tokens + PROMPT + ANSWER));
    d.ops->cache_destroy(cache);
    memory_free(&snapshot);
    tiny_close(&d);
    return 0;
}

static uint64_t computed_elsewhere(const memory_stream *snapshot, int policy) {
    char file[] = "/tmp/kakeya-elsewhere-XXXXXX", command[1024];
    int handle = mkstemp(file);
    FILE *out = fdopen(handle, "wb");
    assert_int_equal(fwrite(snapshot->data, 1, snapshot->bytes, out), snapshot->bytes);
    fclose(out);
    snprintf(command, sizeof command, "'%s' %s %d", program, file, policy);
    FILE *answer = popen(command, "r");
    unsigned long long hash = 0;
    if (!answer || fscanf(answer, "%llx", &hash) != 1)
        fail_msg("%s: the other process gave no answer", tiny_policies[policy].name);
    assert_int_equal(pclose(answer), 0);
    remove(file);
    return hash;
}

static void another_process_goes_on(void **state) {
    (void)state;
    int32_t tokens[ALL];
    tiny_tokens(tokens, ALL, 77);
    for (int i = 0; i < TINY_POLICIES; i++) {
        tiny d;
        open_models(&d);
        backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
        tiny_step(&d, cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, NULL);
        for (int at = 0; at < ANSWER; at++) tiny_step(&d, cache, SEGMENT_DECODE, tokens + PROMPT + at, 1, 1, NULL);
        memory_stream snapshot = {0};
        REQUIRE_OK(d.ops->cache_snapshot(cache, memory_write, &snapshot, error));
        uint64_t here = go_on(&d, &tiny_policies[i], cache, tokens + PROMPT + ANSWER);
        d.ops->cache_destroy(cache);
        tiny_close(&d);
        uint64_t there = computed_elsewhere(&snapshot, i);
        if (here != there)
            fail_msg("%s: %016llx without the break, %016llx with it", tiny_policies[i].name, (unsigned long long)here,
                     (unsigned long long)there);
        memory_free(&snapshot);
    }
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc == 3) return restore_here(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(another_process_goes_on)};
    return cmocka_run_group_tests_name("elsewhere", tests, NULL, NULL);
}
