// K/V in 4 bits, as backend/kv_q4.h says and backend/kv_q4.c computes: the same steps in the same order, so the same
// bytes. A vector's n values are groups of 16, group b every (n / 16)-th value from b on; sums of steps are exact in
// float32.

CONSTANT float q4_steps[16] = {-127, -106, -82, -64, -48, -34, -21, -9, 3, 14, 26, 38, 51, 66, 85, 111};
CONSTANT float q4_middles[16] = {0,  -116.5f, -94, -73, -56,   -41,   -27.5f, -15,
                                 -3, 8.5f,    20,  32,  44.5f, 58.5f, 75.5f,  98};
CONSTANT float q4_extremes[6] = {-134, -124, -114, 116, 105, 94};

// Sylvester's order.
INLINE void q4_transform(THREAD float *x) {
    for (int half_length = 1; half_length < 16; half_length *= 2) {
        for (int i = 0; i < 16; i += 2 * half_length) {
            for (int j = i; j < i + half_length; j++) {
                float sum = x[j] + x[j + half_length], difference = x[j] - x[j + half_length];
                x[j] = sum;
                x[j + half_length] = difference;
            }
        }
    }
}

INLINE int q4_code_of(float t) {
    int code = 0;
    for (int step = 8; step; step /= 2) code += t > q4_middles[code + step] ? step : 0;
    return code;
}

INLINE float q4_size(float x) { return AS_FLOAT(AS_UINT(x) & 0x7fffffffu); }

// The scale that leaves the least error among the ways to place a group's extreme value.
INLINE float q4_scale_of(const THREAD float *y) {
    float extreme = 0, best = -1, scale = 0;
    for (int a = 0; a < 16; a++) extreme = q4_size(y[a]) > q4_size(extreme) ? y[a] : extreme;
    for (int e = 0; e < 6; e++) {
        float inverse = q4_size(extreme) > AS_FLOAT(0x00800000u) ? q4_extremes[e] / extreme : 0.0f;
        float products = 0, squares = 0;
        for (int a = 0; a < 16; a++) {
            float value = q4_steps[q4_code_of(y[a] * inverse)];
            products += y[a] * value;
            squares += value * value;
        }
        float gain = products * products / squares;
        if (gain > best) {
            best = gain;
            scale = products / squares;
        }
    }
    return scale;
}

