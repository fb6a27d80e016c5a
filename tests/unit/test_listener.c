/* Connections of the server: what it asks of the system for each of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http.h"

static void on_request(void *user, http_exchange *exchange) {
    (void)user;
    http_reply(exchange, 200, "text/plain", "ok", 2);
}

static void on_refusal(void *user, http_exchange *exchange, int status, const char *why) {
    (void)user, (void)why;
    http_reply(exchange, status, NULL, NULL, 0);
}

static void refusal(int status, const char *why, char *out, size_t bytes) {
    (void)status, (void)why;
    if (bytes) out[0] = '\0';
}

static int connect_to(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in address = {0};
    socklen_t bytes = sizeof address;
    return name(fd, (struct sockaddr *)&address, &bytes) == 0 && address.sin_family == AF_INET ? ntohs(address.sin_port)
                                                                                               : -1;
}

/* The server's end of a connection that this process has both ends of. */
static int other_end(int client) {
    enum { MOST = 1024 };
    int port = port_of(client, getsockname);
    for (int fd = 3; fd < MOST; fd++)
        if (fd != client && port_of(fd, getpeername) == port) return fd;
    return -1;
}

static http_server *open_server(void) {
    const http_options options = {.host = "127.0.0.1",
                                  .max_head_bytes = 1 << 16,
                                  .max_body_bytes = 1 << 16,
                                  .idle_seconds = 60,
                                  .receive_seconds = 60,
                                  .send_seconds = 60,
                                  .on_request = on_request,
                                  .on_refusal = on_refusal,
                                  .refusal = refusal};
    http_server *server = NULL;
    kakeya_error error = {0};
    assert_int_equal(http_open(&options, &server, &error), KAKEYA_OK);
    return server;
}

/* A connection that asks for something. */
static int ask(const http_server *server) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int client = connect_to(atoi(strrchr(http_url(server), ':') + 1));
    assert_int_equal(write(client, request, sizeof request - 1), sizeof request - 1);
    return client;
}

/* Events are small writes: none may wait for the client to confirm the one before. */
static void writes_are_not_put_off(void **state) {
    (void)state;
    http_server *server = open_server();
    int client = ask(server);
    char reply[512];
    assert_true(read(client, reply, sizeof reply) > 0); /* it has been accepted */
    int fd = other_end(client), is_set = 0;
    socklen_t bytes = sizeof is_set;
    assert_true(fd >= 0);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &is_set, &bytes), 0);
    assert_int_not_equal(is_set, 0);
    close(client);
    http_close(server);
}

static void wait_for_line(void *pipe) {
    char line;
    assert_int_equal(read(*(int *)pipe, &line, 1), 1);
}

/* A server that drains has clients who connected before it stopped listening: none of them is cut off. */
static void those_who_have_connected_are_answered(void **state) {
    (void)state;
    enum { CLIENTS = 20 };
    http_server *server = open_server();
    int held[2], client[CLIENTS];
    assert_int_equal(pipe(held), 0);
    http_task busy; /* the network thread does something else meanwhile */
    http_post(server, &busy, wait_for_line, &held[0]);
    http_stop_listening(server);
    for (int i = 0; i < CLIENTS; i++) client[i] = ask(server);
    assert_int_equal(write(held[1], "\n", 1), 1);
    for (int i = 0; i < CLIENTS; i++) {
        static const char expected[] = "HTTP/1.1 200 OK\r\n";
        char reply[512];
        assert_true(read(client[i], reply, sizeof reply) >= (ssize_t)sizeof expected - 1);
        assert_memory_equal(reply, expected, sizeof expected - 1);
        close(client[i]);
    }
    close(held[0]);
    close(held[1]);
    http_close(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(writes_are_not_put_off),
                                       cmocka_unit_test(those_who_have_connected_are_answered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
