/* The client's limit of time: whatever fraction of a second is left of it, it is a limit, and nobody is late before it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http_client.h"

/* A port that refuses connections at once, as somebody holds it and does not listen. */
static int held_port(int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* error: why nobody answered. */
static void ask(const char *url, double seconds, kakeya_error *error) {
    http_client *client;
    text_buffer body = {0};
    int status;
    const http_client_options options = {.url = url, .seconds = seconds};
    assert_int_equal(http_client_open(&options, &client, error), KAKEYA_OK);
    assert_int_equal(http_client_get(client, "/", &status, &body, error), KAKEYA_IO);
    text_free(&body);
    http_client_close(client);
}

/* Between the beginning and the first wait some microseconds pass: limits that are so much longer than whole seconds
 * leave nearly a whole second. */
static void nobody_is_late_before_the_limit(void **state) {
    (void)state;
    int port, fd = held_port(&port);
    char url[64];
    kakeya_error error = {0};
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    for (int i = 0; i < 4000; i++) {
        const double seconds = 10 + i % 400 * 0.2e-6;
        ask(url, seconds, &error);
        if (strstr(error.message, "no reply within")) fail_msg("%.7f s: %s", seconds, error.message);
    }
    close(fd);
}

static void no_time_is_late(void **state) {
    (void)state;
    int port, fd = held_port(&port);
    char url[64];
    kakeya_error error = {0};
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    ask(url, 0, &error);
    assert_non_null(strstr(error.message, "no reply within"));
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_late_before_the_limit),
        cmocka_unit_test(no_time_is_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
