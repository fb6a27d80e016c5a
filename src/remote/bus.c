#include "remote/bus.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "remote/folders.h"
#include "remote/process.h"

#define REFS "refs/heads/kakeya/"

static const char *const kind_names[BUS_KINDS] = {"requests", "claims", "results"};

enum {
    MAX_LISTING = 4 << 20,       /* bytes of ls-remote: some 30,000 refs */
    MAX_TREE_LISTING = 64 << 10, /* of ls-tree */
    MAX_BELOW = 16,              /* files below a name with '/' */
    MAX_PACK = 64 << 20,         /* bytes of a file that a fetch may write */
    MAX_FETCH_CPU = 120,         /* seconds of one fetch */
    STEPS_BEFORE_RENEWAL = 256,  /* fetches and commits after which the repository is made anew */
};
static const size_t max_fetch_memory = (size_t)4 << 30;

struct bus {
    char *state, *url, *directory, *git_dir_word;
    int lock;
    double seconds;
    bool (*stopped)(void);
    char **environment;
    unsigned steps;
    bool local; /* a folder of this machine */
};

/* ------------------------------------------------------------------------------------------------------------ git */

enum { MAX_WORDS = 64 };

typedef struct git_words {
    const char *word[MAX_WORDS + 1];
    size_t n;
} git_words;

static void add(git_words *words, const char *word) {
    if (words->n < MAX_WORDS) words->word[words->n++] = word;
    words->word[words->n] = NULL;
}

/* Whatever the user's configuration says, these hold: no hook, no signature, no clean-up behind our back, every object
 * is checked, large ones are streamed, a fetch writes one file. */
static git_words begin(const bus *b) {
    static const char *const settings[] = {
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "gc.auto=0",
        "maintenance.auto=false",
        "transfer.fsckObjects=true",
        "fetch.unpackLimit=1",
        "core.bigFileThreshold=1m",
        "pack.threads=1",
        "protocol.ext.allow=never",
        "fetch.recurseSubmodules=no",
        "push.recurseSubmodules=no",
        "push.gpgSign=false",
        "push.followTags=false",
        "core.logAllRefUpdates=false",
    };
    git_words words = {.n = 0};
    add(&words, "git");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        add(&words, "-c");
        add(&words, settings[i]);
    }
    if (b) add(&words, b->git_dir_word);
    return words;
}

/* In front of a folder of this machine git starts the other side, too, as this user: with the bus's own settings, which
 * whoever can write there has made. So those that name programs are overruled, and nothing is cleaned up there. */
static const char receive_pack[] = "--receive-pack=git -c core.hooksPath=/dev/null -c core.alternateRefsCommand=true "
                                   "-c receive.autogc=false -c gc.auto=0 -c maintenance.auto=false receive-pack",
                  upload_pack[] =
                      "--upload-pack=git -c core.hooksPath=/dev/null -c core.alternateRefsCommand=true upload-pack";

static void add_other_side(git_words *words, const bus *b, const char *pack) {
    if (b->local) add(words, pack);
}

static bool is_local(const char *url) {
    if (strstr(url, "://")) return strncmp(url, "file://", 7) == 0;
    return !memchr(url, ':', strcspn(url, "/"));
}

/* Runs it. An exit status other than 0 is KAKEYA_IO with git's own words, unless exit_status is there to take it. */
static kakeya_status run(const bus *b, const git_words *words, const char *what, const char *input, size_t input_bytes,
                         size_t most_output, process_limits limits, process_answer *out, int *exit_status,
                         kakeya_error *error) {
    process_call call = {.argv = words->word,
                         .environment = (const char *const *)b->environment,
                         .input = input,
                         .input_bytes = input_bytes,
                         .most_output = most_output,
                         .seconds = b->seconds,
                         .limits = limits,
                         .stopped = b->stopped};
    kakeya_status status = process_run(&call, out, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "%s", what);
    if (exit_status) *exit_status = out->exit_status;
    if (exit_status || out->exit_status == 0) return KAKEYA_OK;
    status = error_set(error, KAKEYA_IO, "%s: %s", what, *out->complaint ? out->complaint : "git failed");
    process_answer_free(out);
    return status;
}

static bool is_oid(const char *text, size_t length) {
    return (length == 40 || length == 64) && strspn(text, "0123456789abcdef") >= length;
}

