#include "cli/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
 * thread. Only what may be called in a signal handler is. */
static volatile int *bytes_lost; /* NULL: the program ends */

static bool read_address(const char *line, size_t n, size_t *at, uintptr_t *value) {
    size_t begin = *at;
    for (*value = 0; *at < n; ++*at) {
        char c = line[*at];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) break;
        *value = *value << 4 | (uintptr_t)digit;
    }
    return *at > begin;
}

/* The path at the end of a line of /proc/self/maps that is about the address; 0 bytes: it is about others. */
static size_t mapped_path(const char *line, size_t n, uintptr_t address, const char **path) {
    uintptr_t begin, end;
    size_t at = 0;
    if (!read_address(line, n, &at, &begin) || at == n || line[at++] != '-' || !read_address(line, n, &at, &end))
        return 0;
    if (address < begin || address >= end) return 0;
    while (at < n && line[at] != '/') at++;
    *path = line + at;
    return n - at;
}

static void write_error(const char *text, size_t n) {
    if (write(STDERR_FILENO, text, n) < 0) _exit(CLI_FAILED);
}

/* Names the file that lies there, where that can be found out. */
static void write_mapped_file(uintptr_t address) {
    static const char unknown[] = "a mapped file";
    static char line[4096 + 128];
    size_t n = 0, path_bytes = 0;
    const char *path = NULL;
    char piece[512];
    ssize_t got = 0;
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (maps >= 0 && !path_bytes && (got = read(maps, piece, sizeof piece)) > 0) {
        for (ssize_t i = 0; i < got && !path_bytes; i++) {
            if (piece[i] == '\n') {
                path_bytes = mapped_path(line, n, address, &path);
                n = 0;
            } else if (n < sizeof line) {
                line[n++] = piece[i];
            }
        }
    }
    if (maps >= 0) close(maps);
    write_error(path_bytes ? path : unknown, path_bytes ? path_bytes : sizeof unknown - 1);
}

static void say_lost_bytes(uintptr_t address) {
    static const char begin[] = "\nkakeya: ",
                      end[] = ": bytes are gone: the file was cut off or rewritten while it was in use, or its disk "
                              "failed\n";
    bool in_line = terminal.progress_shown;
    write_error(begin + !in_line, sizeof begin - 1 - !in_line);
    write_mapped_file(address);
    write_error(end, sizeof end - 1);
}

static void on_lost_bytes(int signal_number, siginfo_t *info, void *context) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), address = (uintptr_t)info->si_addr;
    (void)signal_number, (void)context;
    bool fault = info->si_code > 0, first = !atomic_flag_test_and_set(&said);
    if (first) say_lost_bytes(fault ? address : 0);
    if (bytes_lost && fault) { /* zeros in their place: nothing that is computed from them is handed out */
        *bytes_lost = 1;
        void *at = (void *)(address / page * page);
        if (mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at) return;
        _exit(CLI_FAILED);
    }
    while (!first) pause(); /* another thread has missed some too, and says it */
    _exit(CLI_FAILED);
}

void terminal_survive_lost_bytes(volatile int *lost) { bytes_lost = lost; }

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
    struct sigaction lost = {.sa_sigaction = on_lost_bytes, .sa_flags = SA_SIGINFO};
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

void terminal_meter_begin(terminal_meter *m, double done) {
    *m = (terminal_meter){.begun = clock_seconds(), .before = done};
}

void terminal_meter_show(terminal_meter *m, double done, double all, const char *format, ...) {
    static const double interval_seconds = 0.5;
    const double now = clock_seconds();
    va_list values;
    if (m->begun <= 0) terminal_meter_begin(m, 0);
    if (!terminal_rewrites(STDERR_FILENO) || now - m->shown < interval_seconds) return;
    m->shown = now;
    fprintf(stderr, "\r\033[K%s", terminal_dim(STDERR_FILENO));
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    const int left = done > m->before ? (int)((now - m->begun) * (all - done) / (done - m->before)) : -1;
    if (left >= 0) fprintf(stderr, ", about %d:%02d left", left / 60, left % 60);
    fputs(terminal_plain(STDERR_FILENO), stderr);
    fflush(stderr);
}

void terminal_meter_clear(terminal_meter *m) {
    if (m->shown > 0) fputs("\r\033[K", stderr);
    m->shown = 0;
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
