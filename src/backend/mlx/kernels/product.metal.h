// Products with rows of weights, as they are on disk (one text for Metal and for C++: shim.metal.h).
//
// Bound: the bytes of the codes, their scales and biases, read once for all rows. A simdgroup computes OUTPUTS outputs
// of all rows. K is divided by lane alone: a lane takes 8 values of every 256, ascending, and the lanes meet once at
// the end. So what is computed for a row and an output is the same for any number of rows, and ROWS is nothing but how
// many sums are kept side by side.

// FORMAT: bits of an affine code, or one of these.
#define FORMAT_BF16  16
#define FORMAT_F32   32
#define FORMAT_MXFP4 104
#define FORMAT_MXFP8 108
#define FORMAT_NVFP4 204

INLINE float round_to_bf16(float x) {
    uint bits = AS_UINT(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return AS_FLOAT((bits & 0xffff0000u) | 0x00400000u); // not a number
    return AS_FLOAT((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

INLINE float float_of_bf16(uint bits) { return AS_FLOAT(bits << 16); }

INLINE float float_of_fp4(uint code) {
    uint e = (code >> 1) & 3u, m = code & 1u;
    float magnitude = e ? AS_FLOAT(((e + 126u) << 23) | (m << 22)) : (m ? 0.5f : 0.0f);
    return code & 8u ? -magnitude : magnitude;
}

INLINE float float_of_fp8(uint code) {
    uint e = (code >> 3) & 15u, m = code & 7u;
    float magnitude = e ? AS_FLOAT(((e + 120u) << 23) | (m << 20)) : (float)m * 0.001953125f;
    if ((code & 127u) == 127u) magnitude = AS_FLOAT(0x7fc00000u);
    return code & 128u ? -magnitude : magnitude;
}

// 2^(code - 127)
INLINE float float_of_e8m0(uint code) { return AS_FLOAT(code == 255u ? 0x7fc00000u : code ? code << 23 : 0x00400000u); }

template <int FORMAT> INLINE int bits_of() { return FORMAT % 100; }

// Values 8 * chunk to 8 * chunk + 7 of a row, without scale.
template <int FORMAT> INLINE void load_8(const DEVICE uchar *row, int chunk, THREAD float *to) {
    if (FORMAT == FORMAT_F32) {
        const DEVICE float *from = (const DEVICE float *)row + 8 * chunk;
        for (int i = 0; i < 8; i++) to[i] = from[i];
    } else if (FORMAT == FORMAT_BF16) {
        const DEVICE uint *from = (const DEVICE uint *)row + 4 * chunk;
        for (int i = 0; i < 4; i++) {
            uint two = from[i];
            to[2 * i] = AS_FLOAT(two << 16);
            to[2 * i + 1] = AS_FLOAT(two & 0xffff0000u);
        }
    } else if (FORMAT == 4 || FORMAT == FORMAT_MXFP4 || FORMAT == FORMAT_NVFP4) {
        uint codes = ((const DEVICE uint *)row)[chunk];
        for (int i = 0; i < 8; i++) {
            uint code = (codes >> (4 * i)) & 15u;
            to[i] = FORMAT == 4 ? (float)code : float_of_fp4(code);
        }
    } else if (FORMAT == 8 || FORMAT == FORMAT_MXFP8) {
        const DEVICE uint *from = (const DEVICE uint *)row + 2 * chunk;
        for (int i = 0; i < 8; i++) {
            uint code = (from[i / 4] >> (8 * (i % 4))) & 255u;
            to[i] = FORMAT == 8 ? (float)code : float_of_fp8(code);
        }
    } else { // 8 codes of b bits are b bytes
        const DEVICE uchar *from = row + FORMAT * chunk;
        ulong codes = 0;
        for (int i = 0; i < FORMAT; i++) codes |= (ulong)from[i] << (8 * i);
        for (int i = 0; i < 8; i++) to[i] = (float)(uint)((codes >> (FORMAT * i)) & (ulong)((1 << FORMAT) - 1));
    }
}

// A matrix [outputs][k]: affine scales and biases are float32, those of mxfp4 and mxfp8 are exponents, those
// of nvfp4 floats of 8 bits.
struct weight_rows {
    const DEVICE uchar *codes;
    const DEVICE uchar *scales;
    const DEVICE float *biases;
    int k, group, round; // round: inputs are rounded to bf16
};

// What this lane has of sums[o * ROWS + r] = w[output[o]] . x[row[r]].
template <int FORMAT, int ROWS, int OUTPUTS>
INLINE void add_products(weight_rows w, const THREAD ulong *output, const DEVICE float *x, const THREAD int *row,
                         int lane, THREAD float *sums) {
    ulong row_bytes = (ulong)w.k * (ulong)bits_of<FORMAT>() / 8;
    bool scaled = FORMAT != FORMAT_F32 && FORMAT != FORMAT_BF16;
    ulong groups = scaled ? (ulong)(w.k / w.group) : 0;
    for (int i = 0; i < OUTPUTS * ROWS; i++) sums[i] = 0;
    for (int chunk = lane; chunk < w.k / 8; chunk += 32) {
        float q[OUTPUTS * 8];
        float scale[OUTPUTS], bias[OUTPUTS];
        for (int o = 0; o < OUTPUTS; o++) {
            load_8<FORMAT>(w.codes + output[o] * row_bytes, chunk, q + 8 * o);
            scale[o] = 1;
            bias[o] = 0;
            if (scaled) {
                ulong at = output[o] * groups + (ulong)(8 * chunk / w.group);
                if (FORMAT == FORMAT_NVFP4) {
                    scale[o] = float_of_fp8(w.scales[at]);
                } else if (FORMAT > 100) {
                    scale[o] = float_of_e8m0(w.scales[at]);
                } else {
                    scale[o] = ((const DEVICE float *)w.scales)[at];
                    bias[o] = w.biases[at];
                }
            }
        }
        for (int r = 0; r < ROWS; r++) {
            const DEVICE float *from = x + (ulong)row[r] * (ulong)w.k + 8 * chunk;
            float v[8];
            float all = 0;
            for (int i = 0; i < 8; i++) v[i] = w.round ? round_to_bf16(from[i]) : from[i];
            for (int i = 0; i < 8; i++) all += v[i];
            for (int o = 0; o < OUTPUTS; o++) {
                float sum = scaled ? 0.0f : sums[o * ROWS + r];
                for (int i = 0; i < 8; i++) sum = FMA(q[8 * o + i], v[i], sum);
                if (scaled) sum = FMA(scale[o], sum, sums[o * ROWS + r]);
                if (scaled && FORMAT < 100) sum = FMA(bias[o], all, sum);
                sums[o * ROWS + r] = sum;
            }
        }
    }
}

// Up to three matrices with the same inputs, in one launch: out [rows][outputs of all, one behind the other].
// params: 0 k, 1 group, 2 rows, 3 round, 4 softcap (bits of a float; 0: none), 5 to 7 outputs of each matrix
template <int FORMAT, int ROWS, int OUTPUTS>
INLINE void rows_product(const DEVICE float *x, const DEVICE uchar *codes_0, const DEVICE uchar *scales_0,
                         const DEVICE float *biases_0, const DEVICE uchar *codes_1, const DEVICE uchar *scales_1,
                         const DEVICE float *biases_1, const DEVICE uchar *codes_2, const DEVICE uchar *scales_2,
                         const DEVICE float *biases_2, const DEVICE int *params, DEVICE float *out, place here) {
    int rows = params[2], total = params[5] + params[6] + params[7], first = 0, matrix = 0;
    // Tiles of outputs do not cross from one matrix into the next.
    int tile = here.group_x * here.simdgroups + here.simdgroup;
    for (; matrix < 2; matrix++) {
        int tiles = (params[5 + matrix] + OUTPUTS - 1) / OUTPUTS;
        if (tile < tiles) break;
        tile -= tiles;
        first += params[5 + matrix];
    }
    int outputs = params[5 + matrix];
    if (tile * OUTPUTS >= outputs) return; // a whole simdgroup
    weight_rows w;
    w.codes = matrix == 0 ? codes_0 : matrix == 1 ? codes_1 : codes_2;
    w.scales = matrix == 0 ? scales_0 : matrix == 1 ? scales_1 : scales_2;
    w.biases = matrix == 0 ? biases_0 : matrix == 1 ? biases_1 : biases_2;
    w.k = params[0];
    w.group = params[1];
    w.round = params[3];
    ulong output[OUTPUTS];
    int row[ROWS];
    float sums[OUTPUTS * ROWS];
    for (int o = 0; o < OUTPUTS; o++) output[o] = (ulong)MIN(tile * OUTPUTS + o, outputs - 1);
    for (int r = 0; r < ROWS; r++) row[r] = MIN(r, rows - 1);
    add_products<FORMAT, ROWS, OUTPUTS>(w, output, x, row, here.lane, sums);
    LANES_SUM(sums, OUTPUTS * ROWS);
    if (here.lane) return;
    float cap = AS_FLOAT((uint)params[4]);
    for (int o = 0; o < OUTPUTS && tile * OUTPUTS + o < outputs; o++) {
        for (int r = 0; r < ROWS && r < rows; r++) {
            float sum = sums[o * ROWS + r];
            out[(ulong)r * (ulong)total + (ulong)(first + tile * OUTPUTS + o)] = cap > 0 ? TANH(sum / cap) * cap : sum;
        }
    }
}

// The experts that rows have chosen, each read once for all rows that chose it: the first pair (of a row and an expert)
// works for later ones with the same expert. out [pairs][outputs of the first matrix, then of the second]
// params: 0 k, 1 group, 2 pairs, 3 round, 4 of a row, 5 and 6 outputs of each matrix, 7 whether inputs are those of
// pairs and not of rows
template <int FORMAT, int ROWS, int OUTPUTS>
INLINE void experts_product(const DEVICE float *x, const DEVICE uchar *codes_0, const DEVICE uchar *scales_0,
                            const DEVICE float *biases_0, const DEVICE uchar *codes_1, const DEVICE uchar *scales_1,
                            const DEVICE float *biases_1, const DEVICE int *order, const DEVICE int *params,
                            DEVICE float *out, place here) {
    int pairs = params[2], chosen = params[4], own = here.group_y, expert = order[own], n = 0;
    for (int p = 0; p < own; p++) {
        if (order[p] == expert) return; // an earlier pair works for this one
    }
    int pair[ROWS], row[ROWS];
    for (int r = 0; r < ROWS; r++) pair[r] = own;
    for (int p = own; p < pairs; p++) {
        if (order[p] != expert) continue;
        for (int r = n; r < ROWS; r++) pair[r] = p;
        n++;
    }
    for (int r = 0; r < ROWS; r++) row[r] = params[7] ? pair[r] : pair[r] / chosen;
    int tile = here.group_x * here.simdgroups + here.simdgroup, first = 0, outputs = params[5];
    int tiles = (outputs + OUTPUTS - 1) / OUTPUTS;
    bool second = tile >= tiles;
    if (second) {
        tile -= tiles;
        first = outputs;
        outputs = params[6];
    }
    if (tile * OUTPUTS >= outputs) return;
    weight_rows w;
    w.codes = second ? codes_1 : codes_0;
    w.scales = second ? scales_1 : scales_0;
    w.biases = second ? biases_1 : biases_0;
    w.k = params[0];
    w.group = params[1];
    w.round = params[3];
    ulong output[OUTPUTS];
    float sums[OUTPUTS * ROWS];
    for (int o = 0; o < OUTPUTS; o++)
        output[o] = (ulong)expert * (ulong)outputs + (ulong)MIN(tile * OUTPUTS + o, outputs - 1);
    add_products<FORMAT, ROWS, OUTPUTS>(w, output, x, row, here.lane, sums);
    LANES_SUM(sums, OUTPUTS * ROWS);
    if (here.lane) return;
    ulong total = (ulong)(params[5] + params[6]);
    for (int o = 0; o < OUTPUTS && tile * OUTPUTS + o < outputs; o++) {
        for (int r = 0; r < ROWS && r < n; r++)
            out[(ulong)pair[r] * total + (ulong)(first + tile * OUTPUTS + o)] = sums[o * ROWS + r];
    }
}
