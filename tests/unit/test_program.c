/* Protects: the list of operations that a model is. Whatever an operation reads has been written, everything that is
 * made is needed, every weight is used once, row programs keep to the rules of their interpreters, and fusions match
 * what they are to match. Needs no machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/forward.h"
#include "backend/program/program.h"

static const char *const models[] = {"26b-a4b", "31b", "12b", "e2b", "e4b", "gemma3-270m", "gemma3-27b"};
enum { MODELS = sizeof models / sizeof models[0] };

typedef struct list {
    const char *model;
    model_config config;
    program_shape shape;
    program_op *ops;
    int n;
} list;

static void list_make(list *l, const char *model, uint64_t wants, model_shard shard) {
    kakeya_error error;
    memset(l, 0, sizeof *l);
    l->model = model;
    if (model_config_variant(model, &l->config, &error)) fail_msg("%s", error.message);
    l->shape = (program_shape){.wants = wants, .shard = shard};
    layer_add(&l->shape.aux, 0);
    layer_add(&l->shape.aux, 3);
    l->ops = calloc((size_t)program_most_ops(&l->config), sizeof *l->ops);
    assert_non_null(l->ops);
    l->n = program_verifier(&l->config, &l->shape, l->ops);
    assert_in_range(l->n, 1, program_most_ops(&l->config));
}

static void list_free(list *l) { free(l->ops); }

static bool has(const uint8_t *items, program_item item) {
    for (int i = 0; i < PROGRAM_INPUTS; i++) {
        if (items[i] == (uint8_t)item) return true;
    }
    return false;
}

/* --------------------------------------------------------------------------------------------- what must hold */

static void check_items(const list *l) {
    bool written[PROGRAM_ITEMS] = {[DATA_TOKENS] = true, [DATA_KV] = true}, needed[PROGRAM_ITEMS] = {false};
    static const program_item results[] = {DATA_LOGITS, DATA_CHOICE, DATA_KV, DATA_OUTSIDE};
    for (int i = 0; i < l->n; i++) {
        const program_op *o = &l->ops[i];
        for (int k = 0; k < PROGRAM_INPUTS && o->in[k]; k++) {
            if (!written[o->in[k]])
                fail_msg("%s: operation %d (%s) reads %s, which nobody wrote", l->model, i,
                         op_kind_name((op_kind)o->kind), program_item_name((program_item)o->in[k]));
        }
        for (int k = 0; k < PROGRAM_OUTPUTS; k++) written[o->out[k]] = true;
    }
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) needed[results[i]] = true;
    for (int i = l->n - 1; i >= 0; i--) {
        const program_op *o = &l->ops[i];
        bool wanted = false;
        for (int k = 0; k < PROGRAM_OUTPUTS && o->out[k]; k++) wanted |= needed[o->out[k]];
        if (!wanted) fail_msg("%s: nobody needs operation %d (%s)", l->model, i, op_kind_name((op_kind)o->kind));
        for (int k = 0; k < PROGRAM_OUTPUTS; k++) { /* what is written here is needed of nobody before */
            bool kept = o->out[k] == DATA_KV || o->out[k] == DATA_OUTSIDE || has(o->in, (program_item)o->out[k]);
            if (!kept) needed[o->out[k]] = false;
        }
        for (int k = 0; k < PROGRAM_INPUTS; k++) needed[o->in[k]] = true;
    }
}

/* Registers are read after they are written; what is stored stays as it was stored; one register at a time lies in no
 * item's memory; instructions and registers are as many as there may be. */
