#include "serve/pressure.h"

#include <stdio.h>

#include "serve/lifecycle.h"

const char *pressure_name(pressure_state state) {
    static const char *const names[] = {"ok", "warning", "refusing"};
    return names[state];
}

/* 0 while the model is not in memory. */
static double used_ratio(server_context *s) {
    static const kakeya_memory_kind kinds[] = {KAKEYA_MEMORY_KV_FULL, KAKEYA_MEMORY_KV_SLIDING, KAKEYA_MEMORY_KV_LATENT,
                                               KAKEYA_MEMORY_KV_DRAFT};
    store_counts kept = {0};
    double used = 0, room = (double)lifecycle_kv_room(s->lifecycle);
    if (room <= 0) return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) used += (double)lifecycle_memory(s->lifecycle, kinds[i]);
    store_counts_get(s->store, &kept);
    used -= (double)kept.ram_bytes;
    return used > 0 ? used / room : 0;
}

static bool reaches(double ratio, int percent) { return percent > 0 && 100 * ratio >= percent; }

static void tell(const serve_settings *settings, pressure p) {
    if (settings->log_json)
        fprintf(stderr, "{\"memory\":\"%s\",\"used_ratio\":%.3f}\n", pressure_name(p.state), p.used_ratio);
    else
        fprintf(stderr, "kakeya serve: memory: %s, %.0f %% of the room for K/V are taken\n", pressure_name(p.state),
                100 * p.used_ratio);
}

pressure pressure_now(server_context *s) {
    const serve_settings *settings = s->settings;
    pressure p = {PRESSURE_NONE, 0};
    if (!atomic_load(&s->loaded)) return p;
    p.used_ratio = used_ratio(s);
    if (reaches(p.used_ratio, settings->memory_refuse_percent))
        p.state = PRESSURE_REFUSES;
    else if (reaches(p.used_ratio, settings->memory_warn_percent))
        p.state = PRESSURE_WARNS;
    if (atomic_exchange(&s->pressure, (int)p.state) != (int)p.state) tell(settings, p);
    return p;
}
