/* Protects: limits of a run hold on all of its processes; what a worker has noted counts after a crash; documents of
 * the bus are read as they were written, and bear anything else; units start the words that they are given. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __linux__
#include <sched.h>
#endif
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "remote/documents.h"
#include "remote/first_seen.h"
#include "remote/folders.h"
#include "remote/install.h"
#include "remote/runner.h"
#include "remote/served.h"
#include "scratch.h"

static kakeya_error error;

/* ----------------------------------------------------------------------------------------------------------- runs */

static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};

static runner_job job_of(const char *folder, const char *const *argv) {
    return (runner_job){.argv = argv,
                        .environment = environment,
                        .folder = scratch_folder(folder),
                        .seconds = 1000,
                        .grace_seconds = 0.2,
                        .log_bytes = 1 << 20,
                        .output_bytes = 1 << 20};
}

static runner_end run(const runner_job *job, double stop_after) {
    runner r;
    runner_end end;
    assert_ok(runner_start(job, &r, &error));
    bool over = runner_wait(&r, stop_after > 0 ? stop_after : 300, &end);
    if (!over) {
        assert_true(stop_after > 0);
        runner_stop(&r);
        assert_true(runner_wait(&r, 300, &end));
    }
    assert_true(runner_wait_alone(job->folder, 300));
    return end;
}

static void test_run_ends(void **state) {
    (void)state;
    const char *const argv[] = {"/bin/sh", "-c", "pwd; echo out; echo err >&2; exit 3", NULL};
    runner_job job = job_of("ends", argv);
    runner_end end = run(&job, 0);
    assert_int_equal(end.reason, RUNNER_EXITED);
    assert_int_equal(end.exit_status, 3);
    size_t bytes;
    char *log = runner_log_tail(job.folder, 1 << 20, &bytes);
    assert_non_null(strstr(log, "out\n"));
    assert_non_null(strstr(log, "err\n"));
    assert_non_null(strstr(log, "/ends\n"));
    free(log);

    job.output = "output";
    run(&job, 0);
    char *output = scratch_read(scratch_path("ends/output"), &bytes);
    assert_non_null(strstr(output, "out\n"));
    assert_null(strstr(output, "err"));
    free(output);
    log = runner_log_tail(job.folder, 3, &bytes);
    assert_string_equal(log, "rr\n");
    free(log);

    const char *const missing[] = {"/no/such/program", NULL};
    job.argv = missing;
    end = run(&job, 0);
    assert_int_equal(end.reason, RUNNER_FAILED);
    assert_non_null(strstr(end.message, "/no/such/program"));
}

/* A run whose time is over, but not before it has written `file` as its last preparation. */
static runner_end run_out_of_time(runner_job *job, const char *file) {
    for (job->seconds = 0.25;; job->seconds *= 2) {
        runner_end end = run(job, 0);
        struct stat about;
        if (stat(file, &about) == 0) return end;
        assert_int_equal(end.reason, RUNNER_TIMED_OUT);
    }
}

/* A run does without network where the system allows it: it has a network of its own, and is who it was. */
static void test_no_network(void **state) {
    (void)state;
#ifdef __linux__
    const char *const argv[] = {"/bin/sh", "-c", "readlink /proc/self/ns/net; id -u", NULL};
    char here[64] = "", who[24];
    snprintf(who, sizeof who, "\n%u\n", geteuid());
    for (int without = 0; without < 2; without++) {
        runner_job job = job_of("network", argv);
        size_t bytes;
        int refused = 0;
        pid_t child = without ? fork() : -1;
        if (child == 0) _exit(unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0);
        if (child > 0) assert_int_equal(waitpid(child, &refused, 0), child);
        job.limits.no_network = without;
        assert_int_equal(run(&job, 0).exit_status, 0);
        char *log = runner_log_tail(job.folder, 1 << 20, &bytes);
        /* Some systems give the namespace and then refuse the names in it; what the run may do is the same. */
        assert_true(strstr(log, who) || (without && strstr(log, "\n65534\n")));
        assert_true(readlink("/proc/self/ns/net", here, sizeof here - 1) > 0);
        assert_int_equal(strstr(log, here) == NULL, without && !refused);
        free(log);
    }
#endif
}

