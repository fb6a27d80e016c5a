/* The list of operations that a step consists of (backend/cuda/step.h), for all forms of models and steps. Needs no
 * device: what is read has been written, the two streams wait for each other where they must, every weight is read
 * once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/step.h"
#include "gpu/fused_steps.h"
#include "model/sizes.h"

typedef struct form {
    const char *model;
    mem_account account;
    language_model *verifier;
    block_drafter_model *drafter;
    restoration_model *f_theta;
    step_tap tap[BLOCK_DRAFTER_MAX_TARGETS];
    cuda_weights weights;
    step_op *ops, *fused;
    program_op *program;
    program_launch *launches;
} form;

static void require_ok(kakeya_status status, const kakeya_error *error) {
    if (status) fail_msg("%s", error->message);
}

static void form_open(form *f, const char *model) {
    kakeya_error error = {0};
    memset(f, 0, sizeof *f);
    f->model = model;
    mem_account_init(&f->account, NULL, 0);
    require_ok(language_model_outline(model, &f->account, &f->verifier, &error), &error);
    const model_config *c = &f->verifier->config;
    require_ok(block_drafter_model_outline(c, &f->account, &f->drafter, &error), &error);
    require_ok(restoration_model_synthesize(c, &f->drafter->config, RESTORATION_PUBLISHED_RANK,
                                            RESTORATION_PUBLISHED_RANK, true, &f->account, &f->f_theta, &error),
               &error);
    backend_model_options options = {.verifier = f->verifier, .drafter = f->drafter, .restoration = f->f_theta};
    require_ok(cuda_weights_describe(&f->weights, &options, (model_shard){0, 1}, &error), &error);
    f->ops = calloc((size_t)step_most_ops(c), sizeof *f->ops);
    f->fused = calloc((size_t)step_most_ops(c), sizeof *f->fused);
    f->program = calloc((size_t)program_most_ops(c), sizeof *f->program);
    f->launches = calloc((size_t)program_most_ops(c), sizeof *f->launches);
    assert_true(f->ops && f->fused && f->program && f->launches);
}

static void form_close(form *f) {
    free(f->ops);
    free(f->fused);
    free(f->program);
    free(f->launches);
    restoration_model_close(f->f_theta);
    block_drafter_model_close(f->drafter);
    language_model_close(f->verifier);
}

static const char *const models[] = {"26b-a4b:layers=12", "31b:layers=12", "12b:layers=7", "e2b", "e4b"};
enum { MODELS = sizeof models / sizeof models[0] };

/* --------------------------------------------------------------------------------------------- what must hold */

static const step_items from_before = STEP_ITEM(ITEM_LATENTS) | STEP_ITEM(ITEM_KV);
static const step_items results = STEP_ITEM(ITEM_LOGITS) | STEP_ITEM(ITEM_CHOICE) | STEP_ITEM(ITEM_LEADERS) |
                                  STEP_ITEM(ITEM_STATES) | STEP_ITEM(ITEM_AUX) | STEP_ITEM(ITEM_KV) |
                                  STEP_ITEM(ITEM_H) | STEP_ITEM(ITEM_X) | STEP_ITEM(ITEM_LAST);

static void check_reads(const form *f, const char *what, int n) {
    step_items written = from_before, needed = 0;
    for (int i = 0; i < n; i++) {
        step_items missing = f->ops[i].reads & ~written;
        if (missing)
            fail_msg("%s, %s: operation %d (kind %d) reads items %llx that nobody wrote", f->model, what, i,
                     (int)f->ops[i].kind, (unsigned long long)missing);
        written |= f->ops[i].writes;
    }
    for (int i = n - 1; i >= 0; i--) {
        bool waits = f->ops[i].kind == STEP_FORK || f->ops[i].kind == STEP_JOIN;
        if (!waits && !(f->ops[i].writes & (results | needed)))
            fail_msg("%s, %s: nobody needs operation %d (kind %d)", f->model, what, i, (int)f->ops[i].kind);
        needed |= f->ops[i].reads;
    }
}

static bool attends(const step_op *op) {
    return op->kind == STEP_ATTEND || op->kind == STEP_ATTEND_LATENTS || op->kind == STEP_PROMPT_ATTEND;
}

