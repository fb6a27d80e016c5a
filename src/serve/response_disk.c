#include "serve/response_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"
#include "serve/state_file.h"
#include "serve/temporary.h"

/* Two changes of a directory within one tick of the file system's clock have one time. */
static const double coarsest_tick_seconds = 2;

typedef struct job {
    response_record record; /* texts.object.n 0: the file is to be removed */
    struct job *next;
} job;

typedef struct known_file {
    char id[RESPONSE_ID_BYTES];
} known_file;

struct response_disk {
    int directory;
    void (*log)(void *user, const char *line);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping, complained;
    job *first, **end;               /* that wait */
    char writing[RESPONSE_ID_BYTES]; /* "": nothing */
    known_file *known;               /* files that were written or read here, damaged ones too */
    size_t n_known, room;
    pthread_mutex_t scanning;
    struct timespec scanned; /* time of the directory, when it was read */
    bool settled;            /* nothing can have changed within that tick */
};

/* ------------------------------------------------------------------------------------------- tables; under the lock */

static known_file *find_known(response_disk *disk, const char *id) {
    for (size_t i = disk->n_known; i-- > 0;)
        if (strcmp(disk->known[i].id, id) == 0) return &disk->known[i];
    return NULL;
}

static void add_known(response_disk *disk, const char *id) {
    if (find_known(disk, id)) return;
    if (disk->n_known == disk->room) {
        size_t room = disk->room ? 2 * disk->room : 64;
        known_file *grown = realloc(disk->known, room * sizeof *grown);
        if (!grown) return; /* it is read again */
        disk->known = grown;
        disk->room = room;
    }
    known_file *file = &disk->known[disk->n_known++];
    snprintf(file->id, sizeof file->id, "%s", id);
}

static void remove_known(response_disk *disk, const char *id) {
    known_file *file = find_known(disk, id);
    if (file) *file = disk->known[--disk->n_known];
}

static void free_job(job *j) {
    response_texts_free(&j->record.texts);
    free(j);
}

static void drop_waiting(response_disk *disk, const char *id) {
    for (job **at = &disk->first; *at;) {
        job *j = *at;
        if (strcmp(j->record.id, id) != 0) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        free_job(j);
    }
    disk->end = &disk->first;
    while (*disk->end) disk->end = &(*disk->end)->next;
}

/* ---------------------------------------------------------------------------------------------------------- writing */

static void unlink_file(response_disk *disk, const char *id) {
    char name[RESPONSE_NAME_BYTES];
    if (response_file_name(id, name)) (void)unlinkat(disk->directory, name, 0);
    pthread_mutex_lock(&disk->lock);
    remove_known(disk, id);
    pthread_mutex_unlock(&disk->lock);
}

/* Without the lock. */
static void do_job(response_disk *disk, const job *j) {
    kakeya_error error = {0};
    if (!j->record.texts.object.n) {
        unlink_file(disk, j->record.id);
        return;
    }
    kakeya_status status = response_file_write(disk->directory, &j->record, &error);
    pthread_mutex_lock(&disk->lock);
    if (status == KAKEYA_OK) add_known(disk, j->record.id);
    bool news = (status != KAKEYA_OK) != disk->complained; /* one line for a full disk, not one for each response */
    disk->complained = status != KAKEYA_OK;
    pthread_mutex_unlock(&disk->lock);
    char line[sizeof error.message + 64];
    snprintf(line, sizeof line, "responses: %s; it is kept in memory alone", error.message);
    if (news && status != KAKEYA_OK && disk->log) disk->log(disk->user, line);
}

