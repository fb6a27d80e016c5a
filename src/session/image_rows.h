/* Rows that pictures have become, kept for prompts that bring the same picture again: conversations send all their
 * pictures with every turn, and prompts of others need not begin alike. */
#ifndef KAKEYA_SESSION_IMAGE_ROWS_H
#define KAKEYA_SESSION_IMAGE_ROWS_H

#include "kakeya.h"
#include "media/digest.h"

typedef struct image_rows image_rows;

/* most: bytes of all rows. NULL: out of memory, or most is 0, and nothing is kept. */
image_rows *image_rows_open(size_t most);
void image_rows_close(image_rows *rows); /* NULL is fine, here and below */

/* The n floats of the picture of this digest. False: they are not there. */
bool image_rows_find(image_rows *rows, const unsigned char digest[IMAGE_DIGEST_BYTES], float *out, size_t n);
/* Keeps a copy, in place of those that were used least lately. Best effort. */
void image_rows_keep(image_rows *rows, const unsigned char digest[IMAGE_DIGEST_BYTES], const float *from, size_t n);
/* Adds what it knows to the counts: hits, entries and bytes. Any thread. */
void image_rows_count(image_rows *rows, kakeya_image_counts *out);

#endif
