/* Grammars at the level of tokens: the mask is what asking every token gives; thoughts, calls and the end of the answer
 * come where they may; drawing until a token is allowed gives the distribution of the allowed tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "base/exp_weight.h"
#include "base/random.h"
#include "decode/sampling.h"
#include "sweep.h"
#include "unit/grammar_support.h"

static mem_account account;
static matcher_space space = {.account = &account};
static const int32_t stops[] = {1, 16};

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"key\":{"
    "\"type\":\"string\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"key\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";

static kakeya_grammar *make(const kakeya_grammar_options *o) {
    kakeya_grammar *g;
    kakeya_error error = {0};
    if (kakeya_grammar_open(demo_tokenizer(), o, &g, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    assert_int_equal(matcher_space_reserve(&space, g, NULL), KAKEYA_OK);
    return g;
}

static matcher *start(const kakeya_grammar *g, const int32_t *prompt, size_t n) {
    matcher *m;
    assert_int_equal(matcher_create(g, stops, 2, prompt, n, &account, &m, NULL), KAKEYA_OK);
    return m;
}

static kakeya_grammar_options options(kakeya_grammar_kind kind, const char *text) {
    kakeya_grammar_options o;
    KAKEYA_INIT(&o);
    o.kind = kind;
    o.text = text;
    o.text_bytes = text ? strlen(text) : 0;
    return o;
}

static kakeya_grammar_options with_calls(kakeya_grammar_options o, kakeya_grammar_calls calls) {
    o.calls = calls;
    o.tools = tools;
    o.tools_bytes = sizeof tools - 1;
    return o;
}

/* --------------------------------------------------------------------------------------------------------------- mask
 */

enum { VOCAB = 8192, WORDS = VOCAB / 32 };

static void check_mask(const matcher *m, const char *name, int step, uint32_t *allowed) {
    memset(allowed, 0xFF, WORDS * sizeof *allowed); /* what is there does not matter */
    matcher_mask(m, &space, allowed, WORDS);
    for (int32_t token = 0; token < VOCAB; token++) {
        bool masked = allowed[token / 32] >> (token % 32) & 1;
        if (masked != matcher_allows(m, &space, token))
            fail_msg("%s, step %d: token %d ('%s') is %s by the mask alone", name, step, (int)token,
                     kakeya_tokenizer_piece(demo_tokenizer(), token), masked ? "allowed" : "refused");
    }
}

static int32_t random_allowed(const uint32_t *allowed, uint64_t seed, uint64_t at) {
    int32_t first = (int32_t)(random_uniform_at(seed, at) * VOCAB);
    for (int32_t i = 0; i < VOCAB; i++) {
        int32_t token = (first + i) % VOCAB;
        if (allowed[token / 32] >> (token % 32) & 1) return token;
    }
    return -1;
}

static void test_masks(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"maxLength\":12},"
                                 "\"free\":{\"type\":\"string\"},"
                                 "\"n\":{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":4},"
                                 "\"p\":{\"pattern\":\"^[a-f]+\\\\d$\"}},"
                                 "\"required\":[\"free\"],\"additionalProperties\":true}";
    kakeya_grammar_options cases[] = {
        options(KAKEYA_GRAMMAR_JSON_SCHEMA, schema),
        options(KAKEYA_GRAMMAR_JSON_OBJECT, NULL),
        options(KAKEYA_GRAMMAR_REGEX, "(\\w+ ?){2,40}[.!\xE2\x82\xAC]"),
        with_calls(options(KAKEYA_GRAMMAR_TEXT, NULL), KAKEYA_CALLS_REQUIRED),
        with_calls(options(KAKEYA_GRAMMAR_TEXT, NULL), KAKEYA_CALLS_AUTO),
        with_calls(options(KAKEYA_GRAMMAR_JSON_OBJECT, NULL), KAKEYA_CALLS_AUTO),
    };
    static const char *const names[] = {"schema", "object", "regex", "required calls", "calls", "object or calls"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cases[i].thinking = i % 2;
        cases[i].thinking_tokens = i % 2 ? 9 : 0;
        kakeya_grammar *g = make(&cases[i]);
        for (uint64_t seed = 0; seed < 3; seed++) {
            matcher *m = start(g, NULL, 0);
            uint32_t allowed[WORDS];
            for (int step = 0; step < 40; step++) {
                check_mask(m, names[i], step, allowed);
                int32_t token = random_allowed(allowed, seed, (uint64_t)step);
                if (token < 0) fail_msg("%s, seed %d, step %d: nothing is allowed", names[i], (int)seed, step);
                if (token == stops[0] || token == stops[1]) break;
                assert_true(matcher_accept(m, &space, token));
            }
            matcher_destroy(m);
        }
        kakeya_grammar_close(g);
    }
}

