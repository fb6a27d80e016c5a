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

/* Where connections are refused at once: somebody holds the port and does not listen. */
static char url[64];
static int held;

static int hold_port(void **state) {
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    held = socket(AF_INET, SOCK_STREAM, 0);
    if (held < 0 || bind(held, (const struct sockaddr *)&at, sizeof at)) return -1;
    if (getsockname(held, (struct sockaddr *)&at, &size)) return -1;
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    return 0;
}

static int give_port_back(void **state) {
    (void)state;
    return close(held);
}

/* Asks with that limit. error: why nobody answered. */
static bool is_late(double seconds, kakeya_error *error) {
    http_client *client;
    text_buffer body = {0};
    int status;
    const http_client_options options = {.url = url, .seconds = seconds};
    assert_int_equal(http_client_open(&options, &client, error), KAKEYA_OK);
    assert_int_equal(http_client_get(client, "/", &status, &body, error), KAKEYA_IO);
    text_free(&body);
    http_client_close(client);
    return strstr(error->message, "no reply within");
}

/* Between the beginning and the first wait some microseconds pass: limits that are so much longer than whole seconds
 * leave nearly a whole second. */
static void nobody_is_late_before_the_limit(void **state) {
    (void)state;
    kakeya_error error = {0};
    for (int i = 0; i < 4000; i++) {
        const double seconds = 10 + i % 400 * 0.2e-6;
        if (is_late(seconds, &error)) fail_msg("%.7f s: %s", seconds, error.message);
    }
    assert_non_null(strstr(error.message, "refused"));
}

static void no_time_is_late(void **state) {
    (void)state;
    kakeya_error error = {0};
    assert_true(is_late(0, &error));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_late_before_the_limit),
        cmocka_unit_test(no_time_is_late),
    };
    return cmocka_run_group_tests(tests, hold_port, give_port_back);
}