// Stores vectors: one simdgroup for one of them, a lane for each group, of which there are 32 at most. What is read
// back of `bytes` is `out` [vectors][dim]. Bound: next to nothing is read; 100 steps for each value.
// params: 0 dim, 1 bytes of a vector
INLINE void q4_rows(const DEVICE float *x, const DEVICE int *params, DEVICE uchar *bytes, DEVICE float *out,
                    SHARED float *shared, place here) {
    int n = params[0], groups = n / 16, codes_at = 4 + groups, lane = here.lane, finite = 1;
    bool mine = lane < groups;
    ulong first = (ulong)here.group_x * (ulong)n;
    DEVICE uchar *to = bytes + (ulong)here.group_x * (ulong)params[1];
    float y[16], largest = 0;
    for (int a = 0; a < 16; a++) {
        y[a] = mine ? x[first + (ulong)(a * groups + lane)] : 0.0f;
        if ((AS_UINT(y[a]) & 0x7fffffffu) >= 0x7f800000u) finite = 0;
        largest = finite ? MAX(largest, q4_size(y[a])) : 0.0f;
    }
    finite = LANES_LEAST(finite);
    largest = LANES_MAX(largest);
    bool there = finite && largest >= AS_FLOAT(0x0d800000u); // 2^-100
    // Near 1, so that squares are numbers: by 2^-exponent, in two steps that are normal numbers.
    int exponent = there ? (int)(AS_UINT(largest) >> 23) - 126 : 0, low = exponent / 2, high = exponent - low;
    float share = 0.0625f;
    for (int a = 0; a < 16; a++)
        y[a] = y[a] * AS_FLOAT((uint)(127 - low) << 23) * AS_FLOAT((uint)(127 - high) << 23) * share;
    q4_transform(y);
    float scale = there && mine ? q4_scale_of(y) : 0.0f;
    float nearest = LANES_MAX(q4_size(scale)) / 127.0f;
    float s = nearest * AS_FLOAT((uint)(127 + low) << 23) * AS_FLOAT((uint)(127 + high) << 23);
    s = MIN(s, AS_FLOAT(0x7f7fffffu) / 258064.0f); // what is finite stays finite
    if (!finite) s = AS_FLOAT(0x7fc00000u);
    float factor = nearest > 0 ? RINT(scale / nearest) : 0.0f;
    factor = MAX(-127.0f, MIN(127.0f, factor));
    float inverse = q4_size(factor) > 0 ? 1.0f / (nearest * factor) : 0.0f;
    int packed[3] = {0, 0, 0}; // of 24 bits, which are exact in a float
    for (int a = 0; a < 16; a++) {
        int code = there ? q4_code_of(y[a] * inverse) : 0;
        packed[a / 6] |= code << (4 * (a % 6));
        y[a] = q4_steps[code];
    }
    q4_transform(y);
    for (int i = 0; i < 3; i++) shared[3 * lane + i] = (float)packed[i];
    if (lane == 0) *(DEVICE float *)to = s;
    if (mine) to[4 + lane] = (uchar)((int)factor & 255);
    for (int a = 0; mine && a < 16; a++) out[first + (ulong)(a * groups + lane)] = y[a] * (s * factor);
    BARRIER();
    for (int at = lane; at < params[1] - codes_at; at += 32) {
        int begin = at / 16 * 32, both = MIN(n - begin, 32) / 2, low_at = begin + at % 16, byte = 0;
        for (int i = 0; i < 2 && at < n / 2; i++) {
            int value = low_at + i * both, a = value / groups;
            byte |= (((int)shared[3 * (value % groups) + a / 6] >> (4 * (a % 6))) & 15) << (4 * i);
        }
        to[codes_at + at] = (uchar)byte;
    }
}

// ------------------------------------------------------------------------------------------------------- reading

// Of each 32 values the first half lie in the lower halves of bytes, the others in the upper ones.
INLINE int q4_code_at(const DEVICE uchar *codes, int n, int i) {
    int begin = i / 32 * 32, bytes = (MIN(n - begin, 32) + 1) / 2, at = i - begin;
    int both = codes[begin / 2 + (at < bytes ? at : at - bytes)];
    return at < bytes ? both & 15 : both >> 4;
}

INLINE float q4_factor(const DEVICE uchar *stored, int group) {
    int factor = stored[4 + group];
    return *(const DEVICE float *)stored * (float)(factor < 128 ? factor : factor - 256);
}

// One value of a vector.
INLINE float q4_value(const DEVICE uchar *stored, int n, int i) {
    int together = MIN(n & -n, 16), groups = n / together, a = i / groups, b = i % groups;
    float sum = 0;
    for (int k = 0; k < together; k++) {
        int signs = a & k;
        signs ^= signs >> 2;
        signs ^= signs >> 1;
        float step = q4_steps[q4_code_at(stored + 4 + groups, n, k * groups + b)];
        sum = signs & 1 ? sum - step : sum + step;
    }
    return sum * q4_factor(stored, b);
}

// Values l, l + 32, ... of 512 are a group: lane l has them all.
INLINE void q4_group(const DEVICE uchar *stored, int lane, THREAD float *to) {
    for (int a = 0; a < 16; a++) {
        int both = stored[4 + 32 + 16 * a + lane % 16];
        to[a] = q4_steps[lane < 16 ? both & 15 : both >> 4];
    }
    q4_transform(to);
    float factor = q4_factor(stored, lane);
    for (int a = 0; a < 16; a++) to[a] = to[a] * factor;
}
