/* Protects: an MTP assistant drafts what its vectors say (tests/data/golden/mtp: transformers' classes in float32),
 * from its own verifier and from the vectors' keys, values and states; its drafts are a function of the committed
 * tokens, whatever chunks, rejected blocks, neighbours, forks and snapshots came between; a state that is not known is
 * never used. */
#include "unit/assistant_pair.h"

#include "memory_stream.h"
#include "model/gemma4_facts.h"

/* ----------------------------------------------------------------------------------------------------- vectors */

/* Keys and values of the vectors ([heads][position][d]) in the place of those that the verifier has made. */
static void put_rows(backend_cache *c, int layer, const float *keys, const float *values) {
    const layer_config *l = &c->t.models.verifier->layer[layer];
    size_t d = (size_t)l->head_dim;
    position_range held = timeline_layer_held(&c->t, layer);
    for (int position = 0; position < PROMPT; position++) {
        for (int is_k = 0; is_k < (c->t.layer[layer].has_keys ? 2 : 1); is_k++) {
            for (int h = 0; h < l->kv_heads; h++) {
                const float *from = (is_k ? keys : values) + ((size_t)h * PROMPT + (size_t)position) * d;
                if (position >= held.begin)
                    memcpy(kv_row(c, layer, position, is_k) + (size_t)h * d * sizeof *from, from, d * sizeof *from);
                if (c->t.layer[layer].bounded && position < c->t.options.sink)
                    memcpy(kv_sink_row(c, layer, position, is_k) + (size_t)h * d * sizeof *from, from,
                           d * sizeof *from);
            }
        }
    }
}

static void put_vectors(pair *p, backend_cache *cache) {
    const model_config *c = &p->verifier->config;
    put_rows(cache, assistant_source(c, LAYER_SLIDING), floats(p, "sliding_k"), floats(p, "sliding_v"));
    put_rows(cache, assistant_source(c, LAYER_FULL), floats(p, "full_k"), floats(p, "full_v"));
    memcpy(cache->state, floats(p, "target_hidden"), (size_t)c->hidden * sizeof(float));
}

static void check_chain(pair *p, backend_cache *cache, int n, const char *logits_name, const char *ids_name,
                        const char *states_name, double bound) {
    size_t vocab = (size_t)p->verifier->config.vocab, hidden = (size_t)p->verifier->config.hidden;
    float logits[LONGEST * 320], states[LONGEST * 64];
    int32_t drafts[LONGEST];
    assert_true(vocab == 320 && hidden == 64);
    const assistant_trace trace = {logits, states};
    REQUIRE_OK(assistant_chain(cache, *ids(p, "bonus"), n, drafts, &trace, error));
    assert_close(logits_name, logits, floats(p, logits_name), (size_t)n * vocab, bound);
    if (states_name) assert_close(states_name, states, floats(p, states_name), (size_t)n * hidden, bound);
    for (int i = 0; i < n; i++)
        if (drafts[i] != ids(p, ids_name)[i])
            fail_msg("%s[%d] is %d, expected %d", ids_name, i, (int)drafts[i], (int)ids(p, ids_name)[i]);
}

static void from_the_vectors(void **state) {
    (void)state;
    for (int which = 0; which < PAIRS; which++) {
        for (int threads = 1; threads <= 3; threads += 2) {
            pair p;
            open_pair(&p, which, KAKEYA_PRECISION_F32, threads);
            backend_cache *cache = prompted(&p, &native, KV_FORMAT_F32);
            put_vectors(&p, cache);
            check_chain(&p, cache, 6, "draft_logits", "draft_ids", "draft_state", 1e-4);
            p.ops->cache_destroy(cache);
            cache = prompted(&p, &sink_window, KV_FORMAT_F32);
            put_vectors(&p, cache);
            check_chain(&p, cache, 3, "sink_window_logits", "sink_window_ids", NULL, 1e-4);
            p.ops->cache_destroy(cache);
            cache = prompted(&p, &bounded_all, KV_FORMAT_F32);
            put_vectors(&p, cache);
            check_chain(&p, cache, 3, "bounded_all_logits", "bounded_all_ids", NULL, 1e-4);
            p.ops->cache_destroy(cache);
            close_pair(&p);
        }
    }
}

