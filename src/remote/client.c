#include "remote/client.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "remote/folders.h"
#include "remote/gate_check.h"
#include "remote/keys.h"
#include "remote/presets.h"

static const bus_rule claim_rules[] = {
    {"claim.json", DOCUMENT_MAX_BYTES}, {"claim.json.sig", KEYS_MAX_SIGNATURE}, {"tail.txt", CLAIM_MAX_TAIL}};
static const bus_rule result_rules[] = {
    {"result.json", DOCUMENT_MAX_BYTES}, {"result.json.sig", KEYS_MAX_SIGNATURE},
    {"request.json", REQUEST_MAX_BYTES}, {"request.json.sig", KEYS_MAX_SIGNATURE},
    {"report.json", RESULT_MAX_REPORT},  {"output.json", RESULT_MAX_REPORT},
    {"log.txt", RESULT_MAX_LOG},
};
#define RULES(RULE) RULE, sizeof RULE / sizeof RULE[0]

static int64_t now_seconds(void) { return (int64_t)time(NULL); }

kakeya_status client_open(const char *folder, const char *state, bool (*stopped)(void), client *out,
                          kakeya_error *error) {
    *out = (client){.bus = NULL};
    kakeya_status status = config_load(folder, state, &out->config, error);
    if (status == KAKEYA_OK) status = keys_check_program(error);
    if (status == KAKEYA_OK)
        status =
            bus_open(out->config.state, out->config.bus, out->config.limits.bus_seconds, stopped, &out->bus, error);
    return status;
}

void client_close(client *c) {
    bus_close(c->bus);
    config_free(&c->config);
    c->bus = NULL;
}

/* state/KIND/NONCE, malloc'ed. */
static char *own_folder(const client *c, const char *kind, const char *nonce) {
    char *path = NULL;
    return asprintf(&path, "%s/%s/%s", c->config.state, kind, nonce) < 0 ? NULL : path;
}

/* --------------------------------------------------------------------------------------------------------- requests */

/* "NAME=REST": the name into name[size], the rest returned; NULL where there is no such thing. */
static const char *split(const char *text, char *name, size_t size) {
    const char *sign = strchr(text, '=');
    if (!sign || (size_t)(sign - text) >= size) return NULL;
    memcpy(name, text, (size_t)(sign - text));
    name[sign - text] = '\0';
    return remote_is_name(name) ? sign + 1 : NULL;
}

static kakeya_status add_params(const client_wish *wish, request *r, kakeya_error *error) {
    for (size_t i = 0; i < wish->n_params; i++) {
        char name[REMOTE_NAME];
        const char *value = split(wish->params[i], name, sizeof name);
        if (!value || strlen(value) >= REQUEST_VALUE || r->n_params == REQUEST_MAX_PARAMS)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "--param: '%s' is not NAME=VALUE, or one too many",
                             wish->params[i]);
        request_param *p = &r->param[r->n_params++];
        memcpy(p->name, name, sizeof name);
        memcpy(p->value, value, strlen(value) + 1);
    }
    return KAKEYA_OK;
}

static kakeya_status add_inputs(const client_wish *wish, request *r, bus_file *files, size_t *n, kakeya_error *error) {
    for (size_t i = 0; i < wish->n_inputs; i++) {
        char name[REMOTE_NAME];
        const char *path = split(wish->inputs[i], name, sizeof name);
        if (!path || r->n_inputs == REQUEST_MAX_INPUTS)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "--input: '%s' is not NAME=FILE, or one too many",
                             wish->inputs[i]);
        bus_file *file = &files[*n];
        snprintf(file->name, sizeof file->name, "inputs/%s", name);
        kakeya_status status = file_read(path, REQUEST_MAX_INPUT_BYTES, &file->data, &file->bytes, error);
        if (status != KAKEYA_OK) return error_prefix(error, status, "--input");
        ++*n;
        request_input *input = &r->input[r->n_inputs++];
        memcpy(input->name, name, sizeof name);
        remote_sha256(file->data, file->bytes, input->sha256);
    }
    return KAKEYA_OK;
}

