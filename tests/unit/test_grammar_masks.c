/* Every mask equals what reading each token letter by letter in the plain way says: random schemas, expressions and
 * rules, random beginnings of answers, and random vocabularies with bytes of halved characters, quotes, escapes, long
 * white space and tokens that span several values. The cache of expressions' states forgets what was used longest ago,
 * and gives answers in several threads what it gives one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/random.h"
#include "grammar/automaton.h"
#include "grammar/masks.h"
#include "sweep.h"
#include "unit/grammar_support.h"
#include "unit/tokenizer_form.h"

enum { PIECES = 1200, STEPS = 24 };

typedef struct draws {
    uint64_t seed, at;
} draws;

static unsigned draw(draws *d, unsigned n) { return (unsigned)(random_uniform_at(d->seed, d->at++) * n); }

/* -------------------------------------------------------------------------------------------------------- vocabularies
 */

static const char *const parts[] = {"\"",
                                    "\"",
                                    "\"",
                                    ":",
                                    ",",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    "\\",
                                    "\\\"",
                                    "\\n",
                                    "\\u00",
                                    "1f",
                                    "\n",
                                    "\n\n",
                                    "\xE2\x96\x81",
                                    "\xE2\x96\x81\xE2\x96\x81",
                                    "a",
                                    "b",
                                    "ab",
                                    "key",
                                    "k1",
                                    "x",
                                    "0",
                                    "1",
                                    "12",
                                    "-",
                                    ".",
                                    "e",
                                    "E+",
                                    "true",
                                    "fa",
                                    "null",
                                    "\xC3\xA9",
                                    "\xE2\x82\xAC",
                                    "\xF0\x9F\x98\x80",
                                    "T",
                                    "Z",
                                    "2024",
                                    "@",
                                    ".com",
                                    "/",
                                    "://",
                                    "\t",
                                    "\"a\"",
                                    "\":",
                                    "\",\"",
                                    "\"}",
                                    "\"]",
                                    "\x7F",
                                    "\\/",
                                    "\\ud83d"};

/* Pieces are strings of parts; two of white space alone are long, one is empty. */
static void make_piece(draws *d, int i, char *out) {
    int n = i < 150 ? 1 : 1 + (int)draw(d, 5);
    *out = 0;
    if (i == 150) return;
    if (i == 151 || i == 152) {
        for (int k = 0; k < 80; k++) strcat(out, i == 151 ? "\xE2\x96\x81" : "\n");
        return;
    }
    for (int k = 0; k < n; k++) strcat(out, parts[draw(d, sizeof parts / sizeof *parts)]);
}