/* Children that ignore SIGTERM, and their children. */
static void test_time(void **state) {
    (void)state;
    const char *const argv[] = {"/bin/sh", "-c",
                                "trap '' TERM; sleep 1000 & echo $! >new; mv new pid; wait; sleep 1000", NULL};
    runner_job job = job_of("time", argv);
    runner_end end = run_out_of_time(&job, scratch_path("time/pid"));
    assert_int_equal(end.reason, RUNNER_TIMED_OUT);
    assert_int_equal(end.exit_status, 128 + SIGKILL);
    size_t bytes;
    char *pid = scratch_read(scratch_path("time/pid"), &bytes);
    assert_true(atoi(pid) > 1);
    for (int i = 0; kill(atoi(pid), 0) == 0 && i < 30000; i++) usleep(10000); /* until somebody has waited for it */
    assert_int_not_equal(kill(atoi(pid), 0), 0);
    free(pid);

    job.seconds = 1000;
    end = run(&job, 0.3);
    assert_int_equal(end.reason, RUNNER_STOPPED);

    /* One that ends when it is asked: its own exit status, and the reason. */
    const char *const obeys[] = {"/bin/sh", "-c", "trap 'exit 7' TERM; sleep 1000 & echo >ready; wait", NULL};
    job = job_of("obeys", obeys);
    job.grace_seconds = 1000;
    end = run_out_of_time(&job, scratch_path("obeys/ready"));
    assert_int_equal(end.reason, RUNNER_TIMED_OUT);
    assert_int_equal(end.exit_status, 7);
}

static void test_logs(void **state) {
    (void)state;
    const char *const flood[] = {"/bin/sh", "-c", "yes flood >&2", NULL};
    runner_job job = job_of("flood", flood);
    job.log_bytes = 3 * RUNNER_LOG_PART;
    runner_end end = run(&job, 0);
    assert_int_equal(end.reason, RUNNER_LOG_LIMIT);
    size_t bytes;
    char *log = runner_log_tail(job.folder, 10000, &bytes);
    assert_int_equal(bytes, 10000);
    free(log);
    log = runner_log_tail(job.folder, SIZE_MAX, &bytes);
    assert_true(bytes <= 3 * RUNNER_LOG_PART + 65536);
    free(log);

    /* The last part of a log is kept, whatever was before. */
    const char *const last[] = {"/bin/sh", "-c", "yes | head -c 1200000; echo the end", NULL};
    job = job_of("last", last);
    job.log_bytes = 2 << 20;
    end = run(&job, 0);
    assert_int_equal(end.reason, RUNNER_EXITED);
    log = runner_log_tail(job.folder, 12, &bytes);
    assert_string_equal(log, "y\ny\nthe end\n");
    free(log);

    job = job_of("output", flood);
    const char *const output[] = {"/bin/sh", "-c", "yes", NULL};
    job.argv = output;
    job.output = "output";
    job.output_bytes = 100000;
    end = run(&job, 0);
    assert_int_equal(end.reason, RUNNER_OUTPUT_LIMIT);
    struct stat about;
    assert_int_equal(stat(scratch_path("output/output"), &about), 0);
    assert_true(about.st_size <= 100000);
}

static void test_one_at_a_time(void **state) {
    (void)state;
    const char *const argv[] = {"/bin/sh", "-c", "sleep 1000", NULL};
    runner_job job = job_of("one", argv);
    runner first, second;
    runner_end end;
    assert_ok(runner_start(&job, &first, &error));
    assert_false(runner_wait_alone(job.folder, 0));
    assert_refused(runner_start(&job, &second, &error), KAKEYA_IO, "a run is going on");
    runner_stop(&first);
    assert_true(runner_wait(&first, 300, &end));
    assert_true(runner_wait_alone(job.folder, 10));
}

/* ----------------------------------------------------------------------------------------------------------- notes */

