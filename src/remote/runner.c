#include "remote/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/platform.h"

static const int tick_milliseconds = 100;

/* The state of a supervisor: a process of its own with one job. */
typedef struct watch {
    const runner_job *job;
    pid_t child;
    int out, err; /* read ends; -1 when closed */
    int output_fd, log_fd;
    size_t output_bytes, log_bytes, log_part;
    char *log[2]; /* paths: the newer part, the older part */
    runner_end end;
    bool asked, killed;
    double asked_at;
} watch;

static volatile sig_atomic_t stop_asked; /* of a supervisor */

static void on_stop(int number) {
    (void)number;
    stop_asked = 1;
}

static int create(const char *path) { return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600); }

static void write_log(watch *w, const char *data, size_t bytes) {
    w->log_bytes += bytes;
    if (w->log_part >= RUNNER_LOG_PART) {
        if (w->log_fd >= 0) close(w->log_fd);
        rename(w->log[0], w->log[1]);
        w->log_fd = create(w->log[0]);
        w->log_part = 0;
    }
    /* A log that finds no room is cut; the run goes on. */
    ssize_t written = w->log_fd >= 0 ? write(w->log_fd, data, bytes) : 0;
    if (written > 0) w->log_part += (size_t)written;
}

static void because(watch *w, runner_reason reason, const char *message) {
    if (w->end.reason != RUNNER_EXITED) return; /* the first reason stands */
    w->end.reason = reason;
    snprintf(w->end.message, sizeof w->end.message, "%.199s", message);
}

/* Reads what there is. False when the pipe is at its end. */
static bool drain(watch *w, int fd, bool to_output) {
    char buffer[65536];
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    if (to_output) {
        w->output_bytes += (size_t)n;
        if (w->output_bytes > w->job->output_bytes) {
            because(w, RUNNER_OUTPUT_LIMIT, "it wrote more output than allowed");
        } else if (write(w->output_fd, buffer, (size_t)n) != n) {
            because(w, RUNNER_DISK, "its output could not be written: the disk is full");
        }
    } else {
        write_log(w, buffer, (size_t)n);
        if (w->log_bytes > w->job->log_bytes) because(w, RUNNER_LOG_LIMIT, "it wrote more to its log than allowed");
    }
    return true;
}

static void drain_all(watch *w, int milliseconds) {
    struct pollfd ends[2] = {{.fd = w->out, .events = POLLIN}, {.fd = w->err, .events = POLLIN}};
    if (poll(ends, 2, milliseconds) <= 0) return;
    for (int i = 0; i < 2; i++) {
        int *fd = i ? &w->err : &w->out;
        if (*fd < 0 || !ends[i].revents || drain(w, *fd, i == 0 && w->output_fd >= 0)) continue;
        close(*fd);
        *fd = -1;
    }
}

/* Asks the group to end when it is time, then ends it. */
static void press(watch *w, double now) {
    if (w->end.reason == RUNNER_EXITED) return;
    if (!w->asked) {
        kill(-w->child, SIGTERM);
        w->asked = true;
        w->asked_at = now;
    }
    if (!w->killed && now - w->asked_at >= w->job->grace_seconds) {
        kill(-w->child, SIGKILL);
        w->killed = true;
    }
}

