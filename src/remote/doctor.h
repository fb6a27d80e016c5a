/* Whether this end can do what it is set up for, and what to do where it cannot. */
#ifndef KAKEYA_REMOTE_DOCTOR_H
#define KAKEYA_REMOTE_DOCTOR_H

#include <stdbool.h>

#include "base/error.h"

typedef enum doctor_finding { DOCTOR_GOOD, DOCTOR_NOTE, DOCTOR_BAD } doctor_finding;

typedef struct doctor_options {
    const char *folder, *state; /* NULL: the usual ones */
    bool (*stopped)(void);
    /* One call for each thing that was looked at. mend: what to do, or "". */
    void (*report)(void *user, doctor_finding finding, const char *what, const char *mend);
    void *user;
} doctor_options;

/* Looks at git, ssh-keygen, the configuration, key, folders, disk, bus, clock, and at what belongs to the role. Returns
 * how many findings are bad. */
int doctor_examine(const doctor_options *options);

#endif
