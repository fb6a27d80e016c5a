/* What every kernel table must keep: results within rounding of a double-precision reference, the same bits for a row
 * and an output whatever else a call computes, and no access outside the operands. */
#include "kernel_operands.h"
#include "sweep.h"

#include <sys/mman.h>
#include <unistd.h>

static const int odd_sizes[] = {1, 7, 31, 33, 100, 704, 2816};

/* --- dispatch --------------------------------------------------------------------------------------------------- */

static void finds_tables_by_name(void **state) {
    (void)state;
    const char *const *names = cpu_kernels_supported();
    assert_non_null(names[0]);
    assert_string_equal(cpu_kernels_find(NULL)->name, names[0]);
    const char *last = NULL;
    for (; *names; names++) {
        assert_string_equal(cpu_kernels_find(*names)->name, *names);
        last = *names;
    }
    assert_string_equal(last, "scalar");
    assert_null(cpu_kernels_find("no such table"));
    assert_null(cpu_kernels_find(""));
}

/* --- matrix product --------------------------------------------------------------------------------------------- */

static void matmul_agrees_with_double(void **state) {
    (void)state;
    static const int row_counts[] = {1, 2, 3, 4, 6, 8, 11, 17};
    const int max_rows = 17, outputs = 19;
    FOR_FLOAT_TABLES(kernels)
    for (weight_format type = 0; weight_format_is_plain(type); type++)
        for (size_t ki = 0; ki < COUNT(odd_sizes); ki++) {
            int k = odd_sizes[ki];
            size_t ldx = (size_t)k + 5, ldy = (size_t)outputs + 2;
            void *allocation;
            void *w = random_weights(type, (size_t)k * (size_t)outputs, 7 + (uint64_t)k, &allocation);
            float *x = random_floats(ldx * (size_t)max_rows, 11 + (uint64_t)k, 1.0f);
            float *y = malloc(ldy * (size_t)max_rows * sizeof *y);
            for (int rounded = 0; rounded < 2; rounded++)
                for (size_t ri = 0; ri < COUNT(row_counts); ri++) {
                    int rows = row_counts[ri], o_begin = 2;
                    void *packed = packed_operand(kernels, type, rounded, x, ldx, rows, k);
                    for (size_t i = 0; i < ldy * (size_t)max_rows; i++) y[i] = -77.0f;
                    multiply(kernels, type, rounded, packed, rows, k, w, o_begin, outputs, y, ldy);
                    for (int r = 0; r < max_rows; r++)
                        for (size_t c = 0; c < ldy; c++) {
                            char what[128];
                            snprintf(what, sizeof what, "matmul %s rounded %d rows %d k %d, row %d column",
                                     weight_format_name(type), rounded, rows, k, r);
                            float got = y[(size_t)r * ldy + c];
                            if (r >= rows || (int)c >= outputs - o_begin) {
                                check_same_bits(what, kernels->name, (long)c, got, -77.0f);
                                continue;
                            }
                            double sum = 0, magnitude = 0;
                            for (int i = 0; i < k; i++) {
                                float value = x[(size_t)r * ldx + (size_t)i];
                                if (rounded) value = bf16_to_f32(f32_to_bf16(value));
                                double term = (double)value *
                                              (double)element(type, w, (c + (size_t)o_begin) * (size_t)k + (size_t)i);
                                sum += term;
                                magnitude += fabs(term);
                            }
                            /* Two roundings per value in the longest chain (at least eight chains), and those of the
                             * final tree. */
                            check_near(what, kernels->name, (long)c, (double)got, sum,
                                       0x1p-24 * (k / 4 + 8) * magnitude);
                        }
                    free(packed);
                }
            free(y);
            free(x);
            free(allocation);
        }
}

/* One row, one output at a time is what every other call must reproduce. */
static float *matmul_one_by_one(const cpu_kernels *kernels, weight_format type, bool rounded, const void *packed,
                                int rows, int k, const void *w, int outputs) {
    float *y = malloc((size_t)rows * (size_t)outputs * sizeof *y);
    size_t row_bytes = packed_bytes_of(kernels, type, rounded, k);
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            multiply(kernels, type, rounded, (const char *)packed + (size_t)r * row_bytes, 1, k, w, o, o + 1,
                     &y[(size_t)r * (size_t)outputs + (size_t)o], 1);
        }
    return y;
}

