/* Protects: every value type and every tensor of a GGUF file, whole or split, is read as it was written; every damaged
 * form is refused with one line that says where. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "formats/gguf.h"
#include "gguf_writer.h"
#include "packed.h"
#include "scratch.h"

#define QUANT KAKEYA_TEST_DATA "/golden/quant/"

static kakeya_error error;

/* ------------------------------------------------------------------------------------------------------- SHA-256 */

static uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256(const unsigned char *data, size_t bytes, char hex[65]) {
    /* The constants are the first 32 bits of the fractional parts of square and cube roots of primes. */
    uint32_t h[8], k[64];
    for (int n = 0, p = 2; n < 64; p++) {
        int divisors = 0;
        for (int d = 2; d * d <= p; d++) divisors += p % d == 0;
        if (divisors) continue;
        long double root = cbrtl(p), square = sqrtl(p);
        k[n] = (uint32_t)((root - floorl(root)) * 4294967296.0L);
        if (n < 8) h[n] = (uint32_t)((square - floorl(square)) * 4294967296.0L);
        n++;
    }
    size_t padded = (bytes + 9 + 63) / 64 * 64;
    unsigned char *m = calloc(padded, 1);
    if (bytes) memcpy(m, data, bytes);
    m[bytes] = 0x80;
    for (int i = 0; i < 8; i++) m[padded - 1 - (size_t)i] = (unsigned char)((uint64_t)bytes * 8 >> 8 * i);
    for (size_t at = 0; at < padded; at += 64) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++) {
            const unsigned char *b = m + at + 4 * i;
            w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
        }
        for (int i = 16; i < 64; i++)
            w[i] = w[i - 16] + (rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
                   (rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10);
        memcpy(s, h, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t t1 = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) +
                          ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            uint32_t t2 = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) +
                          ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += t1;
            s[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++) h[i] += s[i];
    }
    free(m);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", h[i]);
}

/* ------------------------------------------------------------------------------------------------ reference files */

static double number_at(const gguf_value *v, uint64_t i) {
#define NUMBER(type, c_type)                                                                                           \
    case type: {                                                                                                       \
        c_type value;                                                                                                  \
        memcpy(&value, v->data + i * sizeof value, sizeof value);                                                      \
        return (double)value;                                                                                          \
    }
    switch (v->type) {
        NUMBER(GGUF_U8, uint8_t)
        NUMBER(GGUF_I8, int8_t)
        NUMBER(GGUF_U16, uint16_t)
        NUMBER(GGUF_I16, int16_t)
        NUMBER(GGUF_U32, uint32_t)
        NUMBER(GGUF_I32, int32_t)
        NUMBER(GGUF_U64, uint64_t)
        NUMBER(GGUF_I64, int64_t)
        NUMBER(GGUF_F32, float)
        NUMBER(GGUF_F64, double)
        NUMBER(GGUF_BOOL, uint8_t)
    default:
        fail_msg("key %s: no number", v->key);
        return 0;
    }
}

static void assert_element(const gguf_value *v, uint64_t i, size_t *at, const cJSON *expected) {
    if (v->type == GGUF_STRING) {
        gguf_text text = gguf_next_string(v, at);
        size_t shown = strlen(expected->valuestring); /* up to a NUL */
        assert_true(text.bytes >= shown);
        assert_memory_equal(text.data, expected->valuestring, shown);
        if (!memchr(text.data, 0, text.bytes)) assert_int_equal(text.bytes, shown);
    } else if (v->type == GGUF_BOOL) {
        assert_int_equal(number_at(v, i) != 0, cJSON_IsTrue(expected) || expected->valueint != 0);
    } else {
        if (number_at(v, i) != expected->valuedouble)
            fail_msg("key %s: %g, expected %g", v->key, number_at(v, i), expected->valuedouble);
    }
}

static void assert_value(const gguf *file, const cJSON *expected) {
    const char *key = cJSON_GetObjectItem(expected, "key")->valuestring;
    const cJSON *value = cJSON_GetObjectItem(expected, "value");
    const gguf_value *v = gguf_find(file, key);
    if (!v) fail_msg("no key %s", key);
    assert_int_equal(v->array, cJSON_IsArray(value));
    size_t at = 0;
    if (!v->array) {
        assert_int_equal(v->count, 1);
        assert_element(v, 0, &at, value);
        return;
    }
    assert_int_equal(v->count, cJSON_GetArraySize(value));
    uint64_t i = 0;
    const cJSON *element;
    cJSON_ArrayForEach(element, value) assert_element(v, i++, &at, element);
    if (v->type == GGUF_STRING) assert_int_equal(at, v->bytes);
}

