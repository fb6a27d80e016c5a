/* Protects: on a device an MTP assistant drafts what it does on the CPU, as closely as bf16 lets it, under every policy
 * and from every form of K/V; its drafts are a function of the committed tokens, whatever chunks, rejected blocks,
 * neighbours, forks and snapshots came between; a state that is not known is never used. Run by `make test-gpu`, and
 * but for the numbers on a fake device (tests/gpu/fake) wherever the backend is compiled. */
#include "unit/assistant_pair.h"

#include <cuda_runtime_api.h>
#include <math.h>

#include "backend/cuda/assistant.h"
#include "memory_stream.h"
#include "model/gemma4_facts.h"

#ifndef FAKE_DEVICE
#define FAKE_DEVICE 0
#endif

static bool device_present(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
           strcmp(backend_find("auto", NULL)->name, "cuda") == 0;
}

static void open_on_device(pair *p, int which) {
    if (!device_present()) skip();
    open_models(p, which);
    p->ops = backend_find("cuda", NULL);
    REQUIRE_OK(restoration_model_synthesize(&p->verifier->config, NULL, 8, 8, false, &p->account, &p->f_theta, error));
    complete(p, KAKEYA_PRECISION_BF16, 0);
}

static const kv_format formats[] = {KV_FORMAT_BF16, KV_FORMAT_Q8, KV_FORMAT_Q4};
enum { FORMATS = 3 };

/* ----------------------------------------------------------------------------------------------------- numbers */

/* Of all values the distance, as a share of their size. */
static double distance(const float *found, const float *expected, size_t n) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        apart += pow((double)found[i] - (double)expected[i], 2);
        size += pow((double)expected[i], 2);
    }
    return sqrt(apart / size);
}

enum { TEXT = 40, DRAFTS = 3, MODELS = 3, REFERENCE = 0, CPU, DEVICE };

/* What a model drafts behind each position of a text. */
typedef struct drafted {
    float states[TEXT][DRAFTS * 64], logits[TEXT][DRAFTS * 320];
    int32_t drafts[TEXT][DRAFTS];
} drafted;

static void trace_cpu(const pair *p, backend_cache *cache, int i, drafted *out) {
    const assistant_trace trace = {out->logits[i], out->states[i]};
    REQUIRE_OK(assistant_chain(cache, ids(p, "run6_tokens")[i], DRAFTS, out->drafts[i], &trace, error));
}

static void trace_device(pair *p, backend_cache *cache, const policy *of, kv_format format, int i, drafted *out) {
    bool clusters = p->assistant->config.clusters != 0;
    const cuda_assistant_trace trace = {out->states[i], clusters ? NULL : out->logits[i]};
    int32_t bonus = ids(p, "run6_tokens")[i], captured[DRAFTS];
    REQUIRE_OK(cuda_assistant_chain(cache, bonus, DRAFTS, out->drafts[i], &trace, error));
    drafts_of(p, cache, bonus, DRAFTS, captured);
    assert_drafts("captured", of, format, captured, out->drafts[i], DRAFTS);
}

/* The verifier's K/V and states come from one session, on the CPU in float32, whose snapshots after each token of a
 * text the other models take up: what differs is the assistant's own arithmetic. (Verifiers of their own, of random
 * weights, soon have nothing in common.) */
static void trace_all(int which, const policy *of, kv_format format, drafted *out) {
    static memory_stream saved[TEXT];
    for (int b = 0; b < MODELS; b++) {
        pair p;
        if (b == DEVICE)
            open_on_device(&p, which);
        else
            open_pair(&p, which, b == CPU ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32, 1);
        backend_cache *cache = b == REFERENCE ? prompted(&p, of, format) : open_cache(&p, of, format);
        for (int i = 0; i < TEXT; i++) {
            if (b == REFERENCE)
                REQUIRE_OK(p.ops->cache_snapshot(cache, memory_write, &saved[i], error));
            else
                REQUIRE_OK(p.ops->cache_restore(cache, memory_read, &saved[i], error));
            saved[i].at = 0;
            if (b == DEVICE)
                trace_device(&p, cache, of, format, i, &out[b]);
            else
                trace_cpu(&p, cache, i, &out[b]);
            if (b == REFERENCE) step(&p, cache, SEGMENT_DECODE, ids(&p, "run6_tokens") + i, 1, 1, NULL);
        }
        if (p.assistant->config.clusters) memset(out[b].logits, 0, sizeof out[b].logits);
        p.ops->cache_destroy(cache);
        close_pair(&p);
    }
    for (int i = 0; i < TEXT; i++) memory_free(&saved[i]);
}

/* Chains of drafts in float32, in bf16 on the CPU and on the device. A draft is compared where those before it are the
 * same. States and logits are as close to the reference as the CPU's in bf16, give or take the device's further
 * roundings. */
