#include "serve/http_parse.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_CHUNK_LINE = 1024, MAX_TRAILER = 8192 };

static bool is_token(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static int refuse(const char **why, const char *text) {
    *why = text;
    return 400;
}

/* Decodes the path of a target in place, and finds the query behind it. */
static bool decode_path(char *target, http_head *head) {
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        char *host = strstr(target, "://") + 3;
        target = strchr(host, '/');
        if (!target) return false;
        head->host = host;
        head->host_bytes = (size_t)(target - host);
    }
    if (*target != '/' && strcmp(target, "*") != 0) return false;
    head->path = target;
    char *out = target, *in = target;
    for (; *in && *in != '?'; in++) {
        if (*in == '#') return false;
        if (*in != '%') {
            *out++ = *in;
            continue;
        }
        int high = hex_digit(in[1]), low = high < 0 ? -1 : hex_digit(in[2]);
        if (low < 0 || high * 16 + low < 0x20 || high * 16 + low == 0x7f) return false;
        *out++ = (char)(high * 16 + low);
        in += 2;
    }
    head->query = *in == '?' ? in + 1 : "";
    if (strchr(head->query, '#')) return false;
    *out = '\0';
    return true;
}

static int parse_request_line(char *line, http_head *head, const char **why) {
    char *method_end = strchr(line, ' ');
    if (!method_end || method_end == line || method_end - line > HTTP_MAX_METHOD)
        return refuse(why, "malformed request line");
    for (const char *c = line; c < method_end; c++)
        if (!is_token((unsigned char)*c)) return refuse(why, "malformed method");
    char *target = method_end + 1, *target_end = strchr(target, ' ');
    if (!target_end || target_end == target) return refuse(why, "malformed request line");
    for (const char *c = target; c < target_end; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c == 0x7f) return refuse(why, "malformed target");
    const char *version = target_end + 1;
    *method_end = *target_end = '\0';
    head->method = line;
    if (strcmp(version, "HTTP/1.1") == 0) {
        head->minor = 1;
    } else if (strcmp(version, "HTTP/1.0") != 0) {
        return refuse(why, "the request line does not end with HTTP/1.0 or HTTP/1.1");
    }
    return decode_path(target, head) ? 0 : refuse(why, "malformed target");
}

static int parse_header(char *line, http_head *head, const char **why) {
    if (head->n_headers == HTTP_MAX_HEADERS) return refuse(why, "too many headers");
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return refuse(why, "malformed header");
    for (const char *c = line; c < colon; c++)
        if (!is_token((unsigned char)*c)) return refuse(why, "malformed header name");
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t"), *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
    *end = '\0';
    for (const char *c = value; *c; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f) return refuse(why, "malformed header value");
    head->headers[head->n_headers++] = (http_header){line, value};
    return 0;
}

/* Whether a comma-separated list names a token. */
static bool lists(const char *list, const char *token) {
    size_t bytes = strlen(token);
    while (*list) {
        list += strspn(list, ", \t");
        size_t length = strcspn(list, ", \t");
        if (length == bytes && strncasecmp(list, token, bytes) == 0) return true;
        list += length;
    }
    return false;
}

/* Headers of which two readers could each take another one. */
static bool is_repeated(const http_head *head, size_t at) {
    static const char *const single[] = {"authorization", "x-api-key", "content-type", "origin"};
    const char *name = head->headers[at].name;
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (strcasecmp(name, single[i]) == 0) return http_head_find(head, name) != head->headers[at].value;
    return false;
}

/* A host, and perhaps a port; not what a reader could take for a list, a path or a user. */
static bool is_host(const http_head *head, const char *value) {
    if (value[strcspn(value, " \t,/?#@\\")]) return false;
    return !head->host || (strlen(value) == head->host_bytes && strncasecmp(value, head->host, head->host_bytes) == 0);
}

