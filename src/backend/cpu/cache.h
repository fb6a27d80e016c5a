/* The verbs on a cache: its timeline and its stores in step with each other. */
#ifndef KAKEYA_BACKEND_CPU_CACHE_H
#define KAKEYA_BACKEND_CPU_CACHE_H

#include "backend/cpu/latents.h"

kakeya_status cpu_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                               kakeya_error *error);
void cpu_cache_destroy(backend_cache *c);
int cpu_cache_length(const backend_cache *c);
int cpu_cache_pending(const backend_cache *c);
int cpu_cache_min_truncate(const backend_cache *c);
kakeya_status cpu_cache_commit(backend_cache *c, int n, kakeya_error *error);
kakeya_status cpu_cache_truncate(backend_cache *c, int length, kakeya_error *error);
kakeya_status cpu_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error);
backend_cache_bytes cpu_cache_bytes(const backend_cache *c);
size_t cpu_cache_snapshot_bytes(const backend_cache *c);
kakeya_status cpu_cache_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error);
kakeya_status cpu_cache_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error);

/* A forward's steps 2 and 3 (backend/timeline.h). cache_reserve, of one cache, is the one that can fail; cache_release
 * undoes it. RoPE tables must reach the positions of the steps before caches_begin, of 1 to BACKEND_MAX_SEGMENTS caches
 * of one model. */
kakeya_status cache_reserve(backend_cache *c, const timeline_step *step, kakeya_error *error);
void cache_release(backend_cache *c);
void caches_begin(backend_cache *const *caches, const timeline_step *steps, int n);

/* What follows these rows, of caches that keep a backlog: the drafter's context, latents. As many together as the
 * workspace takes. RoPE tables must reach them. */
void caches_follow(backend_model *m, const draft_rows *entries, int n);
/* The same for the rows that wait in backlogs. RoPE tables must reach the committed lengths. */
void caches_flush(backend_cache *const *caches, int n);

#endif
