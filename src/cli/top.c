/* kakeya top: a running server, looked at again and again. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"
#include "cli/terminal.h"

#ifdef KAKEYA_SERVE

#include "cli/top_sample.h"
#include "serve/http_client.h"

enum { COLUMNS = 80, URL_BYTES = 64 };

static const cli_command command = {
    .name = "top",
    .summary = "Shows what a running server does: answers, tokens per second and per forward, K/V memory, the queue.",
    .operands = "[URL]",
    .details = "URL is http://127.0.0.1:8080 ($KAKEYA_HOST, $KAKEYA_PORT) unless given. On a terminal the view is\n"
               "redrawn at every interval, and q ends it; elsewhere one view follows another. Rates are\n"
               "averages over the last interval, so the first view has none; --once waits for one interval.\n",
    .examples = "  kakeya top\n"
                "  kakeya top https://models.example:8080 --api-key \"$KEY\" --once\n",
};

typedef struct top_options {
    const char *key, *ca_file;
    bool insecure, once;
    float interval;
} top_options;

typedef struct view {
    http_client *client;
    const char *url;
    text_buffer health, props, slots, metrics, drawn;
} view;

/* ---------------------------------------------------------------------------------------------------------- sampling
 */

static kakeya_status get(view *v, const char *path, text_buffer *body, int *status, kakeya_error *error) {
    kakeya_status result = http_client_get(v->client, path, status, body, error);
    if (result != KAKEYA_OK || *status == 200 || *status == 503) return result;
    if (*status == 401)
        return error_set(error, KAKEYA_IO, "%s: the server requires a key, or another one (--api-key)", v->url);
    return error_set(error, KAKEYA_IO, "%s: %s returned status %d: this is not kakeya serve", v->url, path, *status);
}

static const char *text_of(const text_buffer *text) { return text->data ? text->data : ""; }

/* A server that is loading or draining tells its health and metrics alone. */
static kakeya_status take_sample(view *v, top_sample *s, kakeya_error *error) {
    *s = (top_sample){0};
    int health, props = 0, slots = 0, metrics = 0;
    kakeya_status status = get(v, "/health", &v->health, &health, error);
    if (status == KAKEYA_OK && health == 200) status = get(v, "/props", &v->props, &props, error);
    if (status == KAKEYA_OK && health == 200) status = get(v, "/slots", &v->slots, &slots, error);
    if (status == KAKEYA_OK) status = get(v, "/metrics", &v->metrics, &metrics, error);
    s->seconds = clock_seconds();
    if (status != KAKEYA_OK) return status;
    kakeya_error why = {0};
    status = top_sample_read(s, text_of(&v->health), props == 200 ? text_of(&v->props) : NULL,
                             slots == 200 ? text_of(&v->slots) : NULL, text_of(&v->metrics), &why);
    return status == KAKEYA_OK ? status : error_set(error, status, "%s: %s", v->url, why.message);
}

/* ---------------------------------------------------------------------------------------------------------- terminal
 */

static struct termios before_us;

static void keys_at_once(bool on) {
    if (!isatty(STDIN_FILENO)) return;
    if (on) {
        if (tcgetattr(STDIN_FILENO, &before_us) != 0) return;
        struct termios raw = before_us;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    } else {
        tcsetattr(STDIN_FILENO, TCSANOW, &before_us);
    }
}

