#include "measure/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/gate_private.h"
#include "measure/mac.h"
#include "measure/mt19937.h"
#include "measure/replay_bounds.h"

typedef enum choice { LEFT_OUT = 0, NEEDED, DECISIVE, DRAWN } choice;

typedef struct known_prompt {
    char *sample;
    uint64_t hash;
} known_prompt;

struct replay {
    gate_context context; /* the report's rows */
    choice *chosen;       /* [rows] */
    bool all;
    bool foreign;                 /* the model here is another one: nothing is computed */
    size_t drawn, decisive, pool; /* pool: rows that could be drawn */
    known_prompt *prompt;         /* of the evaluation that ran again */
    size_t n_prompts;
    bool out_of_memory;
    eval_replay hook;
};

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* --------------------------------------------------------------------------------------------------------- choice */

/* Rows of one figure: those of an arm. Lossless evaluations give nearly every row an arm of its own; what they claim,
 * they claim of a mode under a policy. */
static bool same_figure(eval_kind kind, const eval_row *a, const eval_row *b) {
    if (kind != EVAL_LOSSLESS && kind != EVAL_BATCH) return eval_arm_equal(&a->arm, &b->arm);
    return strcmp(a->arm.policy, b->arm.policy) == 0 && strcmp(a->arm.mode, b->arm.mode) == 0 &&
           !a->arm.together == !b->arm.together;
}

/* How much a row does for its figure: acceptance; likeness to the reference. */
static double merit(eval_kind kind, const eval_row *row) {
    if (eval_kind_scores(kind)) return row->scored_tokens ? -row->kl / (double)row->scored_tokens : 0;
    return (double)row->n_token_ids / (double)(row->verifier_forwards > 0 ? row->verifier_forwards : 1);
}

/* The best row of every figure, and of scores the worst, which weighs most in a mean divergence. */
static void choose_decisive(replay *r) {
    const eval_rows *rows = &r->context.rows;
    eval_kind kind = r->context.kind;
    for (size_t i = 0; i < rows->n; i++) {
        if (rows->row[i].warmup) continue;
        bool best = true, worst = eval_kind_scores(kind);
        double own = merit(kind, &rows->row[i]);
        for (size_t j = 0; j < rows->n && (best || worst); j++) {
            const eval_row *other = &rows->row[j];
            if (j == i || other->warmup || !same_figure(kind, &rows->row[i], other)) continue;
            double rival = merit(kind, other);
            best &= own > rival || (!(own < rival) && i < j);
            worst &= own < rival || (!(own > rival) && i < j);
        }
        if (best || worst) r->chosen[i] = DECISIVE;
    }
}

static void draw(replay *r, const replay_options *o) {
    const eval_rows *rows = &r->context.rows;
    mt19937 generator;
    mt19937_seed(&generator, o->seed);
    size_t left = 0;
    for (size_t i = 0; i < rows->n; i++) left += !rows->row[i].warmup && r->chosen[i] == LEFT_OUT;
    r->pool = left;
    for (size_t wanted = o->rows < left ? o->rows : left; wanted > 0; wanted--, left--) {
        size_t at = mt19937_below(&generator, (uint32_t)left), i = 0;
        while (rows->row[i].warmup || r->chosen[i] != LEFT_OUT || at--) i++;
        r->chosen[i] = DRAWN;
        r->drawn++;
    }
}

/* "007.": what samples of one composition begin with. */
static bool same_composition(const eval_row *a, const eval_row *b) {
    size_t length = strcspn(a->sample, ".");
    return a->arm.together && b->arm.together && strncmp(a->sample, b->sample, length + 1) == 0;
}

/* Rows that others cannot be computed without: the reference of a score, the sessions that were computed together. */
static void choose_needed(replay *r) {
    const eval_rows *rows = &r->context.rows;
    for (size_t i = 0; i < rows->n; i++) {
        if (r->chosen[i] == LEFT_OUT || r->chosen[i] == NEEDED) continue;
        for (size_t j = 0; j < rows->n; j++) {
            const eval_row *other = &rows->row[j];
            bool reference = eval_kind_scores(r->context.kind) && gate_is_reference(&r->context, other) &&
                             strcmp(other->sample, rows->row[i].sample) == 0;
            bool together = r->context.kind == EVAL_BATCH && same_composition(&rows->row[i], other);
            if (r->chosen[j] == LEFT_OUT && (reference || together)) r->chosen[j] = NEEDED;
        }
    }
}

