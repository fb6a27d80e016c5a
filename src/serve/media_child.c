#include "serve/media_child.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/platform.h"
#include "media/sound_decode.h"
#include "serve/media_filter.h"

extern char **environ; /* no header of POSIX has it */

enum { AT_A_TIME = 4, SECONDS = 30, MOST_DATA = 800 << 20, NAME_BYTES = 160 };

/* What goes over the socket, both ways, before bytes of a file and before pixels or samples. */
typedef struct child_request {
    bool is_sound;
    image_wish wish; /* of a picture */
    int seconds;     /* of a sound, at most */
    uint64_t bytes;
    char name[NAME_BYTES];
} child_request;

typedef struct child_reply {
    kakeya_status status;
    image_info image;
    int width, height;
    sound_info sound;
    uint64_t samples;
    char message[sizeof((kakeya_error *)0)->message];
} child_reply;

/* ----------------------------------------------------------------------------------------------------- the child */

static bool receive_all(int fd, void *data, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)data + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static bool send_all(int fd, const void *data, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t sent = write(fd, (const char *)data + done, n - done);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        done += (size_t)sent;
    }
    return true;
}

#define LIMIT(what, most) (void)setrlimit(what, &(const struct rlimit){most, most})

static bool send_picture(const child_request *request, const void *data, child_reply *reply) {
    kakeya_error why = {0};
    image pixels = {0};
    reply->status =
        image_reader_read(request->name, data, (size_t)request->bytes, &request->wish, &reply->image, &pixels, &why);
    reply->width = pixels.width;
    reply->height = pixels.height;
    memcpy(reply->message, why.message, sizeof reply->message);
    return send_all(STDIN_FILENO, reply, sizeof *reply) &&
           (reply->status != KAKEYA_OK ||
            send_all(STDIN_FILENO, pixels.rgb, 3 * (size_t)pixels.width * (size_t)pixels.height));
}

static bool send_sound(const child_request *request, const void *data, child_reply *reply) {
    kakeya_error why = {0};
    sound_samples heard = {0};
    reply->status =
        sound_decode(request->name, data, (size_t)request->bytes, request->seconds, &reply->sound, &heard, &why);
    reply->samples = heard.n;
    memcpy(reply->message, why.message, sizeof reply->message);
    return send_all(STDIN_FILENO, reply, sizeof *reply) &&
           (reply->status != KAKEYA_OK || send_all(STDIN_FILENO, heard.sample, heard.n * sizeof *heard.sample));
}

int media_child_run(void) {
    child_request request;
    child_reply reply = {0};
    LIMIT(RLIMIT_CORE, 0);
    LIMIT(RLIMIT_FSIZE, 0);
    LIMIT(RLIMIT_CPU, SECONDS);
    if (!media_filter_is_slack()) LIMIT(RLIMIT_DATA, MOST_DATA);
    if (!receive_all(STDIN_FILENO, &request, sizeof request) || request.bytes > (uint64_t)MOST_DATA) return 1;
    request.name[NAME_BYTES - 1] = '\0';
    unsigned char *data = malloc((size_t)request.bytes + 1);
    if (!data || !receive_all(STDIN_FILENO, data, (size_t)request.bytes)) return 1;
    if (!media_filter_install()) return 1;
    const bool sent = request.is_sound ? send_sound(&request, data, &reply) : send_picture(&request, data, &reply);
    _exit(!sent); /* what runs at the end of a program is more than the filter lets pass */
}

/* ---------------------------------------------------------------------------------------------------- the parent */

static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t place_free = PTHREAD_COND_INITIALIZER;
static int places_taken;

static void take_place(void) {
    pthread_mutex_lock(&places_lock);
    while (places_taken == AT_A_TIME) pthread_cond_wait(&place_free, &places_lock);
    places_taken++;
    pthread_mutex_unlock(&places_lock);
}

static void give_place(void) {
    pthread_mutex_lock(&places_lock);
    places_taken--;
    pthread_cond_signal(&place_free);
    pthread_mutex_unlock(&places_lock);
}

typedef struct child {
    pid_t pid;
    int fd;
    double end; /* of its time */
} child;

/* Of the environment, what the loader finds the program's libraries by: NULL behind the last. */
static void keep_library_paths(char *kept[3]) {
    int n = 0;
    for (char **e = environ; *e && n < 2; e++)
        if (strncmp(*e, "LD_LIBRARY_PATH=", 16) == 0 || strncmp(*e, "DYLD_LIBRARY_PATH=", 18) == 0) kept[n++] = *e;
    kept[n] = NULL;
}

