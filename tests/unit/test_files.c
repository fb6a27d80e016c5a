/* Protects: mapping and reading give the file's bytes, whatever stat says of them; a writer never leaves a partial or a
 * stray file, and never puts a file where a device, a FIFO, a socket or a link was. All special files are made in a
 * scratch folder; none of the machine's own is ever opened for writing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/files.h"
#include "scratch.h"

static kakeya_error error;

static int entries(const char *directory) {
    int n = 0;
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
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
    assert_refused(file_map_open(scratch_directory, &map, &error), KAKEYA_IO, scratch_directory, "is a directory");
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
    assert_refused(file_read(path, 2, &data, &bytes, &error), KAKEYA_FORMAT, path, "more than the 2 bytes");
    assert_null(data);
    assert_refused(file_read("/", 10, &data, &bytes, &error), KAKEYA_IO, "is a directory");
}

/* Writes a text of its own length into a descriptor, slowly enough to come in pieces. */
typedef struct feed {
    const char *path;
    size_t bytes;
} feed;

static void *feed_fifo(void *argument) {
    const feed *f = argument;
    int fd = open(f->path, O_WRONLY);
    for (size_t i = 0; fd >= 0 && i < f->bytes; i++) {
        char byte = (char)('a' + i % 26);
        if (write(fd, &byte, 1) != 1) break;
    }
    close(fd);
    return NULL;
}

static void test_read_of_unknown_size(void **state) {
    (void)state;
    char *data;
    size_t bytes;
    assert_ok(file_read("/proc/self/status", 1 << 20, &data, &bytes, &error)); /* its size is 0 by stat */
    assert_non_null(strstr(data, "Pid:"));
    free(data);

    const char *path = scratch_path("fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 200000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        pthread_t thread;
        feed f = {path, sizes[i]};
        assert_int_equal(pthread_create(&thread, NULL, feed_fifo, &f), 0);
        assert_ok(file_read(path, 200000, &data, &bytes, &error));
        pthread_join(thread, NULL);
        assert_int_equal(bytes, sizes[i]);
        for (size_t b = 0; b < bytes; b++)
            if (data[b] != (char)('a' + b % 26)) fail_msg("byte %zu of %zu is %d", b, bytes, data[b]);
        assert_int_equal(data[bytes], '\0');
        free(data);
    }
    /* What is read is counted, not what stat says: an endless device is refused, and memory stays bounded. */
    assert_refused(file_read("/dev/zero", 100000, &data, &bytes, &error), KAKEYA_FORMAT, "/dev/zero", "100000 bytes");
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

static void write_text(const char *path, const char *text) {
    file_writer *writer;
    assert_ok(file_writer_open(path, &writer, &error));
    assert_ok(file_writer_write(writer, text, strlen(text), &error));
    assert_ok(file_writer_commit(writer, &error));
}

static void assert_content(const char *path, const char *text) {
    size_t bytes;
    char *data = scratch_read(path, &bytes);
    assert_string_equal(data, text);
    free(data);
}

static mode_t kind_of(const char *path) {
    struct stat about;
    assert_int_equal(lstat(path, &about), 0);
    return about.st_mode & S_IFMT;
}

static void test_writer_follows_links(void **state) {
    (void)state;
    scratch_folder("links/deep");
    const char *target = scratch_path("links/deep/target"), *link = scratch_path("links/link");
    assert_int_equal(symlink("deep/target", link), 0);
    write_text(link, "made through a dangling link");
    assert_content(target, "made through a dangling link");
    write_text(link, "replaced");
    assert_content(target, "replaced");
    assert_true(kind_of(link) == S_IFLNK);

    const char *second = scratch_path("links/second");
    assert_int_equal(symlink(link, second), 0); /* absolute, and a link to a link */
    write_text(second, "through two");
    assert_content(target, "through two");
    assert_true(kind_of(second) == S_IFLNK && kind_of(link) == S_IFLNK);
    assert_int_equal(entries(scratch_path("links")), 3);
    assert_int_equal(entries(scratch_path("links/deep")), 1);

    file_writer *writer;
    const char *circle = scratch_path("links/circle");
    assert_int_equal(symlink("circle", circle), 0);
    assert_refused(file_writer_open(circle, &writer, &error), KAKEYA_IO, circle, "symbolic links");
    const char *lost = scratch_path("links/lost");
    assert_int_equal(symlink("nowhere/file", lost), 0);
    assert_refused(file_writer_open(lost, &writer, &error), KAKEYA_IO, lost, "No such file");
}

static void test_writer_keeps_modes(void **state) {
    (void)state;
    mode_t before = umask(027);
    const char *path = scratch_path("mode");
    write_text(path, "new");
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640); /* as open() makes files under this umask */
    umask(before);
    assert_int_equal(chmod(path, 0604), 0);
    write_text(path, "again");
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0604);

    assert_int_equal(chmod(path, 0444), 0);
    file_writer *writer;
    assert_refused(file_writer_open(path, &writer, &error), KAKEYA_IO, path, "read-only");
    assert_content(path, "again");
    assert_refused(file_writer_open("", &writer, &error), KAKEYA_IO, "empty");
}

static void *read_fifo(void *path) {
    char *data = NULL;
    size_t bytes;
    return file_read(path, 1 << 20, &data, &bytes, NULL) == KAKEYA_OK ? data : NULL;
}