static const char digest[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

static void test_served(void **state) {
    (void)state;
    const char *path = scratch_path("served.log");
    served *s;
    int64_t noon = 1795262400; /* 2026-11-21T12:00:00Z */
    assert_ok(served_open(path, &s, &error));
    assert_null(served_find(s, "20261121T203012Z-00000001"));
    assert_ok(served_add(s, noon, "20261121T203012Z-00000002", digest, SERVED_START, "alice", 0, &error));
    assert_ok(served_add(s, noon, "20261121T203012Z-00000001", digest, SERVED_START, "bob", 0, &error));
    assert_ok(served_add(s, noon, "20261121T203012Z-00000001", digest, SERVED_START, "bob", 0, &error));
    assert_ok(served_add(s, noon, "20261121T203012Z-00000002", digest, SERVED_END, "alice", 90.5, &error));
    assert_ok(served_add(s, noon, "20261121T203012Z-00000003", digest, SERVED_REJECT, "", 0, &error));
    served_close(s);
    FILE *file = fopen(path, "a"); /* a crash in the middle of a line */
    fputs("2026-11-21T12:00:00Z 20261121T203012Z-00000004 ba78", file);
    fclose(file);
    for (int i = 0; i < 2; i++) {
        assert_ok(served_open(path, &s, &error));
        assert_int_equal(served_find(s, "20261121T203012Z-00000001")->starts, 2);
        assert_false(served_find(s, "20261121T203012Z-00000001")->over);
        assert_true(served_find(s, "20261121T203012Z-00000002")->over);
        assert_int_equal(served_find(s, "20261121T203012Z-00000003")->refusals, 1);
        assert_null(served_find(s, "20261121T203012Z-00000004"));
        assert_true(served_seconds_today(s, "alice", noon) == 90.5);
        assert_true(served_seconds_today(s, "alice", noon + 86400) == 0);
        assert_true(served_seconds_today(s, "bob", noon) == 0);
        if (!i)
            assert_ok(served_add(s, noon, "20261121T203012Z-00000005", digest, SERVED_LOST, "bob", 0, &error));
        else
            assert_true(served_find(s, "20261121T203012Z-00000005")->over);
        served_close(s);
    }
}

static void test_first_seen(void **state) {
    (void)state;
    const char *folder = scratch_folder("first_seen");
    static const char a[] = "1111111111111111111111111111111111111111",
                      b[] = "2222222222222222222222222222222222222222";
    char text[200];
    snprintf(text, sizeof text, "%s %lld\n%s 99999999999\nrubbish\n", a, (long long)time(NULL) - 100, b);
    scratch_text("first_seen/seen", text);
    first_seen *s;
    assert_ok(first_seen_open(folder, &s, &error));
    double seconds = first_seen_seconds(s, a);
    assert_true(seconds >= 99 && seconds < 1000);
    assert_true(first_seen_seconds(s, b) < 99); /* from the future: seen now */
    assert_false(first_seen_is_put_off(s, a));
    first_seen_put_off(s, a, 1000);
    assert_true(first_seen_is_put_off(s, a));
    assert_int_equal(first_seen_times(s, a), 1);
    bus_ref ref = {.nonce = "20261121T203012Z-00000001"};
    memcpy(ref.oid[BUS_CLAIM], a, sizeof a);
    assert_ok(first_seen_keep(s, &ref, 1, &error));
    first_seen_close(s);
    assert_ok(first_seen_open(folder, &s, &error));
    assert_true(first_seen_seconds(s, a) >= 99);
    assert_true(first_seen_seconds(s, b) < 1);
    first_seen_close(s);
}

/* ------------------------------------------------------------------------------------------------------- documents */

static void test_documents(void **state) {
    (void)state;
    char *text;
    size_t bytes;
    claim c = {.nonce = "20261121T203012Z-9f3c2ab1",
               .worker = "mini",
               .attempt = 2,
               .since = 1795262400,
               .lease_until = 1795262700,
               .rows = 7,
               .host = "a machine"},
          d;
    memcpy(c.tail_sha256, digest, sizeof digest);
    assert_ok(claim_write(&c, &text, &bytes, &error));
    assert_ok(claim_read(text, bytes, &d, &error));
    assert_memory_equal(&c, &d, sizeof c);
    result r;
    assert_refused(result_read(text, bytes, &r, &error), KAKEYA_FORMAT, "it is no result");
    cancel k;
    assert_refused(cancel_read(text, bytes, &k, &error), KAKEYA_FORMAT, "it is no cancel");
    free(text);

    result e = {.nonce = "20261121T203012Z-9f3c2ab1",
                .worker = "mini",
                .preset = "niah",
                .requested_by = "alice",
                .outcome = "failed",
                .reason = "exit \x1b[31m status 3",
                .n_words = 2,
                .exit_status = 3,
                .attempt = 1,
                .seconds = 1.5,
                .finished = 1795262400,
                .verdict = "refused",
                .n_codes = 1,
                .host = "a machine"};
    memcpy(e.request_sha256, digest, sizeof digest);
    strcpy(e.word[0], "kakeya");
    strcpy(e.word[1], "eval");
    strcpy(e.code[0], "RECALL");
    result_add_file(&e, "report.json", "abc", 3);
    assert_ok(result_write(&e, &text, &bytes, &error));
    assert_ok(result_read(text, bytes, &r, &error));
    assert_string_equal(r.reason, "exit ?[31m status 3");
    assert_string_equal(r.word[1], "eval");
    assert_string_equal(r.code[0], "RECALL");
    assert_string_equal(r.file[0].name, "report.json");
    assert_string_equal(r.file[0].sha256, digest);
    assert_int_equal(r.exit_status, 3);

    static const struct {
        const char *from, *to;
    } broken[] = {{"\"report.json\"", "\"../report.json\""},
                  {"\"failed\"", "\"fine\""},
                  {"\"refused\"", "\"great\""},
                  {"\"mini\"", "\"../mini\""},
                  {"\"kakeya\"", "7"},
                  {"20261121T", "2026"},
                  {"\"version\"", "\"kind\""},
                  {"\"files\"", "\"worker\""},
                  {"\"seconds\":\t1.5", "\"seconds\":\t-1"},
                  {"\"argv\"", "\"argc\":{},\"argv\""}};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        char *changed = scratch_replace(text, broken[i].from, broken[i].to);
        kakeya_status status = result_read(changed, strlen(changed), &r, &error);
        if (i + 1 < sizeof broken / sizeof broken[0])
            assert_int_equal(status, KAKEYA_FORMAT);
        else
            assert_int_equal(status, KAKEYA_OK); /* later versions may say more */
        free(changed);
    }
    for (size_t n = 0; n < bytes - 2; n++) assert_int_equal(result_read(text, n, &r, &error), KAKEYA_FORMAT);
    free(text);

    cancel stop = {.nonce = "20261121T203012Z-9f3c2ab1", .requested_by = "alice"};
    memcpy(stop.bus, digest, sizeof digest);
    assert_ok(cancel_write(&stop, &text, &bytes, &error));
    assert_ok(cancel_read(text, bytes, &k, &error));
    assert_memory_equal(&stop, &k, sizeof k);
    free(text);
}

