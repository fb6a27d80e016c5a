/* Rows of prompts that stand in the place of tokens' embeddings: those that pictures have become. */
#ifndef KAKEYA_BACKEND_CUDA_GIVEN_H
#define KAKEYA_BACKEND_CUDA_GIVEN_H

#include "backend/cuda/pass.h"

/* The tokens of a prompt pass on their way to the device, pads in the place of given rows; and, where rows of a picture
 * see each other, what each row sees. */
void cuda_given_stage(cuda_pass *p);
/* Behind the embedding: given rows into the residual stream, and their norms into the first layer's input. */
void cuda_given_place(cuda_pass *p);
/* The rows of a segment from `first` on that see alike: up to the end of a picture whose rows see each other
 * (*both_ways), or up to the next such picture. Returns how many. */
int cuda_given_stretch(const backend_segment *r, int first, bool *both_ways);

#endif
