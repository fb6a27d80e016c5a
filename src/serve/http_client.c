#include "serve/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/platform.h"

enum { MAX_REPLY = 64 << 20, MAX_HEAD = 64 << 10, MAX_NAME = 256, MAX_PORT = 8 };

struct http_client {
    SSL_CTX *tls; /* NULL: plain */
    char url[2 * MAX_NAME], host[MAX_NAME], port[MAX_PORT], prefix[MAX_NAME];
    char *authorization; /* a header line, or NULL */
    double seconds;
};

/* One connection, for one reply. */
typedef struct connection {
    const http_client *client;
    int fd;
    SSL *ssl;
    double deadline;
} connection;

/* ------------------------------------------------------------------------------------------------------ open, close */

static bool copy(char *out, size_t room, const char *from, size_t bytes) {
    if (bytes >= room) return false;
    memcpy(out, from, bytes);
    out[bytes] = '\0';
    return true;
}

/* SCHEME://HOST[:PORT][/PATH], an IPv6 address in brackets. */
static bool read_url(http_client *c, const char *url, bool *tls) {
    *tls = strncmp(url, "https://", 8) == 0;
    if (!*tls && strncmp(url, "http://", 7) != 0) return false;
    const char *host = url + (*tls ? 8 : 7);
    bool bracket = *host == '[';
    size_t length = strcspn(host += bracket, bracket ? "]/" : ":/");
    const char *rest = host + length;
    if (length == 0 || (bracket && *rest++ != ']') || !copy(c->host, sizeof c->host, host, length)) return false;
    snprintf(c->port, sizeof c->port, "%s", *tls ? "443" : "80");
    if (*rest == ':') {
        size_t digits = strspn(++rest, "0123456789");
        if (digits == 0 || digits > 5 || atoi(rest) > 65535 || !copy(c->port, sizeof c->port, rest, digits))
            return false;
        rest += digits;
    }
    if ((*rest && *rest != '/') || strpbrk(rest, "?# \r\n") || strpbrk(c->host, " \r\n@")) return false;
    size_t path = strlen(rest);
    while (path && rest[path - 1] == '/') path--;
    return copy(c->prefix, sizeof c->prefix, rest, path) && copy(c->url, sizeof c->url, url, strlen(url));
}

static kakeya_status open_tls(http_client *c, const http_client_options *o, kakeya_error *error) {
    c->tls = SSL_CTX_new(TLS_client_method());
    if (!c->tls) return error_set(error, KAKEYA_OUT_OF_MEMORY, "TLS: out of memory");
    SSL_CTX_set_min_proto_version(c->tls, TLS1_2_VERSION);
    SSL_CTX_set_options(c->tls, SSL_OP_IGNORE_UNEXPECTED_EOF); /* the length of the reply tells whether it is whole */
    SSL_CTX_set_verify(c->tls, o->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (!o->ca_file) {
        SSL_CTX_set_default_verify_paths(c->tls);
    } else if (SSL_CTX_load_verify_locations(c->tls, o->ca_file, NULL) != 1) {
        ERR_clear_error();
        return error_set(error, KAKEYA_IO, "%s: no certificates can be read from it", o->ca_file);
    }
    return KAKEYA_OK;
}

kakeya_status http_client_open(const http_client_options *options, http_client **out, kakeya_error *error) {
    *out = NULL;
    http_client *c = calloc(1, sizeof *c);
    if (!c) return error_set(error, KAKEYA_OUT_OF_MEMORY, "HTTP client: out of memory");
    bool tls = false;
    kakeya_status status = KAKEYA_OK;
    c->seconds = options->seconds;
    if (!read_url(c, options->url, &tls))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "'%s' is not http://HOST:PORT or https://HOST:PORT",
                           options->url);
    const char *key = options->key ? options->key : "";
    if (status == KAKEYA_OK && strpbrk(key, "\r\n"))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "the key has more than one line");
    if (status == KAKEYA_OK && *key && asprintf(&c->authorization, "authorization: Bearer %s\r\n", key) < 0) {
        c->authorization = NULL;
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "HTTP client: out of memory");
    }
    if (status == KAKEYA_OK && tls) status = open_tls(c, options, error);
    if (status != KAKEYA_OK) {
        http_client_close(c);
        return status;
    }
    *out = c;
    return KAKEYA_OK;
}

void http_client_close(http_client *client) {
    if (!client) return;
    SSL_CTX_free(client->tls);
    free(client->authorization);
    free(client);
}

/* ------------------------------------------------------------------------------------------------------- connections
 */

