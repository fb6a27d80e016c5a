/* A row of latents: what f_theta's encoders give of one position, as a session keeps it. e_k, then e_v; one latent
 * alone where it is shared. A row depends on its own position and on nothing else.
 *
 *   f32, bf16   the values
 *   q8          a float32 scale, then a signed byte for each value: scale = largest magnitude / 127
 *   q4          for 32 values at a time a bf16 scale and 4 bits for each value (the even one in the lower half of a
 *               byte), less 8: scale = the value of the largest magnitude / -8. All scales come first
 *
 * A latent that holds what is no finite number gives scales that are none. */
#ifndef KAKEYA_BACKEND_LATENT_ROW_H
#define KAKEYA_BACKEND_LATENT_ROW_H

#include "backend/kv_format.h"
#include "model/restoration.h"

typedef enum latent_format { LATENT_F32 = 0, LATENT_BF16, LATENT_Q8, LATENT_Q4 } latent_format;

typedef struct latent_row {
    latent_format format;
    int rank_k, rank_v;
    bool shared;
    size_t values_at; /* bytes before e_v; 0 where the latent is shared */
    size_t bytes;     /* of the row */
} latent_row;

/* The rows of sessions that keep their K/V in `format`. f_theta NULL: a row of no bytes. */
latent_row latent_row_of(const restoration_config *restoration, kv_format format);

/* n values in the formats q8 and q4. */
void latent_encode(latent_format format, const float *x, int n, unsigned char *out);
void latent_decode(latent_format format, const unsigned char *from, int n, float *out);

#endif
