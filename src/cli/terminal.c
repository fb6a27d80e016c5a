#include "cli/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/options.h"

static volatile sig_atomic_t interrupted;
static volatile sig_atomic_t ending; /* the signal that ends the program, or 0 */

/* State of the one terminal that the process has. */
static struct {
    bool progress_shown;
    double progress_next; /* when the line may be rewritten */
    const char *progress_what;
    int write_error; /* errno of the first failed write to stdout */
} terminal;

/* Work shorter than this shows no progress, and the line is not rewritten more often. */
static const double progress_interval_seconds = 0.25;

/* The first signal asks for an orderly end: the work stops at its next step, temporary files go, reports keep their
 * finished rows. A second one of those that end a program ends it at once. */
static void on_signal(int signal_number) {
    interrupted = 1;
    if (signal_number == SIGINT) return;
    if (ending) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    ending = signal_number;
}

/* Models are mapped: where a file becomes shorter, or its disk fails, the next read of its bytes ends here, in whatever
 * thread. Nothing of what was computed can be trusted to be complete. */
static void on_lost_bytes(int signal_number) {
    static const char text[] =
        "\nkakeya: bytes of a mapped file are gone: a model was cut off or rewritten while it was in "
        "use, or its disk failed\n";
    static atomic_flag said = ATOMIC_FLAG_INIT;
    (void)signal_number;
    while (atomic_flag_test_and_set(&said)) pause(); /* another thread has missed some too, and says it */
    bool in_line = terminal.progress_shown;
    if (write(STDERR_FILENO, text + !in_line, sizeof text - 1 - !in_line) < 0) _exit(CLI_FAILED);
    _exit(CLI_FAILED);
}

void terminal_start(void) {
    /* SIGXFSZ: the write that met the limit fails like one that met a full disk. */
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXFSZ};
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: a waiting read returns */
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction before;
        /* nohup starts programs with SIGHUP ignored, and that is meant. */
        bool keep = signals[i] == SIGHUP && sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (!keep) sigaction(signals[i], &action, NULL);
    }
    struct sigaction lost = {.sa_handler = on_lost_bytes};
    sigemptyset(&lost.sa_mask);
    sigaction(SIGBUS, &lost, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
}

bool terminal_interrupted(void) { return interrupted != 0; }

void terminal_clear_interrupt(void) {
    if (!ending) interrupted = 0;
}

bool terminal_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    if (interrupted) return false;
    if (!terminal_rewrites(STDERR_FILENO)) return true;
    double now = clock_seconds();
    if (!terminal.progress_what || strcmp(terminal.progress_what, what) != 0) {
        terminal.progress_what = what;
        terminal.progress_next = now + progress_interval_seconds;
    }
    if (done >= total) {
        terminal_clear_progress();
    } else if (now >= terminal.progress_next) {
        terminal.progress_next = now + progress_interval_seconds;
        fprintf(stderr, "\r%s%s %3.0f%%%s", terminal_dim(STDERR_FILENO), what, 100.0 * (double)done / (double)total,
                terminal_plain(STDERR_FILENO));
        fflush(stderr);
        terminal.progress_shown = true;
    }
    return true;
}

void terminal_clear_progress(void) {
    terminal.progress_what = NULL;
    if (!terminal.progress_shown) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    terminal.progress_shown = false;
}

bool terminal_rewrites(int stream_descriptor) {
    const char *term = getenv("TERM");
    return isatty(stream_descriptor) && term && *term && strcmp(term, "dumb") != 0;
}

static bool coloured(int stream_descriptor) {
    const char *no_color = getenv("NO_COLOR");
    return terminal_rewrites(stream_descriptor) && !(no_color && *no_color);
}

const char *terminal_dim(int stream_descriptor) { return coloured(stream_descriptor) ? "\033[2m" : ""; }

const char *terminal_plain(int stream_descriptor) { return coloured(stream_descriptor) ? "\033[0m" : ""; }

bool terminal_write(const char *text, size_t bytes) {
    if (terminal.write_error) return false;
    if ((bytes && fwrite(text, 1, bytes, stdout) != bytes) || fflush(stdout) != 0) {
        terminal.write_error = errno ? errno : EIO;
        return false;
    }
    return true;
}

int terminal_finish(const char *verb, int status) {
    if (!terminal.write_error && (ferror(stdout) || fflush(stdout) != 0)) terminal.write_error = errno ? errno : EIO;
    if (terminal.write_error && terminal.write_error != EPIPE) {
        fprintf(stderr, "kakeya %s: standard output: %s\n", verb, strerror(terminal.write_error));
        if (status == CLI_DONE) status = CLI_FAILED;
    }
    enum { SIGNAL_STATUS = 128 }; /* as a shell reports a program that a signal has ended */
    return ending ? SIGNAL_STATUS + ending : status;
}

const char *format_count(char buffer[32], uint64_t value) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    char *out = buffer;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return buffer;
}

const char *format_bytes(char buffer[32], double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1000;
        unit++;
    }
    int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(buffer, 32, "%.*f %s", decimals, bytes, units[unit]);
    return buffer;
}