/* Greedy speculation with `longest` drafts a block, as the vectors' runs: 40 tokens, the bonus the first of them. */
static void run_of(pair *p, int longest) {
    char name[32];
    snprintf(name, sizeof name, "run%d_drafts", longest);
    const int32_t *drafted = ids(p, name);
    snprintf(name, sizeof name, "run%d_accepted", longest);
    const int32_t *accepted = ids(p, name);
    int steps = rows_of(p, name);
    snprintf(name, sizeof name, "run%d_position", longest);
    const int32_t *positions = ids(p, name), *text = ids(p, "run6_tokens");
    backend_cache *cache = prompted(p, &native, KV_FORMAT_F32);
    int32_t block[LONGEST + 1] = {*ids(p, "bonus")}, argmax[LONGEST + 1];
    int counted = 1, at_step = 0;
    float logits[LONGEST * 320];
    assert_int_equal(block[0], text[0]);
    for (; counted < 40; at_step++) {
        int n = longest < 40 - counted - 1 ? longest : 40 - counted - 1;
        assert_true(at_step < steps);
        assert_int_equal(p->ops->cache_length(cache), positions[at_step]);
        const assistant_trace trace = {logits, NULL};
        if (n) REQUIRE_OK(assistant_chain(cache, block[0], n, block + 1, &trace, error));
        for (int i = 0; i < n; i++) assert_int_equal(block[1 + i], drafted[at_step * longest + i]);
        for (int i = 0; i < 2 && longest == LONGEST && n == longest; i++) {
            snprintf(name, sizeof name, "step%d_position", i);
            if (*ids(p, name) != positions[at_step]) continue;
            snprintf(name, sizeof name, "step%d_logits", i);
            assert_close(name, logits, floats(p, name), (size_t)(longest * 320), 1e-3);
        }
        backend_segment segment = {
            .cache = cache, .tokens = block, .n = n + 1, .kind = SEGMENT_DECODE, .argmax = argmax};
        REQUIRE_OK(p->ops->forward(p->backend, &segment, 1, error));
        int kept = 0;
        while (kept < n && argmax[kept] == block[kept + 1]) kept++;
        assert_int_equal(kept, accepted[at_step]);
        REQUIRE_OK(p->ops->cache_commit(cache, kept + 1, error));
        for (int i = 0; i <= kept; i++) assert_int_equal(argmax[i], text[counted++]);
        block[0] = argmax[kept];
    }
    assert_int_equal(at_step, steps);
    p->ops->cache_destroy(cache);
}

static void from_its_verifier(void **state) {
    (void)state;
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_pair(&p, which, KAKEYA_PRECISION_F32, 1);
        backend_cache *cache = prompted(&p, &native, KV_FORMAT_F32);
        assert_close("target_hidden", cache->state, floats(&p, "target_hidden"), 64, 1e-3);
        check_chain(&p, cache, 6, "draft_logits", "draft_ids", "draft_state", 1e-3);
        p.ops->cache_destroy(cache);
        run_of(&p, 6);
        run_of(&p, 2);
        close_pair(&p);
    }
}

/* -------------------------------------------------------------------------------------------------- properties */

static const kv_format formats[] = {KV_FORMAT_F32, KV_FORMAT_BF16, KV_FORMAT_Q8, KV_FORMAT_Q4};
enum { FORMATS = 4 };

static void drafts_know_committed_tokens_alone(void **state) {
    (void)state;
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_pair(&p, which, KAKEYA_PRECISION_BF16, 2);
        check_committed_tokens_alone(&p, formats, FORMATS);
        close_pair(&p);
    }
}

