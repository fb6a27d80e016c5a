/* Formats of K/V: what the rows of each come to, and which of them earns its bits. */
#include <math.h>
#include <string.h>

#include "measure/kv_codec.h"
#include "measure/summary.h"

typedef struct format_figures {
    const kv_codec *codec;
    double rows, correct, tokens, nll, kl, agreements, vectors, values, bytes, store, load, mse;
    double forwards, decode; /* as_stored, of the answers */
    bool as_stored;
    int layers;
} format_figures;

enum { MAX_LAYERS = 256 };

static double of(double a, double b) { return b > 0 ? a / b : 0; }
static double bits(const format_figures *f) { return of(8 * f->bytes, f->values); }
static double divergence(const format_figures *f) { return of(f->kl, f->tokens); }
static double recall(const format_figures *f) { return of(f->correct, f->rows); }
static double error_of(const format_figures *f) { return of(f->mse, f->rows); }

/* Mean over the layers, as the mean over the rows is taken of it. */
static double row_error(const eval_row *row) {
    double sum = 0;
    for (int i = 0; i < row->layers; i++) sum += of(row->layer_error[i], row->layer_energy[i]);
    return of(sum, row->layers);
}

static format_figures figures_of(const eval_rows *rows, const kv_codec *codec) {
    format_figures f = {.codec = codec};
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (row->warmup || strcmp(row->arm.kv_format, kv_codec_name(codec)) != 0) continue;
        f.rows++;
        f.correct += row->correct;
        f.tokens += (double)row->scored_tokens;
        f.nll += row->nll;
        f.kl += row->kl;
        f.agreements += (double)row->agreements;
        f.vectors += (double)row->stored_vectors;
        f.values += (double)row->stored_values;
        f.bytes += (double)row->stored_bytes;
        f.store += row->store_seconds;
        f.load += row->load_seconds;
        f.mse += row_error(row);
        f.forwards += (double)row->verifier_forwards;
        f.decode += row->decode_seconds;
        f.as_stored = row->arm.as_stored;
        if (!f.layers || row->layers < f.layers) f.layers = row->layers;
    }
    return f;
}

static void put(cJSON *object, const char *name, double value) { cJSON_AddNumberToObject(object, name, value); }

static const char *divergence_key(const format_figures *f) {
    return f->as_stored ? "kl_from_bf16" : "kl_from_identity";
}

static void put_layers(cJSON *entry, const eval_rows *rows, const format_figures *f) {
    cJSON *list = cJSON_AddArrayToObject(entry, "relative_mse_by_layer");
    for (int layer = 0; layer < f->layers; layer++) {
        double error = 0, energy = 0;
        for (size_t i = 0; i < rows->n; i++) {
            const eval_row *row = &rows->row[i];
            if (row->warmup || strcmp(row->arm.kv_format, kv_codec_name(f->codec)) != 0) continue;
            if (layer >= row->layers) continue; /* as stored, which a report that is refused may have among others */
            error += row->layer_error[layer];
            energy += row->layer_energy[layer];
        }
        cJSON_AddItemToArray(list, cJSON_CreateNumber(of(error, energy)));
    }
}

static bool put_arm(cJSON *arms, const eval_rows *rows, const format_figures *f) {
    cJSON *entry = cJSON_CreateObject();
    if (!entry) return false;
    cJSON_AddStringToObject(entry, "format", kv_codec_name(f->codec));
    put(entry, "sequences", f->rows);
    put(entry, "scored_tokens", f->tokens);
    put(entry, "bytes_per_vector", of(f->bytes, f->vectors));
    put(entry, "bits_per_value", bits(f));
    put(entry, "perplexity", f->tokens > 0 ? exp(f->nll / f->tokens) : 0);
    put(entry, divergence_key(f), divergence(f));
    put(entry, "top1_agreement", of(f->agreements, f->tokens));
    put(entry, "recall", recall(f));
    if (f->as_stored) {
        put(entry, "decode_ms_per_token", 1e3 * of(f->decode, f->forwards));
    } else {
        put(entry, "relative_mse", error_of(f));
        put_layers(entry, rows, f);
        put(entry, "store_ns_per_value", 1e9 * of(f->store, f->values));
        put(entry, "load_ns_per_value", 1e9 * of(f->load, f->values));
    }
    cJSON_AddItemToArray(arms, entry);
    return true;
}

/* The format with the least divergence among the others that take no more bits. */
static const format_figures *rival_of(const format_figures *f, const format_figures *all, int n) {
    const format_figures *best = NULL;
    for (int i = 0; i < n; i++) {
        if (&all[i] == f || bits(&all[i]) > bits(f) + 1e-9) continue;
        if (!best || divergence(&all[i]) < divergence(best)) best = &all[i];
    }
    return best;
}

/* The reference implementation's question to its lattices, and ours to every format. */
static bool put_verdict(cJSON *verdicts, const format_figures *f, const format_figures *all, int n) {
    static const double bits_slack = 0.25;
    const format_figures *rival = rival_of(f, all, n), *affine4 = NULL;
    cJSON *entry = cJSON_CreateObject();
    if (!entry) return false;
    cJSON_AddStringToObject(entry, "format", kv_codec_name(f->codec));
    put(entry, "bits_per_value", bits(f));
    put(entry, divergence_key(f), divergence(f));
    if (rival) {
        cJSON_AddStringToObject(entry, "rival", kv_codec_name(rival->codec));
        put(entry, "rival_bits_per_value", bits(rival));
        put(entry, f->as_stored ? "rival_kl_from_bf16" : "rival_kl_from_identity", divergence(rival));
    } else {
        cJSON_AddNullToObject(entry, "rival");
    }
    cJSON_AddBoolToObject(entry, "best_at_its_bits", !rival || divergence(f) < divergence(rival));
    for (int i = 0; i < n; i++)
        if (strcmp(kv_codec_name(all[i].codec), "affine4") == 0) affine4 = &all[i];
    if (kv_codec_is_lattice(f->codec) && affine4) {
        bool no_larger = bits(f) <= bits(affine4) + bits_slack, closer = error_of(f) < error_of(affine4),
             finds = recall(f) >= recall(affine4);
        cJSON_AddBoolToObject(entry, "bits_le_affine4", no_larger);
        cJSON_AddBoolToObject(entry, "relative_mse_better", closer);
        cJSON_AddBoolToObject(entry, "recall_ge_affine4", finds);
        cJSON_AddBoolToObject(entry, "port_justified", no_larger && closer && finds);
    }
    cJSON_AddItemToArray(verdicts, entry);
    return true;
}

bool summarise_kv_format(cJSON *summary, const eval_rows *rows, double *scratch) {
    (void)scratch;
    format_figures all[KV_CODECS];
    int n = 0;
    for (int i = 0; i < KV_CODECS; i++) {
        all[n] = figures_of(rows, kv_codec_at(i));
        n += all[n].rows > 0;
    }
    cJSON *arms = cJSON_AddArrayToObject(summary, "arms"), *verdicts = cJSON_AddArrayToObject(summary, "verdicts");
    for (int i = 0; i < n; i++)
        if (!put_arm(arms, rows, &all[i]) || !put_verdict(verdicts, &all[i], all, n)) return false;
    return true;
}