static kakeya_status fill(const client *c, const client_wish *wish, request *r, kakeya_error *error) {
    int64_t now = now_seconds();
    *r = (request){.created = now, .expires = now + REQUEST_LIFE_SECONDS};
    const preset *p = preset_find(wish->preset);
    if (!p) return error_set(error, KAKEYA_INVALID_ARGUMENT, "there is no preset '%s'", wish->preset);
    const char *worker = wish->worker ? wish->worker : "any";
    if (!remote_is_name(worker)) return error_set(error, KAKEYA_INVALID_ARGUMENT, "--worker: '%s' is no name", worker);
    if (!remote_is_name(wish->model))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--model: '%s' is no name", wish->model);
    snprintf(r->preset, sizeof r->preset, "%s", p->name);
    snprintf(r->worker, sizeof r->worker, "%s", worker);
    snprintf(r->model, sizeof r->model, "%s", wish->model);
    snprintf(r->bus, sizeof r->bus, "%s", c->config.bus_digest);
    snprintf(r->requested_by, sizeof r->requested_by, "%s", c->config.name);
    return remote_make_nonce(now, r->nonce, error);
}

enum { SENT_DOCUMENTS = 2 }; /* request and signature, in front of the inputs */

/* What was asked stays here: the result must be the answer to it. So do the inputs, under the names that the worker
 * gives them (preset_make_command), for rows that are computed again. */
static kakeya_status keep_sent(const client *c, const char *nonce, const bus_file *files, size_t n,
                               kakeya_error *error) {
    char *folder = own_folder(c, "sent", nonce);
    kakeya_status status =
        folder ? folder_make(folder, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; status == KAKEYA_OK && i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%02zu", i - SENT_DOCUMENTS);
        status = folder_write(folder, i < SENT_DOCUMENTS ? files[i].name : name, files[i].data, files[i].bytes, error);
    }
    free(folder);
    return status;
}