kakeya_status bus_check_program(kakeya_error *error) {
    static const char *const argv[] = {"git", "--version", NULL};
    static const int oldest[2] = {2, 29}; /* --no-write-fetch-head */
    char **environment = process_environment();
    if (!environment) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    process_call call = {
        .argv = argv, .environment = (const char *const *)environment, .most_output = 4096, .seconds = 60};
    process_answer answer;
    kakeya_error cause;
    kakeya_status status = process_run(&call, &answer, &cause);
    process_environment_free(environment);
    if (status != KAKEYA_OK)
        return error_set(error, KAKEYA_UNSUPPORTED, "git does not run (%s): install git 2.29 or later", cause.message);
    int major = 0, minor = 0;
    sscanf(answer.output, "git version %d.%d", &major, &minor);
    process_answer_free(&answer);
    if (major > oldest[0] || (major == oldest[0] && minor >= oldest[1])) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "git is version %d.%d: install git 2.29 or later", major, minor);
}

/* ------------------------------------------------------------------------------------------ the private repository */

static int open_lock(const char *path) { return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600); }

/* Removes the repositories whose processes have ended: nobody holds their lock. */
static void sweep(const char *state) {
    DIR *entries = opendir(state);
    if (!entries) return;
    for (struct dirent *e; (e = readdir(entries)) != NULL;) {
        if (strncmp(e->d_name, "bus-", 4) != 0) continue;
        char *path = path_join(state, e->d_name), *lock = path ? path_join(path, "lock") : NULL;
        int fd = lock ? open_lock(lock) : -1;
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) folder_remove(path);
        if (fd >= 0) close(fd);
        free(lock);
        free(path);
    }
    closedir(entries);
}

static kakeya_status make_repository(bus *b, kakeya_error *error) {
    git_words words = begin(NULL);
    add(&words, "init");
    add(&words, "--quiet");
    add(&words, "--bare");
    add(&words, "--template=");
    add(&words, b->directory);
    process_answer answer;
    kakeya_status status =
        run(b, &words, "a private repository", NULL, 0, 65536, (process_limits){0}, &answer, NULL, error);
    process_answer_free(&answer);
    return status;
}

static kakeya_status make_directory(bus *b, kakeya_error *error) {
    char *lock = path_join(b->state, "clones.lock");
    int guard = lock ? open_lock(lock) : -1;
    free(lock);
    if (guard < 0 || flock(guard, LOCK_EX) != 0) {
        if (guard >= 0) close(guard);
        return error_set(error, KAKEYA_IO, "%s: cannot write there: %s", b->state, strerror(errno));
    }
    sweep(b->state);
    kakeya_status status = KAKEYA_OK;
    char *directory = path_join(b->state, "bus-XXXXXX");
    if (!directory || !mkdtemp(directory)) {
        status = error_set(error, KAKEYA_IO, "%s: cannot make a folder there: %s", b->state, strerror(errno));
        free(directory);
        directory = NULL;
    }
    b->directory = directory;
    lock = directory ? path_join(directory, "lock") : NULL;
    b->lock = lock ? open_lock(lock) : -1;
    if (status == KAKEYA_OK && (b->lock < 0 || flock(b->lock, LOCK_EX | LOCK_NB) != 0))
        status = error_set(error, KAKEYA_IO, "%s: cannot be locked: %s", directory, strerror(errno));
    free(lock);
    close(guard); /* and the lock with it */
    return status;
}

static void leave_directory(bus *b) {
    if (b->directory) folder_remove(b->directory);
    if (b->lock >= 0) close(b->lock);
    free(b->directory);
    free(b->git_dir_word);
    b->directory = b->git_dir_word = NULL;
    b->lock = -1;
}

static kakeya_status enter_directory(bus *b, kakeya_error *error) {
    kakeya_status status = make_directory(b, error);
    if (status == KAKEYA_OK) status = make_repository(b, error);
    if (status == KAKEYA_OK && asprintf(&b->git_dir_word, "--git-dir=%s", b->directory) < 0) {
        b->git_dir_word = NULL;
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    b->steps = 0;
    if (status != KAKEYA_OK) leave_directory(b);
    return status;
}

kakeya_status bus_open(const char *state, const char *url, double seconds, bool (*stopped)(void), bus **out,
                       kakeya_error *error) {
    *out = NULL;
    if (!*url || *url == '-') return error_set(error, KAKEYA_INVALID_ARGUMENT, "bus: '%s' is not a git remote", url);
    kakeya_status status = bus_check_program(error);
    if (status == KAKEYA_OK) status = folder_make(state, error);
    if (status != KAKEYA_OK) return status;
    bus *b = calloc(1, sizeof *b);
    if (!b) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    *b = (bus){.state = strdup(state),
               .url = strdup(url),
               .lock = -1,
               .seconds = seconds,
               .stopped = stopped,
               .local = is_local(url)};
    b->environment = process_environment();
    status = b->state && b->url && b->environment ? enter_directory(b, error)
                                                  : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status != KAKEYA_OK) {
        bus_close(b);
        return status;
    }
    *out = b;
    return KAKEYA_OK;
}