/* What must follow is found once for a place, and is the same as where nothing has been found before. */
static void test_forced_tokens_of_known_places(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"array\",\"minItems\":150,\"items\":{\"type\":\"object\",\"properties\":{\"a name\":{\"type\":"
        "\"string\",\"maxLength\":3},\"another\":{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":97,"
        "\"maxItems\":103},\"kind\":{\"enum\":[\"alpha\",\"alpine\",null]},"
        "\"when\":{\"format\":\"date\"}},\"required\":[\"a name\","
        "\"another\",\"kind\",\"when\"],\"additionalProperties\":false}}";
    kakeya_grammar_options cases[] = {
        options(KAKEYA_GRAMMAR_JSON_SCHEMA, schema),
        options(KAKEYA_GRAMMAR_RULES,
                "root ::= (\"a long word\" | \"a longer one\") (\", \" \"b\"){95,105} \" end\" root?"),
        with_calls(options(KAKEYA_GRAMMAR_TEXT, NULL), KAKEYA_CALLS_REQUIRED),
    };
    int forced = 0, steps = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kakeya_grammar *g = make(&cases[i]), *anew = make(&cases[i]);
        for (uint64_t seed = 0; seed < 3; seed++) {
            matcher *m = start(g, NULL, 0), *other = start(anew, NULL, 0);
            for (int step = 0; step < 150; step++) {
                uint32_t allowed[WORDS];
                int32_t known[MATCHER_MAX_FORCED], found[MATCHER_MAX_FORCED];
                const int most = 1 + (int)(random_uniform_at(seed, (uint64_t)(1000 + step)) * 16);
                anew->number = UINT64_MAX - (uint64_t)++steps; /* a grammar of which nothing is known */
                int n = matcher_forced(m, &space, known, most);
                assert_int_equal(n, matcher_forced(other, &space, found, most));
                assert_memory_equal(known, found, (size_t)n * sizeof *known);
                assert_int_equal(n, matcher_count_allowed(m, &space, known, n));
                forced += n;
                matcher_mask(m, &space, allowed, WORDS);
                int32_t token = n ? known[0] : random_allowed(allowed, seed, (uint64_t)step);
                if (token == stops[0] || token == stops[1]) break;
                assert_true(matcher_accept(m, &space, token) && matcher_accept(other, &space, token));
            }
            matcher_destroy(m);
            matcher_destroy(other);
        }
        kakeya_grammar_close(g);
        kakeya_grammar_close(anew);
    }
    assert_true(forced > 300);
}

/* ------------------------------------------------------------------------------------------------------------- answers
 */

/* An answer, with control tokens spelled out. */
typedef struct course {
    kakeya_grammar_kind kind;
    kakeya_grammar_calls calls;
    const char *grammar;
    bool thinking;
    int thinking_tokens, max_calls;
    const char *prompt, *answer;
    bool allowed; /* the whole answer; otherwise its last token is refused, and no other */
} course;

#define TEXT     KAKEYA_GRAMMAR_TEXT
#define OBJECT   KAKEYA_GRAMMAR_JSON_OBJECT
#define CHOICE   KAKEYA_GRAMMAR_CHOICE
#define FREE     KAKEYA_CALLS_FREE
#define NO_CALLS KAKEYA_CALLS_NONE
#define AUTO     KAKEYA_CALLS_AUTO
#define REQUIRED KAKEYA_CALLS_REQUIRED
#define CALL     "<|tool_call>call:g{}<tool_call|>"