static void matmul_bits_do_not_depend_on_the_call(void **state) {
    (void)state;
    static const int sizes[] = {33, 704, 2816};
    const int max_rows = 64, outputs = 29;
    FOR_FLOAT_TABLES(kernels)
    for (weight_format type = 0; weight_format_is_plain(type); type++)
        for (int rounded = 0; rounded < 2; rounded++)
            for (size_t ki = 0; ki < (sweep_emulated() ? 1 : COUNT(sizes)); ki++) {
                int k = sizes[ki];
                void *allocation;
                void *w = random_weights(type, (size_t)k * (size_t)outputs, 3, &allocation);
                float *x = random_floats((size_t)k * (size_t)max_rows, 5, 1.0f);
                void *packed = packed_operand(kernels, type, rounded, x, (size_t)k, max_rows, k);
                float *want = matmul_one_by_one(kernels, type, rounded, packed, max_rows, k, w, outputs);
                float *y = malloc((size_t)max_rows * (size_t)outputs * sizeof *y);
                for (int rows = 1; rows <= max_rows; rows += rows >= 26 ? 19 : sweep_short() ? 5 : 1) {
                    /* All outputs at once, then pieces of every width. */
                    for (int piece = outputs; piece > 0; piece = piece > 12 ? piece - 8 : piece - 1) {
                        for (int o = 0; o < outputs; o += piece) {
                            int end = o + piece < outputs ? o + piece : outputs;
                            multiply(kernels, type, rounded, packed, rows, k, w, o, end, y + o, (size_t)outputs);
                        }
                        for (int i = 0; i < rows * outputs; i++) {
                            char what[128];
                            if (memcmp(&y[i], &want[i], sizeof *y) == 0) continue;
                            snprintf(what, sizeof what, "matmul %s rounded %d rows %d k %d piece %d",
                                     weight_format_name(type), rounded, rows, k, piece);
                            check_same_bits(what, kernels->name, i, y[i], want[i]);
                        }
                    }
                }
                free(y);
                free(want);
                free(packed);
                free(x);
                free(allocation);
            }
}

/* More rows, outputs and values of k than any block holds. */
static void matmul_bits_do_not_depend_on_blocks(void **state) {
    (void)state;
    const int rows = 131, outputs = 139, k = 1700;
    FOR_FLOAT_TABLES(kernels)
    for (weight_format type = 0; weight_format_is_plain(type); type++)
        for (int rounded = 0; rounded < 2; rounded++) {
            if (sweep_emulated() && strcmp(kernels->name, "scalar") == 0) continue; /* no blocks there */
            void *allocation;
            void *w = random_weights(type, (size_t)k * (size_t)outputs, 8, &allocation);
            float *x = random_floats((size_t)k * (size_t)rows, 9, 1.0f);
            void *packed = packed_operand(kernels, type, rounded, x, (size_t)k, rows, k);
            float *want = matmul_one_by_one(kernels, type, rounded, packed, rows, k, w, outputs);
            float *y = malloc((size_t)rows * (size_t)outputs * sizeof *y);
            multiply(kernels, type, rounded, packed, rows, k, w, 0, outputs, y, (size_t)outputs);
            for (int i = 0; i < rows * outputs; i++)
                check_same_bits("matmul of many blocks", kernels->name, i, y[i], want[i]);
            free(y);
            free(want);
            free(packed);
            free(x);
            free(allocation);
        }
}

static void packed_rows_are_independent(void **state) {
    (void)state;
    FOR_TABLES(kernels)
    for (int packing = 0; packing < PACKING_COUNT; packing++)
        for (size_t ki = 0; ki < COUNT(odd_sizes); ki++) {
            const cpu_packing_kernels *p = &kernels->packing[packing];
            int k = odd_sizes[ki];
            const int rows = 5;
            if (!p->pack) continue;
            float *x = random_floats((size_t)k * (size_t)rows, 17, 1.0f);
            size_t row_bytes = p->row_bytes(k);
            void *together = aligned(row_bytes * (size_t)rows), *alone = aligned(row_bytes);
            memset(together, 0xa5, row_bytes * (size_t)rows);
            p->pack(x, (size_t)k, rows, k, together);
            for (int r = 0; r < rows; r++) {
                memset(alone, 0x5a, row_bytes);
                p->pack(x + (size_t)r * (size_t)k, 1, 1, k, alone);
                if (memcmp(alone, (char *)together + (size_t)r * row_bytes, row_bytes) != 0)
                    fail_msg("packing %d, k %d, table %s: row %d differs from the row alone", packing, k, kernels->name,
                             r);
            }
            free(alone);
            free(together);
            free(x);
        }
}