static void choose(replay *r, const replay_options *o) {
    r->all = o->all;
    choose_decisive(r);
    for (size_t i = 0; i < r->context.rows.n; i++) r->decisive += r->chosen[i] == DECISIVE;
    draw(r, o);
    choose_needed(r);
    for (size_t i = 0; o->all && i < r->context.rows.n; i++)
        if (r->chosen[i] == LEFT_OUT) r->chosen[i] = NEEDED;
}

/* ------------------------------------------------------------------------------------------------------- the runs */

static size_t find_row(const replay *r, const eval_row *planned) {
    const eval_rows *rows = &r->context.rows;
    size_t i = 0;
    while (i < rows->n && !gate_same_run(&rows->row[i], planned)) i++;
    return i;
}

static void on_begin(void *user, const cJSON *environment) {
    replay *r = user;
    r->foreign =
        !cJSON_Compare(member(environment, "fingerprint"), member(r->context.environment, "fingerprint"), true);
}

static const eval_row *on_row(void *user, const eval_row *planned) {
    const replay *r = user;
    if (r->foreign) return NULL;
    size_t i = find_row(r, planned);
    return i < r->context.rows.n && r->chosen[i] != LEFT_OUT ? &r->context.rows.row[i] : NULL;
}

static void on_prompt(void *user, const char *sample, uint64_t hash) {
    replay *r = user;
    known_prompt *grown = realloc(r->prompt, (r->n_prompts + 1) * sizeof *grown);
    if (grown) {
        r->prompt = grown;
        grown[r->n_prompts] = (known_prompt){strdup(sample), hash};
        if (grown[r->n_prompts].sample) {
            r->n_prompts++;
            return;
        }
    }
    r->out_of_memory = true;
}

const eval_replay *replay_hook(const replay *r) { return &r->hook; }

kakeya_status replay_open(const cJSON *report, const replay_options *options, replay **out, kakeya_error *error) {
    gate_result unused = {0};
    replay *r = calloc(1, sizeof *r);
    *out = r;
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a replay");
    r->hook = (eval_replay){on_begin, on_prompt, on_row, r};
    r->context = (gate_context){.report = report,
                                .environment = member(report, "environment"),
                                .options = member(report, "options"),
                                .result = &unused};
    kakeya_status status = KAKEYA_OK;
    if (!gate_recognise(&r->context) || unused.kind_name == mac_kind)
        status = error_set(error, KAKEYA_UNSUPPORTED, "reports of this kind cannot be replayed");
    if (status == KAKEYA_OK && !gate_read_rows(&r->context, error)) status = KAKEYA_OUT_OF_MEMORY;
    r->context.result = NULL;
    gate_result_free(&unused);
    if (status != KAKEYA_OK) return status;
    r->chosen = calloc(r->context.rows.n + 1, sizeof *r->chosen);
    if (!r->chosen) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu rows", r->context.rows.n);
    choose(r, options);
    return KAKEYA_OK;
}

void replay_close(replay *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_prompts; i++) free(r->prompt[i].sample);
    free(r->prompt);
    free(r->chosen);
    eval_rows_free(&r->context.rows);
    free(r);
}

/* -------------------------------------------------------------------------------------------- the whole evaluation */

/* "" where a report that is refused anyway says nothing. */
static const char *text_of(const cJSON *item) { return cJSON_IsString(item) ? item->valuestring : ""; }

/* What the evaluation is, beside its rows: what it was asked for, and the model. */
static void compare_object(gate_context *c, const char *code, const char *where, const cJSON *there, const cJSON *here,
                           const char *but) {
    const cJSON *item;
    cJSON_ArrayForEach(item, here) {
        if (eval_is_listed(but, item->string) || cJSON_Compare(item, member(there, item->string), true)) continue;
        char *own = cJSON_PrintUnformatted(item), *stated = cJSON_PrintUnformatted(member(there, item->string));
        gate_violate(c, code, "%s.%.40s is %.80s in the report, and %.80s here", where, item->string,
                     stated ? stated : "not there", own ? own : "?");
        cJSON_free(own);
        cJSON_free(stated);
    }
    cJSON_ArrayForEach(item, there) if (!member(here, item->string) && !eval_is_listed(but, item->string))
        gate_violate(c, code, "%s.%.40s is in the report, but not here", where, item->string);
}

