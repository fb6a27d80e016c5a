/* Results: made in the folder of their run, then brought to the bus. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "remote/folders.h"
#include "remote/keys.h"
#include "remote/worker_private.h"

char *worker_run_folder(const worker *w, const char *nonce, bool make, kakeya_error *error) {
    char *folder = path_join(w->runs, nonce);
    if (!folder) {
        error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    } else if (make && folder_make(folder, error) != KAKEYA_OK) {
        free(folder);
        folder = NULL;
    }
    return folder;
}

void worker_own_claim(const worker *w, const char *nonce, char oid[BUS_OID]) {
    char *folder = path_join(w->runs, nonce), *text = NULL;
    size_t bytes = 0;
    oid[0] = '\0';
    if (folder && folder_has(folder, "claim") &&
        folder_read(folder, "claim", BUS_OID, &text, &bytes, NULL) == KAKEYA_OK && bytes < BUS_OID)
        memcpy(oid, text, bytes + 1);
    free(text);
    free(folder);
}

kakeya_status worker_claim(worker *w, const char *nonce, const char *expected, int attempt, int rows, const char *tail,
                           size_t tail_bytes, char oid[BUS_OID], bool *lost, kakeya_error *error) {
    int64_t now = worker_now();
    claim c = {.attempt = attempt, .since = now, .lease_until = now + w->config.limits.lease_seconds, .rows = rows};
    snprintf(c.nonce, sizeof c.nonce, "%s", nonce);
    snprintf(c.worker, sizeof c.worker, "%s", w->config.name);
    snprintf(c.host, sizeof c.host, "%s", w->host);
    remote_sha256(tail ? tail : "", tail ? tail_bytes : 0, c.tail_sha256);
    char *text = NULL, *signature = NULL, *folder = worker_run_folder(w, nonce, true, error);
    size_t bytes = 0, signature_bytes = 0;
    kakeya_status status = folder ? claim_write(&c, &text, &bytes, error) : KAKEYA_IO;
    if (status == KAKEYA_OK) status = keys_sign(w->config.key, text, bytes, &signature, &signature_bytes, error);
    if (status == KAKEYA_OK) {
        bus_file files[3] = {{.name = "claim.json", .data = text, .bytes = bytes},
                             {.name = "claim.json.sig", .data = signature, .bytes = signature_bytes},
                             {.name = "tail.txt", .data = (char *)(uintptr_t)tail, .bytes = tail_bytes}};
        status = bus_commit(w->bus, files, tail ? 3 : 2, now, oid, error);
    }
    if (status == KAKEYA_OK) status = folder_write(folder, "claim", oid, strlen(oid), error);
    if (status == KAKEYA_OK) status = bus_push(w->bus, BUS_CLAIM, nonce, expected, oid, lost, error);
    free(text);
    free(signature);
    free(folder);
    return status;
}

void worker_begin_result(const worker *w, const incoming *in, result *out) {
    *out = (result){.exit_status = -1, .finished = worker_now()};
    snprintf(out->nonce, sizeof out->nonce, "%s", in->nonce);
    snprintf(out->worker, sizeof out->worker, "%s", w->config.name);
    snprintf(out->preset, sizeof out->preset, "%s", in->readable ? in->request.preset : "");
    snprintf(out->requested_by, sizeof out->requested_by, "%s", in->principal);
    snprintf(out->request_sha256, sizeof out->request_sha256, "%s", in->sha256);
    snprintf(out->host, sizeof out->host, "%s", w->host);
    snprintf(out->verdict, sizeof out->verdict, "none");
}

kakeya_status worker_finish_result(worker *w, const incoming *in, result *r, kakeya_error *error) {
    char *text = NULL, *signature = NULL, *folder = worker_run_folder(w, in->nonce, true, error);
    size_t bytes = 0, signature_bytes = 0;
    kakeya_status status = folder ? result_write(r, &text, &bytes, error) : KAKEYA_IO;
    if (status == KAKEYA_OK) status = keys_sign(w->config.key, text, bytes, &signature, &signature_bytes, error);
    if (status == KAKEYA_OK) status = folder_write(folder, "request.json", in->text->data, in->text->bytes, error);
    if (status == KAKEYA_OK)
        status = folder_write(folder, "request.json.sig", in->signature->data, in->signature->bytes, error);
    if (status == KAKEYA_OK) status = folder_write(folder, "result.json", text, bytes, error);
    /* The signature comes last: with it the result is whole. */
    if (status == KAKEYA_OK) status = folder_write(folder, "result.json.sig", signature, signature_bytes, error);
    free(text);
    free(signature);
    free(folder);
    return status;
}

