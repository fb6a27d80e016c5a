#include "base/random.h"

#include <math.h>

enum { ROUNDS = 10 };

static const uint32_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u;
/* Key schedule: the golden ratio and sqrt(3) - 1 as 0.32 fixed point. */
static const uint32_t weyl_0 = 0x9E3779B9u, weyl_1 = 0xBB67AE85u;

void random_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product_0 = (uint64_t)multiplier_0 * c0;
        uint64_t product_1 = (uint64_t)multiplier_1 * c2;
        c0 = (uint32_t)(product_1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product_1;
        c2 = (uint32_t)(product_0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product_0;
        k0 += weyl_0;
        k1 += weyl_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double random_uniform_numbered(uint64_t seed, uint64_t position, uint32_t number) {
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), number, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4];
    random_philox4x32(counter, key, words);
    uint64_t bits = ((uint64_t)words[1] << 32) | words[0];
    return (double)(bits >> 11) * 0x1p-53;
}

double random_uniform_at(uint64_t seed, uint64_t position) { return random_uniform_numbered(seed, position, 0); }

double random_normal_at(uint64_t seed, uint64_t position) {
    double u = random_uniform_numbered(seed, position, 0), v = random_uniform_numbered(seed, position, 1);
    return sqrt(-2 * log(1 - u)) * cos(2 * acos(-1.0) * v);
}