static void test_writer_writes_fifos_through(void **state) {
    (void)state;
    scratch_folder("f");
    char *path = (char *)(uintptr_t)scratch_path("f/fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_fifo, path), 0);
    file_writer *writer;
    assert_ok(file_writer_open(path, &writer, &error));
    assert_true(file_writer_is_stream(writer));
    assert_ok(file_writer_write(writer, "through", 7, &error));
    assert_ok(file_writer_commit(writer, &error));
    void *data = NULL;
    pthread_join(thread, &data);
    assert_non_null(data);
    assert_string_equal(data, "through");
    free(data);
    assert_true(kind_of(path) == S_IFIFO);
    assert_int_equal(entries(scratch_path("f")), 1);
}

static void test_writer_connects_to_sockets(void **state) {
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = scratch_path("socket");
    assert_true(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    file_writer *writer;
    assert_refused(file_writer_open(path, &writer, &error), KAKEYA_IO, path, "refused"); /* nobody listens */
    assert_int_equal(listen(listener, 1), 0);
    write_text(path, "to a socket");
    int other = accept(listener, NULL, NULL);
    char text[32] = "";
    assert_int_equal(read(other, text, sizeof text - 1), 11);
    assert_string_equal(text, "to a socket");
    close(other);
    close(listener);
    assert_true(kind_of(path) == S_IFSOCK);
}

static void test_writer_spares_devices(void **state) {
    (void)state;
    scratch_folder("d");
    const char *null = scratch_path("d/null"), *full = scratch_path("d/full"), *disk = scratch_path("d/disk");
    if (mknod(null, S_IFCHR | 0666, makedev(1, 3)) != 0 || open(null, O_WRONLY | O_CLOEXEC) < 0) skip();
    write_text(null, "nothing"); /* a device like /dev/null stays one */
    assert_true(kind_of(null) == S_IFCHR);
    assert_int_equal(mknod(full, S_IFCHR | 0666, makedev(1, 7)), 0);
    file_writer *writer;
    assert_ok(file_writer_open(full, &writer, &error));
    assert_refused(file_writer_write(writer, "x", 1, &error), KAKEYA_IO, full, "No space left");
    file_writer_abort(writer);
    assert_true(kind_of(full) == S_IFCHR);
    /* a block device that does not exist: the refusal comes before anything is opened */
    if (mknod(disk, S_IFBLK | 0666, makedev(254, 250)) == 0)
        assert_refused(file_writer_open(disk, &writer, &error), KAKEYA_IO, disk, "block device");
    const char *link = scratch_path("d/link");
    assert_int_equal(symlink("null", link), 0);
    write_text(link, "nothing");
    assert_true(kind_of(null) == S_IFCHR && kind_of(link) == S_IFLNK);
}

static void test_writer_takes_open_descriptors(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    char path[32], text[8] = "";
    snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    write_text(path, "piped");
    assert_int_equal(read(ends[0], text, sizeof text - 1), 5);
    assert_string_equal(text, "piped");
    close(ends[0]);
    close(ends[1]);
    /* Behind what the descriptor's file already holds: a file that standard output goes to is not replaced. */
    const char *file = scratch_text("stdout", "before ");
    int fd = open(file, O_WRONLY | O_APPEND);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    write_text(path, "behind");
    assert_int_equal(write(fd, " after", 6), 6);
    close(fd);
    assert_content(file, "before behind after");
}

/* However the program ends, nothing lies beside the target. */
static void test_killed_writers_leave_nothing(void **state) {
    (void)state;
    scratch_folder("k");
    const char *path = scratch_text("k/out", "old");
    pid_t child = fork();
    if (!child) {
        file_writer *writer;
        if (file_writer_open(path, &writer, &error) == KAKEYA_OK) file_writer_write(writer, "new", 3, &error);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_content(path, "old");
    int probe = open(scratch_path("k"), O_TMPFILE | O_WRONLY, 0600); /* some file systems cannot make nameless files */
    if (probe >= 0) assert_int_equal(entries(scratch_path("k")), 1);
    close(probe);
}

static void test_files_too_large_are_an_error(void **state) {
    (void)state;
    scratch_folder("large");
    const char *path = scratch_text("large/out", "old");
    pid_t child = fork();
    if (!child) {
        signal(SIGXFSZ, SIG_IGN);
        struct rlimit limit = {4, 4};
        setrlimit(RLIMIT_FSIZE, &limit);
        file_writer *writer;
        kakeya_status result = file_writer_open(path, &writer, &error);
        if (result == KAKEYA_OK) result = file_writer_write(writer, "too much", 8, &error);
        if (result == KAKEYA_IO && strstr(error.message, "File too large")) {
            file_writer_abort(writer);
            _exit(0);
        }
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_content(path, "old");
    assert_int_equal(entries(scratch_path("large")), 1);
}

static void test_same_files(void **state) {
    (void)state;
    const char *path = scratch_text("same", "x"), *link = scratch_path("same-link");
    assert_int_equal(symlink("same", link), 0);
    assert_true(file_same(path, link));
    assert_false(file_same(path, scratch_text("other", "x")));
    assert_false(file_same(path, scratch_path("absent")));
    assert_false(file_same(scratch_path("absent"), scratch_path("absent")));
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
        cmocka_unit_test(test_read_of_unknown_size),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_writer_follows_links),
        cmocka_unit_test(test_writer_keeps_modes),
        cmocka_unit_test(test_writer_writes_fifos_through),
        cmocka_unit_test(test_writer_connects_to_sockets),
        cmocka_unit_test(test_writer_spares_devices),
        cmocka_unit_test(test_writer_takes_open_descriptors),
        cmocka_unit_test(test_killed_writers_leave_nothing),
        cmocka_unit_test(test_files_too_large_are_an_error),
        cmocka_unit_test(test_same_files),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