/* A row of the weight table is complete in every instruction set, and what it loads is what it multiplies. */
static void every_format_has_its_kernels(void **state) {
    (void)state;
    FOR_FLOAT_TABLES(kernels)
    for (weight_format format = 0; format < WEIGHT_FORMAT_COUNT; format++) {
        const cpu_weight_kernels *w = &kernels->weight[format];
        if (!w->load) fail_msg("%s, table %s: no loader", weight_format_name(format), kernels->name);
        for (int input = 0; input < INPUT_COUNT; input++) {
            if (!w->product[input].multiply || !kernels->packing[w->product[input].packing].pack)
                fail_msg("%s, input %d, table %s: no product", weight_format_name(format), input, kernels->name);
        }
        if (!weight_format_is_plain(format)) continue; /* test_blocks */
        for (size_t ki = 0; ki < COUNT(odd_sizes); ki++) {
            enum { OUTPUTS = 3 };
            int k = odd_sizes[ki];
            void *allocation, *values = random_weights(format, (size_t)k * OUTPUTS, 71, &allocation);
            weight matrix = weight_matrix(format, values, OUTPUTS, k), last = weight_rows(&matrix, 1, OUTPUTS - 1);
            float *row = malloc((size_t)k * sizeof *row), *one = calloc((size_t)k, sizeof *one), y[OUTPUTS - 1];
            w->load(&last, 1, 0, k, row);
            for (int i = 0; i < k; i += k < 100 ? 1 : 37) { /* the product with a unit vector is the weight */
                one[i] = 1;
                void *packed = packed_operand(kernels, format, 0, one, (size_t)k, 1, k);
                w->product[INPUT_EXACT].multiply(packed, 1, &last, y, OUTPUTS - 1);
                check_same_bits("loaded weight", kernels->name, i, row[i], y[1]);
                free(packed);
                one[i] = 0;
                float part[2] = {-1, -1};
                w->load(&last, 1, i, 1, part);
                check_same_bits("weight loaded alone", kernels->name, i, part[0], row[i]);
                check_same_bits("what lies behind it", kernels->name, i, part[1], -1);
            }
            free(row);
            free(one);
            free(allocation);
        }
    }
    for (kv_format format = 0; format < KV_FORMAT_COUNT; format++) FOR_FLOAT_TABLES(kernels) {
            const cpu_kv_kernels *kv = &kernels->kv[format];
            if (!kv->store || !kv->load || !kv->derive_key || !kernels->packing[kv->queries].pack)
                fail_msg("K/V %s, table %s: not complete", kv_format_name(format), kernels->name);
        }
}

/* Memory whose last byte lies before a page that must not be touched. */
typedef struct guarded {
    char *map, *end;
    size_t bytes;
} guarded;

static guarded guarded_open(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guarded memory = {.bytes = (bytes + page - 1) / page * page + page};
    memory.map = mmap(NULL, memory.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory.map != MAP_FAILED);
    memory.end = memory.map + memory.bytes - page;
    assert_int_equal(mprotect(memory.end, page, PROT_NONE), 0);
    return memory;
}

