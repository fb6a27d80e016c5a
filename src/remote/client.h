/* The end that asks: makes requests, looks how far they are, takes results and judges them itself. */
#ifndef KAKEYA_REMOTE_CLIENT_H
#define KAKEYA_REMOTE_CLIENT_H

#include "remote/bus.h"
#include "remote/config.h"
#include "remote/documents.h"
#include "remote/gate_check.h"

typedef struct client {
    remote_config config;
    bus *bus;
} client;

/* folder, state: NULL for the usual ones. client_close in every case. */
kakeya_status client_open(const char *folder, const char *state, bool (*stopped)(void), client *out,
                          kakeya_error *error);
void client_close(client *c);

typedef struct client_wish {
    const char *preset, *model, *worker;       /* worker: NULL for any */
    const char *const *params, *const *inputs; /* "NAME=VALUE", "NAME=FILE" */
    size_t n_params, n_inputs;
} client_wish;

/* Checks the wish as a worker would, signs it and puts it on the bus. */
kakeya_status client_request(client *c, const client_wish *wish, char nonce[REMOTE_NONCE], kakeya_error *error);

typedef enum client_state { CLIENT_UNKNOWN, CLIENT_REQUESTED, CLIENT_CLAIMED, CLIENT_ANSWERED } client_state;

typedef struct client_status {
    client_state state;
    char claim_oid[BUS_OID];
    bool claim_verified; /* the claim is signed by a worker of the list: what follows holds */
    claim claim;
    char *tail; /* malloc'ed end of the log, printable; NULL where there is none */
} client_status;

/* Where a request is. known_claim: the claim that was read before ("": none): it is not read again. */
kakeya_status client_look(client *c, const char *nonce, const char *known_claim, client_status *out,
                          kakeya_error *error);

/* Takes the result of a nonce, verifies it and lets the gate of this machine judge its report again: results/NONCE then
 * holds it. KAKEYA_FORMAT: what lies on the bus is no result of a listed worker for this request. *here: the gate's
 * answer here in `verdict` and `code`; everything else as the worker says. *path: the folder, malloc'ed. replay: NULL,
 * or what is computed again here; its files are those of the request that was sent from here. */
kakeya_status client_fetch(client *c, const char *nonce, gate_replay *replay, result *here, char *there_verdict,
                           size_t verdict_bytes, char **path, kakeya_error *error);

/* Asks to stop: a signed cancellation beside the request. *answered: there is a result already. */
kakeya_status client_cancel(client *c, const char *nonce, bool *answered, kakeya_error *error);

typedef struct client_item {
    char nonce[REMOTE_NONCE], preset[REMOTE_NAME];
    bool own, cancelled;
    client_state state;
    char outcome[16]; /* of a result that was fetched, else "" */
} client_item;

/* What is on the bus and what this end has sent, by ascending nonce; *items is malloc'ed. */
kakeya_status client_list(client *c, client_item **items, size_t *n, kakeya_error *error);
/* The newest nonce that this end has sent. */
kakeya_status client_newest(client *c, char nonce[REMOTE_NONCE], kakeya_error *error);
/* Deletes what is older than so many days: refs of the bus, and files of this end. */
kakeya_status client_clean(client *c, int days, size_t *n, kakeya_error *error);

#endif
