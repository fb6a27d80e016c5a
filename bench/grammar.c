/* What grammars cost, in processor time: the table of a vocabulary, compiling, a letter, a mask.
 *
 *     bench_grammar [MODEL-DIRECTORY]
 *     bench_grammar --answers [MODEL-DIRECTORY] < LINES
 *     bench_grammar --rows [MODEL-DIRECTORY]
 *
 * LINES: {"schema": TEXT, "any_order": BOOL, "texts": [TEXT...]} each, as bench/grammar_suite.py --lines writes them.
 * Each text is tokenised and followed, with one mask in front of every token and one behind the last. Lines with the
 * slowest masks are named.
 *
 * --rows: 64 answers side by side, each a list under a schema of its own, as bench/grammar_speed.py asks for: what each
 * row of a step takes of the thread that computes, in wall-clock time. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/matcher.h"

static const struct {
    const char *name;
    kakeya_grammar_kind kind;
    const char *text, *answer;
} cases[] = {
    {"json object", KAKEYA_GRAMMAR_JSON_OBJECT, NULL, "{\"name\": \"some text of some length\", \"list\": [1, 2, 3.5]"},
    {"schema of three members", KAKEYA_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,"
     "\"maximum\":120},"
     "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",\"c\"]}}},\"required\":[\"name\"]}",
     "{\"name\": \"some text of some length\", \"age\": 42, \"tags\": [\"a\", \"b\""},
    {"pattern", KAKEYA_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^(\\\\w+ ?){1,30}$\","
     "\"maxLength\":60}",
     "\"some text of some length"},
    {"date-time", KAKEYA_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date-time\"}", "\"2024-02-29T10:00:"},
    {"regular expression", KAKEYA_GRAMMAR_REGEX, "(\\w+@\\w+\\.(com|org)[,;] ?){1,20}", "a@b.com, some_name@example."},
};

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void measure(const token_table *table, size_t i) {
    enum { ROUNDS = 50 };
    kakeya_grammar_options o;
    kakeya_error error;
    kakeya_grammar *g = NULL;
    KAKEYA_INIT(&o);
    o.kind = cases[i].kind;
    o.text = cases[i].text;
    o.text_bytes = o.text ? strlen(o.text) : 0;
    double start = cpu_seconds();
    for (int k = 0; k < ROUNDS; k++) {
        grammar_free(g);
        if (grammar_compile(table, &o, &g, &error)) {
            fprintf(stderr, "%s: %s\n", cases[i].name, error.message);
            exit(1);
        }
    }
    double compile = (cpu_seconds() - start) / ROUNDS;

    static automaton_state states[2];
    size_t n = strlen(cases[i].answer);
    start = cpu_seconds();
    for (int k = 0; k < 100 * ROUNDS; k++) {
        automaton_begin(g->content, &states[0]);
        for (size_t at = 0; at < n; at++)
            if (!automaton_step(&g->program, &states[at % 2], (unsigned char)cases[i].answer[at], &states[!(at % 2)]))
                exit(1);
    }
    double letter = (cpu_seconds() - start) / (100 * ROUNDS) / (double)n;

    mem_account account;
    matcher_space space = {.account = &account};
    matcher *m;
    mem_account_init(&account, NULL, 0);
    size_t words = ((size_t)table->vocab + 31) / 32;
    uint32_t *allowed = calloc(words, sizeof *allowed);
    if (!allowed || matcher_space_reserve(&space, g, &error) ||
        matcher_create(g, NULL, 0, NULL, 0, &account, &m, &error))
        exit(1);
    double longest = 0, total = 0;
    for (size_t at = 0; at < n; at++) { /* a mask in front of every letter, which single bytes spell */
        char piece[8];
        snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)(unsigned char)cases[i].answer[at]);
        start = cpu_seconds();
        for (int k = 0; k < ROUNDS; k++) matcher_mask(m, &space, allowed, words);
        double seconds = (cpu_seconds() - start) / ROUNDS;
        total += seconds;
        longest = seconds > longest ? seconds : longest;
        if (!matcher_accept(m, &space, tokenizer_id(table->tokenizer, piece))) exit(1);
    }
    printf("%-24s %8.2f ms %8.0f ns %8.1f us %8.1f us\n", cases[i].name, compile * 1e3, letter * 1e9,
           total / (double)n * 1e6, longest * 1e6);
    matcher_destroy(m);
    matcher_space_free(&space);
    free(allowed);
    grammar_free(g);
}

