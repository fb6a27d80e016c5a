/* What every table of `kakeya bench` begins with. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "cli/bench.h"

void bench_print_probes(const bench_spread *read, const bench_spread *flops, int threads, int repeats) {
    printf("the machine reads %.1f GB/s (%.1f to %.1f) and computes %.0f GFLOP/s (%.0f to %.0f) with %d threads; "
           "%d repetitions\n\n",
           read->median / 1e9, read->low / 1e9, read->high / 1e9, flops->median / 1e9, flops->low / 1e9,
           flops->high / 1e9, threads, repeats);
}

void bench_add_spread(cJSON *object, const char *key, const bench_spread *spread) {
    cJSON *json = cJSON_AddObjectToObject(object, key);
    cJSON_AddNumberToObject(json, "median", spread->median);
    cJSON_AddNumberToObject(json, "low", spread->low);
    cJSON_AddNumberToObject(json, "high", spread->high);
}

cJSON *bench_facts_json(const kakeya_engine *engine, const bench_arguments *arguments) {
    const model_config *c = &engine->verifier->config;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", c->variant);
    cJSON_AddNumberToObject(json, "layers", c->layers);
    cJSON_AddStringToObject(json, "backend", kakeya_engine_backend(engine));
    cJSON_AddStringToObject(json, "precision", kakeya_precision_name(engine->precision));
    cJSON_AddStringToObject(json, "attention", cli_attention_names[arguments->shared.attention]);
    return json;
}

cJSON *bench_json(const kakeya_engine *engine, const bench_arguments *arguments, const bench_spread *read,
                  const bench_spread *flops, int threads) {
    cJSON *json = bench_facts_json(engine, arguments);
    cJSON_AddNumberToObject(json, "threads", threads);
    cJSON_AddNumberToObject(json, "repeats", arguments->repeats);
    cJSON *probe = cJSON_AddObjectToObject(json, "probe");
    bench_add_spread(probe, "read_bytes_per_second", read);
    bench_add_spread(probe, "flops_per_second", flops);
    return json;
}
