/* A hash table from strings to integers with open addressing and linear probing. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char *key; /* NULL: free */
    int64_t value;
} entry;

typedef struct hash_table {
    entry *entries;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
} hash_table;

enum { INITIAL_CAPACITY = 16 };

static uint64_t hash_string(const char *key) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *c = key; *c; c++) {
        hash ^= (unsigned char)*c;
        hash *= UINT64_C(1099511628211);
    }
    return hash;
}

void hash_table_init(hash_table *table) {
    table->entries = NULL;
    table->capacity = 0;
    table->count = 0;
}

void hash_table_destroy(hash_table *table) {
    for (size_t i = 0; i < table->capacity; i++) {
        free(table->entries[i].key);
    }
    free(table->entries);
    hash_table_init(table);
}

/* The entry of the key, or the free entry where it belongs. */
static entry *find_entry(entry *entries, size_t capacity, const char *key) {
    size_t index = (size_t)hash_string(key) & (capacity - 1);
    while (entries[index].key != NULL && strcmp(entries[index].key, key) != 0) {
        index = (index + 1) & (capacity - 1);
    }
    return &entries[index];
}

static bool grow(hash_table *table) {
    size_t capacity = table->capacity == 0 ? INITIAL_CAPACITY : table->capacity * 2;
    entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL) {
        return false;
    }
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->entries[i].key != NULL) {
            *find_entry(entries, capacity, table->entries[i].key) = table->entries[i];
        }
    }
    free(table->entries);
    table->entries = entries;
    table->capacity = capacity;
    return true;
}

bool hash_table_set(hash_table *table, const char *key, int64_t value) {
    if (table->count * 4 >= table->capacity * 3) {
        if (!grow(table)) {
            return false;
        }
    }
    entry *found = find_entry(table->entries, table->capacity, key);
    if (found->key == NULL) {
        found->key = strdup(key);
        if (found->key == NULL) {
            return false;
        }
        table->count++;
    }
    found->value = value;
    return true;
}

bool hash_table_get(const hash_table *table, const char *key, int64_t *value) {
    if (table->count == 0) {
        return false;
    }
    const entry *found = find_entry(table->entries, table->capacity, key);
    if (found->key == NULL) {
        return false;
    }
    *value = found->value;
    return true;
}

bool hash_table_contains(const hash_table *table, const char *key) {
    int64_t value;
    return hash_table_get(table, key, &value);
}

/* Removes a key and moves the entries behind it, so that no search ends too early. */
bool hash_table_remove(hash_table *table, const char *key) {
    if (table->count == 0) {
        return false;
    }
    entry *found = find_entry(table->entries, table->capacity, key);
    if (found->key == NULL) {
        return false;
    }
    free(found->key);
    found->key = NULL;
    table->count--;
    size_t index = (size_t)(found - table->entries);
    for (;;) {
        index = (index + 1) & (table->capacity - 1);
        entry moved = table->entries[index];
        if (moved.key == NULL) {
            return true;
        }
        table->entries[index].key = NULL;
        *find_entry(table->entries, table->capacity, moved.key) = moved;
    }
}