/* Caches of every policy, with chains of several lengths, in one call: each has the drafts that it has alone. */
static void neighbours_change_nothing(void **state) {
    (void)state;
    enum { CACHES = 9 };
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_pair(&p, which, KAKEYA_PRECISION_BF16, 2);
        for (int f = 0; f < FORMATS; f++) {
            backend_cache *cache[CACHES];
            backend_draft_request request[CACHES];
            int32_t together[CACHES][BACKEND_MAX_DRAFT];
            for (int i = 0; i < CACHES; i++) {
                cache[i] = open_cache(&p, all_policies[i % POLICIES], formats[f]);
                step(&p, cache[i], SEGMENT_PROMPT, ids(&p, "input_ids") + i, PROMPT - 5 * i, PROMPT - 5 * i, NULL);
                if (i % 2) step(&p, cache[i], SEGMENT_DECODE, ids(&p, "bonus"), 1, 1, NULL);
                request[i] = (backend_draft_request){.cache = cache[i],
                                                     .drafter = BACKEND_ASSISTANT,
                                                     .bonus = 17 + i,
                                                     .n = 1 + 5 * i % BACKEND_MAX_DRAFT,
                                                     .drafts = together[i]};
            }
            REQUIRE_OK(p.ops->draft(p.backend, request, CACHES, error));
            for (int i = 0; i < CACHES; i++) {
                int32_t alone[BACKEND_MAX_DRAFT];
                chain(cache[i], request[i].bonus, request[i].n, alone);
                assert_drafts("together", all_policies[i % POLICIES], formats[f], together[i], alone, request[i].n);
                p.ops->cache_destroy(cache[i]);
            }
        }
        close_pair(&p);
    }
}

/* Forks and snapshots have the state, a truncation loses it until rows are kept again; what a cache without an
 * assistant saves can be taken up by one with, and the other way round. */
