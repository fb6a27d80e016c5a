/* What lies where when several devices compute one model. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/device_list.h"
#include "base/error.h"
#include "cli/info.h"
#include "cli/terminal.h"
#include "kakeya_study.h"
#include "model/shard.h"
#include "model/sizes.h"
#include "session/description.h"

typedef struct device_share {
    model_config part;
    int first_output, outputs; /* of the LM head */
    uint64_t parameters;       /* that the device holds of the verifier; drafter and f_theta lie on every device */
    size_t kv_bytes;           /* of the session, under its own policy */
} device_share;

struct info_devices {
    int n, device[DEVICE_LIST_MOST];
    kakeya_description first; /* as if the first device's part were a model */
    device_share share[DEVICE_LIST_MOST];
};

/* Its rows of a head of its own; a tied one is the embedding, which every device holds. */
static uint64_t parameters_of(const model_config *part, int outputs) {
    uint64_t all = (uint64_t)gemma4_parameters(part).total;
    return part->tied_head ? all : all - (uint64_t)(part->vocab - outputs) * (uint64_t)part->hidden;
}

static kakeya_status share_of(const info_subject *s, model_shard shard, device_share *out, kakeya_error *error) {
    const model_config *whole = s->model->verifier;
    kakeya_status status = model_shard_config(whole, shard, &out->part, error);
    if (status) return status;
    out->first_output = model_shard_first_output(shard, whole->vocab);
    out->outputs =
        model_shard_first_output((model_shard){shard.index + 1, shard.count}, whole->vocab) - out->first_output;
    out->parameters = parameters_of(&out->part, out->outputs);
    kakeya_description description = *s->model;
    kakeya_session_options session = s->session;
    kakeya_kv_bytes kv;
    description.verifier = &out->part;
    session.kv_format = KAKEYA_KV_BF16;
    KAKEYA_INIT(&kv);
    status = kakeya_description_kv_bytes(&description, &session, s->context, &kv, error);
    out->kv_bytes = kv.total;
    return status;
}

static void print_share(const info_subject *s, int device, const device_share *share) {
    const model_config *whole = s->model->verifier, *part = &share->part;
    char a[32], b[32], c[32];
    printf(
        "  device %-3d %s of weights in bf16, %s of K/V of the session above under %s; rows %d to %d of the LM head\n",
        device, format_bytes(a, 2.0 * (double)share->parameters), format_bytes(b, (double)share->kv_bytes),
        kakeya_attention_name(s->session.attention), share->first_output, share->first_output + share->outputs - 1);
    printf("             %d of %d query heads", part->heads, whole->heads);
    for (int type = 0; type < 2; type++) {
        for (int i = 0; i < whole->layers; i++) {
            if ((int)whole->layer[i].type != type) continue;
            printf(", %d of %d K/V heads (%s)", part->layer[i].kv_heads, whole->layer[i].kv_heads,
                   type == LAYER_FULL ? "full attention" : "sliding");
            break;
        }
    }
    printf(", %s of the %s columns of the dense MLP", format_count(a, (uint64_t)part->layer[0].intermediate),
           format_count(b, (uint64_t)whole->layer[0].intermediate));
    if (whole->moe)
        printf(", %d of the %s of every expert", part->expert_intermediate,
               format_count(c, (uint64_t)whole->expert_intermediate));
    printf("\n");
}

static void add_share(cJSON *list, int device, const device_share *share) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "device", device);
    cJSON_AddNumberToObject(item, "weight_bytes", 2.0 * (double)share->parameters);
    cJSON_AddNumberToObject(item, "kv_bytes", (double)share->kv_bytes);
    cJSON_AddNumberToObject(item, "heads", share->part.heads);
    cJSON_AddNumberToObject(item, "expert_width", share->part.expert_intermediate);
    cJSON_AddNumberToObject(item, "dense_width", share->part.layer[0].intermediate);
    cJSON_AddNumberToObject(item, "head_first", share->first_output);
    cJSON_AddNumberToObject(item, "head_rows", share->outputs);
    cJSON_AddItemToArray(list, item);
}

kakeya_status info_devices_compute(const info_subject *s, const char *text, info_devices **out, kakeya_error *error) {
    *out = NULL;
    info_devices *all = calloc(1, sizeof *all);
    if (!all) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = device_list_read(text, DEVICE_LIST_MOST, all->device, &all->n, error);
    for (int i = 0; i < all->n && !status; i++) status = share_of(s, (model_shard){i, all->n}, &all->share[i], error);
    all->first = *s->model;
    all->first.verifier = &all->share[0].part;
    if (status || all->n == 0)
        free(all);
    else
        *out = all;
    return status;
}

info_subject info_devices_subject(const info_subject *s, const info_devices *devices) {
    info_subject of_one = *s;
    if (devices) of_one.model = &devices->first;
    return of_one;
}

void info_devices_free(info_devices *devices) { free(devices); }

void info_devices_print(const info_subject *s, const info_devices *devices) {
    if (!devices) return;
    printf("\ndevices\n");
    for (int i = 0; i < devices->n; i++) print_share(s, devices->device[i], &devices->share[i]);
    printf("  every device also holds the embedding, the router, norms, drafter and f_theta\n");
}

void info_devices_add_json(cJSON *object, const info_devices *devices) {
    if (!devices) return;
    cJSON *list = cJSON_AddArrayToObject(object, "devices");
    for (int i = 0; i < devices->n; i++) add_share(list, devices->device[i], &devices->share[i]);
}
