/* Protects: every kind of malformed file is refused with one line; a file that is written is read back the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/safetensors.h"
#include "scratch.h"

static kakeya_error error;

static void test_read(void **state) {
    (void)state;
    const char *path = scratch_safetensors(
        "good",
        "{\"__metadata__\":{\"format\":\"pt\"},\"z\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
        "\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
        "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]}}   ",
        21);
    safetensors *file;
    assert_ok(safetensors_open(path, &file, &error));
    assert_int_equal(file->count, 4);
    const tensor *z = safetensors_find(file, "z");
    assert_non_null(z);
    assert_int_equal(z->type, TENSOR_BF16);
    assert_int_equal(z->dims, 2);
    assert_int_equal(z->shape[1], 3);
    assert_int_equal(z->bytes, 12);
    assert_int_equal(z->data[0], 8);
    dtype type;
    assert_true(tensor_dtype(z, &type) && type == DTYPE_BF16);
    assert_false(tensor_dtype(safetensors_find(file, "a"), &type));
    assert_int_equal(safetensors_find(file, "none")->bytes, 0);
    assert_int_equal(safetensors_find(file, "scalar")->data[0], 20);
    assert_null(safetensors_find(file, "b"));
    safetensors_close(file);
    safetensors_close(NULL);
}

static kakeya_status open_bytes(const void *data, size_t bytes) {
    safetensors *file;
    kakeya_status status = safetensors_open(scratch_write("bad", data, bytes), &file, &error);
    safetensors_close(file);
    return status;
}

static kakeya_status open_header(const char *header, size_t data_bytes) {
    safetensors *file;
    kakeya_status status = safetensors_open(scratch_safetensors("bad", header, data_bytes), &file, &error);
    safetensors_close(file);
    return status;
}

static void test_refuses_frames(void **state) {
    (void)state;
    assert_refused(open_bytes("", 0), KAKEYA_FORMAT, "bad", "0 bytes", "too short");
    assert_refused(open_bytes("1234567", 7), KAKEYA_FORMAT, "7 bytes");
    assert_refused(open_bytes("\x05\0\0\0\0\0\0\0{}", 10), KAKEYA_FORMAT, "header of 5 bytes", "file of 10");
    assert_refused(open_bytes("\x01\xe1\xf5\x05\0\0\0\0{}", 10), KAKEYA_FORMAT, "header of 100000001 bytes",
                   "100000000");
    assert_refused(open_bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), KAKEYA_FORMAT,
                   "header of 18446744073709551615");
    assert_refused(open_bytes("\0\0\0\0\0\0\0\0", 8), KAKEYA_FORMAT, "line 1, byte 0");
    assert_refused(open_header("{\"a\":}", 0), KAKEYA_FORMAT, "malformed JSON at line 1, byte 5");
    assert_refused(open_header("[]", 0), KAKEYA_FORMAT, "not a JSON object");
    assert_refused(open_header("{\"a\":1}", 0), KAKEYA_FORMAT, "entry a is not an object");
    safetensors *file;
    assert_refused(safetensors_open(scratch_path("absent"), &file, &error), KAKEYA_IO, "absent");
}

#define ENTRY(dtype, shape, offsets)                                                                                   \
    "{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_refuses_entries(void **state) {
    (void)state;
    assert_ok(open_header(ENTRY("F32", "[2]", "[0,8]"), 8));
    assert_refused(open_header(ENTRY("F33", "[2]", "[0,8]"), 8), KAKEYA_FORMAT, "tensor w", "unknown dtype \"F33\"");
    assert_refused(open_header("{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8), KAKEYA_FORMAT, "tensor w",
                   "needs dtype");
    assert_refused(open_header("{\"w\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8), KAKEYA_FORMAT,
                   "needs dtype");
    assert_refused(open_header(ENTRY("F32", "[2]", "[0,4,8]"), 8), KAKEYA_FORMAT, "two data_offsets");
    assert_refused(open_header(ENTRY("F32", "[-2]", "[0,8]"), 8), KAKEYA_FORMAT, "shape[0]");
    assert_refused(open_header(ENTRY("F32", "[1,1.5]", "[0,8]"), 8), KAKEYA_FORMAT, "shape[1]");
    assert_refused(open_header(ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), KAKEYA_FORMAT, "9 dimensions", "8");
    assert_refused(open_header(ENTRY("F32", "[4294967296,4294967296]", "[0,8]"), 8), KAKEYA_FORMAT,
                   "[4294967296, 4294967296] is too large");
    assert_refused(open_header(ENTRY("F32", "[4503599627370496,2048]", "[0,8]"), 8), KAKEYA_FORMAT, "is too large");
    assert_refused(open_header(ENTRY("F32", "[2]", "[-8,0]"), 8), KAKEYA_FORMAT, "data_offsets are not whole numbers");
    assert_refused(open_header(ENTRY("F32", "[2]", "[0,1e300]"), 8), KAKEYA_FORMAT,
                   "data_offsets are not whole numbers");
    assert_refused(open_header(ENTRY("F32", "[2]", "[8,0]"), 8), KAKEYA_FORMAT, "[8, 0] run backwards");
    assert_refused(open_header(ENTRY("F32", "[2]", "[0,8]"), 7), KAKEYA_FORMAT, "ends at byte 8", "holds only 7");
    assert_refused(open_header(ENTRY("F32", "[3]", "[0,8]"), 8), KAKEYA_FORMAT, "[3] takes 12 bytes", "span 8");
}

static void test_refuses_layouts(void **state) {
    (void)state;
    const char *pair = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]},"
                       "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]}}";
    char header[256];
#define PAIR(a, b) (snprintf(header, sizeof header, pair, a, a + 4, b, b + 4), header)
    assert_ok(open_header(PAIR(4, 0), 8));
    assert_refused(open_header(PAIR(0, 3), 7), KAKEYA_FORMAT, "tensor b begins at byte 3", "tensor a, which ends at 4");
    assert_refused(open_header(PAIR(0, 0), 4), KAKEYA_FORMAT, "begins at byte 0");
    assert_refused(open_header(PAIR(0, 5), 9), KAKEYA_FORMAT, "bytes 4 to 5", "before tensor b");
    assert_refused(open_header(PAIR(1, 5), 9), KAKEYA_FORMAT, "bytes 0 to 1", "before tensor a");
    assert_refused(open_header(PAIR(0, 4), 10), KAKEYA_FORMAT, "2 bytes after the last tensor");
    assert_refused(open_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                               "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                               2),
                   KAKEYA_FORMAT, "tensor a is listed twice");
    assert_refused(open_header("{}", 3), KAKEYA_FORMAT, "3 bytes after");
    assert_ok(open_header("{}", 0));
}

/* Opening is not quadratic in the number of tensors, and finding is exact. */
static void test_many(void **state) {
    (void)state;
    enum { COUNT = 20000 };
    char *header = malloc(COUNT * 80), *end = header;
    for (int i = 0; i < COUNT; i++)
        end += sprintf(end, "%c\"layers.%d.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                       i ? ',' : '{', i, i, i + 1);
    strcpy(end, "}");
    safetensors *file;
    assert_ok(safetensors_open(scratch_safetensors("many", header, COUNT), &file, &error));
    assert_int_equal(file->count, COUNT);
    for (int i = 0; i < COUNT; i += 7) {
        char name[32];
        sprintf(name, "layers.%d.w", i);
        const tensor *t = safetensors_find(file, name);
        assert_non_null(t);
        assert_int_equal(t->data[0], i & 255);
    }
    safetensors_close(file);
    free(header);
}

static void test_write(void **state) {
    (void)state;
    const safetensors_entry entries[] = {
        {.name = "logits", .type = TENSOR_F32, .dims = 2, .shape = {2, 3}},
        {.name = "ids \"quoted\"", .type = TENSOR_I32, .dims = 1, .shape = {2}},
        {.name = "empty", .type = TENSOR_F32, .dims = 1, .shape = {0}},
    };
    const float logits[6] = {0, 1, -2, 3.5f, 4, 5};
    const int32_t ids[2] = {-1, 70000};
    safetensors_writer *writer;
    const char *path = scratch_path("written");
    assert_ok(safetensors_writer_open(path, entries, 3, &writer, &error));
    assert_ok(safetensors_writer_write(writer, logits, 8, &error));
    assert_ok(safetensors_writer_write(writer, &logits[2], 16, &error));
    assert_ok(safetensors_writer_write(writer, ids, sizeof ids, &error));
    assert_refused(safetensors_writer_write(writer, ids, 1, &error), KAKEYA_INVALID_ARGUMENT, "33 bytes", "hold 32");
    assert_ok(safetensors_writer_commit(writer, &error));

    safetensors *file;
    assert_ok(safetensors_open(path, &file, &error));
    assert_int_equal(file->count, 3);
    const tensor *t = safetensors_find(file, "logits");
    assert_memory_equal(t->data, logits, sizeof logits);
    assert_int_equal((uintptr_t)t->data % 8, 0);
    assert_int_equal(t->shape[0], 2);
    assert_memory_equal(safetensors_find(file, "ids \"quoted\"")->data, ids, sizeof ids);
    safetensors_close(file);

    assert_ok(safetensors_writer_open(scratch_path("short"), entries, 3, &writer, &error));
    assert_ok(safetensors_writer_write(writer, logits, 5, &error));
    assert_refused(safetensors_writer_commit(writer, &error), KAKEYA_INVALID_ARGUMENT, "5 bytes written", "hold 32");
    assert_false(file_exists(scratch_path("short")));

    const safetensors_entry twice[] = {entries[0], entries[0]};
    assert_refused(safetensors_writer_open(path, twice, 2, &writer, &error), KAKEYA_INVALID_ARGUMENT,
                   "logits is given twice");
    const safetensors_entry huge = {.name = "huge", .type = TENSOR_F32, .dims = 2, .shape = {INT64_MAX, 4}};
    assert_refused(safetensors_writer_open(path, &huge, 1, &writer, &error), KAKEYA_INVALID_ARGUMENT,
                   "huge is too large");
    assert_refused(safetensors_writer_open(scratch_path("no/dir"), entries, 3, &writer, &error), KAKEYA_IO, "no/dir");
    assert_null(writer);
    safetensors_writer_abort(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_refuses_frames),
        cmocka_unit_test(test_refuses_entries),
        cmocka_unit_test(test_refuses_layouts),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
