#include "remote/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sched.h>
#include <sys/prctl.h>
#endif

#include "base/clock.h"
#include "base/platform.h"
#include "remote/text.h"

extern char **environ;

#ifdef __GLIBC__
typedef __rlimit_resource_t limited; /* an enum for C with GNU extensions, which clang does not make of any int */
#else
typedef int limited;
#endif

static void limit(limited resource, size_t value) {
    if (!value) return;
    struct rlimit now, wanted = {.rlim_cur = value, .rlim_max = value};
    if (getrlimit(resource, &now) == 0 && now.rlim_max != RLIM_INFINITY && now.rlim_max < value)
        wanted = (struct rlimit){now.rlim_max, now.rlim_max};
    setrlimit(resource, &wanted);
}

#ifdef __linux__
static void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, text, strlen(text)) < 0) { /* the ids are told as nobody's; what they may do is the same */
    }
    close(fd);
}

/* Who has no right to it takes the network namespace of a user namespace, in which the ids stay what they are. */
static void leave_network(void) {
    char user[40], group[40];
    snprintf(user, sizeof user, "%u %u 1", geteuid(), geteuid());
    snprintf(group, sizeof group, "%u %u 1", getegid(), getegid());
    if (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return;
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", user);
    write_text("/proc/self/gid_map", group);
}
#else
static void leave_network(void) {}
#endif

static void execute(const process_child *child) {
    size_t n = 0;
    while (child->argv[n]) n++;
    const char *words[n + 1];
    memcpy(words, child->argv, sizeof words);
    if (child->name) words[0] = child->name;
    execvp(child->argv[0], (char *const *)(uintptr_t)words);
}

/* In the child. The descriptors of `child` are above 2 (process_start sees to it). */
static void become(const process_child *child, pid_t parent, int report) {
    static const int defaults[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGPIPE,
                                   SIGXFSZ, SIGCHLD, SIGALRM, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) signal(defaults[i], SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (child->limits.no_network) leave_network();
#ifdef __linux__
    if (child->dies_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(127); /* it has gone already */
    }
#else
    (void)parent;
#endif
    limit(RLIMIT_CPU, child->limits.cpu_seconds);
    limit(RLIMIT_FSIZE, child->limits.file_bytes);
    limit(RLIMIT_AS, child->limits.memory_bytes);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    int from[3] = {child->in, child->out, child->err};
    for (int i = 0; i < 3; i++)
        if (dup2(from[i] >= 0 ? from[i] : nothing, i) < 0) goto failed;
    if (child->directory && chdir(child->directory) != 0) goto failed;
    environ = (char **)(uintptr_t)child->environment;
    execute(child);
failed:;
    int reason = errno;
    ssize_t written = write(report, &reason, sizeof reason);
    _exit(written > 0 ? 127 : 126);
}

kakeya_status process_start(const process_child *child, pid_t *pid, kakeya_error *error) {
    int report[2];
    if (platform_pipe(report) != 0)
        return error_set(error, KAKEYA_IO, "%s: no pipe: %s", child->argv[0], strerror(errno));
    pid_t parent = getpid();
    fflush(NULL);
    *pid = fork();
    if (*pid == 0) become(child, parent, report[1]);
    int fork_error = errno, reason = 0;
    close(report[1]);
    if (*pid < 0) {
        close(report[0]);
        return error_set(error, KAKEYA_IO, "%s: cannot start: %s", child->argv[0], strerror(fork_error));
    }
    ssize_t got;
    do got = read(report[0], &reason, sizeof reason);
    while (got < 0 && errno == EINTR);
    close(report[0]);
    if (got != sizeof reason) return KAKEYA_OK;
    while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return error_set(error, KAKEYA_IO, "%s: %s", child->argv[0],
                     reason == ENOENT ? "there is no such program" : strerror(reason));
}

/* ---------------------------------------------------------------------------------------------------------- calls */

enum { COMPLAINT_BYTES = 2000 };

typedef struct running {
    const process_call *call;
    int in, out, err; /* our ends; -1 when closed */
    size_t written;
    char *output;
    size_t bytes, capacity;
    char complaint[COMPLAINT_BYTES];
    size_t complaint_bytes;
} running;

static void close_end(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void feed(running *r) {
    /* A program that has closed its input is no signal to us. */
    ssize_t n = send(r->in, r->call->input + r->written, r->call->input_bytes - r->written, MSG_NOSIGNAL);
    if (n > 0) r->written += (size_t)n;
    if (r->written == r->call->input_bytes || (n < 0 && errno != EAGAIN && errno != EINTR)) close_end(&r->in);
}

static kakeya_status take_output(running *r, kakeya_error *error) {
    if (r->capacity - r->bytes < 4097) {
        size_t wanted = r->capacity ? 2 * r->capacity : 16384;
        char *grown = realloc(r->output, wanted);
        if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its output", r->call->argv[0]);
        r->output = grown;
        r->capacity = wanted;
    }
    ssize_t n = read(r->out, r->output + r->bytes, r->capacity - r->bytes - 1);
    if (n > 0) r->bytes += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) close_end(&r->out);
    if (r->bytes <= r->call->most_output) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "%s: more than %zu bytes of output", r->call->argv[0], r->call->most_output);
}

static void take_complaint(running *r) {
    char rest[1024];
    size_t room = r->complaint_bytes < sizeof r->complaint ? sizeof r->complaint - r->complaint_bytes : 0;
    ssize_t n = room ? read(r->err, r->complaint + r->complaint_bytes, room) : read(r->err, rest, sizeof rest);
    if (n > 0 && room) r->complaint_bytes += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) close_end(&r->err);
}

