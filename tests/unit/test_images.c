/* Pictures: decoding, sizes, the resize and patches against hashes made with transformers, torchvision and Pillow
 * (tests/data/images/README.md); broken and hostile files. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <openssl/evp.h>

#include "base/files.h"
#include "media/decode.h"
#include "media/digest.h"
#include "media/resize.h"

#define IMAGES KAKEYA_TEST_DATA "/images"

typedef struct file {
    char *data;
    size_t bytes;
} file;

static file read_file(const char *folder, const char *name) {
    char path[512];
    file f = {0};
    kakeya_error error = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_read(path, 1 << 20, &f.data, &f.bytes, &error)) fail_msg("%s", error.message);
    return f;
}

static cJSON *read_processing(void) {
    file f = read_file(IMAGES, "processing.json");
    cJSON *json = cJSON_Parse(f.data);
    assert_non_null(json);
    free(f.data);
    return json;
}

static image decode(const char *name) {
    file f = read_file(IMAGES, name);
    kakeya_error error = {0};
    image out;
    if (image_decode(name, f.data, f.bytes, &image_default_limits, NULL, &out, &error)) fail_msg("%s", error.message);
    free(f.data);
    return out;
}

static void check_hash(const char *name, const cJSON *of, const char *key, const void *data, size_t bytes) {
    unsigned char digest[32];
    char text[IMAGE_DIGEST_TEXT];
    assert_int_equal(EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL), 1);
    image_digest_text(digest, text);
    const char *wanted = cJSON_GetStringValue(cJSON_GetObjectItem(of, key));
    if (!wanted || strcmp(wanted, text) != 0)
        fail_msg("%s, %s %s: %s, not %s", name, of->string, key, text, wanted ? wanted : "there");
}

static int number(const cJSON *of, const char *key) { return (int)cJSON_GetNumberValue(cJSON_GetObjectItem(of, key)); }

static void check_patches(const cJSON *wanted, const image *resized, const char *key, int side) {
    const size_t n = 3 * (size_t)resized->width * (size_t)resized->height;
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    image_patches(resized, side, values);
    check_hash(key, wanted, key, values, n * sizeof *values);
    free(values);
}

static int hashes;

static void check_budget(const char *name, const image *decoded, const cJSON *wanted) {
    kakeya_error error = {0};
    int width, height;
    image resized;
    assert_int_equal(
        image_target_size(decoded->width, decoded->height, atoi(wanted->string), 16, 3, &width, &height, &error),
        KAKEYA_OK);
    assert_int_equal(width, number(wanted, "width"));
    assert_int_equal(height, number(wanted, "height"));
    assert_int_equal(width / 48 * (height / 48), number(wanted, "soft_tokens"));
    assert_int_equal(image_resize(decoded, width, height, &resized, &error), KAKEYA_OK);
    check_hash(name, wanted, "resized", resized.rgb, 3 * (size_t)width * (size_t)height);
    check_patches(wanted, &resized, "patches", 16);
    check_patches(wanted, &resized, "merged", 48);
    image_free(&resized);
    hashes++;
}

static void test_pixels_are_those_of_the_reference(void **state) {
    (void)state;
    cJSON *json = read_processing();
    const cJSON *item, *budget;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "images")) {
        image decoded = decode(item->string);
        assert_int_equal(decoded.width, number(item, "width"));
        assert_int_equal(decoded.height, number(item, "height"));
        check_hash(item->string, item, "decoded", decoded.rgb, 3 * (size_t)decoded.width * (size_t)decoded.height);
        cJSON_ArrayForEach(budget, cJSON_GetObjectItem(item, "budgets")) {
            check_budget(item->string, &decoded, budget);
        }
        image_free(&decoded);
    }
    cJSON_Delete(json);
    assert_int_equal(hashes, 41);
}

static void test_sizes_are_those_of_the_reference(void **state) {
    (void)state;
    cJSON *json = read_processing();
    const cJSON *row;
    int n = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "sizes")) {
        int in[3], width, height;
        for (int i = 0; i < 3; i++) in[i] = (int)cJSON_GetNumberValue(cJSON_GetArrayItem(row, i));
        const cJSON *wanted = cJSON_GetArrayItem(row, 3);
        kakeya_error error = {0};
        kakeya_status status = image_target_size(in[1], in[0], in[2], 16, 3, &width, &height, &error);
        if (status || height != (int)cJSON_GetNumberValue(cJSON_GetArrayItem(wanted, 0)) ||
            width != (int)cJSON_GetNumberValue(cJSON_GetArrayItem(wanted, 1)))
            fail_msg("%d x %d at %d: %d x %d %s", in[0], in[1], in[2], height, width, error.message);
        n++;
    }
    assert_int_equal(n, 123);
    cJSON_Delete(json);
}

/* Of models with patches of 4 pixels, as PNG files. */
static void test_small_patches(void **state) {
    (void)state;
    static const char *const names[][2] = {
        {"gradient.png", "gradient.png"}, {"text.png", "text.png"}, {"photo.jpg", "photo.png"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        kakeya_error error = {0};
        snprintf(path, sizeof path, "resized/%s", names[i][1]);
        image decoded = decode(names[i][0]), wanted = decode(path), resized;
        int width, height;
        assert_int_equal(image_target_size(decoded.width, decoded.height, 70, 4, 3, &width, &height, &error),
                         KAKEYA_OK);
        assert_int_equal(width, wanted.width);
        assert_int_equal(height, wanted.height);
        assert_int_equal(image_resize(&decoded, width, height, &resized, &error), KAKEYA_OK);
        assert_memory_equal(resized.rgb, wanted.rgb, 3 * (size_t)width * (size_t)height);
        image_free(&decoded);
        image_free(&wanted);
        image_free(&resized);
    }
}

static kakeya_status refused(const char *name, const void *data, size_t bytes, kakeya_error *error) {
    image_info info;
    image out;
    kakeya_status status = image_decode(name, data, bytes, &image_default_limits, &info, &out, error);
    if (!status) fail_msg("%s: taken", name);
    assert_null(out.rgb);
    return status;
}

/* The two with more pixels than are allowed are refused by their headers: decoded, one would take 324 MB. */
static void test_bad_files_are_refused(void **state) {
    (void)state;
    DIR *folder = opendir(IMAGES "/bad");
    assert_non_null(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        file f = read_file(IMAGES "/bad", entry->d_name);
        kakeya_error error = {0};
        kakeya_status status = refused(entry->d_name, f.data, f.bytes, &error);
        if (strncmp(error.message, entry->d_name, strlen(entry->d_name)) != 0)
            fail_msg("%s: the message is: %s", entry->d_name, error.message);
        bool large = strstr(entry->d_name, "0x") != NULL;
        if (large && status != KAKEYA_INVALID_ARGUMENT) fail_msg("%s: %s", entry->d_name, error.message);
        free(f.data);
        n++;
    }
    closedir(folder);
    assert_int_equal(n, 8);
}

/* A file that ends early is an error wherever it ends; GIFs have been read when their first frame is complete. */
static void test_cut_files_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"alpha.png", "exif-orientation-6.jpg", "photo.webp", "two-frames.gif"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        file f = read_file(IMAGES, names[i]);
        size_t most = i == 3 ? 300 : f.bytes - 2;
        for (size_t n = 0; n < most; n += n < 64 ? 1 : 97) {
            char *part = malloc(n + 1); /* so that reading behind the end is seen */
            assert_non_null(part);
            memcpy(part, f.data, n);
            kakeya_error error = {0};
            refused(names[i], part, n, &error);
            free(part);
        }
        free(f.data);
    }
}