void bus_close(bus *b) {
    if (!b) return;
    leave_directory(b);
    process_environment_free(b->environment);
    free(b->state);
    free(b->url);
    free(b);
}

/* What has been fetched is of no more use: so that it does not grow, the repository is made anew now and then. */
static kakeya_status step(bus *b, kakeya_error *error) {
    if (b->directory && b->steps++ < STEPS_BEFORE_RENEWAL) return KAKEYA_OK;
    leave_directory(b);
    return enter_directory(b, error);
}

/* -------------------------------------------------------------------------------------------------------- listing */

static int compare_refs(const void *a, const void *b) {
    return strcmp(((const bus_ref *)a)->nonce, ((const bus_ref *)b)->nonce);
}

/* "OID<tab>refs/heads/kakeya/KIND/NONCE" */
static bool read_ref(const char *line, size_t length, bus_ref *out) {
    const char *tab = memchr(line, '\t', length);
    size_t oid = tab ? (size_t)(tab - line) : 0;
    if (!tab || !is_oid(line, oid)) return false;
    const char *name = tab + 1;
    size_t rest = length - oid - 1;
    *out = (bus_ref){.nonce = ""};
    for (int kind = 0; kind < BUS_KINDS; kind++) {
        char prefix[64];
        size_t n = (size_t)snprintf(prefix, sizeof prefix, REFS "%s/", kind_names[kind]);
        if (rest != n + REMOTE_NONCE - 1 || memcmp(name, prefix, n) != 0) continue;
        memcpy(out->nonce, name + n, REMOTE_NONCE - 1);
        memcpy(out->oid[kind], line, oid);
        return remote_is_nonce(out->nonce);
    }
    return false;
}

/* Refs of one nonce, which stand side by side, become one. */
static size_t merge(bus_ref *refs, size_t n) {
    size_t to = 0;
    for (size_t from = 0; from < n; from++) {
        if (!to || strcmp(refs[to - 1].nonce, refs[from].nonce) != 0) {
            refs[to++] = refs[from];
            continue;
        }
        for (int kind = 0; kind < BUS_KINDS; kind++)
            if (*refs[from].oid[kind]) memcpy(refs[to - 1].oid[kind], refs[from].oid[kind], BUS_OID);
    }
    return to;
}

kakeya_status bus_list(bus *b, const char *nonce, bus_ref **refs, size_t *n, kakeya_error *error) {
    *refs = NULL;
    *n = 0;
    char pattern[BUS_KINDS][96];
    git_words words = begin(b);
    add(&words, "ls-remote");
    add(&words, "--quiet");
    add(&words, "--refs");
    add_other_side(&words, b, upload_pack);
    add(&words, "--");
    add(&words, b->url);
    for (int kind = 0; kind < BUS_KINDS; kind++) {
        snprintf(pattern[kind], sizeof pattern[kind], REFS "%s/%s", kind_names[kind], nonce ? nonce : "*");
        add(&words, pattern[kind]);
    }
    process_answer answer;
    kakeya_status status =
        run(b, &words, "listing the bus", NULL, 0, MAX_LISTING, (process_limits){0}, &answer, NULL, error);
    if (status != KAKEYA_OK) return status;
    size_t lines = 1;
    for (size_t i = 0; i < answer.bytes; i++) lines += answer.output[i] == '\n';
    *refs = calloc(lines, sizeof **refs);
    if (!*refs) {
        process_answer_free(&answer);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "listing the bus: out of memory");
    }
    for (const char *at = answer.output; *at;) {
        size_t length = strcspn(at, "\n");
        if (read_ref(at, length, &(*refs)[*n])) ++*n;
        at += length + (at[length] == '\n');
    }
    process_answer_free(&answer);
    if (*n) qsort(*refs, *n, sizeof **refs, compare_refs);
    *n = merge(*refs, *n);
    return KAKEYA_OK;
}

/* -------------------------------------------------------------------------------------------------------- reading */