kakeya_status client_request(client *c, const client_wish *wish, char nonce[REMOTE_NONCE], kakeya_error *error) {
    request *r = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    bus_file files[REQUEST_MAX_INPUTS + SENT_DOCUMENTS] = {{.name = "request.json"}, {.name = "request.json.sig"}};
    size_t n = SENT_DOCUMENTS;
    char oid[BUS_OID];
    bool lost = false;
    kakeya_status status = fill(c, wish, r, error);
    if (status == KAKEYA_OK) status = add_params(wish, r, error);
    if (status == KAKEYA_OK) status = add_inputs(wish, r, files, &n, error);
    if (status == KAKEYA_OK) status = preset_check(preset_find(r->preset), r, error);
    if (status == KAKEYA_OK) status = request_write(r, &files[0].data, &files[0].bytes, error);
    if (status == KAKEYA_OK)
        status = keys_sign(c->config.key, files[0].data, files[0].bytes, &files[1].data, &files[1].bytes, error);
    if (status == KAKEYA_OK) status = keep_sent(c, r->nonce, files, n, error);
    if (status == KAKEYA_OK) status = bus_commit(c->bus, files, n, r->created, oid, error);
    if (status == KAKEYA_OK) status = bus_push(c->bus, BUS_REQUEST, r->nonce, "", oid, &lost, error);
    if (status == KAKEYA_OK && lost)
        status = error_set(error, KAKEYA_IO, "%s: the nonce is taken; ask again", r->nonce);
    if (status == KAKEYA_OK) memcpy(nonce, r->nonce, REMOTE_NONCE);
    for (size_t i = 0; i < n; i++) free(files[i].data);
    free(r);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- looking
 */

static void read_claim(client *c, const char *nonce, client_status *out) {
    bus_tree tree;
    kakeya_error ignored;
    char signer[REMOTE_NAME], sha256[REMOTE_SHA256];
    if (bus_fetch(c->bus, BUS_CLAIM, nonce, RULES(claim_rules), &tree, &ignored) != KAKEYA_OK) return;
    const bus_file *text = bus_tree_find(&tree, "claim.json"), *signature = bus_tree_find(&tree, "claim.json.sig");
    const bus_file *tail = bus_tree_find(&tree, "tail.txt");
    out->claim_verified = text && signature &&
                          keys_verify(c->config.workers, c->config.state, text->data, text->bytes, signature->data,
                                      signature->bytes, signer, &ignored) == KAKEYA_OK &&
                          claim_read(text->data, text->bytes, &out->claim, &ignored) == KAKEYA_OK &&
                          strcmp(out->claim.worker, signer) == 0 && strcmp(out->claim.nonce, nonce) == 0;
    if (out->claim_verified && tail) {
        remote_sha256(tail->data, tail->bytes, sha256);
        out->tail = strcmp(sha256, out->claim.tail_sha256) == 0 ? malloc(tail->bytes + 1) : NULL;
        if (out->tail) {
            memcpy(out->tail, tail->data, tail->bytes);
            out->tail[remote_printable(out->tail, tail->bytes)] = '\0';
        }
    }
    bus_tree_free(&tree);
}

kakeya_status client_look(client *c, const char *nonce, const char *known_claim, client_status *out,
                          kakeya_error *error) {
    *out = (client_status){.state = CLIENT_UNKNOWN};
    bus_ref *refs;
    size_t n;
    kakeya_status status = bus_list(c->bus, nonce, &refs, &n, error);
    if (status != KAKEYA_OK) return status;
    if (n) {
        memcpy(out->claim_oid, refs[0].oid[BUS_CLAIM], BUS_OID);
        out->state = *refs[0].oid[BUS_RESULT]    ? CLIENT_ANSWERED
                     : *refs[0].oid[BUS_CLAIM]   ? CLIENT_CLAIMED
                     : *refs[0].oid[BUS_REQUEST] ? CLIENT_REQUESTED
                                                 : CLIENT_UNKNOWN;
    }
    free(refs);
    if (out->state == CLIENT_CLAIMED && strcmp(out->claim_oid, known_claim) != 0) read_claim(c, nonce, out);
    return KAKEYA_OK;
}

/* ----------------------------------------------------------------------------------------------------------- results
 */

/* The digest of the request that this end has sent; from another machine of the same person: of the one in the result,
 * if this end's own key has signed it. */
static kakeya_status asked_digest(client *c, const char *nonce, const bus_tree *tree, char sha256[REMOTE_SHA256],
                                  kakeya_error *error) {
    char *folder = own_folder(c, "sent", nonce), *text = NULL, *key = NULL, *list = NULL;
    size_t bytes;
    kakeya_status status = folder ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status == KAKEYA_OK && folder_has(folder, "request.json")) {
        status = folder_read(folder, "request.json", REQUEST_MAX_BYTES, &text, &bytes, error);
        if (status == KAKEYA_OK) remote_sha256(text, bytes, sha256);
    } else if (status == KAKEYA_OK) {
        const bus_file *asked = bus_tree_find(tree, "request.json"),
                       *signature = bus_tree_find(tree, "request.json.sig");
        char signer[REMOTE_NAME];
        list = path_join(c->config.state, "self");
        status = config_public_key(&c->config, &key, error);
        if (status == KAKEYA_OK) status = keys_allow(list ? list : "", c->config.name, key, error);
        if (status == KAKEYA_OK && (!asked || !signature))
            status = error_set(error, KAKEYA_FORMAT, "%s: it was not sent from here", nonce);
        if (status == KAKEYA_OK)
            status = keys_verify(list, c->config.state, asked->data, asked->bytes, signature->data, signature->bytes,
                                 signer, error);
        if (status == KAKEYA_OK) remote_sha256(asked->data, asked->bytes, sha256);
        if (status == KAKEYA_FORMAT)
            error_prefix(error, status, "it was not sent from here, and of the request in the result");
    }
    free(folder);
    free(text);
    free(key);
    free(list);
    return status;
}