/* New K/V of a layer are there before a layer attends them, and in the cache when the step ends. */
static void check_cache(const form *f, const char *what, int n) {
    bool fresh[MODEL_MAX_LAYERS] = {false}, stored[MODEL_MAX_LAYERS] = {false};
    for (int i = 0; i < n; i++) {
        const step_op *op = &f->ops[i];
        if (op->kind == STEP_HEAD_ROWS && op->source == op->layer) fresh[op->layer] = true;
        if (op->writes & STEP_ITEM(ITEM_KV)) stored[op->source] = true;
        if (attends(op) && !fresh[op->source])
            fail_msg("%s, %s: layer %d attends layer %d too early", f->model, what, op->layer, op->source);
    }
    for (int i = 0; i < f->verifier->config.layers; i++) {
        if (stored[i] != (f->verifier->config.layer[i].kv_source == i))
            fail_msg("%s, %s: K/V of layer %d are %s", f->model, what, i, stored[i] ? "stored" : "not stored");
    }
}

static bool between(const form *f, int first, int last, step_kind kind, int index) {
    for (int i = first + 1; i < last; i++) {
        if (f->ops[i].kind == kind && (index < 0 || f->ops[i].index == index)) return true;
    }
    return false;
}

static void check_streams(const form *f, const char *what, int n) {
    for (int later = 0; later < n; later++) {
        const step_op *b = &f->ops[later];
        for (int earlier = 0; earlier < later; earlier++) {
            const step_op *a = &f->ops[earlier];
            if (a->beside == b->beside || !step_depends(b, a)) continue;
            bool waits =
                b->beside ? between(f, earlier, later, STEP_FORK, -1) : between(f, earlier, later, STEP_JOIN, a->index);
            if (!waits)
                fail_msg("%s, %s: operation %d does not wait for operation %d beside it", f->model, what, later,
                         earlier);
        }
    }
}

static void check_rows(const form *f, const char *what, int n, int rows) {
    int attended[MODEL_MAX_LAYERS] = {0};
    for (int i = 0; i < n; i++) {
        const step_op *op = &f->ops[i];
        if (!attends(op)) continue;
        if (op->first_row != attended[op->layer] || op->rows < 1)
            fail_msg("%s, %s: layer %d attends from row %d, expected %d", f->model, what, op->layer, op->first_row,
                     attended[op->layer]);
        attended[op->layer] += op->rows;
    }
    for (int i = 0; i < f->verifier->config.layers; i++) {
        if (attended[i] != rows)
            fail_msg("%s, %s: layer %d attends %d of %d rows", f->model, what, i, attended[i], rows);
    }
}

static int uses(const form *f, int n, const cuda_matrix *w) {
    int found = 0;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < f->ops[i].matrices; k++) found += f->ops[i].matrix[k] == w;
    }
    return found;
}

static void check_weights(const form *f, const char *what, int n, bool head) {
    const cuda_weights *w = &f->weights;
    int listed = 0, expected = 0;
    for (int i = 0; i < n; i++) listed += f->ops[i].matrices;
    for (int l = 0; l < f->verifier->config.layers; l++) {
        const cuda_layer *layer = &w->layer[l];
        const cuda_matrix *all[] = {&layer->q,
                                    &layer->k,
                                    &layer->v,
                                    &layer->o,
                                    &layer->gate,
                                    &layer->up,
                                    &layer->down,
                                    &layer->router,
                                    &layer->experts_gate_up,
                                    &layer->experts_down,
                                    &layer->ple_gate,
                                    &layer->ple_proj};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            int want = all[i]->out > 0;
            if (f->verifier->config.layer[l].kv_source != l && (all[i] == &layer->k || all[i] == &layer->v)) want = 0;
            if (uses(f, n, all[i]) != want)
                fail_msg("%s, %s: layer %d, matrix %zu is multiplied %d times", f->model, what, l, i,
                         uses(f, n, all[i]));
            expected += want;
        }
    }
    expected += w->ple_model_proj.out > 0;
    assert_int_equal(uses(f, n, &w->ple_model_proj), w->ple_model_proj.out > 0);
    expected += head;
    assert_int_equal(uses(f, n, &w->head), head);
    assert_int_equal(listed, expected);
}