bool worker_has_result(const worker *w, const char *nonce) {
    char *folder = path_join(w->runs, nonce);
    bool has = folder && folder_has(folder, "result.json.sig");
    free(folder);
    return has;
}

static kakeya_status read_files(const char *folder, const result *r, bus_file *files, size_t *n, kakeya_error *error) {
    static const char *const always[] = {"result.json", "result.json.sig", "request.json", "request.json.sig"};
    enum { ALWAYS = sizeof always / sizeof always[0] };
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; status == KAKEYA_OK && i < ALWAYS + r->n_files; i++) {
        const char *name = i < ALWAYS ? always[i] : r->file[i - ALWAYS].name;
        bus_file *file = &files[*n];
        snprintf(file->name, sizeof file->name, "%s", name);
        status = folder_read(folder, name, RESULT_MAX_REPORT, &file->data, &file->bytes, error);
        if (status == KAKEYA_OK) ++*n;
    }
    return status;
}

/* In served.log, once for each result, before it leaves. */
static kakeya_status note_served(worker *w, const char *folder, const result *r, kakeya_error *error) {
    static const char mark[] = "noted";
    if (folder_has(folder, mark)) return KAKEYA_OK;
    served_event event = strcmp(r->outcome, "rejected") == 0 ? SERVED_REJECT : SERVED_END;
    kakeya_status status =
        served_add(w->served, r->finished, r->nonce, r->request_sha256, event, r->requested_by, r->seconds, error);
    return status == KAKEYA_OK ? folder_write(folder, mark, "", 0, error) : status;
}

kakeya_status worker_publish(worker *w, const char *nonce, kakeya_error *error) {
    enum { MOST = RESULT_MAX_FILES + 4 };
    bus_file files[MOST] = {{.bytes = 0}};
    size_t n = 0, bytes = 0;
    char *folder = worker_run_folder(w, nonce, false, error), *text = NULL, oid[BUS_OID], own[BUS_OID];
    result *r = malloc(sizeof *r);
    bool lost = false;
    kakeya_status status = folder && r ? folder_read(folder, "result.json", DOCUMENT_MAX_BYTES, &text, &bytes, error)
                                       : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status == KAKEYA_OK) status = result_read(text, bytes, r, error);
    if (status == KAKEYA_OK) status = read_files(folder, r, files, &n, error);
    if (status == KAKEYA_OK) status = note_served(w, folder, r, error);
    /* The same files at the same time are the same commit: a push that had arrived is recognised. */
    if (status == KAKEYA_OK) status = bus_commit(w->bus, files, n, r->finished, oid, error);
    if (status == KAKEYA_OK) status = bus_push(w->bus, BUS_RESULT, nonce, "", oid, &lost, error);
    if (status == KAKEYA_OK && lost)
        status = served_add(w->served, worker_now(), nonce, r->request_sha256, SERVED_LOST, r->requested_by, 0, error);
    if (status == KAKEYA_OK) {
        if (lost) {
            worker_event(w, nonce, "another answer was there first");
        } else {
            worker_event(w, nonce, "answered: %s%s%s", r->outcome, *r->reason ? ", " : "", r->reason);
        }
        worker_own_claim(w, nonce, own);
        bool gone;
        kakeya_error ignored;
        if (*own) bus_push(w->bus, BUS_CLAIM, nonce, own, NULL, &gone, &ignored);
        folder_remove(folder);
    }
    for (size_t i = 0; i < n; i++) free(files[i].data);
    free(text);
    free(folder);
    free(r);
    return status;
}