static void assert_tensor(const gguf *file, const gguf_part *part, const cJSON *expected, double data_start) {
    const char *name = cJSON_GetObjectItem(expected, "name")->valuestring;
    ptrdiff_t index = gguf_find_tensor(file, name);
    assert_true(index >= 0);
    const gguf_tensor *t = file->tensors[index];
    const cJSON *ne = cJSON_GetObjectItem(expected, "ne");
    assert_int_equal(t->dims, cJSON_GetArraySize(ne));
    for (int i = 0; i < t->dims; i++) assert_int_equal(t->ne[i], (int64_t)cJSON_GetArrayItem(ne, i)->valuedouble);
    assert_int_equal(t->type->id, cJSON_GetObjectItem(expected, "ggml_type")->valueint);
    assert_int_equal(t->bytes, cJSON_GetObjectItem(expected, "bytes")->valueint);
    assert_true((double)(t->data - part->map.data) ==
                data_start + cJSON_GetObjectItem(expected, "offset")->valuedouble);
    char hex[65];
    sha256(t->data, t->bytes, hex);
    assert_string_equal(hex, cJSON_GetObjectItem(expected, "sha256")->valuestring);
}

static void assert_part(const gguf *file, size_t index, const cJSON *expected) {
    const gguf_part *part = &file->parts[index];
    assert_int_equal(part->version, cJSON_GetObjectItem(expected, "version")->valueint);
    assert_int_equal(part->alignment, cJSON_GetObjectItem(expected, "alignment")->valueint);
    const cJSON *values = cJSON_GetObjectItem(expected, "kv"), *tensors = cJSON_GetObjectItem(expected, "tensors");
    const cJSON *item;
    assert_int_equal(part->n_values, cJSON_GetArraySize(values));
    if (index == 0) {
        cJSON_ArrayForEach(item, values) assert_value(file, item);
    }
    assert_int_equal(part->n_tensors, cJSON_GetArraySize(tensors));
    double start = cJSON_GetObjectItem(expected, "data_start")->valuedouble;
    cJSON_ArrayForEach(item, tensors) assert_tensor(file, part, item, start);
}

static cJSON *read_json(const char *path) {
    size_t bytes;
    char *text = scratch_read(unpacked_file(path), &bytes);
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    free(text);
    assert_non_null(json);
    return json;
}

static void test_containers(void **state) {
    (void)state;
    static const char *const names[] = {"container-v2.gguf", "container-v3.gguf"};
    cJSON *expected = read_json(QUANT "container.json");
    char path[512];
    for (int i = 0; i < 2; i++) {
        gguf *file;
        snprintf(path, sizeof path, QUANT "%s", names[i]);
        assert_true(gguf_is_file(path));
        assert_ok(gguf_open(path, &file, &error));
        assert_int_equal(file->n_parts, 1);
        assert_part(file, 0, cJSON_GetObjectItem(expected, names[i]));
        assert_null(gguf_find(file, "test.none"));
        assert_int_equal(gguf_find_tensor(file, "none"), -1);
        gguf_close(file);
    }
    for (int part = 1; part <= 2; part++) { /* whichever part is named */
        gguf *file;
        snprintf(path, sizeof path, QUANT "split-0000%d-of-00002.gguf", part);
        assert_ok(gguf_open(path, &file, &error));
        assert_int_equal(file->n_parts, 2);
        assert_int_equal(file->n_tensors, 3);
        assert_part(file, 0, cJSON_GetObjectItem(expected, "split-00001-of-00002.gguf"));
        assert_part(file, 1, cJSON_GetObjectItem(expected, "split-00002-of-00002.gguf"));
        gguf_close(file);
    }
    cJSON_Delete(expected);
    gguf_close(NULL);
}

/* ----------------------------------------------------------------------------------------------------------- splits */

static void copy_part(const char *from, const char *to, int patch_count) {
    size_t bytes;
    char path[512];
    snprintf(path, sizeof path, QUANT "%s", from);
    char *data = scratch_read(path, &bytes);
    if (patch_count) { /* the value of split.tensors.count: behind its key and its type */
        char *key = memmem(data, bytes, "split.tensors.count", 19);
        assert_non_null(key);
        memcpy(key + 19 + 4, &patch_count, sizeof patch_count);
    }
    scratch_write(to, data, bytes);
    free(data);
}

static kakeya_status open_scratch(const char *name) {
    gguf *file;
    kakeya_status status = gguf_open(scratch_path(name), &file, &error);
    gguf_close(file);
    return status;
}

