/* Protects: what another program is given and may use; that a signature counts for its bytes, its namespace and its
 * listed key alone. With real keys, wherever ssh-keygen is. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/files.h"
#include "remote/keys.h"
#include "remote/process.h"
#include "scratch.h"

static kakeya_error error;

static kakeya_status call(const char *const *argv, size_t most, double seconds, process_answer *out) {
    static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    process_call c = {.argv = argv, .environment = environment, .most_output = most, .seconds = seconds};
    return process_run(&c, out, &error);
}

static void test_calls(void **state) {
    (void)state;
    process_answer answer;
    const char *const echo[] = {"echo", "a b", "$HOME;`id`", NULL};
    assert_ok(call(echo, 100, 60, &answer));
    assert_string_equal(answer.output, "a b $HOME;`id`\n"); /* there is no shell */
    assert_int_equal(answer.exit_status, 0);
    process_answer_free(&answer);

    const char *const environment[] = {"env", NULL};
    assert_ok(call(environment, 1000, 60, &answer));
    assert_string_equal(answer.output, "PATH=/usr/bin:/bin\n");
    process_answer_free(&answer);

    const char *const fails[] = {"sh", "-c", "printf 'one\\033[31m\\n\\ntwo\\n' >&2; exit 3", NULL};
    assert_ok(call(fails, 100, 60, &answer));
    assert_int_equal(answer.exit_status, 3);
    assert_string_equal(answer.complaint, "one?[31m; two");
    process_answer_free(&answer);

    const char *const missing[] = {"no-such-program-here", NULL};
    assert_refused(call(missing, 100, 60, &answer), KAKEYA_IO, "no-such-program-here: there is no such program");
}

static void test_input(void **state) {
    (void)state;
    size_t bytes = 3 << 20;
    char *text = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) text[i] = (char)(i * 7 + i / 251);
    const char *const argv[] = {"cat", NULL}, *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    process_call c = {.argv = argv,
                      .environment = environment,
                      .input = text,
                      .input_bytes = bytes,
                      .most_output = bytes,
                      .seconds = 60};
    process_answer answer;
    assert_ok(process_run(&c, &answer, &error));
    assert_int_equal(answer.bytes, bytes);
    assert_memory_equal(answer.output, text, bytes);
    process_answer_free(&answer);
    /* A program that does not want its input is no failure of ours. */
    const char *const none[] = {"true", NULL};
    c.argv = none;
    assert_ok(process_run(&c, &answer, &error));
    assert_int_equal(answer.exit_status, 0);
    process_answer_free(&answer);
    free(text);
}

static void test_too_much(void **state) {
    (void)state;
    process_answer answer;
    const char *const flood[] = {"yes", NULL};
    assert_refused(call(flood, 10000, 60, &answer), KAKEYA_IO, "yes: more than 10000 bytes");
    /* The whole group goes, grandchildren included: they hold the pipe on stdin of `cat` open. */
    const char *const hangs[] = {"sh", "-c", "trap '' TERM; sleep 1000 | cat", NULL};
    assert_refused(call(hangs, 100, 0.2, &answer), KAKEYA_IO, "sh: no answer within 0 s");
    /* A descendant that keeps the output open does not keep us. */
    const char *const leaves[] = {"sh", "-c", "sleep 1000 & echo $!", NULL};
    assert_ok(call(leaves, 100, 100, &answer));
    assert_true(atoi(answer.output) > 1);
    kill(atoi(answer.output), SIGKILL);
    process_answer_free(&answer);
}

static bool say_yes(void) { return true; }

static void test_limits(void **state) {
    (void)state;
    const char *const argv[] = {"head", "-c", "1000000", "/dev/zero", NULL};
    const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    process_call c = {.argv = argv, .environment = environment, .most_output = 1 << 20, .seconds = 60};
    process_answer answer;
    assert_ok(process_run(&c, &answer, &error));
    process_answer_free(&answer);
    char file[600];
    snprintf(file, sizeof file, "of=%s", scratch_path("large"));
    const char *const large[] = {"dd", "if=/dev/zero", file, "bs=4096", "count=100", NULL};
    c.argv = large;
    c.limits.file_bytes = 100000;
    assert_ok(process_run(&c, &answer, &error));
    assert_int_not_equal(answer.exit_status, 0);
    process_answer_free(&answer);
    struct stat about;
    assert_int_equal(stat(scratch_path("large"), &about), 0);
    assert_true(about.st_size <= 100000);
    c.stopped = say_yes;
    const char *const sleeps[] = {"sleep", "1000", NULL};
    c.argv = sleeps;
    assert_refused(process_run(&c, &answer, &error), KAKEYA_CANCELLED, "sleep: interrupted");
}

/* ----------------------------------------------------------------------------------------------------------- keys */

static const char text[] = "what was signed\n";

