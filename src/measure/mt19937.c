#include "measure/mt19937.h"

/* Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998); seeding by array as in their 2002 revision, which
 * is what CPython uses for integer seeds of any size. */
enum { SHIFT_WORDS = 397 };
static const uint32_t upper_mask = 0x80000000u, lower_mask = 0x7fffffffu, twist = 0x9908b0dfu;

static void seed_by_word(mt19937 *generator, uint32_t word) {
    generator->state[0] = word;
    for (uint32_t i = 1; i < MT19937_WORDS; i++) {
        uint32_t previous = generator->state[i - 1];
        generator->state[i] = 1812433253u * (previous ^ (previous >> 30)) + i;
    }
}

void mt19937_seed(mt19937 *generator, uint64_t seed) {
    /* CPython hands over the seed's 32-bit words, least significant first, without leading zeros but at least one. */
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words = key[1] ? 2 : 1;

    seed_by_word(generator, 19650218u);
    uint32_t *state = generator->state;
    uint32_t i = 1, j = 0;
    for (int k = MT19937_WORDS; k; k--) {
        state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525u)) + key[j] + j;
        if (++i == MT19937_WORDS) {
            state[0] = state[MT19937_WORDS - 1];
            i = 1;
        }
        if (++j == words) j = 0;
    }
    for (int k = MT19937_WORDS - 1; k; k--) {
        state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941u)) - i;
        if (++i == MT19937_WORDS) {
            state[0] = state[MT19937_WORDS - 1];
            i = 1;
        }
    }
    state[0] = upper_mask;
    generator->next = MT19937_WORDS;
}

static void turn(uint32_t *state) {
    for (int i = 0; i < MT19937_WORDS; i++) {
        uint32_t y = (state[i] & upper_mask) | (state[(i + 1) % MT19937_WORDS] & lower_mask);
        state[i] = state[(i + SHIFT_WORDS) % MT19937_WORDS] ^ (y >> 1) ^ (y & 1u ? twist : 0u);
    }
}

uint32_t mt19937_next(mt19937 *generator) {
    if (generator->next >= MT19937_WORDS) {
        turn(generator->state);
        generator->next = 0;
    }
    uint32_t y = generator->state[generator->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint32_t mt19937_below(mt19937 *generator, uint32_t n) {
    int bits = 0;
    while (bits < 32 && n >> bits) bits++;
    for (;;) {
        uint32_t draw = mt19937_next(generator) >> (32 - bits);
        if (draw < n) return draw;
    }
}

int mt19937_between(mt19937 *generator, int low, int high) {
    return (int)(low + (int64_t)mt19937_below(generator, (uint32_t)((int64_t)high - low) + 1u));
}
