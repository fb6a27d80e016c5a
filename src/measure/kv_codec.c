#include "measure/kv_codec.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/kv_format.h"
#include "backend/kv_q4.h"
#include "base/float16.h"

enum { AFFINE_GROUP = 64, LATTICE_MAX = 8 };

struct kv_codec {
    const char *name;
    size_t (*bytes)(const kv_codec *codec, int n);
    void (*store)(const kv_codec *codec, const float *x, int n, unsigned char *out);
    void (*load)(const kv_codec *codec, const unsigned char *from, int n, float *out);
    int parameter;    /* bits of a code, or Q */
    int block;        /* values of a lattice's block; 0: no lattice */
    bool transformed; /* by a Hadamard matrix */
};

static bool all_finite(const float *x, int n) {
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static float largest_of(const float *x, int n) {
    float largest = 0;
    for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

/* ---------------------------------------------------------------------------------------------- floating point */

static size_t identity_bytes(const kv_codec *c, int n) {
    (void)c;
    return (size_t)n * sizeof(float);
}
static void identity_store(const kv_codec *c, const float *x, int n, unsigned char *out) {
    memcpy(out, x, identity_bytes(c, n));
}
static void identity_load(const kv_codec *c, const unsigned char *from, int n, float *out) {
    memcpy(out, from, identity_bytes(c, n));
}

static size_t bf16_bytes(const kv_codec *c, int n) {
    (void)c;
    return kv_format_row_bytes(KV_FORMAT_BF16, 1, (size_t)n);
}
static void bf16_store(const kv_codec *c, const float *x, int n, unsigned char *out) {
    (void)c;
    for (int i = 0; i < n; i++) {
        uint16_t value = f32_to_bf16(x[i]);
        memcpy(out + (size_t)i * sizeof value, &value, sizeof value);
    }
}
static void bf16_load(const kv_codec *c, const unsigned char *from, int n, float *out) {
    (void)c;
    for (int i = 0; i < n; i++) {
        uint16_t value;
        memcpy(&value, from + (size_t)i * sizeof value, sizeof value);
        out[i] = bf16_to_f32(value);
    }
}

enum { E4M3_LARGEST_CODE = 126 }; /* 448; 127 is NaN */

static float e4m3_value(int code) {
    int exponent = code >> 3, mantissa = code & 7;
    return exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
}

/* The nearest magnitude, the even code on ties. */
static int e4m3_code(float magnitude) {
    int low = 0, high = E4M3_LARGEST_CODE;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (e4m3_value(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    float below = magnitude - e4m3_value(low), above = e4m3_value(high) - magnitude;
    if (below < above) return low;
    if (above < below) return high;
    return low % 2 ? high : low;
}

static size_t fp8_bytes(const kv_codec *c, int n) {
    (void)c;
    return sizeof(float) + (size_t)n;
}
static void fp8_store(const kv_codec *c, const float *x, int n, unsigned char *out) {
    (void)c;
    float scale = all_finite(x, n) ? largest_of(x, n) / e4m3_value(E4M3_LARGEST_CODE) : NAN;
    memcpy(out, &scale, sizeof scale);
    for (int i = 0; i < n; i++) {
        int code = scale > 0 ? e4m3_code(fabsf(x[i]) / scale) : 0;
        out[sizeof scale + (size_t)i] = (unsigned char)(code | (signbit(x[i]) ? 0x80 : 0));
    }
}
static void fp8_load(const kv_codec *c, const unsigned char *from, int n, float *out) {
    (void)c;
    float scale;
    memcpy(&scale, from, sizeof scale);
    for (int i = 0; i < n; i++) {
        int code = from[sizeof scale + (size_t)i];
        out[i] = scale * (code & 0x80 ? -e4m3_value(code & 0x7f) : e4m3_value(code & 0x7f));
    }
}

/* ------------------------------------------------------------------------------------------------------- codes */

static size_t q8_bytes(const kv_codec *c, int n) {
    (void)c;
    return kv_format_row_bytes(KV_FORMAT_Q8, 1, (size_t)n);
}
static void q8_store(const kv_codec *c, const float *x, int n, unsigned char *out) {
    (void)c;
    kv_q8_store(x, n, out);
}
static void q8_load(const kv_codec *c, const unsigned char *from, int n, float *out) {
    (void)c;
    kv_q8_load(from, n, out);
}

static size_t group_bytes(const kv_codec *c, int n) {
    return 2 * sizeof(uint16_t) + ((size_t)n * (size_t)c->parameter + 7) / 8;
}

static size_t affine_bytes(const kv_codec *c, int n) {
    size_t bytes = 0;
    for (int i = 0; i < n; i += AFFINE_GROUP) bytes += group_bytes(c, n - i < AFFINE_GROUP ? n - i : AFFINE_GROUP);
    return bytes;
}

static void affine_store(const kv_codec *c, const float *x, int n, unsigned char *out) {
    const int most = (1 << c->parameter) - 1;
    for (int begin = 0; begin < n; begin += AFFINE_GROUP) {
        int values = n - begin < AFFINE_GROUP ? n - begin : AFFINE_GROUP;
        float least = x[begin], largest = x[begin];
        for (int i = begin; i < begin + values; i++) {
            least = fminf(least, x[i]);
            largest = fmaxf(largest, x[i]);
        }
        bool finite = all_finite(x + begin, values);
        uint16_t stored[2] = {f32_to_f16(finite ? (largest - least) / (float)most : NAN), f32_to_f16(least)};
        float scale = f16_to_f32(stored[0]), bias = f16_to_f32(stored[1]);
        memcpy(out, stored, sizeof stored);
        unsigned char *codes = out + sizeof stored;
        out += group_bytes(c, values);
        memset(codes, 0, (size_t)(out - codes));
        for (int i = 0; i < values; i++) {
            float code = scale > 0 && isfinite(scale) ? rintf((x[begin + i] - bias) / scale) : 0;
            unsigned bits = (unsigned)(code < 0 ? 0 : code > (float)most ? (float)most : code);
            codes[i * c->parameter / 8] |= (unsigned char)(bits << (i * c->parameter % 8));
        }
    }
}

static void affine_load(const kv_codec *c, const unsigned char *from, int n, float *out) {
    const unsigned most = (1u << c->parameter) - 1;
    for (int begin = 0; begin < n; begin += AFFINE_GROUP) {
        int values = n - begin < AFFINE_GROUP ? n - begin : AFFINE_GROUP;
        uint16_t stored[2];
        memcpy(stored, from, sizeof stored);
        float scale = f16_to_f32(stored[0]), bias = f16_to_f32(stored[1]);
        const unsigned char *codes = from + sizeof stored;
        for (int i = 0; i < values; i++) {
            unsigned code = ((unsigned)codes[i * c->parameter / 8] >> (i * c->parameter % 8)) & most;
            out[begin + i] = scale * (float)code + bias;
        }
        from += group_bytes(c, values);
    }
}

/* --------------------------------------------------------------------------------------------------- Hadamard */

/* x [n] = H x, with H symmetric, orthonormal and its own inverse; n is a power of two. */
static void hadamard(float *x, int n) {
    for (int half = 1; half < n; half *= 2) {
        for (int i = 0; i < n; i += 2 * half) {
            for (int j = i; j < i + half; j++) {
                float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
        }
    }
    float scale = 1.0f / sqrtf((float)n);
    for (int i = 0; i < n; i++) x[i] *= scale;
}

static size_t q4_bytes(const kv_codec *c, int n) {
    (void)c;
    return kv_q4_bytes(n);
}
static void q4_store(const kv_codec *c, const float *x, int n, unsigned char *out) {
    (void)c;
    kv_q4_store(x, n, out);
}
static void q4_load(const kv_codec *c, const unsigned char *from, int n, float *out) {
    (void)c;
    kv_q4_load(from, n, out);
}

/* --------------------------------------------------------------------------------------------------- lattices */

typedef __uint128_t wide;

/* Points of D_n (integers with an even sum) whose coordinates have `width` values each: the last one is known but for
 * half of its values. */
static wide points_of(int n, int width) {
    wide points = (wide)(unsigned)((width + 1) / 2);
    for (int i = 1; i < n; i++) points *= (wide)(unsigned)width;
    return points;
}

/* D4: [-Q, Q]. E8 besides: D8 shifted by a half, integers in [-Q, Q - 1] before the shift. */
static wide points_in_all(const kv_codec *c) {
    wide points = points_of(c->block, 2 * c->parameter + 1);
    return c->block == LATTICE_MAX ? points + points_of(c->block, 2 * c->parameter) : points;
}

static int bits_of(const kv_codec *c) {
    int bits = 0;
    for (wide most = points_in_all(c) - 1; most; most >>= 1) bits++;
    return bits;
}

/* The nearest point of D_n to z within [low, high], as the squared distance. Another parity costs least where the
 * second-best neighbour is nearest. */
static float nearest(const float *z, int n, int low, int high, int *point) {
    float distance = 0, least = INFINITY;
    int sum = 0, flipped = 0, flip = 0;
    for (int i = 0; i < n; i++) {
        float rounded = rintf(z[i]);
        int best = rounded < (float)low ? low : rounded > (float)high ? high : (int)rounded;
        int other = z[i] >= (float)best ? best + 1 : best - 1;
        if (other < low || other > high) other = 2 * best - other;
        float own = (z[i] - (float)best) * (z[i] - (float)best), its = (z[i] - (float)other) * (z[i] - (float)other);
        point[i] = best;
        sum += best;
        distance += own;
        if (its - own < least) {
            least = its - own;
            flipped = i;
            flip = other;
        }
    }
    if (sum % 2 == 0) return distance;
    point[flipped] = flip;
    return distance + least;
}

static wide number_of(const int *point, int n, int low, int width) {
    wide number = 0;
    for (int i = 0; i + 1 < n; i++) number = number * (wide)(unsigned)width + (wide)(unsigned)(point[i] - low);
    return number * (wide)(unsigned)((width + 1) / 2) + (wide)(unsigned)((point[n - 1] - low) / 2);
}

static void point_of(wide number, int n, int low, int width, int *point) {
    wide last = (wide)(unsigned)((width + 1) / 2);
    int half = (int)(number % last), sum = 0;
    number /= last;
    for (int i = n - 2; i >= 0; i--) {
        point[i] = (int)(number % (wide)(unsigned)width) + low;
        number /= (wide)(unsigned)width;
        sum += point[i];
    }
    /* 2 half or 2 half + 1 from the lowest: the one that makes the sum even. */
    int value = 2 * half + low;
    point[n - 1] = (value + sum) % 2 ? value + 1 : value;
}

/* Bits [at, at + n) of an array that is zero. */
static void put_bits(unsigned char *out, size_t at, wide value, int n) {
    for (int i = 0; i < n; i++, at++, value >>= 1)
        if (value & 1) out[at / 8] |= (unsigned char)(1u << (at % 8));
}

static wide get_bits(const unsigned char *from, size_t at, int n) {
    wide value = 0;
    for (int i = n - 1; i >= 0; i--)
        value = value << 1 | (wide)(from[(at + (size_t)i) / 8] >> ((at + (size_t)i) % 8) & 1);
    return value;
}

static size_t lattice_bytes(const kv_codec *c, int n) {
    return sizeof(float) + ((size_t)(n / c->block) * (size_t)bits_of(c) + 7) / 8;
}

static wide nearest_number(const kv_codec *c, const float *z) {
    int q = c->parameter, point[LATTICE_MAX], shifted[LATTICE_MAX];
    float distance = nearest(z, c->block, -q, q, point);
    if (c->block == LATTICE_MAX) {
        float y[LATTICE_MAX];
        for (int i = 0; i < LATTICE_MAX; i++) y[i] = z[i] - 0.5f;
        if (nearest(y, c->block, -q, q - 1, shifted) < distance)
            return points_of(c->block, 2 * q + 1) + number_of(shifted, c->block, -q, 2 * q);
    }
    return number_of(point, c->block, -q, 2 * q + 1);
}

static void lattice_store(const kv_codec *c, const float *x, int n, unsigned char *out) {
    float y[KV_CODEC_MAX_VALUES];
    bool finite = all_finite(x, n);
    memset(out, 0, lattice_bytes(c, n));
    memcpy(y, x, (size_t)n * sizeof *y);
    hadamard(y, n);
    float largest = largest_of(y, n), scale = largest / (float)c->parameter;
    if (largest / scale > (float)c->parameter) scale = nextafterf(scale, INFINITY);
    if (!finite || !all_finite(y, n)) scale = NAN;
    if (!(largest >= FLT_MIN)) scale = isnan(scale) && !finite ? scale : 0;
    memcpy(out, &scale, sizeof scale);
    int bits = bits_of(c);
    for (int i = 0; i < n; i += c->block) {
        float z[LATTICE_MAX] = {0};
        for (int j = 0; j < c->block && scale > 0; j++) z[j] = y[i + j] / scale;
        put_bits(out + sizeof scale, (size_t)(i / c->block) * (size_t)bits, nearest_number(c, z), bits);
    }
}

static void lattice_load(const kv_codec *c, const unsigned char *from, int n, float *out) {
    float scale;
    memcpy(&scale, from, sizeof scale);
    int bits = bits_of(c), q = c->parameter, point[LATTICE_MAX];
    wide first = points_of(c->block, 2 * q + 1);
    for (int i = 0; i < n; i += c->block) {
        wide number = get_bits(from + sizeof scale, (size_t)(i / c->block) * (size_t)bits, bits);
        bool shifted = number >= first;
        point_of(shifted ? number - first : number, c->block, -q, shifted ? 2 * q : 2 * q + 1, point);
        for (int j = 0; j < c->block; j++) out[i + j] = scale * ((float)point[j] + (shifted ? 0.5f : 0.0f));
    }
    hadamard(out, n);
}

/* ------------------------------------------------------------------------------------------------------ table */

#define LATTICE(name_, block_, q_)                                                                                     \
    {                                                                                                                  \
        .name = name_, .bytes = lattice_bytes, .store = lattice_store, .load = lattice_load, .parameter = (q_),        \
        .block = (block_), .transformed = true                                                                         \
    }

static const kv_codec codecs[KV_CODECS] = {
    {.name = "identity", .bytes = identity_bytes, .store = identity_store, .load = identity_load},
    {.name = "bf16", .bytes = bf16_bytes, .store = bf16_store, .load = bf16_load},
    {.name = "fp8", .bytes = fp8_bytes, .store = fp8_store, .load = fp8_load},
    {.name = "q8", .bytes = q8_bytes, .store = q8_store, .load = q8_load},
    {.name = "affine8", .bytes = affine_bytes, .store = affine_store, .load = affine_load, .parameter = 8},
    {.name = "affine4", .bytes = affine_bytes, .store = affine_store, .load = affine_load, .parameter = 4},
    {.name = "q4", .bytes = q4_bytes, .store = q4_store, .load = q4_load, .transformed = true},
    LATTICE("d4-10", 4, 10),
    LATTICE("d4-38", 4, 38),
    LATTICE("d4-152", 4, 152),
    LATTICE("e8-9", 8, 9),
    LATTICE("e8-38", 8, 38),
    LATTICE("e8-151", 8, 151),
};

const kv_codec *kv_codec_at(int index) { return index >= 0 && index < KV_CODECS ? &codecs[index] : NULL; }

const kv_codec *kv_codec_find(const char *name) {
    for (int i = 0; i < KV_CODECS; i++)
        if (strcmp(codecs[i].name, name) == 0) return &codecs[i];
    return NULL;
}

const char *kv_codec_name(const kv_codec *codec) { return codec->name; }
bool kv_codec_is_lattice(const kv_codec *codec) { return codec->block != 0; }

bool kv_codec_takes(const kv_codec *codec, int n) {
    return n >= LATTICE_MAX && n <= KV_CODEC_MAX_VALUES && n % LATTICE_MAX == 0 &&
           (!codec->transformed || (n & (n - 1)) == 0);
}

size_t kv_codec_bytes(const kv_codec *codec, int n) { return codec->bytes(codec, n); }

void kv_codec_store(const kv_codec *codec, const float *x, int n, unsigned char *out) {
    codec->store(codec, x, n, out);
}

void kv_codec_load(const kv_codec *codec, const unsigned char *from, int n, float *out) {
    codec->load(codec, from, n, out);
}
