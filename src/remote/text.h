/* The forms of the texts that the two ends of a remote run exchange: names, nonces, times, digests. Everything that
 * comes from the bus is checked against these forms before it is used, and none of it becomes a path or an option. */
#ifndef KAKEYA_REMOTE_TEXT_H
#define KAKEYA_REMOTE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Bytes with the NUL behind. */
enum { REMOTE_NAME = 65, REMOTE_NONCE = 26, REMOTE_TIME = 21, REMOTE_SHA256 = 65 };

/* A person, a worker, a preset, a model or an input: a lower-case letter or digit, then up to 63 of [a-z0-9._-]. */
bool remote_is_name(const char *text);
/* "20261121T203012Z-9f3c2ab1": when the request was made, and 32 random bits. Ascending texts are ascending times. */
bool remote_is_nonce(const char *text);
/* 64 lower-case hexadecimal digits. */
bool remote_is_sha256(const char *text);

/* A new nonce for `now` (seconds since 1970). */
kakeya_status remote_make_nonce(int64_t now, char nonce[REMOTE_NONCE], kakeya_error *error);
/* When the request of this nonce was made. */
int64_t remote_nonce_time(const char *nonce);

/* "2026-11-21T20:30:12Z" and seconds since 1970. Nothing else is a time: no other zone, no fractions, no 31st of June.
 */
bool remote_time_read(const char *text, int64_t *seconds);
void remote_time_write(int64_t seconds, char text[REMOTE_TIME]);

/* SHA-256 of bytes, as hexadecimal digits. */
void remote_sha256(const void *data, size_t bytes, char digest[REMOTE_SHA256]);

/* Makes foreign text fit for a terminal, in place: control characters (but line feeds and tabs), bytes that are no
 * UTF-8 and characters that turn the direction of writing become '?'. Returns the bytes that are left; no NUL is
 * written. */
size_t remote_printable(char *text, size_t bytes);

#endif
