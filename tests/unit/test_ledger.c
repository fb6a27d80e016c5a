/* Protects the ledger: what a session will hold in each layer, told from configurations alone, is what the allocator
 * counts for that layer while the session is open, under every policy and K/V format; layers sum to kinds; a copy takes
 * what is said of a checkpoint; and nothing is left when all is closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kakeya_study.h"

enum { CONTEXT = 640, ANSWER = 4, LAYERS = 128 };

static const kakeya_memory_kind layered[] = {KAKEYA_MEMORY_KV_FULL, KAKEYA_MEMORY_KV_SLIDING, KAKEYA_MEMORY_KV_DRAFT};
enum { LAYERED = sizeof layered / sizeof layered[0] };

static const struct {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers layers;
} policies[] = {{"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING},
                {"sink-window", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING},
                {"restored", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING},
                {"restored-all", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL}};
static const kakeya_kv_format formats[] = {KAKEYA_KV_F32, KAKEYA_KV_BF16, KAKEYA_KV_Q8, KAKEYA_KV_Q4};

static kakeya_engine *open_engine(void) {
    kakeya_engine_options options;
    kakeya_engine *engine = NULL;
    kakeya_error error = {0};
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.threads = 1;
    if (kakeya_engine_open(&options, &engine, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    return engine;
}

/* A session of `tokens` tokens, of which the last were answered one by one. */
static kakeya_session *open_session(kakeya_engine *engine, const kakeya_session_options *options, int tokens) {
    kakeya_session *session = NULL;
    kakeya_error error = {0};
    int32_t ids[CONTEXT];
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_AR;
    generate.max_tokens = ANSWER;
    generate.ignore_stop_tokens = true;
    for (int i = 0; i < tokens; i++) ids[i] = i ? (i * 7919 + 13) % 8000 : 2;
    if (kakeya_session_open(engine, options, &session, &error) != KAKEYA_OK ||
        kakeya_session_sync(session, ids, (size_t)(tokens - ANSWER), NULL, NULL, NULL, &error) != KAKEYA_OK ||
        kakeya_session_generate(session, &generate, NULL, &error) != KAKEYA_OK)
        fail_msg("%s", error.message);
    return session;
}

static size_t sum_of_layers(const kakeya_engine *engine, kakeya_memory_kind kind) {
    size_t sum = 0;
    for (int layer = 0; layer < LAYERS; layer++) sum += kakeya_engine_layer_memory(engine, kind, layer);
    return sum;
}

static void assert_layers_sum_to_kinds(const kakeya_engine *engine, const char *what) {
    for (int k = 0; k < LAYERED; k++) {
        size_t layers = sum_of_layers(engine, layered[k]), all = kakeya_engine_memory(engine, layered[k]);
        if (layers != all)
            fail_msg("%s, %s: layers hold %zu bytes of %zu", what, kakeya_memory_name(layered[k]), layers, all);
    }
}

static void every_layer_holds_what_is_said(void **state) {
    (void)state;
    static const int lengths[] = {44, 300, 620};
    kakeya_engine *engine = open_engine();
    const kakeya_description *description = kakeya_engine_description(engine);
    size_t compared = 0;
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
            for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
                char what[80];
                kakeya_session_options options;
                KAKEYA_INIT(&options);
                options.context_tokens = CONTEXT;
                options.attention = policies[p].attention;
                options.restore_layers = policies[p].layers;
                options.kv_format = formats[f];
                options.draft_window = 96;
                snprintf(what, sizeof what, "%s, %s, %d tokens", policies[p].name, kakeya_kv_format_name(formats[f]),
                         lengths[n]);
                kakeya_session *session = open_session(engine, &options, lengths[n]);
                kakeya_kv_bytes said = {.size = sizeof said};
                assert_int_equal(kakeya_description_kv_bytes(description, &options, (size_t)lengths[n], &said, NULL),
                                 KAKEYA_OK);
                for (int k = 0; k < LAYERED; k++) {
                    for (int layer = 0; layer < LAYERS; layer++) {
                        size_t wanted = kakeya_description_layer_bytes(description, &options, (size_t)lengths[n],
                                                                       layered[k], layer),
                               held = kakeya_engine_layer_memory(engine, layered[k], layer);
                        if (wanted != held)
                            fail_msg("%s, %s of layer %d: %zu bytes are said, %zu held", what,
                                     kakeya_memory_name(layered[k]), layer, wanted, held);
                        compared += wanted > 0;
                    }
                }
                assert_layers_sum_to_kinds(engine, what);
                assert_int_equal(kakeya_engine_memory(engine, KAKEYA_MEMORY_KV_LATENT), said.latent);
                kakeya_session_close(session);
            }
        }
    }
    for (int k = 0; k < LAYERED; k++) assert_int_equal(sum_of_layers(engine, layered[k]), 0);
    assert_true(compared > 100);
    kakeya_engine_close(engine);
}

