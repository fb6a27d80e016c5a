// The threads of a Metal threadgroup as fibers of one thread: they run one after the other, and change where lanes
// meet. A meeting of a simdgroup adds as a butterfly does, so that every lane has the same bits.
#ifndef KAKEYA_TESTS_MLX_FIBERS_HPP
#define KAKEYA_TESTS_MLX_FIBERS_HPP

#include <functional>

namespace fibers {

enum { LANES = 32, MOST_SIMDGROUPS = 32 };

// Runs body(simdgroup, lane) in every thread of one threadgroup.
void run(int simdgroups, const std::function<void(int simdgroup, int lane)> &body);

// Where all lanes of a simdgroup arrive: each value becomes the sum, the largest or the least of all lanes' ones.
void sum(float *values, int n);
float largest(float value);
int least(int value);
// Where all threads of the threadgroup arrive.
void barrier();

} // namespace fibers

#endif
