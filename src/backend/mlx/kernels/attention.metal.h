// Attention of a few rows over stored K/V. Bound: the bytes of K and V (K = V once) that the rows see; the rows of a
// threadgroup walk over the same keys side by side, and the heads of a K/V head share every value that is loaded.
//
// Keys are cut at absolute multiples of PART_SLOTS slots, whose content follows from positions alone. A part is walked
// slot by slot with a running maximum; a slot that a row does not see is passed by. Parts are merged ascending. So
// neither the number of rows nor what else lies in the stores can change a row's bits.

#define PART_SLOTS 256

#define KV_F32  0
#define KV_BF16 1
#define KV_Q8   2
#define KV_Q4   3

// What lies in a slot: a stored row, or one of the rows that are being computed, as they will be stored.
struct kv_row_at {
    const DEVICE uchar *stored; // of this head
    const DEVICE float *fresh;
    float scale;
    int dim;
};

template <int KV>
INLINE kv_row_at find_row(const DEVICE uchar *stored, const DEVICE float *fresh, int rows, int from, int head,
                          int heads, int dim, int head_bytes) {
    kv_row_at row;
    row.fresh = 0;
    row.stored = 0;
    row.scale = 1;
    row.dim = dim;
    if (from >= rows) {
        row.fresh = fresh + (ulong)(from - rows) * (ulong)(heads * dim) + (ulong)(head * dim);
    } else {
        row.stored = stored + (ulong)from * (ulong)(heads * head_bytes) + (ulong)(head * head_bytes);
        if (KV == KV_Q8) {
            row.scale = *(const DEVICE float *)row.stored;
            row.stored += 4;
        }
    }
    return row;
}

template <int KV> INLINE float value_at(kv_row_at row, int i) {
    if (row.fresh) return row.fresh[i];
    if (KV == KV_F32) return ((const DEVICE float *)row.stored)[i];
    if (KV == KV_BF16) return float_of_bf16(((const DEVICE ushort *)row.stored)[i]);
    if (KV == KV_Q4) return q4_value(row.stored, row.dim, i);
    int code = row.stored[i];
    return row.scale * (float)(code < 128 ? code : code - 256);
}

// Values l, l + 32, ...
template <int KV, int PER_LANE> INLINE void load_lane(kv_row_at row, int lane, THREAD float *to) {
    if (KV == KV_Q4 && PER_LANE == 16 && row.dim == 512 && !row.fresh) {
        q4_group(row.stored, lane, to);
        return;
    }
    for (int i = 0; i < PER_LANE; i++) to[i] = 32 * i + lane < row.dim ? value_at<KV>(row, 32 * i + lane) : 0.0f;
}