/* The child's end of the socket becomes its stdin; its stdout and stderr lead nowhere. */
static int spawn(const char *program, int theirs, pid_t *pid) {
    char verb[] = "serve", argument[] = MEDIA_CHILD_ARGUMENT, name[] = "kakeya", *kept[3];
    char *argv[] = {name, verb, argument, NULL};
    sigset_t set;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    keep_library_paths(kept);
    int why = posix_spawn_file_actions_init(&actions);
    if (why) return why;
    why = posix_spawnattr_init(&attributes);
    if (why == 0) {
        sigemptyset(&set);
        posix_spawnattr_setsigmask(&attributes, &set);
        sigfillset(&set);
        posix_spawnattr_setsigdefault(&attributes, &set);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        why = posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
        if (!why) why = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", 1 /* O_WRONLY */, 0);
        if (!why) why = posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
        if (!why) why = posix_spawn(pid, program, &actions, &attributes, argv, kept);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return why;
}

static kakeya_status start(const char *program, child *out, kakeya_error *error) {
    int pair[2];
    if (platform_socket_pair(pair) != 0) return error_set(error, KAKEYA_IO, "starting a decoder: %s", strerror(errno));
    int why = spawn(program, pair[1], &out->pid);
    close(pair[1]);
    if (why) {
        close(pair[0]);
        return error_set(error, KAKEYA_IO, "starting a decoder: %s: %s", program, strerror(why));
    }
    out->fd = pair[0];
    out->end = clock_seconds() + SECONDS;
    return KAKEYA_OK;
}

static bool wait_until_ready(const child *c, short events) {
    for (;;) {
        const double left = c->end - clock_seconds();
        struct pollfd one = {.fd = c->fd, .events = events};
        if (left <= 0) return false;
        int ready = poll(&one, 1, (int)(left * 1000) + 1);
        if (ready > 0) return true;
        if (ready == 0 || errno != EINTR) return false;
    }
}

static bool tell(const child *c, const void *data, size_t n) {
    for (size_t done = 0; done < n;) {
        if (!wait_until_ready(c, POLLOUT)) return false;
        ssize_t sent = send(c->fd, (const char *)data + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (sent <= 0) return false;
        done += (size_t)sent;
    }
    return true;
}

static bool hear(const child *c, void *data, size_t n) {
    for (size_t done = 0; done < n;) {
        if (!wait_until_ready(c, POLLIN)) return false;
        ssize_t got = recv(c->fd, (char *)data + done, n - done, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static kakeya_status not_decoded(const child *c, const child_request *request, kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: the %s cannot be decoded%s", request->name,
                     request->is_sound ? "sound" : "image", clock_seconds() > c->end ? " in time" : "");
}

/* Whatever it says is checked. */
static kakeya_status ask(const child *c, const child_request *request, const void *data, child_reply *reply,
                         kakeya_error *error) {
    if (!tell(c, request, sizeof *request) || !tell(c, data, (size_t)request->bytes) || !hear(c, reply, sizeof *reply))
        return not_decoded(c, request, error);
    reply->message[sizeof reply->message - 1] = '\0';
    if (reply->status == KAKEYA_OK) return KAKEYA_OK;
    const bool known = reply->status == KAKEYA_INVALID_ARGUMENT || reply->status == KAKEYA_UNSUPPORTED ||
                       reply->status == KAKEYA_OUT_OF_MEMORY;
    return error_set(error, known ? reply->status : KAKEYA_FORMAT, "%s", reply->message);
}

/* Pixels, as many as a budget allows. */
static kakeya_status take_pixels(const child *c, const child_request *request, const child_reply *reply, image *out,
                                 kakeya_error *error) {
    const image_wish *wish = &request->wish;
    const int64_t side = (int64_t)wish->patch * wish->pooling, most = wish->budget * side * side;
    if (reply->image.format < 0 || reply->image.format >= IMAGE_FORMATS || reply->width < 1 || reply->height < 1 ||
        (int64_t)reply->width * reply->height > most)
        return not_decoded(c, request, error);
    const size_t bytes = 3 * (size_t)reply->width * (size_t)reply->height;
    *out = (image){reply->width, reply->height, malloc(bytes)};
    if (!out->rgb) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", request->name);
    if (hear(c, out->rgb, bytes)) return KAKEYA_OK;
    image_free(out);
    return not_decoded(c, request, error);
}

/* Samples, as many as the seconds allow. */
static kakeya_status take_samples(const child *c, const child_request *request, const child_reply *reply,
                                  sound_samples *out, kakeya_error *error) {
    const uint64_t most = (uint64_t)request->seconds * SOUND_RATE;
    if (reply->sound.format < 0 || reply->sound.format >= SOUND_FORMATS || reply->samples < 1 || reply->samples > most)
        return not_decoded(c, request, error);
    const size_t bytes = (size_t)reply->samples * sizeof *out->sample;
    *out = (sound_samples){malloc(bytes), (size_t)reply->samples};
    if (!out->sample) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", request->name);
    if (hear(c, out->sample, bytes)) return KAKEYA_OK;
    sound_free(out);
    return not_decoded(c, request, error);
}

static void end(const child *c) {
    close(c->fd);
    kill(c->pid, SIGKILL); /* it has ended, or is not to go on */
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

static child_request request_of(const char *name, size_t bytes) {
    child_request request;
    memset(&request, 0, sizeof request); /* with what lies between its members */
    request.bytes = bytes;
    snprintf(request.name, sizeof request.name, "%s", name);
    return request;
}

kakeya_status media_child_read_image(const char *program, const char *name, const void *data, size_t bytes,
                                     const image_wish *wish, image_info *info, image *out, kakeya_error *error) {
    child c;
    child_reply reply;
    child_request request = request_of(name, bytes);
    request.wish = *wish;
    *out = (image){0};
    take_place();
    kakeya_status status = start(program, &c, error);
    if (status == KAKEYA_OK) {
        status = ask(&c, &request, data, &reply, error);
        if (status == KAKEYA_OK) status = take_pixels(&c, &request, &reply, out, error);
        if (status == KAKEYA_OK) *info = reply.image;
        end(&c);
    }
    give_place();
    return status;
}

kakeya_status media_child_read_sound(const char *program, const char *name, const void *data, size_t bytes, int seconds,
                                     sound_info *info, sound_samples *out, kakeya_error *error) {
    child c;
    child_reply reply;
    child_request request = request_of(name, bytes);
    request.is_sound = true;
    request.seconds = seconds;
    *out = (sound_samples){0};
    take_place();
    kakeya_status status = start(program, &c, error);
    if (status == KAKEYA_OK) {
        status = ask(&c, &request, data, &reply, error);
        if (status == KAKEYA_OK) status = take_samples(&c, &request, &reply, out, error);
        if (status == KAKEYA_OK) *info = reply.sound;
        end(&c);
    }
    give_place();
    return status;
}