static const course courses[] = {
    {OBJECT, FREE, NULL, false, 0, 0, "", "{}<eos>", true},
    {OBJECT, FREE, NULL, false, 0, 0, "", "{}<turn|>", true},
    {OBJECT, FREE, NULL, false, 0, 0, "", "{<eos>", false},
    {OBJECT, FREE, NULL, false, 0, 0, "", "<eos>", false},
    {OBJECT, FREE, NULL, false, 0, 0, "", "{}\n", false},
    {OBJECT, FREE, NULL, false, 0, 0, "", "<|channel>", false},
    {OBJECT, FREE, NULL, false, 0, 0, "", "<|tool_call>", false},
    {OBJECT, FREE, NULL, false, 0, 0, "", "{\"a\":\"<|\"|>", false},
    {OBJECT, FREE, NULL, true, 0, 0, "", "<|channel>thought\nLet me see {]<channel|>{}<eos>", true},
    {OBJECT, FREE, NULL, true, 0, 0, "", "{}<eos>", true},
    {OBJECT, FREE, NULL, true, 0, 0, "", "<|channel>think", false},
    {OBJECT, FREE, NULL, true, 0, 0, "", "<|channel><channel|>{}<eos>", true},
    {OBJECT, FREE, NULL, true, 0, 0, "", "<|channel>thought\nx<eos>", false},
    {OBJECT, FREE, NULL, true, 0, 0, "", "<|channel>thought\nx<|tool_call>", false},
    {OBJECT, FREE, NULL, true, 0, 0, "", "<|channel>thought\nx<channel|>x", false},
    {OBJECT, FREE, NULL, true, 0, 0, "", "{}<|channel>", false},
    {OBJECT, FREE, NULL, true, 1, 0, "", "<|channel>x", false},
    {OBJECT, FREE, NULL, false, 0, 0, "<|channel>thought\n", "x y<channel|>{}<eos>", true},
    {OBJECT, FREE, NULL, false, 1, 0, "<|channel>thought\n", "<channel|>{}<eos>", true},
    {OBJECT, FREE, NULL, false, 1, 0, "<|channel>thought\n", "x y", false},
    {OBJECT, FREE, NULL, false, 0, 0, "<|channel>thought\n<channel|>", "{}<eos>", true},
    {OBJECT, AUTO, NULL, false, 0, 0, "", CALL CALL "<eos>", true},
    {OBJECT, AUTO, NULL, false, 0, 0, "", "{}<eos>", true},
    {OBJECT, AUTO, NULL, false, 0, 0, "", "{}<|tool_call>", false},
    {OBJECT, AUTO, NULL, false, 0, 0, "", CALL "{", false},
    {TEXT, REQUIRED, NULL, false, 0, 0, "", CALL "<eos>", true},
    {TEXT, REQUIRED, NULL, false, 0, 0, "", CALL CALL CALL "<turn|>", true},
    {TEXT, REQUIRED, NULL, false, 0, 1, "", CALL "<|tool_call>", false},
    {TEXT, REQUIRED, NULL, false, 0, 2, "", CALL CALL "<|tool_call>", false},
    {TEXT, REQUIRED, NULL, false, 0, 0, "", "I", false},
    {TEXT, REQUIRED, NULL, false, 0, 0, "", "<eos>", false},
    {TEXT, REQUIRED, NULL, false, 0, 0, "", "<|tool_call>call:f{key:<|\"|>a b}\n<|\"|>,n:7}<tool_call|><eos>", true},
    {TEXT, REQUIRED, NULL, false, 0, 0, "", "<|tool_call>call:f{n:7}", false},
    {TEXT, REQUIRED, NULL, false, 0, 0, "", "<|tool_call>call:g{}<eos>", false},
    {TEXT, REQUIRED, NULL, true, 0, 0, "", "<|channel>thought\nhm<channel|>" CALL "<eos>", true},
    {TEXT, AUTO, NULL, false, 0, 0, "", "So. " CALL "<eos>", true},
    {TEXT, AUTO, NULL, false, 0, 0, "", "So. " CALL " And <|channel>thought\n<channel|>" CALL "x<eos>", true},
    {TEXT, AUTO, NULL, false, 0, 0, "", "<|tool_call>call:h", false},
    {TEXT, AUTO, NULL, false, 0, 1, "", "a" CALL "<eos>", true},
    {TEXT, AUTO, NULL, false, 0, 1, "", "a" CALL "b", false},
    {TEXT, NO_CALLS, NULL, false, 0, 0, "", "call:g{} <tool_call|> <eos>", true},
    {TEXT, NO_CALLS, NULL, false, 0, 0, "", "x<|tool_call>", false},
    {TEXT, FREE, NULL, false, 3, 0, "", "x<|channel>", true},
    {TEXT, FREE, NULL, false, 2, 0, "<|channel>", "<channel|>x y z", true},
    {CHOICE, FREE, "[\"\",\"no\"]", false, 0, 0, "", "<eos>", true},
    {CHOICE, FREE, "[\"\",\"no\"]", false, 0, 0, "", "no<eos>", true},
};

