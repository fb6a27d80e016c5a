/* Counter-based random numbers: a value is a pure function of (seed, position), so that a token sampled at a position
 * does not depend on how many tokens were computed together, in which order, or on which thread. Philox-4x32 with 10
 * rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11). */
#ifndef KAKEYA_BASE_RANDOM_H
#define KAKEYA_BASE_RANDOM_H

#include <stdint.h>

void random_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) with 53 random bits. */
double random_uniform_at(uint64_t seed, uint64_t position);
/* The same where one position needs several numbers; number 0 is the one above. */
double random_uniform_numbered(uint64_t seed, uint64_t position, uint32_t number);
/* Of mean 0 and deviation 1, by numbers 0 and 1 of the position (Box and Muller). */
double random_normal_at(uint64_t seed, uint64_t position);

#endif
