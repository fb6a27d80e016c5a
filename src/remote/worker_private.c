#include "remote/worker_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t worker_now(void) { return (int64_t)time(NULL); }

void worker_event(const worker *w, const char *nonce, const char *format, ...) {
    char message[700], line[800];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    for (char *c = message; *c; c++)
        if (*c == '\n') *c = ' ';
    message[remote_printable(message, strlen(message))] = '\0';
    snprintf(line, sizeof line, "%s%s%s", nonce ? nonce : "", nonce ? ": " : "", message);
    if (w->options->event) w->options->event(w->options->user, line);
}

bool worker_stopped(const worker *w) { return w->options->stopped && w->options->stopped(); }