static void compare_evaluation(gate_context *c, const eval_report *again, bool exact) {
    static const char machine[] = "kakeya_version date cpu_model cores memory_bytes os backend threads model";
    static const char moved[] = "kakeya_version date cpu_model cores memory_bytes os backend threads model kv_geometry";
    const cJSON *own = member(again->environment, "fingerprint"), *stated = member(c->environment, "fingerprint");
    if (!cJSON_Compare(own, stated, true)) {
        gate_violate(c, "REPLAY_MODEL",
                     "the model here has the fingerprint %s, the report's %.40s: name the report's with --model, and "
                     "where it had others, --drafter and --f-theta",
                     text_of(own), text_of(stated));
        return;
    }
    compare_object(c, "REPLAY_ENVIRONMENT", "environment", c->environment, again->environment, exact ? machine : moved);
    compare_object(c, "REPLAY_OPTIONS", "options", c->options, again->options, "jsonl");
}

/* Every prompt was made again, whether or not its rows were computed. */
static void compare_prompts(replay *r, gate_context *c) {
    for (size_t i = 0; i < r->context.rows.n; i++) {
        const eval_row *row = &r->context.rows.row[i];
        size_t p = 0;
        while (p < r->n_prompts && strcmp(r->prompt[p].sample, row->sample) != 0) p++;
        if (p == r->n_prompts)
            gate_violate(c, "REPLAY_PROMPT", "rows[%zu] (%s): the evaluation has no such sample here", i, row->sample);
        else if (r->prompt[p].hash != row->prompt_hash)
            gate_violate(c, "REPLAY_PROMPT", "rows[%zu] (%s): another prompt than here; are the files the same?", i,
                         row->sample);
    }
    for (size_t p = 0; p < r->n_prompts; p++) {
        size_t i = 0;
        while (i < r->context.rows.n && strcmp(r->prompt[p].sample, r->context.rows.row[i].sample) != 0) i++;
        if (i == r->context.rows.n)
            gate_violate(c, "REPLAY_PROMPT", "%s is a sample of the evaluation, but not of the report",
                         r->prompt[p].sample);
    }
}

/* ------------------------------------------------------------------------------------------------------------ rows */

static eval_figure figure_of(const char *key) {
    unsigned kinds;
    eval_figure figure = EVAL_BITS;
    const char *known;
    for (size_t i = 0; (known = eval_row_key(i, &kinds, &figure)) != NULL; i++)
        if (strncmp(known, key, strcspn(known, ".")) == 0 && !key[strcspn(known, ".")]) break;
    return known ? figure : EVAL_BITS;
}

/* Sessions that were computed together share forwards: which blocks they had depends on who was there when. */
static bool has_own_forwards(const eval_row *row) { return row->arm.together == 0; }

static void compare_bits(replay *r, gate_context *c, size_t i, const eval_row *again) {
    const eval_row *row = &r->context.rows.row[i];
    cJSON *there = eval_row_to_json(r->context.kind, row), *here = eval_row_to_json(r->context.kind, again);
    if (!there || !here) r->out_of_memory = true;
    const cJSON *item;
    cJSON_ArrayForEach(item, here) {
        eval_figure figure = figure_of(item->string);
        bool known = row->has_blocks || !again->has_blocks;
        if (figure == EVAL_TIME || (figure == EVAL_DRAFTS && !known)) continue;
        if (figure != EVAL_BITS && !has_own_forwards(row)) continue;
        if (cJSON_Compare(item, member(there, item->string), true)) continue;
        char *own = cJSON_PrintUnformatted(item), *stated = cJSON_PrintUnformatted(member(there, item->string));
        gate_violate(c, "REPLAY_ROW", "rows[%zu] (%s, %s %s): %s is %.60s in the report, and %.60s here", i,
                     row->sample, row->arm.policy, row->arm.mode, item->string, stated ? stated : "not there",
                     own ? own : "?");
        cJSON_free(own);
        cJSON_free(stated);
        break;
    }
    if (!row->has_blocks && again->has_blocks)
        gate_violate(c, "REPLAY_DRAFTS",
                     "rows[%zu] (%s, %s %s): without draft_blocks, nobody can tell what auto drafted", i, row->sample,
                     row->arm.policy, row->arm.mode);
    cJSON_Delete(there);
    cJSON_Delete(here);
}

