/* Runs a program on a pseudo-terminal and plays a script against it, read from stdin, one step per line:
 *   expect TEXT      waits until TEXT has appeared behind what earlier steps matched
 *   output N         waits until N more bytes have appeared, whatever they are
 *   send TEXT        types TEXT and Return
 *   type TEXT        types TEXT
 *   interrupt        types Ctrl-C
 *   end              types Ctrl-D
 *   keeps            holds if Ctrl-C does not make the terminal throw away what the program has written
 *   exit STATUS      waits for the program's end and compares its exit status
 * The transcript goes to stdout. Exit status 0: every step was met; 1: one was not, named on stderr.
 * usage: pty PROGRAM [ARGUMENT]... <SCRIPT */
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { STEP_TIMEOUT_MS = 120000, TRANSCRIPT_BYTES = 1 << 20, LINE_BYTES = 4096 };

typedef struct terminal {
    int descriptor;
    pid_t child;
    char transcript[TRANSCRIPT_BYTES]; /* NUL-terminated; NUL bytes of the program are dropped */
    size_t length, matched;
    bool closed;
} terminal;

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Takes what the program has written, waiting at most until the deadline. */
static void take_output(terminal *t, long deadline) {
    struct pollfd wait = {.fd = t->descriptor, .events = POLLIN};
    long left = deadline - now_ms();
    if (left < 0 || poll(&wait, 1, (int)left) <= 0) return;
    char bytes[4096];
    ssize_t n = read(t->descriptor, bytes, sizeof bytes);
    if (n <= 0) { /* EIO: the program has closed its side */
        t->closed = true;
        return;
    }
    fwrite(bytes, 1, (size_t)n, stdout);
    for (ssize_t i = 0; i < n && t->length + 1 < TRANSCRIPT_BYTES; i++) {
        if (bytes[i]) t->transcript[t->length++] = bytes[i];
    }
    t->transcript[t->length] = '\0';
}

static bool expect(terminal *t, const char *text) {
    long deadline = now_ms() + STEP_TIMEOUT_MS;
    for (;;) {
        char *found = strstr(t->transcript + t->matched, text);
        if (found) {
            t->matched = (size_t)(found - t->transcript) + strlen(text);
            return true;
        }
        if (t->closed || now_ms() >= deadline) return false;
        take_output(t, deadline);
    }
}

static bool expect_output(terminal *t, size_t bytes) {
    long deadline = now_ms() + STEP_TIMEOUT_MS;
    while (t->length < t->matched + bytes && !t->closed && now_ms() < deadline) take_output(t, deadline);
    if (t->length < t->matched + bytes) return false;
    t->matched += bytes;
    return true;
}

static bool type(const terminal *t, const char *text) {
    size_t length = strlen(text);
    return write(t->descriptor, text, length) == (ssize_t)length;
}

static bool wait_for_exit(terminal *t, int expected) {
    long deadline = now_ms() + STEP_TIMEOUT_MS;
    while (!t->closed && now_ms() < deadline) take_output(t, deadline);
    int status;
    if (!t->closed || waitpid(t->child, &status, 0) != t->child) return false;
    t->child = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == expected;
}

/* A terminal's two ends have one set of modes. */
static bool keeps_output(const terminal *t) {
    struct termios modes;
    return tcgetattr(t->descriptor, &modes) == 0 && (modes.c_lflag & NOFLSH);
}

static bool play(terminal *t, const char *step) {
    if (strncmp(step, "expect ", 7) == 0) return expect(t, step + 7);
    if (strncmp(step, "output ", 7) == 0) return expect_output(t, strtoul(step + 7, NULL, 10));
    if (strncmp(step, "send ", 5) == 0) return type(t, step + 5) && type(t, "\r");
    if (strncmp(step, "type ", 5) == 0) return type(t, step + 5);
    if (strcmp(step, "interrupt") == 0) return type(t, "\003");
    if (strcmp(step, "end") == 0) return type(t, "\004");
    if (strcmp(step, "keeps") == 0) return keeps_output(t);
    if (strncmp(step, "exit ", 5) == 0) return wait_for_exit(t, atoi(step + 5));
    return false;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: pty PROGRAM [ARGUMENT]... <SCRIPT\n");
        return 2;
    }
    static terminal t;
    struct winsize size = {.ws_row = 24, .ws_col = 100};
    t.child = forkpty(&t.descriptor, NULL, NULL, &size);
    if (t.child < 0) {
        perror("forkpty");
        return 2;
    }
    if (t.child == 0) {
        execvp(argv[1], argv + 1);
        perror(argv[1]);
        _exit(127);
    }
    int result = 0;
    char step[LINE_BYTES];
    while (!result && fgets(step, sizeof step, stdin)) {
        step[strcspn(step, "\n")] = '\0';
        if (!*step || *step == '#') continue;
        if (!play(&t, step)) {
            fprintf(stderr, "not met: %s\n", step);
            result = 1;
        }
    }
    fflush(stdout);
    if (t.child > 0) {
        kill(t.child, SIGKILL);
        waitpid(t.child, NULL, 0);
    }
    return result;
}