/* The picture of 3 x 2 pixels, with another orientation and another type of it. */
static void set_orientation(file *f, int orientation, int type) {
    char *at = NULL;
    for (size_t i = 0; i + 4 < f->bytes && !at; i++)
        if (memcmp(f->data + i, "eXIf", 4) == 0) at = f->data + i;
    assert_non_null(at);
    /* these are the low bytes of the first entry's type and value; the checksum behind the 26 bytes is made anew */
    at[4 + 8 + 2 + 2] = (char)type;
    at[4 + 8 + 2 + 8] = (char)orientation;
    uint32_t crc = 0xffffffffu;
    for (int i = 0; i < 4 + 26; i++) {
        crc ^= (unsigned char)at[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xedb88320u ^ crc >> 1 : crc >> 1;
    }
    for (int i = 0; i < 4; i++) at[4 + 26 + i] = (char)(~crc >> (24 - 8 * i));
}

/* Every one of EXIF's orientations, of a picture whose values are 0 to 5, as the short number that EXIF wants and as
 * the long one that some programs write; of other types it is none. */
static void test_orientations(void **state) {
    (void)state;
    static const unsigned char wanted[8][6] = {{0, 1, 2, 3, 4, 5}, {2, 1, 0, 5, 4, 3}, {5, 4, 3, 2, 1, 0},
                                               {3, 4, 5, 0, 1, 2}, {0, 3, 1, 4, 2, 5}, {3, 0, 4, 1, 5, 2},
                                               {5, 2, 4, 1, 3, 0}, {2, 5, 1, 4, 0, 3}};
    enum { ASCII = 2, SHORT, LONG };
    file f = read_file(IMAGES, "orientation.png");
    for (int round = 0; round < 3 * 9; round++) {
        const int given = 1 + round % 9, type = ASCII + round / 9, o = type == ASCII || given == 9 ? 1 : given;
        set_orientation(&f, given, type);
        kakeya_error error = {0};
        image out;
        image_info info;
        if (image_decode("orientation.png", f.data, f.bytes, &image_default_limits, &info, &out, &error))
            fail_msg("%s", error.message);
        assert_int_equal(info.orientation, o);
        assert_int_equal(out.width, o < 5 ? 3 : 2);
        for (int i = 0; i < 6; i++) {
            if (out.rgb[3 * i] != wanted[o - 1][i]) fail_msg("orientation %d, pixel %d: %d", o, i, out.rgb[3 * i]);
        }
        image_free(&out);
    }
    free(f.data);
}

static void test_digests_tell_pictures_apart(void **state) {
    (void)state;
    unsigned char pixels[12] = {0}, digest[4][IMAGE_DIGEST_BYTES];
    const image pictures[4] = {{4, 1, pixels}, {1, 4, pixels}, {2, 2, pixels}, {4, 1, pixels}};
    for (int i = 0; i < 4; i++) {
        if (i == 3) pixels[11] = 1;
        assert_int_equal(image_digest(&pictures[i], digest[i], NULL), KAKEYA_OK);
        for (int k = 0; k < i; k++) assert_memory_not_equal(digest[i], digest[k], IMAGE_DIGEST_BYTES);
    }
}

/* Nine keys hold all of a digest, however many there are; a key that is another one's is seen. */
static void test_keys_hold_digests(void **state) {
    (void)state;
    for (int round = 0; round < 50; round++) {
        unsigned char digest[IMAGE_DIGEST_BYTES], again[IMAGE_DIGEST_BYTES];
        int32_t keys[70];
        for (int i = 0; i < IMAGE_DIGEST_BYTES; i++)
            digest[i] = (unsigned char)(round == 0 ? 0 : round == 1 ? 255 : rand() >> 7);
        for (size_t k = 0; k < 70; k++) {
            keys[k] = image_digest_key(digest, k);
            assert_true(keys[k] < 0);
        }
        for (size_t n = 0; n <= 70; n++) {
            assert_int_equal(image_digest_of_keys(keys, n, again), n >= 9);
            if (n >= 9) assert_memory_equal(again, digest, IMAGE_DIGEST_BYTES);
        }
        keys[round + 9] = -1 - ((-1 - keys[round + 9]) ^ 64);
        assert_false(image_digest_of_keys(keys, 70, again));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pixels_are_those_of_the_reference),
        cmocka_unit_test(test_sizes_are_those_of_the_reference),
        cmocka_unit_test(test_small_patches),
        cmocka_unit_test(test_bad_files_are_refused),
        cmocka_unit_test(test_cut_files_are_refused),
        cmocka_unit_test(test_orientations),
        cmocka_unit_test(test_digests_tell_pictures_apart),
        cmocka_unit_test(test_keys_hold_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