static void no_access_behind_the_operands(void **state) {
    (void)state;
    static const int row_counts[] = {1, 2, 5, 8, 12, 13};
    const int outputs = 11, max_rows = 13;
    FOR_FLOAT_TABLES(kernels)
    for (weight_format type = 0; weight_format_is_plain(type); type++)
        for (size_t ki = 0; ki < COUNT(odd_sizes); ki++) {
            int k = odd_sizes[ki];
            size_t w_bytes = (size_t)k * (size_t)outputs * value_bytes(type);
            size_t x_bytes = (size_t)k * (size_t)max_rows * sizeof(float),
                   y_bytes = (size_t)outputs * (size_t)max_rows * sizeof(float);
            guarded w_memory = guarded_open(w_bytes), x_memory = guarded_open(x_bytes),
                    y_memory = guarded_open(y_bytes);
            void *w = w_memory.end - w_bytes;
            float *x = (float *)(void *)(x_memory.end - x_bytes);
            memset(w, 0, w_bytes);
            for (int rounded = 0; rounded < 2; rounded++)
                for (size_t ri = 0; ri < COUNT(row_counts); ri++) {
                    int rows = row_counts[ri];
                    size_t packed_bytes = packed_bytes_of(kernels, type, rounded, k) * (size_t)rows;
                    guarded packed_memory = guarded_open(packed_bytes);
                    void *packed = packed_memory.end - packed_bytes;
                    kernels->packing[kernels->weight[type].product[rounded ? INPUT_BF16 : INPUT_EXACT].packing].pack(
                        x + (size_t)k * (size_t)(max_rows - rows), (size_t)k, rows, k, packed);
                    float *y = (float *)(void *)(y_memory.end - (size_t)rows * (size_t)outputs * sizeof *y);
                    multiply(kernels, type, rounded, packed, rows, k, w, 0, outputs, y, (size_t)outputs);
                    munmap(packed_memory.map, packed_memory.bytes);
                }
            /* Elementwise functions on vectors that end at the page. */
            float *vector = (float *)(void *)(x_memory.end - (size_t)k * sizeof(float));
            float *other = x;
            memset(x, 0, x_bytes);
            weight last = weight_matrix(type, w_memory.end - (size_t)k * value_bytes(type), 1, k);
            kernels->weight[type].load(&last, 0, 0, k, vector);
            kernels->rms_norm(vector, vector, k, 1e-6f, vector);
            kernels->gated(0, vector, vector, k, vector);
            kernels->gated(1, vector, vector, k, vector);
            kernels->axpy(2.0f, vector, k, other);
            kernels->scale(2.0f, k, vector);
            kernels->soft_cap(30.0f, k, vector);
            if (k % 2 == 0) kernels->rope(vector, k / 2, k / 2, vector + k / 2, vector + k / 2);
            munmap(w_memory.map, w_memory.bytes);
            munmap(x_memory.map, x_memory.bytes);
            munmap(y_memory.map, y_memory.bytes);
        }
}

/* A block of stored keys and values that ends at a page nobody may touch, of sizes with every rest. */
static void no_access_behind_stored_rows(void **state) {
    (void)state;
    FOR_FLOAT_TABLES(kernels)
    for (kv_format format = 0; format < KV_FORMAT_COUNT; format++)
        for (size_t ki = 0; ki < COUNT(odd_sizes); ki++) {
            int n = odd_sizes[ki], lo[2] = {0, 3}, hi[2] = {ATTENTION_BLOCK, ATTENTION_BLOCK};
            size_t row = kv_format_row_bytes(format, 1, (size_t)n), bytes = row * ATTENTION_BLOCK;
            guarded memory = guarded_open(bytes), loaded = guarded_open((size_t)n * sizeof(float));
            char *rows = memory.end - bytes;
            float *values = (float *)(void *)(loaded.end - (size_t)n * sizeof(float)), m[2] = {-INFINITY, -INFINITY};
            float *q = random_floats(2 * (size_t)n, 71, 1.0f), *o = calloc(2 * (size_t)n, sizeof *o), l[2] = {0, 0};
            for (int j = 0; j < ATTENTION_BLOCK; j++) kernels->kv[format].store(q, n, rows + (size_t)j * row);
            kernels->kv[format].load(rows + (ATTENTION_BLOCK - 1) * row, n, values);
            void *packed = packed_queries(kernels, format, q, (size_t)n, 2, n);
            if (!kernels->kv[format].loaded) {
                kernels->attend_block(2, lo, hi, packed, n, format, rows, row, n, format, rows, row, NULL, m, l, o,
                                      (size_t)n);
                assert_true(l[0] > 15.9f && l[1] > 12.9f); /* all keys are equal */
            }
            munmap(memory.map, memory.bytes), munmap(loaded.map, loaded.bytes);
            free(packed), free(q), free(o);
        }
}

/* --- attention -------------------------------------------------------------------------------------------------- */

typedef struct attention_case {
    int rows, k_dim, v_dim;
    kv_format k_type, v_type;
    bool scaled;
} attention_case;

typedef struct attention_state {
    float *m, *l, *o;
} attention_state;

static attention_state attention_state_new(int rows, size_t ldo) {
    attention_state s = {malloc((size_t)rows * sizeof *s.m), calloc((size_t)rows, sizeof *s.l),
                         calloc((size_t)rows * ldo, sizeof *s.o)};
    for (int r = 0; r < rows; r++) s.m[r] = -INFINITY;
    return s;
}

static void attention_state_free(attention_state *s) {
    free(s->m);
    free(s->l);
    free(s->o);
}

