#include "remote/first_seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/files.h"
#include "remote/folders.h"

static const char file_name[] = "seen";
enum { MAX_SEEN_BYTES = 16 << 20 };

typedef struct seen_commit {
    char oid[BUS_OID];
    double first, next; /* by clock_seconds */
    int put_off;
    bool kept;
} seen_commit;

struct first_seen {
    char *folder;
    seen_commit *item; /* ascending oids */
    size_t n, allocated;
    bool changed;
};

static size_t place(const first_seen *s, const char *oid) {
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(s->item[middle].oid, oid) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* NULL when out of memory, or where it is not there and `first` is below zero. */
static seen_commit *find(first_seen *s, const char *oid, double first) {
    size_t at = place(s, oid);
    if (at < s->n && strcmp(s->item[at].oid, oid) == 0) return &s->item[at];
    if (first < 0) return NULL;
    if (s->n == s->allocated) {
        size_t more = s->allocated ? 2 * s->allocated : 64;
        seen_commit *grown = realloc(s->item, more * sizeof *grown);
        if (!grown) return NULL;
        s->item = grown;
        s->allocated = more;
    }
    memmove(&s->item[at + 1], &s->item[at], (s->n - at) * sizeof *s->item);
    s->n++;
    s->item[at] = (seen_commit){.first = first};
    snprintf(s->item[at].oid, BUS_OID, "%s", oid);
    s->changed = true;
    return &s->item[at];
}

/* Of the calendar, since 1970. */
static double today(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Lines "OID SECONDS-SINCE-1970". The clock of the calendar may have been set meanwhile: what lies in the future is
 * now. */
kakeya_status first_seen_open(const char *folder, first_seen **out, kakeya_error *error) {
    first_seen *s = calloc(1, sizeof *s);
    *out = s;
    if (!s || !(s->folder = strdup(folder))) {
        free(s);
        *out = NULL;
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    char *text = NULL;
    size_t bytes;
    if (!folder_has(folder, file_name) ||
        folder_read(folder, file_name, MAX_SEEN_BYTES, &text, &bytes, NULL) != KAKEYA_OK)
        return KAKEYA_OK;
    double now = clock_seconds(), day = today();
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        char oid[BUS_OID];
        double at;
        if (sscanf(line, "%64[0-9a-f] %lf", oid, &at) != 2 || !(at >= 0)) continue;
        double ago = at < day ? day - at : 0;
        find(s, oid, now > ago ? now - ago : 0);
    }
    free(text);
    s->changed = false;
    return KAKEYA_OK;
}

void first_seen_close(first_seen *s) {
    if (!s) return;
    free(s->folder);
    free(s->item);
    free(s);
}

double first_seen_seconds(first_seen *s, const char *oid) {
    double now = clock_seconds();
    const seen_commit *item = find(s, oid, now);
    return item ? now - item->first : 0;
}

void first_seen_put_off(first_seen *s, const char *oid, double seconds) {
    double now = clock_seconds();
    seen_commit *item = find(s, oid, now);
    if (!item) return;
    item->next = now + seconds;
    item->put_off++;
}

bool first_seen_is_put_off(first_seen *s, const char *oid) {
    const seen_commit *item = find(s, oid, -1);
    return item && clock_seconds() < item->next;
}

int first_seen_times(first_seen *s, const char *oid) {
    const seen_commit *item = find(s, oid, -1);
    return item ? item->put_off : 0;
}

kakeya_status first_seen_keep(first_seen *s, const bus_ref *refs, size_t n, kakeya_error *error) {
    for (size_t i = 0; i < n; i++) {
        for (int kind = 0; kind < BUS_KINDS; kind++) {
            seen_commit *item = *refs[i].oid[kind] ? find(s, refs[i].oid[kind], -1) : NULL;
            if (item) item->kept = true;
        }
    }
    size_t to = 0;
    for (size_t i = 0; i < s->n; i++) {
        s->changed |= !s->item[i].kept;
        if (s->item[i].kept) s->item[to++] = s->item[i];
    }
    s->n = to;
    for (size_t i = 0; i < s->n; i++) s->item[i].kept = false;
    if (!s->changed) return KAKEYA_OK;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    double now = clock_seconds(), day = today();
    for (size_t i = 0; i < s->n; i++) fprintf(out, "%s %.3f\n", s->item[i].oid, day - (now - s->item[i].first));
    fclose(out);
    kakeya_status status = folder_write(s->folder, file_name, text ? text : "", bytes, error);
    free(text);
    s->changed = status != KAKEYA_OK;
    return status;
}
