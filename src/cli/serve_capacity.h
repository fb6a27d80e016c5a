/* What a server can hold, said before it starts. */
#ifndef KAKEYA_CLI_SERVE_CAPACITY_H
#define KAKEYA_CLI_SERVE_CAPACITY_H

#include "cli/cli.h"
#include "serve/settings.h"

typedef enum serve_capacity_form {
    SERVE_CAPACITY_LINES = 0, /* a few lines on stderr */
    SERVE_CAPACITY_LOG,       /* one JSON object on a line of stderr */
    SERVE_CAPACITY_TABLE,     /* the lines and the table of `info --sessions` on stdout */
    SERVE_CAPACITY_JSON,      /* one JSON object on stdout */
} serve_capacity_form;

/* Computed from the configuration of the model alone. KAKEYA_OUT_OF_MEMORY, and nothing is printed: a session of
 * --context tokens does not fit, or without --context none does; the message has the numbers. Where the system does not
 * say how much memory is free, only stdout's forms fail. An image budget of 0 becomes what the model's configuration
 * says. */
kakeya_status serve_capacity_say(const cli_shared *shared, serve_settings *settings, serve_capacity_form form,
                                 kakeya_error *error);

#endif