static kakeya_status fail(const http_client *c, const char *why, kakeya_error *error) {
    return error_set(error, KAKEYA_IO, "%s: %s", c->url, why);
}

static kakeya_status late(const http_client *c, kakeya_error *error) {
    char why[64];
    snprintf(why, sizeof why, "no reply within %g s", c->seconds);
    return fail(c, why, error);
}

static kakeya_status fail_of_system(const connection *x, kakeya_error *error) {
    bool expired = errno == EAGAIN || errno == EINPROGRESS || errno == ETIMEDOUT;
    return expired ? late(x->client, error) : fail(x->client, strerror(errno), error);
}

/* Each operation may take what is left of the time. */
static bool limit_time(const connection *x) {
    double left = x->deadline - clock_seconds();
    if (left <= 0) return false;
    struct timeval patience = {.tv_sec = (time_t)left};
    patience.tv_usec = (suseconds_t)((left - (double)patience.tv_sec) * 1e6); /* a million of them is refused */
    if (patience.tv_sec == 0 && patience.tv_usec == 0) patience.tv_usec = 1;  /* none would be no limit */
    return setsockopt(x->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
           setsockopt(x->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0;
}

static kakeya_status connect_to(connection *x, kakeya_error *error) {
    const http_client *c = x->client;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int problem = getaddrinfo(c->host, c->port, &hints, &found);
    if (problem) return fail(c, gai_strerror(problem), error);
    kakeya_status status = KAKEYA_IO;
    for (const struct addrinfo *a = found; a && status != KAKEYA_OK; a = a->ai_next) {
        if (x->fd >= 0) close(x->fd);
        x->fd = platform_socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (x->fd >= 0 && !limit_time(x)) {
            status = late(c, error);
            break;
        }
        if (x->fd >= 0 && connect(x->fd, a->ai_addr, a->ai_addrlen) == 0) {
            status = KAKEYA_OK;
        } else {
            status = fail_of_system(x, error);
        }
    }
    freeaddrinfo(found);
    return status;
}

static kakeya_status fail_of_tls(const connection *x, int result, kakeya_error *error) {
    int problem = SSL_get_error(x->ssl, result);
    long verdict = SSL_get_verify_result(x->ssl);
    unsigned long code = ERR_peek_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    kakeya_status status;
    if (problem == SSL_ERROR_WANT_READ || problem == SSL_ERROR_WANT_WRITE) {
        status = late(x->client, error);
    } else if (verdict != X509_V_OK) {
        status =
            error_set(error, KAKEYA_IO, "%s: %s (--tls-ca)", x->client->url, X509_verify_cert_error_string(verdict));
    } else if (reason) {
        status = error_set(error, KAKEYA_IO, "%s: TLS: %s", x->client->url, reason);
    } else {
        status = fail(x->client, "the connection was closed before a reply", error);
    }
    ERR_clear_error();
    return status;
}

static kakeya_status greet(connection *x, kakeya_error *error) {
    const char *host = x->client->host;
    x->ssl = SSL_new(x->client->tls);
    if (!x->ssl || SSL_set_fd(x->ssl, x->fd) != 1) return fail(x->client, "out of memory", error);
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1) {
        X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(x->ssl), host);
    } else {
        SSL_set_tlsext_host_name(x->ssl, host);
        SSL_set1_host(x->ssl, host);
    }
    int result = SSL_connect(x->ssl);
    return result == 1 ? KAKEYA_OK : fail_of_tls(x, result, error);
}

/* ---------------------------------------------------------------------------------------------------------- replies */

static kakeya_status send_all(connection *x, const text_buffer *out, kakeya_error *error) {
    kakeya_status status = out->failed ? fail(x->client, "out of memory", error) : KAKEYA_OK;
    for (size_t sent = 0; status == KAKEYA_OK && sent < out->n;) {
        size_t left = out->n - sent;
        ssize_t n =
            x->ssl ? SSL_write(x->ssl, out->data + sent, (int)left) : send(x->fd, out->data + sent, left, MSG_NOSIGNAL);
        if (n > 0) {
            sent += (size_t)n;
        } else if (x->ssl) {
            status = fail_of_tls(x, (int)n, error);
        } else if (errno != EINTR) {
            status = fail_of_system(x, error);
        }
    }
    return status;
}

/* Everything of a request's head but the empty line. */
static void write_head(const http_client *c, const char *method, const char *path, int minor, text_buffer *out) {
    bool bracket = strchr(c->host, ':') != NULL;
    text_format(out, "%s %s%s HTTP/1.%d\r\nhost: %s%s%s:%s\r\n%sconnection: close\r\n", method, c->prefix, path, minor,
                bracket ? "[" : "", c->host, bracket ? "]" : "", c->port, c->authorization ? c->authorization : "");
}