typedef struct tree_entry {
    char oid[BUS_OID];
    size_t bytes;
} tree_entry;

/* The rule for a name; *below says that it is one with '/'. */
static const bus_rule *find_rule(const bus_rule *rules, size_t n, const char *name, bool *below) {
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(rules[i].name);
        *below = rules[i].name[length - 1] == '/';
        if (*below ? strncmp(rules[i].name, name, length) == 0 && remote_is_name(name + length)
                   : strcmp(rules[i].name, name) == 0)
            return &rules[i];
    }
    return NULL;
}

/* One entry of `ls-tree -l -z`: "100644 blob OID    SIZE<tab>NAME" */
static kakeya_status read_entry(const char *text, const bus_rule *rules, size_t n_rules, bus_tree *tree,
                                tree_entry *entries, size_t *n_below, kakeya_error *error) {
    static const char regular[] = "100644 blob ";
    const char *tab = strchr(text, '\t');
    char name[sizeof tree->file->name] = "?";
    if (tab) snprintf(name, sizeof name, "%s", tab + 1);
    name[remote_printable(name, strlen(name))] = '\0';
    const char *oid = text + sizeof regular - 1;
    size_t length = tab && strncmp(text, regular, sizeof regular - 1) == 0 ? strcspn(oid, " ") : 0;
    if (!is_oid(oid, length)) return error_set(error, KAKEYA_FORMAT, "%s: not a regular file", name);
    char *end;
    unsigned long long bytes = strtoull(oid + length, &end, 10);
    bool below;
    const bus_rule *rule = strlen(tab + 1) < sizeof name ? find_rule(rules, n_rules, tab + 1, &below) : NULL;
    if (end != tab || !rule) return error_set(error, KAKEYA_FORMAT, "%s: no such file is expected", name);
    if (bytes > rule->most_bytes)
        return error_set(error, KAKEYA_FORMAT, "%s: %llu bytes, more than %zu", name, bytes, rule->most_bytes);
    if (below && ++*n_below > MAX_BELOW)
        return error_set(error, KAKEYA_FORMAT, "%s: more than %d files", rule->name, MAX_BELOW);
    memcpy(tree->file[tree->n].name, tab + 1, strlen(tab + 1) + 1);
    memcpy(entries[tree->n].oid, oid, length);
    entries[tree->n++].bytes = (size_t)bytes;
    return KAKEYA_OK;
}

/* Names, objects and sizes of the commit's files, as far as all of them are allowed. */
static kakeya_status list_tree(bus *b, const bus_rule *rules, size_t n_rules, bus_tree *tree, tree_entry **entries,
                               kakeya_error *error) {
    git_words words = begin(b);
    add(&words, "ls-tree");
    add(&words, "-r");
    add(&words, "-l");
    add(&words, "-z");
    add(&words, "--full-tree");
    add(&words, tree->oid);
    process_answer answer;
    kakeya_status status =
        run(b, &words, "reading a commit", NULL, 0, MAX_TREE_LISTING, (process_limits){0}, &answer, NULL, error);
    if (status != KAKEYA_OK) return status;
    size_t most = n_rules + MAX_BELOW, n_below = 0;
    tree->file = calloc(most, sizeof *tree->file);
    *entries = calloc(most, sizeof **entries);
    if (!tree->file || !*entries) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "reading a commit: out of memory");
    for (size_t at = 0; status == KAKEYA_OK && at < answer.bytes; at += strlen(answer.output + at) + 1) {
        status = tree->n == most ? error_set(error, KAKEYA_FORMAT, "more than %zu files", most)
                                 : read_entry(answer.output + at, rules, n_rules, tree, *entries, &n_below, error);
    }
    process_answer_free(&answer);
    return status;
}