static void test_splits(void **state) {
    (void)state;
    copy_part("split-00001-of-00002.gguf", "a-00001-of-00002.gguf", 0);
    assert_refused(open_scratch("a-00001-of-00002.gguf"), KAKEYA_IO, "a-00002-of-00002.gguf", "part 2 of 2");
    copy_part("split-00002-of-00002.gguf", "a-00002-of-00002.gguf", 0);
    assert_ok(open_scratch("a-00002-of-00002.gguf"));
    copy_part("split-00002-of-00002.gguf", "b-00002-of-00002.gguf", 0);
    assert_refused(open_scratch("b-00002-of-00002.gguf"), KAKEYA_IO, "b-00001-of-00002.gguf");
    /* under another name; the same part twice; another count of tensors */
    copy_part("split-00001-of-00002.gguf", "alone.gguf", 0);
    assert_refused(open_scratch("alone.gguf"), KAKEYA_FORMAT, "split.count", "2");
    copy_part("split-00001-of-00002.gguf", "c-00001-of-00002.gguf", 0);
    copy_part("split-00001-of-00002.gguf", "c-00002-of-00002.gguf", 0);
    assert_refused(open_scratch("c-00001-of-00002.gguf"), KAKEYA_FORMAT, "c-00002-of-00002.gguf", "split.no is 0");
    copy_part("split-00001-of-00002.gguf", "d-00001-of-00002.gguf", 4);
    copy_part("split-00002-of-00002.gguf", "d-00002-of-00002.gguf", 0);
    assert_refused(open_scratch("d-00001-of-00002.gguf"), KAKEYA_FORMAT, "split.tensors.count is 4", "3 tensors");
    /* named as a part of more than there are */
    copy_part("split-00001-of-00002.gguf", "e-00001-of-00003.gguf", 0);
    assert_refused(open_scratch("e-00001-of-00003.gguf"), KAKEYA_FORMAT, "split.count 2", "of 3");
}

static gguf_writer part_writer(uint16_t number, const char *tensor) {
    static const float value = 1;
    uint16_t count = 2;
    gguf_writer w = gw_begin();
    gw_value(&w, "split.no", GGUF_U16, &number, sizeof number);
    gw_value(&w, "split.count", GGUF_U16, &count, sizeof count);
    gw_key_i32(&w, "split.tensors.count", 2);
    gw_tensor(&w, tensor, GGUF_TENSOR_F32, 1, (const int64_t[]){1}, &value, sizeof value);
    return w;
}

static void test_a_name_in_two_parts(void **state) {
    (void)state;
    for (uint16_t i = 0; i < 2; i++) {
        gguf_writer w = part_writer(i, "same");
        size_t bytes;
        unsigned char *data = gw_finish(&w, &bytes);
        scratch_write(i ? "s-00002-of-00002.gguf" : "s-00001-of-00002.gguf", data, bytes);
        free(data);
    }
    assert_refused(open_scratch("s-00001-of-00002.gguf"), KAKEYA_FORMAT, "tensor same is also in",
                   "s-00001-of-00002.gguf", "s-00002-of-00002.gguf");
}

/* ------------------------------------------------------------------------------------------------- damaged files */

static size_t unhex(const char *hex, unsigned char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned value;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &value), 1);
        out[i] = (unsigned char)value;
    }
    return n;
}

/* Each case in a block of its own length, so that AddressSanitizer sees one byte too many. */
static void test_damaged_files(void **state) {
    (void)state;
    cJSON *json = read_json(QUANT "bad.json");
    size_t bytes;
    char *base = scratch_read(QUANT "micro.gguf", &bytes);
    int cases = 0;
    const cJSON *item, *patch;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "cases")) {
        const char *name = cJSON_GetObjectItem(item, "name")->valuestring;
        const char *layer = cJSON_GetObjectItem(item, "layer")->valuestring;
        const char *expect = cJSON_GetObjectItem(item, "expect")->valuestring;
        unsigned char *changed = malloc(bytes);
        memcpy(changed, base, bytes);
        cJSON_ArrayForEach(patch, cJSON_GetObjectItem(item, "patches")) {
            size_t at = (size_t)cJSON_GetObjectItem(patch, "offset")->valuedouble;
            unhex(cJSON_GetObjectItem(patch, "hex")->valuestring, changed + at);
        }
        const cJSON *truncate = cJSON_GetObjectItem(item, "truncate");
        size_t length = truncate ? (size_t)truncate->valuedouble : bytes;
        unsigned char *exact = malloc(length ? length : 1);
        memcpy(exact, changed, length);
        free(changed);
        gguf *file;
        error = (kakeya_error){0};
        kakeya_status status = gguf_parse(name, exact, length, &file, &error);
        if (strcmp(layer, "container") == 0) {
            if (status == KAKEYA_OK && strcmp(expect, "error") == 0) fail_msg("%s was accepted", name);
            if (status != KAKEYA_OK && !strstr(error.message, name)) fail_msg("%s: %s", name, error.message);
        } else if (status != KAKEYA_OK) {
            fail_msg("%s is a legal container, but: %s", name, error.message);
        }
        gguf_close(file);
        free(exact);
        cases++;
    }
    assert_int_equal(cases, 132);
    free(base);
    cJSON_Delete(json);
}

