/* A CUDA device without a device: its memory is the host's, and its kernels move tags instead of numbers. A row of K/V,
 * of latents or of the drafter's context is tagged with its position and token when it is written. Whoever attends
 * checks the position of every row that the rule lets it see, and mixes the tags into the row's logits. So logits
 * depend on exactly what a row has seen: a row that is stale, missing, overwritten or in the wrong store changes them,
 * or is reported at once. Tests of what sessions hold run on this wherever the backend is compiled; memory that is not
 * mapped faults, and a sanitizer sees the rest.
 *
 * What a captured step launches is recorded and runs when its graph does. There are two devices, each the thread that
 * works for it. */
#ifndef KAKEYA_TESTS_GPU_FAKE_DEVICE_H
#define KAKEYA_TESTS_GPU_FAKE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Runs a kernel, or records it while a step is captured. `arguments` are copied. */
void fake_launch(void (*run)(const void *arguments), const void *arguments, size_t bytes);
bool fake_capturing(void);
/* What the first rows of this thread's step are, and all that they have seen so far: the same on all devices. */
uint64_t fake_step_digest(int rows);
/* Products of prompts multiply numbers. Otherwise they do nothing, as nobody looks at them. */
extern bool fake_multiplies;
/* Of a vector of K or V in codes (cuda_kv_codes). */
size_t fake_vector_bytes(int codes, int head_dim);
/* Says what is wrong, and both values, and aborts. */
void fake_broken(const char *what, int a, int b);

#endif