static int32_t *ids_of(const char *text, size_t *n) {
    int32_t *ids;
    assert_int_equal(kakeya_tokenize(demo_tokenizer(), text, strlen(text), KAKEYA_TEXT_PARSE_SPECIAL, &ids, n, NULL),
                     KAKEYA_OK);
    return ids;
}

static void test_courses(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof courses / sizeof *courses; i++) {
        const course *c = &courses[i];
        kakeya_grammar_options o = options(c->kind, c->grammar);
        if (c->calls != FREE) o = with_calls(o, c->calls);
        o.thinking = c->thinking;
        o.thinking_tokens = c->thinking_tokens;
        o.max_calls = c->max_calls;
        kakeya_grammar *g = make(&o);
        size_t n, n_prompt, taken = 0;
        int32_t *prompt = ids_of(c->prompt, &n_prompt), *ids = ids_of(c->answer, &n);
        matcher *m = start(g, prompt, n_prompt);
        while (taken < n && matcher_accept(m, &space, ids[taken])) taken++;
        if (taken != (c->allowed ? n : n - 1))
            fail_msg("course %zu, '%s': %zu of %zu tokens are allowed", i, c->answer, taken, n);
        matcher_destroy(m);
        kakeya_free(prompt);
        kakeya_free(ids);
        kakeya_grammar_close(g);
    }
}

/* The last token of a thought is its end, wherever it stood. */
static void test_thinking_budget(void **state) {
    (void)state;
    for (int free_text = 0; free_text < 2; free_text++) {
        kakeya_grammar_options o = options(free_text ? TEXT : OBJECT, NULL);
        o.thinking = true;
        o.thinking_tokens = 5;
        kakeya_grammar *g = make(&o);
        size_t n;
        int32_t *ids = ids_of("<|channel>thought\nabc def ghi jkl", &n);
        assert_true(n > 6);
        matcher *m = start(g, NULL, 0);
        for (int i = 0; i < 5; i++) assert_true(matcher_accept(m, &space, ids[i]));
        uint32_t allowed[WORDS] = {0};
        matcher_mask(m, &space, allowed, WORDS);
        int many = 0;
        for (int32_t t = 0; t < VOCAB; t++) many += (int)(allowed[t / 32] >> (t % 32) & 1);
        assert_int_equal(many, 1);
        assert_true(matcher_accept(m, &space, kakeya_tokenizer_find(demo_tokenizer(), "<channel|>")));
        matcher_destroy(m);
        kakeya_free(ids);
        kakeya_grammar_close(g);
    }
}

/* ------------------------------------------------------------------------------------------------------------- drafts
 */

static void check_forced(const kakeya_grammar *g, const char *so_far, const char *expected) {
    size_t n, bytes;
    int32_t *ids = ids_of(so_far, &n), forced[16];
    char *text;
    matcher *m = start(g, NULL, 0);
    for (size_t i = 0; i < n; i++) assert_true(matcher_accept(m, &space, ids[i]));
    int many = matcher_forced(m, &space, forced, 16);
    assert_int_equal(matcher_count_allowed(m, &space, forced, many), many);
    assert_int_equal(kakeya_detokenize(demo_tokenizer(), forced, (size_t)many, true, &text, &bytes, NULL), KAKEYA_OK);
    if (strncmp(text, expected, strlen(expected)) != 0) fail_msg("behind '%s': '%s', not '%s'", so_far, text, expected);
    kakeya_free(text);
    kakeya_free(ids);
    matcher_destroy(m);
}

