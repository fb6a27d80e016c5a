/* What the process that decodes pictures is started with. The programs here are shell scripts in its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "scratch.h"
#include "serve/media_child.h"

static const char *write_program(const char *name, const char *lines) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n%s", lines);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0700), 0);
    return path;
}

static kakeya_status decode_by(const char *program, kakeya_error *error) {
    const image_wish wish = {.patch = 16, .pooling = 3, .budget = 70};
    image_info info;
    image pixels;
    memset(error, 0, sizeof *error);
    return media_child_read_image(program, "picture", "data", 4, &wish, &info, &pixels, error);
}

/* Libraries may lie where only the environment says; nothing else of it is the child's to know. */
static void library_path_is_kept_alone(void **state) {
    (void)state;
    char lines[1024], found[256] = "";
    const char *out = scratch_path("environment");
    snprintf(lines, sizeof lines, "printf '%%s,%%s' \"$LD_LIBRARY_PATH\" \"$KAKEYA_API_KEY\" >'%s'\n", out);
    const char *program = write_program("tells", lines);
    kakeya_error error;
    assert_int_equal(setenv("LD_LIBRARY_PATH", "/some/where", 1), 0);
    assert_int_equal(setenv("KAKEYA_API_KEY", "secret", 1), 0);
    assert_int_equal(decode_by(program, &error), KAKEYA_FORMAT); /* it gives no picture */
    FILE *file = fopen(out, "r");
    assert_non_null(file);
    assert_true(fread(found, 1, sizeof found - 1, file) > 0);
    (void)fclose(file);
    assert_string_equal(found, "/some/where,");
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
    assert_int_equal(decode_by(program, &error), KAKEYA_FORMAT);
    file = fopen(out, "r");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    (void)fclose(file);
    assert_string_equal(found, ",");
}

static void program_that_is_not_there(void **state) {
    (void)state;
    kakeya_error error;
    assert_int_equal(decode_by(scratch_path("nothing"), &error), KAKEYA_IO);
    assert_non_null(strstr(error.message, "nothing"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(library_path_is_kept_alone),
        cmocka_unit_test(program_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