static kakeya_status check_files(const bus_tree *tree, const result *r, kakeya_error *error) {
    for (size_t i = 0; i < r->n_files; i++) {
        const bus_file *file = bus_tree_find(tree, r->file[i].name);
        char sha256[REMOTE_SHA256];
        if (file) remote_sha256(file->data, file->bytes, sha256);
        if (!file || strcmp(sha256, r->file[i].sha256) != 0)
            return error_set(error, KAKEYA_FORMAT, "%s is not the file that the worker has signed", r->file[i].name);
    }
    return KAKEYA_OK;
}

static kakeya_status check_result(client *c, const char *nonce, const bus_tree *tree, result *r, kakeya_error *error) {
    const bus_file *text = bus_tree_find(tree, "result.json"), *signature = bus_tree_find(tree, "result.json.sig");
    char signer[REMOTE_NAME], asked[REMOTE_SHA256];
    if (!text || !signature) return error_set(error, KAKEYA_FORMAT, "it is not signed");
    if (!file_exists(c->config.workers))
        return error_set(error, KAKEYA_FORMAT, "no worker is trusted yet: `kakeya remote allow worker NAME KEY`");
    kakeya_status status = keys_verify(c->config.workers, c->config.state, text->data, text->bytes, signature->data,
                                       signature->bytes, signer, error);
    if (status == KAKEYA_OK) status = result_read(text->data, text->bytes, r, error);
    if (status == KAKEYA_OK && strcmp(r->worker, signer) != 0)
        status = error_set(error, KAKEYA_FORMAT, "it says that %s made it, but %s has signed it", r->worker, signer);
    if (status == KAKEYA_OK && strcmp(r->nonce, nonce) != 0)
        status = error_set(error, KAKEYA_FORMAT, "it is the result of %s", r->nonce);
    if (status == KAKEYA_OK) status = asked_digest(c, nonce, tree, asked, error);
    /* A refusal of something unreadable has no digest to compare. */
    if (status == KAKEYA_OK && strcmp(asked, r->request_sha256) != 0)
        status = error_set(error, KAKEYA_FORMAT, "it answers another request than the one that was sent");
    return status == KAKEYA_OK ? check_files(tree, r, error) : status;
}

static kakeya_status store(const bus_tree *tree, const result *r, const char *folder, kakeya_error *error) {
    folder_remove(folder);
    kakeya_status status = folder_make(folder, error);
    for (size_t i = 0; status == KAKEYA_OK && i < r->n_files; i++) {
        const bus_file *file = bus_tree_find(tree, r->file[i].name);
        status = folder_write(folder, r->file[i].name, file->data, file->bytes, error);
    }
    static const char *const rest[] = {"result.json.sig", "result.json"};
    for (size_t i = 0; status == KAKEYA_OK && i < 2; i++) {
        const bus_file *file = bus_tree_find(tree, rest[i]);
        status = folder_write(folder, rest[i], file->data, file->bytes, error);
    }
    return status;
}

