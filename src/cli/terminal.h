/* The person in front: progress, colour, interrupts, and output that may break. */
#ifndef KAKEYA_CLI_TERMINAL_H
#define KAKEYA_CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kakeya.h"

/* Installs the signal handlers. SIGINT (Ctrl-C) sets a flag. SIGTERM, SIGHUP, SIGQUIT and SIGXFSZ set it for good: the
 * work stops in order, and the program ends with 128 + the signal. A second such signal ends it at once. A broken pipe
 * is an error of write. Called once by main. */
void terminal_start(void);
/* From now on bytes of a mapped file that are gone are zeros and set *lost, instead of ending the program. */
void terminal_survive_lost_bytes(volatile int *lost);

/* True after Ctrl-C until terminal_clear_interrupt, and after the signals that end a program. */
bool terminal_interrupted(void);
void terminal_clear_interrupt(void);

/* A kakeya_progress_fn: one line on stderr, rewritten in place, only where stderr is a terminal that can do so and the
 * work takes long enough to be noticed. Cancels after Ctrl-C. */
bool terminal_progress(void *user, const char *what, uint64_t done, uint64_t total);
void terminal_clear_progress(void);
/* The same for what knows how far it is: at most twice a second, with the time that the rest takes. */
typedef struct terminal_meter {
    double begun, shown, before; /* 0, 0: nothing yet; before: what was done already when it began */
} terminal_meter;
void terminal_meter_begin(terminal_meter *meter, double done);
void terminal_meter_show(terminal_meter *meter, double done, double all, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void terminal_meter_clear(terminal_meter *meter);
/* Whether a line can be rewritten there: a terminal, and not a dumb one (TERM), which would show escape sequences as
 * text. */
bool terminal_rewrites(int stream_descriptor);

/* Escape sequences for dimmed text and back, "" where `stream_descriptor` is no terminal, TERM is dumb or NO_COLOR is
 * set. */
const char *terminal_dim(int stream_descriptor);
const char *terminal_plain(int stream_descriptor);

/* Writes to stdout at once. False when stdout cannot take it: the reader has gone, or the disk is full. */
bool terminal_write(const char *text, size_t bytes);
/* The exit status of the process. Where stdout has broken: quietly `status` for a reader that has gone, otherwise
 * failure and a line on stderr. After a signal that ends a program: 128 + the signal. Otherwise `status`. */
int terminal_finish(const char *verb, int status);

/* "1,234,567" in a caller's buffer of 32 bytes, returned. */
const char *format_count(char buffer[32], uint64_t value);
/* "1.5 MB" (powers of ten) in a caller's buffer of 32 bytes, returned. */
const char *format_bytes(char buffer[32], double bytes);

#endif
