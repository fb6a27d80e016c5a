// What is done to rows between products. Bound: next to nothing is read, these are latencies. Every row, or head of a
// row, is one threadgroup's or one simdgroup's, whatever stands beside it.

#define ROW_SIMDGROUPS 8

// out = norm(x) * weight [+ residual], times a factor: one threadgroup of ROW_SIMDGROUPS simdgroups for a row.
// params: 0 n, 1 eps, 2 factor (bits of floats), 3 whether there is a weight, 4 whether there is a residual
INLINE void row_norm(const DEVICE float *x, const DEVICE float *weight, const DEVICE float *residual,
                     const DEVICE int *params, DEVICE float *out, SHARED float *shared, place here) {
    int n = params[0], thread_index = here.simdgroup * 32 + here.lane, threads = here.simdgroups * 32;
    ulong row = (ulong)here.group_x * (ulong)n;
    float sum[1] = {0};
    for (int i = thread_index; i < n; i += threads) sum[0] = FMA(x[row + (ulong)i], x[row + (ulong)i], sum[0]);
    LANES_SUM(sum, 1);
    if (here.lane == 0) shared[here.simdgroup] = sum[0];
    BARRIER();
    float all = 0;
    for (int i = 0; i < here.simdgroups; i++) all += shared[i];
    float inverse = RSQRT(all / (float)n + AS_FLOAT((uint)params[1])), factor = AS_FLOAT((uint)params[2]);
    for (int i = thread_index; i < n; i += threads) {
        float value = x[row + (ulong)i] * inverse;
        if (params[3]) value = value * weight[i];
        if (params[4]) value = residual[row + (ulong)i] + value;
        out[row + (ulong)i] = value * factor;
    }
}

// Norm of every head, then RoPE by table: one simdgroup for a head of a row. x is columns [first, first + heads * dim)
// of rows of `stride` values; out [rows][heads * dim].
// params: 0 heads, 1 dim, 2 rotated pairs, 3 eps, 4 whether there is a weight, 5 stride, 6 first
// position [rows]; cosine and sine [positions][pairs]
INLINE void head_rows(const DEVICE float *x, const DEVICE float *weight, const DEVICE float *cosine,
                      const DEVICE float *sine, const DEVICE int *position, const DEVICE int *params, DEVICE float *out,
                      place here) {
    int heads = params[0], dim = params[1], pairs = params[2], half_dim = dim / 2;
    int head = here.group_x, row = here.group_y, at = position[row];
    const DEVICE float *from = x + (ulong)row * (ulong)params[5] + (ulong)(params[6] + head * dim);
    DEVICE float *to = out + (ulong)row * (ulong)(heads * dim) + (ulong)(head * dim);
    float sum[1] = {0};
    for (int i = here.lane; i < dim; i += 32) sum[0] = FMA(from[i], from[i], sum[0]);
    LANES_SUM(sum, 1);
    float inverse = RSQRT(sum[0] / (float)dim + AS_FLOAT((uint)params[3]));
    ulong angle = (ulong)MAX(at, 0) * (ulong)pairs;
    for (int i = here.lane; i < dim; i += 32) {
        float value = from[i] * inverse;
        if (params[4]) value = value * weight[i];
        int pair = i % half_dim;
        if (pair < pairs) {
            int other = i < half_dim ? i + half_dim : i - half_dim;
            float partner = from[other] * inverse;
            if (params[4]) partner = partner * weight[other];
            float c = cosine[angle + (ulong)pair], s = sine[angle + (ulong)pair];
            value = i < half_dim ? FMA(value, c, -(partner * s)) : FMA(value, c, partner * s);
        }
        to[i] = value;
    }
}

// gelu(gate) * up (the approximation by tanh): x [rows][gate n | up n], out [rows][n]; a thread for a value.
// params: 0 n, 1 rows
INLINE void gated_rows(const DEVICE float *x, const DEVICE int *params, DEVICE float *out, place here) {
    int n = params[0], i = (here.group_x * here.simdgroups + here.simdgroup) * 32 + here.lane;
    if (i >= n) return;
    ulong row = (ulong)here.group_y;
    float g = x[row * (ulong)(2 * n) + (ulong)i], u = x[row * (ulong)(2 * n) + (ulong)(n + i)];
    float cube = g * g * g;
    float inner = 0.7978845608028654f * FMA(0.044715f, cube, g);
    out[row * (ulong)n + (ulong)i] = 0.5f * g * (1.0f + TANH(inner)) * u;
}

