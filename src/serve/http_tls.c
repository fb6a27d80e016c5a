/* TLS for the HTTP layer: one certificate, OpenSSL through libevent. */
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/error.h"
#include "serve/http_private.h"

static kakeya_status refuse(SSL_CTX *tls, const char *option, const char *path, kakeya_error *error) {
    char reason[160];
    ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
    ERR_clear_error();
    SSL_CTX_free(tls);
    return error_set(error, KAKEYA_FORMAT, "%s %s: %s", option, path, reason);
}

kakeya_status http_tls_open(const char *certificate, const char *key, SSL_CTX **out, kakeya_error *error) {
    *out = NULL;
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    if (!tls) return error_set(error, KAKEYA_OUT_OF_MEMORY, "TLS: out of memory");
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    if (SSL_CTX_use_certificate_chain_file(tls, certificate) != 1) return refuse(tls, "--tls-cert", certificate, error);
    if (SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(tls) != 1)
        return refuse(tls, "--tls-key", key, error);
    *out = tls;
    return KAKEYA_OK;
}

void http_tls_close(SSL_CTX *tls) { SSL_CTX_free(tls); }

struct bufferevent *http_tls_accept(SSL_CTX *tls, struct event_base *base, int socket) {
    SSL *session = SSL_new(tls);
    if (!session) return NULL;
    struct bufferevent *stream =
        bufferevent_openssl_socket_new(base, socket, session, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (!stream) SSL_free(session);
    if (stream) bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
    return stream;
}
