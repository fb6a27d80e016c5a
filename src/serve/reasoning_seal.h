/* Reasoning that clients carry for the server, as encrypted_content: readable, but whatever has been changed on the
 * way, or was made by another server, is not taken for the server's own. "kk1." and, in base64url, 16 bytes of
 * HMAC-SHA-256 and the text. */
#ifndef KAKEYA_SERVE_REASONING_SEAL_H
#define KAKEYA_SERVE_REASONING_SEAL_H

#include "serve/text.h"

enum { SEAL_KEY_BYTES = 32 };

typedef struct reasoning_seal {
    unsigned char key[SEAL_KEY_BYTES];
} reasoning_seal;

/* A new key that nobody knows. False: the system has no random numbers. */
bool reasoning_seal_init(reasoning_seal *seal);
/* Appends the sealed text. */
void reasoning_seal_close(const reasoning_seal *seal, const char *text, size_t bytes, text_buffer *out);
/* The text again, malloc'ed; NULL where it is not a text that was sealed with this key. */
char *reasoning_seal_open(const reasoning_seal *seal, const char *sealed);
/* Appends the base64 of the text's HMAC alone: says that the text was said here, and nothing of it. */
void reasoning_seal_sign(const reasoning_seal *seal, const char *text, size_t bytes, text_buffer *out);

#endif
