#include "serve/address.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static const struct in6_addr *six_of(const struct sockaddr *address) {
    return &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
}

/* An IPv4 address as IPv6 writes it. */
static void write_mapped(unsigned char out[16], const void *four) {
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    memcpy(out, mapped, sizeof mapped);
    memcpy(out + sizeof mapped, four, 4);
}

static void bytes_of(const struct sockaddr *address, unsigned char out[16]) {
    memset(out, 0, 16);
    if (address->sa_family == AF_INET6) memcpy(out, six_of(address), 16);
    if (address->sa_family == AF_INET)
        write_mapped(out, &((const struct sockaddr_in *)(const void *)address)->sin_addr);
}

static bool is_mapped(const unsigned char bytes[16]) {
    unsigned char four[16];
    write_mapped(four, bytes + 12);
    return memcmp(four, bytes, 16) == 0;
}

bool address_is_loopback(const struct sockaddr *address) {
    unsigned char bytes[16];
    bytes_of(address, bytes);
    if (is_mapped(bytes)) return bytes[12] == 127;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(six_of(address));
}

static address_count **bucket_of(address_table *table, const unsigned char key[16]) {
    return &table->buckets[hash_fnv1a(HASH_FNV1A_START, key, 16) % ADDRESS_BUCKETS];
}

address_count *address_enter(address_table *table, const struct sockaddr *address) {
    unsigned char key[16];
    bytes_of(address, key);
    if (!is_mapped(key) && !address_is_loopback(address)) memset(key + 8, 0, 8);
    address_count **bucket = bucket_of(table, key), *c = *bucket;
    while (c && memcmp(c->key, key, sizeof key) != 0) c = c->next;
    if (!c) {
        c = calloc(1, sizeof *c);
        if (!c) return NULL;
        memcpy(c->key, key, sizeof key);
        c->next = *bucket;
        *bucket = c;
    }
    c->n++;
    return c;
}

void address_leave(address_table *table, address_count *count) {
    if (--count->n) return;
    address_count **at = bucket_of(table, count->key);
    while (*at != count) at = &(*at)->next;
    *at = count->next;
    free(count);
}
