/* The key of the reasoning that clients carry, kept in the session directory: servers that share it, and those that
 * come after a restart, take each other's. */
#ifndef KAKEYA_SERVE_SEAL_FILE_H
#define KAKEYA_SERVE_SEAL_FILE_H

#include "kakeya.h"
#include "serve/reasoning_seal.h"

#define SEAL_FILE_NAME "seal.key"

/* The key of the directory; the first server makes it. On failure *seal is as it was, and *error says why. A file that
 * is no key is renamed to seal.key.bad, and another key made. */
kakeya_status seal_file_open(const char *directory, reasoning_seal *seal, kakeya_error *error);

#endif