static void test_units(void **state) {
    (void)state;
    const char *const words[] = {"/opt/my kakeya/bin/kakeya", "remote", "100%", "a\"b\\c$HOME<&>"};
    char *text;
    assert_ok(install_text(INSTALL_SYSTEMD, words, 4, &text, &error));
    assert_non_null(
        strstr(text, "\nExecStart=\"/opt/my kakeya/bin/kakeya\" \"remote\" \"100%%\" \"a\\\"b\\\\c$$HOME<&>\"\n"));
    free(text);
    assert_ok(install_text(INSTALL_LAUNCHD, words, 4, &text, &error));
    assert_non_null(strstr(text, "<string>a\"b\\c$HOME&lt;&amp;&gt;</string>"));
    free(text);
    const char *const line_feed[] = {"/bin/x\nExecStart=/bin/y"};
    assert_refused(install_text(INSTALL_SYSTEMD, line_feed, 1, &text, &error), KAKEYA_INVALID_ARGUMENT, "line feed");
}

static void test_folders(void **state) {
    (void)state;
    assert_ok(folder_make(scratch_path("a/b/c"), &error));
    assert_ok(folder_make(scratch_path("a/b/c"), &error));
    scratch_text("kept", "kept");
    scratch_text("a/b/file", "x");
    assert_int_equal(symlink(scratch_path("kept"), scratch_path("a/link")), 0);
    assert_int_equal(symlink(scratch_directory, scratch_path("a/folder")), 0);
    folder_remove(scratch_path("a"));
    assert_int_not_equal(access(scratch_path("a"), F_OK), 0);
    assert_int_equal(access(scratch_path("kept"), F_OK), 0);
    assert_refused(folder_make(scratch_path("kept/x"), &error), KAKEYA_IO, "kept/x");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_ends),   cmocka_unit_test(test_no_network),    cmocka_unit_test(test_time),
        cmocka_unit_test(test_logs),       cmocka_unit_test(test_one_at_a_time), cmocka_unit_test(test_served),
        cmocka_unit_test(test_first_seen), cmocka_unit_test(test_documents),     cmocka_unit_test(test_units),
        cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