static kakeya_status send_get(connection *x, const char *path, kakeya_error *error) {
    text_buffer out = {0};
    write_head(x->client, "GET", path, 0, &out);
    text_add(&out, "\r\n");
    kakeya_status status = send_all(x, &out, error);
    text_free(&out);
    return status;
}

static kakeya_status send_post(connection *x, const char *path, const char *json, size_t bytes, kakeya_error *error) {
    text_buffer out = {0};
    write_head(x->client, "POST", path, 1, &out);
    text_format(&out, "content-type: application/json\r\ncontent-length: %zu\r\n\r\n", bytes);
    text_bytes(&out, json, bytes);
    kakeya_status status = send_all(x, &out, error);
    text_free(&out);
    return status;
}

/* The next bytes of a reply: 0 at its end, < 0 with *error set. */
static ssize_t receive_some(connection *x, char *out, size_t room, kakeya_status *status, kakeya_error *error) {
    for (;;) {
        if (!limit_time(x)) {
            *status = late(x->client, error);
            return -1;
        }
        ssize_t n = x->ssl ? SSL_read(x->ssl, out, (int)room) : recv(x->fd, out, room, 0);
        if (n > 0) return n;
        if (x->ssl ? SSL_get_error(x->ssl, (int)n) == SSL_ERROR_ZERO_RETURN : n == 0) return 0;
        if (!x->ssl && errno == EINTR) continue;
        *status = x->ssl ? fail_of_tls(x, (int)n, error) : fail_of_system(x, error);
        return -1;
    }
}

static kakeya_status receive(connection *x, text_buffer *reply, kakeya_error *error) {
    char piece[16384];
    kakeya_status status = KAKEYA_OK;
    for (ssize_t n; (n = receive_some(x, piece, sizeof piece, &status, error)) > 0;) {
        text_bytes(reply, piece, (size_t)n);
        if (reply->failed) return fail(x->client, "out of memory", error);
        if (reply->n > MAX_REPLY) return fail(x->client, "the reply is too long", error);
    }
    return status;
}

/* Takes the head off. */
static kakeya_status read_reply(const http_client *c, text_buffer *reply, int *status, kakeya_error *error) {
    int minor = 0, parsed = 0;
    const char *head = reply->data ? reply->data : "", *end = strstr(head, "\r\n\r\n");
    if (reply->n == 0) return fail(c, "the connection was closed before a reply", error);
    if (!end || sscanf(head, "HTTP/1.%d %3d", &minor, status) != 2 || *status < 100)
        return fail(c, "what answers there does not speak HTTP", error);
    size_t begin = (size_t)(end - head) + 4;
    for (const char *line = strstr(head, "\r\n"); line && line < end; line = strstr(line + 2, "\r\n")) {
        unsigned long long length = 0;
        if (strncasecmp(line + 2, "content-length:", 15) != 0) continue;
        parsed = sscanf(line + 17, "%llu", &length);
        if (parsed == 1 && length != reply->n - begin) return fail(c, "the reply is cut off", error);
    }
    memmove(reply->data, reply->data + begin, reply->n - begin + 1);
    reply->n -= begin;
    return KAKEYA_OK;
}

static kakeya_status open_connection(const http_client *c, connection *x, kakeya_error *error) {
    *x = (connection){.client = c, .fd = -1, .deadline = clock_seconds() + c->seconds};
    kakeya_status status = connect_to(x, error);
    return status == KAKEYA_OK && c->tls ? greet(x, error) : status;
}

static void close_connection(connection *x) {
    SSL_free(x->ssl);
    if (x->fd >= 0) close(x->fd);
}

kakeya_status http_client_get(http_client *c, const char *path, int *status, text_buffer *body, kakeya_error *error) {
    text_clear(body);
    *status = 0;
    connection x;
    kakeya_status result = open_connection(c, &x, error);
    if (result == KAKEYA_OK) result = send_get(&x, path, error);
    if (result == KAKEYA_OK) result = receive(&x, body, error);
    if (result == KAKEYA_OK) result = read_reply(c, body, status, error);
    close_connection(&x);
    return result;
}

/* ---------------------------------------------------------------------------------------------------------- streams */

/* Where a reply is that comes piece by piece. */
typedef struct reply_stream {
    text_buffer head;
    bool in_body, chunked, sized, ended, unwanted;
    unsigned long long left; /* of the body with a length, or of the chunk */
    enum { CHUNK_SIZE = 0, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER } at;
    char line[64]; /* of a chunk's size, or how a line of the trailer begins */
    size_t line_bytes;
    http_client_take_fn take;
    void *user;
} reply_stream;