enum { TEST_BLOCKS = 3, TEST_KEYS = TEST_BLOCKS * ATTENTION_BLOCK };

/* The range of keys that row r sees in block b, in the middle of the first and last block it touches. */
static void ranges_of_block(int rows, int block, int *lo, int *hi) {
    for (int r = 0; r < rows; r++) {
        int begin = (r * 5) % 23, end = begin + 1 + (r * 7) % 25;
        if (r % 6 == 5) end = begin; /* sees nothing at all */
        lo[r] = begin - block * ATTENTION_BLOCK;
        hi[r] = end - block * ATTENTION_BLOCK;
        if (lo[r] < 0) lo[r] = 0;
        if (hi[r] > ATTENTION_BLOCK) hi[r] = ATTENTION_BLOCK;
        if (hi[r] <= lo[r]) lo[r] = hi[r] = 0;
    }
}

/* Random vectors of n values in their stored form, row_bytes apart, at no aligned address; `meant` [rows][n] is what
 * they are. *allocation and *meant are to be freed. */
static char *stored_rows(const cpu_kernels *kernels, kv_format format, int rows, int n, size_t row_bytes, uint64_t seed,
                         float **meant, void **allocation) {
    *meant = random_floats((size_t)rows * (size_t)n, seed, 0.05f);
    *allocation = aligned(row_bytes * (size_t)rows + 2);
    memset(*allocation, 0, row_bytes * (size_t)rows + 2);
    char *stored = (char *)*allocation + 2;
    for (int r = 0; r < rows; r++) {
        float *values = *meant + (size_t)r * (size_t)n;
        kernels->kv[format].store(values, n, stored + (size_t)r * row_bytes);
        kernels->kv[format].load(stored + (size_t)r * row_bytes, n, values);
    }
    return stored;
}

static void run_attention(const cpu_kernels *kernels, const attention_case *c, const float *q, int first_row, int rows,
                          const void *k, size_t k_bytes, const void *v, size_t v_bytes, const float *v_scale,
                          attention_state *s, size_t ldo) {
    void *packed =
        packed_queries(kernels, c->k_type, q + (size_t)first_row * (size_t)c->k_dim, (size_t)c->k_dim, rows, c->k_dim);
    for (int b = 0; b < TEST_BLOCKS; b++) {
        int lo[64], hi[64];
        ranges_of_block(c->rows, b, lo, hi);
        size_t first_key = (size_t)b * ATTENTION_BLOCK;
        kernels->attend_block(rows, lo + first_row, hi + first_row, packed, c->k_dim, c->k_type,
                              (const char *)k + first_key * k_bytes, k_bytes, c->v_dim, c->v_type,
                              (const char *)v + first_key * v_bytes, v_bytes, v_scale ? v_scale + first_key : NULL,
                              s->m, s->l, s->o, ldo);
    }
    free(packed);
}