/* -------------------------------------------------------------------------------------------------- answers of a suite
 */

enum { SLOWEST = 12, TAIL = 60 };

/* The slowest mask of a line, and the end of the text in front of it. */
typedef struct slow_line {
    double seconds;
    size_t line;
    char tail[TAIL + 1];
} slow_line;

typedef struct masks {
    double *seconds; /* [n], malloc'ed */
    size_t n, capacity;
    double compiling;
    size_t schemas, refused, answers, rejected;
    slow_line line, slowest[SLOWEST]; /* of this line; of all, the slowest first */
} masks;

static void add_mask(masks *all, double seconds) {
    if (all->n == all->capacity) {
        all->capacity = all->capacity ? 2 * all->capacity : 1 << 16;
        all->seconds = realloc(all->seconds, all->capacity * sizeof *all->seconds);
        if (!all->seconds) exit(1);
    }
    all->seconds[all->n++] = seconds;
}

static void note_place(masks *all, double seconds, const kakeya_grammar *g, const int32_t *ids, size_t n) {
    slow_line *line = &all->line;
    if (seconds <= line->seconds) return;
    size_t room = TAIL, at = n, bytes;
    line->seconds = seconds;
    line->line = all->schemas;
    while (at > 0) {
        const char *text = token_table_text(g->tokens, ids[at - 1], &bytes);
        if (bytes > room) break;
        room -= bytes;
        memcpy(line->tail + room, text, bytes);
        at--;
    }
    memmove(line->tail, line->tail + room, TAIL - room);
    line->tail[TAIL - room] = 0;
}

static void end_line(masks *all) {
    size_t at = SLOWEST;
    while (at > 0 && all->line.seconds > all->slowest[at - 1].seconds) at--;
    if (at < SLOWEST) {
        memmove(&all->slowest[at + 1], &all->slowest[at], (SLOWEST - 1 - at) * sizeof *all->slowest);
        all->slowest[at] = all->line;
    }
    all->line.seconds = 0;
}

static double time_mask(const matcher *m, matcher_space *space, uint32_t *allowed, size_t words) {
    double start = cpu_seconds();
    matcher_mask(m, space, allowed, words);
    return cpu_seconds() - start;
}

static void follow(const kakeya_grammar *g, const char *text, matcher_space *space, uint32_t *allowed, size_t words,
                   masks *all) {
    kakeya_error error;
    matcher *m;
    int32_t *ids;
    size_t n, at;
    if (tokenizer_encode(g->tokens->tokenizer, text, strlen(text), (tokenizer_encode_options){0}, &ids, &n, &error) ||
        matcher_create(g, NULL, 0, NULL, 0, space->account, &m, &error))
        exit(1);
    for (at = 0; at <= n; at++) {
        double seconds = time_mask(m, space, allowed, words);
        add_mask(all, seconds);
        note_place(all, seconds, g, ids, at);
        if (at == n || !matcher_accept(m, space, ids[at])) break;
    }
    all->answers++;
    all->rejected += at < n;
    matcher_destroy(m);
    free(ids);
}