/* The places where several devices meet, in their order: (layer, kind, index). Behind each of a layer's two sums of
 * products there is one exchange, before anybody reads the sum. */
typedef struct meeting {
    int layer, kind, index;
} meeting;

static int check_meetings(const form *f, const char *what, int n, int devices, meeting *found) {
    int meetings = 0, exchanges = 0;
    bool partial = false;
    for (int i = 0; i < n; i++) {
        const step_op *op = &f->ops[i];
        bool makes = op->kind == STEP_OUT || op->kind == STEP_DOWN || op->kind == STEP_DENSE_DOWN ||
                     op->kind == STEP_EXPERTS_DOWN;
        if ((op->kind == STEP_AFTER_ATTENTION || op->kind == STEP_AFTER_FFN) && partial && devices > 1)
            fail_msg("%s, %s: operation %d reads a part as if it were a sum", f->model, what, i);
        if (op->kind == STEP_EXCHANGE && !partial)
            fail_msg("%s, %s: operation %d exchanges what is a sum already", f->model, what, i);
        if (makes) partial = true;
        if (op->kind == STEP_EXCHANGE) partial = false;
        if (op->kind != STEP_EXCHANGE && op->kind != STEP_MEET) continue;
        exchanges += op->kind == STEP_EXCHANGE;
        found[meetings++] = (meeting){op->layer, (int)op->kind, op->index};
    }
    assert_int_equal(exchanges, devices > 1 ? 2 * f->verifier->config.layers : 0);
    assert_true(meetings < STEP_MOST_TURNS);
    return meetings;
}

static bool same_step(const step_op *a, const step_op *b) {
    bool same = a->kind == b->kind && a->layer == b->layer && a->source == b->source && a->index == b->index &&
                a->first_row == b->first_row && a->rows == b->rows && a->beside == b->beside && a->alone == b->alone &&
                a->reads == b->reads && a->writes == b->writes && a->matrices == b->matrices &&
                strcmp(a->part, b->part) == 0 && fabs(a->bytes - b->bytes) <= 1e-12 * a->bytes &&
                fabs(a->operations - b->operations) <= 1e-12 * a->operations;
    for (int i = 0; same && i < a->matrices; i++) same = a->matrix[i] == b->matrix[i];
    return same;
}

/* The verifier's list, fused, is the list of the step. */
static void check_program(form *f, const char *what, const step_shape *s, int n) {
    int fused = fused_steps_make(s, f->program, f->launches, f->fused);
    for (int i = 0; i < n && i < fused; i++) {
        const step_op *a = &f->ops[i], *b = &f->fused[i];
        if (!same_step(a, b))
            fail_msg(
                "%s, %s, part %d of %d: operation %d is kind %d of layer %d (index %d, source %d, %s), the program "
                "gives kind %d of layer %d (index %d, source %d, %s)",
                f->model, what, s->shard.index, s->shard.count, i, (int)a->kind, a->layer, a->index, a->source, a->part,
                (int)b->kind, b->layer, b->index, b->source, b->part);
    }
    assert_int_equal(fused, n);
}

/* Alone, and as the first and the second of two devices, which meet in the same places. */
static void check(form *f, const char *what, const step_shape *shape) {
    static const model_shard shards[] = {{0, 1}, {0, 2}, {1, 2}};
    meeting found[3][2 * MODEL_MAX_LAYERS + 2];
    int meetings[3];
    for (int k = 0; k < 3; k++) {
        step_shape s = *shape;
        s.shard = shards[k];
        int n = step_build(&s, f->ops);
        assert_in_range(n, 1, step_most_ops(s.config));
        check_reads(f, what, n);
        check_cache(f, what, n);
        check_streams(f, what, n);
        check_rows(f, what, n, s.rows);
        check_weights(f, what, n, !s.prompt);
        check_program(f, what, &s, n);
        meetings[k] = check_meetings(f, what, n, s.shard.count, found[k]);
    }
    assert_int_equal(meetings[0], 0);
    assert_int_equal(meetings[1], meetings[2]);
    assert_memory_equal(found[1], found[2], (size_t)meetings[1] * sizeof found[1][0]);
}

