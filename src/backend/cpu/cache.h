/* A cache and what is computed for it. */
#ifndef KAKEYA_BACKEND_CPU_CACHE_H
#define KAKEYA_BACKEND_CPU_CACHE_H

#include "backend/cpu/latents.h"
#include "backend/host_cache.h"

kakeya_status cpu_cache_check(const backend_model *m, const backend_cache_options *options, kakeya_error *error);
kakeya_status cpu_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                               kakeya_error *error);

/* A forward's steps 2 and 3 (backend/timeline.h). cache_reserve, of one cache, is the one that can fail; cache_release
 * undoes it. RoPE tables must reach the positions of the steps before caches_begin, of 1 to BACKEND_MAX_FORWARD caches
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
