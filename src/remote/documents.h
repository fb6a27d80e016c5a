/* The other signed files of the bus: who runs a request and how far it is, what came of it, and that it is to stop. */
#ifndef KAKEYA_REMOTE_DOCUMENTS_H
#define KAKEYA_REMOTE_DOCUMENTS_H

#include "remote/request.h"

enum {
    DOCUMENT_MAX_BYTES = 64 << 10,
    RESULT_MAX_WORDS = 64,
    RESULT_MAX_CODES = 32,
    RESULT_MAX_FILES = 8,
    RESULT_REASON = 400,
    CLAIM_MAX_TAIL = 16 << 10, /* bytes of the log that travel with a claim */
    RESULT_MAX_LOG = 1 << 20,  /* with a result */
    RESULT_MAX_REPORT = 16 << 20,
};

/* Names of files beside result.json. */
extern const char document_report[], document_output[], document_log[], document_tail[];

typedef struct claim {
    char nonce[REMOTE_NONCE], worker[REMOTE_NAME];
    int attempt; /* 1; more where a claim was taken over or a worker died */
    int64_t since, lease_until;
    int rows;       /* of the report so far */
    char host[128]; /* "kakeya 0.3.0, Linux x86_64, 8 processors" */
    char tail_sha256[REMOTE_SHA256];
} claim;

typedef struct result {
    char nonce[REMOTE_NONCE], worker[REMOTE_NAME], preset[REMOTE_NAME], requested_by[REMOTE_NAME];
    char request_sha256[REMOTE_SHA256];
    char outcome[16]; /* done, failed, timed_out, cancelled or rejected */
    char reason[RESULT_REASON];
    char word[RESULT_MAX_WORDS][REQUEST_VALUE]; /* the command line as it was run */
    size_t n_words;
    int exit_status, attempt;
    double seconds;
    int64_t finished;
    char verdict[16]; /* of the gate: passed, refused or none */
    char code[RESULT_MAX_CODES][32];
    size_t n_codes;
    struct {
        char name[32], sha256[REMOTE_SHA256];
    } file[RESULT_MAX_FILES];
    size_t n_files;
    char host[128];
} result;

typedef struct cancel {
    char nonce[REMOTE_NONCE], requested_by[REMOTE_NAME], bus[REMOTE_SHA256];
} cancel;

/* Texts are malloc'ed and end with a line feed. Readers check every form and know their keys; they are for files whose
 * signature has been verified, and bear any others. */
kakeya_status claim_write(const claim *c, char **text, size_t *bytes, kakeya_error *error);
kakeya_status claim_read(const char *text, size_t bytes, claim *out, kakeya_error *error);
kakeya_status result_write(const result *r, char **text, size_t *bytes, kakeya_error *error);
kakeya_status result_read(const char *text, size_t bytes, result *out, kakeya_error *error);
kakeya_status cancel_write(const cancel *c, char **text, size_t *bytes, kakeya_error *error);
kakeya_status cancel_read(const char *text, size_t bytes, cancel *out, kakeya_error *error);

/* Notes a file of the result with its digest. */
void result_add_file(result *r, const char *name, const void *data, size_t bytes);

#endif
