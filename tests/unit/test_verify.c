/* Protects the certificate: on sound kernels nothing differs and the gate passes it; and for every way in which a
 * stream is computed there is a backend that goes wrong in that way alone, which the certificate shows, and the gate
 * refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "measure/gate.h"
#include "measure/summary.h"
#include "measure/verify.h"
#include "measure/verify_plan.h"
#include "session/engine.h"

enum { TOKENS = 8, MOST_CACHES = 512 };
#if defined(__SANITIZE_ADDRESS__)
enum { FAULT_STRIDE = 4 }; /* where everything takes five times as long, some of them */
#else
enum { FAULT_STRIDE = 1 };
#endif

/* ------------------------------------------------------------------------------------ a backend that goes wrong once
 */

/* What a cache has been through. */
enum { DECODED = 1, FORKED = 2, FORKED_LATE = 4, TRUNCATED = 8, RESTORED = 16, DRAFTED = 32, EIGHT_BITS = 64 };

typedef struct fault {
    const char *name;
    unsigned needs, lacks; /* of the cache: all of the first, none of the others */
    int process;           /* 1: the first, 2: the other, 0: both */
    int kind;              /* -1: any; backend_segment_kind */
    int least_rows, most_rows, least_segments;
    verify_comparison shown; /* differs */
    bool alone;              /* and nothing else does */
} fault;

typedef struct known_cache {
    const backend_cache *cache;
    unsigned past;
} known_cache;

static backend_ops faulty;
static const backend_ops *sound;
static const fault *injected;
static int process, changed;
static known_cache caches[MOST_CACHES];

static unsigned *past_of(const backend_cache *cache) {
    known_cache *free_place = NULL;
    for (int i = 0; i < MOST_CACHES; i++) {
        if (caches[i].cache == cache) return &caches[i].past;
        if (!caches[i].cache && !free_place) free_place = &caches[i];
    }
    assert_non_null(free_place);
    *free_place = (known_cache){cache, 0};
    return &free_place->past;
}

static void destroy(backend_cache *cache) {
    for (int i = 0; i < MOST_CACHES; i++)
        if (cache && caches[i].cache == cache) caches[i] = (known_cache){NULL, 0};
    sound->cache_destroy(cache);
}

static kakeya_status create(backend_model *model, const backend_cache_options *options, backend_cache **out,
                            kakeya_error *error) {
    kakeya_status status = sound->cache_create(model, options, out, error);
    if (status == KAKEYA_OK && options->kv_format == KV_FORMAT_Q8) *past_of(*out) |= EIGHT_BITS;
    return status;
}

static kakeya_status fork_cache(const backend_cache *cache, mem_account *account, backend_cache **out,
                                kakeya_error *error) {
    unsigned past = *past_of(cache);
    kakeya_status status = sound->cache_fork(cache, account, out, error);
    if (status == KAKEYA_OK) *past_of(*out) = (past & EIGHT_BITS) | (past & DECODED ? FORKED_LATE | FORKED : FORKED);
    return status;
}

static kakeya_status truncate_cache(backend_cache *cache, int length, kakeya_error *error) {
    if (length < sound->cache_length(cache)) *past_of(cache) |= TRUNCATED;
    return sound->cache_truncate(cache, length, error);
}

static kakeya_status restore(backend_cache *cache, backend_read_fn read, void *user, kakeya_error *error) {
    *past_of(cache) |= RESTORED;
    return sound->cache_restore(cache, read, user, error);
}

static kakeya_status draft(backend_model *model, backend_draft_request *requests, int n, kakeya_error *error) {
    for (int i = 0; i < n; i++) *past_of(requests[i].cache) |= DRAFTED;
    return sound->draft(model, requests, n, error);
}

static bool is_hit(const backend_segment *segment, int n) {
    const fault *f = injected;
    unsigned past = *past_of(segment->cache);
    return f && (!f->process || f->process == process) && (f->kind < 0 || f->kind == (int)segment->kind) &&
           n >= f->least_segments && segment->n >= f->least_rows && (!f->most_rows || segment->n <= f->most_rows) &&
           (past & f->needs) == f->needs && !(past & f->lacks);
}

/* Of a segment that is hit, the first row is computed for another token. */
static kakeya_status forward(backend_model *model, backend_segment *segments, int n, kakeya_error *error) {
    const int32_t *tokens[BACKEND_MAX_FORWARD];
    int32_t *other[BACKEND_MAX_FORWARD];
    for (int i = 0; i < n; i++) {
        tokens[i] = segments[i].tokens;
        other[i] = NULL;
        if (!is_hit(&segments[i], n)) continue;
        other[i] = malloc((size_t)segments[i].n * sizeof **other);
        assert_non_null(other[i]);
        memcpy(other[i], tokens[i], (size_t)segments[i].n * sizeof **other);
        other[i][0] = (other[i][0] + 1) % 1000;
        segments[i].tokens = other[i];
        changed++;
    }
    kakeya_status status = sound->forward(model, segments, n, error);
    for (int i = 0; i < n; i++) {
        segments[i].tokens = tokens[i];
        free(other[i]);
        if (segments[i].kind == SEGMENT_DECODE) *past_of(segments[i].cache) |= DECODED;
    }
    return status;
}

