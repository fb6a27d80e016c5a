/* What is compared, and the gradients that this begins with. Sums that are told are float64. */
#include "backend/cuda/train_common.cuh"

enum { SHARE_THREADS = 512, SHARE_WARPS = SHARE_THREADS / 32 };

/* --------------------------------------------------------------------------------------------------------- logits */

enum { WIDE = 4 /* logits that a thread reads at once */ };

static __device__ __forceinline__ void read_logits(const float *row, int i, int vocab, float cap, float (&z)[WIDE]) {
    if (vocab % WIDE == 0)
        *reinterpret_cast<float4 *>(z) = *reinterpret_cast<const float4 *>(row + i);
    else
        for (int k = 0; k < WIDE && i + k < vocab; k++) z[k] = row[i + k];
#pragma unroll
    for (int k = 0; k < WIDE; k++) z[k] = i + k < vocab ? capped(z[k], cap) : -INFINITY;
}

/* The largest of a thread's logits so far, and the sum of their exponentials from there. */
static __device__ __forceinline__ void add_logits(const float (&z)[WIDE], float &largest, float &sum) {
    float most = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    if (most > largest) {
        sum *= expf(largest - most);
        largest = most;
    }
#pragma unroll
    for (int k = 0; k < WIDE; k++) sum += expf(z[k] - largest);
}

/* A block is a row. */
static __global__ void kl_kernel(const float *teacher, float *student, int vocab, float cap, float scale, double *kl) {
    __shared__ float shared[TRAIN_WARPS];
    __shared__ double shared_double[TRAIN_WARPS];
    const float *p = teacher + (size_t)blockIdx.x * vocab;
    float *q = student + (size_t)blockIdx.x * vocab, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int i = WIDE * threadIdx.x; i < vocab; i += WIDE * TRAIN_THREADS) {
        float z[WIDE] = {};
        read_logits(p, i, vocab, cap, z);
        add_logits(z, largest[0], sum[0]);
        read_logits(q, i, vocab, cap, z);
        add_logits(z, largest[1], sum[1]);
    }
    for (int which = 0; which < 2; which++) {
        float most = block_largest(largest[which], shared), own = sum[which];
        own = own > 0 ? own * expf(largest[which] - most) : 0; /* a thread may have no logit */
        sum[which] = logf(block_sum<TRAIN_THREADS>(own, shared));
        largest[which] = most;
    }
    double lost = 0;
    for (int i = WIDE * threadIdx.x; i < vocab; i += WIDE * TRAIN_THREADS) {
        float zp[WIDE] = {}, zq[WIDE] = {};
        read_logits(p, i, vocab, cap, zp);
        read_logits(q, i, vocab, cap, zq);
        float off = 0;
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            float lp = zp[k] - largest[0] - sum[0], lq = zq[k] - largest[1] - sum[1], share = expf(lp);
            float inside = cap > 0 ? zq[k] / cap : 0;
            if (share > 0) off += share * (lp - lq);
            zq[k] = scale * (expf(lq) - share) * (1 - inside * inside);
        }
        lost += (double)off;
        if (vocab % WIDE == 0)
            *reinterpret_cast<float4 *>(q + i) = *reinterpret_cast<const float4 *>(zq);
        else
            for (int k = 0; k < WIDE && i + k < vocab; k++) q[i + k] = zq[k];
    }
    lost = block_sum_double(lost, shared_double, TRAIN_WARPS);
    if (threadIdx.x == 0) kl[blockIdx.x] = lost;
}

void cuda_train_kl(const cuda_launch *l, const float *teacher, float *student, int rows, int vocab, float cap,
                   float scale, double *kl) {
    launch_kernel(l, kl_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, teacher, student, vocab, cap, scale, kl);
}

static __global__ void sum_rows_kernel(const double *kl, int rows, double by, double *out, int stride) {
    __shared__ double shared[TRAIN_WARPS];
    double sum = 0;
    for (int i = threadIdx.x; i < rows; i += TRAIN_THREADS) sum += kl[(size_t)blockIdx.x * rows + i];
    sum = block_sum_double(sum, shared, TRAIN_WARPS);
    if (threadIdx.x == 0) out[blockIdx.x * stride] += by * sum;
}

void cuda_train_sum_rows(const cuda_launch *l, const double *kl, int segments, int rows, double by, double *out,
                         int stride) {
    launch_kernel(l, sum_rows_kernel, dim3(segments), dim3(TRAIN_THREADS), 0, kl, rows, by, out, stride);
}

/* --------------------------------------------------------------------------------------------------------- shares */

static __device__ __forceinline__ void rows_of(const train_share &s, int *begin, int *end) {
    *begin = s.begin ? s.begin[blockIdx.x] : blockIdx.x * s.rows;
    *end = s.begin ? s.begin[blockIdx.x + 1] : *begin + s.rows;
}

static __device__ __forceinline__ const float *target_of(const train_share &s, size_t row) {
    return s.target + (s.index ? (size_t)s.index[row] : row) * s.n;
}

