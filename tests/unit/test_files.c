/* Protects: mapping and reading give the file's bytes; a writer never leaves a partial or a stray file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>

#include "base/files.h"
#include "scratch.h"

static kakeya_error error;

static int entries(const char *directory) {
    int n = 0;
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing));) n += entry->d_name[0] != '.';
    closedir(listing);
    return n;
}

static void test_map(void **state) {
    (void)state;
    file_map map;
    assert_ok(file_map_open(scratch_text("seven", "1234567"), &map, &error));
    assert_int_equal(map.bytes, 7);
    assert_memory_equal(map.data, "1234567", 7);
    file_map_close(&map);
    assert_null(map.data);

    assert_ok(file_map_open(scratch_text("empty", ""), &map, &error));
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    file_map_close(&map);

    assert_refused(file_map_open(scratch_path("absent"), &map, &error), KAKEYA_IO, "absent", "No such file");
    assert_refused(file_map_open(scratch_directory, &map, &error), KAKEYA_IO, scratch_directory, "not a regular file");
    assert_int_equal(file_map_open(scratch_path("absent"), &map, NULL), KAKEYA_IO);
}

static void test_read(void **state) {
    (void)state;
    char *data;
    size_t bytes;
    const char *path = scratch_write("nul", "a\0b", 3);
    assert_ok(file_read(path, 3, &data, &bytes, &error));
    assert_int_equal(bytes, 3);
    assert_memory_equal(data, "a\0b", 4); /* with the NUL behind it */
    free(data);
    assert_refused(file_read(path, 2, &data, &bytes, &error), KAKEYA_FORMAT, "3 bytes", "2 allowed");
    assert_null(data);
    assert_refused(file_read("/", 10, &data, &bytes, &error), KAKEYA_IO, "not a regular file");
}

static void test_writer(void **state) {
    (void)state;
    scratch_folder("w");
    file_writer *writer;
    const char *path = scratch_path("w/out");
    assert_ok(file_writer_open(path, &writer, &error));
    assert_ok(file_writer_write(writer, "new ", 4, &error));
    assert_false(file_exists(path)); /* nothing is there before commit */
    assert_ok(file_writer_write(writer, "content", 7, &error));
    assert_ok(file_writer_commit(writer, &error));
    size_t bytes;
    char *data = scratch_read(path, &bytes);
    assert_string_equal(data, "new content");
    free(data);

    assert_ok(file_writer_open(path, &writer, &error));
    assert_ok(file_writer_write(writer, "half", 4, &error));
    file_writer_abort(writer); /* the old content stays, no temporary file does */
    data = scratch_read(path, &bytes);
    assert_string_equal(data, "new content");
    free(data);
    assert_int_equal(entries(scratch_path("w")), 1);
    file_writer_abort(NULL);

    assert_refused(file_writer_open(scratch_path("no/such/file"), &writer, &error), KAKEYA_IO, "no/such/file",
                   "No such file");
    assert_null(writer);
    assert_refused(file_writer_open(scratch_path("w"), &writer, &error), KAKEYA_IO, "is a directory");
    assert_int_equal(entries(scratch_path("w")), 1);
}

static void test_paths(void **state) {
    (void)state;
    static const char *const cases[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *joined = path_join(cases[i][0], cases[i][1]);
        assert_string_equal(joined, cases[i][2]);
        free(joined);
    }
    assert_true(directory_exists(scratch_directory));
    assert_false(file_exists(scratch_directory));
    assert_true(file_exists(scratch_text("here", "x")));
    assert_false(directory_exists(scratch_path("here")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
