/* What the user of one end has set up, and where things lie.
 *
 *     configuration folder ($XDG_CONFIG_HOME/kakeya/remote)
 *       remote.json     the bus, who this is, for a worker also models, what each requester may do, and limits
 *       key, key.pub    the key that `init` has made, unless remote.json names another
 *       requesters      whose requests a worker takes, as ssh-keygen's allowed signers
 *       workers         whose results a requester believes
 *     state folder ($XDG_STATE_HOME/kakeya/remote)
 *       bus-XXXXXX/     private repositories, one for each running process
 *       served.log, seen, worker.lock, runs/NONCE/     of a worker
 *       sent/NONCE/, results/NONCE/                    of a requester */
#ifndef KAKEYA_REMOTE_CONFIG_H
#define KAKEYA_REMOTE_CONFIG_H

#include "remote/text.h"

struct cJSON;

typedef struct config_limits {
    int renew_seconds;        /* between two signs of life in a claim */
    int lease_seconds;        /* after which a claim without a sign of life may be taken over */
    int reject_after_seconds; /* that a request for any worker waits for one that may run it, before this one refuses it
                               */
    int bus_seconds;          /* that one call of git may take */
    int grace_seconds;        /* between asking a run to end and ending it */
    int minutes;              /* of a run, whatever its preset allows */
    size_t cpu_seconds;       /* of a run; 0: its minutes on every processor */
    size_t file_bytes, memory_bytes; /* of a file that a run writes; of its address space (0: no limit) */
    size_t log_bytes;                /* that a run may write to its log */
} config_limits;

typedef struct remote_config {
    char *folder, *state;
    char *requesters, *workers; /* paths of the lists of keys */
    struct cJSON *json;
    const char *bus;                /* the git remote */
    char bus_digest[REMOTE_SHA256]; /* of the bus's name, which both ends agree on: its URL, or "bus_name" */
    char name[REMOTE_NAME];         /* of this end */
    const char *key;                /* private key, or public key of one in ssh-agent */
    const char *program;            /* that a worker runs; NULL: this one */
    bool is_worker;
    config_limits limits;
} remote_config;

/* The paths of the two folders; NULL stands for the usual ones. */
kakeya_status config_folders(const char *folder, const char *state, remote_config *out, kakeya_error *error);
/* Reads remote.json. `folder` and `state` as above. config_free in every case. */
kakeya_status config_load(const char *folder, const char *state, remote_config *out, kakeya_error *error);
void config_free(remote_config *config);

/* Writes a first remote.json and, where key is NULL, makes a key. Refuses where there is one. model: "NAME=DIRECTORY",
 * for a worker, [n_models]. */
kakeya_status config_create(const char *folder, const char *state, const char *bus, const char *bus_name,
                            const char *name, const char *key, bool worker, const char *const *models, size_t n_models,
                            kakeya_error *error);
/* The public half of this end's key: "ssh-ed25519 AAAA...", malloc'ed. */
kakeya_status config_public_key(const remote_config *config, char **out, kakeya_error *error);

/* The directory of a model, NULL where the worker has none of this name. */
const char *config_model(const remote_config *config, const char *name);
/* Whether a requester may have a preset run, and how many minutes a day (0: without a limit). False: not at all. */
bool config_may(const remote_config *config, const char *requester, const char *preset, int *minutes);

/* Adds a requester with the presets [n] that it may ask for (none: every one), or replaces it; adds a worker's key. */
kakeya_status config_allow_requester(remote_config *config, const char *name, const char *key,
                                     const char *const *presets, size_t n, int minutes, kakeya_error *error);
kakeya_status config_allow_worker(remote_config *config, const char *name, const char *key, kakeya_error *error);

#endif