static void hand_over(reply_stream *r, const char *bytes, size_t n) {
    if (n && !r->unwanted && !r->take(r->user, bytes, n)) r->unwanted = true;
}

/* A line of the framing. False: it is none. */
static bool end_line(reply_stream *r) {
    char *end;
    r->line[r->line_bytes] = '\0';
    bool empty = r->line_bytes == 0;
    r->line_bytes = 0;
    if (r->at == CHUNK_TRAILER) {
        r->ended = empty;
        return true;
    }
    if (r->at == CHUNK_END) {
        r->at = CHUNK_SIZE;
        return empty;
    }
    r->left = strtoull(r->line, &end, 16);
    r->at = r->left ? CHUNK_DATA : CHUNK_TRAILER;
    return end != r->line && (*end == '\0' || *end == ';' || *end == ' ');
}

static bool take_chunked(reply_stream *r, const char *bytes, size_t n) {
    for (size_t i = 0; i < n && !r->ended && !r->unwanted;) {
        if (r->at == CHUNK_DATA) {
            size_t some = n - i < r->left ? n - i : (size_t)r->left;
            hand_over(r, bytes + i, some);
            i += some;
            r->left -= some;
            if (!r->left) r->at = CHUNK_END;
        } else if (bytes[i++] == '\n') {
            if (!end_line(r)) return false;
        } else if (bytes[i - 1] != '\r' && r->line_bytes + 1 < sizeof r->line) {
            r->line[r->line_bytes++] = bytes[i - 1];
        }
    }
    return true;
}

static bool take_body(reply_stream *r, const char *bytes, size_t n) {
    if (r->chunked) return take_chunked(r, bytes, n);
    if (r->sized && n > r->left) n = (size_t)r->left;
    hand_over(r, bytes, n);
    r->left -= r->sized ? n : 0;
    r->ended = r->sized && !r->left;
    return true;
}

/* What the head says of the body. False: it is none. */
static bool read_head(reply_stream *r, int *status) {
    int minor;
    if (sscanf(r->head.data, "HTTP/1.%d %3d", &minor, status) != 2 || *status < 100) return false;
    for (const char *line = strstr(r->head.data, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, "content-length:", 15) == 0) r->sized = sscanf(line + 17, "%llu", &r->left) == 1;
        if (strncasecmp(line + 2, "transfer-encoding:", 18) == 0) {
            const char *value = line + 20 + strspn(line + 20, " ");
            r->chunked = strncasecmp(value, "chunked", 7) == 0;
        }
    }
    if (r->chunked) r->sized = false;
    r->in_body = true;
    r->ended = r->sized && !r->left;
    return true;
}

static kakeya_status take_piece(const http_client *c, reply_stream *r, const char *bytes, size_t n, int *status,
                                kakeya_error *error) {
    static const char nonsense[] = "what answers there does not speak HTTP";
    if (r->in_body) return take_body(r, bytes, n) ? KAKEYA_OK : fail(c, nonsense, error);
    text_bytes(&r->head, bytes, n);
    if (r->head.failed) return fail(c, "out of memory", error);
    char *end = strstr(r->head.data, "\r\n\r\n");
    if (!end) return r->head.n < MAX_HEAD ? KAKEYA_OK : fail(c, nonsense, error);
    const char *body = end + 4;
    const size_t rest = r->head.n - (size_t)(body - r->head.data);
    end[2] = '\0';
    if (!read_head(r, status)) return fail(c, nonsense, error);
    return rest == 0 || take_body(r, body, rest) ? KAKEYA_OK : fail(c, nonsense, error);
}

kakeya_status http_client_post(http_client *c, const char *path, const char *json, size_t bytes, int *status,
                               http_client_take_fn take, void *user, kakeya_error *error) {
    char piece[16384];
    reply_stream r = {.take = take, .user = user};
    connection x;
    *status = 0;
    kakeya_status result = open_connection(c, &x, error);
    if (result == KAKEYA_OK) result = send_post(&x, path, json, bytes, error);
    for (ssize_t n = 1; result == KAKEYA_OK && n && !r.ended && !r.unwanted;) {
        n = receive_some(&x, piece, sizeof piece, &result, error);
        if (n > 0) result = take_piece(c, &r, piece, (size_t)n, status, error);
        if (n == 0 && !r.in_body)
            result = fail(c, "the connection was closed before a reply", error);
        else if (n == 0 && (r.chunked || r.sized))
            result = fail(c, "the reply is cut off", error);
    }
    close_connection(&x);
    text_free(&r.head);
    return result;
}