static void measure_line(const token_table *table, const char *line, uint32_t *allowed, size_t words, masks *all) {
    kakeya_grammar_options o;
    kakeya_error error;
    kakeya_grammar *g;
    mem_account account;
    matcher_space space = {.account = &account};
    cJSON *json = cJSON_Parse(line);
    const cJSON *text;
    KAKEYA_INIT(&o);
    o.kind = KAKEYA_GRAMMAR_JSON_SCHEMA;
    o.text = cJSON_GetStringValue(cJSON_GetObjectItem(json, "schema"));
    if (!o.text) {
        fprintf(stderr, "no line of a suite: %.80s\n", line);
        exit(1);
    }
    o.text_bytes = strlen(o.text);
    o.any_order = cJSON_IsTrue(cJSON_GetObjectItem(json, "any_order"));
    mem_account_init(&account, NULL, 0);
    all->schemas++;
    double start = cpu_seconds();
    kakeya_status status = grammar_compile(table, &o, &g, &error);
    all->compiling += cpu_seconds() - start;
    if (status) {
        all->refused++;
    } else {
        if (matcher_space_reserve(&space, g, &error)) exit(1);
        cJSON_ArrayForEach(text, cJSON_GetObjectItem(json, "texts"))
            follow(g, cJSON_GetStringValue(text), &space, allowed, words, all);
        grammar_free(g);
        end_line(all);
    }
    matcher_space_free(&space);
    cJSON_Delete(json);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure_answers(const token_table *table) {
    masks all = {0};
    char *line = NULL;
    size_t room = 0, words = ((size_t)table->vocab + 31) / 32;
    uint32_t *allowed = calloc(words, sizeof *allowed);
    if (!allowed) exit(1);
    while (getline(&line, &room, stdin) > 0) measure_line(table, line, allowed, words, &all);
    double total = 0;
    for (size_t i = 0; i < all.n; i++) total += all.seconds[i];
    if (all.n == 0) exit(1);
    qsort(all.seconds, all.n, sizeof *all.seconds, by_size);
    printf("%zu schemas, %zu refused, %zu answers, %zu left where they are refused; compiling %.0f us on average\n",
           all.schemas, all.refused, all.answers, all.rejected, all.compiling / (double)all.schemas * 1e6);
    printf("%zu masks, us: mean %.1f, p50 %.1f, p90 %.1f, p99 %.0f, p99.9 %.0f, slowest %.0f\n", all.n,
           total / (double)all.n * 1e6, all.seconds[all.n / 2] * 1e6, all.seconds[all.n * 9 / 10] * 1e6,
           all.seconds[all.n * 99 / 100] * 1e6, all.seconds[all.n * 999 / 1000] * 1e6, all.seconds[all.n - 1] * 1e6);
    for (size_t i = 0; i < SLOWEST && all.slowest[i].seconds > 0; i++)
        printf("%8.0f us: line %zu, behind %s\n", all.slowest[i].seconds * 1e6, all.slowest[i].line,
               all.slowest[i].tail);
    free(all.seconds);
    free(allowed);
    free(line);
}

/* ------------------------------------------------------------------------------------------------- rows of a step */

enum { ANSWERS = 64, ITEMS = 40, LOOK_AHEAD = 8 };

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static kakeya_grammar *schema_of_answer(const token_table *table, int i) {
    char text[1000];
    kakeya_grammar_options o;
    kakeya_grammar *g;
    kakeya_error error;
    snprintf(
        text, sizeof text,
        "{\"type\":\"array\",\"minItems\":1000,\"items\":{\"type\":\"object\",\"properties\":{\"name_%d\":{\"type\":"
        "\"string\",\"maxLength\":40},\"count_%d\":{\"type\":\"integer\",\"minimum\":0},\"kind_%d\":{\"enum\":"
        "[\"alpha\",\"beta\",\"gamma\"]},"
        "\"tags_%d\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":"
        "[\"name_%d\",\"count_%d\",\"kind_%d\",\"tags_%d\"],\"additionalProperties\":false}}",
        i, i, i, i, i, i, i, i);
    KAKEYA_INIT(&o);
    o.kind = KAKEYA_GRAMMAR_JSON_SCHEMA;
    o.text = text;
    o.text_bytes = strlen(text);
    if (grammar_compile(table, &o, &g, &error)) exit(1);
    return g;
}

static void text_of_answer(int i, char *out, size_t room) {
    size_t n = (size_t)snprintf(out, room, "[");
    for (int k = 0; k < ITEMS; k++) {
        n += (size_t)snprintf(out + n, room - n, "%s{\"name_%d\": \"some name %d of things\", \"count_%d\": %d, ",
                              k ? ", " : "", i, k * 7 % 100, i, k * 13);
        n += (size_t)snprintf(out + n, room - n, "\"kind_%d\": \"%s\", \"tags_%d\": [\"def\", \"return x%d\"]}", i,
                              k % 3 ? "beta" : "gamma", i, k);
    }
}

static void measure_rows(const token_table *table) {
    kakeya_grammar *g[ANSWERS];
    matcher *m[ANSWERS];
    int32_t *ids[ANSWERS], found[MATCHER_MAX_FORCED];
    size_t n, least = SIZE_MAX, words = ((size_t)table->vocab + 31) / 32;
    char text[ITEMS * 200];
    kakeya_error error;
    mem_account account;
    matcher_space space = {.account = &account};
    uint32_t *allowed = calloc(words, sizeof *allowed);
    double parts[4] = {0};
    mem_account_init(&account, NULL, 0);
    if (!allowed) exit(1);
    for (int i = 0; i < ANSWERS; i++) {
        g[i] = schema_of_answer(table, i);
        text_of_answer(i, text, sizeof text);
        if (matcher_space_reserve(&space, g[i], &error) ||
            matcher_create(g[i], NULL, 0, NULL, 0, &account, &m[i], &error) ||
            tokenizer_encode(table->tokenizer, text, strlen(text), (tokenizer_encode_options){0}, &ids[i], &n, &error))
            exit(1);
        if (n < least) least = n;
    }
    for (size_t at = 0; at + LOOK_AHEAD < least; at++) {
        double times[5] = {wall_seconds()};
        for (int i = 0; i < ANSWERS; i++) (void)matcher_forced(m[i], &space, found, LOOK_AHEAD);
        times[1] = wall_seconds();
        for (int i = 0; i < ANSWERS; i++) (void)matcher_count_allowed(m[i], &space, ids[i] + at, LOOK_AHEAD);
        times[2] = wall_seconds();
        for (int i = 0; i < ANSWERS; i++) matcher_mask(m[i], &space, allowed, words);
        times[3] = wall_seconds();
        for (int i = 0; i < ANSWERS; i++)
            if (!matcher_accept(m[i], &space, ids[i][at])) exit(1);
        times[4] = wall_seconds();
        for (int part = 0; part < 4; part++) parts[part] += times[part + 1] - times[part];
    }
    static const char *const names[] = {"what must follow", "eight drafts", "the mask", "its token"};
    for (int part = 0; part < 4; part++)
        printf("%-16s %8.2f us a row\n", names[part], parts[part] / (double)(ANSWERS * (least - LOOK_AHEAD)) * 1e6);
    for (int i = 0; i < ANSWERS; i++) {
        matcher_destroy(m[i]);
        grammar_free(g[i]);
        free(ids[i]);
    }
    matcher_space_free(&space);
    free(allowed);
}

int main(int argc, char **argv) {
    char path[1024];
    tokenizer *t;
    token_table *table;
    kakeya_error error;
    const bool answers = argc > 1 && strcmp(argv[1], "--answers") == 0,
               rows = argc > 1 && strcmp(argv[1], "--rows") == 0;
    const int folder = 1 + (answers || rows);
    snprintf(path, sizeof path, "%s/tokenizer.json", argc > folder ? argv[folder] : "models/demo");
    if (tokenizer_open(path, &t, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    double start = cpu_seconds();
    if (token_table_create(t, &table, &error)) return 1;
    printf("table of %d tokens: %.1f ms\n", table->vocab, (cpu_seconds() - start) * 1e3);
    if (rows) {
        measure_rows(table);
    } else if (answers) {
        measure_answers(table);
    } else {
        printf("%-24s %11s %11s %11s %11s\n", "", "compile", "letter", "mask", "longest");
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) measure(table, i);
    }
    token_table_destroy(table);
    tokenizer_close(t);
    return 0;
}