static void check_attention(const cpu_kernels *kernels, const attention_case *c) {
    size_t k_bytes = kv_format_row_bytes(c->k_type, 1, (size_t)c->k_dim + 2);
    size_t v_bytes = kv_format_row_bytes(c->v_type, 1, (size_t)c->v_dim + 6), ldo = (size_t)c->v_dim + 3;
    void *k_allocation, *v_allocation;
    float *keys, *values;
    char *k = stored_rows(kernels, c->k_type, TEST_KEYS, c->k_dim, k_bytes, 21, &keys, &k_allocation);
    char *v = stored_rows(kernels, c->v_type, TEST_KEYS, c->v_dim, v_bytes, 22, &values, &v_allocation);
    float *q = random_floats((size_t)c->rows * (size_t)c->k_dim, 23, 4.0f);
    float v_scale[TEST_KEYS];
    for (int j = 0; j < TEST_KEYS; j++) v_scale[j] = 0.5f + 0.1f * (float)(j % 11);
    const float *used_scale = c->scaled ? v_scale : NULL;
    attention_state s = attention_state_new(c->rows, ldo);
    run_attention(kernels, c, q, 0, c->rows, k, k_bytes, v, v_bytes, used_scale, &s, ldo);

    char what[128];
    snprintf(what, sizeof what, "attend_block rows %d k %d %s v %d %s scaled %d", c->rows, c->k_dim,
             kv_format_name(c->k_type), c->v_dim, kv_format_name(c->v_type), c->scaled);
    for (int r = 0; r < c->rows; r++) {
        int begin = (r * 5) % 23, end = r % 6 == 5 ? begin : begin + 1 + (r * 7) % 25;
        double scores[TEST_KEYS], top = -INFINITY, sum = 0, magnitude = 0;
        for (int j = begin; j < end; j++) {
            scores[j] = 0;
            double terms = 0;
            for (int i = 0; i < c->k_dim; i++) {
                double term = (double)q[(size_t)r * (size_t)c->k_dim + (size_t)i] *
                              (double)keys[(size_t)j * (size_t)c->k_dim + (size_t)i];
                scores[j] += term;
                terms += fabs(term);
            }
            if (scores[j] > top) top = scores[j];
            if (terms > magnitude) magnitude = terms;
        }
        /* An absolute error of a score becomes a relative error of its weight. */
        double relative = 2e-6 + 2 * 0x1p-24 * (c->k_dim / 4 + 8) * magnitude;
        for (int j = begin; j < end; j++) sum += exp(scores[j] - top);
        if (begin == end) {
            check_same_bits(what, kernels->name, r, s.m[r], -INFINITY);
            check_same_bits(what, kernels->name, r, s.l[r], 0.0f);
        } else {
            check_near(what, kernels->name, r, (double)s.m[r], top, relative);
            check_near(what, kernels->name, r, (double)s.l[r], sum, relative * sum);
        }
        for (int i = 0; i < c->v_dim; i++) {
            double value = 0, terms = 0;
            for (int j = begin; j < end; j++) {
                double term = exp(scores[j] - top) * (c->scaled ? (double)v_scale[j] : 1.0) *
                              (double)values[(size_t)j * (size_t)c->v_dim + (size_t)i];
                value += term;
                terms += fabs(term);
            }
            check_near(what, kernels->name, (long)r * c->v_dim + i, (double)s.o[(size_t)r * ldo + (size_t)i], value,
                       relative * terms);
        }
        for (size_t i = (size_t)c->v_dim; i < ldo; i++)
            check_same_bits(what, kernels->name, (long)i, s.o[(size_t)r * ldo + i], 0.0f);
    }

    /* A row alone gives the same bits. */
    for (int r = 0; r < c->rows; r++) {
        attention_state alone = attention_state_new(1, ldo);
        run_attention(kernels, c, q, r, 1, k, k_bytes, v, v_bytes, used_scale, &alone, ldo);
        check_same_bits(what, kernels->name, r, alone.m[0], s.m[r]);
        check_same_bits(what, kernels->name, r, alone.l[0], s.l[r]);
        for (int i = 0; i < c->v_dim; i++)
            check_same_bits(what, kernels->name, i, alone.o[i], s.o[(size_t)r * ldo + (size_t)i]);
        attention_state_free(&alone);
    }

    /* Keys that nobody sees (the ranges end before key 47) and the keys outside a row's range do not count. */
    size_t hidden = (size_t)(TEST_KEYS - 1);
    memset(k + hidden * k_bytes, 0x3f, k_bytes);
    memset(v + hidden * v_bytes, 0x3f, v_bytes);
    attention_state changed = attention_state_new(c->rows, ldo);
    run_attention(kernels, c, q, 0, c->rows, k, k_bytes, v, v_bytes, used_scale, &changed, ldo);
    for (int r = 0; r < c->rows; r++) {
        check_same_bits(what, kernels->name, r, changed.l[r], s.l[r]);
        for (int i = 0; i < c->v_dim; i++)
            check_same_bits(what, kernels->name, i, changed.o[(size_t)r * ldo + (size_t)i],
                            s.o[(size_t)r * ldo + (size_t)i]);
    }
    attention_state_free(&changed);
    attention_state_free(&s);
    free(q);
    free(keys);
    free(values);
    free(k_allocation);
    free(v_allocation);
}

