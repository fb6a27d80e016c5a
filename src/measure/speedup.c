#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/statistics.h"
#include "measure/summary.h"

bool eval_arm_is_ar_of(const eval_arm *ar, const eval_arm *arm) {
    return strcmp(ar->mode, "ar") == 0 && strcmp(arm->mode, "ar") != 0 && strcmp(ar->policy, arm->policy) == 0 &&
           ar->sink == arm->sink && ar->window == arm->window && ar->threads == arm->threads &&
           ar->prompt_chunk == arm->prompt_chunk && fabs(ar->temperature - arm->temperature) < 1e-9 &&
           ar->mix_alpha < 0 && arm->mix_alpha < 0;
}

typedef struct sample_time {
    double seconds_per_token; /* median over repetitions */
    size_t tokens;
} sample_time;

/* Measured rows of one sample, either of `arm` itself or of the AR arm that it is compared with. */
static sample_time time_of(const eval_rows *rows, const char *sample, const eval_arm *arm, bool ar, double *scratch) {
    sample_time result = {0};
    size_t n = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (row->warmup || !row->n_token_ids || strcmp(row->sample, sample) != 0) continue;
        if (ar ? !eval_arm_is_ar_of(&row->arm, arm) : !eval_arm_equal(&row->arm, arm)) continue;
        scratch[n++] = row->decode_seconds / (double)row->n_token_ids;
        result.tokens += row->n_token_ids;
    }
    result.seconds_per_token = statistics_median(scratch, n);
    return result;
}

kakeya_status eval_speedup_derive(const eval_rows *rows, const eval_arm *arm, eval_speedup *out, kakeya_error *error) {
    *out = (eval_speedup){0};
    double *ratios = calloc(2 * rows->n + 1, sizeof *ratios);
    if (!ratios) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu rows", rows->n);
    double *scratch = ratios + rows->n;
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (row->warmup || !eval_arm_equal(&row->arm, arm)) continue;
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++) {
            const eval_row *earlier = &rows->row[j];
            seen = !earlier->warmup && eval_arm_equal(&earlier->arm, arm) && strcmp(earlier->sample, row->sample) == 0;
        }
        if (seen) continue;
        sample_time own = time_of(rows, row->sample, arm, false, scratch);
        sample_time ar = time_of(rows, row->sample, arm, true, scratch);
        if (!(own.seconds_per_token > 0) || !(ar.seconds_per_token > 0)) continue;
        out->tokens += own.tokens;
        out->ar_tokens += ar.tokens;
        ratios[out->pairs++] = ar.seconds_per_token / own.seconds_per_token;
    }
    out->ratio = statistics_median(ratios, out->pairs);
    free(ratios);
    return KAKEYA_OK;
}
