/* What devices that compute a model together tell each other: sums of partial results, and that all have come to a
 * place. Every device has an inbox in its own memory, and the others write to it through peer access.
 *
 * Sums are added in the order of the devices, so all get the same bits, however many rows there are. In a captured step
 * a kernel sends and waits (cuda_exchange_rows): a value travels with the number of its exchange beside it, eight bytes
 * at a time, so no fence is needed and nobody waits for more than the way. Elsewhere nothing may wait on the device:
 * the host enqueues a send, the others' streams wait for its event, and a kernel adds (cuda_send_rows, cuda_add_rows).
 */
#ifndef KAKEYA_BACKEND_CUDA_EXCHANGE_H
#define KAKEYA_BACKEND_CUDA_EXCHANGE_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CUDA_MAX_DEVICES = 8,
    CUDA_EXCHANGE_VECTORS = 2, /* sums of one exchange: dense and experts */
};

/* The memory that a device's inbox takes, for exchanges of up to so many rows of decode steps and of prompts. */
typedef struct cuda_inbox {
    size_t flagged, plain, meeting;  /* where the parts begin: values with numbers, values alone, numbers alone */
    size_t flagged_slot, plain_slot; /* bytes from one sender's place to the next */
    size_t bytes;
} cuda_inbox;
cuda_inbox cuda_inbox_layout(int devices, int hidden, int decode_rows, int prompt_rows);

typedef struct cuda_exchange {
    int index, devices;            /* this device among them */
    char *inbox[CUDA_MAX_DEVICES]; /* of every device */
    cuda_inbox layout;
    const uint32_t *before;            /* exchanges before this pass: its own are numbered behind them */
    int turn;                          /* of this one in the pass, from 0 on */
    const int *abandoned;              /* not 0: a device is lost, nobody waits any more */
    float *sum[CUDA_EXCHANGE_VECTORS]; /* [rows][hidden]: this device's part, then the sum; NULL: none */
    const float *experts; /* NULL, or [slots][hidden]: part 1 is the sum of a row's experts with their weights */
    int hidden;
} cuda_exchange;

/* Sends this device's parts and adds what the others send. */
void cuda_exchange_rows(const cuda_launch *l, const cuda_exchange *e, const cuda_route *route, int rows);
/* Waits until all devices are here: what they have written to each other before is there. */
void cuda_exchange_meet(const cuda_launch *l, const cuda_exchange *e);

/* The two halves of an exchange; between them streams wait for each other's sends. */
void cuda_send_rows(const cuda_launch *l, const cuda_exchange *e, const cuda_route *route, int rows);
void cuda_add_rows(const cuda_launch *l, const cuda_exchange *e, int rows);

#ifdef __cplusplus
}
#endif

#endif