static char *make_key(const char *name) { /* the text of its public half */
    char public[600];
    const char *path = scratch_path(name);
    assert_ok(keys_make(path, name, &error));
    snprintf(public, sizeof public, "%s.pub", path);
    size_t bytes;
    return scratch_read(public, &bytes);
}

static bool have_keys(void) {
    if (keys_check_program(&error) == KAKEYA_OK) return true;
    print_message("no ssh-keygen: %s\n", error.message);
    return false;
}

static kakeya_status verify(const char *signed_text, const char *signature, size_t bytes, char principal[REMOTE_NAME]) {
    return keys_verify(scratch_path("allowed"), scratch_directory, signed_text, strlen(signed_text), signature, bytes,
                       principal, &error);
}

static void test_signatures(void **state) {
    (void)state;
    if (!have_keys()) skip();
    char *alice = make_key("alice"), *mallory = make_key("mallory"), principal[REMOTE_NAME];
    assert_ok(keys_allow(scratch_path("allowed"), "alice", alice, &error));
    char *signature, *other;
    size_t bytes, other_bytes;
    assert_ok(keys_sign(scratch_path("alice"), text, strlen(text), &signature, &bytes, &error));
    assert_ok(verify(text, signature, bytes, principal));
    assert_string_equal(principal, "alice");
    assert_refused(verify("what was Signed\n", signature, bytes, principal), KAKEYA_FORMAT, "signature");
    assert_string_equal(principal, "");
    assert_refused(verify("", signature, bytes, principal), KAKEYA_FORMAT, "signature");

    /* every byte of the signature counts, or is not one that matters to the armour */
    size_t taken = 0;
    for (size_t i = 40; i + 40 < bytes; i += 17) {
        char *changed = malloc(bytes + 1);
        memcpy(changed, signature, bytes + 1);
        changed[i] = changed[i] == 'A' ? 'B' : 'A';
        taken += verify(text, changed, bytes, principal) == KAKEYA_OK;
        free(changed);
    }
    assert_int_equal(taken, 0);

    assert_ok(keys_sign(scratch_path("mallory"), text, strlen(text), &other, &other_bytes, &error));
    assert_refused(verify(text, other, other_bytes, principal), KAKEYA_FORMAT, "not listed");
    free(other);

    /* the right key in another namespace */
    const char *path = scratch_path("alice");
    const char *const argv[] = {"ssh-keygen", "-q", "-Y", "sign", "-f", path, "-n", "git", NULL};
    const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    process_call c = {.argv = argv,
                      .environment = environment,
                      .input = text,
                      .input_bytes = strlen(text),
                      .most_output = 1 << 16,
                      .seconds = 60};
    process_answer answer;
    assert_ok(process_run(&c, &answer, &error));
    assert_int_equal(answer.exit_status, 0);
    assert_refused(verify(text, answer.output, answer.bytes, principal), KAKEYA_FORMAT, "signature");
    process_answer_free(&answer);

    assert_refused(verify(text, "", 0, principal), KAKEYA_FORMAT, "there is none");
    assert_refused(verify(text, "hello", 5, principal), KAKEYA_FORMAT, "there is none");

    /* Another key for the same name replaces the first. */
    assert_ok(keys_allow(scratch_path("allowed"), "alice", mallory, &error));
    assert_refused(verify(text, signature, bytes, principal), KAKEYA_FORMAT, "not listed");
    assert_ok(keys_allow(scratch_path("allowed"), "bob", alice, &error));
    assert_ok(verify(text, signature, bytes, principal));
    assert_string_equal(principal, "bob");
    free(signature);
    free(alice);
    free(mallory);
}

static void test_public_keys(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "ssh-ed25519",
                                      "ssh-ed25519 short",
                                      "hello world",
                                      "-----BEGIN OPENSSH PRIVATE KEY-----",
                                      "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOxxxxxxxxxxxxxxxxx\"\nmallory ssh",
                                      "cert-authority,ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOxxxxxxxxxxxxxxxxx"};
    char *out;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(keys_read_public(bad[i], &out, &error), KAKEYA_FORMAT, "no public SSH key");
    assert_ok(keys_read_public("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOxxxxxxxxxxxxxxxxx alice@home\n", &out, &error));
    assert_string_equal(out, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOxxxxxxxxxxxxxxxxx");
    free(out);
    assert_refused(keys_allow(scratch_path("allowed"), "*", "ssh-ed25519 x", &error), KAKEYA_INVALID_ARGUMENT,
                   "'*' is no name");
    assert_refused(keys_allow(scratch_path("allowed"), "a,b", "x", &error), KAKEYA_INVALID_ARGUMENT, "no name");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),  cmocka_unit_test(test_input),      cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_signatures), cmocka_unit_test(test_public_keys),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
