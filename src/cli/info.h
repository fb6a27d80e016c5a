/* Shared by the files of `kakeya info`, and by what a server says of its memory. */
#ifndef KAKEYA_CLI_INFO_H
#define KAKEYA_CLI_INFO_H

#include "cli/cli.h"
#include "kakeya_study.h"

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

/* What each of several devices computes and holds. */
typedef struct info_devices info_devices;

/* `text`: as --devices names them; *out becomes NULL where there is none. KAKEYA_UNSUPPORTED where the model cannot be
 * dealt to so many. *out is freed by info_devices_free. */
kakeya_status info_devices_compute(const info_subject *s, const char *text, info_devices **out, kakeya_error *error);
void info_devices_free(info_devices *devices);
/* The first device's part as a subject of its own, which lives as long as `devices`: as many sessions fit as fit
 * there. `devices` may be NULL, here and below. */
info_subject info_devices_subject(const info_subject *s, const info_devices *devices);
void info_devices_print(const info_subject *s, const info_devices *devices);
void info_devices_add_json(struct cJSON *object, const info_devices *devices);

/* How many sessions fit, by length and policy: what `info --sessions` prints (info_room.h). */
typedef struct info_room info_room;

/* `backend` (NULL: auto), `precision` and `threads` as the options say. */
typedef struct info_room_options {
    const char *backend;
    kakeya_precision precision;
    int threads;
    size_t memory_bytes;  /* 0: what this machine's device has free */
    size_t limit_bytes;   /* of allocations, as --memory-limit means it; 0: none */
    size_t weights_limit; /* of weights, which are then allocated on a CPU; 0: none */
    int image_budget;     /* tokens of a picture; 0: the model's */
    bool asked_is_last;   /* no lengths beyond the subject's context */
} info_room_options;

/* *out is freed by info_room_free. */
kakeya_status info_room_compute(const info_subject *s, const info_room_options *options, info_room **out,
                                kakeya_error *error);
/* What a picture of `budget` tokens takes while the CPU reads it, or the GPU that is here; 0: the model, or that
 * device, reads none, or there is none. threads 0: all processors. */
size_t info_picture_bytes(const info_subject *s, bool gpu, int threads, int budget);
/* The same of a sound of 30 seconds that the CPU reads. */
size_t info_sound_bytes(const info_subject *s);
void info_room_free(info_room *room);
void info_room_print(const info_room *room);
void info_room_add_json(struct cJSON *object, const info_room *room);

#endif
