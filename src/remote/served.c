#include "remote/served.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"

enum { MAX_SERVED_BYTES = 1 << 30, SECONDS_A_DAY = 86400 };

static const char *const event_names[] = {"start", "end", "reject", "lost"};
enum { EVENTS = sizeof event_names / sizeof event_names[0] };

typedef struct used_time { /* of one person on one day */
    char who[REMOTE_NAME];
    int64_t day;
    double seconds;
} used_time;

struct served {
    char *path;
    int fd;
    served_entry *entry; /* ascending nonces */
    size_t n, allocated;
    used_time *used;
    size_t n_used;
};

/* The place of the nonce, or where it would be. */
static size_t place(const served *s, const char *nonce) {
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(s->entry[middle].nonce, nonce) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static served_entry *find(const served *s, const char *nonce) {
    size_t at = place(s, nonce);
    return at < s->n && strcmp(s->entry[at].nonce, nonce) == 0 ? &s->entry[at] : NULL;
}

const served_entry *served_find(const served *s, const char *nonce) { return find(s, nonce); }

static kakeya_status insert(served *s, const char *nonce, served_entry **out, kakeya_error *error) {
    *out = find(s, nonce);
    if (*out) return KAKEYA_OK;
    if (s->n == s->allocated) {
        size_t more = s->allocated ? 2 * s->allocated : 256;
        served_entry *grown = realloc(s->entry, more * sizeof *grown);
        if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", s->path);
        s->entry = grown;
        s->allocated = more;
    }
    size_t at = place(s, nonce);
    memmove(&s->entry[at + 1], &s->entry[at], (s->n - at) * sizeof *s->entry);
    s->n++;
    *out = &s->entry[at];
    **out = (served_entry){.starts = 0};
    memcpy((*out)->nonce, nonce, REMOTE_NONCE);
    return KAKEYA_OK;
}

static kakeya_status use(served *s, const char *who, int64_t now, double seconds, kakeya_error *error) {
    int64_t day = now / SECONDS_A_DAY;
    for (size_t i = 0; i < s->n_used; i++) {
        if (s->used[i].day != day || strcmp(s->used[i].who, who) != 0) continue;
        s->used[i].seconds += seconds;
        return KAKEYA_OK;
    }
    used_time *grown = realloc(s->used, (s->n_used + 1) * sizeof *grown);
    if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", s->path);
    s->used = grown;
    s->used[s->n_used] = (used_time){.day = day, .seconds = seconds};
    snprintf(s->used[s->n_used].who, REMOTE_NAME, "%s", who);
    s->n_used++;
    return KAKEYA_OK;
}

static kakeya_status note(served *s, int64_t now, const char *nonce, served_event event, const char *who,
                          double seconds, kakeya_error *error) {
    served_entry *entry;
    kakeya_status status = insert(s, nonce, &entry, error);
    if (status != KAKEYA_OK) return status;
    entry->starts += event == SERVED_START;
    entry->refusals += event == SERVED_REJECT;
    entry->over |= event != SERVED_START;
    return event == SERVED_END ? use(s, who, now, seconds, error) : KAKEYA_OK;
}

/* A line that a power cut has left unfinished counts for nothing. */
static kakeya_status read_line(served *s, const char *line, kakeya_error *error) {
    char time[32], nonce[32], sha256[72], event[16], who[REMOTE_NAME];
    double seconds;
    int64_t now;
    if (sscanf(line, "%31s %31s %71s %15s %64s %lf", time, nonce, sha256, event, who, &seconds) != 6) return KAKEYA_OK;
    if (!remote_time_read(time, &now) || !remote_is_nonce(nonce)) return KAKEYA_OK;
    for (int i = 0; i < EVENTS; i++)
        if (strcmp(event_names[i], event) == 0) return note(s, now, nonce, (served_event)i, who, seconds, error);
    return KAKEYA_OK;
}

kakeya_status served_open(const char *path, served **out, kakeya_error *error) {
    *out = NULL;
    served *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    s->fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    kakeya_status status =
        s->fd < 0 ? error_set(error, KAKEYA_IO, "%s: cannot open: %s", path, strerror(errno)) : KAKEYA_OK;
    char *text = NULL;
    size_t bytes = 0;
    if (status == KAKEYA_OK) status = file_read_descriptor(s->fd, path, 0, MAX_SERVED_BYTES, &text, &bytes, error);
    bool cut = bytes && text[bytes - 1] != '\n';
    for (char *rest = text, *line; status == KAKEYA_OK && rest && (line = strsep(&rest, "\n")) != NULL;)
        status = read_line(s, line, error);
    /* What comes next begins a line. */
    if (status == KAKEYA_OK && cut && write(s->fd, "\n", 1) != 1)
        status = error_set(error, KAKEYA_IO, "%s: cannot write: %s", path, strerror(errno));
    free(text);
    if (status != KAKEYA_OK) {
        served_close(s);
        return status;
    }
    *out = s;
    return KAKEYA_OK;
}

void served_close(served *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    free(s->path);
    free(s->entry);
    free(s->used);
    free(s);
}

kakeya_status served_add(served *s, int64_t now, const char *nonce, const char *sha256, served_event event,
                         const char *who, double seconds, kakeya_error *error) {
    char time[REMOTE_TIME], line[384];
    remote_time_write(now, time);
    int length = snprintf(line, sizeof line, "%s %s %s %s %s %.1f\n", time, nonce, sha256, event_names[event],
                          *who ? who : "-", seconds);
    ssize_t written = write(s->fd, line, (size_t)length);
    if (written != length || fsync(s->fd) != 0) {
        int failed = written >= 0 && written != length ? ENOSPC : errno;
        if (written > 0 && write(s->fd, "\n", 1) < 0) failed = ENOSPC; /* so that the next line is one */
        return error_set(error, KAKEYA_IO, "%s: cannot write: %s", s->path, strerror(failed));
    }
    return note(s, now, nonce, event, who, seconds, error);
}

double served_seconds_today(const served *s, const char *who, int64_t now) {
    for (size_t i = 0; i < s->n_used; i++)
        if (s->used[i].day == now / SECONDS_A_DAY && strcmp(s->used[i].who, who) == 0) return s->used[i].seconds;
    return 0;
}
