/* Addresses of sockets, and how many connections come from each. */
#ifndef KAKEYA_SERVE_ADDRESS_H
#define KAKEYA_SERVE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* Whether only this machine reaches it. */
bool address_is_loopback(const struct sockaddr *address);

/* One address, or all 2^64 of an IPv6 network, which are one client's. */
typedef struct address_count {
    unsigned char key[16];
    size_t n;
    struct address_count *next;
} address_count;

enum { ADDRESS_BUCKETS = 1024 };
typedef struct address_table {
    address_count *buckets[ADDRESS_BUCKETS];
} address_table;

/* Counts one more; NULL: out of memory. address_leave takes it back. */
address_count *address_enter(address_table *table, const struct sockaddr *address);
void address_leave(address_table *table, address_count *count);

#endif
