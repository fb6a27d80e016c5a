/* What the files of sessions know beside their tokens: told to every server that uses their directory, once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve/store.h"

#include "scratch.h"
#include "store_support.h"

enum { PROMPT = 70 };

/* A request whose prompt goes on behind the r->n_all tokens that are there. */
static void turn(prefix_store *store, request *r, uint64_t seed) {
    fake_prompt(r->ids + r->n_all, 10, seed, FAKE_VOCAB);
    r->n = r->n_all + 10;
    const size_t stops[] = {r->n / 2, r->n - 2};
    serve(store, r, stops, 2, 5, 1);
}

static size_t files_in(const char *path) {
    size_t n = 0;
    DIR *list = opendir(path);
    assert_non_null(list);
    for (struct dirent *e; (e = readdir(list)) != NULL;) n += strstr(e->d_name, ".kkc") != NULL;
    closedir(list);
    return n;
}

/* The first place of `text` in the file becomes another one. */
static void damage(int directory, const char *name, const char *text) {
    static char data[1 << 20];
    int fd = openat(directory, name, O_RDWR);
    assert_true(fd >= 0);
    ssize_t bytes = read(fd, data, sizeof data);
    assert_in_range(bytes, 1, sizeof data - 1);
    const char *at = memmem(data, (size_t)bytes, text, strlen(text));
    assert_non_null(at);
    const char other = (char)(at[1] ^ 1);
    assert_int_equal(pwrite(fd, &other, 1, at + 1 - data), 1);
    close(fd);
}

typedef struct note_list {
    char *texts[16]; /* as taken */
    size_t n;
} note_list;

static char *give_note(void *user, const int32_t *ids, size_t n) {
    (void)user;
    char *text = malloc(64);
    assert_non_null(text);
    snprintf(text, 64, "[%d,%zu]", (int)ids[0], n);
    return text;
}

static void take_note(void *user, const char *json) {
    note_list *list = user;
    assert_true(list->n < 16);
    const char *turns = strstr(json, "\"turns\":");
    assert_non_null(turns);
    list->texts[list->n++] = strdup(turns + 8);
}

static void assert_notes(prefix_store *store, note_list *list, size_t n) {
    list->n = 0;
    store_read_notes(store);
    if (list->n != n) fail_msg("%zu notes, expected %zu", list->n, n);
}

static void free_notes(note_list *list) {
    for (size_t i = 0; i < list->n; i++) free(list->texts[i]);
    list->n = 0;
}

/* What files know beside their tokens is told once: of those that were there, and of those that another server saves
 * meanwhile; the last used comes last. A server knows its own, and nothing is taken of a damaged one. */
static void test_notes(void **state) {
    (void)state;
    const char *path = scratch_path("notes");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    note_list list = {0};
    const store_options options = {.ram_bytes = (size_t)1 << 30,
                                   .directory = path,
                                   .least_file_tokens = 20,
                                   .checkpoint_delay = 1000,
                                   .idle_delay = 1000,
                                   .notes = give_note,
                                   .take_notes = take_note,
                                   .notes_user = &list};
    prefix_store *early = open_store(engine, &so, options), *store = open_store(engine, &so, options);
    static request r;
    r.n_all = PROMPT;
    fake_prompt(r.ids, PROMPT, 1, FAKE_VOCAB);
    turn(store, &r, 51);
    store_close(store, 20);
    assert_notes(early, &list, 3);
    free_notes(&list);
    assert_notes(early, &list, 0);
    /* its own files are no news to it, but to the next server */
    turn(early, &r, 2);
    store_close(early, 20);
    store = open_store(engine, &so, options);
    size_t n = 0, all = files_in(path);
    assert_true(all > 3);
    char oldest[256] = "";
    DIR *files = opendir(path);
    for (struct dirent *e; (e = readdir(files)) != NULL;) {
        if (!strstr(e->d_name, ".kkc")) continue;
        const struct timespec times[2] = {{.tv_sec = 1000 + (time_t)n}, {.tv_sec = 1000 + (time_t)n}};
        assert_int_equal(utimensat(dirfd(files), e->d_name, times, 0), 0);
        if (n++ == 0) snprintf(oldest, sizeof oldest, "%s", e->d_name);
    }
    store_close(store, 0);
    store = open_store(engine, &so, options);
    assert_notes(store, &list, all);
    char *first = strdup(list.texts[0]);
    free_notes(&list);
    store_close(store, 0);
    /* the oldest file is damaged in what it says */
    damage(dirfd(files), oldest, first);
    store = open_store(engine, &so, options);
    assert_notes(store, &list, all - 1);
    for (size_t i = 0; i < list.n; i++) assert_string_not_equal(list.texts[i], first);
    free_notes(&list);
    free(first);
    closedir(files);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_notes)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
