/* Numbers rounded to e4m3, the definition: of a row one scale, of a value a code. Needs no device.
 *
 * The scale is the least power of two s with max |x| <= 448 s, not below 2^-100, and a code is x / s, which is exact,
 * rounded to the nearest e4m3, ties to even. A row of zeros has the scale 1. A row in which a value is no number or
 * infinite has a scale that is no number, and so have all of its products. */
#ifndef KAKEYA_BACKEND_CUDA_F8_CODE_H
#define KAKEYA_BACKEND_CUDA_F8_CODE_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define F8_INLINE static __host__ __device__ __forceinline__
#else
#define F8_INLINE static inline
#endif

/* Of the largest magnitude in bf16, its bits without the sign: the scale, as the bits of a float32. */
F8_INLINE uint32_t f8_scale_bits(uint32_t largest) {
    enum { BIAS = 127, LEAST = -100, NOT_A_NUMBER = 0x7fc00000 };
    if (largest >= 0x7f80u) return NOT_A_NUMBER;
    if (largest == 0) return (uint32_t)BIAS << 23;
    /* 448 is 1.75 2^8: a mantissa of up to 0.75, 96 of 128, takes 8 from the exponent, a larger one 7. */
    int power = (int)(largest >> 7) - BIAS - ((largest & 127u) <= 96u ? 8 : 7);
    return (uint32_t)((power < LEAST ? LEAST : power) + BIAS) << 23;
}

/* Bits of the scale's reciprocal, a power of two as well. */
F8_INLINE uint32_t f8_inverse_bits(uint32_t scale) { return scale >= 0x7f800000u ? scale : (254u << 23) - scale; }

/* The code of a number of magnitude up to 448: what the device's conversion gives. */
F8_INLINE unsigned char f8_code(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x3c800000u) { /* below 2^-6: steps of 2^-9, by an addition that rounds there */
        float shifted, offset = 0x1p14f;
        memcpy(&shifted, &magnitude, sizeof shifted);
        shifted += offset;
        memcpy(&magnitude, &shifted, sizeof magnitude);
        return (unsigned char)(sign | (magnitude & 15u));
    }
    magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
    return (unsigned char)(sign | ((magnitude >> 20) - (120u << 3)));
}

#endif