static bool compare(int which, const policy *of, kv_format format) {
    static drafted found[MODELS];
    bool as_close = true;
    trace_all(which, of, format, found);
    for (int d = 0; d < DRAFTS; d++) {
        int same[MODELS] = {0}, compared[MODELS] = {0};
        double state[MODELS] = {0}, logit[MODELS] = {0};
        for (int b = CPU; b < MODELS; b++) {
            const drafted *r = &found[REFERENCE], *f = &found[b];
            for (int i = 0; i < TEXT; i++) {
                if (memcmp(f->drafts[i], r->drafts[i], (size_t)d * sizeof(int32_t)) != 0) continue;
                compared[b]++;
                same[b] += f->drafts[i][d] == r->drafts[i][d];
                state[b] += distance(f->states[i] + d * 64, r->states[i] + d * 64, 64);
                if (r->logits[i][0] != 0) logit[b] += distance(f->logits[i] + d * 320, r->logits[i] + d * 320, 320);
            }
            state[b] /= compared[b] + (compared[b] == 0);
            logit[b] /= compared[b] + (compared[b] == 0);
        }
        print_message("%s, %s, %s, draft %d: %d of %d (CPU %d of %d) are the reference's; states %.4f (%.4f), "
                      "logits %.4f (%.4f)\n",
                      pairs[which].name, of->name, kv_format_name(format), d + 1, same[DEVICE], compared[DEVICE],
                      same[CPU], compared[CPU], state[DEVICE], state[CPU], logit[DEVICE], logit[CPU]);
        as_close &= state[DEVICE] < 2.5 * state[CPU] + 0.02 && logit[DEVICE] < 2.5 * logit[CPU] + 0.02 &&
                    same[DEVICE] >= compared[DEVICE] * 3 / 4 && compared[DEVICE] >= TEXT / 2;
    }
    return as_close;
}

static void numbers_are_the_cpus(void **state) {
    (void)state;
    if (FAKE_DEVICE || !device_present()) skip();
    bool as_close = true;
    for (int which = 0; which < PAIRS; which++) {
        for (int f = 0; f < FORMATS; f++) as_close &= compare(which, &native, formats[f]);
        for (int k = 1; k < POLICIES; k++) as_close &= compare(which, all_policies[k], KV_FORMAT_BF16);
    }
    assert_true(as_close);
}

/* -------------------------------------------------------------------------------------------------- properties */

static void drafts_know_committed_tokens_alone(void **state) {
    (void)state;
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_on_device(&p, which);
        check_committed_tokens_alone(&p, formats, FORMATS);
        close_pair(&p);
    }
}

/* Caches of every policy and two formats, with chains of several lengths, in one call: each has the drafts that it has
 * alone. So many that some have a pass of their own, and more than rows of a block. */
static void neighbours_change_nothing(void **state) {
    (void)state;
    enum { CACHES = 37 };
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_on_device(&p, which);
        for (int f = 0; f < FORMATS; f++) {
            backend_cache *cache[CACHES];
            backend_draft_request request[CACHES];
            int32_t together[CACHES][BACKEND_MAX_DRAFT];
            for (int i = 0; i < CACHES; i++) {
                int length = PROMPT - 7 * i % PROMPT;
                cache[i] = open_cache(&p, all_policies[i % POLICIES], formats[f]);
                step(&p, cache[i], SEGMENT_PROMPT, ids(&p, "input_ids"), length, length, NULL);
                if (i % 2) step(&p, cache[i], SEGMENT_DECODE, ids(&p, "bonus"), 1, 1, NULL);
                request[i] = (backend_draft_request){.cache = cache[i],
                                                     .drafter = BACKEND_ASSISTANT,
                                                     .bonus = 17 + i,
                                                     .n = 1 + 5 * i % BACKEND_MAX_DRAFT,
                                                     .drafts = together[i]};
            }
            for (int n = CACHES; n > 0; n /= 3) {
                REQUIRE_OK(p.ops->draft(p.backend, request, n, error));
                for (int i = 0; i < n; i++) {
                    int32_t alone[BACKEND_MAX_DRAFT];
                    drafts_of(&p, cache[i], request[i].bonus, request[i].n, alone);
                    assert_drafts("together", all_policies[i % POLICIES], formats[f], together[i], alone, request[i].n);
                }
            }
            for (int i = 0; i < CACHES; i++) p.ops->cache_destroy(cache[i]);
        }
        close_pair(&p);
    }
}

/* Forks and snapshots have the state, a truncation loses it until rows are kept again, dropped blocks and prompts leave
 * it alone; what is saved can be taken up without an assistant, and the other way round. One row is all that it takes.
 */
