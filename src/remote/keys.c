#include "remote/keys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "remote/process.h"

static const double seconds_to_sign = 60; /* a key in hardware may have to be touched */
static const double seconds_to_verify = 30;
enum { MAX_ALLOWED_BYTES = 1 << 20 };

static kakeya_status run(const char *const *argv, const char *input, size_t bytes, double seconds, process_answer *out,
                         kakeya_error *error) {
    char **environment = process_environment();
    if (!environment) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    process_call call = {.argv = argv,
                         .environment = (const char *const *)environment,
                         .input = input,
                         .input_bytes = bytes,
                         .most_output = 64 << 10,
                         .seconds = seconds};
    kakeya_status status = process_run(&call, out, error);
    process_environment_free(environment);
    return status;
}

kakeya_status keys_check_program(kakeya_error *error) {
    static const char *const argv[] = {"ssh-keygen", "-Y", "find-principals", "-f",
                                       "/dev/null",  "-s", "/dev/null",       NULL};
    process_answer answer;
    kakeya_error cause;
    kakeya_status status = run(argv, NULL, 0, seconds_to_verify, &answer, &cause);
    if (status != KAKEYA_OK)
        return error_set(error, KAKEYA_UNSUPPORTED, "ssh-keygen does not run (%s): install OpenSSH 8.2 or later",
                         cause.message);
    bool old = strstr(answer.complaint, "option -- ") || strstr(answer.complaint, "nsupported operation") ||
               strstr(answer.complaint, "sage: ssh-keygen");
    process_answer_free(&answer);
    if (!old) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "this ssh-keygen is too old to sign and verify files (-Y): install OpenSSH 8.2 or later");
}

kakeya_status keys_sign(const char *key, const char *text, size_t bytes, char **signature, size_t *signature_bytes,
                        kakeya_error *error) {
    const char *const argv[] = {"ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", KEYS_NAMESPACE, NULL};
    process_answer answer;
    kakeya_status status = run(argv, text, bytes, seconds_to_sign, &answer, error);
    if (status != KAKEYA_OK) return status;
    if (answer.exit_status != 0 || !keys_is_signature(answer.output, answer.bytes)) {
        status = error_set(error, KAKEYA_IO,
                           "%s: cannot sign with this key: %s (a key with a passphrase has to be in ssh-agent)", key,
                           answer.complaint);
        process_answer_free(&answer);
        return status;
    }
    *signature = answer.output;
    *signature_bytes = answer.bytes;
    return KAKEYA_OK;
}

bool keys_is_signature(const char *signature, size_t bytes) {
    static const char begin[] = "-----BEGIN SSH SIGNATURE-----\n", end[] = "-----END SSH SIGNATURE-----";
    if (bytes < sizeof begin + sizeof end || bytes > KEYS_MAX_SIGNATURE) return false;
    return memcmp(signature, begin, sizeof begin - 1) == 0 && memmem(signature, bytes, end, sizeof end - 1) != NULL;
}

