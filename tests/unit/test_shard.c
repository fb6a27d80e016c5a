/* What several devices have of a model: together all of it, each element once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/device_list.h"
#include "kakeya.h"
#include "model/shard.h"

enum { LAYERS = 3, HEADS = 8, HEAD_DIM = 16, HIDDEN = 24, EXPERTS = 5, WIDTH = 64, INTERMEDIATE = 96, VOCAB = 1000 };

static model_config routed(void) {
    model_config c = {.layers = LAYERS,
                      .hidden = HIDDEN,
                      .heads = HEADS,
                      .vocab = VOCAB,
                      .moe = true,
                      .experts = EXPERTS,
                      .experts_per_token = 2,
                      .expert_intermediate = WIDTH};
    static const int kv_heads[LAYERS] = {4, 2, 1};
    for (int i = 0; i < LAYERS; i++)
        c.layer[i] = (layer_config){.head_dim = HEAD_DIM, .kv_heads = kv_heads[i], .intermediate = INTERMEDIATE};
    return c;
}

static void configurations(void **state) {
    (void)state;
    model_config whole = routed(), shard;
    kakeya_error error = {0};
    assert_int_equal(model_shard_config(&whole, (model_shard){0, 1}, &shard, &error), KAKEYA_OK);
    assert_memory_equal(&shard, &whole, sizeof shard);
    for (int i = 0; i < 4; i++) { /* four K/V heads are dealt, two are on two devices each, one is on all */
        assert_int_equal(model_shard_config(&whole, (model_shard){i, 4}, &shard, &error), KAKEYA_OK);
        assert_int_equal(shard.heads, 2);
        assert_int_equal(shard.expert_intermediate, 16);
        for (int l = 0; l < LAYERS; l++) {
            assert_int_equal(shard.layer[l].kv_heads, 1);
            assert_int_equal(shard.layer[l].intermediate, 24);
            /* the shard's first query head attends its first K/V head */
            int head = i * shard.heads, per_kv = HEADS / whole.layer[l].kv_heads;
            assert_int_equal(model_shard_first_kv_head((model_shard){i, 4}, whole.layer[l].kv_heads), head / per_kv);
        }
        assert_int_equal(shard.vocab, VOCAB);
        assert_int_equal(shard.experts, EXPERTS);
    }
}

static void expect_refusal(const model_config *whole, int count, const char *words) {
    model_config shard;
    kakeya_error error = {0};
    assert_int_equal(model_shard_config(whole, (model_shard){0, count}, &shard, &error), KAKEYA_UNSUPPORTED);
    if (!strstr(error.message, words)) fail_msg("'%s' is not in '%s'", words, error.message);
    assert_non_null(strstr(error.message, "--devices"));
}

static void what_cannot_be_dealt(void **state) {
    (void)state;
    model_config c = routed();
    expect_refusal(&c, 3, "8 query heads");
    c = routed();
    c.heads = 12;
    c.expert_intermediate = 16;
    expect_refusal(&c, 3, "16 columns of an expert");
    c.expert_intermediate = 24;
    expect_refusal(&c, 3, "4 K/V heads of layer 0");
    for (int i = 0; i < LAYERS; i++) {
        c.layer[i].kv_heads = 3;
        c.layer[i].intermediate = 16;
    }
    expect_refusal(&c, 3, "16 columns of the dense MLP of layer 0");
}

/* 24 columns are three eights: two devices have one and two of them, and never the half of one. */
static void widths_in_eights(void **state) {
    (void)state;
    model_config whole = routed(), shard;
    kakeya_error error = {0};
    static const int expected[2][2] = {{0, 8}, {8, 16}};
    whole.expert_intermediate = 24;
    weight gate_up = {.out = EXPERTS * 2 * 24, .in = HIDDEN}, down = {.out = EXPERTS * HIDDEN, .in = 24};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(model_shard_config(&whole, (model_shard){i, 2}, &shard, &error), KAKEYA_OK);
        assert_int_equal(shard.expert_intermediate, expected[i][1]);
        matrix_cut rows = model_cut_rows(&gate_up, (model_shard){i, 2}, 24),
                   columns = model_cut_columns(&down, (model_shard){i, 2});
        assert_int_equal(rows.first_row, expected[i][0]);
        assert_int_equal(rows.rows, expected[i][1]);
        assert_int_equal(columns.first_column, expected[i][0]);
        assert_int_equal(columns.columns, expected[i][1]);
    }
}