/* What the headers say about the body and the connection. */
static int parse_framing(http_head *head, const char **why) {
    size_t hosts = 0, encodings = 0, lengths = 0;
    head->keep_alive = head->minor == 1;
    for (size_t i = 0; i < head->n_headers; i++) {
        const http_header *h = &head->headers[i];
        if (is_repeated(head, i)) return refuse(why, "a header that may appear once appears twice");
        if (strcasecmp(h->name, "host") == 0) {
            hosts++;
            if (!is_host(head, h->value)) return refuse(why, "malformed Host, or the target names another one");
        } else if (strcasecmp(h->name, "content-length") == 0) {
            size_t digits = strlen(h->value);
            lengths++;
            if (digits == 0 || digits > 18 || strspn(h->value, "0123456789") != digits)
                return refuse(why, "malformed Content-Length");
            head->content_length = strtoull(h->value, NULL, 10);
        } else if (strcasecmp(h->name, "transfer-encoding") == 0) {
            encodings++;
            if (head->minor == 0 || strcasecmp(h->value, "chunked") != 0)
                return refuse(why, "the only transfer encoding is chunked");
        } else if (strcasecmp(h->name, "connection") == 0) {
            if (lists(h->value, "close")) head->keep_alive = false;
            if (head->minor == 0 && lists(h->value, "keep-alive")) head->keep_alive = true;
        } else if (strcasecmp(h->name, "expect") == 0) {
            head->expects_continue = strcasecmp(h->value, "100-continue") == 0;
        }
    }
    if (hosts > 1 || (hosts == 0 && (head->minor == 1 || head->host)))
        return refuse(why, "a request has exactly one Host header");
    if (lengths > 1) return refuse(why, "more than one Content-Length");
    if (encodings > 1) return refuse(why, "more than one Transfer-Encoding");
    if (lengths && encodings) return refuse(why, "both Content-Length and Transfer-Encoding");
    head->has_length = lengths != 0;
    head->chunked = encodings != 0;
    return 0;
}

static int parse_lines(http_head *head, size_t n, const char **why) {
    char *line = head->text, *end = head->text + n;
    bool first = true;
    for (;;) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) return refuse(why, "malformed head");
        if (stop == line || stop[-1] != '\r') return refuse(why, "lines end with CR LF");
        stop[-1] = '\0';
        if (strlen(line) != (size_t)(stop - 1 - line)) return refuse(why, "a NUL in the head");
        if (!*line) {
            if (first || stop + 1 != end) return refuse(why, "malformed head");
            return parse_framing(head, why);
        }
        int status = first ? parse_request_line(line, head, why) : parse_header(line, head, why);
        if (status) return status;
        first = false;
        line = stop + 1;
    }
}

int http_head_parse(const char *bytes, size_t n, http_head *out, const char **why) {
    *out = (http_head){0};
    out->text = malloc(n + 1);
    if (!out->text) {
        *why = "out of memory";
        return 500;
    }
    memcpy(out->text, bytes, n);
    out->text[n] = '\0';
    int status = parse_lines(out, n, why);
    if (status) http_head_free(out);
    return status;
}

void http_head_free(http_head *head) {
    free(head->text);
    *head = (http_head){0};
}

const char *http_head_find(const http_head *head, const char *name) {
    for (size_t i = 0; i < head->n_headers; i++)
        if (strcasecmp(head->headers[i].name, name) == 0) return head->headers[i].value;
    return NULL;
}

/* ----------------------------------------------------------------------------------------------- chunked bodies */

/* A chunk's line is its size in hexadecimal digits and extensions, ;NAME or ;NAME=VALUE, each with white space around
 * it but not at the line's end. Trailers are headers. (RFC 9112, section 7.1) */
enum {
    SIZE_FIRST,
    SIZE_MORE,
    EXTENSION, /* white space in front of the next extension's ';' */
    NAME_START,
    NAME,
    NAME_END, /* white space behind the name */
    VALUE_START,
    VALUE,
    QUOTED,
    ESCAPED,
    QUOTED_END,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER_START,
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    LAST_LF
};

static bool is_blank(unsigned char c) { return c == ' ' || c == '\t'; }

static bool is_text(unsigned char c) { return (c >= 0x20 && c != 0x7f) || c == '\t'; }