// The `chosen` largest of a row's logits, the lowest expert of equals first, and their weights: a softmax over them,
// times the experts' own factors. One simdgroup for a row; up to 1024 experts.
// params: 0 experts, 1 chosen
INLINE void router_choice(const DEVICE float *logits, const DEVICE float *factor, const DEVICE int *params,
                          DEVICE int *order, DEVICE float *weights, place here) {
    int experts = params[0], chosen = params[1];
    ulong row = (ulong)here.group_x;
    const DEVICE float *from = logits + row * (ulong)experts;
    uint taken = 0; // of those that this lane looks at
    float first = 0, sum = 0;
    for (int j = 0; j < chosen; j++) {
        float best = 0;
        int mine = experts; // none is left
        for (int i = here.lane; i < experts; i += 32) {
            if ((taken >> (uint)(i / 32)) & 1u) continue;
            float value = IS_NUMBER(from[i]) ? from[i] : AS_FLOAT(0xff800000u);
            if (mine < experts && value <= best) continue;
            best = value;
            mine = i;
        }
        float largest = LANES_MAX(mine < experts ? best : AS_FLOAT(0xff800000u));
        int winner = LANES_LEAST(mine < experts && best == largest ? mine : experts);
        winner = MIN(winner, experts - 1);
        if (winner % 32 == here.lane) taken |= 1u << (uint)(winner / 32);
        if (j == 0) first = from[winner];
        sum += EXP(from[winner] - first);
        if (here.lane == 0) order[row * (ulong)chosen + (ulong)j] = winner;
        if (here.lane == 0) weights[row * (ulong)chosen + (ulong)j] = EXP(from[winner] - first);
    }
    if (here.lane) return;
    for (int j = 0; j < chosen; j++) { // its own thread's writes
        ulong at = row * (ulong)chosen + (ulong)j;
        weights[at] = weights[at] / sum * factor[order[at]];
    }
}

// What a row's experts say, in the order of their ranks: x [rows][chosen][n], out [rows][n]; a thread for a value.
// params: 0 n, 1 chosen
INLINE void experts_sum(const DEVICE float *x, const DEVICE float *weights, const DEVICE int *params, DEVICE float *out,
                        place here) {
    int n = params[0], chosen = params[1], i = (here.group_x * here.simdgroups + here.simdgroup) * 32 + here.lane;
    if (i >= n) return;
    ulong row = (ulong)here.group_y;
    float sum = 0;
    for (int j = 0; j < chosen; j++) {
        ulong pair = row * (ulong)chosen + (ulong)j;
        sum = FMA(weights[pair], x[pair * (ulong)n + (ulong)i], sum);
    }
    out[row * (ulong)n + (ulong)i] = sum;
}

// The largest logit of a row, the lowest token of equals; -1 where one is not a number. One threadgroup of
// ROW_SIMDGROUPS simdgroups for a row. params: 0 vocab, 1 whether there is a bias
INLINE void row_choice(const DEVICE float *logits, const DEVICE float *bias, const DEVICE int *params, DEVICE int *out,
                       SHARED float *shared, place here) {
    int vocab = params[0], threads = here.simdgroups * 32, mine = -1, spoilt = 0;
    const DEVICE float *from = logits + (ulong)here.group_x * (ulong)vocab;
    float best = 0;
    for (int i = here.simdgroup * 32 + here.lane; i < vocab; i += threads) {
        float value = params[1] ? from[i] + bias[i] : from[i];
        if (!IS_NUMBER(value)) spoilt = 1;
        if (mine >= 0 && !(value > best)) continue;
        best = value;
        mine = i;
    }
    float low = AS_FLOAT(0xff800000u);
    float largest = LANES_MAX(mine >= 0 && !spoilt ? best : low);
    int winner = LANES_LEAST(mine >= 0 && best == largest ? mine : vocab);
    int whole = LANES_LEAST(spoilt ? 0 : 1);
    if (here.lane == 0) { // an index is exact in a float's bits
        shared[3 * here.simdgroup] = largest;
        shared[3 * here.simdgroup + 1] = AS_FLOAT((uint)winner);
        shared[3 * here.simdgroup + 2] = whole ? 1.0f : 0.0f;
    }
    BARRIER();
    if (here.simdgroup || here.lane) return;
    int token = vocab, finite = 1;
    float most = low;
    for (int i = 0; i < here.simdgroups; i++) {
        float value = shared[3 * i];
        int index = (int)AS_UINT(shared[3 * i + 1]);
        if (shared[3 * i + 2] < 0.5f) finite = 0;
        if (value > most || (value == most && index < token)) {
            most = value;
            token = index;
        }
    }
    out[here.group_x] = finite ? MIN(token, vocab - 1) : -1;
}