static void test_forced_text(void **state) {
    (void)state;
    kakeya_grammar_options o = options(
        KAKEYA_GRAMMAR_JSON_SCHEMA,
        "{\"type\":\"object\",\"properties\":{\"temperature\":{\"type\":\"string\"}},\"required\":[\"temperature\"]}");
    kakeya_grammar *g = make(&o);
    check_forced(g, "{\"", "temperature");
    check_forced(g, "{", "");
    check_forced(g, "{\"temperature\": \"", "");
    kakeya_grammar_close(g);
    o = with_calls(options(TEXT, NULL), REQUIRED);
    static const char *const names[] = {"f"};
    o.tool_names = names;
    o.n_tool_names = 1;
    g = make(&o);
    check_forced(g, "", "<|tool_call>call:f");
    check_forced(g, "<|tool_call>call:f{k", "ey:<|\"|>");
    kakeya_grammar_close(g);
}

/* Drafts are the text's tokens up to any place, and tokens that are refused there. */
static void test_corrected_drafts(void **state) {
    (void)state;
    kakeya_grammar_options o =
        options(KAKEYA_GRAMMAR_JSON_SCHEMA,
                "{\"type\":\"array\",\"minItems\":9,\"items\":{\"type\":\"object\",\"properties\":{"
                "\"temperature\":{\"type\":\"integer\"},\"place of it\":{\"enum\":[\"out of doors\",7]}},"
                "\"required\":[\"temperature\",\"place of it\"],\"additionalProperties\":false}}");
    kakeya_grammar *g = make(&o);
    size_t n;
    int32_t *ids = ids_of("[{\"temperature\": 12, \"place of it\": \"out of doors\"}, {\"temperature\": -1", &n);
    const int text = (int)n;
    int longer = 0;
    for (int from = 0; from < text; from++) {
        for (int right = 0; right <= text - from && right < 16; right++) {
            for (int wrong = 0; wrong < 3; wrong++) {
                matcher *m = start(g, NULL, 0), *behind = start(g, NULL, 0);
                int32_t drafts[24], forced[24];
                for (int i = 0; i < from; i++) assert_true(matcher_accept(m, &space, ids[i]));
                for (int i = 0; i < from + right; i++) assert_true(matcher_accept(behind, &space, ids[i]));
                memcpy(drafts, ids + from, (size_t)right * sizeof *drafts);
                for (int i = 0; i < wrong; i++) drafts[right + i] = stops[0]; /* before the text's end */
                const int most = right + wrong + 3, must = matcher_forced(behind, &space, forced, most - right);
                assert_int_equal(matcher_correct(m, &space, drafts, right + wrong, most), right + must);
                assert_memory_equal(drafts, ids + from, (size_t)right * sizeof *drafts);
                assert_memory_equal(drafts + right, forced, (size_t)must * sizeof *forced);
                assert_int_equal(matcher_count_allowed(m, &space, drafts, right + must), right + must);
                assert_int_equal(matcher_correct(m, &space, drafts, right, right), right);
                longer += must > wrong;
                matcher_destroy(m);
                matcher_destroy(behind);
            }
        }
    }
    assert_true(longer > 50);
    kakeya_free(ids);
    kakeya_grammar_close(g);
}

/* ----------------------------------------------------------------------------------------------------------- sampling
 */

static void make_leaders(const float *row, backend_leaders *out, float temperature) {
    bool taken[VOCAB] = {false};
    *out = (backend_leaders){.n = BACKEND_LEADERS};
    for (int i = 0; i < BACKEND_LEADERS; i++) {
        int32_t best = -1;
        for (int32_t t = 0; t < VOCAB; t++)
            if (!taken[t] && (best < 0 || row[t] > row[best])) best = t;
        taken[best] = true;
        out->token[i] = best;
        out->logit[i] = row[best];
    }
    for (int t = 0; t < VOCAB; t++) {
        out->total += exp_weight(row[t], out->logit[0], temperature);
        out->plain_total += exp_weight(row[t], out->logit[0], 1);
    }
}

/* Draws at many positions under a choice of letters against the distribution of the letters alone. refused: the logit
 * of all that is not allowed, by which most draws are redrawn, or the mask decides. */