/* Every prefix of a file, and every file with one byte changed to the values that hurt most. */
static void test_prefixes_and_bytes(void **state) {
    (void)state;
    gguf_writer w = gw_begin();
    static const char *const texts[] = {"a", "", "bc"};
    static const float values[40] = {1};
    gw_key_text(&w, "general.architecture", "x");
    gw_key_texts(&w, "texts", texts, 3);
    gw_key_array(&w, "numbers", GGUF_F32, values, 3, 4);
    gw_tensor(&w, "a", GGUF_TENSOR_F32, 2, (const int64_t[]){5, 2}, values, 40);
    gw_tensor(&w, "b", GGUF_TENSOR_Q8_0, 1, (const int64_t[]){32}, values, 34);
    size_t bytes;
    unsigned char *data = gw_finish(&w, &bytes);
    gguf *file;
    assert_ok(gguf_parse("whole", data, bytes, &file, &error));
    gguf_close(file);
    size_t needed = bytes - 30; /* the last tensor's padding may be missing */
    for (size_t length = 0; length <= bytes; length++) {
        unsigned char *exact = malloc(length + 1);
        memcpy(exact, data, length);
        kakeya_status status = gguf_parse("cut", exact, length, &file, &error);
        assert_int_equal(status == KAKEYA_OK, length >= needed);
        gguf_close(file);
        free(exact);
    }
    static const unsigned char evil[] = {0, 1, 9, 0x7f, 0x80, 0xff};
    for (size_t i = 0; i < needed; i++) {
        for (size_t e = 0; e < sizeof evil; e++) {
            unsigned char kept = data[i];
            data[i] = evil[e];
            (void)gguf_parse("changed", data, bytes, &file, &error);
            gguf_close(file);
            data[i] = kept;
        }
    }
    free(data);
}

static void test_messages(void **state) {
    (void)state;
    /* what people have by mistake */
    static const char older[] = "tjgg\1\0\0\0", page[] = "<!DOCTYPE html>", safetensors[] = "\10\0\0\0\0\0\0\0{}      ";
    gguf *file;
    const unsigned char *data = (const unsigned char *)older;
    assert_refused(gguf_parse("f", data, 8, &file, &error), KAKEYA_UNSUPPORTED, "before GGUF");
    data = (const unsigned char *)page;
    assert_refused(gguf_parse("f", data, sizeof page - 1, &file, &error), KAKEYA_FORMAT, "a web page");
    data = (const unsigned char *)safetensors;
    assert_refused(gguf_parse("f", data, sizeof safetensors - 1, &file, &error), KAKEYA_FORMAT, "not a GGUF file");

    size_t bytes;
    gguf_writer w = gw_begin();
    w.version = 3u << 24;
    unsigned char *made = gw_finish(&w, &bytes);
    assert_refused(gguf_parse("f", made, bytes, &file, &error), KAKEYA_UNSUPPORTED, "big-endian", "little-endian");
    free(made);

    /* truncated: both sizes */
    static const float values[1000];
    gw_tensor(&w, "t", GGUF_TENSOR_F32, 1, (const int64_t[]){1000}, values, sizeof values);
    made = gw_finish(&w, &bytes);
    char there[32], wanted[32];
    snprintf(there, sizeof there, "%zu bytes", bytes - 500);
    snprintf(wanted, sizeof wanted, "byte %zu", bytes);
    assert_refused(gguf_parse("f", made, bytes - 500, &file, &error), KAKEYA_FORMAT, there, wanted, "truncated");
    free(made);

    /* names are shown harmlessly */
    gw_key_u32(&w, "evil\x1b[2J\xff", 1);
    gw_key_u32(&w, "evil\x1b[2J\xff", 1);
    made = gw_finish(&w, &bytes);
    assert_refused(gguf_parse("f", made, bytes, &file, &error), KAKEYA_FORMAT, "evil\\x1b[2J\\xff", "twice");
    free(made);

    /* files that cannot be mapped */
    assert_refused(open_scratch("none.gguf"), KAKEYA_IO, "none.gguf");
    scratch_write("empty.gguf", "", 0);
    assert_refused(open_scratch("empty.gguf"), KAKEYA_FORMAT, "0 bytes");
    assert_int_equal(mkfifo(scratch_path("pipe.gguf"), 0600), 0);
    assert_false(gguf_is_file(scratch_path("pipe.gguf")));
    assert_false(gguf_is_file(scratch_path("none.gguf")));
    assert_false(gguf_is_file(scratch_path("empty.gguf")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_containers),          cmocka_unit_test(test_splits),
        cmocka_unit_test(test_a_name_in_two_parts), cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_prefixes_and_bytes),  cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
