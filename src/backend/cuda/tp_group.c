#include "backend/cuda/tp_group.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/platform.h"

/* What a device's thread says when all agree. */
typedef struct tp_vote {
    kakeya_status status;
    kakeya_error error;
} tp_vote;

typedef struct tp_member {
    struct cuda_tp_group *tp_group;
    int index;
    backend_model *model;
    cuda_buffer inbox;
    cudaEvent_t sent[2];
    tp_vote vote[2]; /* in turns: the next one may be said while the last one is still read */
    unsigned votes;
    pthread_t thread;
} tp_member;

struct cuda_tp_group {
    tp_member member[CUDA_MAX_DEVICES];
    int n, threads; /* threads: those that run, of members 1, 2, ... */
    int *abandoned; /* in page-locked memory that all devices read */
    atomic_int arrived;
    atomic_uint rounds;
    /* The task of the threads. */
    pthread_mutex_t lock;
    pthread_cond_t begun;
    atomic_uint tasks;
    atomic_int left; /* members that are at it */
    cuda_tp_task task;
    void *context;
    bool closing;
};

int cuda_tp_group_size(const cuda_tp_group *group) { return group->n; }
backend_model *cuda_tp_group_model(const cuda_tp_group *group, int index) { return group->member[index].model; }

/* ------------------------------------------------------------------------------------------------------ meeting */

enum { LOOKS = 2000 }; /* before others may have the processor */

static void look_again(int *looks) {
    if (++*looks > LOOKS) sched_yield();
}

static void meet(cuda_tp_group *t) {
    unsigned round = atomic_load(&t->rounds);
    if (atomic_fetch_add(&t->arrived, 1) == t->n - 1) {
        atomic_store(&t->arrived, 0);
        atomic_fetch_add(&t->rounds, 1);
        return;
    }
    for (int looks = 0; atomic_load(&t->rounds) == round;) look_again(&looks);
}

kakeya_status cuda_tp_group_agree(backend_model *m, kakeya_status status, kakeya_error *error) {
    cuda_tp_group *t = m->tp_group;
    if (!t) return status;
    tp_member *me = &t->member[m->shard.index];
    unsigned which = me->votes++ & 1;
    tp_vote *vote = &me->vote[which];
    vote->status = status;
    vote->error.message[0] = '\0';
    if (status && error) vote->error = *error;
    meet(t);
    if (status) return status;
    for (int i = 0; i < t->n; i++) {
        const tp_vote *other = &t->member[i].vote[which];
        if (other->status)
            return error_set(error, other->status, "device %d: %s", t->member[i].model->device.index,
                             other->error.message);
    }
    return KAKEYA_OK;
}

void cuda_tp_group_abandon(backend_model *m) {
    if (m->tp_group) __atomic_store_n(m->tp_group->abandoned, 1, __ATOMIC_SEQ_CST);
}

/* Numbers of exchanges begin again: what is left in the inbox must not look like one of them. */
static kakeya_status clear_inbox(backend_model *m, kakeya_error *error) {
    const cuda_buffer *inbox = &m->tp_group->member[m->shard.index].inbox;
    kakeya_status status = cuda_check(cudaMemsetAsync(inbox->data, 0, inbox->bytes, m->device.stream),
                                      "clearing what devices have sent", error);
    return status ? status : cuda_finish(&m->device, "clearing what devices have sent", error);
}

kakeya_status cuda_tp_group_begin_pass(backend_model *m, kakeya_error *error) {
    enum { MOST_PASSES = UINT32_MAX / STEP_MOST_TURNS - 1 };
    if (!m->tp_group) return KAKEYA_OK;
    if (m->shard.index == 0) __atomic_store_n(m->tp_group->abandoned, 0, __ATOMIC_SEQ_CST);
    kakeya_status status = KAKEYA_OK;
    if (++m->passes > (unsigned)MOST_PASSES) {
        status = clear_inbox(m, error);
        m->passes = 1;
    }
    return cuda_tp_group_agree(m, status, error);
}

cudaError_t cuda_tp_group_order(backend_model *m, int turn) {
    cuda_tp_group *t = m->tp_group;
    cudaError_t status = cudaEventRecord(t->member[m->shard.index].sent[turn & 1], m->device.stream);
    meet(t);
    for (int i = 0; i < t->n; i++) {
        if (i == m->shard.index) continue;
        cudaError_t waits = cudaStreamWaitEvent(m->device.stream, t->member[i].sent[turn & 1], 0);
        if (status == cudaSuccess) status = waits;
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------ threads */

/* The next task of a thread that has done `done` of them, false: there will be none. Steps follow each other closely,
 * so the thread looks for a while before it sleeps. */
static bool next_task(cuda_tp_group *t, unsigned done) {
    enum { AWAKE = 20000 };
    for (int looks = 0; looks < AWAKE && atomic_load(&t->tasks) == done; looks++) {
        if (looks > LOOKS) sched_yield();
    }
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->tasks) == done && !t->closing) pthread_cond_wait(&t->begun, &t->lock);
    bool any = atomic_load(&t->tasks) != done;
    pthread_mutex_unlock(&t->lock);
    return any;
}