static void compare_rows(replay *r, gate_context *c, const eval_report *again, bool exact) {
    for (size_t i = 0; i < again->rows.n; i++) {
        size_t at = find_row(r, &again->rows.row[i]);
        if (at == r->context.rows.n) continue; /* hooks leave nothing else */
        if (exact)
            compare_bits(r, c, at, &again->rows.row[i]);
        else
            replay_compare_bounds(c, at, &r->context.rows.row[at], &again->rows.row[i]);
    }
}

/* ----------------------------------------------------------------------------------------------------------- times */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare_times(replay *r, const eval_report *again, replay_outcome *o) {
    static const double usual = 4;
    o->slowest_usual = 1 / usual;
    o->fastest_usual = usual;
    double *ratio = calloc(again->rows.n + 1, sizeof *ratio);
    for (size_t i = 0; ratio && i < again->rows.n; i++) {
        const eval_row *row = &again->rows.row[i];
        size_t at = find_row(r, row);
        if (at == r->context.rows.n) continue;
        bool scored = eval_kind_scores(r->context.kind);
        double here = scored ? row->seconds : row->decode_seconds,
               there = scored ? r->context.rows.row[at].seconds : r->context.rows.row[at].decode_seconds;
        if (here > 0 && there > 0) ratio[o->timed++] = there / here;
    }
    if (!ratio) {
        r->out_of_memory = true;
        return;
    }
    qsort(ratio, o->timed, sizeof *ratio, by_value);
    if (o->timed) o->speed = (ratio[(o->timed - 1) / 2] + ratio[o->timed / 2]) / 2;
    free(ratio);
}

/* ----------------------------------------------------------------------------------------------------- probabilities
 */

/* That at least one of `changed` rows is among those drawn from the pool: changes that avoid the decisive rows. */
static double found(const replay *r, size_t changed) {
    double escaped = 1;
    for (size_t i = 0; i < changed && i < r->pool; i++) {
        double left = (double)(r->pool - i), drawn = (double)r->drawn;
        escaped *= drawn < left ? 1 - drawn / left : 0;
    }
    return r->all ? 1 : 1 - escaped;
}

static size_t smallest_arm(const replay *r) {
    const eval_rows *rows = &r->context.rows;
    size_t smallest = rows->n;
    for (size_t i = 0; i < rows->n; i++) {
        size_t n = 0;
        for (size_t j = 0; j < rows->n; j++)
            n += !rows->row[j].warmup && same_figure(r->context.kind, &rows->row[i], &rows->row[j]);
        if (!rows->row[i].warmup && n < smallest) smallest = n;
    }
    return smallest;
}

/* "cpu/avx512, 2 threads": threads change no bit. */
static bool same_backend(const char *a, const char *b) {
    size_t length = strcspn(a, ",");
    return length == strcspn(b, ",") && strncmp(a, b, length) == 0;
}

kakeya_status replay_judge(replay *r, const eval_report *again, gate_result *result, replay_outcome *outcome,
                           kakeya_error *error) {
    const cJSON *here = member(again->environment, "backend"), *there = member(r->context.environment, "backend");
    gate_context c = r->context;
    c.result = result;
    *outcome = (replay_outcome){.rows = r->context.rows.n,
                                .replayed = again->rows.n,
                                .decisive = r->decisive,
                                .drawn = r->drawn,
                                .exact = same_backend(text_of(here), text_of(there)),
                                .arm_rows = smallest_arm(r),
                                .found_one = found(r, 1),
                                .found_arm = 1};
    outcome->found_half = found(r, (outcome->arm_rows + 1) / 2);
    snprintf(outcome->backend, sizeof outcome->backend, "%s", text_of(here));
    size_t before = result->n_violations;
    compare_evaluation(&c, again, outcome->exact);
    if (result->n_violations == before) {
        compare_prompts(r, &c);
        compare_rows(r, &c, again, outcome->exact);
        compare_times(r, again, outcome);
    }
    if (!r->out_of_memory && !c.out_of_memory) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory to compare %zu rows", again->rows.n);
}