static void attention_agrees_with_double(void **state) {
    (void)state;
    static const attention_case cases[] = {
        {1, 256, 256, KV_FORMAT_BF16, KV_FORMAT_BF16, false}, {2, 256, 256, KV_FORMAT_BF16, KV_FORMAT_BF16, true},
        {8, 512, 512, KV_FORMAT_BF16, KV_FORMAT_BF16, true},  {33, 64, 96, KV_FORMAT_F32, KV_FORMAT_F32, false},
        {13, 33, 41, KV_FORMAT_F32, KV_FORMAT_BF16, true},    {7, 100, 7, KV_FORMAT_BF16, KV_FORMAT_BF16, false},
        {12, 16, 24, KV_FORMAT_BF16, KV_FORMAT_F32, true},    {1, 512, 512, KV_FORMAT_Q8, KV_FORMAT_Q8, false},
        {8, 256, 256, KV_FORMAT_Q8, KV_FORMAT_Q8, true},      {13, 33, 41, KV_FORMAT_Q8, KV_FORMAT_Q8, true},
        {5, 100, 7, KV_FORMAT_F32, KV_FORMAT_Q8, false},      {3, 7, 100, KV_FORMAT_Q8, KV_FORMAT_F32, true},
    };
    FOR_FLOAT_TABLES(kernels) for (size_t i = 0; i < COUNT(cases); i++) check_attention(kernels, &cases[i]);
}

/* One row whose range moves over a block: every mask, with weights far from the first maximum. */
static void attention_masks(void **state) {
    (void)state;
    FOR_FLOAT_TABLES(kernels)
    for (int lo = 0; lo < ATTENTION_BLOCK; lo++)
        for (int hi = lo; hi <= ATTENTION_BLOCK; hi++) {
            float k[ATTENTION_BLOCK], v[ATTENTION_BLOCK], q = 1.0f;
            for (int j = 0; j < ATTENTION_BLOCK; j++) {
                k[j] = j % 3 == 0 ? -200.0f : 0.25f * (float)j;
                v[j] = (float)(1 << j);
            }
            void *packed = packed_queries(kernels, KV_FORMAT_F32, &q, 1, 1, 1);
            float m = -1.5f, l = 3.0f, o = 5.0f;
            kernels->attend_block(1, &lo, &hi, packed, 1, KV_FORMAT_F32, k, 4, 1, KV_FORMAT_F32, v, 4, NULL, &m, &l, &o,
                                  1);
            free(packed);
            double top = -1.5;
            for (int j = lo; j < hi; j++) top = fmax(top, (double)k[j]);
            double want_l = 3.0 * exp(-1.5 - top), want_o = 5.0 * exp(-1.5 - top);
            for (int j = lo; j < hi; j++) {
                want_l += exp((double)k[j] - top);
                want_o += exp((double)k[j] - top) * (double)v[j];
            }
            char what[64];
            snprintf(what, sizeof what, "attend_block range [%d, %d)", lo, hi);
            check_near(what, kernels->name, 0, (double)m, top, 0);
            check_near(what, kernels->name, 1, (double)l, want_l, 2e-6 * want_l);
            check_near(what, kernels->name, 2, (double)o, want_o, 2e-6 * want_o);
            if (lo == hi && (m != -1.5f || l != 3.0f || o != 5.0f))
                fail_msg("%s: an empty range changed the state", what);
        }
}

/* --- probes ----------------------------------------------------------------------------------------------------- */

static void probes_do_what_they_report(void **state) {
    (void)state;
    enum { BYTES = 1 << 16 };
    unsigned char *data = aligned(BYTES);
    memset(data, 0, BYTES);
    FOR_FLOAT_TABLES(kernels) {
        double few = kernels->probe_flops(false, 1000), many = kernels->probe_flops(false, 3000);
        assert_true(few > 0 && many == 3 * few);
        assert_true(kernels->probe_flops(true, 1000) >= few);
        /* Every byte that could be skipped changes the checksum. */
        float nothing = kernels->probe_read(data, BYTES);
        for (int i = 0; i < BYTES; i += 64) {
            uint16_t value = 0x3f80;
            memcpy(data + i, &value, sizeof value);
            if (kernels->probe_read(data, BYTES) == nothing)
                fail_msg("probe_read, table %s: byte %d was not read", kernels->name, i);
            memset(data + i, 0, sizeof value);
        }
    }
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_tables_by_name),
        cmocka_unit_test(matmul_agrees_with_double),
        cmocka_unit_test(matmul_bits_do_not_depend_on_the_call),
        cmocka_unit_test(matmul_bits_do_not_depend_on_blocks),
        cmocka_unit_test(packed_rows_are_independent),
        cmocka_unit_test(every_format_has_its_kernels),
        cmocka_unit_test(no_access_behind_the_operands),
        cmocka_unit_test(no_access_behind_stored_rows),
        cmocka_unit_test(attention_agrees_with_double),
        cmocka_unit_test(attention_masks),
        cmocka_unit_test(probes_do_what_they_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
