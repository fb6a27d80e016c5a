/* bf16 and f16 to float32 and back: the conversions that every kernel must agree with. */
#ifndef KAKEYA_BASE_FLOAT16_H
#define KAKEYA_BASE_FLOAT16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float bf16_to_f32(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Round to nearest, ties to even; NaN stays a (quiet) NaN. */
static inline uint16_t f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = (value >> 10) & 0x1fu;
    uint32_t mantissa = value & 0x3ffu;
    uint32_t bits;
    if (exponent == 0x1f) {
        bits = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else {
        /* subnormal: value = mantissa * 2^-24, exact in float */
        float scaled = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &scaled, sizeof bits);
        bits |= sign;
    }
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* A half with the value nearest to x, ties to even; what is too large becomes infinite. */
static inline uint16_t f32_to_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (magnitude < 0x38800000u) {                                   /* a multiple of 2^-24 */
        float small;
        memcpy(&small, &magnitude, sizeof small);
        return (uint16_t)(sign | (uint32_t)rintf(small * 0x1p24f));
    }
    uint32_t rounded = magnitude - 0x38000000u;
    rounded += 0xfffu + (rounded >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
}

#endif
