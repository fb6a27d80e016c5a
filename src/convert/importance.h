/* How much the inputs of a matrix matter: for each weight column the mean square of the inputs that meet it, collected
 * over a text. Read from GGUF files as llama.cpp's llama-imatrix writes them: for each matrix NAME the sums
 * NAME.in_sum2 [experts][in] over NAME.counts [experts] rows. */
#ifndef KAKEYA_CONVERT_IMPORTANCE_H
#define KAKEYA_CONVERT_IMPORTANCE_H

#include "kakeya.h"

typedef struct importances importances;

/* Several files count as one of all their texts. KAKEYA_FORMAT for a file of another kind. */
kakeya_status importances_open(const char *const *paths, size_t n, importances **out, kakeya_error *error);
void importances_close(importances *set); /* NULL is fine */

/* Of the matrix that is called `name` in GGUF files, in *out [experts][in], the caller's to free; NULL where no file
 * has any of it. An expert that no row reached has 1 everywhere. KAKEYA_FORMAT where they are of another shape, or
 * are negative or no finite numbers. */
kakeya_status importances_find(const importances *set, const char *name, int experts, int in, float **out,
                               kakeya_error *error);

#endif