static void check_distribution(float refused, bool greedy) {
    enum { LETTERS_ALLOWED = 6 };
    const int draws = sweep_short() ? 800 : 3000;
    static const char *const letters[LETTERS_ALLOWED] = {"a", "b", "c", "d", "e", "f"};
    static const float logits[LETTERS_ALLOWED] = {1, 0.5f, 0, 1.5f, -1, 0.25f};
    kakeya_grammar_options o = options(CHOICE, "[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"]");
    kakeya_grammar *g = make(&o);
    static float row[VOCAB];
    static backend_leaders leaders;
    int32_t ids[LETTERS_ALLOWED];
    int counts[LETTERS_ALLOWED] = {0}, decided = 0;
    for (int t = 0; t < VOCAB; t++) row[t] = t < 4000 ? -40 : t < 4300 ? refused : -40.5f;
    double total = 0, chi = 0;
    for (int32_t t = 32; t < 32 + 256; t++) row[t] = -INFINITY; /* byte tokens spell the letters, too */
    for (int i = 0; i < LETTERS_ALLOWED; i++) {
        ids[i] = kakeya_tokenizer_find(demo_tokenizer(), letters[i]);
        assert_true(ids[i] >= 0);
        row[ids[i]] = logits[i];
        total += exp((double)logits[i]);
    }
    sampler s;
    sampler_space memory = {.account = &account};
    sampler_init(&s, VOCAB, NULL, 0, &memory);
    const kakeya_sampling p = {.temperature = greedy ? 0 : 1, .top_p = 1, .repetition_penalty = 1, .seed = 5};
    uint64_t redraws = 0, masks = 0;
    make_leaders(row, &leaders, 1);
    for (size_t position = 0; position < (size_t)draws; position++) {
        int32_t token, led = -2;
        for (int by_leaders = 0; by_leaders < 2; by_leaders++) {
            matcher *m = start(g, NULL, 0);
            const sampler_constraints c = {.grammar = m};
            assert_int_equal(sampler_configure(&s, &p, &c, NULL), KAKEYA_OK);
            if (!by_leaders) {
                assert_int_equal(sampler_sample(&s, row, NULL, position, &token, NULL), KAKEYA_OK);
                redraws += s.redraws;
                masks += s.masks;
            } else if (sampler_draw_leaders(&s, &leaders, position, &led)) {
                assert_int_equal(led, token);
                decided++;
            }
            matcher_destroy(m);
        }
        int letter = 0;
        while (letter < LETTERS_ALLOWED && ids[letter] != token) letter++;
        assert_true(letter < LETTERS_ALLOWED);
        counts[letter]++;
    }
    if (greedy) {
        assert_int_equal(counts[3], draws);
    } else {
        for (int i = 0; i < LETTERS_ALLOWED; i++) {
            double expected = draws * exp((double)logits[i]) / total;
            chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
        if (chi > 20.5) fail_msg("chi-square %.1f with 5 degrees of freedom, refused logit %g", chi, (double)refused);
    }
    printf("refused logit %g: %d redraws, %d masks, %d of %d decided by leaders, chi-square %.1f\n", (double)refused,
           (int)redraws, (int)masks, decided, draws, chi);
    if (refused > 2) assert_true(masks > 0);
    sampler_space_free(&memory);
    kakeya_grammar_close(g);
}

static void test_distribution(void **state) {
    (void)state;
    check_distribution(-3, false);
    check_distribution(3, false);
    check_distribution(-3, true);
    check_distribution(3, true);
}

static int32_t largest_allowed(const float *row, const uint32_t *allowed) {
    int32_t best = -1;
    for (int32_t t = 0; t < VOCAB; t++)
        if (allowed[t / 32] >> (t % 32) & 1 && (best < 0 || row[t] > row[best])) best = t;
    return best;
}

/* The masks of several rows, made before any of them is chosen: the largest logit under each is what the sampler finds
 * row by row, and behind a draft that is refused there is nothing. */
static void test_masked_rows(void **state) {
    (void)state;
    enum { ROWS = 4, BLOCKS = 12 };
    static const char schema[] =
        "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":9}"
        ",\"b\":{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]},\"minItems\":99}";
    static float rows[ROWS][VOCAB];
    static uint32_t allowed[ROWS][WORDS];
    static const int32_t excluded = 300, suppressed[] = {400, 401, VOCAB + 5};
    const kakeya_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    kakeya_grammar_options o = options(KAKEYA_GRAMMAR_JSON_SCHEMA, schema);
    kakeya_grammar *g = make(&o);
    sampler_space memory = {.account = &account};
    kakeya_error error;
    sampler by_row, masked;
    sampler_init(&by_row, VOCAB, suppressed, 3, &memory);
    sampler_init(&masked, VOCAB, suppressed, 3, &memory);
    for (uint64_t seed = 0; seed < 3; seed++) {
        matcher *a = start(g, NULL, 0), *b = start(g, NULL, 0);
        const sampler_constraints ca = {.grammar = a, .excluded = &excluded},
                                  cb = {.grammar = b, .excluded = &excluded};
        assert_int_equal(sampler_configure(&by_row, &greedy, &ca, NULL), KAKEYA_OK);
        assert_int_equal(sampler_configure(&masked, &greedy, &cb, NULL), KAKEYA_OK);
        assert_true(sampler_is_argmax(&masked));
        assert_int_equal(sampler_mask_words(&masked), WORDS);
        for (size_t block = 0; block < BLOCKS; block++) {
            int32_t tokens[ROWS];
            for (int r = 0; r < ROWS; r++) {
                for (int t = 0; t < VOCAB; t++) /* few values, so that many are equal */
                    rows[r][t] =
                        (float)(int)(random_uniform_at(seed, (block * ROWS + (size_t)r) * VOCAB + (size_t)t) * 50);
                assert_int_equal(sampler_sample(&by_row, rows[r], NULL, block * ROWS + (size_t)r, &tokens[r], &error),
                                 KAKEYA_OK);
            }
            sampler_mask(&masked, tokens, ROWS - 1, allowed[0]);
            for (int r = 0; r < ROWS; r++) {
                const int32_t best = largest_allowed(rows[r], allowed[r]);
                if (best != tokens[r])
                    fail_msg("seed %d, block %d, row %d: %d, expected %d", (int)seed, (int)block, r, best, tokens[r]);
                assert_int_equal(sampler_take_masked(&masked, allowed[r], best, 0, NULL), KAKEYA_OK);
            }
        }
        const int32_t refused[] = {kakeya_tokenizer_find(demo_tokenizer(), "<|channel>"), 35};
        sampler_mask(&masked, refused, 2, allowed[0]);
        assert_true(largest_allowed(rows[0], allowed[0]) >= 0);
        assert_int_equal(largest_allowed(rows[0], allowed[1]), -1);
        assert_int_equal(largest_allowed(rows[0], allowed[2]), -1);
        assert_int_equal(sampler_take_masked(&masked, allowed[1], -1, 7, &error), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "position 7"));
        assert_int_equal(sampler_take_masked(&masked, allowed[0], -1, 7, &error), KAKEYA_OK); /* no numbers */
        matcher_destroy(a);
        matcher_destroy(b);
    }
    sampler_release(&by_row);
    sampler_release(&masked);
    sampler_space_free(&memory);
    kakeya_grammar_close(g);
}

