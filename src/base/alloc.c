#include "base/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 };

/* From this size on, ask for transparent huge pages: matrix walks are then not bound by TLB misses. */
static const size_t huge_page_threshold_bytes = (size_t)4 << 20;
static const size_t huge_page_bytes = (size_t)2 << 20;

/* Sits in the 64 bytes before every allocation. */
typedef struct mem_header {
    mem_account *account;
    void *base;
    size_t counted_bytes;
    mem_tag tag;
} mem_header;

_Static_assert(sizeof(mem_header) <= ALIGNMENT, "the header must fit before an aligned block");

void mem_account_init(mem_account *account, mem_account *parent, size_t limit_bytes) {
    memset(account, 0, sizeof *account);
    account->parent = parent;
    account->limit_bytes = limit_bytes;
}

size_t mem_rounded(size_t bytes) {
    if (bytes == 0) bytes = 1;
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void account_subtract(mem_account *account, mem_tag tag, size_t bytes) {
    for (; account; account = account->parent) {
        atomic_fetch_sub(&account->bytes[tag], bytes);
        atomic_fetch_sub(&account->total_bytes, bytes);
    }
}

/* Counts in the account and all its parents, or in none of them. */
static int account_add(mem_account *account, mem_tag tag, size_t bytes) {
    for (mem_account *a = account; a; a = a->parent) {
        size_t total = atomic_fetch_add(&a->total_bytes, bytes) + bytes;
        atomic_fetch_add(&a->bytes[tag], bytes);
        if (a->limit_bytes && total > a->limit_bytes) {
            for (mem_account *undo = account;; undo = undo->parent) {
                atomic_fetch_sub(&undo->bytes[tag], bytes);
                atomic_fetch_sub(&undo->total_bytes, bytes);
                if (undo == a) return 0;
            }
        }
        size_t peak = atomic_load(&a->peak_bytes);
        while (total > peak && !atomic_compare_exchange_weak(&a->peak_bytes, &peak, total)) {}
    }
    return 1;
}

void *mem_alloc(mem_account *account, mem_tag tag, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t counted = mem_rounded(bytes);
    if (!account_add(account, tag, counted)) return NULL;

    size_t align = counted >= huge_page_threshold_bytes ? huge_page_bytes : ALIGNMENT;
    void *base = NULL;
    if (posix_memalign(&base, align, counted + ALIGNMENT) != 0) {
        account_subtract(account, tag, counted);
        return NULL;
    }
    if (align == huge_page_bytes) (void)madvise(base, counted, MADV_HUGEPAGE); /* advice only */
    memset(base, 0, counted + ALIGNMENT);
    mem_header *header = base;
    *header = (mem_header){.account = account, .base = base, .counted_bytes = counted, .tag = tag};
    return (char *)base + ALIGNMENT;
}

void mem_free(void *pointer) {
    if (!pointer) return;
    mem_header *header = (mem_header *)(void *)((char *)pointer - ALIGNMENT);
    account_subtract(header->account, header->tag, header->counted_bytes);
    free(header->base);
}

size_t mem_bytes(const mem_account *account, mem_tag tag) { return atomic_load(&account->bytes[tag]); }

size_t mem_total(const mem_account *account) { return atomic_load(&account->total_bytes); }

const char *mem_tag_name(mem_tag tag) {
    static const char *const names[MEM_TAG_COUNT] = {
        "weights", "kv.full", "kv.sliding", "kv.latent", "kv.draft", "workspace",
    };
    return tag < MEM_TAG_COUNT ? names[tag] : "unknown";
}