/* ------------------------------------------------------------------------------------------------- all shapes */

static step_shape decode_shape(const form *f) {
    const model_config *c = &f->verifier->config;
    step_shape s = {.config = c,
                    .weights = &f->weights,
                    .rows = 1,
                    .position = 5000,
                    .exact_positions = 68,
                    .restored_positions = 960,
                    .rank_k = f->f_theta->config.rank_k,
                    .rank_v = f->f_theta->config.rank_v};
    for (int i = 0; i < c->layers; i++) s.ring[i] = c->layer[i].type == LAYER_SLIDING;
    return s;
}

/* 0: nothing restored; then sliding layers by either form of product, all layers, products of both forms, and sliding
 * layers as latents, which prompts decode, without and with keys that are decoded ahead. */
static void restore_as(step_shape *s, int how) {
    for (int i = 0; i < s->config->layers; i++) {
        bool own = s->config->layer[i].kv_source == i, sliding = s->config->layer[i].type == LAYER_SLIDING;
        s->bounded[i] = how > 0 && (sliding || how == 3);
        s->restore[i] = RESTORE_NONE;
        if (!own || !s->bounded[i]) continue;
        s->restore[i] = how == 1   ? RESTORE_PRODUCT
                        : how == 2 ? RESTORE_PRODUCTS
                        : how == 3 ? RESTORE_ROWS
                        : how == 5 ? (s->prompt ? RESTORE_PRODUCT : RESTORE_LATENTS)
                        : how == 6 ? (s->prompt ? RESTORE_PRODUCT : RESTORE_KEYS)
                        : i % 2    ? RESTORE_PRODUCT
                                   : RESTORE_PRODUCTS;
    }
}
enum { RESTORED_FORMS = 7 };

/* The drafter's target layers, the last of them twice: sessions without a drafter's context keep it elsewhere. */
static void tap_layers(step_shape *s, form *f) {
    const block_drafter_config *d = &f->drafter->config;
    for (int t = 0; t < d->targets; t++) f->tap[t] = (step_tap){d->target_layer[t], {t, -1}};
    f->tap[d->targets - 1].slot[1] = 0;
    s->tap = f->tap;
    s->taps = d->targets;
}

static void decode_steps(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        form f;
        form_open(&f, models[m]);
        for (int k = 0; k < RESTORED_FORMS * 3 * 2 * 2; k++) {
            step_shape s = decode_shape(&f);
            restore_as(&s, k % RESTORED_FORMS);
            s.head = (step_head)(k / RESTORED_FORMS % 3);
            s.hidden_states = k / RESTORED_FORMS / 3 % 2;
            if (k / RESTORED_FORMS / 6) tap_layers(&s, &f);
            s.rows = 1 + k % BACKEND_MAX_DECODE_ROWS;
            char what[64];
            snprintf(what, sizeof what, "decode step, shape %d", k);
            check(&f, what, &s);
        }
        form_close(&f);
    }
}

static void prompt_steps(void **state) {
    (void)state;
    enum { ROWS = 512, AT = 5000 };
    static const int plain_from[] = {0, AT, AT + 1, AT + 200, AT + ROWS, INT_MAX};
    for (int m = 0; m < MODELS; m++) {
        form f;
        form_open(&f, models[m]);
        for (int k = 0; k < RESTORED_FORMS * 6 * 2 * 2; k++) {
            step_shape s = decode_shape(&f);
            s.prompt = true;
            s.rows = ROWS;
            restore_as(&s, k % RESTORED_FORMS);
            for (int i = 0; i < s.config->layers; i++)
                s.plain_from[i] = s.bounded[s.config->layer[i].kv_source] ? plain_from[k / RESTORED_FORMS % 6] : 0;
            s.hidden_states = k / RESTORED_FORMS / 6 % 2;
            if (k / RESTORED_FORMS / 12) tap_layers(&s, &f);
            s.last_rows = k % 2;
            char what[64];
            snprintf(what, sizeof what, "prompt, shape %d", k);
            check(&f, what, &s);
            step_op ops[4];
            s.last_rows = false;
            assert_int_equal(step_build_head(&s, ops), 2);
            s.shard = (model_shard){0, 2}; /* they meet before and behind the product */
            assert_int_equal(step_build_head(&s, ops), 4);
            s.shard.index = 1;
            assert_int_equal(step_build_head(&s, ops), 3);
        }
        form_close(&f);
    }
}

