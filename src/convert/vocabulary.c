#include "convert/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_tables.h"
#include "text/utf8.h"

/* A piece that takes part in merges: text, neither an added token nor a byte. */
static bool is_text(const tokenizer *t, int32_t id) {
    const piece *p = tokenizer_piece_at(t, id);
    return p && !(p->flags & PIECE_ADDED) && p->byte < 0;
}

/* Calls `each` for every two pieces of text whose joined text is the piece `id`, from the left, until it is false. */
typedef bool (*split_fn)(void *context, int32_t left, int32_t right, int32_t id);

static bool each_split(const tokenizer *t, int32_t id, split_fn each, void *context) {
    const piece *p = tokenizer_piece_at(t, id);
    const char *text = t->text + p->offset;
    for (size_t at = utf8_length(text, p->bytes); at && at < p->bytes; at += utf8_length(text + at, p->bytes - at)) {
        int32_t left = tokenizer_find(t, text, at), right = tokenizer_find(t, text + at, p->bytes - at);
        if (is_text(t, left) && is_text(t, right) && !each(context, left, right, id)) return false;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------- scores */

/* The merges that make one piece. */
typedef struct made {
    int32_t id;
    uint32_t first, last; /* their ranks */
    size_t n;
} made;

typedef struct scoring {
    const tokenizer *t;
    made *made; /* by id */
} scoring;

static bool is_listed(void *context, int32_t left, int32_t right, int32_t id) {
    scoring *s = context;
    merge m;
    if (!tokenizer_find_merge(s->t, left, right, &m) || m.product != id || s->made[id].n == 0) return false;
    s->made[id].n--;
    return true;
}

static int by_first(const void *a, const void *b) {
    const made *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* What no merge makes comes last: single characters, in the order of ids. */
static bool find_scores(scoring *s, float *scores) {
    const tokenizer *t = s->t;
    const size_t n = t->n_pieces;
    for (size_t id = 0; id < n; id++) s->made[id] = (made){.id = (int32_t)id, .first = UINT32_MAX};
    for (size_t i = 0; t->merges && i <= t->merge_mask; i++) {
        const merge *m = &t->merges[i];
        if (m->left < 0 || !is_text(t, m->left) || !is_text(t, m->right) || !is_text(t, m->product)) continue;
        made *of = &s->made[m->product];
        of->first = m->rank < of->first ? m->rank : of->first;
        of->last = m->rank > of->last ? m->rank : of->last;
        of->n++;
    }
    for (size_t id = 0; id < n; id++) {
        if (is_text(t, (int32_t)id) && (!each_split(t, (int32_t)id, is_listed, s) || s->made[id].n)) return false;
    }
    qsort(s->made, n, sizeof *s->made, by_first);
    int place = 0;
    for (size_t i = 0; i < n; i++) {
        const made *of = &s->made[i];
        if (i && of->first != UINT32_MAX && of->first < s->made[i - 1].last) return false;
        const piece *p = tokenizer_piece_at(t, of->id);
        if (is_text(t, of->id))
            scores[of->id] = -(float)place++;
        else
            scores[of->id] = p && p->byte >= 0 ? 0 : -1000;
    }
    return true;
}

kakeya_status vocabulary_scores(const tokenizer *t, float *scores, bool *ranked, kakeya_error *error) {
    scoring s = {.t = t, .made = malloc(t->n_pieces * sizeof *s.made)};
    if (!s.made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the merges of %zu pieces", t->n_pieces);
    *ranked = find_scores(&s, scores);
    free(s.made);
    return KAKEYA_OK;
}

char *vocabulary_spaced(const char *text, size_t *bytes) {
    if (!memmem(text, *bytes, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES)) return NULL;
    char *out = malloc(*bytes);
    size_t n = 0;
    for (size_t i = 0; out && i < *bytes; i++) {
        bool space =
            *bytes - i >= TOKENIZER_SPACE_BYTES && memcmp(text + i, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES) == 0;
        out[n++] = space ? ' ' : text[i];
        i += space ? TOKENIZER_SPACE_BYTES - 1 : 0;
    }
    if (out) *bytes = n;
    return out;
}

/* ------------------------------------------------------------------------------------------------- tokenizer.json */

/* A string of JSON, as it is in UTF-8. */
static void put_text(FILE *out, const char *text, size_t bytes) {
    fputc('"', out);
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void put_piece(FILE *out, const tokenizer *t, int32_t id) {
    const piece *p = tokenizer_piece_at(t, id);
    put_text(out, t->text + p->offset, p->bytes);
}

static void put_added(FILE *out, const tokenizer *t) {
    const char *comma = "";
    for (size_t id = 0; id < t->n_pieces; id++) {
        const piece *p = tokenizer_piece_at(t, (int32_t)id);
        if (!p || !(p->flags & PIECE_ADDED)) continue;
        fprintf(out, "%s\n  {\"id\": %zu, \"content\": ", comma, id);
        put_piece(out, t, (int32_t)id);
        fprintf(out,
                ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                "\"special\": %s}",
                p->flags & PIECE_SPECIAL ? "true" : "false");
        comma = ",";
    }
}

static void put_template_ids(FILE *out, const tokenizer *t, const int32_t *ids, size_t n, const char *before,
                             const char *after) {
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "%s{\"SpecialToken\": {\"id\": ", before);
        put_piece(out, t, ids[i]);
        fprintf(out, ", \"type_id\": 0}}%s", after);
    }
}

/* What is put around a text, and around two. */
static void put_template(FILE *out, const tokenizer *t) {
    if (!t->n_prefix && !t->n_suffix) {
        fputs("null", out);
        return;
    }
    fputs("{\"type\": \"TemplateProcessing\"", out);
    for (int pair = 0; pair < 2; pair++) {
        fputs(pair ? "], \"pair\": [" : ", \"single\": [", out);
        for (int i = 0; i <= pair; i++) {
            if (i) fputs(", ", out);
            put_template_ids(out, t, t->prefix, t->n_prefix, "", ", ");
            fprintf(out, "{\"Sequence\": {\"id\": \"%c\", \"type_id\": %d}}", 'A' + i, i);
            put_template_ids(out, t, t->suffix, t->n_suffix, ", ", "");
        }
    }
    fputs("], \"special_tokens\": {", out);
    const char *comma = "";
    for (size_t i = 0; i < t->n_prefix + t->n_suffix; i++) {
        const int32_t id = i < t->n_prefix ? t->prefix[i] : t->suffix[i - t->n_prefix];
        bool before = false; /* keys are there once */
        for (size_t k = 0; k < i; k++) before |= (k < t->n_prefix ? t->prefix[k] : t->suffix[k - t->n_prefix]) == id;
        if (before) continue;
        fputs(comma, out);
        put_piece(out, t, id);
        fputs(": {\"id\": ", out);
        put_piece(out, t, id);
        fprintf(out, ", \"ids\": [%d], \"tokens\": [", id);
        put_piece(out, t, id);
        fputs("]}", out);
        comma = ", ";
    }
    fputs("}}", out);
}

typedef struct merge_list {
    FILE *out;
    const tokenizer *t;
    const char *comma;
} merge_list;

static bool put_merge(void *context, int32_t left, int32_t right, int32_t id) {
    merge_list *l = context;
    (void)id;
    fprintf(l->out, "%s\n   [", l->comma);
    put_piece(l->out, l->t, left);
    fputs(", ", l->out);
    put_piece(l->out, l->t, right);
    fputc(']', l->out);
    l->comma = ",";
    return true;
}

typedef struct ranked_id {
    uint32_t rank;
    int32_t id;
} ranked_id;

static int by_rank(const void *a, const void *b) {
    const ranked_id *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Of pieces with ranks all merges that make one, by its rank; else those that are listed. False: no memory. */
static bool put_merges(FILE *out, const tokenizer *t) {
    const size_t slots = t->ranks ? t->n_pieces : t->merge_mask + 1;
    ranked_id *order = malloc(slots * sizeof *order);
    if (!order) return false;
    size_t n = 0;
    for (size_t i = 0; i < slots; i++) {
        if (!t->ranks && t->merges[i].left >= 0) order[n++] = (ranked_id){t->merges[i].rank, (int32_t)i};
        if (t->ranks && t->ranks[i] != TOKENIZER_NO_RANK && is_text(t, (int32_t)i))
            order[n++] = (ranked_id){t->ranks[i], (int32_t)i};
    }
    qsort(order, n, sizeof *order, by_rank);
    merge_list list = {.out = out, .t = t, .comma = ""};
    for (size_t i = 0; i < n; i++) {
        if (t->ranks)
            (void)each_split(t, order[i].id, put_merge, &list);
        else
            (void)put_merge(&list, t->merges[order[i].id].left, t->merges[order[i].id].right, 0);
    }
    free(order);
    return true;
}

static bool put_tokenizer(FILE *out, const tokenizer *t) {
    fputs("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n \"added_tokens\": [", out);
    put_added(out, t);
    fputs(
        "],\n \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" TOKENIZER_SPACE
        "\"},\n \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, "
        "\"behavior\": \"MergedWithPrevious\", \"invert\": false},\n \"post_processor\": ",
        out);
    put_template(out, t);
    fputs(",\n \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
          "{\"String\": \"" TOKENIZER_SPACE "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, "
          "{\"type\": \"Fuse\"}]},\n \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": ",
          out);
    fputs(tokenizer_id(t, "<unk>") >= 0 ? "\"<unk>\"" : "null", out);
    fputs(", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": true, "
          "\"byte_fallback\": true, \"ignore_merges\": false,\n  \"vocab\": {",
          out);
    const char *comma = "";
    for (size_t id = 0; id < t->n_pieces; id++) {
        if (!tokenizer_piece_at(t, (int32_t)id)) continue;
        fprintf(out, "%s\n   ", comma);
        put_piece(out, t, (int32_t)id);
        fprintf(out, ": %zu", id);
        comma = ",";
    }
    fputs("},\n  \"merges\": [", out);
    const bool done = put_merges(out, t);
    fputs("]}}\n", out);
    return done;
}

kakeya_status vocabulary_json(const tokenizer *t, const char *name, char **out, size_t *bytes, kakeya_error *error) {
    *out = NULL;
    for (size_t id = 0; id < t->n_pieces; id++) {
        const piece *p = tokenizer_piece_at(t, (int32_t)id);
        const int32_t other = p ? tokenizer_find(t, t->text + p->offset, p->bytes) : (int32_t)id;
        if (other != (int32_t)id)
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "%s: tokens %d and %zu have the same spelling, which a tokenizer.json cannot "
                             "express",
                             name, other, id);
    }
    FILE *stream = open_memstream(out, bytes);
    bool done = stream && put_tokenizer(stream, t);
    if (stream) {
        done = !ferror(stream) && done;
        done = fclose(stream) == 0 && done;
    }
    if (done) return KAKEYA_OK;
    free(*out);
    *out = NULL;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for a tokenizer.json", name);
}