static void the_state_moves_with_the_tokens(void **state) {
    (void)state;
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_on_device(&p, which);
        for (int k = 0; k < POLICIES; k++) {
            const policy *of = all_policies[k];
            int32_t expected[LONGEST], found[LONGEST], bonus = *ids(&p, "bonus");
            backend_cache *cache = open_cache(&p, of, KV_FORMAT_BF16), *other = NULL;
            assert_unknown(&p, cache);
            assert_int_equal(p.ops->cache_bytes(cache).draft, mem_rounded(64 * sizeof(float)));
            step(&p, cache, SEGMENT_PROMPT, ids(&p, "input_ids"), PROMPT, PROMPT, NULL);
            drafts_of(&p, cache, bonus, LONGEST, expected);
            step(&p, cache, SEGMENT_DECODE, ids(&p, "run6_tokens"), 3, 0, NULL); /* nothing is kept */
            drafts_of(&p, cache, bonus, LONGEST, found);
            assert_drafts("behind a dropped block", of, KV_FORMAT_BF16, found, expected, LONGEST);

            REQUIRE_OK(p.ops->cache_fork(cache, &p.account, &other, error));
            drafts_of(&p, other, bonus, LONGEST, found);
            assert_drafts("fork", of, KV_FORMAT_BF16, found, expected, LONGEST);
            p.ops->cache_destroy(other);

            memory_stream saved = {0}, without = {0};
            REQUIRE_OK(p.ops->cache_snapshot(cache, memory_write, &saved, error));
            assert_int_equal(saved.bytes, p.ops->cache_snapshot_bytes(cache));
            other = open_cache(&p, of, KV_FORMAT_BF16);
            REQUIRE_OK(p.ops->cache_restore(other, memory_read, &saved, error));
            drafts_of(&p, other, bonus, LONGEST, found);
            assert_drafts("restored snapshot", of, KV_FORMAT_BF16, found, expected, LONGEST);

            const backend_cache_options options = {.context_tokens = CONTEXT,
                                                   .attention = of->attention,
                                                   .restore_layers = of->layers,
                                                   .sink = of->sink,
                                                   .window = of->window,
                                                   .draft_window = 16,
                                                   .kv_format = KV_FORMAT_BF16,
                                                   .account = &p.account};
            backend_cache *plain = NULL;
            REQUIRE_OK(p.ops->cache_create(p.backend, &options, &plain, error));
            saved.at = 0;
            REQUIRE_OK(p.ops->cache_restore(plain, memory_read, &saved, error));
            assert_int_equal(saved.at, saved.bytes);
            REQUIRE_OK(p.ops->cache_snapshot(plain, memory_write, &without, error));
            assert_int_equal(without.bytes + 64 * sizeof(float), saved.bytes);
            REQUIRE_OK(p.ops->cache_restore(other, memory_read, &without, error));
            assert_unknown(&p, other);
            p.ops->cache_destroy(plain);

            REQUIRE_OK(p.ops->cache_truncate(cache, PROMPT, error));
            assert_true(p.ops->cache_has_state(cache));
            if (p.ops->cache_min_truncate(cache) < PROMPT) {
                REQUIRE_OK(p.ops->cache_truncate(cache, PROMPT - 1, error));
                assert_unknown(&p, cache);
                step(&p, cache, SEGMENT_DECODE, ids(&p, "input_ids") + PROMPT - 1, 1, 1, NULL);
                assert_true(p.ops->cache_has_state(cache));
            }
            memory_free(&saved);
            memory_free(&without);
            p.ops->cache_destroy(cache);
            p.ops->cache_destroy(other);
        }
        close_pair(&p);
    }
}

/* Suppressed tokens are never drafted, whatever their logits. */
static void suppressed_tokens_are_not_drafted(void **state) {
    (void)state;
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_on_device(&p, which);
        int32_t bonus = *ids(&p, "bonus"), last[1] = {-1};
        for (int i = 0; i < 4; i++) {
            backend_cache *cache = prompted(&p, &native, KV_FORMAT_BF16);
            int32_t drafts[1];
            drafts_of(&p, cache, bonus, 1, drafts);
            assert_int_not_equal(drafts[0], last[0]);
            last[0] = drafts[0];
            for (int k = 0; k < p.verifier->config.n_suppress_tokens; k++)
                assert_int_not_equal(drafts[0], p.verifier->config.suppress_tokens[k]);
            p.ops->cache_destroy(cache);
            p.ops->model_destroy(p.backend);
            assert_true(gemma4_add_suppressed_token(&p.verifier->config, drafts[0]));
            complete(&p, KAKEYA_PRECISION_BF16, 0); /* captured steps have the list that there was */
        }
        close_pair(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_the_cpus),
        cmocka_unit_test(drafts_know_committed_tokens_alone),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(the_state_moves_with_the_tokens),
        cmocka_unit_test(suppressed_tokens_are_not_drafted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