static void do_task(const tp_member *me) {
    (void)cuda_device_use(&me->model->device, NULL); /* what is done with a lost device says so itself */
    me->tp_group->task(me->tp_group->context, me->index);
}

static void *serve_member(void *argument) {
    const tp_member *me = argument;
    cuda_tp_group *t = me->tp_group;
    for (unsigned done = 0; next_task(t, done); done++) {
        do_task(me);
        atomic_fetch_sub(&t->left, 1);
    }
    return NULL;
}

void cuda_tp_group_run(cuda_tp_group *t, cuda_tp_task task, void *context) {
    t->task = task;
    t->context = context;
    atomic_store(&t->left, t->n - 1);
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->tasks, 1);
    pthread_cond_broadcast(&t->begun);
    pthread_mutex_unlock(&t->lock);
    do_task(&t->member[0]);
    for (int looks = 0; atomic_load(&t->left) > 0;) look_again(&looks);
}

/* ----------------------------------------------------------------------------------------------------- creation */

static kakeya_status reach(const cuda_device *from, const cuda_device *to, kakeya_error *error) {
    int can = 0;
    kakeya_status status = cuda_check(cudaDeviceCanAccessPeer(&can, from->index, to->index), "--devices", error);
    if (status) return status;
    if (!can)
        return error_set(error, KAKEYA_UNSUPPORTED, "--devices: device %d cannot reach the memory of device %d",
                         from->index, to->index);
    status = cuda_device_use(from, error);
    if (status) return status;
    cudaError_t enabled = cudaDeviceEnablePeerAccess(to->index, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return KAKEYA_OK;
    }
    return cuda_check(enabled, "--devices: reaching another device's memory", error);
}

static kakeya_status create_member(tp_member *me, kakeya_error *error) {
    backend_model *m = me->model;
    cuda_inbox layout = cuda_inbox_layout(me->tp_group->n, m->config->hidden, CUDA_PASS_ROWS, m->max_rows);
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < me->tp_group->n && !status; i++) {
        if (i != me->index) status = reach(&m->device, &me->tp_group->member[i].model->device, error);
    }
    if (!status) status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_buffer_create(&me->inbox, &m->device, m->account, MEM_WORKSPACE, layout.bytes,
                                    "what devices send each other", error);
    for (int i = 0; i < 2 && !status; i++)
        status = cuda_check(cudaEventCreateWithFlags(&me->sent[i], cudaEventDisableTiming), "creating an event", error);
    if (!status) status = cuda_finish(&m->device, "preparing several devices", error);
    m->exchange = (cuda_exchange){.index = me->index,
                                  .devices = me->tp_group->n,
                                  .layout = layout,
                                  .before = &m->space.batch->exchanges,
                                  .hidden = m->config->hidden};
    return status;
}

static kakeya_status start_threads(cuda_tp_group *t, kakeya_error *error) {
    for (int i = 1; i < t->n; i++) {
        if (platform_thread_create(&t->member[i].thread, serve_member, &t->member[i]))
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "no thread for device %d", t->member[i].model->device.index);
        t->threads = i;
    }
    return KAKEYA_OK;
}

kakeya_status cuda_tp_group_create(backend_model *const *models, int n, cuda_tp_group **out, kakeya_error *error) {
    *out = NULL;
    cuda_tp_group *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for several devices");
    t->n = n;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->begun, NULL);
    for (int i = 0; i < n; i++) {
        t->member[i].tp_group = t;
        t->member[i].index = i;
        t->member[i].model = models[i];
    }
    kakeya_status status = cuda_pinned((void **)&t->abandoned, sizeof *t->abandoned, "several devices", error);
    if (!status) *t->abandoned = 0;
    for (int i = 0; i < n && !status; i++) status = create_member(&t->member[i], error);
    for (int i = 0; i < n && !status; i++) {
        for (int k = 0; k < n; k++) models[i]->exchange.inbox[k] = t->member[k].inbox.data;
        models[i]->exchange.abandoned = t->abandoned;
        models[i]->logits_home = models[0]->space.logits;
        models[i]->tp_group = t;
    }
    if (!status) status = start_threads(t, error);
    if (status) {
        for (int i = 0; i < n; i++) models[i]->tp_group = NULL;
        cuda_tp_group_destroy(t);
        return status;
    }
    *out = t;
    return KAKEYA_OK;
}

void cuda_tp_group_destroy(cuda_tp_group *t) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    pthread_cond_broadcast(&t->begun);
    pthread_mutex_unlock(&t->lock);
    for (int i = 1; i <= t->threads; i++) pthread_join(t->member[i].thread, NULL);
    for (int i = 0; i < t->n; i++) {
        tp_member *me = &t->member[i];
        (void)cuda_device_use(&me->model->device, NULL);
        if (me->model->device.stream) (void)cudaStreamSynchronize(me->model->device.stream);
        cuda_buffer_destroy(&me->inbox);
        for (int k = 0; k < 2; k++) {
            if (me->sent[k]) (void)cudaEventDestroy(me->sent[k]);
        }
    }
    if (t->abandoned) (void)cudaFreeHost(t->abandoned);
    pthread_cond_destroy(&t->begun);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
