/* Clients that read streams of a server on this machine as cheaply as can be, so that what is measured is the server.
 *
 *     bench_sse_clients PORT CLIENTS SECONDS CHOICES [FIELDS]
 *
 * Every client asks /v1/chat/completions for a stream, and again as soon as it has one. FIELDS are further ones of its
 * request, as "\"ignore_eos\":true". Prints one JSON object:
 * requests and events (deltas with content) per second; milliseconds up to the first event and between two reads of a
 * stream that brought events. "between" is by the kernel's clock of arrival: on loopback that is the moment at which
 * the server wrote. "read_between" is when this program came to read, and "late" how much later than the arrival that
 * was: what the clients add, not the server. "by_step" is "between" divided by the step as it was: the median of what
 * lay between the events of all streams just before. A step lasts longer as texts grow and streams join, and that is no
 * delay; one that all streams stand still for is. "merged" is the share of events that were not alone in their read. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CLIENTS = 1024, BLOCK = 1 << 16, END_BYTES = 7, STEPS = 2 };

static const char EVENT[] = "\"delta\":{\"content\"", END[] = "\r\n0\r\n\r\n";

typedef struct series {
    double *values;
    size_t n, room;
} series;

typedef struct client {
    int socket;
    double asked, arrived, read; /* seconds; of the last read with events, 0: there was none */
    char tail[sizeof EVENT - 1 + END_BYTES];
    size_t n_tail;
} client;

/* `times`: when the events came that end what lies in `between`, in the order of reading. */
typedef struct figures {
    series times, first, between, read_between, late;
    size_t requests, events, merged;
} figures;

static void stop(const char *what) {
    fprintf(stderr, "bench_sse_clients: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add(series *s, double value) {
    if (s->n == s->room) {
        s->room = s->room ? 2 * s->room : 4096;
        s->values = realloc(s->values, s->room * sizeof *s->values);
        if (!s->values) stop("figures");
    }
    s->values[s->n++] = value;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, double scale, series *s) {
    static const double shares[] = {.5, .9, .99, .999};
    qsort(s->values, s->n, sizeof *s->values, compare);
    printf("\"%s\":{", name);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        double value = s->n ? s->values[(size_t)((double)(s->n - 1) * shares[i])] * scale : 0;
        printf("%s\"p%g\":%.3f", i ? "," : "", shares[i] * 100, value);
    }
    printf("},");
}

/* In the first steps there is nothing to compare with: those gaps are left out. */
static series by_step(const figures *f, size_t clients) {
    series ratios = {0};
    size_t window = STEPS * clients, before = 0;
    double *sorted = malloc(window * sizeof *sorted), step = 0;
    if (!sorted) stop("figures");
    for (size_t i = 0; i < f->between.n; i++) {
        double began = f->times.values[i] - f->between.values[i];
        bool moved = false;
        for (; before < i && f->times.values[before] <= began; before++) moved = true;
        if (before < window) continue;
        if (moved || step == 0) {
            memcpy(sorted, f->between.values + before - window, window * sizeof *sorted);
            qsort(sorted, window, sizeof *sorted, compare);
            step = sorted[window / 2];
        }
        add(&ratios, f->between.values[i] / step);
    }
    free(sorted);
    return ratios;
}

static int connect_to(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int on = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || connect(s, (const struct sockaddr *)&address, sizeof address) != 0) stop("connect");
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (setsockopt(s, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) != 0) stop("SO_TIMESTAMPNS");
    return s;
}

static void ask(client *c, const char *request, size_t bytes) {
    c->asked = now(CLOCK_REALTIME);
    c->arrived = c->read = 0;
    c->n_tail = 0;
    if (send(c->socket, request, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) stop("send");
}

static size_t count_events(const char *data, size_t bytes) {
    size_t n = 0;
    const char *end = data + bytes;
    for (const char *at; (at = memmem(data, (size_t)(end - data), EVENT, sizeof EVENT - 1)) != NULL;
         data = at + sizeof EVENT - 1)
        n++;
    return n;
}

/* What came, behind what may be the beginning of an event or of the end. */
static size_t receive(client *c, char *block, size_t room, double *arrived) {
    char control[256];
    memcpy(block, c->tail, c->n_tail);
    struct iovec piece = {.iov_base = block + c->n_tail, .iov_len = room - c->n_tail};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(c->socket, &message, 0);
    if (got <= 0) stop("the server closed a stream");
    *arrived = now(CLOCK_REALTIME);
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&message); m; m = CMSG_NXTHDR(&message, m)) {
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_TIMESTAMPNS) continue;
        struct timespec t;
        memcpy(&t, CMSG_DATA(m), sizeof t);
        *arrived = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    }
    return (size_t)got;
}