static void *run(void *user) {
    response_disk *disk = user;
    pthread_mutex_lock(&disk->lock);
    while (disk->first || !disk->stopping) {
        job *j = disk->first;
        if (!j) {
            pthread_cond_wait(&disk->changed, &disk->lock);
            continue;
        }
        disk->first = j->next;
        if (!disk->first) disk->end = &disk->first;
        memcpy(disk->writing, j->record.id, sizeof disk->writing);
        pthread_mutex_unlock(&disk->lock);
        do_job(disk, j);
        free_job(j);
        pthread_mutex_lock(&disk->lock);
        disk->writing[0] = '\0';
        pthread_cond_broadcast(&disk->changed);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

static void add_job(response_disk *disk, job *j) {
    j->next = NULL;
    *disk->end = j;
    disk->end = &j->next;
    pthread_cond_broadcast(&disk->changed);
}

void response_disk_save(response_disk *disk, response_record *record) {
    char name[RESPONSE_NAME_BYTES];
    job *j = response_file_name(record->id, name) && record->texts.object.n ? calloc(1, sizeof *j) : NULL;
    if (!j) {
        response_texts_free(&record->texts);
        return;
    }
    j->record = *record;
    record->texts = (response_texts){.previous = ""};
    pthread_mutex_lock(&disk->lock);
    add_job(disk, j);
    pthread_mutex_unlock(&disk->lock);
}

void response_disk_forget(response_disk *disk, const char *id) {
    job *j = calloc(1, sizeof *j);
    pthread_mutex_lock(&disk->lock);
    drop_waiting(disk, id);
    if (j) {
        snprintf(j->record.id, sizeof j->record.id, "%s", id);
        add_job(disk, j);
    }
    pthread_mutex_unlock(&disk->lock);
}

void response_disk_remove(response_disk *disk, const char *id) {
    pthread_mutex_lock(&disk->lock);
    drop_waiting(disk, id);
    while (strcmp(disk->writing, id) == 0) pthread_cond_wait(&disk->changed, &disk->lock);
    pthread_mutex_unlock(&disk->lock);
    unlink_file(disk, id);
}

bool response_disk_is_gone(response_disk *disk, const char *id) {
    char name[RESPONSE_NAME_BYTES];
    pthread_mutex_lock(&disk->lock);
    bool known = find_known(disk, id) != NULL;
    pthread_mutex_unlock(&disk->lock);
    struct stat about;
    /* where the whole directory is gone, nobody has meant this one */
    return known && response_file_name(id, name) && faccessat(disk->directory, name, F_OK, 0) != 0 && errno == ENOENT &&
           fstat(disk->directory, &about) == 0 && about.st_nlink > 0;
}

/* ---------------------------------------------------------------------------------------------------------- reading */

static double seconds_of(struct timespec t) { return (double)t.tv_sec + (double)t.tv_nsec * 1e-9; }

/* Whether the directory has changed since it was last read. */
static bool has_changed(response_disk *disk) {
    struct stat about;
    struct timespec now;
    if (fstat(disk->directory, &about) != 0) return false;
    if (disk->settled && seconds_of(platform_modified(&about)) == seconds_of(disk->scanned)) return false;
    clock_gettime(CLOCK_REALTIME, &now);
    disk->scanned = platform_modified(&about);
    disk->settled = fabs(seconds_of(now) - seconds_of(platform_modified(&about))) > coarsest_tick_seconds;
    return true;
}

typedef struct new_file {
    char id[RESPONSE_ID_BYTES];
    struct timespec written;
} new_file;

static int by_age(const void *a, const void *b) {
    double x = seconds_of(((const new_file *)a)->written), y = seconds_of(((const new_file *)b)->written);
    return (x > y) - (x < y);
}

/* Files that are not known, oldest first. */
static new_file *list_new(response_disk *disk, size_t *n) {
    new_file *files = NULL, file = {.id = ""};
    struct stat about;
    size_t room = 0;
    *n = 0;
    int copy = openat(disk->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    if (!list) {
        if (copy >= 0) close(copy);
        return NULL;
    }
    pthread_mutex_lock(&disk->lock);
    for (struct dirent *e; (e = readdir(list)) != NULL;) {
        if (!response_file_id(e->d_name, file.id) || find_known(disk, file.id) || strcmp(disk->writing, file.id) == 0 ||
            fstatat(disk->directory, e->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        file.written = platform_modified(&about);
        if (*n == room) {
            room = room ? 2 * room : 64;
            new_file *grown = realloc(files, room * sizeof *files);
            if (!grown) break;
            files = grown;
        }
        files[(*n)++] = file;
    }
    pthread_mutex_unlock(&disk->lock);
    closedir(list);
    if (*n) qsort(files, *n, sizeof *files, by_age);
    return files;
}

static bool read_one(response_disk *disk, const char *id, response_record *record) {
    char name[RESPONSE_NAME_BYTES], bad[RESPONSE_NAME_BYTES + 4];
    kakeya_error error = {0};
    if (!response_file_name(id, name)) return false;
    kakeya_status status = response_file_read(disk->directory, name, record, &error);
    if (status == KAKEYA_OK || status == KAKEYA_FORMAT) {
        pthread_mutex_lock(&disk->lock);
        add_known(disk, id);
        pthread_mutex_unlock(&disk->lock);
    }
    if (status == KAKEYA_FORMAT) {
        snprintf(bad, sizeof bad, "%s.bad", name);
        (void)renameat(disk->directory, name, disk->directory, bad);
        char line[sizeof error.message + sizeof bad + 64];
        snprintf(line, sizeof line, "responses: %s; it is %s now and not used", error.message, bad);
        if (disk->log) disk->log(disk->user, line);
    }
    return status == KAKEYA_OK;
}

void response_disk_scan(response_disk *disk, void (*take)(void *user, response_record *record), void *user) {
    pthread_mutex_lock(&disk->scanning);
    size_t n = 0;
    new_file *files = has_changed(disk) ? list_new(disk, &n) : NULL;
    for (size_t i = 0; i < n; i++) {
        response_record record;
        if (read_one(disk, files[i].id, &record)) take(user, &record);
    }
    free(files);
    pthread_mutex_unlock(&disk->scanning);
}

/* ------------------------------------------------------------------------------------------------------ open, close */

kakeya_status response_disk_open(const char *path, void (*log)(void *user, const char *line), void *user,
                                 response_disk **out, kakeya_error *error) {
    *out = NULL;
    int directory = state_directory(path, error);
    if (directory < 0) return KAKEYA_IO;
    response_disk *disk = calloc(1, sizeof *disk);
    if (!disk) {
        close(directory);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "responses: out of memory");
    }
    temporary_remove_abandoned(directory);
    disk->directory = directory;
    disk->log = log;
    disk->user = user;
    disk->end = &disk->first;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_mutex_init(&disk->scanning, NULL);
    pthread_cond_init(&disk->changed, NULL);
    if (platform_thread_create(&disk->thread, run, disk) != 0) {
        close(directory);
        free(disk);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "responses: no thread for writing them");
    }
    *out = disk;
    return KAKEYA_OK;
}

void response_disk_close(response_disk *disk) {
    if (!disk) return;
    pthread_mutex_lock(&disk->lock);
    disk->stopping = true;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
    pthread_join(disk->thread, NULL);
    close(disk->directory);
    pthread_cond_destroy(&disk->changed);
    pthread_mutex_destroy(&disk->scanning);
    pthread_mutex_destroy(&disk->lock);
    free(disk->known);
    free(disk);
}