/* The contents, in one go: for every object "OID blob SIZE", line feed, the bytes, line feed. */
static kakeya_status read_contents(bus *b, bus_tree *tree, const tree_entry *entries, kakeya_error *error) {
    char wanted[(MAX_BELOW + 16) * BUS_OID];
    size_t used = 0, most = 0;
    for (size_t i = 0; i < tree->n; i++) {
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s\n", entries[i].oid);
        most += entries[i].bytes + 128;
    }
    git_words words = begin(b);
    add(&words, "cat-file");
    add(&words, "--batch");
    process_answer answer;
    kakeya_status status =
        run(b, &words, "reading files", wanted, used, most, (process_limits){0}, &answer, NULL, error);
    if (status != KAKEYA_OK) return status;
    const char *at = answer.output, *end = answer.output + answer.bytes;
    for (size_t i = 0; status == KAKEYA_OK && i < tree->n; i++) {
        char head[160];
        size_t length = (size_t)snprintf(head, sizeof head, "%s blob %zu\n", entries[i].oid, entries[i].bytes);
        bool good = (size_t)(end - at) > length + entries[i].bytes && memcmp(at, head, length) == 0;
        bus_file *file = &tree->file[i];
        file->data = good ? malloc(entries[i].bytes + 1) : NULL;
        if (!good) {
            status = error_set(error, KAKEYA_FORMAT, "%s: damaged", file->name);
        } else if (!file->data) {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", file->name);
        } else {
            memcpy(file->data, at + length, entries[i].bytes);
            file->data[entries[i].bytes] = '\0';
            file->bytes = entries[i].bytes;
            at += length + entries[i].bytes + 1;
        }
    }
    process_answer_free(&answer);
    return status;
}

static kakeya_status fetch_commit(bus *b, bus_kind kind, const char *nonce, char oid[BUS_OID], kakeya_error *error) {
    char refspec[160];
    snprintf(refspec, sizeof refspec, "+" REFS "%s/%s:refs/in", kind_names[kind], nonce);
    git_words words = begin(b);
    const char *const fetch[] = {"fetch",   "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
                                 "--depth", "1"};
    for (size_t i = 0; i < sizeof fetch / sizeof fetch[0]; i++) add(&words, fetch[i]);
    add_other_side(&words, b, upload_pack);
    add(&words, "--");
    add(&words, b->url);
    add(&words, refspec);
    process_limits limits = {.cpu_seconds = MAX_FETCH_CPU, .file_bytes = MAX_PACK, .memory_bytes = max_fetch_memory};
    process_answer answer;
    kakeya_status status = run(b, &words, "fetching", NULL, 0, 65536, limits, &answer, NULL, error);
    if (status != KAKEYA_OK) return status;
    process_answer_free(&answer);
    words = begin(b);
    add(&words, "rev-parse");
    add(&words, "--verify");
    add(&words, "--quiet");
    add(&words, "refs/in^{commit}");
    int exit_status = -1;
    status = run(b, &words, "fetching", NULL, 0, 4096, (process_limits){0}, &answer, &exit_status, error);
    if (status != KAKEYA_OK) return status;
    size_t length = strcspn(answer.output, "\n");
    if (exit_status == 0 && is_oid(answer.output, length)) {
        memcpy(oid, answer.output, length);
        oid[length] = '\0';
    } else {
        status = error_set(error, KAKEYA_FORMAT, "the ref is not one of a commit");
    }
    process_answer_free(&answer);
    return status;
}

kakeya_status bus_fetch(bus *b, bus_kind kind, const char *nonce, const bus_rule *rules, size_t n_rules, bus_tree *out,
                        kakeya_error *error) {
    *out = (bus_tree){.n = 0};
    tree_entry *entries = NULL;
    kakeya_status status = step(b, error);
    if (status == KAKEYA_OK) status = fetch_commit(b, kind, nonce, out->oid, error);
    if (status == KAKEYA_OK) status = list_tree(b, rules, n_rules, out, &entries, error);
    if (status == KAKEYA_OK && out->n) status = read_contents(b, out, entries, error);
    free(entries);
    if (status == KAKEYA_OK) return KAKEYA_OK;
    bus_tree_free(out);
    return error_prefix(error, status, "%s/%s", kind_names[kind], nonce);
}

void bus_tree_free(bus_tree *tree) {
    for (size_t i = 0; tree->file && i < tree->n; i++) free(tree->file[i].data);
    free(tree->file);
    *tree = (bus_tree){.n = 0};
}