kakeya_status client_fetch(client *c, const char *nonce, gate_replay *replay, result *here, char *there_verdict,
                           size_t verdict_bytes, char **path, kakeya_error *error) {
    bus_tree tree;
    char *sent = NULL;
    *path = own_folder(c, "results", nonce);
    if (!*path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = bus_fetch(c->bus, BUS_RESULT, nonce, RULES(result_rules), &tree, error);
    if (status == KAKEYA_OK) {
        status = check_result(c, nonce, &tree, here, error);
        if (status == KAKEYA_OK)
            status = store(&tree, here, *path, error);
        else
            error_prefix(error, status, "the result of %s is not trusted", nonce);
        bus_tree_free(&tree);
    }
    if (status == KAKEYA_OK) {
        snprintf(there_verdict, verdict_bytes, "%s", here->verdict);
        const preset *p = preset_find(here->preset);
        char *own = c->config.program ? strdup(c->config.program) : gate_own_program(error);
        if (!own) status = KAKEYA_IO;
        /* The worker's word is never believed alone. */
        if (replay) replay->files = sent = own_folder(c, "sent", nonce);
        if (own && p && p->gated && strcmp(here->outcome, "done") == 0)
            status = gate_check_report(own, *path, replay, here, error);
        free(own);
        free(sent);
    }
    if (status != KAKEYA_OK) {
        free(*path);
        *path = NULL;
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------ cancellation
 */

kakeya_status client_cancel(client *c, const char *nonce, bool *answered, kakeya_error *error) {
    static const bus_rule rules[] = {{"request.json", REQUEST_MAX_BYTES},
                                     {"request.json.sig", KEYS_MAX_SIGNATURE},
                                     {"cancel.json", DOCUMENT_MAX_BYTES},
                                     {"cancel.json.sig", KEYS_MAX_SIGNATURE},
                                     {"inputs/", REQUEST_MAX_INPUT_BYTES}};
    client_status look;
    kakeya_status status = client_look(c, nonce, "", &look, error);
    if (status != KAKEYA_OK) return status;
    free(look.tail);
    *answered = look.state == CLIENT_ANSWERED;
    if (*answered) return KAKEYA_OK;
    bus_tree tree;
    status = bus_fetch(c->bus, BUS_REQUEST, nonce, RULES(rules), &tree, error);
    if (status != KAKEYA_OK) return status;
    cancel stop = {.nonce = ""};
    snprintf(stop.nonce, sizeof stop.nonce, "%s", nonce);
    snprintf(stop.requested_by, sizeof stop.requested_by, "%s", c->config.name);
    snprintf(stop.bus, sizeof stop.bus, "%s", c->config.bus_digest);
    bus_file *files = calloc(tree.n + 2, sizeof *files), text = {.name = "cancel.json"},
             signature = {.name = "cancel.json.sig"};
    size_t n = 0;
    bool lost = false, asked = bus_tree_find(&tree, "cancel.json") != NULL;
    char oid[BUS_OID];
    if (!files) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; files && i < tree.n; i++) files[n++] = tree.file[i];
    if (status == KAKEYA_OK) status = cancel_write(&stop, &text.data, &text.bytes, error);
    if (status == KAKEYA_OK)
        status = keys_sign(c->config.key, text.data, text.bytes, &signature.data, &signature.bytes, error);
    if (status == KAKEYA_OK && !asked) {
        files[n++] = text;
        files[n++] = signature;
        status = bus_commit(c->bus, files, n, now_seconds(), oid, error);
        if (status == KAKEYA_OK) status = bus_push(c->bus, BUS_REQUEST, nonce, tree.oid, oid, &lost, error);
        if (status == KAKEYA_OK && lost)
            status = error_set(error, KAKEYA_IO, "%s: the request has changed; try again", nonce);
    }
    free(text.data);
    free(signature.data);
    free(files);
    bus_tree_free(&tree);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- lists
 */

static void read_item(const client *c, client_item *item) {
    char *sent = own_folder(c, "sent", item->nonce), *fetched = own_folder(c, "results", item->nonce), *text = NULL;
    size_t bytes;
    request *r = malloc(sizeof *r);
    result *known = malloc(sizeof *known);
    if (r && sent && folder_has(sent, "request.json") &&
        folder_read(sent, "request.json", REQUEST_MAX_BYTES, &text, &bytes, NULL) == KAKEYA_OK &&
        request_read(text, bytes, r, NULL) == KAKEYA_OK) {
        item->own = true;
        memcpy(item->preset, r->preset, REMOTE_NAME);
    }
    free(text);
    text = NULL;
    if (known && fetched && folder_has(fetched, "result.json") &&
        folder_read(fetched, "result.json", DOCUMENT_MAX_BYTES, &text, &bytes, NULL) == KAKEYA_OK &&
        result_read(text, bytes, known, NULL) == KAKEYA_OK)
        memcpy(item->outcome, known->outcome, sizeof item->outcome);
    free(text);
    free(r);
    free(known);
    free(sent);
    free(fetched);
}

static int compare_items(const void *a, const void *b) {
    return strcmp(((const client_item *)a)->nonce, ((const client_item *)b)->nonce);
}

/* Nonces of state/sent, of which [n] are in items already. */
static kakeya_status add_sent(const client *c, client_item **items, size_t *n, kakeya_error *error) {
    size_t known = *n;
    char *path = path_join(c->config.state, "sent");
    DIR *entries = path ? opendir(path) : NULL;
    free(path);
    if (!entries) return KAKEYA_OK;
    kakeya_status status = KAKEYA_OK;
    for (struct dirent *e; status == KAKEYA_OK && (e = readdir(entries)) != NULL;) {
        if (!remote_is_nonce(e->d_name)) continue;
        client_item item = {.state = CLIENT_UNKNOWN};
        memcpy(item.nonce, e->d_name, REMOTE_NONCE);
        if (known && bsearch(&item, *items, known, sizeof item, compare_items)) continue;
        client_item *grown = realloc(*items, (*n + 1) * sizeof *grown);
        if (!grown) {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
            break;
        }
        *items = grown;
        grown[(*n)++] = item;
    }
    closedir(entries);
    return status;
}

kakeya_status client_list(client *c, client_item **items, size_t *n, kakeya_error *error) {
    bus_ref *refs;
    size_t n_refs;
    *items = NULL;
    *n = 0;
    kakeya_status status = bus_list(c->bus, NULL, &refs, &n_refs, error);
    if (status != KAKEYA_OK) return status;
    *items = calloc(n_refs + 1, sizeof **items);
    for (size_t i = 0; *items && i < n_refs; i++) {
        client_item *item = &(*items)[(*n)++];
        memcpy(item->nonce, refs[i].nonce, REMOTE_NONCE);
        item->state = *refs[i].oid[BUS_RESULT]    ? CLIENT_ANSWERED
                      : *refs[i].oid[BUS_CLAIM]   ? CLIENT_CLAIMED
                      : *refs[i].oid[BUS_REQUEST] ? CLIENT_REQUESTED
                                                  : CLIENT_UNKNOWN;
    }
    free(refs);
    status = *items ? add_sent(c, items, n, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status == KAKEYA_OK && *n) qsort(*items, *n, sizeof **items, compare_items);
    for (size_t i = 0; status == KAKEYA_OK && i < *n; i++) read_item(c, &(*items)[i]);
    return status;
}

kakeya_status client_newest(client *c, char nonce[REMOTE_NONCE], kakeya_error *error) {
    client_item *items = NULL;
    size_t n = 0;
    kakeya_status status = add_sent(c, &items, &n, error);
    nonce[0] = '\0';
    for (size_t i = 0; i < n; i++)
        if (strcmp(items[i].nonce, nonce) > 0) memcpy(nonce, items[i].nonce, REMOTE_NONCE);
    free(items);
    if (status == KAKEYA_OK && !*nonce)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "nothing has been sent from here yet");
    return status;
}

kakeya_status client_clean(client *c, int days, size_t *n, kakeya_error *error) {
    client_item *items = NULL;
    bus_ref *refs = NULL;
    size_t n_items = 0, n_refs = 0;
    int64_t limit = now_seconds() - (int64_t)days * 24 * 60 * 60;
    *n = 0;
    kakeya_status status = client_list(c, &items, &n_items, error);
    if (status == KAKEYA_OK) status = bus_list(c->bus, NULL, &refs, &n_refs, error);
    /* Requests first: a request whose result has gone would be one that was never answered. */
    for (size_t i = 0; status == KAKEYA_OK && i < n_refs; i++) {
        for (int kind = 0; status == KAKEYA_OK && kind < BUS_KINDS; kind++) {
            bool lost, old = remote_nonce_time(refs[i].nonce) < limit;
            if (!old || !*refs[i].oid[kind]) continue;
            status = bus_push(c->bus, (bus_kind)kind, refs[i].nonce, refs[i].oid[kind], NULL, &lost, error);
            *n += status == KAKEYA_OK && !lost;
        }
    }
    for (size_t i = 0; status == KAKEYA_OK && i < n_items; i++) {
        static const char *const kinds[] = {"sent", "results"};
        for (int kind = 0; kind < 2 && remote_nonce_time(items[i].nonce) < limit; kind++) {
            char *folder = own_folder(c, kinds[kind], items[i].nonce);
            if (folder) folder_remove(folder);
            free(folder);
        }
    }
    free(refs);
    free(items);
    return status;
}
