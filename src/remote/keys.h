/* Signatures with SSH keys, by ssh-keygen -Y: who wrote a file of the bus. The namespace keeps them apart from
 * signatures that the same keys make elsewhere. */
#ifndef KAKEYA_REMOTE_KEYS_H
#define KAKEYA_REMOTE_KEYS_H

#include "remote/text.h"

#define KEYS_NAMESPACE "kakeya-remote@v1"

enum { KEYS_MAX_SIGNATURE = 16 << 10 };

/* KAKEYA_UNSUPPORTED in one line where ssh-keygen is missing or too old to sign and verify (OpenSSH 8.2). */
kakeya_status keys_check_program(kakeya_error *error);

/* Signs bytes with a private key, or with the public half of one that ssh-agent holds. *signature is malloc'ed text. */
kakeya_status keys_sign(const char *key, const char *text, size_t bytes, char **signature, size_t *signature_bytes,
                        kakeya_error *error);

/* Whether this looks like a signature at all. */
bool keys_is_signature(const char *signature, size_t bytes);

/* Finds out who signed the bytes, of those whom the file of allowed signers names. KAKEYA_FORMAT: nobody of them signed
 * these bytes in this namespace. scratch: a folder for the signature, which ssh-keygen wants as a file. */
kakeya_status keys_verify(const char *allowed, const char *scratch, const char *text, size_t bytes,
                          const char *signature, size_t signature_bytes, char principal[REMOTE_NAME],
                          kakeya_error *error);

/* Adds a line for `principal` to a file of allowed signers, in place of the lines that it had. key: the text of a
 * public key
 * ("ssh-ed25519 AAAA... comment"). */
kakeya_status keys_allow(const char *allowed, const char *principal, const char *key, kakeya_error *error);
/* The line without the comment: "ssh-ed25519 AAAA..."; KAKEYA_FORMAT where it is no public key. out: malloc'ed. */
kakeya_status keys_read_public(const char *text, char **out, kakeya_error *error);
/* Makes a key without a passphrase at `path` and `path`.pub. */
kakeya_status keys_make(const char *path, const char *comment, kakeya_error *error);

#endif