/* A file with the signature in the folder; path is malloc'ed. */
static kakeya_status write_signature(const char *scratch, const char *signature, size_t bytes, char **path,
                                     kakeya_error *error) {
    *path = path_join(scratch, "signature-XXXXXX");
    if (!*path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    int fd = mkostemp(*path, O_CLOEXEC);
    bool good = fd >= 0 && write(fd, signature, bytes) == (ssize_t)bytes;
    if (fd >= 0 && close(fd) != 0) good = false;
    if (good) return KAKEYA_OK;
    kakeya_status status = error_set(error, KAKEYA_IO, "%s: cannot write a signature there", scratch);
    if (fd >= 0) unlink(*path);
    free(*path);
    *path = NULL;
    return status;
}

/* The first principal that ssh-keygen names for the key of the signature. */
static kakeya_status find_principal(const char *allowed, const char *file, char principal[REMOTE_NAME],
                                    kakeya_error *error) {
    const char *const argv[] = {"ssh-keygen", "-Y", "find-principals", "-f", allowed, "-s", file, NULL};
    process_answer answer;
    kakeya_status status = run(argv, NULL, 0, seconds_to_verify, &answer, error);
    if (status != KAKEYA_OK) return status;
    answer.output[strcspn(answer.output, "\r\n")] = '\0';
    if (answer.exit_status == 0 && remote_is_name(answer.output)) {
        memcpy(principal, answer.output, strlen(answer.output) + 1);
    } else {
        status = error_set(error, KAKEYA_FORMAT, "signature: its key is not listed in %s", allowed);
    }
    process_answer_free(&answer);
    return status;
}

kakeya_status keys_verify(const char *allowed, const char *scratch, const char *text, size_t bytes,
                          const char *signature, size_t signature_bytes, char principal[REMOTE_NAME],
                          kakeya_error *error) {
    principal[0] = '\0';
    if (!keys_is_signature(signature, signature_bytes))
        return error_set(error, KAKEYA_FORMAT, "signature: there is none");
    char *file = NULL;
    kakeya_status status = write_signature(scratch, signature, signature_bytes, &file, error);
    if (status == KAKEYA_OK) status = find_principal(allowed, file, principal, error);
    process_answer answer = {0};
    if (status == KAKEYA_OK) {
        const char *const argv[] = {"ssh-keygen", "-Y", "verify",       "-f", allowed, "-I",
                                    principal,    "-n", KEYS_NAMESPACE, "-s", file,    NULL};
        status = run(argv, text, bytes, seconds_to_verify, &answer, error);
    }
    if (status == KAKEYA_OK && answer.exit_status != 0)
        status =
            error_set(error, KAKEYA_FORMAT, "signature: not of these bytes in this namespace (%s)", answer.complaint);
    process_answer_free(&answer);
    if (status != KAKEYA_OK) principal[0] = '\0';
    if (file) unlink(file);
    free(file);
    return status;
}

/* -------------------------------------------------------------------------------------------------- lists of keys */

kakeya_status keys_read_public(const char *text, char **out, kakeya_error *error) {
    static const char *const types[] = {"ssh-ed25519",
                                        "sk-ssh-ed25519@openssh.com",
                                        "ecdsa-sha2-nistp256",
                                        "ecdsa-sha2-nistp384",
                                        "ecdsa-sha2-nistp521",
                                        "sk-ecdsa-sha2-nistp256@openssh.com",
                                        "ssh-rsa"};
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    *out = NULL;
    size_t type = strcspn(text, " ");
    bool known = false;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        known |= strlen(types[i]) == type && memcmp(types[i], text, type) == 0;
    size_t length = known && text[type] ? strspn(text + type + 1, base64) : 0;
    const char *behind = text + type + 1 + length;
    if (length < 32 || length > 8192 || (*behind && !strchr(" \r\n", *behind)))
        return error_set(error, KAKEYA_FORMAT, "'%.40s' is no public SSH key such as 'ssh-ed25519 AAAA...'", text);
    *out = strndup(text, type + 1 + length);
    return *out ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
}

kakeya_status keys_allow(const char *allowed, const char *principal, const char *key, kakeya_error *error) {
    if (!remote_is_name(principal))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "'%s' is no name: up to 64 of a-z, 0-9, '.', '_' and '-'",
                         principal);
    char *public = NULL, *old = NULL;
    size_t old_bytes = 0;
    kakeya_status status = keys_read_public(key, &public, error);
    if (status == KAKEYA_OK && file_exists(allowed))
        status = file_read(allowed, MAX_ALLOWED_BYTES, &old, &old_bytes, error);
    file_writer *writer = NULL;
    if (status == KAKEYA_OK) status = file_writer_open(allowed, &writer, error);
    size_t name = strlen(principal);
    for (const char *at = old; status == KAKEYA_OK && at && *at;) {
        size_t length = strcspn(at, "\n");
        bool own = length > name && memcmp(at, principal, name) == 0 && at[name] == ' ';
        if (!own) status = file_writer_write(writer, at, length, error);
        if (!own && status == KAKEYA_OK) status = file_writer_write(writer, "\n", 1, error);
        at += length + (at[length] == '\n');
    }
    if (status == KAKEYA_OK) {
        char line[9000];
        int length = snprintf(line, sizeof line, "%s namespaces=\"%s\" %s\n", principal, KEYS_NAMESPACE, public);
        status = file_writer_write(writer, line, (size_t)length, error);
    }
    if (status == KAKEYA_OK) {
        status = file_writer_commit(writer, error);
    } else {
        file_writer_abort(writer);
    }
    free(old);
    free(public);
    return status;
}

kakeya_status keys_make(const char *path, const char *comment, kakeya_error *error) {
    const char *const argv[] = {"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path, NULL};
    process_answer answer;
    kakeya_status status = run(argv, NULL, 0, seconds_to_sign, &answer, error);
    if (status == KAKEYA_OK && answer.exit_status != 0)
        status = error_set(error, KAKEYA_IO, "%s: no key could be made there: %s", path, answer.complaint);
    process_answer_free(&answer);
    return status;
}
