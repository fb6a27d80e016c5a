/* Answers of the demo model under grammars: what is complete is valid, and the tokens are the same for every mode,
 * draft length and batch. A short sweep has every schema, temperature and mode, but not all of their combinations, and
 * cuts answers earlier. For whole runs only; test_grammar_matcher stands in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "session/session.h"
#include "sweep.h"
#include "unit/grammar_support.h"
#include "unit/naive_schema.h"

enum { MAX_TOKENS = 160, BATCH = 8 };

/* Of everyday requests: what clients and agents send. */
static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},\"age\":{\"type\":"
    "\"integer\",\"minimum\":0,"
    "\"maximum\":120}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"ok\":{\"type\":\"boolean\"}},\"required\":[\"ok\"]}",
    "{\"enum\":[\"red\",\"green\",\"blue\",null,42]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":99},\"minItems\":1,"
    "\"maxItems\":5}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"boolean\"},{\"enum\":[\"x\",\"y\"]}],\"items\":false,"
    "\"minItems\":2}",
    "{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"null\"},{\"type\":\"integer\",\"exclusiveMinimum\":5,"
    "\"exclusiveMaximum\":8}]}",
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"circle\"},\"radius\":{\"type\":\"number\","
    "\"exclusiveMinimum\":0,"
    "\"maximum\":10}},\"required\":[\"kind\",\"radius\"]}",
    "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1},\"a\":{\"type\":\"boolean\"}},"
    "\"required\":[\"t\",\"a\"]},"
    "{\"type\":\"object\",\"properties\":{\"t\":{\"const\":2},\"b\":{\"type\":\"null\"}},\"required\":[\"t\","
    "\"b\"]}]}",
    "{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[0-9]{3}$\"}",
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":8}",
    "{\"type\":\"string\",\"pattern\":\"^(yes|no)$\"}",
    "{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":9},"
    "\"next\":{\"anyOf\":[{\"$ref\":"
    "\"#\"},{\"type\":\"null\"}]}},\"required\":[\"value\",\"next\"]}",
    "{\"$defs\":{\"p\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\",\"minimum\":-1,"
    "\"maximum\":1},\"y\":{\"type\":"
    "\"number\",\"minimum\":-1,\"maximum\":1}},\"required\":[\"x\",\"y\"]}},\"type\":\"array\",\"items\":{"
    "\"$ref\":\"#/$defs/p\"},"
    "\"maxItems\":2}",
    "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\",\"minimum\":1}},"
    "\"required\":[\"id\"]},{\"properties\":"
    "{\"id\":{\"maximum\":12},\"tag\":{\"enum\":[\"a\",\"b\"]}},\"required\":[\"tag\"]}]}",
    "{\"type\":[\"null\",\"boolean\"]}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"boolean\"},\"maxProperties\":1}",
    "{\"type\":\"object\",\"properties\":{\"a b\":{\"type\":\"null\"},\"c\\\"d\":{\"type\":\"null\"}},"
    "\"required\":[\"c\\\"d\"]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2,"
    "\"maxItems\":2},\"minItems\":2,"
    "\"maxItems\":2}",
    "{\"type\":\"object\",\"properties\":{\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"id\":{"
    "\"type\":\"string\",\"format\":"
    "\"uuid\"}},\"required\":[\"when\",\"id\"]}",
    "{\"type\":\"object\",\"properties\":{\"reasoning\":{\"type\":\"string\",\"maxLength\":40},\"answer\":{"
    "\"type\":\"string\",\"nullable\":"
    "true,\"maxLength\":10},\"confidence\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1}},\"required\":["
    "\"reasoning\",\"answer\","
    "\"confidence\"]}",
};
enum { SCHEMAS = sizeof schemas / sizeof *schemas };

typedef struct wanted {
    const kakeya_grammar *grammar;
    kakeya_mode mode;
    int draft_length;
    float temperature;
    uint64_t seed;
    int max_tokens;
    bool from_rows; /* tokens are chosen from whole rows of logits */
} wanted;

typedef struct given {
    int32_t tokens[MAX_TOKENS + 1];
    size_t n;
    char text[8192];
    size_t bytes;
    kakeya_finish finish;
    uint64_t redraws, masks, forwards;
} given;

static kakeya_engine *engine;

static bool on_event(void *user, const kakeya_event *event) {
    given *g = user;
    if (event->type == KAKEYA_EVENT_FINISH) g->finish = event->finish;
    if (event->type != KAKEYA_EVENT_TOKEN || !event->text) return true;
    assert_true(g->bytes + event->text_bytes < sizeof g->text);
    memcpy(g->text + g->bytes, event->text, event->text_bytes);
    g->bytes += event->text_bytes;
    g->text[g->bytes] = 0;
    return true;
}

