/* The bus: refs of any git remote, reached by the user's own git through a private bare repository that nobody else
 * sees.
 *
 *     refs/heads/kakeya/requests/NONCE   what is asked for
 *     refs/heads/kakeya/claims/NONCE     who runs it; created by exactly one of any number of workers
 *     refs/heads/kakeya/results/NONCE    what came of it
 *
 * Each ref is a commit without history, with a few small files. Whoever can write to the remote can put anything there:
 * nothing is read before its size is known and allowed, names are compared and never used as paths, no work tree
 * exists, no hook runs. */
#ifndef KAKEYA_REMOTE_BUS_H
#define KAKEYA_REMOTE_BUS_H

#include "remote/text.h"

enum { BUS_OID = 65 }; /* SHA-1 or SHA-256 as hexadecimal digits, with the NUL */

typedef enum bus_kind { BUS_REQUEST, BUS_CLAIM, BUS_RESULT } bus_kind;
enum { BUS_KINDS = 3 };

typedef struct bus bus;

/* Makes the private repository inside the folder `state`, and removes those of processes that have died. seconds: what
 * one call of git may take. stopped: may be NULL; true ends calls that wait. KAKEYA_UNSUPPORTED: git is missing or too
 * old. */
kakeya_status bus_open(const char *state, const char *url, double seconds, bool (*stopped)(void), bus **out,
                       kakeya_error *error);
void bus_close(bus *b); /* NULL is fine */
/* KAKEYA_UNSUPPORTED in one line where git is missing or too old. */
kakeya_status bus_check_program(kakeya_error *error);

typedef struct bus_ref {
    char nonce[REMOTE_NONCE];
    char oid[BUS_KINDS][BUS_OID]; /* by bus_kind; "" where there is no such ref */
} bus_ref;

/* What is on the bus, by ascending nonce. nonce: NULL for all. *refs is malloc'ed. Refs that are not ours are left out.
 */
kakeya_status bus_list(bus *b, const char *nonce, bus_ref **refs, size_t *n, kakeya_error *error);

typedef struct bus_file {
    char name[96];
    char *data; /* a NUL behind */
    size_t bytes;
} bus_file;

typedef struct bus_tree {
    char oid[BUS_OID]; /* of the commit that was read */
    bus_file *file;
    size_t n;
} bus_tree;

/* A file that a commit may have. A name with '/' at the end allows up to 16 files with names (remote_is_name) below. */
typedef struct bus_rule {
    const char *name;
    size_t most_bytes;
} bus_rule;

/* Reads the commit of a ref. KAKEYA_FORMAT: it holds something that the rules ([n_rules]) do not allow, and nothing of
 * it was read; KAKEYA_IO: it could not be fetched. */
kakeya_status bus_fetch(bus *b, bus_kind kind, const char *nonce, const bus_rule *rules, size_t n_rules, bus_tree *out,
                        kakeya_error *error);
void bus_tree_free(bus_tree *tree);
/* NULL where the commit has no such file. */
const bus_file *bus_tree_find(const bus_tree *tree, const char *name);

/* Makes a commit of files in the private repository. */
kakeya_status bus_commit(bus *b, const bus_file *files, size_t n, int64_t now, char oid[BUS_OID], kakeya_error *error);
/* Sets a ref to a commit of bus_commit, or deletes it (oid NULL), if it still is `expected` ("": if it does not exist).
 * *lost: it was something else, and stays that. KAKEYA_OK either way; KAKEYA_IO where that could not be found out. */
kakeya_status bus_push(bus *b, bus_kind kind, const char *nonce, const char *expected, const char *oid, bool *lost,
                       kakeya_error *error);
/* Whether the bus would take a push from here; changes nothing. */
kakeya_status bus_try_push(bus *b, int64_t now, kakeya_error *error);

#endif