static void supervise(watch *w, pid_t worker) {
    double started = clock_seconds();
    int ended = 0;
    for (;;) {
        drain_all(w, tick_milliseconds);
        double now = clock_seconds();
        if (getppid() != worker) { /* the worker has died: nobody would take the result */
            kill(-w->child, SIGKILL);
            _exit(1);
        }
        if (stop_asked) because(w, RUNNER_STOPPED, "it was stopped");
        if (now - started > w->job->seconds) because(w, RUNNER_TIMED_OUT, "its time was over");
        press(w, now);
        if (waitpid(w->child, &ended, WNOHANG) == w->child) break;
        if (w->out < 0 && w->err < 0) poll(NULL, 0, 1);
    }
    kill(-w->child, SIGKILL); /* what it may have left */
    for (int i = 0; i < 64 && (w->out >= 0 || w->err >= 0); i++) drain_all(w, 0);
    w->end.seconds = clock_seconds() - started;
    w->end.exit_status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

static bool open_files(watch *w, process_child *child) {
    const runner_job *job = w->job;
    char *output = job->output ? path_join(job->folder, job->output) : NULL;
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    w->log[0] = path_join(job->folder, "log.0");
    w->log[1] = path_join(job->folder, "log.1");
    if (!w->log[0] || !w->log[1] || platform_pipe(out) != 0 || platform_pipe(err) != 0) return false;
    unlink(w->log[1]);
    w->log_fd = create(w->log[0]);
    w->output_fd = output ? create(output) : -1;
    free(output);
    w->out = out[0];
    w->err = err[0];
    child->out = out[1];
    child->err = err[1];
    fcntl(w->out, F_SETFL, O_NONBLOCK);
    fcntl(w->err, F_SETFL, O_NONBLOCK);
    return w->log_fd >= 0 && (!job->output || w->output_fd >= 0);
}

/* The life of the supervisor. */
static void live(const runner_job *job, pid_t worker, int report) {
    struct sigaction stop = {.sa_handler = on_stop}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &ignore, NULL); /* Ctrl-C is for the worker, which tells us */
    sigaction(SIGHUP, &ignore, NULL);
    sigaction(SIGQUIT, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    watch w = {.job = job, .out = -1, .err = -1, .output_fd = -1, .log_fd = -1, .end = {.exit_status = -1}};
    process_child child = {.argv = job->argv,
                           .name = job->name,
                           .environment = job->environment,
                           .directory = job->folder,
                           .in = -1,
                           .limits = job->limits,
                           .dies_with_parent = true};
    kakeya_error error = {0};
    if (!open_files(&w, &child)) {
        because(&w, RUNNER_DISK, "its log could not be made");
    } else if (process_start(&child, &w.child, &error) != KAKEYA_OK) {
        because(&w, RUNNER_FAILED, error.message);
    } else {
        close(child.out);
        close(child.err);
        supervise(&w, worker);
        if (w.output_fd >= 0 && fsync(w.output_fd) != 0) because(&w, RUNNER_DISK, "its output could not be written");
    }
    ssize_t written = write(report, &w.end, sizeof w.end);
    _exit(written == sizeof w.end ? 0 : 1);
}

/* The lock that a supervisor holds as long as it lives; -1 where somebody else holds it. */
static int take_lock(const char *folder) {
    char *path = path_join(folder, "running.lock");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    free(path);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

bool runner_wait_alone(const char *folder, double seconds) {
    for (double end = clock_seconds() + seconds;;) {
        int lock = take_lock(folder);
        if (lock >= 0) {
            close(lock);
            return true;
        }
        if (clock_seconds() > end) return false;
        poll(NULL, 0, 20);
    }
}

kakeya_status runner_start(const runner_job *job, runner *out, kakeya_error *error) {
    *out = (runner){.supervisor = -1, .end_pipe = -1, .lock = take_lock(job->folder)};
    int both[2];
    if (out->lock < 0) return error_set(error, KAKEYA_IO, "%s: a run is going on there", job->folder);
    if (platform_pipe(both) != 0) {
        close(out->lock);
        return error_set(error, KAKEYA_IO, "no pipe: %s", strerror(errno));
    }
    pid_t worker = getpid();
    fflush(NULL);
    out->supervisor = fork();
    if (out->supervisor == 0) {
        setsid();
        live(job, worker, both[1]);
    }
    int failed = errno;
    close(both[1]);
    close(out->lock); /* the supervisor has it */
    out->end_pipe = both[0];
    if (out->supervisor > 0) return KAKEYA_OK;
    close(both[0]);
    return error_set(error, KAKEYA_IO, "cannot start a process: %s", strerror(failed));
}

bool runner_wait(runner *r, double seconds, runner_end *end) {
    struct pollfd wait = {.fd = r->end_pipe, .events = POLLIN};
    if (poll(&wait, 1, (int)(seconds * 1000)) <= 0) return false;
    ssize_t n = read(r->end_pipe, end, sizeof *end);
    if (n < 0 && errno == EINTR) return false;
    if (n != sizeof *end)
        *end = (runner_end){.reason = RUNNER_FAILED, .exit_status = -1, .message = "its supervisor died"};
    close(r->end_pipe);
    while (waitpid(r->supervisor, NULL, 0) < 0 && errno == EINTR) {
    }
    r->supervisor = -1;
    return true;
}

void runner_stop(runner *r) {
    if (r->supervisor > 0) kill(r->supervisor, SIGTERM);
}

char *runner_log_tail(const char *folder, size_t most, size_t *bytes) {
    static const char *const names[2] = {"log.1", "log.0"};
    char *all = calloc(1, 1);
    *bytes = 0;
    for (int i = 0; all && i < 2; i++) {
        char *path = path_join(folder, names[i]), *part = NULL;
        size_t n = 0;
        if (path && file_exists(path) && file_read(path, 4 * RUNNER_LOG_PART, &part, &n, NULL) == KAKEYA_OK) {
            char *grown = realloc(all, *bytes + n + 1);
            if (!grown) free(all);
            all = grown;
            if (all) memcpy(all + *bytes, part, n + 1);
            *bytes += n;
        }
        free(part);
        free(path);
    }
    if (all && *bytes > most) {
        memmove(all, all + *bytes - most, most);
        *bytes = most;
        all[most] = '\0';
    }
    return all;
}