/* Returns whether the reply is complete. */
static bool take(client *c, char *block, size_t got, double arrived, double at, figures *f) {
    size_t have = c->n_tail + got, events = count_events(block, have);
    if (events) {
        if (c->arrived > 0) {
            add(&f->between, arrived - c->arrived);
            add(&f->times, arrived);
            add(&f->read_between, at - c->read);
        } else {
            add(&f->first, arrived - c->asked);
        }
        add(&f->late, at - arrived);
        c->arrived = arrived;
        c->read = at;
    }
    f->events += events;
    f->merged += events > 1 ? events - 1 : 0;
    bool over = have >= END_BYTES && memcmp(block + have - END_BYTES, END, END_BYTES) == 0;
    /* An event in two pieces is found with the second one; a whole one at the end must not be found again. */
    size_t keep = have < sizeof EVENT - 2 ? have : sizeof EVENT - 2;
    memmove(c->tail, block + have - keep, keep);
    c->n_tail = keep;
    return over;
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: bench_sse_clients PORT CLIENTS SECONDS CHOICES [FIELDS]\n");
        return 2;
    }
    static client clients[MOST_CLIENTS];
    static char block[BLOCK];
    int port = atoi(argv[1]), n = atoi(argv[2]);
    double seconds = atof(argv[3]);
    if (n < 1 || n > MOST_CLIENTS) n = 1;
    char body[512], request[1024];
    int bytes = snprintf(body, sizeof body,
                         "{\"model\":\"m\",\"temperature\":0,\"stream\":true,\"n\":%d,%s%s"
                         "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                         atoi(argv[4]), argc > 5 ? argv[5] : "", argc > 5 ? "," : "");
    bytes = snprintf(request, sizeof request,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %d\r\n\r\n%s",
                     bytes, body);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < n; i++) {
        clients[i].socket = connect_to(port);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &clients[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, clients[i].socket, &wanted) != 0) stop("epoll");
    }
    double begun = now(CLOCK_MONOTONIC), end = begun + seconds, at = begun;
    for (int i = 0; i < n; i++) ask(&clients[i], request, (size_t)bytes);
    figures f = {0};
    while (at < end) {
        struct epoll_event ready[64];
        int found = epoll_wait(poll, ready, 64, 1000);
        for (int i = 0; i < found; i++) {
            client *c = ready[i].data.ptr;
            double arrived, read = now(CLOCK_REALTIME);
            size_t got = receive(c, block, sizeof block, &arrived);
            if (take(c, block, got, arrived, read, &f)) {
                f.requests++;
                ask(c, request, (size_t)bytes);
            }
        }
        at = now(CLOCK_MONOTONIC);
    }
    double own = now(CLOCK_PROCESS_CPUTIME_ID);
    printf("{\"clients\":%d,\"choices\":%d,\"requests\":%zu,\"events\":%zu,\"seconds\":%.3f,", n, atoi(argv[4]),
           f.requests, f.events, at - begun);
    series ratios = by_step(&f, (size_t)n); /* before what it is made of is sorted */
    print("by_step", 1, &ratios);
    print("first_ms", 1000, &f.first);
    print("between_ms", 1000, &f.between);
    print("read_between_ms", 1000, &f.read_between);
    print("late_ms", 1000, &f.late);
    printf("\"merged\":%.4f,\"client_us_per_event\":%.2f}\n", f.events ? (double)f.merged / (double)f.events : 0,
           f.events ? own / (double)f.events * 1e6 : 0);
    return 0;
}
