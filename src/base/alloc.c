#include "base/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 };

/* From this size on, blocks are mapped: zero without being touched, and in transparent huge pages where the system has
 * them, so that matrix walks are not bound by TLB misses. */
static const size_t mapping_threshold_bytes = (size_t)4 << 20;

/* Sits in the 64 bytes before every allocation. */
typedef struct mem_header {
    mem_account *account;
    void *base; /* what the system gave */
    size_t counted_bytes;
    size_t mapped_bytes; /* 0: from the heap */
    mem_tag tag;
    atomic_int others; /* holders beside one */
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

/* What the tag says beside the layer, and the layer's counter; NULL: it says none, or nobody counts. */
static mem_tag kind_of(mem_tag tag) { return (mem_tag)((unsigned)tag & ((1u << MEM_LAYER_SHIFT) - 1)); }

static atomic_size_t *layer_counter(const mem_account *account, mem_tag tag) {
    unsigned layer = (unsigned)tag >> MEM_LAYER_SHIFT;
    return layer && account->ledger ? &account->ledger->bytes[kind_of(tag)][layer - 1] : NULL;
}

/* One account alone. */
static void take_from(mem_account *account, mem_tag tag, size_t bytes) {
    atomic_size_t *layer = layer_counter(account, tag);
    atomic_fetch_sub(&account->bytes[kind_of(tag)], bytes);
    atomic_fetch_sub(&account->total_bytes, bytes);
    if (layer) atomic_fetch_sub(layer, bytes);
}

void mem_account_remove(mem_account *account, mem_tag tag, size_t bytes) {
    for (; account; account = account->parent) take_from(account, tag, bytes);
}

void mem_account_spare(mem_account *account, mem_spare *spare) {
    spare->next = atomic_load(&account->spares);
    while (!atomic_compare_exchange_weak(&account->spares, &spare->next, spare)) {
    }
}

void mem_account_unspare(mem_account *account, mem_spare *spare) {
    mem_spare *first = atomic_load(&account->spares);
    if (first == spare) atomic_store(&account->spares, spare->next);
    for (mem_spare *s = first; s; s = s->next)
        if (s->next == spare) s->next = spare->next;
}

/* Counts the bytes in all accounts; where one of them would pass its limit, in none, and returns that one. */
static mem_account *count(mem_account *account, mem_tag tag, size_t bytes) {
    for (mem_account *a = account; a; a = a->parent) {
        size_t total = atomic_fetch_add(&a->total_bytes, bytes) + bytes;
        atomic_size_t *layer = layer_counter(a, tag);
        atomic_fetch_add(&a->bytes[kind_of(tag)], bytes);
        if (layer) atomic_fetch_add(layer, bytes);
        if (a->limit_bytes && total > a->limit_bytes) {
            for (mem_account *undo = account;; undo = undo->parent) {
                take_from(undo, tag, bytes);
                if (undo == a) return a;
            }
        }
        size_t peak = atomic_load(&a->peak_bytes);
        while (total > peak && !atomic_compare_exchange_weak(&a->peak_bytes, &peak, total)) {
        }
    }
    return NULL;
}

/* What the accounts up to the full one can do without counts in the full one, too. */
static bool make_room(mem_account *account, const mem_account *full) {
    for (mem_account *a = account;; a = a->parent) {
        for (mem_spare *s = atomic_load(&a->spares); s; s = s->next)
            if (s->give_back(s->owner)) return true;
        if (a == full) return false;
    }
}

int mem_account_add(mem_account *account, mem_tag tag, size_t bytes) {
    for (;;) {
        const mem_account *full = count(account, tag, bytes);
        if (!full) return 1;
        if (!make_room(account, full)) return 0;
    }
}

/* `size`: of the memory itself, rounded. */
static void *allocate(mem_account *account, mem_tag tag, size_t counted, size_t size) {
    if (!mem_account_add(account, tag, counted)) return NULL;

    size_t mapped = size >= mapping_threshold_bytes ? size + ALIGNMENT : 0;
    void *base;
    if (mapped) {
        base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) base = NULL;
#if defined(MADV_HUGEPAGE)
        else
            (void)madvise(base, mapped, MADV_HUGEPAGE); /* advice only */
#endif
    } else {
        base = calloc(1, size + 2 * ALIGNMENT); /* which does not touch pages that are zero already */
    }
    if (!base) {
        mem_account_remove(account, tag, counted);
        return NULL;
    }
    mem_header *header = (mem_header *)(((uintptr_t)base + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    *header =
        (mem_header){.account = account, .base = base, .counted_bytes = counted, .mapped_bytes = mapped, .tag = tag};
    return (char *)header + ALIGNMENT;
}

void *mem_alloc(mem_account *account, mem_tag tag, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t size = mem_rounded(bytes);
    return allocate(account, tag, size, size);
}

void *mem_alloc_record(mem_account *account, mem_tag tag, size_t counted, size_t bytes) {
    return allocate(account, tag, counted, mem_rounded(bytes));
}

static mem_header *header_of(const void *pointer) { return (mem_header *)((uintptr_t)pointer - ALIGNMENT); }

bool mem_is_shared(const void *pointer) { return atomic_load(&header_of(pointer)->others) > 0; }

const mem_account *mem_account_of(const void *pointer) { return header_of(pointer)->account; }

static bool is_above(const mem_account *above, const mem_account *account) {
    while (account && account != above) account = account->parent;
    return account != NULL;
}

bool mem_share(void *pointer, mem_account *account) {
    mem_header *header = header_of(pointer);
    mem_account *common = header->account;
    while (common && !is_above(common, account)) common = common->parent;
    if (!common) return false;
    if (common != header->account) { /* it has one holder: nobody else reads this now */
        for (mem_account *a = header->account; a != common; a = a->parent)
            take_from(a, header->tag, header->counted_bytes);
        header->account = common;
    }
    atomic_fetch_add(&header->others, 1);
    return true;
}

bool mem_free(void *pointer) {
    if (!pointer) return false;
    mem_header *header = header_of(pointer);
    if (atomic_fetch_sub(&header->others, 1) > 0) return false;
    mem_account_remove(header->account, header->tag, header->counted_bytes);
    if (header->mapped_bytes)
        munmap(header->base, header->mapped_bytes);
    else
        free(header->base);
    return true;
}

size_t mem_bytes(const mem_account *account, mem_tag tag) {
    if (kind_of(tag) == tag) return atomic_load(&account->bytes[tag]);
    const atomic_size_t *layer = layer_counter(account, tag);
    return layer ? atomic_load(layer) : 0;
}

size_t mem_total(const mem_account *account) { return atomic_load(&account->total_bytes); }

size_t mem_room(const mem_account *account) {
    size_t least = SIZE_MAX;
    for (const mem_account *a = account; a; a = a->parent) {
        size_t held = mem_total(a), left = a->limit_bytes > held ? a->limit_bytes - held : 0;
        if (a->limit_bytes && left < least) least = left;
    }
    return least;
}

const char *mem_tag_name(mem_tag tag) {
    static const char *const names[MEM_TAG_COUNT] = {
        "weights", "kv.full", "kv.sliding", "kv.latent", "kv.draft", "workspace",
    };
    return kind_of(tag) < MEM_TAG_COUNT ? names[kind_of(tag)] : "unknown";
}