static token_table *make_table(uint64_t seed, tokenizer **t) {
    draws d = {seed, 0};
    cJSON *vocab = cJSON_CreateObject();
    kakeya_error error = {0};
    token_table *table;
    for (int i = 0, id = 259; i < PIECES; i++) {
        char piece[256];
        make_piece(&d, i, piece);
        if (!cJSON_HasObjectItem(vocab, piece)) cJSON_AddNumberToObject(vocab, piece, id++);
    }
    char *text = cJSON_PrintUnformatted(vocab);
    cJSON_Delete(vocab);
    text[strlen(text) - 1] = 0; /* entries without braces */
    tokenizer_form form = default_form;
    form.vocab = text + 1;
    form.merges = "[]";
    form.added_tokens = "[{\"id\":256,\"content\":\"<|tool_call>\",\"special\":true},{\"id\":257,\"content\":"
                        "\"<tool_call|>\",\"special\":true},{\"id\":258,\"content\":\"<|\\\"|>\",\"special\":true}]";
    if (open_form(&form, t, &error) != KAKEYA_OK) fail_msg("vocabulary %d: %s", (int)seed, error.message);
    if (token_table_create(*t, &table, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    free(text);
    return table;
}

/* -------------------------------------------------------------------------------------------------------------
 * grammars */

static const char *const values[] = {
    "{\"type\":\"string\"}",
    "{\"type\":\"string\",\"maxLength\":5}",
    "{\"type\":\"string\",\"minLength\":3}",
    "{\"type\":\"string\",\"minLength\":2,\"maxLength\":70}",
    "{\"type\":\"string\",\"pattern\":\"^[ab]+[0-9]*$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[ab]+[0-9]*$\",\"maxLength\":6}",
    "{\"type\":\"string\",\"pattern\":\"a\"}",
    "{\"type\":\"string\",\"pattern\":\"^\\\\S+$\",\"minLength\":4,\"maxLength\":90}",
    "{\"type\":\"string\",\"pattern\":\"[\\\"\\\\\\\\]\",\"minLength\":3}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z0-9]+( [a-z]+){0,3}$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[^ \\\\n]{2,9}$\"}",
    "{\"type\":\"string\",\"pattern\":\"[0-9a-f]{3}\",\"maxLength\":12,\"minLength\":5}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z]{0,12}[0-9 ]{0,2}$\",\"minLength\":9}",
    "{\"type\":\"string\",\"pattern\":\"^[^0-9]*$\",\"maxLength\":30}",
    "{\"oneOf\":[{\"pattern\":\"key\"},{\"pattern\":\"true\"}],\"type\":\"string\"}",
    "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a.*b\"},{\"const\":\"ab\"},"
    "{\"const\":\"aab\"},{\"type\":\"integer\"}]}",
    "{\"type\":\"string\",\"format\":\"date-time\"}",
    "{\"type\":\"string\",\"format\":\"email\"}",
    "{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":20}",
    "{\"enum\":[\"a\",\"ab\",\"a\\\"b\",12,1,true,null,{\"a\":[1]}]}",
    "{\"const\":\"key\\n\"}",
    "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":120}",
    "{\"type\":\"number\"}",
    "{\"type\":[\"boolean\",\"null\",\"number\",\"string\"]}",
    "{}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":3}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"enum\":[\"a\",1]}],\"minItems\":1}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^key\"},{\"type\":"
    "\"null\"}]}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"ab\",1,12]},\"minItems\":2}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"pattern\":\"^[ab]+$\"}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"minimum\":0}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"},\"minItems\":2}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":[\"string\",\"integer\"]}}",
    "{\"type\":\"array\",\"uniqueItems\":true}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"type\":\"object\",\"required\":[\"a\"],"
    "\"properties\":{\"a\":{\"enum\":[\"a\",\"ab\",1,12]},\"b\":{\"type\":\"string\"}}}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}",
    "{\"type\":\"array\",\"contains\":{\"type\":\"string\"},\"minContains\":2,\"maxContains\":3,\"maxItems\":5}",
    "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[ab]*$\"},{\"type\":\"string\",\"pattern\":\"^[bk].*$\","
    "\"maxLength\":9}]}",
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]},"
    "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},\"required\":[\"ab\"],"
    "\"additionalProperties\":false}]}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"type\":\"object\",\"patternProperties\":{\"^k\":{\"type\":\"string\"},\"[0-9]\":{\"maxLength\":2}},"
    "\"properties\":{\"ka\":{},\"b\":{\"type\":\"string\"}}}",
    "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[ab]{1,2}$\"},\"minProperties\":1}",
    "{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\",\"a\\\"\"]},\"maxProperties\":2}",
    /* what masks once took long for */
    "{\"type\":\"string\",\"oneOf\":[{\"pattern\":\"customer\"},{\"pattern\":\"maker\"},{\"pattern\""
    ":\"admin\"},{\"pattern\":"
    "\"key\"}]}",
    "{\"type\":\"string\",\"pattern\":\"int|float|vec2|vec3|texture|key\"}",
    "{\"type\":\"string\",\"pattern\":\"^((?!(k|K)(e|E)(y|Y)).)*$\",\"maxLength\":80}",
    "{\"type\":\"string\",\"pattern\""
    ":\"^[A-Za-z\\u00aa\\u00b5\\u00c0-\\u00d6\\u0370-\\u0374\\u20ac-\\u20af][a-z\\u00e9]*$\","
    "\"minLength\":1,\"maxLength\":200}",
    "{\"type\":\"string\",\"pattern\":\"^([a-z]{1,12} ){0,3}[0-9A-Z]{1,200}$\"}",
    "{\"type\":\"object\",\"additionalProperties\":false,\"patternProperties\":{\"ab|Red|Blue|key\":{\"type\":"
    "\"integer\"}}}",
    "{\"type\":\"object\",\"additionalProperties\":false,\"patternProperties\":{\"^[0-9a-zA-Z_-]{1,255}$\":{\"type\":"
    "\"string\",\"minLength\":1}}}",
    "{\"type\":\"object\",\"additionalProperties\":false,\"patternProperties\":"
    "{\"^(\\\\.[^/\\\\\\\\]+|[*]|a?b?)$\":{\"type\":"
    "\"string\"}}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":4,\"items\":{\"enum\""
    ":[\"PSEdition_Core\",\"PSEdition_Desk\","
    "\"abba\",\"key1\",\"key12\",\"12\",\"true\",\"null\"]}}",
    "{\"type\":\"string\",\"anyOf\":[{\"pattern\":\"[a-zA-Z]{3}\",\"maxLength\":3},{\"pattern\":\"[a-z]"
    "{3}\",\"minLength\":3,"
    "\"maxLength\":5},{\"pattern\":\"[a-zA-Z]{3}\",\"maxLength\":3}]}",
    "{\"type\":\"object\",\"properties\":{\"a\\\"b\":{},\"a\":{\"type\":\"integer\"},\"\xC3\xA9\":{}},"
    "\"required\":[\"a\"]}",
    /* limits that a token of 80 letters comes to, or does not */
    "{\"type\":\"array\",\"items\":{\"enum\":[1,\"a\"]},\"minItems\":86,\"maxItems\":92}",
    "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":12}],\"items\":{\"type\":\"integer\"},\"maxItems\":"
    "84}",
    "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":12}],\"items\":{\"type\":\"integer\"},\"minItems\":"
    "86}",
    "{\"type\":\"string\",\"minLength\":165,\"maxLength\":260}",
    "{\"type\":\"string\",\"maxLength\":84}",
};
enum { VALUES = sizeof values / sizeof *values };

