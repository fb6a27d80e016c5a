/* What is asked of a worker: one small JSON file, signed as the bytes that it is. It names a preset and its parameters,
 * and holds no code, no path, no command. */
#ifndef KAKEYA_REMOTE_REQUEST_H
#define KAKEYA_REMOTE_REQUEST_H

#include "remote/text.h"

enum {
    REQUEST_MAX_BYTES = 64 << 10,
    REQUEST_MAX_PARAMS = 16,
    REQUEST_MAX_INPUTS = 16,
    REQUEST_MAX_INPUT_BYTES = 1 << 20,
    REQUEST_VALUE = 257,                 /* of a parameter, with the NUL behind */
    REQUEST_LIFE_SECONDS = 24 * 60 * 60, /* from created to expires, at most */
    REQUEST_CLOCK_SECONDS = 5 * 60,      /* by which the clocks of both ends may differ */
};

typedef struct request_param {
    char name[REMOTE_NAME];
    char value[REQUEST_VALUE]; /* up to 256 of [A-Za-z0-9._,+-], no '-' in front */
} request_param;

/* A file that travels with the request. */
typedef struct request_input {
    char name[REMOTE_NAME];
    char sha256[REMOTE_SHA256];
} request_input;

typedef struct request {
    char nonce[REMOTE_NONCE];
    char preset[REMOTE_NAME], model[REMOTE_NAME];
    char worker[REMOTE_NAME]; /* "any", or the one that is to run it */
    char bus[REMOTE_SHA256];  /* the bus that it was made for (remote_config.bus_digest) */
    char requested_by[REMOTE_NAME];
    int64_t created, expires;
    request_param param[REQUEST_MAX_PARAMS]; /* names differ */
    size_t n_params;
    request_input input[REQUEST_MAX_INPUTS]; /* names differ */
    size_t n_inputs;
} request;

/* Reads what request_write writes, and refuses (KAKEYA_FORMAT) everything else: other keys, a key twice, other types,
 * other characters than printable ASCII without a backslash, more than REQUEST_MAX_BYTES. Reads no signature: that is
 * over. */
kakeya_status request_read(const char *text, size_t bytes, request *out, kakeya_error *error);
/* malloc'ed, with a line feed at the end. Refuses what request_read would refuse. */
kakeya_status request_write(const request *request, char **text, size_t *bytes, kakeya_error *error);

/* KAKEYA_INVALID_ARGUMENT where the request is too old or too young for a clock that shows `now`. */
kakeya_status request_check_time(const request *request, int64_t now, kakeya_error *error);

/* NULL where there is none of this name. */
const char *request_value(const request *request, const char *param);

#endif
