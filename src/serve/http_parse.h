/* The strict part of HTTP/1.1: heads of requests, and chunked bodies. No sockets and no time: bytes in, values out, so
 * that both can be fuzzed. What two readers could understand in two ways is refused, because a proxy in front of the
 * server would be one of the two (request smuggling). */
#ifndef KAKEYA_SERVE_HTTP_PARSE_H
#define KAKEYA_SERVE_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_MAX_HEADERS = 128, HTTP_MAX_METHOD = 31 };

typedef struct http_header {
    const char *name, *value; /* value without white space around it */
} http_header;

/* A head. All texts point into `text`, which the head owns. */
typedef struct http_head {
    char *text;
    const char *method; /* as it came: methods are case-sensitive */
    char *path;         /* decoded, without query, never empty; valid as long as the head */
    const char *query;  /* as it came, without its '?'; "" where there is none */
    const char *host;   /* that the target names; NULL: none */
    size_t host_bytes;
    int minor; /* 0 or 1: HTTP/1.0, HTTP/1.1 */
    http_header headers[HTTP_MAX_HEADERS];
    size_t n_headers;
    bool has_length, chunked, keep_alive, expects_continue;
    uint64_t content_length; /* with has_length */
} http_head;

/* Parses a head that ends with its empty line ("\r\n\r\n" included in bytes). Returns 0, or the status of the refusal
 * (400; 500: out of memory) with *why set to a literal. On failure nothing is owned. */
int http_head_parse(const char *bytes, size_t n, http_head *out, const char **why);
void http_head_free(http_head *head);
/* The value of the first header of that name in whatever case; NULL where there is none. */
const char *http_head_find(const http_head *head, const char *name);

/* Chunked bodies, fed with bytes as they come. Zero before the first use. */
typedef struct http_chunks {
    int state;
    uint64_t left;     /* bytes of the chunk that are missing */
    size_t line_bytes; /* of the line that is being read */
    size_t trailer_bytes;
    bool done;
} http_chunks;

/* Reads up to n bytes. *consumed says how many were read, and *data, *data_bytes which of them are the body: at most
 * one run, so callers loop until nothing is consumed or `done` is set. False: this is no chunked body. */
bool http_chunks_feed(http_chunks *chunks, const char *bytes, size_t n, size_t *consumed, const char **data,
                      size_t *data_bytes);

#endif