static void check_rows(const list *l) {
    for (int i = 0; i < l->n; i++) {
        const program_op *o = &l->ops[i];
        if (o->kind != OP_ROWS) continue;
        bool set[ROW_REGISTERS] = {false};
        program_item at[ROW_REGISTERS] = {DATA_NONE};
        bool stored[PROGRAM_ITEMS] = {false};
        assert_in_range(o->steps, 1, ROW_MAX_STEPS);
        for (int k = 0; k < o->steps; k++) {
            const row_step *s = &o->step[k];
            assert_true(s->into < ROW_REGISTERS && s->from < ROW_REGISTERS && s->verb < ROW_VERBS);
            bool makes = s->verb == ROW_LOAD || s->verb == ROW_LOOKUP || s->verb == ROW_MIX;
            if (!makes && (!set[s->from] || (s->verb != ROW_NORM && !set[s->into])))
                fail_msg("%s: operation %d, instruction %d reads an empty register", l->model, i, k);
            bool names = s->item && s->verb != ROW_MIX;
            if (s->verb == ROW_LOAD) {
                assert_true(has(o->in, (program_item)s->item));
            } else if (names) {
                assert_true(has(o->out, (program_item)s->item));
                stored[s->item] = true;
            } else if (stored[at[s->into]]) {
                fail_msg("%s: operation %d, instruction %d spoils what was stored", l->model, i, k);
            }
            if (names) at[s->into] = (program_item)s->item;
            set[s->into] = true;
            int nowhere = 0;
            for (int r = 0; r < ROW_REGISTERS; r++) nowhere += set[r] && at[r] == DATA_NONE;
            assert_in_range(nowhere, 0, 1);
        }
        for (int k = 0; k < PROGRAM_OUTPUTS && o->out[k]; k++) assert_true(stored[o->out[k]]);
    }
}

static int uses(const list *l, uint16_t slot) {
    int n = 0;
    for (int i = 0; i < l->n; i++) {
        const program_op *o = &l->ops[i];
        for (int k = 0; k < PROGRAM_MATRICES; k++) n += o->slot[k] == slot;
        for (int k = 0; k < 3; k++) n += o->head[k].item && o->head[k].slot == slot;
        for (int k = 0; k < o->steps; k++) n += o->step[k].slot == slot;
    }
    return n;
}

/* Weights of a synthetic model say which roles there are. */
static void check_slots(const list *l, const model_weights *w) {
    for (int role = 1; role < SLOT_ROLES; role++) {
        bool of_model = role < ROLE_INPUT_NORM;
        for (int layer = 0; layer < (of_model ? 1 : l->config.layers); layer++) {
            uint16_t slot = program_slot(layer, (slot_role)role);
            bool there = program_role_is_matrix((slot_role)role) ? program_matrix(w, slot)->out > 0
                                                                 : program_vector(w, slot) != NULL;
            int found = uses(l, slot), want = there;
            if (role == ROLE_HEAD) want = 2; /* logits, and choices */
            if (role == ROLE_K_NORM && l->config.layer[layer].k_eq_v) want = 1;
            if (role == ROLE_EXPERTS_GATE || role == ROLE_EXPERTS_UP) want = l->config.moe;
            if (found != want)
                fail_msg("%s: %s of layer %d is used %d times, expected %d", l->model,
                         program_role_name((slot_role)role), layer, found, want);
        }
    }
}

/* Each layer's K/V are stored once before somebody attends them, and once behind the last reader. */
static void check_stores(const list *l) {
    for (int layer = 0; layer < l->config.layers; layer++) {
        int before = -1, behind = -1, first = -1, last = -1;
        for (int i = 0; i < l->n; i++) {
            const program_op *o = &l->ops[i];
            if (o->kind == OP_STORE && o->source == layer) *(o->index == STORE_BEHIND_READERS ? &behind : &before) = i;
            if (o->kind != OP_ATTEND || o->source != layer) continue;
            if (first < 0) first = i;
            last = i;
        }
        if (l->config.layer[layer].kv_source != layer) {
            assert_int_equal(first, -1);
            continue;
        }
        assert_true(before >= 0 && before < first);
        assert_true(behind > (l->config.layer[layer].type == LAYER_SLIDING ? last : first));
    }
}

static void lists_hold(void **state) {
    (void)state;
    static const model_shard shards[] = {{0, 1}, {1, 2}};
    for (int m = 0; m < MODELS; m++) {
        for (uint64_t wants = 0; wants < PROGRAM_WANTS(TAP_REASONS); wants++) {
            for (int p = 0; p < 2; p++) {
                list l;
                list_make(&l, models[m], wants, shards[p]);
                check_items(&l);
                check_rows(&l);
                check_stores(&l);
                int agreed = 0, taps[TAP_REASONS] = {0};
                for (int i = 0; i < l.n; i++) {
                    agreed += l.ops[i].kind == OP_AGREE;
                    if (l.ops[i].kind == OP_TAP) taps[l.ops[i].index]++;
                }
                assert_int_equal(agreed, p ? 2 * l.config.layers : 0);
                for (int reason = 0; reason < TAP_REASONS; reason++)
                    assert_int_equal(taps[reason] > 0, (wants & PROGRAM_WANTS(reason)) != 0);
                if (wants & PROGRAM_WANTS(TAP_STATES)) assert_int_equal(taps[TAP_STATES], l.config.layers + 1);
                list_free(&l);
            }
        }
    }
}