static bool step(http_chunks *c, int state) {
    c->state = state;
    return true;
}

/* Behind a name or a value: the end of the line, or the next extension. */
static bool extension_end(http_chunks *c, unsigned char byte) {
    if (byte == '\r') return step(c, SIZE_LF);
    return byte == ';' && step(c, NAME_START);
}

static bool extension_byte(http_chunks *c, unsigned char byte) {
    if (++c->line_bytes > MAX_CHUNK_LINE) return false;
    switch (c->state) {
    case EXTENSION:
        return is_blank(byte) || (byte == ';' && step(c, NAME_START));
    case NAME_START:
        return is_blank(byte) || (is_token(byte) && step(c, NAME));
    case NAME:
        if (is_token(byte)) return true;
        if (is_blank(byte)) return step(c, NAME_END);
        return byte == '=' ? step(c, VALUE_START) : extension_end(c, byte);
    case NAME_END:
        return is_blank(byte) || (byte == '=' && step(c, VALUE_START)) || (byte == ';' && step(c, NAME_START));
    case VALUE_START:
        return is_blank(byte) || (byte == '"' && step(c, QUOTED)) || (is_token(byte) && step(c, VALUE));
    case QUOTED:
        if (byte == '"') return step(c, QUOTED_END);
        return byte == '\\' ? step(c, ESCAPED) : is_text(byte);
    case ESCAPED:
        return is_text(byte) && step(c, QUOTED);
    default: /* VALUE, QUOTED_END */
        if (c->state == VALUE && is_token(byte)) return true;
        return is_blank(byte) ? step(c, EXTENSION) : extension_end(c, byte);
    }
}

static bool trailer_byte(http_chunks *c, unsigned char byte) {
    if (++c->trailer_bytes > MAX_TRAILER) return false;
    switch (c->state) {
    case TRAILER_START:
        if (byte == '\r') return step(c, LAST_LF);
        return is_token(byte) && step(c, TRAILER_NAME);
    case TRAILER_NAME:
        return is_token(byte) || (byte == ':' && step(c, TRAILER_VALUE));
    case TRAILER_VALUE:
        return byte == '\r' ? step(c, TRAILER_LF) : is_text(byte);
    default: /* TRAILER_LF */
        return byte == '\n' && step(c, TRAILER_START);
    }
}

static bool chunks_byte(http_chunks *c, char byte) {
    int digit = hex_digit(byte);
    switch (c->state) {
    case SIZE_FIRST:
        c->left = (uint64_t)digit;
        c->line_bytes = 1;
        return digit >= 0 && step(c, SIZE_MORE);
    case SIZE_MORE:
        if (digit >= 0) {
            c->left = c->left * 16 + (uint64_t)digit;
            return ++c->line_bytes <= 15;
        }
        return is_blank((unsigned char)byte) ? step(c, EXTENSION) : extension_end(c, (unsigned char)byte);
    case SIZE_LF:
        return byte == '\n' && step(c, c->left ? DATA : TRAILER_START);
    case DATA_CR:
        return byte == '\r' && step(c, DATA_LF);
    case DATA_LF:
        return byte == '\n' && step(c, SIZE_FIRST);
    case LAST_LF:
        c->done = byte == '\n';
        return c->done;
    default:
        return c->state < SIZE_LF ? extension_byte(c, (unsigned char)byte) : trailer_byte(c, (unsigned char)byte);
    }
}

bool http_chunks_feed(http_chunks *c, const char *bytes, size_t n, size_t *consumed, const char **data,
                      size_t *data_bytes) {
    size_t at = 0;
    *data = NULL;
    *data_bytes = 0;
    while (at < n && !c->done) {
        if (c->state == DATA) {
            if (*data) break; /* one run at a time */
            size_t run = n - at < c->left ? n - at : (size_t)c->left;
            *data = bytes + at;
            *data_bytes = run;
            at += run;
            c->left -= run;
            if (c->left == 0) c->state = DATA_CR;
        } else if (!chunks_byte(c, bytes[at++])) {
            *consumed = at;
            return false;
        }
    }
    *consumed = at;
    return true;
}