static void spoil(void *user, kakeya_engine *engine) {
    (void)user;
    process++;
    memset(caches, 0, sizeof caches);
    sound = engine->ops;
    faulty = *sound;
    faulty.cache_create = create;
    faulty.cache_destroy = destroy;
    faulty.cache_fork = fork_cache;
    faulty.cache_truncate = truncate_cache;
    faulty.cache_restore = restore;
    faulty.draft = draft;
    faulty.forward = forward;
    engine->ops = &faulty;
}

/* ------------------------------------------------------------------------------------------------------------ runs */

static eval_setup new_setup(void) {
    static const char *const command[] = {"kakeya", "verify"};
    eval_setup setup = {.argc = 2, .argv = command};
    KAKEYA_INIT(&setup.engine);
    KAKEYA_INIT(&setup.session);
    setup.engine.model = KAKEYA_MODELS "/demo";
    setup.engine.threads = 1;
    return setup;
}

/* What another process would do, in this one: the first engine is closed by now. */
static kakeya_status elsewhere(void *user, const char *directory, int threads, kakeya_error *error) {
    eval_setup setup = *(const eval_setup *)user;
    setup.engine.threads = threads;
    setup.report_path = NULL;
    return verify_elsewhere(&setup, directory, spoil, NULL, error);
}

static eval_report *certify(const char *const *formats, size_t n_formats, const char *const *policies,
                            size_t n_policies) {
    eval_setup setup = new_setup();
    const verify_options options = {.policies = {policies, n_policies},
                                    .kv_formats = formats,
                                    .n_kv_formats = n_formats,
                                    .max_tokens = TOKENS,
                                    .seed = 5,
                                    .seconds = 1,
                                    .rounds = 1,
                                    .elsewhere = elsewhere,
                                    .elsewhere_user = &setup,
                                    .on_engine = spoil};
    eval_report *report = NULL;
    kakeya_error error = {0};
    process = changed = 0;
    if (verify_run_all(&setup, &options, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    return report;
}

static double number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

/* Streams of a list of the summary that differ, where `key` is `name`; -1: there is no such entry. */
static double differ(const cJSON *summary, const char *list, const char *key, const char *name) {
    const cJSON *entry;
    double n = -1;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(summary, list)) {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(entry, key)->valuestring, name) == 0)
            n = (n < 0 ? 0 : n) + number(entry, "differ");
    }
    return n;
}

static bool is_refused(const eval_report *report, const char *code) {
    bool found = false;
    cJSON *json = eval_report_to_json(report);
    gate_result result;
    kakeya_error error;
    assert_int_equal(gate_check(json, &result, &error), KAKEYA_OK);
    for (size_t i = 0; i < result.n_violations; i++) {
        found |= code && strcmp(result.violation[i].code, code) == 0;
        if (!code) print_error("[%s] %s\n", result.violation[i].code, result.violation[i].message);
    }
    found |= !code && result.n_violations > 0;
    gate_result_free(&result);
    cJSON_Delete(json);
    return found;
}

static void nothing_differs_where_nothing_is_wrong(void **state) {
    (void)state;
    static const char *const formats[] = {"bf16", "q8"};
    injected = NULL;
    eval_report *report = certify(formats, 2, NULL, 0); /* native and restored */
    assert_int_equal(verify_differences(report), 0);
    assert_int_equal(report->rows.n, 2 * 2 * VERIFY_TEMPERATURES * VERIFY_COMPARISONS);
    assert_int_equal(changed, 0);
    assert_false(is_refused(report, NULL));
    eval_report_close(report);
}