static void find_size(bool rewrites, int *width, int *height) {
    struct winsize size;
    *width = COLUMNS;
    *height = 0;
    if (!rewrites || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return;
    *width = size.ws_col;
    *height = size.ws_row > 1 ? size.ws_row - 1 : 0;
}

/* False: the view is to end. */
static bool wait_for_key(double until, bool keys) {
    while (!terminal_interrupted()) {
        double left = until - clock_seconds();
        if (left <= 0) return true;
        struct pollfd input = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
        if (poll(&input, 1, (int)(left * 1000) + 1) > 0) {
            char key;
            if (read(STDIN_FILENO, &key, 1) != 1) {
                keys = false; /* nobody types any more */
            } else if (key == 'q' || key == 'Q') {
                return false;
            }
        }
    }
    return false;
}

/* Puts the drawing where the last one was: no line flickers, and nothing of the old one is left. */
static bool show(const text_buffer *drawn, bool rewrites, bool first) {
    if (!rewrites) return (first || terminal_write("\n", 1)) && terminal_write(drawn->data, drawn->n);
    text_buffer out = {0};
    text_add(&out, "\033[H");
    for (const char *line = text_of(drawn), *end; *line; line = end + 1) {
        end = line + strcspn(line, "\n");
        text_bytes(&out, line, (size_t)(end - line));
        text_add(&out, "\033[K\n");
        if (!*end) break;
    }
    text_add(&out, "\033[J");
    bool good = !out.failed && terminal_write(out.data, out.n);
    text_free(&out);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- views
 */

/* Views until somebody ends them. Only the first failure to reach the server is the end: a server that is started anew
 * is waited for. */
static kakeya_status look(view *v, const top_options *o, kakeya_error *error) {
    bool rewrites = !o->once && terminal_rewrites(STDOUT_FILENO), keys = rewrites && isatty(STDIN_FILENO);
    top_sample now = {0}, before = {0};
    bool has_before = false, first = true, good = true;
    kakeya_status status = take_sample(v, &now, error);
    if (rewrites && status == KAKEYA_OK) {
        terminal_write("\033[?1049h", 8);
        keys_at_once(true);
    }
    bool entered = rewrites && status == KAKEYA_OK;
    while (status == KAKEYA_OK && good) {
        double next = clock_seconds() + (double)o->interval;
        if (!o->once || has_before) {
            int width, height;
            find_size(rewrites, &width, &height);
            text_clear(&v->drawn);
            top_sample_draw(&now, has_before ? &before : NULL, v->url, width, height, &v->drawn);
            good = !v->drawn.failed && show(&v->drawn, rewrites, first);
            first = false;
            if (o->once) break;
        }
        if (!good || !wait_for_key(next, keys)) break;
        top_sample_free(&before);
        before = now;
        has_before = true;
        kakeya_error why = {0};
        status = take_sample(v, &now, &why);
        while (status != KAKEYA_OK && rewrites) {
            text_clear(&v->drawn);
            text_format(&v->drawn, "kakeya top  %s\n", why.message);
            top_sample_free(&now);
            if (!show(&v->drawn, true, false) || !wait_for_key(clock_seconds() + (double)o->interval, keys)) break;
            status = take_sample(v, &now, &why);
        }
        if (status != KAKEYA_OK && !rewrites) *error = why;
        if (status != KAKEYA_OK && rewrites) {
            status = KAKEYA_OK;
            break;
        }
    }
    if (entered) {
        keys_at_once(false);
        terminal_write("\033[?1049l", 8);
    }
    top_sample_free(&now);
    top_sample_free(&before);
    return status;
}

static const char *default_url(char buffer[URL_BYTES + 256]) {
    const char *host = getenv("KAKEYA_HOST"), *port = getenv("KAKEYA_PORT");
    bool everywhere = !host || !*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    if (everywhere) host = "127.0.0.1";
    snprintf(buffer, URL_BYTES + 256, strchr(host, ':') ? "http://[%.200s]:%.8s" : "http://%.200s:%.8s", host,
             port && *port ? port : "8080");
    return buffer;
}

int cli_top(int argc, char **argv) {
    top_options o = {.interval = 2};
    const cli_option own[] = {
        CLI_FLAG("once", &o.once, "print one view and exit"),
        CLI_FLOAT("interval", "SECONDS", &o.interval, 0.1, 3600, "refresh interval (2)"),
        CLI_TEXT("api-key", "KEY", &o.key, "one of the server's keys (the first of $KAKEYA_API_KEYS)"),
        CLI_TEXT("tls-ca", "FILE", &o.ca_file, "trusted certificates, PEM (the system's)"),
        CLI_FLAG("tls-insecure", &o.insecure, "accept any certificate"),
        {.name = NULL},
    };
    int operand, status;
    char buffer[URL_BYTES + 256];
    if (!cli_parse(&command, own, NULL, argc, argv, &operand, &status)) return status;
    if (argc - operand > 1) return cli_usage_error(&command, "more than one URL ('%s')", argv[operand + 1]);
    char *key = cli_server_key(o.key);
    view v = {.url = operand < argc ? argv[operand] : default_url(buffer)};
    const http_client_options client = {
        .url = v.url, .key = key, .ca_file = o.ca_file, .insecure = o.insecure, .seconds = 10};
    kakeya_error error = {0};
    kakeya_status failed = http_client_open(&client, &v.client, &error);
    if (!failed) failed = look(&v, &o, &error);
    http_client_close(v.client);
    free(key);
    text_buffer *texts[] = {&v.health, &v.props, &v.slots, &v.metrics, &v.drawn};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) text_free(texts[i]);
    return failed ? cli_fail(command.name, &error) : CLI_DONE;
}

#else

int cli_top(int argc, char **argv) {
    (void)argc;
    (void)argv;
    fputs("kakeya top: this build has no server (KAKEYA_SERVE was OFF when it was made)\n", stderr);
    return CLI_FAILED;
}

#endif
