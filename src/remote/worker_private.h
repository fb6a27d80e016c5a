/* What the files of the worker share. worker_serve.c looks and chooses, worker_check.c judges requests, worker_run.c
 * runs them, worker_answer.c makes results and brings them to the bus. */
#ifndef KAKEYA_REMOTE_WORKER_PRIVATE_H
#define KAKEYA_REMOTE_WORKER_PRIVATE_H

#include "remote/bus.h"
#include "remote/config.h"
#include "remote/documents.h"
#include "remote/presets.h"
#include "remote/runner.h"
#include "remote/served.h"
#include "remote/worker.h"

typedef struct worker {
    const worker_options *options;
    remote_config config;
    bus *bus;
    served *served;
    char *runs; /* the folder of runs */
    char host[128];
} worker;

/* Seconds since 1970. */
int64_t worker_now(void);
/* Hands a line to the user of the worker. */
void worker_event(const worker *w, const char *nonce, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool worker_stopped(const worker *w);

/* A request that has come from the bus, as far as it could be read. */
typedef struct incoming {
    const char *nonce; /* of the ref */
    bus_tree tree;     /* of the request's commit */
    const bus_file *text, *signature;
    char sha256[REMOTE_SHA256];  /* of request.json */
    char principal[REMOTE_NAME]; /* who signed, "" where nobody of the list did */
    request request;             /* there where `readable` */
    bool readable;
} incoming;

typedef enum verdict {
    VERDICT_RUN,
    VERDICT_CANCEL,       /* its requester does not want it any more */
    VERDICT_SILENT,       /* no answer: not signed, or for another worker */
    VERDICT_REFUSE,       /* no worker should run it */
    VERDICT_REFUSE_LATER, /* this worker will not; another one might */
    VERDICT_UNCLEAR,      /* something of this machine failed: later again */
} verdict;

/* The rules of a request's commit. */
extern const bus_rule worker_request_rules[];
extern const size_t worker_request_rules_n;

/* Judges in->tree, filling the rest of *in; *why says it in one line. */
verdict worker_check(worker *w, incoming *in, kakeya_error *why);
/* Whether the commit holds a cancellation by the one who asked. */
bool worker_is_cancelled(worker *w, const bus_tree *tree, const request *r);

/* What a run or a refusal came to, before it is written. */
void worker_begin_result(const worker *w, const incoming *in, result *out);
/* Writes the result and its signature into the folder of the run, with the files that the result names (from there).
 * From then on worker_publish brings it to the bus, whatever happens. */
kakeya_status worker_finish_result(worker *w, const incoming *in, result *r, kakeya_error *error);
/* Pushes the result that lies in runs/NONCE and removes the folder and the claim. KAKEYA_IO: later again. */
kakeya_status worker_publish(worker *w, const char *nonce, kakeya_error *error);
/* Whether runs/NONCE holds a result. */
bool worker_has_result(const worker *w, const char *nonce);

/* The folder runs/NONCE, malloc'ed; made where `make` says so. NULL with the error set. */
char *worker_run_folder(const worker *w, const char *nonce, bool make, kakeya_error *error);
/* Makes or renews the claim on a nonce. expected: the claim that is there ("" for none). tail: of the log, or NULL.
 * *lost: it was another one's. The claim's commit is in runs/NONCE/claim before it is on the bus. */
kakeya_status worker_claim(worker *w, const char *nonce, const char *expected, int attempt, int rows, const char *tail,
                           size_t tail_bytes, char oid[BUS_OID], bool *lost, kakeya_error *error);
/* The claim that this worker has made or tried to make; "" for none. */
void worker_own_claim(const worker *w, const char *nonce, char oid[BUS_OID]);

/* Runs a request whose claim `oid` is ours, up to a result in its folder. *lost: the claim was taken over meanwhile.
 * KAKEYA_CANCELLED: the worker was stopped; the run begins again with the next one. */
kakeya_status worker_run(worker *w, incoming *in, int attempt, char oid[BUS_OID], bool *lost, kakeya_error *error);

#endif
