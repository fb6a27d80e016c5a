/* The Mersenne Twister as CPython seeds and draws from it, so that a data set made from a seed here is the data set
 * that Python's random.Random(seed) makes. Used for evaluation data only; sampling has its own generator (decode/). */
#ifndef KAKEYA_MEASURE_MT19937_H
#define KAKEYA_MEASURE_MT19937_H

#include <stdint.h>

enum { MT19937_WORDS = 624 };

typedef struct mt19937 {
    uint32_t state[MT19937_WORDS];
    int next; /* index of the next word to temper; MT19937_WORDS: the state must be turned first */
} mt19937;

/* random.Random(seed) */
void mt19937_seed(mt19937 *generator, uint64_t seed);
/* getrandbits(32) */
uint32_t mt19937_next(mt19937 *generator);
/* Random._randbelow(n): getrandbits(n.bit_length()) until the draw is below n. n in 1..2^32 - 1. */
uint32_t mt19937_below(mt19937 *generator, uint32_t n);
/* randint(low, high), both ends included; low <= high. */
int mt19937_between(mt19937 *generator, int low, int high);

#endif