/* The head of last rows reads what prompts have kept, and is followed by what follows the head of decode rows. */
static void last_rows_of_prompts(void **state) {
    (void)state;
    form f;
    form_open(&f, models[0]);
    step_shape s = decode_shape(&f);
    step_op ops[4];
    s.last_rows = true;
    for (int head = STEP_HEAD_LOGITS; head <= STEP_HEAD_GREEDY; head++) {
        s.head = (step_head)head;
        int n = step_build_head(&s, ops);
        assert_int_equal(n, head == STEP_HEAD_GREEDY ? 1 : head == STEP_HEAD_LEADERS ? 3 : 2);
        assert_true(ops[0].reads == STEP_ITEM(ITEM_LAST));
        assert_true(ops[n - 1].writes & STEP_ITEM(head == STEP_HEAD_LEADERS ? ITEM_LEADERS : ITEM_CHOICE));
    }
    form_close(&f);
}

/* Which rows take which kernel depends on their positions: a prompt in one piece and in chunks is cut at the same one.
 */
static void prompt_rows_are_cut_by_position(void **state) {
    (void)state;
    enum { ROWS = 400, AT = 1000, FIRST_PLAIN = 1171 };
    form f;
    form_open(&f, models[0]);
    static const int chunks[] = {ROWS, 1, 33, 171, 172, 300};
    for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
        for (int at = 0; at < ROWS; at += chunks[k]) {
            step_shape s = decode_shape(&f);
            s.prompt = true;
            s.position = AT + at;
            s.rows = ROWS - at < chunks[k] ? ROWS - at : chunks[k];
            restore_as(&s, 1);
            for (int i = 0; i < s.config->layers; i++) s.plain_from[i] = s.bounded[i] ? FIRST_PLAIN : 0;
            int n = step_build(&s, f.ops);
            for (int i = 0; i < n; i++) {
                const step_op *op = &f.ops[i];
                if (!(op->layer >= 0 && s.bounded[op->layer])) continue;
                int first = s.position + op->first_row, end = first + op->rows;
                if (op->kind == STEP_ATTEND) assert_true(end <= FIRST_PLAIN);
                if (op->kind == STEP_PROMPT_ATTEND) assert_true(first >= FIRST_PLAIN);
                if (op->kind == STEP_RESTORE) assert_true(s.position < FIRST_PLAIN);
            }
        }
    }
    form_close(&f);
}

/* Rows that attend latents decode nothing, or keys of the next layer, and wait for nobody beside them. The first of
 * their kernels begins when the latents have been gathered, as no kernel lies between that could be relied on. */
static void check_latents(restore_form how) {
    form f;
    form_open(&f, models[0]);
    step_shape s = decode_shape(&f);
    restore_as(&s, how == RESTORE_KEYS ? 6 : 5);
    int n = step_build(&s, f.ops), gathered = 0, attended = 0, layers = 0, decoded = 0;
    for (int i = 0; i < s.config->layers; i++) layers += s.restore[s.config->layer[i].kv_source] == how;
    for (int i = 0; i < n; i++) {
        const step_op *op = &f.ops[i];
        assert_false(op->beside);
        assert_true(op->kind <= STEP_RESTORE || op->kind > STEP_RESTORE_ROWS);
        gathered += op->kind == STEP_RESTORE_GATHER;
        if (op->kind != STEP_RESTORE && op->kind != STEP_ATTEND_LATENTS) continue;
        assert_int_equal(gathered, 1);
        if (op->kind == STEP_RESTORE) {
            assert_int_equal(how, RESTORE_KEYS);
            assert_int_equal(op->alone, decoded == 0);
            assert_int_equal(decoded++, attended); /* one layer ahead at most */
            continue;
        }
        if (how == RESTORE_LATENTS) assert_int_equal(op->alone, attended == 0);
        attended++;
        if (how == RESTORE_KEYS) assert_int_equal(decoded, attended);
    }
    assert_true(layers > 0);
    assert_int_equal(attended, layers);
    form_close(&f);
}