static const char *const expressions[] = {"(\\w+@\\w+\\.(com|org)[,;] ?){1,20}", "(ab|\"[^\"]*\")+", "[^a]*a?"};
static const char *const rules[] = {
    "root ::= (item \", \"?)+\nitem ::= \"\\\"\" [a-z]* \"\\\"\" | \"a\" item \"b\" | [0-9]+",
    ("root ::= \"{\" (\"\\\"\" key \"\\\":\" value \",\"?)* \"}\"\nkey ::= [ab]+\nvalue ::= "
     "[0-9]{1,3} | \"\\\"\" key \"\\\"\""),
    "root ::= \"[\" (\" \" | item){170,400} \"]\"\nitem ::= \"a\" item \"b\" | \"a\"",
};

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"ab\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
    "\"type\":\"string\",\"maxLength\":7},\"key\":{\"type\":\"string\"},\"k1\":{\"pattern\":\"^[ab]*$\"}}}}}]";

/* An object of some values, or one of them alone. */
static char *make_schema(draws *d) {
    static const char *const keys[] = {"a", "ab", "b", "key", "k1", "x\\\"", "\xC3\xA9"};
    char *text = NULL;
    size_t bytes;
    if (draw(d, 4) == 0) return strdup(values[draw(d, VALUES)]);
    FILE *out = open_memstream(&text, &bytes);
    fputs("{\"type\":\"object\",\"properties\":{", out);
    int n = 1 + (int)draw(d, 5), first = (int)draw(d, 7);
    for (int i = 0; i < n; i++)
        fprintf(out, "%s\"%s\":%s", i ? "," : "", keys[(first + i) % 7], values[draw(d, VALUES)]);
    fprintf(out, "},\"required\":[\"%s\"]", keys[first]);
    if (draw(d, 2)) fprintf(out, ",\"additionalProperties\":%s", draw(d, 2) ? "false" : values[draw(d, VALUES)]);
    if (draw(d, 4) == 0) fputs(",\"minProperties\":2", out);
    fputs("}", out);
    fclose(out);
    return text;
}

