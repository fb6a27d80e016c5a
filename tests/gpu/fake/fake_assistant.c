/* Launchers of an assistant's kernels, which move tags (fake_device.h): a draft depends on the state that its chain
 * began with, on the tokens since, and on all positions that have been attended. */
#include "backend/cuda/assistant_kernels.h"
#include "gpu/fake/fake_tags.h"

int32_t fake_drafted(const cuda_excluded *excluded, int vocab, uint64_t seen) {
    int32_t token = (int32_t)(seen % (uint64_t)vocab);
    for (int e = 0; e < excluded->n; e++) {
        if (excluded->id[e] == token) return fake_drafted(excluded, vocab, fake_mix(seen, 1));
    }
    return token;
}

/* An assistant's rows go on with what they have seen. */
typedef struct pair_arguments {
    cuda_pair pair;
    const cuda_matrix *table;
    int rows;
} pair_arguments;

static void run_pair(const void *arguments) {
    const pair_arguments *a = arguments;
    const cuda_batch *batch = a->pair.batch;
    fake_now.in_chain = 1;
    fake_now.rows = a->rows;
    for (int r = 0; r < batch->rows; r++) {
        const cuda_state_view *view = (const cuda_state_view *)(const void *)batch->row[r].cache;
        const int32_t token = a->pair.drafted ? a->pair.drafted[r] : batch->tokens[r];
        fake_now.token[r] = token < 0 ? 0 : token;
        if (!a->pair.drafted) {
            if ((int)view->state[0] != batch->row[r].position - 1)
                fake_broken("a state of another position", (int)view->state[0], batch->row[r].position - 1);
            fake_now.ill[r] = view->state[2] != 0;
            fake_now.seen[r] = fake_mix(3, (uint64_t)view->state[1]);
        }
        fake_now.ill[r] |= (a->table->data[(size_t)fake_now.token[r] * (size_t)a->table->ld] & 0x7fffu) > 0x7f80u;
        fake_now.seen[r] = fake_mix(fake_now.seen[r], (uint32_t)fake_now.token[r]);
    }
}

void cuda_pair_rows(const cuda_launch *l, const cuda_matrix *table, const cuda_pair *pair, int rows) {
    (void)l;
    pair_arguments a = {*pair, table, rows};
    fake_launch(run_pair, &a, sizeof a);
}

typedef struct keep_states_arguments {
    const cuda_batch *batch;
    int prompt, hidden, rows;
} keep_states_arguments;

static void run_keep_states(const void *arguments) {
    const keep_states_arguments *a = arguments;
    for (int i = 0; i < a->rows; i++) {
        const cuda_step *step = &a->batch->step[i];
        int r = a->prompt ? step->first_row + step->rows - 1 : i;
        int position = a->prompt ? step->position + step->rows - 1 : a->batch->row[r].position;
        const void *cache = a->prompt ? step->cache : a->batch->row[r].cache;
        float *pending = cache ? ((const cuda_state_view *)cache)->pending : NULL;
        if (!pending) continue;
        pending += (size_t)(position % CUDA_DECODE_ROWS) * (size_t)a->hidden;
        pending[0] = (float)position;
        pending[1] = (float)fake_now.token[r];
        pending[2] = (float)fake_now.ill[r];
    }
}

void cuda_keep_states(const cuda_launch *l, const cuda_batch *batch, int prompt, const float *normed, int hidden,
                      int rows) {
    (void)l, (void)normed;
    keep_states_arguments a = {batch, prompt, hidden, rows};
    fake_launch(run_keep_states, &a, sizeof a);
}

/* Clusters are not looked at: any token may be chosen. */
void cuda_choose_clusters(const cuda_launch *l, const cuda_clusters *c, const float *logits, int rows) {
    (void)l, (void)c, (void)logits, (void)rows;
}

typedef struct choose_arguments {
    cuda_excluded excluded;
    int vocab, rows;
    int32_t *choice;
} choose_arguments;

static void run_choose_inside(const void *arguments) {
    const choose_arguments *a = arguments;
    for (int r = 0; r < a->rows; r++)
        a->choice[r] = fake_now.ill[r] ? -1 : fake_drafted(&a->excluded, a->vocab, fake_now.seen[r]);
}

void cuda_choose_inside(const cuda_launch *l, const cuda_clusters *c, const cuda_matrix *head,
                        const cuda_excluded *excluded, const cuda_bf16 *x, int rows, int32_t *choice) {
    (void)l, (void)c, (void)x;
    choose_arguments a = {*excluded, head->out, rows, choice};
    fake_launch(run_choose_inside, &a, sizeof a);
}
