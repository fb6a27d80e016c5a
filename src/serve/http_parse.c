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
static bool decode_path(char *target, char **path, const char **query) {
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        char *slash = strchr(strstr(target, "://") + 3, '/');
        if (!slash) return false;
        target = slash;
    }
    if (*target != '/' && strcmp(target, "*") != 0) return false;
    *path = target;
    char *out = target, *in = target;
    for (; *in && *in != '?' && *in != '#'; in++) {
        if (*in != '%') {
            *out++ = *in;
            continue;
        }
        int high = hex_digit(in[1]), low = high < 0 ? -1 : hex_digit(in[2]);
        if (low < 0 || high * 16 + low < 0x20 || high * 16 + low == 0x7f) return false;
        *out++ = (char)(high * 16 + low);
        in += 2;
    }
    *query = *in == '?' ? in + 1 : "";
    in[strcspn(in, "#")] = '\0';
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
    return decode_path(target, &head->path, &head->query) ? 0 : refuse(why, "malformed target");
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

/* What the headers say about the body and the connection. */
static int parse_framing(http_head *head, const char **why) {
    size_t hosts = 0, encodings = 0, lengths = 0;
    head->keep_alive = head->minor == 1;
    for (size_t i = 0; i < head->n_headers; i++) {
        const http_header *h = &head->headers[i];
        if (strcasecmp(h->name, "host") == 0) {
            hosts++;
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
    if (hosts > 1 || (hosts == 0 && head->minor == 1)) return refuse(why, "a request has exactly one Host header");
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

enum { SIZE_FIRST, SIZE_MORE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER_START, TRAILER, TRAILER_LF, LAST_LF };

static bool chunks_byte(http_chunks *c, char byte) {
    int digit = hex_digit(byte);
    switch (c->state) {
    case SIZE_FIRST:
        if (digit < 0) return false;
        c->left = (uint64_t)digit;
        c->line_bytes = 1;
        c->state = SIZE_MORE;
        return true;
    case SIZE_MORE:
        if (digit >= 0) {
            c->left = c->left * 16 + (uint64_t)digit;
            return ++c->line_bytes <= 15;
        }
        c->state = byte == '\r' ? SIZE_LF : EXTENSION;
        return byte == '\r' || byte == ';' || byte == ' ' || byte == '\t';
    case EXTENSION:
        if (byte == '\r') c->state = SIZE_LF;
        return byte != '\n' && ++c->line_bytes <= MAX_CHUNK_LINE;
    case SIZE_LF:
        c->state = c->left ? DATA : TRAILER_START;
        return byte == '\n';
    case DATA_CR:
        c->state = DATA_LF;
        return byte == '\r';
    case DATA_LF:
        c->state = SIZE_FIRST;
        return byte == '\n';
    case TRAILER_START:
        c->state = byte == '\r' ? LAST_LF : TRAILER;
        return byte != '\n' && ++c->trailer_bytes <= MAX_TRAILER;
    case TRAILER:
        if (byte == '\r') c->state = TRAILER_LF;
        return byte != '\n' && ++c->trailer_bytes <= MAX_TRAILER;
    case TRAILER_LF:
        c->state = TRAILER_START;
        return byte == '\n';
    default: /* LAST_LF */
        c->done = true;
        return byte == '\n';
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