static kakeya_grammar *make_grammar(const token_table *table, draws *d, char **text) {
    kakeya_grammar_options o;
    kakeya_grammar *g;
    kakeya_error error = {0};
    KAKEYA_INIT(&o);
    unsigned kind = draw(d, 10);
    if (kind == 2) {
        o.calls = KAKEYA_CALLS_REQUIRED;
        o.tools = tools;
        o.tools_bytes = strlen(tools);
        *text = strdup("a call");
        return grammar_compile(table, &o, &g, &error) == KAKEYA_OK ? g : NULL;
    }
    o.kind = kind == 0 ? KAKEYA_GRAMMAR_REGEX : kind == 1 ? KAKEYA_GRAMMAR_RULES : KAKEYA_GRAMMAR_JSON_SCHEMA;
    *text = kind == 0 ? strdup(expressions[draw(d, 3)]) : kind == 1 ? strdup(rules[draw(d, 3)]) : make_schema(d);
    o.text = *text;
    o.text_bytes = strlen(*text);
    o.any_order = draw(d, 2);
    return grammar_compile(table, &o, &g, &error) == KAKEYA_OK ? g : NULL;
}

/* --------------------------------------------------------------------------------------------------------------- masks
 */

typedef struct walker {
    mem_account account;
    mask_space space;
    automaton_state *levels, *now; /* [longest + 1], [1] */
    uint32_t *allowed, *known;
    int places; /* masks that another place has, too */
} walker;

static void walker_open(walker *w, const token_table *table) {
    mem_account_init(&w->account, NULL, 0);
    w->space = (mask_space){0};
    assert_int_equal(mask_space_reserve(&w->space, table, &w->account, NULL), KAKEYA_OK);
    w->levels = malloc((table->longest + 1) * sizeof *w->levels);
    w->now = malloc(sizeof *w->now);
    w->allowed = malloc(token_set_words(table->vocab) * sizeof *w->allowed);
    w->known = malloc(token_set_words(table->vocab) * sizeof *w->known);
    w->places = 0;
    assert_true(w->levels && w->now && w->allowed && w->known);
}

static void walker_close(walker *w) {
    mask_space_free(&w->space);
    free(w->levels);
    free(w->now);
    free(w->allowed);
    free(w->known);
}

/* What the token leads to in the plain way; NULL: it is refused. */
static const automaton_state *read_token(const kakeya_grammar *g, walker *w, int32_t token) {
    size_t bytes;
    const char *text = token_table_text(g->tokens, token, &bytes);
    return automaton_takes(&g->program, w->now, text, bytes, w->levels) ? &w->levels[bytes - 1] : NULL;
}

/* Where a place has a key, all that have the same key have the same mask. */
static void compare_place(const kakeya_grammar *g, walker *w, const char *name, const char *so_far) {
    const token_table *table = g->tokens;
    place_key key;
    if (!place_key_make(&g->program, g->number, PLACE_MASK, w->now, (uint32_t)table->longest, &key)) return;
    if (!place_cache_get_mask(table->places, &key, w->known)) {
        place_cache_put_mask(table->places, &key, w->allowed);
        assert_true(place_cache_get_mask(table->places, &key, w->known));
    } else {
        w->places++;
    }
    for (int32_t token = 0; token < table->vocab; token++) {
        if (!((w->known[token / 32] ^ w->allowed[token / 32]) >> (token % 32) & 1)) continue;
        size_t bytes;
        const char *text = token_table_text(table, token, &bytes);
        fail_msg("%s behind '%s': token %d '%.*s' is %s by the mask of another place", name, so_far, (int)token,
                 (int)bytes, text, w->known[token / 32] >> (token % 32) & 1 ? "allowed" : "refused");
    }
}

/* Walks one answer; returns the masks that were compared. */
static int compare(const kakeya_grammar *g, walker *w, draws *d, const char *name) {
    const token_table *table = g->tokens;
    size_t words = token_set_words(table->vocab);
    char so_far[4096] = "";
    bool call = g->content == GRAMMAR_NOTHING;
    automaton_begin(call ? g->call : g->content, w->now);
    for (int step = 0; step < STEPS; step++) {
        int32_t chosen = -1;
        if (call && draw(d, 2) && automaton_read(&g->program, w->now, LETTER_QUOTE, w->levels))
            automaton_copy(w->now, w->levels);
        int n = 0;
        memset(w->allowed, 0, words * sizeof *w->allowed);
        mask_text(g, w->now, &w->space, w->allowed, words);
        for (int32_t token = 0; token < table->vocab; token++) {
            bool masked = w->allowed[token / 32] >> (token % 32) & 1, taken = read_token(g, w, token) != NULL;
            if (masked != taken) {
                size_t bytes;
                const char *text = token_table_text(table, token, &bytes);
                fail_msg("%s behind '%s': token %d '%.*s' is %s by the mask alone", name, so_far, (int)token,
                         (int)bytes, text, masked ? "allowed" : "refused");
            }
            if (taken && draw(d, (unsigned)++n) == 0) chosen = token;
        }
        compare_place(g, w, name, so_far);
        if (chosen < 0) return step + 1;
        size_t bytes;
        const char *text = token_table_text(table, chosen, &bytes);
        if (strlen(so_far) + bytes < sizeof so_far) strncat(so_far, text, bytes);
        automaton_copy(w->now, read_token(g, w, chosen));
    }
    return STEPS;
}