/* Lines of stderr with "; " between them. */
static void one_line(const running *r, char *out, size_t size) {
    char text[COMPLAINT_BYTES];
    memcpy(text, r->complaint, r->complaint_bytes);
    size_t bytes = remote_printable(text, r->complaint_bytes), used = 0;
    for (size_t i = 0; i < bytes && used + 4 < size; i++) {
        if (text[i] != '\n') {
            out[used++] = text[i] == '\t' ? ' ' : text[i];
        } else if (used && i + 1 < bytes && text[i + 1] != '\n') {
            out[used++] = ';';
            out[used++] = ' ';
        }
    }
    out[used] = '\0';
}

/* Moves bytes until the program has ended, with *ended its wait status, or something is wrong. A descendant that keeps
 * stdout or stderr open (a connection that ssh shares) does not keep us. */
static kakeya_status move_bytes(running *r, pid_t pid, int *ended, kakeya_error *error) {
    double end = clock_seconds() + r->call->seconds;
    bool gone = false;
    for (;;) {
        struct pollfd ends[3] = {
            {.fd = r->out, .events = POLLIN}, {.fd = r->err, .events = POLLIN}, {.fd = r->in, .events = POLLOUT}};
        bool open = r->out >= 0 || r->err >= 0;
        int ready = poll(ends, 3, gone ? 0 : open ? 20 : 1);
        kakeya_status status = KAKEYA_OK;
        if (r->out >= 0 && ends[0].revents) status = take_output(r, error);
        if (r->err >= 0 && ends[1].revents) take_complaint(r);
        if (r->in >= 0 && ends[2].revents) feed(r);
        if (status != KAKEYA_OK) return status;
        if (gone && (ready <= 0 || !open)) return KAKEYA_OK;
        if (!gone && (ready == 0 || !open)) gone = waitpid(pid, ended, WNOHANG) == pid;
        if (r->call->stopped && r->call->stopped()) {
            if (gone) return KAKEYA_OK;
            return error_set(error, KAKEYA_CANCELLED, "%s: interrupted", r->call->argv[0]);
        }
        if (clock_seconds() > end && !gone)
            return error_set(error, KAKEYA_IO, "%s: no answer within %.0f s", r->call->argv[0], r->call->seconds);
    }
}

