#include "serve/auth.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/files.h"

enum { DIGEST = 32, MAX_KEY_FILE = 1 << 20 };

typedef struct key_set {
    unsigned char (*digests)[DIGEST];
    size_t n;
} key_set;

struct auth {
    auth_options options;
    pthread_mutex_t lock; /* of the keys */
    key_set keys;
};

static bool add_key(key_set *set, const char *key, size_t bytes) {
    if (bytes == 0) return true;
    void *grown = realloc(set->digests, (set->n + 1) * sizeof *set->digests);
    if (!grown) return false;
    set->digests = grown;
    return EVP_Digest(key, bytes, set->digests[set->n++], NULL, EVP_sha256(), NULL) == 1;
}

/* The keys of a text, which `separator` divides; white space around them is not part of them. */
static bool add_keys(key_set *set, const char *text, char separator) {
    static const char blank[] = " \t\r\n";
    while (text && *text) {
        const char *end = strchr(text, separator);
        size_t bytes = end ? (size_t)(end - text) : strlen(text), skip = strspn(text, blank);
        if (skip > bytes) skip = bytes;
        size_t length = bytes - skip;
        while (length && strchr(blank, text[skip + length - 1])) length--;
        if (!(separator == '\n' && text[skip] == '#') && !add_key(set, text + skip, length)) return false;
        text = end ? end + 1 : NULL;
    }
    return true;
}

static kakeya_status read_keys(const auth_options *o, key_set *set, kakeya_error *error) {
    *set = (key_set){0};
    bool added = true;
    for (size_t i = 0; i < o->n_keys && added; i++) added = add_key(set, o->keys[i], strlen(o->keys[i]));
    if (added) added = add_keys(set, o->environment, ',');
    kakeya_status status = KAKEYA_OK;
    if (added && o->file) {
        char *text = NULL;
        size_t bytes;
        status = file_read_text(o->file, MAX_KEY_FILE, &text, &bytes, error);
        if (status == KAKEYA_OK) added = add_keys(set, text, '\n');
        free(text);
    }
    if (status == KAKEYA_OK && !added) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "API keys: out of memory");
    /* A server that was told to ask for keys must not be open because the file is empty. */
    if (status == KAKEYA_OK && o->file && set->n == 0)
        status = error_set(error, KAKEYA_FORMAT, "%s: there is no key in it", o->file);
    if (status != KAKEYA_OK) free(set->digests);
    return status;
}

kakeya_status auth_open(const auth_options *options, auth **out, kakeya_error *error) {
    *out = NULL;
    auth *a = calloc(1, sizeof *a);
    if (!a) return error_set(error, KAKEYA_OUT_OF_MEMORY, "API keys: out of memory");
    a->options = *options;
    pthread_mutex_init(&a->lock, NULL);
    kakeya_status status = read_keys(options, &a->keys, error);
    if (status != KAKEYA_OK) {
        a->keys = (key_set){0};
        auth_close(a);
        return status;
    }
    *out = a;
    return KAKEYA_OK;
}

void auth_close(auth *a) {
    if (!a) return;
    free(a->keys.digests);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

kakeya_status auth_reload(auth *a, kakeya_error *error) {
    key_set fresh;
    kakeya_status status = read_keys(&a->options, &fresh, error);
    if (status != KAKEYA_OK) return status;
    pthread_mutex_lock(&a->lock);
    free(a->keys.digests);
    a->keys = fresh;
    pthread_mutex_unlock(&a->lock);
    return KAKEYA_OK;
}

bool auth_needs_key(auth *a) {
    pthread_mutex_lock(&a->lock);
    bool needed = a->keys.n > 0;
    pthread_mutex_unlock(&a->lock);
    return needed;
}

/* All keys are compared, whichever fits. */
static bool is_key(auth *a, const char *key, unsigned long long *identity) {
    unsigned char digest[DIGEST];
    if (EVP_Digest(key, strlen(key), digest, NULL, EVP_sha256(), NULL) != 1) return false;
    bool found = false;
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->keys.n; i++) found |= CRYPTO_memcmp(digest, a->keys.digests[i], DIGEST) == 0;
    pthread_mutex_unlock(&a->lock);
    if (found) memcpy(identity, digest, sizeof *identity);
    return found;
}

bool auth_allows(auth *a, const char *authorization, const char *x_api_key, unsigned long long *identity) {
    *identity = 0;
    if (!auth_needs_key(a)) return true;
    if (authorization && strncasecmp(authorization, "bearer ", 7) == 0) {
        const char *key = authorization + 7;
        if (is_key(a, key + strspn(key, " "), identity)) return true;
    }
    return x_api_key && is_key(a, x_api_key, identity);
}

bool auth_host_allowed(const auth *a, const char *host) {
    if (!host) return true; /* HTTP/1.0, which no browser speaks */
    char name[256];
    size_t bytes = strlen(host);
    if (bytes == 0 || bytes >= sizeof name) return false;
    memcpy(name, host, bytes + 1);
    unsigned char address[16];
    if (name[0] == '[') {
        char *end = strchr(name, ']');
        if (!end || (end[1] && end[1] != ':')) return false;
        *end = '\0';
        return inet_pton(AF_INET6, name + 1, address) == 1;
    }
    char *port = strchr(name, ':');
    if (port) *port = '\0';
    if (strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1) return true;
    for (size_t i = 0; i < a->options.n_hosts; i++)
        if (strcasecmp(name, a->options.hosts[i]) == 0) return true;
    return false;
}

const char *auth_origin(const auth *a, const char *origin) {
    if (!origin) return NULL;
    for (size_t i = 0; i < a->options.n_origins; i++) {
        if (strcmp(a->options.origins[i], "*") == 0) return "*";
        if (strcmp(a->options.origins[i], origin) == 0) return a->options.origins[i];
    }
    return NULL;
}
