/* How much of the K/V memory is taken by what cannot give way: a threshold at which the server warns, one at which it
 * takes no more answers, and below them it is well again. */
#ifndef KAKEYA_SERVE_PRESSURE_H
#define KAKEYA_SERVE_PRESSURE_H

#include "serve/server.h"

typedef enum pressure_state { PRESSURE_NONE = 0, PRESSURE_WARNS, PRESSURE_REFUSES } pressure_state;

typedef struct pressure {
    pressure_state state;
    double used_ratio; /* of the room; prefixes that are kept for later prompts do not count: they give way */
} pressure;

const char *pressure_name(pressure_state state); /* "ok", "warning", "refusing" */

/* As it stands, by the settings' percentages. A change is noted in the log. Any thread. */
pressure pressure_now(server_context *server);

#endif