/* A segment is gridDim.y blocks', each of which has every so manieth row. */
static __global__ void square_sums_kernel(train_share s) {
    __shared__ double shared[TRAIN_WARPS];
    int begin, end;
    rows_of(s, &begin, &end);
    double size = 0, lost = 0;
    for (int row = begin + blockIdx.y; row < end; row += gridDim.y) {
        const float *x = s.x + (size_t)row * s.n, *target = target_of(s, row);
        for (int i = threadIdx.x; i < s.n; i += TRAIN_THREADS) {
            float off = x[i] - target[i];
            size += (double)(target[i] * target[i]);
            lost += (double)(off * off);
        }
    }
    size = block_sum_double(size, shared, TRAIN_WARPS);
    lost = block_sum_double(lost, shared, TRAIN_WARPS);
    double *to = s.parts + 2 * ((size_t)blockIdx.x * gridDim.y + blockIdx.y);
    if (threadIdx.x) return;
    to[0] = size;
    to[1] = lost;
}

static __global__ void square_share_kernel(train_share s) {
    int begin, end;
    rows_of(s, &begin, &end);
    const double *parts = s.parts + 2 * (size_t)blockIdx.x * gridDim.y;
    double size = 0, lost = 0, values = (double)(end - begin) * s.n;
    for (unsigned i = 0; i < gridDim.y; i++) {
        size += parts[2 * i];
        lost += parts[2 * i + 1];
    }
    size = s.mean ? values : size > s.least ? size : s.least;
    if (s.factor) size = s.factor[blockIdx.x] > 0 ? size / (double)s.factor[blockIdx.x] : INFINITY;
    if (threadIdx.x == 0 && blockIdx.y == 0) s.out[blockIdx.x * s.stride] += s.by * lost / size;
    if (!s.d) return;
    float by = (float)(2 * (double)s.scale / size);
    for (int row = begin + blockIdx.y; row < end; row += gridDim.y) {
        size_t at = (size_t)row * s.n;
        const float *target = target_of(s, row);
        for (int i = threadIdx.x; i < s.n; i += TRAIN_THREADS) s.d[at + i] += by * (s.x[at + i] - target[i]);
    }
}

void cuda_train_square_share(const cuda_launch *l, const train_share *s) {
    dim3 grid(s->segments, TRAIN_SHARE_PARTS), block(TRAIN_THREADS);
    launch_kernel(l, square_sums_kernel, grid, block, 0, *s);
    launch_kernel(l, square_share_kernel, grid, block, 0, *s);
}

/* ---------------------------------------------------------------------------------------------- K and V by themselves
 * A vector is a warp's. */

static __global__ void raw_kernel(train_share s, train_parts parts) {
    __shared__ double shared[SHARE_WARPS];
    int begin, end, lane = threadIdx.x % 32, d = parts.d, of_row = s.n / d;
    rows_of(s, &begin, &end);
    double values = (double)(end - begin) * s.n, vectors = values / d, size = 0, sum = 0, lost = 0;
    for (size_t i = threadIdx.x; i < (size_t)(end - begin) * s.n; i += SHARE_THREADS) {
        float target = s.target[(size_t)s.index[begin + i / s.n] * s.n + i % s.n];
        size += (double)(target * target);
        sum += (double)target;
    }
    size = block_sum_double(size, shared, SHARE_WARPS);
    sum = block_sum_double(sum, shared, SHARE_WARPS);
    double variance = (size - sum * sum / values) / (values > 2 ? values - 1 : 1), mean_square = size / vectors;
    if (variance < s.least) variance = s.least;
    if (mean_square < s.least) mean_square = s.least;
    double factor = s.factor ? (double)s.factor[blockIdx.x] : 1;
    if (begin == end || factor == 0) return;
    double square = factor * parts.square / (values * (parts.variance ? variance : 1)),
           direction = factor * parts.direction / vectors,
           magnitude = factor * parts.magnitude / (vectors * mean_square);
    for (int v = threadIdx.x / 32; v < (end - begin) * of_row; v += SHARE_WARPS) {
        size_t row = begin + v / of_row, at = row * s.n + (size_t)(v % of_row) * d;
        const float *p = s.x + at, *t = s.target + (size_t)s.index[row] * s.n + (size_t)(v % of_row) * d;
        double pp = 0, tt = 0, pt = 0, off = 0;
        for (int i = lane; i < d; i += 32) {
            pp += (double)p[i] * p[i];
            tt += (double)t[i] * t[i];
            pt += (double)p[i] * t[i];
            off += (double)(p[i] - t[i]) * (p[i] - t[i]);
        }
        pp = warp_sum_double(pp) + 1e-30;
        tt = warp_sum_double(tt) + 1e-30;
        pt = warp_sum_double(pt);
        off = warp_sum_double(off);
        double length = sqrt(pp * tt), cosine = pt / length, longer = sqrt(pp) - sqrt(tt);
        if (lane == 0) lost += square * off + direction * (1 - cosine) + magnitude * longer * longer;
        for (int i = lane; s.d && i < d; i += 32) {
            double g = 2 * square * ((double)p[i] - t[i]) + direction * (cosine * p[i] / pp - t[i] / length) +
                       2 * magnitude * longer * p[i] / sqrt(pp);
            s.d[at + i] += (float)((double)s.scale * g);
        }
    }
    lost = block_sum_double(lost, shared, SHARE_WARPS);
    if (threadIdx.x == 0) s.out[blockIdx.x * s.stride] += s.by * lost;
}

void cuda_train_raw(const cuda_launch *l, const train_share *s, train_parts parts) {
    launch_kernel(l, raw_kernel, dim3(s->segments), dim3(SHARE_THREADS), 0, *s, parts);
}
