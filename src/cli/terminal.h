/* The person in front: progress, colour, interrupts, and output that may break. */
#ifndef KAKEYA_CLI_TERMINAL_H
#define KAKEYA_CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kakeya.h"

/* Installs the signal handlers: SIGINT sets a flag, a broken pipe is an error of write. Called once by main. */
void terminal_start(void);

/* True after Ctrl-C until terminal_clear_interrupt. */
bool terminal_interrupted(void);
void terminal_clear_interrupt(void);

/* A kakeya_progress_fn: one line on stderr, rewritten in place, only where stderr is a terminal and the work takes long
 * enough to be noticed. Cancels after Ctrl-C. */
bool terminal_progress(void *user, const char *what, uint64_t done, uint64_t total);
void terminal_clear_progress(void);

/* Escape sequences for dimmed text and back, "" where `stream_descriptor` is no terminal or NO_COLOR is set. */
const char *terminal_dim(int stream_descriptor);
const char *terminal_plain(int stream_descriptor);

/* Writes to stdout at once. False when stdout cannot take it: the reader has gone, or the disk is full. */
bool terminal_write(const char *text, size_t bytes);
/* Whether stdout has broken, and how the process should end then: quietly for a reader that has gone, otherwise with a
 * line on stderr. Returns `status` if all is well. */
int terminal_finish(const char *verb, int status);

/* "1,234,567" in a caller's buffer of 32 bytes, returned. */
const char *format_count(char buffer[32], uint64_t value);
/* "1.5 MB" (powers of ten) in a caller's buffer of 32 bytes, returned. */
const char *format_bytes(char buffer[32], double bytes);

#endif