static bool make_pipe(int *theirs, int *ours, bool to_child) {
    int both[2];
    int failed = to_child ? platform_socket_pair(both) : platform_pipe(both);
    if (failed) return false;
    *theirs = both[to_child ? 0 : 1];
    *ours = both[to_child ? 1 : 0];
    fcntl(*ours, F_SETFL, O_NONBLOCK);
    return true;
}

kakeya_status process_run(const process_call *call, process_answer *out, kakeya_error *error) {
    *out = (process_answer){0};
    running r = {.call = call, .in = -1, .out = -1, .err = -1};
    process_child child = {
        .argv = call->argv, .environment = call->environment, .in = -1, .out = -1, .err = -1, .limits = call->limits};
    pid_t pid = -1;
    kakeya_status status = KAKEYA_OK;
    if (!make_pipe(&child.out, &r.out, false) || !make_pipe(&child.err, &r.err, false) ||
        (call->input_bytes && !make_pipe(&child.in, &r.in, true)))
        status = error_set(error, KAKEYA_IO, "%s: no pipe: %s", call->argv[0], strerror(errno));
    if (status == KAKEYA_OK) status = process_start(&child, &pid, error);
    close_end(&child.in);
    close_end(&child.out);
    close_end(&child.err);
    int ended = 0;
    if (status == KAKEYA_OK) {
        status = move_bytes(&r, pid, &ended, error);
        if (status != KAKEYA_OK) {
            kill(-pid, SIGKILL);
            while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
            }
        }
    }
    close_end(&r.in);
    close_end(&r.out);
    close_end(&r.err);
    one_line(&r, out->complaint, sizeof out->complaint);
    if (status == KAKEYA_OK && !r.output) r.output = malloc(1);
    if (status == KAKEYA_OK && !r.output) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status != KAKEYA_OK) {
        free(r.output);
        return status;
    }
    r.output[r.bytes] = '\0';
    out->output = r.output;
    out->bytes = r.bytes;
    out->exit_status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
    return KAKEYA_OK;
}

void process_answer_free(process_answer *answer) {
    free(answer->output);
    *answer = (process_answer){0};
}

/* ---------------------------------------------------------------------------------------------------- environment */

char **process_environment_of(const char *const *fixed, const char *const *kept) {
    size_t n = 0, most = 1;
    while (fixed[most - 1]) most++;
    for (size_t i = 0; kept[i]; i++) most++;
    char **environment = calloc(most, sizeof *environment);
    for (size_t i = 0; environment && fixed[i]; i++)
        if ((environment[n] = strdup(fixed[i])) != NULL) n++;
    for (size_t i = 0; environment && kept[i]; i++) {
        const char *value = getenv(kept[i]);
        if (value && asprintf(&environment[n], "%s=%s", kept[i], value) >= 0)
            n++;
        else
            environment[n] = NULL;
    }
    return environment;
}

char **process_environment(void) {
    static const char *const kept[] = {"HOME",        "PATH",      "SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "http_proxy",
                                       "https_proxy", "all_proxy", "no_proxy",      "TMPDIR",          NULL};
    static const char *const fixed[] = {"LC_ALL=C",
                                        "GIT_TERMINAL_PROMPT=0",
                                        "GIT_ASKPASS=",
                                        "SSH_ASKPASS_REQUIRE=never",
                                        "GIT_ADVICE=0",
                                        "GIT_NO_LAZY_FETCH=1",
                                        "GIT_NO_REPLACE_OBJECTS=1",
                                        NULL};
    return process_environment_of(fixed, kept);
}

void process_environment_free(char **environment) {
    for (size_t i = 0; environment && environment[i]; i++) free(environment[i]);
    free(environment);
}
