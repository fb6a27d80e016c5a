/* What a worker has done: a file that only grows, on the disk before the thing itself is done. A request that is in it
 * does not become new because somebody has deleted refs of the bus. One line an event:
 *
 *     2026-11-21T20:30:12Z NONCE SHA256-OF-REQUEST start|end|reject|lost WHO SECONDS */
#ifndef KAKEYA_REMOTE_SERVED_H
#define KAKEYA_REMOTE_SERVED_H

#include "remote/text.h"

typedef enum served_event {
    SERVED_START,  /* a run begins; more than one where the worker died meanwhile */
    SERVED_END,    /* a result is on this disk */
    SERVED_REJECT, /* a refusal is on this disk */
    SERVED_LOST,   /* another worker answered */
} served_event;

typedef struct served_entry {
    char nonce[REMOTE_NONCE];
    int starts, refusals;
    bool over; /* ended, rejected or lost */
} served_entry;

typedef struct served served;

kakeya_status served_open(const char *path, served **out, kakeya_error *error);
void served_close(served *s); /* NULL is fine */

/* NULL where the nonce has not been met. Valid until the next served_add. */
const served_entry *served_find(const served *s, const char *nonce);
/* On the disk when it returns KAKEYA_OK. */
kakeya_status served_add(served *s, int64_t now, const char *nonce, const char *sha256, served_event event,
                         const char *who, double seconds, kakeya_error *error);
/* Seconds of runs that ended on the day (UTC) of `now`. */
double served_seconds_today(const served *s, const char *who, int64_t now);

#endif
