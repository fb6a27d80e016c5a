/* Whether a request is to be run. Everything that it says is foreign until its signature has been verified. */
#include <stdio.h>
#include <string.h>

#include "base/files.h"
#include "remote/keys.h"
#include "remote/worker_private.h"

const bus_rule worker_request_rules[] = {
    {"request.json", REQUEST_MAX_BYTES},  {"request.json.sig", KEYS_MAX_SIGNATURE},
    {"cancel.json", DOCUMENT_MAX_BYTES},  {"cancel.json.sig", KEYS_MAX_SIGNATURE},
    {"inputs/", REQUEST_MAX_INPUT_BYTES},
};
const size_t worker_request_rules_n = sizeof worker_request_rules / sizeof worker_request_rules[0];

bool worker_is_cancelled(worker *w, const bus_tree *tree, const request *r) {
    const bus_file *text = bus_tree_find(tree, "cancel.json"), *signature = bus_tree_find(tree, "cancel.json.sig");
    char principal[REMOTE_NAME];
    cancel c;
    kakeya_error error;
    if (!text || !signature) return false;
    return keys_verify(w->config.requesters, w->config.state, text->data, text->bytes, signature->data,
                       signature->bytes, principal, &error) == KAKEYA_OK &&
           cancel_read(text->data, text->bytes, &c, &error) == KAKEYA_OK && strcmp(c.nonce, r->nonce) == 0 &&
           strcmp(c.bus, r->bus) == 0 && strcmp(c.requested_by, principal) == 0 &&
           strcmp(principal, r->requested_by) == 0;
}

/* Files of the request are those that it has signed. */
static kakeya_status check_inputs(const incoming *in, kakeya_error *error) {
    const request *r = &in->request;
    size_t files = 0;
    for (size_t i = 0; i < in->tree.n; i++) files += strncmp(in->tree.file[i].name, "inputs/", 7) == 0;
    for (size_t i = 0; i < r->n_inputs; i++) {
        char name[96], sha256[REMOTE_SHA256];
        snprintf(name, sizeof name, "inputs/%s", r->input[i].name);
        const bus_file *file = bus_tree_find(&in->tree, name);
        if (!file) return error_set(error, KAKEYA_INVALID_ARGUMENT, "inputs: %s is missing", r->input[i].name);
        remote_sha256(file->data, file->bytes, sha256);
        if (strcmp(sha256, r->input[i].sha256) != 0)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "inputs: %s is another file than the one signed",
                             r->input[i].name);
    }
    if (files == r->n_inputs) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "inputs: %zu files, %zu of them signed", files, r->n_inputs);
}

/* What every worker would say. */
static kakeya_status check_request(worker *w, const incoming *in, int64_t now, kakeya_error *error) {
    const request *r = &in->request;
    if (strcmp(r->requested_by, in->principal) != 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "requested_by: it says %s, but %s has signed", r->requested_by,
                         in->principal);
    if (strcmp(r->nonce, in->nonce) != 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "nonce: the ref is %s, the request %s", in->nonce, r->nonce);
    if (strcmp(r->bus, w->config.bus_digest) != 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "bus: the request was made for another bus (both ends must give it the same name)");
    kakeya_status status = request_check_time(r, now, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "time");
    status = check_inputs(in, error);
    const preset *p = preset_find(r->preset);
    if (status == KAKEYA_OK && !p)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "preset: there is no preset '%s'", r->preset);
    if (status == KAKEYA_OK && (status = preset_check(p, r, error)) != KAKEYA_OK)
        status = error_prefix(error, status, "parameter");
    return status;
}

/* What depends on this worker. */
static kakeya_status check_here(worker *w, const incoming *in, int64_t now, kakeya_error *error) {
    const request *r = &in->request;
    int minutes = 0;
    if (!config_may(&w->config, in->principal, r->preset, &minutes))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "preset: %s may not ask %s for '%s'", in->principal,
                         w->config.name, r->preset);
    const char *model = config_model(&w->config, r->model);
    if (!request_value(r, "synthetic") && (!model || !directory_exists(model)))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "model: %s has no model '%s'", w->config.name, r->model);
    double used = served_seconds_today(w->served, in->principal, now);
    if (minutes && used >= 60.0 * minutes)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "budget: %s has used %.0f of %d minutes today", in->principal,
                         used / 60, minutes);
    return KAKEYA_OK;
}

verdict worker_check(worker *w, incoming *in, kakeya_error *why) {
    in->text = bus_tree_find(&in->tree, "request.json");
    in->signature = bus_tree_find(&in->tree, "request.json.sig");
    if (!in->text || !in->signature || !keys_is_signature(in->signature->data, in->signature->bytes)) {
        error_set(why, KAKEYA_FORMAT, "it is not signed");
        return VERDICT_SILENT;
    }
    remote_sha256(in->text->data, in->text->bytes, in->sha256);
    kakeya_status status = keys_verify(w->config.requesters, w->config.state, in->text->data, in->text->bytes,
                                       in->signature->data, in->signature->bytes, in->principal, why);
    if (status == KAKEYA_FORMAT) {
        /* Where the list lies is not the requester's concern. */
        error_set(why, KAKEYA_FORMAT, "signature: not by a key on the list of %s, of these bytes, in the namespace %s",
                  w->config.name, KEYS_NAMESPACE);
        return VERDICT_REFUSE_LATER;
    }
    if (status != KAKEYA_OK) return VERDICT_UNCLEAR;
    status = request_read(in->text->data, in->text->bytes, &in->request, why);
    if (status != KAKEYA_OK) return VERDICT_REFUSE_LATER;
    in->readable = true;
    bool any = strcmp(in->request.worker, "any") == 0;
    if (!any && strcmp(in->request.worker, w->config.name) != 0) {
        error_set(why, KAKEYA_INVALID_ARGUMENT, "it is for %s", in->request.worker);
        return VERDICT_SILENT;
    }
    int64_t now = worker_now();
    if (check_request(w, in, now, why) != KAKEYA_OK) return VERDICT_REFUSE;
    if (worker_is_cancelled(w, &in->tree, &in->request)) {
        error_set(why, KAKEYA_CANCELLED, "cancelled by %s before it ran", in->principal);
        return VERDICT_CANCEL;
    }
    if (check_here(w, in, now, why) != KAKEYA_OK) return any ? VERDICT_REFUSE_LATER : VERDICT_REFUSE;
    return VERDICT_RUN;
}