static void the_state_moves_with_the_tokens(void **state) {
    (void)state;
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_pair(&p, which, KAKEYA_PRECISION_BF16, 1);
        for (int k = 0; k < POLICIES; k++) {
            const policy *of = all_policies[k];
            int32_t expected[LONGEST], found[LONGEST], bonus = *ids(&p, "bonus");
            backend_cache *cache = open_cache(&p, of, KV_FORMAT_BF16), *other = NULL;
            assert_unknown(&p, cache);
            step(&p, cache, SEGMENT_PROMPT, ids(&p, "input_ids"), PROMPT, PROMPT, NULL);
            chain(cache, bonus, LONGEST, expected);
            step(&p, cache, SEGMENT_DECODE, ids(&p, "run6_tokens"), 3, 0, NULL); /* nothing is kept */
            chain(cache, bonus, LONGEST, found);
            assert_drafts("behind a dropped block", of, KV_FORMAT_BF16, found, expected, LONGEST);

            REQUIRE_OK(p.ops->cache_fork(cache, &p.account, &other, error));
            chain(other, bonus, LONGEST, found);
            assert_drafts("fork", of, KV_FORMAT_BF16, found, expected, LONGEST);
            p.ops->cache_destroy(other);

            memory_stream saved = {0}, again = {0}, without = {0};
            REQUIRE_OK(p.ops->cache_snapshot(cache, memory_write, &saved, error));
            assert_int_equal(saved.bytes, p.ops->cache_snapshot_bytes(cache));
            other = open_cache(&p, of, KV_FORMAT_BF16);
            REQUIRE_OK(p.ops->cache_restore(other, memory_read, &saved, error));
            chain(other, bonus, LONGEST, found);
            assert_drafts("restored snapshot", of, KV_FORMAT_BF16, found, expected, LONGEST);
            REQUIRE_OK(p.ops->cache_snapshot(other, memory_write, &again, error));
            assert_int_equal(again.bytes, saved.bytes);
            assert_memory_equal(again.data, saved.data, saved.bytes);

            /* A cache that keeps no state takes the rest, and what it saves is taken up without one. */
            backend_cache_options options = cache->t.options;
            options.keep_draft_state = false;
            backend_cache *plain = NULL;
            REQUIRE_OK(p.ops->cache_create(p.backend, &options, &plain, error));
            saved.at = 0;
            REQUIRE_OK(p.ops->cache_restore(plain, memory_read, &saved, error));
            assert_int_equal(p.ops->cache_length(plain), PROMPT);
            assert_int_equal(saved.at, saved.bytes);
            REQUIRE_OK(p.ops->cache_snapshot(plain, memory_write, &without, error));
            assert_int_equal(without.bytes + 64 * sizeof(float), saved.bytes);
            REQUIRE_OK(p.ops->cache_restore(other, memory_read, &without, error));
            assert_unknown(&p, other);
            p.ops->cache_destroy(plain);

            /* A truncation to what is there already forgets nothing. */
            REQUIRE_OK(p.ops->cache_truncate(cache, PROMPT, error));
            assert_true(p.ops->cache_has_state(cache));
            int length = p.ops->cache_min_truncate(cache) < PROMPT ? PROMPT - 1 : PROMPT;
            REQUIRE_OK(p.ops->cache_truncate(cache, length, error));
            if (length < PROMPT) assert_unknown(&p, cache);
            if (length < PROMPT) step(&p, cache, SEGMENT_PROMPT, ids(&p, "input_ids") + length, 1, 1, NULL);
            chain(cache, bonus, LONGEST, found);
            assert_drafts("behind a truncation", of, KV_FORMAT_BF16, found, expected, LONGEST);
            memory_free(&saved);
            memory_free(&again);
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
        open_pair(&p, which, KAKEYA_PRECISION_F32, 1);
        backend_cache *cache = prompted(&p, &native, KV_FORMAT_F32);
        int32_t bonus = *ids(&p, "bonus"), drafts[1];
        for (int i = 0; i < 8; i++) {
            chain(cache, bonus, 1, drafts);
            for (int k = 0; k < p.verifier->config.n_suppress_tokens; k++)
                assert_int_not_equal(drafts[0], p.verifier->config.suppress_tokens[k]);
            assert_true(gemma4_add_suppressed_token(&p.verifier->config, drafts[0]));
        }
        p.ops->cache_destroy(cache);
        close_pair(&p);
    }
}

/* Keys and values in eight and four bits, read with their scales and transforms: most drafts are what they are in
 * float32, though these small models enlarge rounding. An assistant that misread them would draft anything. */
static void quantised_rows_draft_nearly_the_same(void **state) {
    (void)state;
    enum { TEXT = 40 };
    int same[FORMATS] = {0}, all = 0;
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        open_pair(&p, which, KAKEYA_PRECISION_F32, 1);
        int32_t expected[TEXT][2];
        for (int f = 0; f < FORMATS; f++) {
            backend_cache *cache = prompted(&p, &native, formats[f]);
            const int32_t *text = ids(&p, "run6_tokens");
            for (int i = 0; i < TEXT; i++) {
                int32_t drafts[2];
                chain(cache, text[i], 2, drafts);
                if (f == 0) memcpy(expected[i], drafts, sizeof drafts);
                for (int k = 0; k < 2; k++) same[f] += drafts[k] == expected[i][k];
                step(&p, cache, SEGMENT_DECODE, text + i, 1, 1, NULL);
            }
            p.ops->cache_destroy(cache);
        }
        all += 2 * TEXT;
        close_pair(&p);
    }
    print_message("equal drafts of %d: bf16 %d, q8 %d, q4 %d\n", all, same[1], same[2], same[3]);
    assert_int_equal(same[0], all);
    assert_true(same[1] > all / 2 && same[2] > all / 2 && same[3] > all / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_the_vectors),
        cmocka_unit_test(from_its_verifier),
        cmocka_unit_test(drafts_know_committed_tokens_alone),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(the_state_moves_with_the_tokens),
        cmocka_unit_test(suppressed_tokens_are_not_drafted),
        cmocka_unit_test(quantised_rows_draft_nearly_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