static void test_masks_are_what_reading_says(void **state) {
    (void)state;
    uint64_t tables = sweep_whole() ? 12 : sweep_short() ? 1 : 3;
    int masks = 0, grammars = 0, refused = 0, places = 0;
    for (uint64_t seed = 0; seed < tables; seed++) {
        tokenizer *t;
        token_table *table = make_table(seed, &t);
        walker w;
        walker_open(&w, table);
        for (uint64_t i = 0; i < 150; i++) {
            draws d = {1000 * seed + i, 0};
            char *text, name[2000];
            kakeya_grammar *g = make_grammar(table, &d, &text);
            snprintf(name, sizeof name, "vocabulary %d, grammar %d, %s", (int)seed, (int)i, text);
            for (int answer = 0; g && answer < 2; answer++) masks += compare(g, &w, &d, name);
            grammars += g != NULL;
            refused += g == NULL;
            grammar_free(g);
            free(text);
        }
        places += w.places;
        walker_close(&w);
        token_table_destroy(table);
        tokenizer_close(t);
    }
    printf("%d masks of %d grammars, %d of them known from other places; %d were refused\n", masks, grammars, places,
           refused);
    assert_true(grammars > 3 * refused && masks > 10 * grammars && places > grammars);
}

/* The demo's vocabulary, which has words, where the random ones have few tokens below a beginning. */
static void test_masks_of_a_real_vocabulary(void **state) {
    (void)state;
    tokenizer *t;
    token_table *table;
    kakeya_error error = {0};
    walker w;
    int masks = 0;
    assert_int_equal(tokenizer_open(KAKEYA_MODELS "/demo/tokenizer.json", &t, &error), KAKEYA_OK);
    assert_int_equal(token_table_create(t, &table, &error), KAKEYA_OK);
    walker_open(&w, table);
    for (unsigned i = 0; i < VALUES; i++) {
        draws d = {70000 + i, 0};
        kakeya_grammar_options o;
        kakeya_grammar *g;
        KAKEYA_INIT(&o);
        o.kind = KAKEYA_GRAMMAR_JSON_SCHEMA;
        o.text = values[i];
        o.text_bytes = strlen(o.text);
        if (grammar_compile(table, &o, &g, &error) != KAKEYA_OK) fail_msg("%s: %s", values[i], error.message);
        for (int answer = 0; answer < (sweep_whole() ? 20 : 1); answer++) masks += compare(g, &w, &d, values[i]);
        grammar_free(g);
    }
    assert_true(masks > 2 * VALUES);
    walker_close(&w);
    token_table_destroy(table);
    tokenizer_close(t);
}

/* --------------------------------------------------------------------------------------------------------------- cache
 */

static void test_cache_forgets_the_oldest(void **state) {
    (void)state;
    enum { WORDS = 1 << 16, KEYS = 200 }; /* 256 kB each */
    mask_cache *cache = mask_cache_create(WORDS);
    uint32_t *bits = calloc(WORDS, sizeof *bits), *out = calloc(WORDS, sizeof *out);
    assert_non_null(cache);
    reach_lengths lengths;
    int kept = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        bits[7] = i + 1;
        mask_cache_put(cache, (mask_key){1, i, 2}, &(reach_lengths){.longest = i}, bits);
        assert_true(mask_cache_get(cache, (mask_key){1, 0, 2}, out, &lengths));
        assert_int_equal(lengths.longest, 0);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        out[7] = 0;
        bool cached = mask_cache_add_bits(cache, (mask_key){1, i, 2}, out, WORDS);
        kept += cached;
        assert_int_equal(out[7], cached ? i + 1 : 0);
        if (i == 0 || i == KEYS - 1) assert_true(cached); /* used all the time; the newest */
        if (i == 1) assert_false(cached);
    }
    assert_true(kept > 1 && (size_t)kept * WORDS * sizeof *bits <= MASK_CACHE_BYTES);
    free(bits);
    free(out);
    mask_cache_destroy(cache);
}

