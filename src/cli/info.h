/* Shared by the files of `kakeya info`. */
#ifndef KAKEYA_CLI_INFO_H
#define KAKEYA_CLI_INFO_H

#include "cli/cli.h"

/* The model under its name, and the session that its memory is told for. */
typedef struct info_subject {
    const char *name; /* directory or shape */
    const kakeya_description *model;
    kakeya_facts facts;
    kakeya_session_options session;
    size_t context;
} info_subject;

/* One row of the memory tables. */
typedef struct info_policy {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers restore_layers;
} info_policy;

enum { INFO_POLICIES = 4 };
extern const info_policy info_policies[INFO_POLICIES];

/* Whether the model has what the policy needs. */
bool info_possible(const info_subject *s, const info_policy *policy);

/* --sessions: a length in tokens and how many sessions of it fit under every policy. */
typedef struct info_room info_room;

/* memory_bytes 0: what this machine's device has free. `backend` (NULL: auto), `precision` and `threads` as the options
 * say. *out is freed by info_room_free. */
kakeya_status info_room_compute(const info_subject *s, const char *backend, kakeya_precision precision, int threads,
                                size_t memory_bytes, info_room **out, kakeya_error *error);
void info_room_free(info_room *room);
void info_room_print(const info_room *room);
void info_room_add_json(struct cJSON *object, const info_room *room);

#endif