static void latents_are_attended(void **state) {
    (void)state;
    check_latents(RESTORE_LATENTS);
    check_latents(RESTORE_KEYS);
}

/* What the profiler calls a step's bytes is what the formula of the model says. */
static void decode_bytes(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        form f;
        form_open(&f, models[m]);
        step_shape s = decode_shape(&f);
        int n = step_build(&s, f.ops);
        double bytes = 0, expected = (double)gemma4_bytes_per_token(s.config, WEIGHT_BF16);
        for (int i = 0; i < n; i++) {
            if (f.ops[i].kind != STEP_ATTEND) bytes += f.ops[i].bytes;
        }
        if (fabs(bytes - expected) > 0.01 * expected)
            fail_msg("%s: a step reads %.0f bytes of weights, expected %.0f", f.model, bytes, expected);
        form_close(&f);
    }
}

/* Of a quantised model every product but the router's reads codes and scales, and the experts as many as are chosen. */
static void quantised_bytes(void **state) {
    (void)state;
    static const struct {
        const char *model;
        cuda_form body;
        double bytes; /* of a weight */
    } cases[] = {{"26b-a4b:q4_0", CUDA_FORM_Q4, 18.0 / 32}, {"26b-a4b:q8_0", CUDA_FORM_Q8, 34.0 / 32}};
    for (size_t m = 0; m < sizeof cases / sizeof cases[0]; m++) {
        form f;
        form_open(&f, cases[m].model);
        step_shape s = decode_shape(&f);
        int n = step_build(&s, f.ops), products = 0;
        for (int i = 0; i < n; i++) {
            const step_op *op = &f.ops[i];
            bool router = op->kind == STEP_AFTER_ATTENTION, head = op->kind == STEP_HEAD;
            double expected = 0;
            for (int k = 0; k < op->matrices; k++) {
                const cuda_matrix *w = op->matrix[k];
                bool experts = w == &s.weights->layer[op->layer < 0 ? 0 : op->layer].experts_gate_up ||
                               w == &s.weights->layer[op->layer < 0 ? 0 : op->layer].experts_down;
                assert_int_equal(w->form, router ? CUDA_FORM_BF16 : head ? CUDA_FORM_Q8 : cases[m].body);
                expected += (router ? 2
                             : head ? 34.0 / 32
                                    : cases[m].bytes) *
                            w->out * w->in * (experts ? (double)s.config->experts_per_token / s.config->experts : 1);
                products++;
            }
            if (op->matrices && fabs(op->bytes - expected) > 1e-6 * expected)
                fail_msg("%s: %s reads %.0f bytes, expected %.0f", cases[m].model, op->part, op->bytes, expected);
        }
        assert_true(products > 9 * s.config->layers);
        form_close(&f);
    }
}

/* The rule itself, on operations made by hand. */
static void dependencies(void **state) {
    (void)state;
    step_op writer = {.source = 3, .writes = STEP_ITEM(ITEM_KV)}, reader = {.source = 3, .reads = STEP_ITEM(ITEM_KV)};
    assert_true(step_depends(&reader, &writer));
    assert_true(step_depends(&writer, &reader));
    assert_true(step_depends(&writer, &writer));
    assert_false(step_depends(&reader, &reader));
    reader.source = 4; /* another layer's K/V */
    assert_false(step_depends(&reader, &writer));
    reader.reads |= STEP_ITEM(ITEM_Q);
    writer.writes |= STEP_ITEM(ITEM_Q);
    assert_true(step_depends(&reader, &writer));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dependencies),         cmocka_unit_test(decode_steps),
        cmocka_unit_test(prompt_steps),         cmocka_unit_test(latents_are_attended),
        cmocka_unit_test(last_rows_of_prompts), cmocka_unit_test(prompt_rows_are_cut_by_position),
        cmocka_unit_test(decode_bytes),         cmocka_unit_test(quantised_bytes),
    };
    return cmocka_run_group_tests_name("step", tests, NULL, NULL);
}
