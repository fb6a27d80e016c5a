/* Weights under a limit: what every token needs lies on the device as without one, routed experts in page-locked memory
 * of the host, and what is left of the limit is the arena of their cache (expert_cache.h). Layers whose experts take as
 * many bytes as each other share an arena. Products are those of weights that are all there, and so are their bits. */
#ifndef KAKEYA_BACKEND_CUDA_BOUNDED_H
#define KAKEYA_BACKEND_CUDA_BOUNDED_H

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/expert_cache.h"

typedef struct cuda_bounded cuda_bounded;

/* The experts of a layer, whose shapes are known. */
typedef struct cuda_bounded_layer {
    cuda_matrix *gate_up, *down;
} cuda_bounded_layer;

/* Of the model in `options`, whose layers are `layers`. held: bytes that other weights will take; host_bytes: those of
 * all experts, places included. KAKEYA_INVALID_ARGUMENT names what is needed where the limit is too small. On failure
 * cuda_bounded_destroy is still needed. */
kakeya_status cuda_bounded_create(cuda_bounded **out, const cuda_device *device, const cuda_launch *launch,
                                  const backend_model_options *options, const cuda_bounded_layer *layers, size_t held,
                                  size_t host_bytes, kakeya_error *error);
void cuda_bounded_destroy(cuda_bounded *b); /* NULL is fine */

/* The experts of one of the layers' matrices are to lie at this byte of the host's memory: points the matrix to its
 * arena, and returns the place. */
void *cuda_bounded_place(cuda_bounded *b, const cuda_matrix *experts, size_t offset);

/* Bytes of one of the layer's experts in the arena. */
size_t cuda_bounded_expert_bytes(const cuda_bounded_layer *layer, int experts);
/* NULL: all zeros. */
void cuda_bounded_state(const cuda_bounded *b, backend_weights *out);

/* The experts' page-locked memory. */
typedef struct cuda_bounded_host {
    const unsigned char *data;
    size_t bytes;
} cuda_bounded_host;
cuda_bounded_host cuda_bounded_memory(const cuda_bounded *b);

/* Does it pay for decode passes of up to CUDA_DECODE_ROWS rows to go on beside copies? */
bool cuda_bounded_beside(const cuda_bounded *b);
/* Brings the experts that a layer's rows have chosen. o NULL: all is there for what follows in l's stream. Otherwise
 * `down` is there after cuda_bounded_join, and o is what the next layer's router is asked (with the last layer nobody
 * is asked); where cuda_bounded_beside says so. */
cudaError_t cuda_bounded_fetch(const cuda_bounded *b, const cuda_launch *l, const cuda_route *route, int layer,
                               bool prompt, int rows, const cuda_expert_outlook *o);
/* Behind a fetch with an outlook: a stream for what needs the layer's inputs but no experts. */
cudaError_t cuda_bounded_fork(const cuda_bounded *b, const cuda_launch *l, cuda_launch *out);
/* l's stream waits for that, and for `down`. */
cudaError_t cuda_bounded_join(const cuda_bounded *b, const cuda_launch *l);

#endif