static const fault faults[] = {
    {"a row of a prompt in pieces", 0, 0, 1, SEGMENT_PROMPT, 7, 7, 0, VERIFY_CHUNKS, true},
    {"a row of many", 0, DRAFTED, 1, SEGMENT_DECODE, 3, 0, 0, VERIFY_ROWS, false},
    {"a row of many with drafts of the text", FORKED, DRAFTED, 1, SEGMENT_DECODE, 2, 0, 0, VERIFY_NGRAM, false},
    {"a row behind the drafter", FORKED | DRAFTED, 0, 1, SEGMENT_DECODE, 2, 0, 0, VERIFY_DRAFTER, false},
    {"a row of any block", FORKED, 0, 1, SEGMENT_DECODE, 2, 0, 0, VERIFY_AUTO, false},
    {"a row among other sessions'", 0, 0, 1, SEGMENT_DECODE, 1, 1, 2, VERIFY_BATCH, false},
    {"a row among other sessions', with drafts", 0, 0, 1, SEGMENT_DECODE, 2, 0, 2, VERIFY_MIXED, true},
    {"a fork in the middle of an answer", FORKED_LATE, 0, 1, -1, 1, 0, 0, VERIFY_FORKED, true},
    {"a truncation", TRUNCATED, 0, 1, -1, 1, 0, 0, VERIFY_TRUNCATED, true},
    {"what was parked", RESTORED, 0, 1, -1, 1, 0, 0, VERIFY_PARKED, true},
    {"other threads", FORKED, RESTORED, 2, SEGMENT_DECODE, 1, 0, 0, VERIFY_THREADS, true},
    {"what was saved", RESTORED, 0, 2, -1, 1, 0, 0, VERIFY_SAVED, true},
};

static void every_fault_is_shown(void **state) {
    (void)state;
    static const char *const native[] = {"native"};
    size_t failures = 0;
    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f += FAULT_STRIDE) {
        injected = &faults[f];
        eval_report *report = certify(NULL, 0, native, 1);
        cJSON *summary = eval_summary_derive(EVAL_VERIFY, &report->rows);
        const char *name = verify_comparison_name(injected->shown);
        double own = differ(summary, "comparisons", "comparison", name), all = number(summary, "differ");
        bool shown = changed > 0 && own > 0 && (!injected->alone || !(own < all)) && is_refused(report, "LOSSLESS");
        if (!shown) {
            print_error("%s: %d rows changed, %.0f of %s differ, %.0f in all\n", injected->name, changed, own, name,
                        all);
            failures++;
        }
        cJSON_Delete(summary);
        eval_report_close(report);
    }
    assert_int_equal(failures, 0);
}

/* A reference that is wrong is like nothing else, at either temperature. */
static void a_wrong_reference_is_shown(void **state) {
    (void)state;
    static const fault wrong = {"the reference",  0,    FORKED | RESTORED, 1, SEGMENT_DECODE, 1, 1, 0,
                                VERIFY_REFERENCE, false};
    static const char *const native[] = {"native"};
    injected = &wrong;
    eval_report *report = certify(NULL, 0, native, 1);
    cJSON *summary = eval_summary_derive(EVAL_VERIFY, &report->rows);
    assert_true(changed > 0);
    for (int c = VERIFY_ROWS; c < VERIFY_COMPARISONS; c++) {
        bool batch = c == VERIFY_BATCH || c == VERIFY_MIXED; /* the fault may make these wrong in the same way */
        const char *name = verify_comparison_name((verify_comparison)c);
        if (!batch && differ(summary, "comparisons", "comparison", name) < VERIFY_TEMPERATURES)
            fail_msg("%s agrees with a wrong reference", name);
    }
    assert_true(is_refused(report, "LOSSLESS"));
    cJSON_Delete(summary);
    eval_report_close(report);
}

/* What one K/V format alone gets wrong is shown under it, and the other one stays as it was. */
static void a_format_is_shown(void **state) {
    (void)state;
    static const fault wrong = {"8 bits", EIGHT_BITS | FORKED_LATE, 0, 1, -1, 1, 0, 0, VERIFY_FORKED, true};
    static const char *const native[] = {"native"}, *const formats[] = {"bf16", "q8"};
    injected = &wrong;
    eval_report *report = certify(formats, 2, native, 1);
    cJSON *summary = eval_summary_derive(EVAL_VERIFY, &report->rows);
    assert_true(differ(summary, "policies", "kv_format", "q8") > 0);
    assert_true(differ(summary, "policies", "kv_format", "bf16") >= 0);
    assert_false(differ(summary, "policies", "kv_format", "bf16") > 0);
    cJSON_Delete(summary);
    eval_report_close(report);
}

/* What cannot be run is said before anything is computed. */
static void wrong_options_are_refused(void **state) {
    (void)state;
    static const char *const twice[] = {"q8", "q8"}, *const unknown[] = {"q5"};
    eval_setup setup = new_setup();
    for (int i = 0; i < 2; i++) {
        const verify_options options = {.kv_formats = i ? twice : unknown,
                                        .n_kv_formats = i ? 2 : 1,
                                        .max_tokens = TOKENS,
                                        .rounds = 1,
                                        .elsewhere = elsewhere,
                                        .elsewhere_user = &setup};
        eval_report *report = NULL;
        kakeya_error error = {0};
        assert_int_equal(verify_run_all(&setup, &options, &report, &error), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, i ? "q8" : "q5"));
        assert_null(report);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_differs_where_nothing_is_wrong),
        cmocka_unit_test(every_fault_is_shown),
        cmocka_unit_test(a_wrong_reference_is_shown),
        cmocka_unit_test(a_format_is_shown),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
