#include "serve/store_entries.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/platform.h"
#include "serve/store_rules.h"

static const double half_life_seconds = 6 * 3600.0;

bool store_entries_open(store_entries *all, store_key seed) {
    pthread_mutex_init(&all->lock, NULL);
    platform_condition_init(&all->ready);
    all->seed = seed;
    all->index = store_index_open();
    return all->index != NULL;
}

void store_entries_close(store_entries *all) {
    for (store_entry *e; (e = all->first) != NULL;) {
        store_entries_remove(all, e);
        store_entry_close(e);
    }
    store_index_close(all->index);
    pthread_cond_destroy(&all->ready);
    pthread_mutex_destroy(&all->lock);
}

store_entry *store_entry_open(kakeya_session *session, const char *salt, size_t prompt_tokens, store_reason reason,
                              bool live) {
    size_t n;
    int32_t *keys;
    const int32_t *ids = store_keys(session, &n, &keys);
    if (!ids || n == 0 || kakeya_session_reachable(session, ids, n) == 0) {
        free(keys);
        return NULL;
    }
    store_entry *entry = calloc(1, sizeof *entry);
    char *copy = salt ? strdup(salt) : NULL;
    if (!entry || (salt && !copy)) {
        free(entry);
        free(copy);
        free(keys);
        return NULL;
    }
    kakeya_kv_bytes bytes = kakeya_session_kv_bytes(session);
    size_t growing = (n + STORE_PAGE_TOKENS - 1) / STORE_PAGE_TOKENS * STORE_PAGE_TOKENS * bytes.each_token;
    *entry = (store_entry){
        .session = session,
        .ids = ids,
        .keys = keys,
        .n = n,
        .salt = copy,
        .prompt_tokens = prompt_tokens < n ? prompt_tokens : n,
        .prompt_end = n,
        .reason = reason,
        .live = live,
        .own_bytes = bytes.total > growing ? bytes.total - growing : 0,
        .used = clock_seconds(),
    };
    return entry;
}

void store_entry_close(store_entry *entry) {
    if (!entry) return;
    kakeya_session_close(entry->session);
    free(entry->salt);
    free(entry->keys);
    free(entry);
}

static store_key seed_of(const store_entries *all, const char *salt) {
    return store_key_salted(all->seed, store_salt(salt));
}

bool store_entries_add(store_entries *all, store_entry *entry) {
    if (!store_index_add(all->index, &entry->index, seed_of(all, entry->salt), entry->ids, entry->n)) return false;
    size_t most = all->prompt_rows_only ? entry->prompt_tokens : entry->n;
    if (all->blocks)
        entry->path = kv_blocks_add(all->blocks, entry->live ? KV_MEDIUM_GPU : KV_MEDIUM_CPU, entry->salt, entry->ids,
                                    store_blocks_end(entry->session, entry->ids, most));
    entry->next = all->first;
    entry->back = &all->first;
    if (entry->next) entry->next->back = &entry->next;
    all->first = entry;
    all->own_bytes += entry->own_bytes;
    *(entry->live ? &all->live : &all->checkpoints) += 1;
    return true;
}

void store_entries_remove(store_entries *all, store_entry *entry) {
    store_index_remove(all->index, &entry->index);
    kv_blocks_remove(all->blocks, entry->path);
    entry->path = NULL;
    *entry->back = entry->next;
    if (entry->next) entry->next->back = entry->back;
    all->own_bytes -= entry->own_bytes;
    *(entry->live ? &all->live : &all->checkpoints) -= 1;
}

size_t store_entries_bytes(const store_entries *all) {
    return all->own_bytes + store_index_pages(all->index) * all->page_bytes;
}

double store_entry_score(const store_entries *all, const store_entry *entry, double now) {
    double bytes = (double)entry->own_bytes + (double)entry->n / STORE_PAGE_TOKENS * (double)all->page_bytes + 1;
    double score = (entry->hits * exp2(-(now - entry->used) / half_life_seconds) + 1) * (double)entry->n / bytes;
    return entry->reason == STORE_SYSTEM_TURN ? 2 * score : score;
}

/* ------------------------------------------------------------------------------------------------------- search */

typedef struct search {
    const store_entries *all;
    const char *salt;
    const int32_t *ids;
    size_t n;
    store_entry *best;
    size_t tokens;
} search;

static size_t offer_of(const search *s, const store_entry *entry) {
    size_t most = s->all->prompt_rows_only && entry->prompt_tokens < s->n ? entry->prompt_tokens : s->n;
    return kakeya_session_reachable(entry->session, s->ids, most);
}

/* Of entries that offer the same number of tokens. */
static int rank(const store_entry *entry, size_t tokens) {
    if (!entry->live) return 1;
    return entry->n <= tokens + 1 ? 2 : 0;
}

static size_t visit(void *user, store_index_entry *index) {
    search *s = user;
    store_entry *entry = (store_entry *)index;
    size_t tokens = store_salts_equal(entry->salt, s->salt) ? offer_of(s, entry) : 0;
    if (tokens == 0) return 0;
    if (tokens > s->tokens || (tokens == s->tokens && rank(entry, tokens) > rank(s->best, s->tokens))) {
        s->best = entry;
        s->tokens = tokens;
    }
    return tokens;
}

store_entry *store_entries_find(store_entries *all, const char *salt, const int32_t *ids, size_t n, size_t *tokens) {
    search s = {.all = all, .salt = salt, .ids = ids, .n = n};
    store_index_search(all->index, seed_of(all, salt), ids, n, visit, &s);
    *tokens = s.tokens;
    return s.best;
}

typedef struct same_search {
    const char *salt;
    const int32_t *ids;
    size_t n;
    bool live;
    store_entry *found;
} same_search;

static size_t visit_same(void *user, store_index_entry *index) {
    same_search *s = user;
    store_entry *entry = (store_entry *)index;
    if (entry->n != s->n || entry->live != s->live || memcmp(entry->ids, s->ids, s->n * sizeof *s->ids) != 0 ||
        !store_salts_equal(entry->salt, s->salt))
        return 0;
    s->found = entry;
    return s->n;
}

store_entry *store_entries_find_same(store_entries *all, const char *salt, const int32_t *ids, size_t n, bool live) {
    same_search s = {.salt = salt, .ids = ids, .n = n, .live = live};
    store_index_search(all->index, seed_of(all, salt), ids, n, visit_same, &s);
    return s.found;
}

/* ----------------------------------------------------------------------------------------------------- eviction */

typedef enum victims { ANY, LIVE_ONLY } victims;

static store_entry *take_worst(store_entries *all, const store_entry *keep, victims which, double now) {
    store_entry *worst = NULL;
    double least = 0;
    for (store_entry *e = all->first; e; e = e->next) {
        if (e == keep || e->busy || (which == LIVE_ONLY && !e->live)) continue;
        double score = store_entry_score(all, e, now);
        if (worst && (score > least || (score == least && e->used >= worst->used))) continue;
        worst = e;
        least = score;
    }
    if (worst) store_entries_remove(all, worst);
    return worst;
}

store_entry *store_entries_worst(store_entries *all, const store_entry *keep, double now) {
    return take_worst(all, keep, ANY, now);
}

store_entry *store_entries_surplus(store_entries *all, const store_entry *keep, double now) {
    size_t half = all->ram_bytes / 2, others = all->other_bytes < half ? all->other_bytes : half;
    if (all->ram_bytes)
        return store_entries_bytes(all) + others > all->ram_bytes ? take_worst(all, keep, ANY, now) : NULL;
    return all->live > all->max_live ? take_worst(all, keep, LIVE_ONLY, now) : NULL;
}