static size_t held_by(const kakeya_session *session) {
    size_t sum = 0;
    for (int kind = KAKEYA_MEMORY_KV_FULL; kind <= KAKEYA_MEMORY_KV_DRAFT; kind++)
        sum += kakeya_session_memory(session, (kakeya_memory_kind)kind);
    return sum;
}

/* Pages that are full are shared; what they hold is counted once, in its layer. */
static void a_checkpoint_takes_what_is_said(void **state) {
    (void)state;
    enum { FILLS_PAGES = 129 }; /* the newest token is not committed */
    kakeya_engine *engine = open_engine();
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
            kakeya_session_options options;
            kakeya_session *copy = NULL;
            KAKEYA_INIT(&options);
            options.context_tokens = CONTEXT;
            options.attention = policies[p].attention;
            options.restore_layers = policies[p].layers;
            options.kv_format = formats[f];
            kakeya_session *session = open_session(engine, &options, FILLS_PAGES);
            assert_int_equal(kakeya_session_fork(session, &copy, NULL), KAKEYA_OK);
            size_t said =
                kakeya_description_checkpoint_bytes(kakeya_engine_description(engine), &options, FILLS_PAGES - 1);
            if (held_by(copy) != said)
                fail_msg("%s, %s: a copy of %zu bytes is said, %zu are held", policies[p].name,
                         kakeya_kv_format_name(formats[f]), said, held_by(copy));
            assert_layers_sum_to_kinds(engine, policies[p].name);
            kakeya_session_close(session);
            assert_layers_sum_to_kinds(engine, policies[p].name);
            kakeya_session_close(copy);
            for (int k = 0; k < LAYERED; k++) assert_int_equal(sum_of_layers(engine, layered[k]), 0);
        }
    }
    kakeya_engine_close(engine);
}

/* The allocator alone: layers of two accounts, a limit that is passed, memory that is shared. */
static void layers_are_counted_in_every_case(void **state) {
    (void)state;
    mem_ledger ledger = {0};
    mem_account engine, one, other;
    mem_account_init(&engine, NULL, 4096);
    engine.ledger = &ledger;
    mem_account_init(&one, &engine, 0);
    mem_account_init(&other, &engine, 0);
    const mem_tag tag = mem_layer_tag(MEM_KV_FULL, 5), last = mem_layer_tag(MEM_KV_DRAFT, MEM_LAYERS - 1);
    void *a = mem_alloc(&one, tag, 100), *b = mem_alloc(&other, tag, 64), *c = mem_alloc(&one, last, 1);
    assert_int_equal(mem_bytes(&engine, tag), 128 + 64);
    assert_int_equal(mem_bytes(&engine, MEM_KV_FULL), 128 + 64);
    assert_int_equal(mem_bytes(&engine, last), 64);
    assert_int_equal(mem_bytes(&one, tag), 0); /* has no ledger */
    assert_int_equal(mem_bytes(&one, MEM_KV_FULL), 128);
    assert_int_equal(mem_layer_tag(MEM_KV_FULL, MEM_LAYERS), MEM_KV_FULL);
    assert_null(mem_alloc(&other, tag, 8192));
    assert_int_equal(mem_bytes(&engine, tag), 128 + 64);
    assert_true(mem_share(a, &other));
    assert_int_equal(mem_bytes(&one, MEM_KV_FULL), 0);
    assert_int_equal(mem_bytes(&engine, tag), 128 + 64);
    assert_false(mem_free(a));
    assert_int_equal(mem_bytes(&engine, tag), 128 + 64);
    assert_true(mem_free(a));
    assert_int_equal(mem_bytes(&engine, tag), 64);
    assert_string_equal(mem_tag_name(tag), "kv.full");
    assert_true(mem_free(b) && mem_free(c));
    assert_int_equal(mem_bytes(&engine, tag), 0);
    assert_int_equal(mem_total(&engine), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_counted_in_every_case),
        cmocka_unit_test(every_layer_holds_what_is_said),
        cmocka_unit_test(a_checkpoint_takes_what_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
