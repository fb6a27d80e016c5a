#include "serve/store_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/platform.h"
#include "serve/store_rules.h"
#include "serve/store_told.h"
#include "serve/temporary.h"

static const char suffix[] = ".kkc", bad_suffix[] = ".bad", lock_name[] = ".lock";
static const double half_life_seconds = 6 * 3600.0, default_pause_seconds = 60;
/* Files of other models, policies and versions are left alone, until nobody has used them for so long. */
static const double foreign_seconds = 7 * 24 * 3600.0;
/* Two changes of a directory within one tick of the file system's clock have one time. */
static const double coarsest_tick_seconds = 2;
static const double lock_seconds = 5; /* that a server waits for another one that makes room */

typedef struct file_record {
    char name[STORE_NAME_BYTES];
    store_file_info info; /* tokens 0: of another kind, or unreadable; it counts only in bytes */
    uint64_t bytes;
    struct timespec used; /* real time */
    double hits;          /* by this server */
    bool noted;           /* its metadata has been read, or was written here */
    bool there;           /* met by the scan in progress */
    kv_path *path;        /* what routers know of it */
} file_record;

struct store_disk {
    store_disk_options options;
    char *directory;
    int fd;
    pthread_mutex_t lock;
    file_record *files;
    size_t n_files, allocated;
    struct timespec scanned; /* time of the directory, when it was read */
    bool settled;            /* nothing can have changed within that tick */
    double paused_until;
    store_disk_counts counts; /* but for `files` */
    pthread_mutex_t told_lock;
    store_disk_counts told;
};

/* ----------------------------------------------------------------------------------------------------------- locking
 */

static void enter(store_disk *disk) { pthread_mutex_lock(&disk->lock); }

/* What is counted is told as it is now: whoever asks does not wait for files. */
static void leave(store_disk *disk) {
    store_disk_counts told = disk->counts;
    for (size_t i = 0; i < disk->n_files; i++) told.files += disk->files[i].info.tokens != 0;
    pthread_mutex_lock(&disk->told_lock);
    disk->told = told;
    pthread_mutex_unlock(&disk->told_lock);
    pthread_mutex_unlock(&disk->lock);
}

/* --------------------------------------------------------------------------------------------------------- logging */

__attribute__((format(printf, 2, 3))) static void say(const store_disk *disk, const char *format, ...) {
    if (!disk->options.log) return;
    char line[1400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    disk->options.log(disk->options.log_user, line);
}

/* ------------------------------------------------------------------------------------------------------- the files */

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static double seconds_of(struct timespec t) { return (double)t.tv_sec + (double)t.tv_nsec * 1e-9; }

static double idle_seconds(const file_record *f) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double idle = seconds_of(now) - seconds_of(f->used);
    return idle > 0 ? idle : 0;
}

static file_record *find_name(store_disk *disk, const char *name) {
    for (size_t i = 0; i < disk->n_files; i++)
        if (strcmp(disk->files[i].name, name) == 0) return &disk->files[i];
    return NULL;
}

static void forget(store_disk *disk, const char *name) {
    file_record *f = find_name(disk, name);
    if (!f) return;
    disk->counts.bytes -= f->bytes;
    kv_blocks_remove(disk->options.blocks, f->path);
    *f = disk->files[--disk->n_files];
}

static file_record *add_record(store_disk *disk) {
    if (disk->n_files == disk->allocated) {
        size_t more = disk->allocated ? 2 * disk->allocated : 64;
        file_record *files = realloc(disk->files, more * sizeof *files);
        if (!files) return NULL;
        disk->files = files;
        disk->allocated = more;
    }
    return &disk->files[disk->n_files++];
}

static void set_aside(store_disk *disk, const char *name, const char *why) {
    char bad[STORE_NAME_BYTES + sizeof bad_suffix];
    snprintf(bad, sizeof bad, "%s%s", name, bad_suffix);
    if (renameat(disk->fd, name, disk->fd, bad) != 0 && errno != ENOENT)
        say(disk, "sessions: %s cannot be renamed: %s", name, strerror(errno));
    disk->counts.errors_corrupt++;
    say(disk, "sessions: %s; it is %s now and not used", why, bad);
}