/* Every output row of the head is one device's. */
static void outputs(void **state) {
    (void)state;
    static const int rows[] = {1, 15, 16, 17, 640, 1000, 262144};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        for (int count = 1; count <= 8; count++) {
            assert_int_equal(model_shard_first_output((model_shard){0, count}, rows[k]), 0);
            for (int i = 0; i < count; i++) {
                int first = model_shard_first_output((model_shard){i, count}, rows[k]),
                    end = model_shard_first_output((model_shard){i + 1, count}, rows[k]);
                assert_true(first <= end && (first % 16 == 0 || first == rows[k]));
            }
            assert_int_equal(model_shard_first_output((model_shard){count, count}, rows[k]), rows[k]);
        }
    }
}

/* Counts how often the cuts of all devices take each element of a matrix. */
static void expect_times(const weight *w, matrix_cut (*cut)(const weight *, model_shard), int count, int times) {
    int *taken = calloc((size_t)w->out * (size_t)w->in, sizeof *taken);
    for (int d = 0; d < count; d++) {
        matrix_cut c = cut(w, (model_shard){d, count});
        int out = model_cut_out(w, &c);
        for (int row = 0; row < out; row++) {
            int at = row / c.rows * c.period + c.first_row + row % c.rows;
            assert_in_range(at, 0, w->out - 1);
            for (int column = 0; column < c.columns; column++) taken[at * w->in + c.first_column + column]++;
        }
    }
    for (int i = 0; i < w->out * w->in; i++) assert_int_equal(taken[i], times);
    free(taken);
}

static matrix_cut all_rows(const weight *w, model_shard shard) { return model_cut_rows(w, shard, w->out); }
static matrix_cut expert_rows(const weight *w, model_shard shard) { return model_cut_rows(w, shard, WIDTH); }
static matrix_cut two_kv_heads(const weight *w, model_shard shard) { return model_cut_kv(w, shard, 2); }
static matrix_cut nothing(const weight *w, model_shard shard) {
    (void)shard;
    return model_cut_nothing(w);
}

static void cuts(void **state) {
    (void)state;
    weight q = {.out = HEADS * HEAD_DIM, .in = HIDDEN}, gate_up = {.out = EXPERTS * 2 * WIDTH, .in = HIDDEN},
           down = {.out = EXPERTS * HIDDEN, .in = WIDTH}, kv = {.out = 2 * HEAD_DIM, .in = HIDDEN}, none = {0};
    for (int count = 1; count <= 8; count *= 2) {
        expect_times(&q, all_rows, count, 1);
        expect_times(&gate_up, expert_rows, count, 1);
        expect_times(&down, model_cut_columns, count, 1);
        expect_times(&kv, two_kv_heads, count, count <= 2 ? 1 : count / 2);
        expect_times(&q, nothing, count, count);
    }
    matrix_cut absent = model_cut_kv(&none, (model_shard){1, 2}, 2);
    assert_int_equal(model_cut_out(&none, &absent), 0);
    /* gate rows stay before up rows, expert by expert */
    matrix_cut c = expert_rows(&gate_up, (model_shard){1, 2});
    assert_int_equal(c.period, WIDTH);
    assert_int_equal(c.first_row, WIDTH / 2);
}

static void device_lists(void **state) {
    (void)state;
    int devices[DEVICE_LIST_MOST], n;
    kakeya_error error = {0};
    assert_int_equal(device_list_read(NULL, 8, devices, &n, &error), KAKEYA_OK);
    assert_int_equal(n, 0);
    assert_int_equal(device_list_read("", 8, devices, &n, &error), KAKEYA_OK);
    assert_int_equal(n, 0);
    assert_int_equal(device_list_read("0,1,12", 8, devices, &n, &error), KAKEYA_OK);
    assert_int_equal(n, 3);
    assert_int_equal(devices[2], 12);
    static const char *const bad[] = {
        ",", "0,", ",1", "0,,1", "a", "0;1", "-1", " 0", "0 ", "1000", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(device_list_read(bad[i], 8, devices, &n, &error), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, bad[i]));
    }
    assert_int_equal(device_list_read("0,1,2", 2, devices, &n, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "at most 2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations),
        cmocka_unit_test(what_cannot_be_dealt),
        cmocka_unit_test(widths_in_eights),
        cmocka_unit_test(outputs),
        cmocka_unit_test(cuts),
        cmocka_unit_test(device_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