// One simdgroup: QUERIES heads of one row over one part. Lane l has values l, l + 32, ...
// out [rows][heads][parts][dim + 2]: sums, maximum, sum of weights
// span: position [slots], from [slots], then for each row: begin and end of the sink, begin and end of the rest
// params: 0 heads, 1 kv_heads, 2 dim, 3 slots, 4 rows, 5 parts, 6 pairs, 7 bytes of a stored head, 8 stored rows
// KEYS_OF_V: a key is its value times the key's norm, turned; only values are stored
template <int KV, int PER_LANE, int QUERIES, int KEYS_OF_V>
INLINE void attention_part(const DEVICE float *q, const DEVICE uchar *k, const DEVICE uchar *v,
                           const DEVICE float *fresh_k, const DEVICE float *fresh_v, const DEVICE float *k_norm,
                           const DEVICE float *cosine, const DEVICE float *sine, const DEVICE int *span,
                           const DEVICE int *params, DEVICE float *out, place here) {
    int heads = params[0], kv_heads = params[1], dim = params[2], slots = params[3], rows = params[4];
    int parts = params[5], pairs = params[6], head_bytes = params[7], stored = params[8], half_dim = dim / 2;
    int chunks = heads / kv_heads / QUERIES, kv_head = here.group_x / chunks;
    int first = kv_head * (heads / kv_heads) + here.group_x % chunks * QUERIES;
    int part = here.group_y, row = here.group_z * here.simdgroups + here.simdgroup;
    if (row >= rows) return;
    const DEVICE int *bounds = span + 2 * slots + 4 * row;
    int sink_begin = bounds[0], sink_end = bounds[1], begin = bounds[2], end = bounds[3];
    float query[QUERIES * PER_LANE], sum[QUERIES * PER_LANE], most[QUERIES], weight[QUERIES], score[QUERIES];
    for (int h = 0; h < QUERIES; h++) {
        most[h] = AS_FLOAT(0xff800000u);
        weight[h] = 0;
        for (int i = 0; i < PER_LANE; i++) {
            int at = 32 * i + here.lane;
            sum[h * PER_LANE + i] = 0;
            query[h * PER_LANE + i] = at < dim ? q[(ulong)(row * heads + first + h) * (ulong)dim + (ulong)at] : 0.0f;
        }
    }
    for (int slot = part * PART_SLOTS; slot < MIN((part + 1) * PART_SLOTS, slots); slot++) {
        int position = span[slot], from = span[slots + slot];
        bool seen = (position >= sink_begin && position < sink_end) || (position >= begin && position < end);
        if (!seen || position < 0) continue; // the whole simdgroup: it has one row
        kv_row_at values = find_row<KV>(v, fresh_v, stored, from, kv_head, kv_heads, dim, head_bytes);
        kv_row_at keys = values;
        if (!KEYS_OF_V) keys = find_row<KV>(k, fresh_k, stored, from, kv_head, kv_heads, dim, head_bytes);
        float value[PER_LANE], stored_key[PER_LANE];
        load_lane<KV, PER_LANE>(values, here.lane, value);
        if (!KEYS_OF_V) load_lane<KV, PER_LANE>(keys, here.lane, stored_key);
        for (int h = 0; h < QUERIES; h++) score[h] = 0;
        for (int i = 0; i < PER_LANE; i++) {
            int at = 32 * i + here.lane;
            if (at >= dim) continue;
            float key = KEYS_OF_V ? value[i] : stored_key[i];
            if (KEYS_OF_V) {
                int pair = at % half_dim;
                key = key * k_norm[at];
                if (pair < pairs) {
                    int other = at < half_dim ? at + half_dim : at - half_dim;
                    float partner =
                        dim == 32 * PER_LANE && PER_LANE > 1 ? value[i ^ (PER_LANE / 2)] : value_at<KV>(values, other);
                    partner = partner * k_norm[other];
                    ulong angle = (ulong)position * (ulong)pairs + (ulong)pair;
                    float c = cosine[angle], s = sine[angle];
                    key = at < half_dim ? FMA(key, c, -(partner * s)) : FMA(key, c, partner * s);
                }
            }
            for (int h = 0; h < QUERIES; h++) score[h] = FMA(query[h * PER_LANE + i], key, score[h]);
        }
        LANES_SUM(score, QUERIES);
        for (int h = 0; h < QUERIES; h++) {
            float larger = MAX(most[h], score[h]);
            if (!IS_NUMBER(score[h])) larger = score[h];
            float old = EXP(most[h] - larger), now = EXP(score[h] - larger);
            most[h] = larger;
            weight[h] = FMA(weight[h], old, now);
            for (int i = 0; i < PER_LANE; i++) sum[h * PER_LANE + i] = FMA(sum[h * PER_LANE + i], old, now * value[i]);
        }
    }
    for (int h = 0; h < QUERIES; h++) {
        DEVICE float *to = out + (ulong)((row * heads + first + h) * parts + part) * (ulong)(dim + 2);
        for (int i = 0; i < PER_LANE; i++) {
            if (32 * i + here.lane < dim) to[32 * i + here.lane] = sum[h * PER_LANE + i];
        }
        if (here.lane == 0) to[dim] = most[h];
        if (here.lane == 0) to[dim + 1] = weight[h];
    }
}

// One simdgroup for a head of a row: exact parts ascending, then restored ones. out [rows][heads][dim]
// params: 0 heads, 1 dim, 2 parts, 3 restored parts
INLINE void attention_merge(const DEVICE float *exact, const DEVICE float *restored, const DEVICE int *params,
                            DEVICE float *out, place here) {
    int heads = params[0], dim = params[1], n = params[2], more = params[3], stride = dim + 2;
    ulong head = (ulong)(here.group_y * heads + here.group_x);
    const DEVICE float *first = exact + head * (ulong)(n * stride);
    const DEVICE float *second = restored + head * (ulong)(more * stride);
    float most = AS_FLOAT(0xff800000u), weight = 0;
    for (int p = 0; p < n + more; p++) {
        const DEVICE float *part = p < n ? first + p * stride : second + (p - n) * stride;
        if (part[dim + 1] != 0.0f) most = IS_NUMBER(part[dim]) ? MAX(most, part[dim]) : part[dim];
    }
    for (int p = 0; p < n + more; p++) {
        const DEVICE float *part = p < n ? first + p * stride : second + (p - n) * stride;
        if (part[dim + 1] != 0.0f) weight = FMA(part[dim + 1], EXP(part[dim] - most), weight);
    }
    for (int i = here.lane; i < dim; i += 32) {
        float sum = 0;
        for (int p = 0; p < n + more; p++) {
            const DEVICE float *part = p < n ? first + p * stride : second + (p - n) * stride;
            if (part[dim + 1] != 0.0f) sum = FMA(part[i], EXP(part[dim] - most), sum);
        }
        out[head * (ulong)dim + (ulong)i] = sum / weight;
    }
}