static void every_weight_is_used(void **state) {
    (void)state;
    static const char *const outlines[] = {"26b-a4b:layers=12", "31b:layers=6",       "12b:layers=6", "e2b", "e4b",
                                           "gemma3-270m",       "gemma3-27b:layers=6"};
    for (int m = 0; m < MODELS; m++) {
        mem_account account;
        mem_account_init(&account, NULL, 0);
        language_model *model;
        kakeya_error error;
        if (language_model_outline(outlines[m], &account, &model, &error)) fail_msg("%s", error.message);
        list l;
        list_make(&l, outlines[m], 0, (model_shard){0, 1});
        check_slots(&l, &model->weights);
        list_free(&l);
        language_model_close(model);
    }
}

/* The same shape gives the same bytes: a list is a key, too. */
static void lists_are_functions_of_their_shape(void **state) {
    (void)state;
    list a, b;
    list_make(&a, "e2b", PROGRAM_WANTS(TAP_STATES), (model_shard){0, 1});
    list_make(&b, "e2b", PROGRAM_WANTS(TAP_STATES), (model_shard){0, 1});
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.ops, b.ops, (size_t)a.n * sizeof *a.ops);
    list_free(&a);
    list_free(&b);
}

/* Every operation is in one launch, in order; the CPU computes dense products and experts side by side. */
static void launches_cover_the_list(void **state) {
    (void)state;
    const program_machine *machine = cpu_machine(false);
    for (int m = 0; m < MODELS; m++) {
        list l;
        list_make(&l, models[m], 0, (model_shard){0, 1});
        program_launch *launches = calloc((size_t)l.n, sizeof *launches);
        int n = program_launches(machine, l.ops, l.n, launches), next = 0, fused = 0;
        for (int i = 0; i < n; i++) {
            assert_int_equal(launches[i].first, next);
            next += launches[i].n;
            fused += launches[i].fusion >= 0;
            if (launches[i].fusion < 0) assert_non_null(machine->kernel[l.ops[launches[i].first].kind]);
        }
        assert_int_equal(next, l.n);
        assert_int_equal(fused, l.config.moe ? 2 * l.config.layers : 0);
        free(launches);
        list_free(&l);
    }
    /* verbs are compared, slots and items are not; what is cut off by the end of the list does not match */
    program_op ops[2] = {{.kind = OP_ROWS, .steps = 2, .step = {{.verb = ROW_LOAD}, {.verb = ROW_NORM, .slot = 7}}},
                         {.kind = OP_PRODUCTS}};
    const program_fusion patterns[] = {{"three", 3, {{OP_ROWS, 0, NULL}, {OP_PRODUCTS, 0, NULL}, {OP_ROWS, 0, NULL}}},
                                       {"other verbs", 2, {{OP_ROWS, 0, "ae"}, {OP_PRODUCTS, 0, NULL}}},
                                       {"longer", 1, {{OP_ROWS, 0, "adf"}}},
                                       {"norm", 2, {{OP_ROWS, 0, "ad"}, {OP_PRODUCTS, 0, NULL}}}};
    const program_machine one = {.fusion = patterns, .fusions = 4};
    program_launch launches[2];
    assert_int_equal(program_launches(&one, ops, 2, launches), 1);
    assert_int_equal(launches[0].fusion, 3);
    ops[1].epilogue = EPILOGUE_GATED;
    assert_int_equal(program_launches(&one, ops, 2, launches), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_hold),
        cmocka_unit_test(every_weight_is_used),
        cmocka_unit_test(lists_are_functions_of_their_shape),
        cmocka_unit_test(launches_cover_the_list),
    };
    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}