static int32_t *prompt_of(uint64_t seed, size_t *n) {
    char text[200];
    int32_t *ids;
    snprintf(text, sizeof text, "# case %d\nimport json\nexample = json.loads('''", (int)(seed % 7));
    assert_int_equal(
        kakeya_tokenize(kakeya_engine_tokenizer(engine), text, strlen(text), KAKEYA_TEXT_PROMPT, &ids, n, NULL),
        KAKEYA_OK);
    return ids;
}

static kakeya_generate_options options_of(const wanted *w, given *out) {
    kakeya_generate_options o;
    KAKEYA_INIT(&o);
    o.grammar = w->grammar;
    o.mode = w->mode;
    o.draft_length = w->draft_length;
    o.sampling.temperature = w->temperature;
    o.sampling.seed = w->seed;
    o.max_tokens = w->max_tokens;
    o.on_event = on_event;
    o.user = out;
    static const kakeya_logit_bias nothing = {.token = 0, .bias = 0};
    o.logit_bias = &nothing;
    o.n_logit_bias = w->from_rows;
    return o;
}

static void keep_tokens(kakeya_session *session, size_t prompt, const kakeya_stats *stats, given *out) {
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    out->n = n - prompt;
    assert_true(out->n <= MAX_TOKENS);
    memcpy(out->tokens, tokens + prompt, out->n * sizeof *tokens);
    out->redraws = stats->grammar_redraws;
    out->masks = stats->grammar_masks;
    out->forwards = stats->verifier_forwards;
}

static kakeya_session *open_session(void) {
    kakeya_session_options o;
    kakeya_session *session;
    KAKEYA_INIT(&o);
    o.context_tokens = 512;
    assert_int_equal(kakeya_session_open(engine, &o, &session, NULL), KAKEYA_OK);
    return session;
}

