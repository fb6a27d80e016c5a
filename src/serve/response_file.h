/* One stored response as a file of its own, verified in every byte before it is used: a line
 *
 *     kakeya-response 1 ID OWNER ENDED PREVIOUS OBJECT INPUT OUTPUT CHECKSUM
 *
 * and the three texts behind it. OWNER: 16 hexadecimal digits; ENDED: Unix ms; PREVIOUS: an id or "-"; then the bytes
 * of each text; CHECKSUM: XXH3-128 of the line up to there and of the texts, 32 hexadecimal digits. */
#ifndef KAKEYA_SERVE_RESPONSE_FILE_H
#define KAKEYA_SERVE_RESPONSE_FILE_H

#include <stdint.h>

#include "kakeya.h"
#include "serve/text.h"

enum { RESPONSE_ID_BYTES = 40, RESPONSE_NAME_BYTES = RESPONSE_ID_BYTES + 8 };

/* What is known of a response: JSON texts. */
typedef struct response_texts {
    char previous[RESPONSE_ID_BYTES]; /* id of the response that it continues; "" for none */
    text_buffer object;               /* as clients get it */
    text_buffer input;                /* the list of the request's own items */
    text_buffer output;               /* the list of output items */
} response_texts;

void response_texts_free(response_texts *texts);
/* False: out of memory, *to is empty. */
bool response_texts_copy(const response_texts *from, response_texts *to);

typedef struct response_record {
    char id[RESPONSE_ID_BYTES];
    unsigned long long owner;
    uint64_t ended_ms; /* Unix time */
    response_texts texts;
} response_record;

/* ID.kkr. False: it is none that this server gives, and never becomes part of a path. */
bool response_file_name(const char *id, char name[RESPONSE_NAME_BYTES]);
/* The id of such a name. False: it is none. */
bool response_file_id(const char *name, char id[RESPONSE_ID_BYTES]);

kakeya_status response_file_write(int directory, const response_record *record, kakeya_error *error);
/* record->texts is freed with response_texts_free. KAKEYA_FORMAT: damaged, or the file of another response;
 * KAKEYA_CANCELLED: there is none. */
kakeya_status response_file_read(int directory, const char *name, response_record *record, kakeya_error *error);

#endif