/* A grammar that nothing fits any more: the failure says so, and nothing is drawn. */
static void test_nothing_left(void **state) {
    (void)state;
    kakeya_grammar_options o = options(CHOICE, "[\"a\"]");
    kakeya_grammar *g = make(&o);
    static float row[VOCAB];
    matcher *fresh = start(g, NULL, 0);
    for (int32_t t = 0; t < VOCAB; t++) row[t] = matcher_allows(fresh, &space, t) ? -INFINITY : 1;
    matcher_destroy(fresh);
    sampler s;
    sampler_space memory = {.account = &account};
    kakeya_error error;
    int32_t token;
    sampler_init(&s, VOCAB, NULL, 0, &memory);
    for (int temperature = 0; temperature < 2; temperature++) {
        matcher *m = start(g, NULL, 0);
        const kakeya_sampling p = {.temperature = (float)temperature, .top_p = 1, .repetition_penalty = 1};
        const sampler_constraints c = {.grammar = m};
        assert_int_equal(sampler_configure(&s, &p, &c, NULL), KAKEYA_OK);
        assert_int_equal(sampler_sample(&s, row, NULL, 3, &token, &error), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "position 3"));
        matcher_destroy(m);
    }
    sampler_space_free(&memory);
    kakeya_grammar_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),        cmocka_unit_test(test_forced_tokens_of_known_places),
        cmocka_unit_test(test_courses),      cmocka_unit_test(test_thinking_budget),
        cmocka_unit_test(test_forced_text),  cmocka_unit_test(test_corrected_drafts),
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_masked_rows),
        cmocka_unit_test(test_nothing_left),
    };
    mem_account_init(&account, NULL, 0);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    matcher_space_free(&space);
    return failed;
}