static bool serves(const store_disk *disk, const file_record *f) {
    if (f->info.tokens == 0 || strlen(f->name) != 32 + sizeof suffix - 1) return false;
    return !disk->options.prompt_rows_only || (f->info.flags & STORE_FILE_PROMPT_ROWS);
}

/* Reads the header of a file that is new here. */
static void meet_file(store_disk *disk, const char *name) {
    struct stat about;
    if (strlen(name) >= STORE_NAME_BYTES || fstatat(disk->fd, name, &about, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (!S_ISREG(about.st_mode)) return;
    file_record *f = find_name(disk, name);
    bool known = f != NULL && f->bytes == (uint64_t)about.st_size && f->info.tokens;
    if (f && known) {
        f->used = platform_modified(&about);
        f->there = true;
        /* one with a name of its own may have been replaced by another server */
        if (strlen(name) == 32 + sizeof suffix - 1) return;
    }
    if (!f) {
        f = add_record(disk);
        if (!f) return;
        *f = (file_record){.bytes = 0};
        snprintf(f->name, sizeof f->name, "%s", name);
    }
    disk->counts.bytes += (uint64_t)about.st_size - f->bytes;
    f->bytes = (uint64_t)about.st_size;
    f->used = platform_modified(&about);
    f->there = true;
    store_file *file = NULL;
    kakeya_error error = {0};
    f->info = (store_file_info){0};
    f->noted = false;
    kakeya_status status = store_file_open(disk->fd, name, &file, NULL, &error);
    if (status == KAKEYA_OK) {
        const store_file_info *info = store_file_about(file);
        if (info->fingerprint == disk->options.fingerprint && info->policy == disk->options.policy) f->info = *info;
        if (disk->options.blocks && !f->path && serves(disk, f)) f->path = store_told_file(disk->options.blocks, file);
    } else if (status == KAKEYA_FORMAT) {
        set_aside(disk, name, error.message);
        f->there = false;
    }
    store_file_close(file);
}

static bool same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/* Looks at the directory again if it has changed. Needs the lock. */
static void refresh(store_disk *disk) {
    struct stat about;
    if (fstat(disk->fd, &about) != 0) return;
    if (disk->settled && same_time(platform_modified(&about), disk->scanned)) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int copy = openat(disk->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    if (!list) {
        if (copy >= 0) close(copy);
        return;
    }
    for (size_t i = 0; i < disk->n_files; i++) disk->files[i].there = false;
    for (struct dirent *e; (e = readdir(list)) != NULL;)
        if (e->d_name[0] != '.' && ends_with(e->d_name, suffix)) meet_file(disk, e->d_name);
    closedir(list);
    for (size_t i = disk->n_files; i-- > 0;)
        if (!disk->files[i].there) forget(disk, disk->files[i].name);
    disk->scanned = platform_modified(&about);
    disk->settled = fabs(seconds_of(now) - seconds_of(platform_modified(&about))) > coarsest_tick_seconds;
}

/* ---------------------------------------------------------------------------------------------------- open, close */

static kakeya_status open_directory(store_disk *disk, kakeya_error *error) {
    if (mkdir(disk->directory, 0700) != 0 && errno != EEXIST)
        return error_set(error, KAKEYA_IO, "%s: %s", disk->directory, strerror(errno));
    disk->fd = open(disk->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat about;
    if (disk->fd < 0 || fstat(disk->fd, &about) != 0)
        return error_set(error, KAKEYA_IO, "%s: %s", disk->directory, strerror(errno));
    if (about.st_mode & 077)
        say(disk, "sessions: other users may read %s (mode %03o), which holds users' texts", disk->directory,
            (unsigned)(about.st_mode & 0777));
    return KAKEYA_OK;
}

kakeya_status store_disk_open(const store_disk_options *options, store_disk **out, kakeya_error *error) {
    *out = NULL;
    store_disk *disk = calloc(1, sizeof *disk);
    if (!disk) return error_set(error, KAKEYA_OUT_OF_MEMORY, "sessions: out of memory");
    disk->options = *options;
    disk->fd = -1;
    if (disk->options.pause_seconds <= 0) disk->options.pause_seconds = default_pause_seconds;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_mutex_init(&disk->told_lock, NULL);
    disk->directory = strdup(options->directory);
    kakeya_status status = disk->directory ? open_directory(disk, error)
                                           : error_set(error, KAKEYA_OUT_OF_MEMORY, "sessions: out of memory");
    if (status != KAKEYA_OK) {
        store_disk_close(disk);
        return status;
    }
    temporary_remove_abandoned(disk->fd);
    enter(disk);
    refresh(disk);
    leave(disk);
    *out = disk;
    return KAKEYA_OK;
}

void store_disk_close(store_disk *disk) {
    if (!disk) return;
    if (disk->fd >= 0) close(disk->fd);
    for (size_t i = 0; i < disk->n_files; i++) kv_blocks_remove(disk->options.blocks, disk->files[i].path);
    pthread_mutex_destroy(&disk->told_lock);
    pthread_mutex_destroy(&disk->lock);
    free(disk->directory);
    free(disk->files);
    free(disk);
}

/* ------------------------------------------------------------------------------------------------------------ find */

/* Of a prompt: keys of its beginnings that are whole pages, and of others. */
typedef struct prompt_keys {
    const int32_t *ids;
    size_t n;
    store_key *pages;
} prompt_keys;

static bool begins_with(const prompt_keys *p, size_t tokens, store_key key) {
    size_t page = tokens / STORE_PAGE_TOKENS, rest = tokens % STORE_PAGE_TOKENS;
    if (tokens == 0 || tokens > p->n) return false;
    return store_key_equal(rest ? store_key_extend(p->pages[page], p->ids + tokens - rest, rest) : p->pages[page], key);
}

/* How many of the prompt's tokens the file has, from the beginning. */
static size_t offer_of(const file_record *f, const prompt_keys *p) {
    size_t tokens = (size_t)f->info.tokens, whole = (size_t)f->info.blocks * STORE_BLOCK_TOKENS;
    if (begins_with(p, tokens, f->info.key)) return tokens;
    return begins_with(p, whole, f->info.block_key) ? whole : 0;
}

bool store_disk_find(store_disk *disk, const char *salt, const int32_t *ids, size_t n, store_disk_found *found) {
    const uint64_t number = store_salt(salt);
    store_key seed = store_file_seed(disk->options.fingerprint, disk->options.policy, number);
    size_t pages = n / STORE_PAGE_TOKENS;
    store_key *begins = malloc((pages + 1) * sizeof *begins);
    if (!begins) return false;
    begins[0] = seed;
    for (size_t i = 0; i < pages; i++)
        begins[i + 1] = store_key_extend(begins[i], ids + i * STORE_PAGE_TOKENS, STORE_PAGE_TOKENS);
    const prompt_keys prompt = {ids, n, begins};
    const file_record *best = NULL;
    size_t most = 0;
    enter(disk);
    refresh(disk);
    for (size_t i = 0; i < disk->n_files; i++) {
        const file_record *f = &disk->files[i];
        if (!serves(disk, f) || f->info.salt != number || f->info.tokens <= most) continue;
        size_t offer = offer_of(f, &prompt);
        if (offer <= most) continue;
        best = f;
        most = offer;
    }
    if (best) {
        *found = (store_disk_found){.tokens = most,
                                    .whole = most == best->info.tokens,
                                    .bytes = best->bytes,
                                    .reason = (store_reason)best->info.reason};
        memcpy(found->name, best->name, sizeof found->name);
    }
    leave(disk);
    free(begins);
    return best != NULL;
}

static void name_of(store_key key, char name[STORE_NAME_BYTES]) {
    snprintf(name, STORE_NAME_BYTES, "%016" PRIx64 "%016" PRIx64 "%s", key.high, key.low, suffix);
}

static store_key key_of(const store_disk *disk, const char *salt, const int32_t *ids, size_t n) {
    return store_key_of(store_file_seed(disk->options.fingerprint, disk->options.policy, store_salt(salt)), ids, n);
}

bool store_disk_has(store_disk *disk, const char *salt, const int32_t *ids, size_t n) {
    char name[STORE_NAME_BYTES];
    name_of(key_of(disk, salt, ids, n), name);
    return store_disk_look(disk, name, NULL);
}

bool store_disk_look(store_disk *disk, const char *name, store_disk_about *about) {
    enter(disk);
    refresh(disk);
    const file_record *f = find_name(disk, name);
    bool there = f && f->info.tokens;
    if (there && about)
        *about = (store_disk_about){
            .tokens = (size_t)f->info.tokens, .created_ms = f->info.created_ms, .idle_seconds = idle_seconds(f)};
    leave(disk);
    return there;
}

void store_disk_each(store_disk *disk, const char *prefix, void (*visit)(void *user, const char *name, double idle),
                     void *user) {
    enter(disk);
    refresh(disk);
    size_t n = 0;
    file_record *copy = malloc((disk->n_files + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < disk->n_files; i++)
        if (strncmp(disk->files[i].name, prefix, strlen(prefix)) == 0 && disk->files[i].info.tokens)
            copy[n++] = disk->files[i];
    leave(disk);
    for (size_t i = 0; i < n; i++) visit(user, copy[i].name, idle_seconds(&copy[i]));
    free(copy);
}

/* ----------------------------------------------------------------------------------------------------------- notes */

static int by_last_use(const void *a, const void *b) {
    double x = seconds_of(((const file_record *)a)->used), y = seconds_of(((const file_record *)b)->used);
    return (x > y) - (x < y);
}

/* Copies of the records whose metadata nobody has read, oldest first. */
static file_record *take_unread(store_disk *disk, size_t *n) {
    *n = 0;
    enter(disk);
    refresh(disk);
    size_t unread = 0;
    for (size_t i = 0; i < disk->n_files; i++) unread += disk->files[i].info.tokens && !disk->files[i].noted;
    file_record *copies = unread ? malloc(unread * sizeof *copies) : NULL;
    for (size_t i = 0; copies && i < disk->n_files; i++) {
        if (!disk->files[i].info.tokens || disk->files[i].noted) continue;
        disk->files[i].noted = true;
        copies[(*n)++] = disk->files[i];
    }
    leave(disk);
    if (copies) qsort(copies, *n, sizeof *copies, by_last_use);
    return copies;
}

/* What is damaged is found again when it is loaded, and set aside then. */
void store_disk_read_notes(store_disk *disk, void (*take)(void *user, const char *metadata), void *user) {
    size_t n;
    file_record *files = take_unread(disk, &n);
    uint64_t bytes = 0;
    size_t first = n;
    while (first && bytes + files[first - 1].info.metadata_bytes <= STORE_NOTES_BYTES)
        bytes += files[--first].info.metadata_bytes;
    for (size_t i = first; i < n; i++) {
        store_file *file = NULL;
        if (store_file_open(disk->fd, files[i].name, &file, NULL, NULL) != KAKEYA_OK) continue;
        if (store_file_read_metadata(file, NULL) == KAKEYA_OK) take(user, store_file_metadata(file));
        store_file_close(file);
    }
    free(files);
}

/* ------------------------------------------------------------------------------------------------------------ load */

static kakeya_status load_from(store_file *file, const int32_t *ids, size_t n, kakeya_session *session,
                               kakeya_error *error) {
    kakeya_status status = store_file_verify(file, error);
    if (status != KAKEYA_OK) return status;
    size_t tokens = (size_t)store_file_about(file)->tokens;
    if (ids && (tokens < n || memcmp(store_file_ids(file), ids, n * sizeof *ids) != 0))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "the file's ids are others"); /* two texts of one key */
    status = store_file_load(file, session, error);
    if (status == KAKEYA_OUT_OF_MEMORY && !ids) status = store_file_load_parked(file, session, error);
    if (status != KAKEYA_OK) return status;
    size_t held;
    int32_t *owned;
    const int32_t *loaded = store_keys(session, &held, &owned);
    bool equal = loaded && held == tokens && memcmp(loaded, store_file_ids(file), tokens * sizeof *loaded) == 0;
    bool lost = !loaded && held;
    free(owned);
    if (equal) return KAKEYA_OK;
    if (lost) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu tokens: out of memory", held);
    (void)kakeya_session_truncate(session, 0, NULL);
    return error_set(error, KAKEYA_FORMAT, "the file's session has other ids than the file");
}

kakeya_status store_disk_load(store_disk *disk, const char *name, const int32_t *ids, size_t n, kakeya_session *session,
                              size_t *prompt_tokens, char **metadata, kakeya_error *error) {
    store_file *file = NULL;
    int why = 0;
    kakeya_error failure = {0};
    double begin = clock_seconds();
    kakeya_status status = store_file_open(disk->fd, name, &file, &why, &failure);
    if (status == KAKEYA_OK) status = load_from(file, ids, n, session, &failure);
    if (status == KAKEYA_OK && metadata) {
        *metadata = strdup(store_file_metadata(file));
        if (!*metadata) status = error_set(&failure, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    }
    /* what the file takes, not how busy the engine is: a prompt that is computed instead would hold up others longer */
    double seconds = clock_seconds() - begin - kakeya_session_load_waited(session);
    enter(disk);
    file_record *f = find_name(disk, name);
    if (status == KAKEYA_OK) {
        if (prompt_tokens) *prompt_tokens = store_file_prompt_tokens(file);
        disk->counts.loads++;
        disk->counts.loaded_bytes += store_file_about(file)->file_bytes;
        disk->counts.load_seconds += seconds;
        (void)utimensat(disk->fd, name, NULL, 0); /* last use; on a read-only disk it stays as it is */
        if (f) {
            clock_gettime(CLOCK_REALTIME, &f->used);
            f->hits++;
        }
    } else {
        if (why == ENOENT || status == KAKEYA_FORMAT) forget(disk, name);
        if (status == KAKEYA_FORMAT)
            set_aside(disk, name, failure.message);
        else if (status == KAKEYA_IO && why != ENOENT) {
            disk->counts.errors_io++;
            say(disk, "sessions: %s", failure.message);
        }
        (void)error_set(error, status, "%s", failure.message);
    }
    leave(disk);
    store_file_close(file);
    return status;
}

double store_disk_rate(store_disk *disk) {
    enter(disk);
    double rate = disk->counts.load_seconds > 0 ? (double)disk->counts.loaded_bytes / disk->counts.load_seconds : 0;
    leave(disk);
    return rate;
}

/* ------------------------------------------------------------------------------------------------------------ room */

/* Below 0: of others, and long unused. */
static double score_of(const file_record *f) {
    double idle = idle_seconds(f);
    if (f->info.tokens == 0) return idle > foreign_seconds ? -idle : INFINITY;
    double score = (f->hits + 1) * exp2(-idle / half_life_seconds) * (double)f->info.tokens / (double)f->bytes;
    return f->info.reason == STORE_SYSTEM_TURN ? 2 * score : score;
}

/* Removes the least useful file; false if there is none. Needs the lock. */
static bool give_up_file(store_disk *disk, const char *keep) {
    const file_record *worst = NULL;
    for (size_t i = 0; i < disk->n_files; i++) {
        const file_record *f = &disk->files[i];
        double score = score_of(f);
        if (isinf(score) || (keep && strcmp(f->name, keep) == 0)) continue;
        if (!worst || score < score_of(worst)) worst = f;
    }
    if (!worst) return false;
    char name[STORE_NAME_BYTES];
    memcpy(name, worst->name, sizeof name);
    if (unlinkat(disk->fd, name, 0) != 0 && errno != ENOENT) return false;
    disk->counts.removed++;
    forget(disk, name);
    return true;
}

static bool fits(const store_disk *disk, uint64_t more) {
    uint64_t budget = disk->options.budget_bytes;
    return budget == 0 || (more <= budget && disk->counts.bytes <= budget - more);
}

/* The lock on the file `.lock`, for which nobody of this server's waits but the one who saves, and not for ever: its
 * holder may hang. Its descriptor; -1: not now. */
static int lock_directory(store_disk *disk) {
    int fd = openat(disk->fd, lock_name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    const struct timespec moment = {.tv_nsec = 10000000};
    for (double end = clock_seconds() + lock_seconds; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;) {
        if ((errno == EWOULDBLOCK || errno == EINTR) && clock_seconds() < end) {
            nanosleep(&moment, NULL);
            continue;
        }
        close(fd);
        fd = -1;
    }
    return fd;
}

/* One server at a time makes room, or several would give up files for the same bytes. False: there is none to make.
 * Without the lock. */
static bool make_room(store_disk *disk, const char *keep, uint64_t more) {
    enter(disk);
    bool fitting = fits(disk, more);
    leave(disk);
    if (fitting || disk->options.budget_bytes < more) return fitting;
    int fd = lock_directory(disk);
    if (fd < 0) return false;
    enter(disk);
    disk->settled = false;
    refresh(disk);
    while (!fits(disk, more) && give_up_file(disk, keep)) continue;
    fitting = fits(disk, more);
    leave(disk);
    close(fd);
    return fitting;
}

/* ------------------------------------------------------------------------------------------------------------ save */

static bool is_full(int why) { return why == ENOSPC || why == EDQUOT || why == EFBIG; }

static void note_saved(store_disk *disk, const char *name, const store_file_info *info, const char *salt,
                       const int32_t *ids, double seconds) {
    forget(disk, name);
    disk->counts.saves++;
    disk->counts.saved_bytes += info->file_bytes;
    disk->counts.save_seconds += seconds;
    file_record *f = add_record(disk);
    if (!f) return;
    *f = (file_record){.info = *info, .bytes = info->file_bytes, .noted = true};
    snprintf(f->name, sizeof f->name, "%s", name);
    clock_gettime(CLOCK_REALTIME, &f->used);
    disk->counts.bytes += f->bytes;
    if (serves(disk, f)) f->path = store_told_ids(disk->options.blocks, info, salt, ids);
}

static void note_failure(store_disk *disk, int why, const kakeya_error *failure) {
    *(is_full(why) ? &disk->counts.errors_full : &disk->counts.errors_io) += 1;
    disk->paused_until = clock_seconds() + disk->options.pause_seconds;
    say(disk, "sessions: %s; nothing is written for %.0f s", failure->message, disk->options.pause_seconds);
}

static bool paused(store_disk *disk) {
    enter(disk);
    bool yes = clock_seconds() < disk->paused_until;
    leave(disk);
    return yes;
}

kakeya_status store_disk_save(store_disk *disk, const kakeya_session *session, const char *salt, const char *name,
                              size_t prompt_tokens, store_reason reason, const char *metadata, kakeya_error *error) {
    if (paused(disk)) return error_set(error, KAKEYA_CANCELLED, "sessions: writing waits after a failure");
    size_t n;
    int32_t *owned;
    const int32_t *ids = store_keys(session, &n, &owned);
    char own[STORE_NAME_BYTES];
    if (!ids && n) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu tokens: out of memory", n);
    name_of(key_of(disk, salt, ids, n), own);
    if (!name) name = own;
    const store_file_content content = {
        .fingerprint = disk->options.fingerprint,
        .policy = disk->options.policy,
        .salt = store_salt(salt),
        .session = session,
        .prompt_tokens = prompt_tokens,
        .reason = reason,
        .metadata = metadata ? metadata : "{}",
        .chunk_bytes = disk->options.chunk_bytes,
        .step = disk->options.step,
        .step_user = disk->options.step_user,
    };
    store_file_info info = {0};
    kakeya_error failure = {0};
    int why = 0;
    double begin = clock_seconds();
    if (!make_room(disk, name, store_file_bytes(&content))) {
        free(owned);
        return error_set(error, KAKEYA_CANCELLED, "sessions: the budget has no room for %zu tokens", n);
    }
    kakeya_status status = store_file_write(disk->fd, name, &content, &info, &why, &failure);
    if (status == KAKEYA_IO) {
        enter(disk);
        bool room = is_full(why) && give_up_file(disk, name);
        leave(disk);
        if (room) status = store_file_write(disk->fd, name, &content, &info, &why, &failure);
    }
    enter(disk);
    if (status == KAKEYA_OK)
        note_saved(disk, name, &info, salt, ids, clock_seconds() - begin);
    else if (status == KAKEYA_IO)
        note_failure(disk, why, &failure);
    leave(disk);
    free(owned);
    return status == KAKEYA_OK ? status : error_set(error, status, "%s", failure.message);
}

void store_disk_remove(store_disk *disk, const char *name) {
    enter(disk);
    if (unlinkat(disk->fd, name, 0) == 0) disk->counts.removed++;
    forget(disk, name);
    leave(disk);
}

void store_disk_counts_get(store_disk *disk, store_disk_counts *out) {
    pthread_mutex_lock(&disk->told_lock);
    *out = disk->told;
    pthread_mutex_unlock(&disk->told_lock);
}