/* Masks of few tokens and of many, more than there is room for: what is there is what was put, and what is asked for
 * all the time stays. */
static void test_places_are_forgotten(void **state) {
    (void)state;
    enum { WORDS = 1 << 13, KEYS = 40000 }; /* 32 kB, where all words are kept */
    place_cache *cache = place_cache_create(WORDS);
    uint32_t *bits = calloc(WORDS, sizeof *bits), *out = calloc(WORDS, sizeof *out);
    assert_true(cache && bits && out);
    int32_t tokens[4], n;
    int kept = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        const bool whole = i % 16 == 0;
        place_key key = {.hash = i % 1000, .n = 3, .words = {i, i / 7, 5}}; /* many with one hash */
        memset(bits, whole ? 0xA5 : 0, WORDS * sizeof *bits);
        bits[i % WORDS] = i + 1;
        if (i % 5 == 1)
            place_cache_put_tokens(cache, &key, &(int32_t){(int32_t)i}, 1);
        else
            place_cache_put_mask(cache, &key, bits);
        key = (place_key){.hash = 0, .n = 3, .words = {0, 0, 5}};
        assert_true(place_cache_get_mask(cache, &key, out));
        assert_int_equal(out[0], 1);
        assert_true(place_cache_bytes(cache) <= PLACE_CACHE_BYTES);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        const place_key key = {.hash = i % 1000, .n = 3, .words = {i, i / 7, 5}};
        const uint32_t other = i % 16 == 0 ? 0xA5A5A5A5 : 0;
        if (i % 5 == 1) {
            if (!place_cache_get_tokens(cache, &key, tokens, 4, &n)) continue;
            assert_int_equal(n, 1);
            assert_int_equal(tokens[0], i);
        } else {
            if (!place_cache_get_mask(cache, &key, out)) continue;
            for (uint32_t k = 0; k < WORDS; k++)
                if (out[k] != (k == i % WORDS ? i + 1 : other)) fail_msg("key %u, word %u: %x", i, k, out[k]);
        }
        kept++;
    }
    assert_true(kept > 1000 && kept < KEYS);
    free(bits);
    free(out);
    place_cache_destroy(cache);
}

typedef struct sharer {
    const kakeya_grammar *g;
    uint64_t seed;
    int masks;
} sharer;

static void *walk_beside_others(void *user) {
    sharer *s = user;
    draws d = {s->seed, 0};
    walker w;
    walker_open(&w, s->g->tokens);
    for (int i = 0; i < 6; i++) s->masks += compare(s->g, &w, &d, "beside others");
    walker_close(&w);
    return NULL;
}

static void test_threads_share_masks(void **state) {
    (void)state;
    enum { THREADS = 4 };
    tokenizer *t;
    token_table *table = make_table(99, &t);
    kakeya_grammar_options o;
    kakeya_grammar *g;
    KAKEYA_INIT(&o);
    o.kind = KAKEYA_GRAMMAR_JSON_SCHEMA;
    o.text = "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[ab0-9.@-]+$\",\"maxLength\":40}}";
    o.text_bytes = strlen(o.text);
    assert_int_equal(grammar_compile(table, &o, &g, NULL), KAKEYA_OK);
    pthread_t threads[THREADS];
    sharer sharers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        sharers[i] = (sharer){.g = g, .seed = (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, walk_beside_others, &sharers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(sharers[i].masks > 0);
    }
    grammar_free(g);
    token_table_destroy(table);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_are_what_reading_says), cmocka_unit_test(test_masks_of_a_real_vocabulary),
        cmocka_unit_test(test_cache_forgets_the_oldest),    cmocka_unit_test(test_places_are_forgotten),
        cmocka_unit_test(test_threads_share_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