static void answer(const wanted *w, given *out) {
    size_t n;
    kakeya_error error = {0};
    kakeya_stats stats;
    int32_t *ids = prompt_of(w->seed, &n);
    kakeya_session *session = open_session();
    *out = (given){0};
    kakeya_generate_options o = options_of(w, out);
    KAKEYA_INIT(&stats);
    assert_int_equal(kakeya_session_sync(session, ids, n, NULL, NULL, NULL, NULL), KAKEYA_OK);
    if (kakeya_session_generate(session, &o, &stats, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    keep_tokens(session, n, &stats, out);
    kakeya_session_close(session);
    kakeya_free(ids);
}

static kakeya_grammar *grammar_of(kakeya_grammar_kind kind, const char *text) {
    kakeya_grammar_options o;
    kakeya_grammar *g;
    kakeya_error error = {0};
    KAKEYA_INIT(&o);
    o.kind = kind;
    o.text = text;
    o.text_bytes = text ? strlen(text) : 0;
    if (kakeya_grammar_open(kakeya_engine_tokenizer(engine), &o, &g, &error) != KAKEYA_OK)
        fail_msg("%s: %s", text, error.message);
    return g;
}

/* A text that was cut short is the beginning of a valid one. */
static void check_valid(const char *schema, const kakeya_grammar *g, const given *x) {
    reading_result read = read_text(g, x->text);
    if (read == READ_REFUSED) fail_msg("%s: the answer '%s' is not in the grammar", schema, x->text);
    if (x->finish != KAKEYA_FINISH_STOP) return;
    cJSON *tree = cJSON_Parse(schema), *value = cJSON_ParseWithOpts(x->text, NULL, true);
    if (read != READ_COMPLETE || !value || !naive_valid(tree, tree, value))
        fail_msg("%s: the answer '%s' is not valid", schema, x->text);
    cJSON_Delete(tree);
    cJSON_Delete(value);
}

static void test_schemas(void **state) {
    (void)state;
    int complete = 0, answers = 0;
    for (int i = 0; i < SCHEMAS; i++) {
        kakeya_grammar *g = grammar_of(KAKEYA_GRAMMAR_JSON_SCHEMA, schemas[i]);
        for (int seed = sweep_whole() ? 0 : i % 3; seed < 3; seed += sweep_whole() ? 1 : 3) {
            given x;
            wanted w = {.grammar = g,
                        .mode = KAKEYA_MODE_AUTO,
                        .temperature = seed == 0 ? 0.0f : 1.0f,
                        .seed = (uint64_t)seed,
                        .max_tokens = sweep_short() ? 40 : MAX_TOKENS};
            answer(&w, &x);
            answers++;
            check_valid(schemas[i], g, &x);
            complete += x.finish == KAKEYA_FINISH_STOP;
        }
        kakeya_grammar_close(g);
    }
    printf("%d of %d answers are complete\n", complete, answers);
    assert_true(complete > (sweep_short() ? answers / 3 : answers / 3 * 2));
}

static void expect_same(const char *what, int i, const given *a, const given *b) {
    if (a->n == b->n && memcmp(a->tokens, b->tokens, a->n * sizeof *a->tokens) == 0 && a->finish == b->finish) return;
    fail_msg("%s, schema %d: '%s' and '%s'", what, i, a->text, b->text);
}

static void test_modes(void **state) {
    (void)state;
    static const struct {
        kakeya_mode mode;
        int length;
        const char *name;
    } modes[] = {{KAKEYA_MODE_SPECULATIVE, 0, "speculative"},
                 {KAKEYA_MODE_SPECULATIVE, 3, "speculative by 3"},
                 {KAKEYA_MODE_NGRAM, 5, "ngram"},
                 {KAKEYA_MODE_AUTO, 0, "auto"}};
    const int tokens = sweep_short() ? 30 : 60;
    for (int i = 0; i < SCHEMAS; i += sweep_short() ? 5 : sweep_whole() ? 1 : 3) {
        kakeya_grammar *g = grammar_of(KAKEYA_GRAMMAR_JSON_SCHEMA, schemas[i]);
        wanted w = {.grammar = g, .temperature = i % 2 ? 0.8f : 0.0f, .seed = (uint64_t)i, .max_tokens = tokens};
        given alone, other;
        w.mode = KAKEYA_MODE_AR;
        answer(&w, &alone);
        for (int k = i % 2; k < 4; k += 2) {
            w.mode = modes[k].mode;
            w.draft_length = modes[k].length;
            answer(&w, &other);
            expect_same(modes[k].name, i, &alone, &other);
        }
        kakeya_grammar_close(g);
    }
}

/* Constrained and speculative, eight at once, beside the same alone and one by one. */
static void test_batch(void **state) {
    (void)state;
    for (int first = 0; first < SCHEMAS - BATCH; first += sweep_short() ? SCHEMAS : BATCH) {
        kakeya_grammar *grammars[BATCH];
        kakeya_session *sessions[BATCH];
        kakeya_request *requests[BATCH];
        kakeya_generate_options options[BATCH];
        int32_t *ids[BATCH];
        size_t n[BATCH];
        static given together[BATCH], alone;
        wanted w[BATCH];
        for (int i = 0; i < BATCH; i++) {
            grammars[i] = grammar_of(KAKEYA_GRAMMAR_JSON_SCHEMA, schemas[first + i]);
            w[i] = (wanted){.grammar = grammars[i],
                            .mode = i % 3 ? KAKEYA_MODE_SPECULATIVE : KAKEYA_MODE_AUTO,
                            .temperature = i % 2 ? 1.0f : 0.0f,
                            .seed = (uint64_t)(100 + i),
                            .max_tokens = sweep_short() ? 25 : 60};
            together[i] = (given){0};
            options[i] = options_of(&w[i], &together[i]);
            ids[i] = prompt_of(w[i].seed, &n[i]);
            sessions[i] = open_session();
        }
        for (int i = 0; i < BATCH; i++) {
            kakeya_request_options o;
            KAKEYA_INIT(&o);
            o.tokens = ids[i];
            o.n_tokens = n[i];
            o.generate = &options[i];
            assert_int_equal(kakeya_session_submit(sessions[i], &o, &requests[i], NULL), KAKEYA_OK);
        }
        for (int i = 0; i < BATCH; i++) {
            kakeya_stats stats;
            KAKEYA_INIT(&stats);
            assert_int_equal(kakeya_request_wait(requests[i], &stats, NULL), KAKEYA_OK);
            keep_tokens(sessions[i], n[i], &stats, &together[i]);
            kakeya_session_close(sessions[i]);
            kakeya_free(ids[i]);
        }
        for (int i = 0; i < BATCH; i++) {
            w[i].mode = KAKEYA_MODE_AR;
            answer(&w[i], &alone);
            expect_same("batch", first + i, &alone, &together[i]);
            kakeya_grammar_close(grammars[i]);
        }
    }
}

/* Answers that are interrupted behind every few tokens, and go on in a session that was saved and loaded. */
static void test_interrupted(void **state) {
    (void)state;
    const int tokens = sweep_short() ? 24 : 60;
    for (int i = 0; i < SCHEMAS; i += sweep_short() ? 7 : 1) {
        kakeya_grammar *g = grammar_of(KAKEYA_GRAMMAR_JSON_SCHEMA, schemas[i]);
        wanted w = {.grammar = g, .temperature = i % 2 ? 1.0f : 0.0f, .seed = (uint64_t)i, .max_tokens = tokens};
        static given whole, parts;
        answer(&w, &whole);
        size_t n;
        int32_t *ids = prompt_of(w.seed, &n);
        kakeya_session *session = open_session();
        kakeya_stats stats;
        parts = (given){0};
        assert_int_equal(kakeya_session_sync(session, ids, n, NULL, NULL, NULL, NULL), KAKEYA_OK);
        do {
            kakeya_error error = {0};
            kakeya_generate_options o = options_of(&w, &parts);
            o.answer_start = n;
            o.max_tokens = tokens - (int)parts.n < 1 + i % 4 ? tokens - (int)parts.n : 1 + i % 4;
            KAKEYA_INIT(&stats);
            if (kakeya_session_generate(session, &o, &stats, &error) != KAKEYA_OK) fail_msg("%s", error.message);
            keep_tokens(session, n, &stats, &parts);
            void *data;
            size_t bytes;
            assert_int_equal(session_to_memory(session, &data, &bytes, NULL), KAKEYA_OK);
            kakeya_session_close(session);
            session = open_session();
            assert_int_equal(session_from_memory(session, data, bytes, NULL), KAKEYA_OK);
            kakeya_free(data);
        } while (parts.finish == KAKEYA_FINISH_LENGTH && parts.n < (size_t)tokens);
        expect_same("interrupted", i, &whole, &parts);
        if (i == 0) { /* an answer that did not follow the grammar so far */
            kakeya_error error = {0};
            kakeya_generate_options o = options_of(&w, &parts);
            o.answer_start = 1;
            KAKEYA_INIT(&stats);
            assert_int_equal(kakeya_session_generate(session, &o, &stats, &error), KAKEYA_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "the grammar does not allow token"));
        }
        kakeya_session_close(session);
        kakeya_free(ids);
        kakeya_grammar_close(g);
    }
}

/* Greedy tokens that the backend chooses under masks are those of whole rows. */
static void test_masked(void **state) {
    (void)state;
    static const kakeya_mode modes[] = {KAKEYA_MODE_AR, KAKEYA_MODE_SPECULATIVE, KAKEYA_MODE_NGRAM, KAKEYA_MODE_AUTO};
    const int tokens = sweep_short() ? 30 : 60;
    for (int i = 0; i < SCHEMAS; i += sweep_short() ? 5 : 1) {
        kakeya_grammar *g = grammar_of(KAKEYA_GRAMMAR_JSON_SCHEMA, schemas[i]);
        wanted w = {.grammar = g, .seed = (uint64_t)i, .max_tokens = tokens, .from_rows = true};
        given rows, masked;
        w.mode = KAKEYA_MODE_AR;
        answer(&w, &rows);
        w.from_rows = false;
        w.mode = modes[i % 4];
        answer(&w, &masked);
        expect_same("masked", i, &rows, &masked);
        assert_true(masked.masks >= masked.forwards);
        kakeya_grammar_close(g);
    }
}

/* Without a grammar that matters, nothing changes. */
static void test_free_text(void **state) {
    (void)state;
    kakeya_grammar *g = grammar_of(KAKEYA_GRAMMAR_TEXT, NULL);
    const int tokens = sweep_short() ? 20 : 40;
    for (uint64_t seed = 0; seed < (sweep_short() ? 2 : 3); seed++) {
        given with, without;
        wanted w = {
            .grammar = g, .mode = KAKEYA_MODE_AR, .temperature = (float)seed, .seed = seed, .max_tokens = tokens};
        answer(&w, &with);
        w.grammar = NULL;
        answer(&w, &without);
        expect_same("free text", (int)seed, &without, &with);
        assert_int_equal(with.redraws, 0);
    }
    kakeya_grammar_close(g);
}

static int open_engine(void **state) {
    (void)state;
    kakeya_engine_options o;
    KAKEYA_INIT(&o);
    o.model = KAKEYA_MODELS "/demo";
    return kakeya_engine_open(&o, &engine, NULL) == KAKEYA_OK ? 0 : -1;
}

static int close_engine(void **state) {
    (void)state;
    kakeya_engine_close(engine);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas),     cmocka_unit_test(test_modes),     cmocka_unit_test(test_batch),
        cmocka_unit_test(test_interrupted), cmocka_unit_test(test_free_text), cmocka_unit_test(test_masked),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
