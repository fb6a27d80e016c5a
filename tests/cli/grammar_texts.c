/* Grammars for scripts: one JSON object a line in, one out.
 *
 *     {"schema": TEXT, "any_order": BOOL, "texts": [TEXT...], "random": N, "seed": N}
 *     -> {"message": why it was refused, or null; "us": compiling took; "bytes", "notes": [TEXT...],
 *         "texts": [whether each is accepted], "read": [how many bytes of each were], "random": [texts that were
 * drawn], "dead": text behind which nothing may follow, or null}
 *
 * Instead of schema: "regex", "grammar", "tools" (calls of them, loosened where they cannot be followed; no texts). The
 * vocabulary plays no part; MODEL-DIRECTORY is any with a tokenizer. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"

enum { MAX_TEXT = 4000 };

static automaton_state states[3];

/* *read: the bytes that were. */
static bool accepts(const kakeya_grammar *g, const char *text, size_t *read) {
    int now = 0;
    automaton_begin(g->content, &states[0]);
    for (*read = 0; text[*read]; ++*read, now = !now)
        if (!automaton_step(&g->program, &states[now], (unsigned char)text[*read], &states[!now])) return false;
    return automaton_complete(&g->program, &states[now]);
}

typedef struct draws {
    uint64_t seed, n;
} draws;

static unsigned draw(draws *d, unsigned n) { return (unsigned)(random_uniform_at(d->seed, d->n++) * n); }

/* A letter that may well follow; the longer the text, the more of those that end something. */
static unsigned propose(draws *d, size_t length) {
    static const char ends[] = "\"}]\"}]e:,", common[] = "\"{}[],:0123456789truefalsnul-. \\abcxyz@/T+ZP_";
    unsigned kind = draw(d, 100 + (unsigned)length * 2);
    if (kind >= 70) return (unsigned char)ends[draw(d, sizeof ends - 1)];
    if (kind >= 30) return (unsigned char)common[draw(d, sizeof common - 1)];
    if (kind >= 3) return 32 + draw(d, 95);
    return draw(d, 256);
}

/* 0: nothing may follow; 256: the text ends. */
static unsigned next_letter(const kakeya_grammar *g, draws *d, size_t length, const automaton_state *now,
                            automaton_state *to) {
    bool complete = automaton_complete(&g->program, now);
    if (complete && draw(d, 3) == 0) return 256;
    for (int i = 0; i < 60; i++) {
        unsigned letter = propose(d, length);
        if (letter && automaton_step(&g->program, now, letter, to)) return letter;
    }
    unsigned first = draw(d, 256);
    for (unsigned i = 0; i < 256; i++) {
        unsigned letter = (first + i) % 256;
        if (letter && automaton_step(&g->program, now, letter, to)) return letter;
    }
    return complete ? 256 : 0;
}

/* False: a dead end. *ended: it is complete, and not just long enough. */
static bool draw_text(const kakeya_grammar *g, draws *d, char *text, bool *ended) {
    size_t n = 0;
    int now = 0;
    automaton_begin(g->content, &states[0]);
    *ended = false;
    while (n < MAX_TEXT) {
        unsigned letter = next_letter(g, d, n, &states[now], &states[!now]);
        text[n] = 0;
        if (letter == 256) *ended = true;
        if (letter == 256 || letter == 0) return letter != 0;
        text[n++] = (char)letter;
        now = !now;
    }
    text[n] = 0;
    return true;
}

static void draw_texts(const kakeya_grammar *g, const cJSON *line, cJSON *out) {
    char text[MAX_TEXT + 1];
    draws d = {.seed = (uint64_t)cJSON_GetNumberValue(cJSON_GetObjectItem(line, "seed"))};
    int n = (int)cJSON_GetNumberValue(cJSON_GetObjectItem(line, "random"));
    cJSON *list = cJSON_AddArrayToObject(out, "random");
    for (int i = 0; i < n; i++) {
        bool ended;
        if (!draw_text(g, &d, text, &ended)) {
            cJSON_AddStringToObject(out, "dead", text);
            return;
        }
        if (ended) cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    cJSON_AddNullToObject(out, "dead");
}

static void answer(const kakeya_tokenizer *t, const cJSON *line, cJSON *out) {
    kakeya_grammar_options o;
    kakeya_grammar *g;
    kakeya_error error = {0};
    struct timespec begin, end;
    const cJSON *schema = cJSON_GetObjectItem(line, "schema"), *regex = cJSON_GetObjectItem(line, "regex"), *text;
    const cJSON *rules = cJSON_GetObjectItem(line, "grammar"), *tools = cJSON_GetObjectItem(line, "tools");
    const char *source = cJSON_GetStringValue(schema ? schema : regex ? regex : rules);
    KAKEYA_INIT(&o);
    o.kind = schema ? KAKEYA_GRAMMAR_JSON_SCHEMA : regex ? KAKEYA_GRAMMAR_REGEX : KAKEYA_GRAMMAR_RULES;
    o.text = source;
    o.text_bytes = source ? strlen(source) : 0;
    if (tools) {
        o.kind = KAKEYA_GRAMMAR_TEXT;
        o.calls = KAKEYA_CALLS_REQUIRED;
        o.tools = cJSON_GetStringValue(tools);
        o.tools_bytes = o.tools ? strlen(o.tools) : 0;
        o.loosen = true;
    }
    o.any_order = cJSON_IsTrue(cJSON_GetObjectItem(line, "any_order"));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    kakeya_status status = kakeya_grammar_open(t, &o, &g, &error);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    cJSON_AddNumberToObject(out, "us",
                            (double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) / 1e3);
    if (status != KAKEYA_OK) {
        cJSON_AddStringToObject(out, "message", error.message);
        return;
    }
    cJSON_AddNullToObject(out, "message");
    cJSON_AddNumberToObject(out, "bytes", (double)kakeya_grammar_bytes(g));
    cJSON *list = cJSON_AddArrayToObject(out, "notes");
    for (size_t i = 0; kakeya_grammar_note(g, i); i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(kakeya_grammar_note(g, i)));
    list = cJSON_AddArrayToObject(out, "texts");
    cJSON *reads = cJSON_AddArrayToObject(out, "read");
    cJSON_ArrayForEach(text, cJSON_GetObjectItem(line, "texts")) {
        size_t read;
        cJSON_AddItemToArray(list, cJSON_CreateBool(accepts(g, text->valuestring, &read)));
        cJSON_AddItemToArray(reads, cJSON_CreateNumber((double)read));
    }
    if (cJSON_GetObjectItem(line, "random")) draw_texts(g, line, out);
    kakeya_grammar_close(g);
}

int main(int argc, char **argv) {
    kakeya_tokenizer *t;
    kakeya_error error = {0};
    char *line = NULL;
    size_t room = 0;
    if (argc != 2) return fprintf(stderr, "usage: grammar_texts MODEL-DIRECTORY < lines\n"), 2;
    if (kakeya_tokenizer_open(argv[1], &t, &error) != KAKEYA_OK) return fprintf(stderr, "%s\n", error.message), 1;
    while (getline(&line, &room, stdin) > 0) {
        cJSON *in = cJSON_Parse(line), *out = cJSON_CreateObject();
        answer(t, in, out);
        char *text = cJSON_PrintUnformatted(out);
        puts(text);
        fflush(stdout);
        cJSON_free(text);
        cJSON_Delete(in);
        cJSON_Delete(out);
    }
    free(line);
    kakeya_tokenizer_close(t);
    return 0;
}
