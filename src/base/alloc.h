/* Tagged allocation. "Resident" in every report is what these counters hold: every byte of weights made in memory,
 * K/V, latents and workspace comes from here, so that a report never has to compute a figure from a formula. */
#ifndef KAKEYA_BASE_ALLOC_H
#define KAKEYA_BASE_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum mem_tag {
    MEM_WEIGHTS = 0, /* weights held in memory (mapped files are not allocations) */
    MEM_KV_FULL,     /* full-attention layers: exact K/V */
    MEM_KV_SLIDING,  /* sliding layers: exact K/V */
    MEM_KV_LATENT,   /* f_theta latents and their norms */
    MEM_KV_DRAFT,    /* drafter context K/V */
    MEM_WORKSPACE,   /* activations, packed operands, pending aux rows */
    MEM_TAG_COUNT
} mem_tag;

/* The ledger: bytes of each layer, beside those of each tag. */
enum { MEM_LAYERS = 128, MEM_LAYER_SHIFT = 8 };
typedef struct mem_ledger {
    atomic_size_t bytes[MEM_TAG_COUNT][MEM_LAYERS];
} mem_ledger;

/* A tag that says which layer the memory is of, wherever a tag is taken: the memory counts as the tag's, and in the
 * ledgers of its accounts as the layer's. layer: 0 to MEM_LAYERS - 1; of more, nothing is said. */
static inline mem_tag mem_layer_tag(mem_tag tag, int layer) {
    return layer < MEM_LAYERS ? (mem_tag)((unsigned)tag | ((unsigned)layer + 1) << MEM_LAYER_SHIFT) : tag;
}

/* Memory of an account that can be done without. */
typedef struct mem_spare {
    bool (*give_back)(void *owner); /* frees it; false: there was nothing to be freed */
    void *owner;
    struct mem_spare *next; /* mem_account_spare */
} mem_spare;

/* Counters of one owner (an engine, a session). With a parent, allocations count there, too, and obey its limit. */
typedef struct mem_account {
    struct mem_account *parent;
    size_t limit_bytes; /* 0: none; compared with the sum over tags */
    atomic_size_t bytes[MEM_TAG_COUNT];
    atomic_size_t total_bytes;
    atomic_size_t peak_bytes;
    _Atomic(mem_spare *) spares; /* mem_account_spare */
    mem_ledger *ledger; /* NULL: layers are not counted; set before anything is allocated, outlives the account */
} mem_account;

void mem_account_init(mem_account *account, mem_account *parent, size_t limit_bytes);

/* Says that some of the account's memory can be done without. Where an allocation would pass a limit, spares are asked
 * to free theirs, the last one that was added first, until one did: then the allocation is tried again. So what is
 * optional never takes what is needed, and more memory is never worse than less. give_back is called from any thread
 * that allocates. The spare is the caller's, and stays where it is until mem_account_unspare. */
void mem_account_spare(mem_account *account, mem_spare *spare);
/* While no other thread allocates. A spare that was not added is fine. */
void mem_account_unspare(mem_account *account, mem_spare *spare);

/* 64-byte aligned, zeroed. Sizes are counted rounded up to 64 bytes (mem_rounded). NULL when memory or the limit is
 * exhausted. The account must outlive the allocation. */
void *mem_alloc(mem_account *account, mem_tag tag, size_t bytes);
/* NULL is fine; of shared memory, gives up one holder's share. True: there is no holder left, the memory is gone. */
bool mem_free(void *pointer);
/* `bytes` of host memory that stand for `counted` bytes elsewhere, on a device, which are what is counted. It can be
 * shared like other memory; whoever frees it last gives back what it stands for. */
void *mem_alloc_record(mem_account *account, mem_tag tag, size_t counted, size_t bytes);
size_t mem_rounded(size_t bytes);

/* Shared memory is counted once, in the nearest account above all of its holders, and in none of theirs: from then on
 * it stays there until its last holder frees it. So what an account holds is what closing its owner gives back, and no
 * holder depends on another one's account.
 *
 * One more holder, whose account is `account`. False, with nothing changed, where the two accounts have nothing above
 * them in common. Holders under one account may share and free at the same time. */
bool mem_share(void *pointer, mem_account *account);
/* Somebody else holds it, too. The only holder may write to it, and stays the only one until it shares it. */
bool mem_is_shared(const void *pointer);
/* Where it is counted. */
const mem_account *mem_account_of(const void *pointer);

/* Counts memory that lives elsewhere (on a device): in the account and all its parents, or, where a limit would be
 * passed, in none of them and the result is 0. */
int mem_account_add(mem_account *account, mem_tag tag, size_t bytes);
void mem_account_remove(mem_account *account, mem_tag tag, size_t bytes);

size_t mem_bytes(const mem_account *account, mem_tag tag); /* of a layer, where the tag says one; 0 without a ledger */
size_t mem_total(const mem_account *account);
/* Bytes that limits leave; SIZE_MAX: there is no limit. */
size_t mem_room(const mem_account *account);
const char *mem_tag_name(mem_tag tag); /* "weights", "kv.full", ... */

#endif