const bus_file *bus_tree_find(const bus_tree *tree, const char *name) {
    for (size_t i = 0; i < tree->n; i++)
        if (strcmp(tree->file[i].name, name) == 0) return &tree->file[i];
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- writing */

kakeya_status bus_commit(bus *b, const bus_file *files, size_t n, int64_t now, char oid[BUS_OID], kakeya_error *error) {
    kakeya_status status = step(b, error);
    if (status != KAKEYA_OK) return status;
    char *script = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&script, &bytes);
    if (!out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "a commit: out of memory");
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "blob\nmark :%zu\ndata %zu\n", i + 1, files[i].bytes);
        fwrite(files[i].data, 1, files[i].bytes, out);
        fputc('\n', out);
    }
    fprintf(out,
            "commit refs/out\nmark :%zu\ncommitter kakeya <kakeya@localhost> %lld +0000\ndata 6\nkakeya\ndeleteall\n",
            n + 1, (long long)now);
    for (size_t i = 0; i < n; i++) fprintf(out, "M 100644 :%zu %s\n", i + 1, files[i].name);
    fprintf(out, "\nget-mark :%zu\ndone\n", n + 1);
    if (fclose(out) != 0) {
        free(script);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "a commit: out of memory");
    }
    git_words words = begin(b);
    add(&words, "fast-import");
    add(&words, "--quiet");
    add(&words, "--force");
    add(&words, "--done");
    process_answer answer = {0};
    status = run(b, &words, "a commit", script, bytes, 4096, (process_limits){0}, &answer, NULL, error);
    free(script);
    if (status != KAKEYA_OK) return status;
    size_t length = strcspn(answer.output, "\n");
    if (is_oid(answer.output, length)) {
        memcpy(oid, answer.output, length);
        oid[length] = '\0';
    } else {
        status = error_set(error, KAKEYA_IO, "a commit: git named none");
    }
    process_answer_free(&answer);
    return status;
}

static kakeya_status current(bus *b, bus_kind kind, const char *nonce, char oid[BUS_OID], kakeya_error *error) {
    bus_ref *refs;
    size_t n;
    oid[0] = '\0';
    kakeya_status status = bus_list(b, nonce, &refs, &n, error);
    if (status == KAKEYA_OK && n) memcpy(oid, refs[0].oid[kind], BUS_OID);
    free(refs);
    return status;
}

kakeya_status bus_push(bus *b, bus_kind kind, const char *nonce, const char *expected, const char *oid, bool *lost,
                       kakeya_error *error) {
    char ref[96], lease[192], refspec[192];
    *lost = false;
    snprintf(ref, sizeof ref, REFS "%s/%s", kind_names[kind], nonce);
    snprintf(lease, sizeof lease, "--force-with-lease=%s:%s", ref, expected);
    snprintf(refspec, sizeof refspec, "%s:%s", oid ? oid : "", ref);
    git_words words = begin(b);
    const char *const push[] = {"push", "--quiet", "--no-verify", "--no-signed", lease};
    for (size_t i = 0; i < sizeof push / sizeof push[0]; i++) add(&words, push[i]);
    add_other_side(&words, b, receive_pack);
    add(&words, "--");
    add(&words, b->url);
    add(&words, refspec);
    process_answer answer;
    kakeya_error cause = {0};
    kakeya_status status = run(b, &words, "pushing", NULL, 0, 65536, (process_limits){0}, &answer, NULL, &cause);
    process_answer_free(&answer);
    if (status == KAKEYA_OK) return KAKEYA_OK;
    /* Refused, or taken by a bus whose answer did not arrive? What the ref is now tells. */
    char now[BUS_OID];
    bool looked = status == KAKEYA_IO && current(b, kind, nonce, now, &(kakeya_error){0}) == KAKEYA_OK;
    if (looked && strcmp(now, oid ? oid : "") == 0) return KAKEYA_OK;
    if (looked && strcmp(now, expected) != 0) {
        *lost = true;
        return KAKEYA_OK;
    }
    return error_set(error, status, "%s/%s: %s", kind_names[kind], nonce, cause.message);
}

kakeya_status bus_try_push(bus *b, int64_t now, kakeya_error *error) {
    char oid[BUS_OID], refspec[192], nonce[REMOTE_NONCE];
    bus_file file = {.name = "nothing", .data = (char[]){""}};
    kakeya_status status = bus_commit(b, &file, 1, now, oid, error);
    if (status == KAKEYA_OK) status = remote_make_nonce(now, nonce, error);
    if (status != KAKEYA_OK) return status;
    snprintf(refspec, sizeof refspec, "%s:" REFS "requests/%s", oid, nonce);
    git_words words = begin(b);
    const char *const push[] = {"push", "--quiet", "--dry-run", "--no-verify"};
    for (size_t i = 0; i < sizeof push / sizeof push[0]; i++) add(&words, push[i]);
    add_other_side(&words, b, receive_pack);
    add(&words, "--");
    add(&words, b->url);
    add(&words, refspec);
    process_answer answer;
    status = run(b, &words, "pushing", NULL, 0, 65536, (process_limits){0}, &answer, NULL, error);
    process_answer_free(&answer);
    return status;
}
